package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/hosttest"
)

// id returns the id of a container that ends in these digits.
func id(last string) string { return strings.Repeat("0", 64-len(last)) + last }

func TestIdentify(t *testing.T) {
	for _, c := range []struct {
		id, name, image string
		labels          map[string]string
		want            *Container
	}{
		{id("1"), "/db", "postgres:17", nil, &Container{Name: "db", Labels: map[string]string{"image": "postgres:17", batch.LabelContainer: "db"}}},
		{id("1"), "shop-web-1", "web", map[string]string{"com.docker.compose.project": "shop", "com.docker.compose.service": "web", "secret": "x"},
			&Container{Name: "shop-web-1", Job: "shop", Labels: map[string]string{"image": "web", batch.LabelContainer: "web"}}},
		{id("1"), "a", "", map[string]string{"io.podman.compose.project": "shop", "io.podman.compose.service": "web"},
			&Container{Name: "a", Job: "shop", Labels: map[string]string{batch.LabelContainer: "web"}}},
		{id("1"), "a.1.x", "", map[string]string{"com.docker.swarm.service.name": "a"}, &Container{Name: "a.1.x", Job: "a", Labels: map[string]string{batch.LabelContainer: "a"}}},
		{id("1"), "a", "", map[string]string{"com.docker.compose.project": "shop", "mete.dev/job": "nightly"},
			&Container{Name: "a", Job: "nightly", Labels: map[string]string{batch.LabelContainer: "a"}}},
		{id("1"), "", "web", nil, nil},
		{id("1"), strings.Repeat("ü", 200), "", nil, &Container{Name: strings.Repeat("ü", 126), Labels: map[string]string{batch.LabelContainer: strings.Repeat("ü", 126)}}},
		{"", "a", "", nil, nil},
		{"../../etc", "a", "", nil, nil},
		{strings.ToUpper(id("a")), "a", "", nil, nil},
	} {
		got := identify(c.id, c.name, c.image, c.labels)
		if c.want != nil {
			c.want.ID = c.id
		}
		if (got == nil) != (c.want == nil) || got != nil && !got.equal(c.want) {
			t.Errorf("%q with %v is %+v, want %+v", c.name, c.labels, got, c.want)
		}
	}
}

// A fake answers like a daemon.
type fake struct {
	list   string
	events string // after which the connection stays open until the request ends, or
	end    bool   // ends
	image  string // of each container, when it is inspected
	asked  chan string
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.asked != nil {
		f.asked <- r.URL.Path
	}
	if r.URL.Path == "/containers/"+id("1")+"/json" {
		_, _ = fmt.Fprintf(w, `{"Config": {"Image": %q}}`, f.image)
	}
	switch r.URL.Path {
	case "/containers/json":
		_, _ = io.WriteString(w, f.list)
	case "/events":
		if r.FormValue("since") == "" || !strings.Contains(r.FormValue("filters"), `"rename"`) {
			http.Error(w, "bad parameter", http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, f.events)
		_ = http.NewResponseController(w).Flush()
		if !f.end {
			<-r.Context().Done()
		}
	}
}

// serve returns a watcher of a fake daemon.
func serve(t *testing.T, f *fake) *Watcher {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: f}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-ended })
	return New([]string{None, socket}, time.Minute, slog.New(slog.DiscardHandler))
}

func find(w *Watcher, id string) *Container {
	return w.Find(workload.Container, id, "/docker/"+id, true)
}

// names returns the names of these containers, by the last digit of their ids.
func names(w *Watcher, last ...string) map[string]string {
	all := map[string]string{}
	for _, l := range last {
		if c := find(w, id(l)); c != nil {
			all[l] = c.Name
		}
	}
	return all
}

func one(last, name string) string {
	return fmt.Sprintf(`{"Id": %q, "Names": [%q]}`, id(last), "/"+name)
}

func change(action, last, name string) string {
	b, _ := json.Marshal(map[string]any{"Action": action, "Actor": map[string]any{"ID": id(last), "Attributes": map[string]string{"name": name}}})
	return string(b) + "\n"
}

func TestFollow(t *testing.T) {
	f := &fake{end: true, list: "[" + one("1", "web") + "," + one("2", "old") + "]",
		events: change("create", "3", "new") + change("rename", "2", "renamed") + change("destroy", "1", "web") + change("exec_create: sh", "4", "no")}
	w := serve(t, f)
	d := w.daemons[0]
	follow := func() {
		t.Helper()
		if err := w.follow(t.Context(), d); !errors.Is(err, io.EOF) {
			t.Fatalf("%v; want the end of the stream", err)
		}
		w.disconnect(d)
	}
	follow()
	// One that was removed keeps its name: a window may not be closed yet.
	if got, want := names(w, "1", "2", "3", "4"), map[string]string{"1": "web", "2": "renamed", "3": "new", "4": "no"}; !maps.Equal(got, want) {
		t.Errorf("names %v, want %v", got, want)
	}
	kept := find(w, id("2"))
	f.list, f.events = "["+one("2", "renamed")+"]", ""
	follow()
	if find(w, id("2")) != kept {
		t.Error("what did not change is another one")
	}
	if len(d.ids) != 1 || len(w.removed) != 3 {
		t.Errorf("%d containers and %d removed ones, want 1 and 3", len(d.ids), len(w.removed))
	}
}

func TestFollowErrors(t *testing.T) {
	long := change("create", "1", strings.Repeat("x", maxEvent))
	for name, f := range map[string]*fake{
		"no list":    {list: `{"message": "no"}`},
		"cut list":   {list: `[` + one("1", "a")},
		"no object":  {list: `[1]`},
		"no event":   {list: `[]`, events: "x\n"},
		"long event": {list: `[]`, events: long},
	} {
		t.Run(name, func(t *testing.T) {
			w := serve(t, f)
			if err := w.follow(t.Context(), w.daemons[0]); err == nil || !strings.Contains(err.Error(), w.daemons[0].socket) {
				t.Errorf("%v; want an error with the socket", err)
			}
		})
	}
	w := New([]string{filepath.Join(t.TempDir(), "nosuch")}, 0, slog.New(slog.DiscardHandler))
	if err := w.follow(t.Context(), w.daemons[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v without a daemon", err)
	}
}

// A watcher connects when a container is not known, and not for what a daemon would not know.
func TestWanted(t *testing.T) {
	f := &fake{list: "[" + one("1", "web") + "]", asked: make(chan string, 10)}
	w := serve(t, f)
	d := w.daemons[0]
	d.runtime = "docker"
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = w.Run(ctx) }()
	defer func() { stop(); <-ended }()
	for _, other := range []struct {
		kind      workload.Kind
		key, path string
		lives     bool
	}{
		{workload.Service, "cron.service", "/system.slice/cron.service", true},
		{workload.Container, id("1"), "/kubepods/burstable/pod1/" + id("1"), true},
		{workload.Container, id("1"), "/system.slice/crio-" + id("1") + ".scope", true},
		{workload.Container, id("1"), "/libpod_parent/libpod-" + id("1"), true},
		{workload.Container, "web", "/lxc/web", true},
		{workload.Container, id("1"), "/docker/" + id("1"), false}, // it ended
	} {
		if c := w.Find(other.kind, other.key, other.path, other.lives); c != nil || len(d.wanted) != 0 {
			t.Errorf("%v: %v, wanted %d", other, c, len(d.wanted))
		}
		clear(d.asked)
	}
	if got := find(w, id("1")); got != nil {
		t.Errorf("%v before it was known", got)
	}
	for _, want := range []string{"/containers/json", "/events"} {
		if got := <-f.asked; got != want {
			t.Errorf("request for %s, want %s", got, want)
		}
	}
	if got := w.DisplayName(&workload.Workload{Kind: workload.Container, Key: id("1"), Path: "/docker/" + id("1")}); got != "web" {
		t.Errorf("named %q, want web", got)
	}
	if (*Watcher)(nil).Find(workload.Container, id("1"), "", true) != nil {
		t.Error("a watcher of nothing knows something")
	}
}

// A container makes a watcher connect once. After the end of a connection, which may be that of the daemon, one that
// lives does so again, also if it is known.
func TestWantedOnce(t *testing.T) {
	w := serve(t, &fake{end: true, list: "[" + one("1", "web") + "]"})
	d := w.daemons[0]
	wanted := func(want int, last string, lives bool) {
		t.Helper()
		w.Find(workload.Container, id(last), "/docker/"+id(last), lives)
		if got := len(d.wanted); got != want {
			t.Errorf("%d requests, want %d", got, want)
		}
		for len(d.wanted) > 0 {
			<-d.wanted
		}
	}
	wanted(1, "1", true)
	wanted(0, "1", true)
	wanted(1, "2", true)
	d.wanted <- struct{}{} // it is wanted again while the list is read
	_ = w.follow(t.Context(), d)
	wanted(0, "1", true)
	wanted(0, "2", true)
	wanted(1, "3", true) // the watcher lists again, at most once a minute
	d.wanted <- struct{}{}
	w.disconnect(d)
	wanted(0, "1", false)
	wanted(1, "1", true)
	wanted(0, "1", true)
	for i := range maxAsked + 10 {
		w.Find(workload.Container, id(fmt.Sprintf("%x", i)), "/docker/x", true)
	}
	if len(d.asked) > maxAsked {
		t.Errorf("%d ids are remembered", len(d.asked))
	}
}

// Two sockets of one daemon are one, as where Podman stands in for Docker.
func TestSameDaemon(t *testing.T) {
	w := serve(t, &fake{list: "[]"})
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(w.daemons[0].socket, link); err != nil {
		t.Fatal(err)
	}
	both := New([]string{w.daemons[0].socket, link}, time.Minute, slog.New(slog.DiscardHandler))
	if err := both.connect(both.daemons[0]); err != nil {
		t.Fatal(err)
	}
	if err := both.follow(t.Context(), both.daemons[1]); !errors.Is(err, errConnected) {
		t.Errorf("%v, want that it is connected", err)
	}
	both.disconnect(both.daemons[0])
	if err := both.connect(both.daemons[1]); err != nil {
		t.Error(err)
	}
}

// A container has its own name, not one that a link gives it, and the image with which it was created.
func TestListed(t *testing.T) {
	w := serve(t, &fake{end: true, image: "postgres:17",
		list: fmt.Sprintf(`[{"Id": %q, "Names": ["/web/db", "/db"], "Image": "sha256:0123"}, {"Id": %q, "Names": ["/web"], "Image": "nginx"}]`, id("1"), id("2"))})
	_ = w.follow(t.Context(), w.daemons[0])
	if got, want := names(w, "1", "2"), map[string]string{"1": "db", "2": "web"}; !maps.Equal(got, want) {
		t.Errorf("names %v, want %v", got, want)
	}
	for last, want := range map[string]string{"1": "postgres:17", "2": "nginx"} {
		if got := find(w, id(last)).Labels[LabelImage]; got != want {
			t.Errorf("image %q, want %q", got, want)
		}
	}
}

// Removed containers are forgotten: after a while, and the oldest if there are many.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New([]string{"/nosuch"}, time.Minute, slog.New(slog.DiscardHandler))
		d := w.daemons[0]
		apply := func(action, last string) {
			w.apply(d, &event{Action: action, Actor: struct {
				ID         string
				Attributes map[string]string
			}{id(last), map[string]string{"name": "n" + last}}})
		}
		apply("create", "1")
		apply("create", "2")
		apply("destroy", "1")
		time.Sleep(50 * time.Second)
		apply("destroy", "2")
		if len(w.known) != 2 {
			t.Errorf("%d are known, want 2", len(w.known))
		}
		time.Sleep(20 * time.Second)
		apply("destroy", "9")
		if got, want := names(w, "1", "2"), map[string]string{"2": "n2"}; !maps.Equal(got, want) {
			t.Errorf("names %v, want %v", got, want)
		}
		apply("create", "2") // one that came back stays
		time.Sleep(2 * time.Minute)
		apply("destroy", "9")
		if got := names(w, "2"); len(got) != 1 {
			t.Error("a container that exists is forgotten")
		}
		for i := range maxRemoved + 10 {
			last := fmt.Sprintf("%x", 1000+i)
			apply("create", last)
			apply("destroy", last)
		}
		if len(w.known) != maxRemoved+1 || len(w.removed) != maxRemoved || len(d.ids) != 1 {
			t.Errorf("%d known, %d removed, %d of the daemon", len(w.known), len(w.removed), len(d.ids))
		}
	})
}

// The watcher does not talk to a daemon of another user.
func TestOtherUser(t *testing.T) {
	dir, err := os.MkdirTemp("", "mete-docker-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := hosttest.AsOther(t, func() error {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w := New([]string{socket}, time.Minute, slog.New(slog.DiscardHandler))
	if err := w.follow(t.Context(), w.daemons[0]); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "user 65534") {
		t.Errorf("%v; want it denied", err)
	}
}

func TestCheckSocket(t *testing.T) {
	for path, want := range map[string]error{"": fault.ErrInvalid, None: nil, "/run/a,/run/b": fault.ErrInvalid, "/run/docker.sock": nil, "docker.sock": fault.ErrInvalid, "unix:///run/docker.sock": fault.ErrInvalid} {
		if err := CheckSocket(path); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", path, err, want)
		}
	}
}
