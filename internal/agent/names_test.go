package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/identity/docker"
	"mete.dev/mete/internal/identity/libvirt"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// row returns the row of a workload: "name" is a service, "id!" a job; a leading minus marks it as
// ended.
func row(text string) usage.Row {
	text, ended := strings.CutPrefix(text, "-")
	key, job := strings.CutSuffix(text, "!")
	w := workload.Workload{Kind: workload.Service, Key: key, Name: key, Path: "/" + key}
	if job {
		w.Kind, w.Name = workload.Job, "run "+key
	}
	w.ID = workload.NewID("n", w.Kind, key)
	r := usage.NewRow(&usage.Identity{Workload: w})
	r.Ended = ended
	return r
}

func window(rows string) *usage.Window {
	w := &usage.Window{End: noon.UnixNano()}
	for text := range strings.FieldsSeq(rows) {
		w.Rows = append(w.Rows, row(text))
	}
	return w
}

func describe(names []batch.Name) string {
	var list []string
	for _, n := range names {
		s := n.Name
		if n.Job != "" {
			s += "=" + n.Job
		}
		if n.Exit != nil {
			s += fmt.Sprintf(" exit %d", *n.Exit)
		}
		if !n.Ended.IsZero() {
			s += " ended"
		}
		list = append(list, s)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// TestNames checks that each name is sent once, and again if there is a reason.
func TestNames(t *testing.T) {
	n := newNameTracker(nil)
	now := noon
	type step struct {
		rows, want string
		lost       bool   // the window could not be stored
		gone       string // jobs
	}
	play := func(steps ...step) {
		t.Helper()
		for _, s := range steps {
			w := window(s.rows)
			if got := describe(n.collectDue(w, now)); got != s.want {
				t.Errorf("names for %q: %q, want %q", s.rows, got, s.want)
			}
			if s.lost {
				continue
			}
			if gone := strings.Join(n.markSent(w, now), " "); gone != s.gone {
				t.Errorf("jobs ended by %q: %q, want %q", s.rows, gone, s.gone)
			}
		}
	}
	play(step{rows: "a b", want: "a, b", lost: true}, step{rows: "a b", want: "a, b"}, step{rows: "a b c", want: "c"}, step{rows: "a b c"})
	// Changes of a job are sent with its next window, and again until one is stored.
	zero := 0
	job := batch.Name{Name: "make", Job: "build", Labels: map[string]string{"k": "v"}}
	n.setJob("1", job, now)
	play(step{rows: "a"}, step{rows: "a 1!", want: "make=build", lost: true}, step{rows: "a 1!", want: "make=build"}, step{rows: "a 1!"})
	ended := job
	ended.Exit, ended.Ended = &zero, noon
	n.setJob("1", ended, now)
	play(step{rows: "a 1!", want: "make=build exit 0 ended"}, step{rows: "a 1!"},
		step{rows: "a -1!", want: "make=build exit 0 ended", lost: true}, step{rows: "a -1!", want: "make=build exit 0 ended", gone: "1"}, step{rows: "a"})
	if len(n.jobs) != 0 || len(n.states) != 3 {
		t.Errorf("%d jobs and %d workloads are remembered, want 0 and 3", len(n.jobs), len(n.states))
	}
	// The server requests some; a request for an unknown name is dropped.
	short := func(text string) workload.ShortID {
		return row(text).ShortID
	}
	n.markWanted([]workload.ShortID{short("b"), short("1!")})
	play(step{rows: "a b", want: "b", lost: true}, step{rows: "a b", want: "b"}, step{rows: "a b"})
	if len(n.wanted) != 0 {
		t.Errorf("%v are wanted still", n.wanted)
	}
	// A name is sent again after a while, without a request.
	now = now.Add(nameRefresh)
	play(step{rows: "a b", want: "a, b"}, step{rows: "a b"})
	// A workload that restarts within a window lives, even if it is new.
	play(step{rows: "-a a b"}, step{rows: "-d d b", want: "d"}, step{rows: "-d d b"}, step{rows: "-d -d b", want: "d ended"}, step{rows: "d", want: "d"})
	// A job whose mete run was killed, and one whose group was never seen.
	n.setJob("2", batch.Name{Name: "two", Job: "two"}, now)
	n.setJob("3", batch.Name{Name: "three", Job: "three"}, now)
	play(step{rows: "2!", want: "two=two"}, step{rows: "-2!", want: "two=two ended", gone: "2"})
	now = now.Add(jobTimeout - 1)
	play(step{})
	now = now.Add(1)
	play(step{gone: "3"})
	if len(n.jobs) != 0 {
		t.Errorf("jobs %v are remembered", n.jobs)
	}
}

// TestContainerNames checks that a container has the name that its daemon gives it, also where the agent learns it late,
// or it changes.
func TestContainerNames(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	socket := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	renamed := make(chan string)
	daemon := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/containers/json" {
			_, _ = fmt.Fprintf(w, `[{"Id": %q, "Names": ["/web"], "Labels": {"com.docker.compose.project": "shop"}}]`, id)
			return
		}
		for {
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case name := <-renamed:
				_, _ = fmt.Fprintf(w, `{"Action": "rename", "Actor": {"ID": %q, "Attributes": {"name": %q}}}`+"\n", id, name)
			}
		}
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = daemon.Serve(l) }()
	watcher := docker.New([]string{socket}, time.Hour, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() { defer close(watched); _ = watcher.Run(ctx) }()
	defer func() { stop(); <-watched; _ = daemon.Close(); <-served }()

	n := newNameTracker(watcher)
	r := row("x")
	r.Workload.Kind, r.Workload.Key, r.Workload.Name, r.Workload.Path = workload.Container, id, id[:12], "/docker/"+id
	w := &usage.Window{End: noon.UnixNano(), Rows: []usage.Row{r, row("a")}}
	step := func(want string, store bool) {
		t.Helper()
		if got := describe(n.collectDue(w, noon)); got != want {
			t.Errorf("names %q, want %q", got, want)
		}
		if store {
			n.markSent(w, noon)
		}
	}
	is := func(name string) {
		t.Helper()
		testkit.Eventually(t, "the name "+name, func() bool { return n.displayName(&r.Workload.Workload) == name })
		rows := []live.Row{{Kind: r.Workload.Kind, Key: id, Name: id[:12], Path: r.Workload.Path}, {Name: "a", Key: "a"}}
		if n.apply("n", rows); rows[0].Name != name || rows[1].Name != "a" {
			t.Errorf("live names %q and %q, want %q and a", rows[0].Name, rows[1].Name, name)
		}
	}
	step(id[:12]+", a", true)
	is("web")
	step("web=shop", false) // the window could not be stored
	step("web=shop", true)
	step("", true)
	renamed <- "www"
	is("www")
	step("www", true) // its labels are those of the event
	w.Rows[0].Ended = true
	step("www ended", true)
}

// TestDomainNames checks that a virtual machine of libvirt has the name and the owner that libvirt's file gives it, also after a
// change and with its end.
func TestDomainNames(t *testing.T) {
	const pid, uuid, group = "28201", "5f9f5ad4-1b88-49ed-af9f-995cc0ade552", "/machine.slice/machine-qemu\\x2d1\\x2dinstance\\x2d0000001a.scope"
	domain, err := os.ReadFile("../identity/libvirt/testdata/instance-0000001a.xml")
	if err != nil {
		t.Fatal(err)
	}
	root, dir := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "instance-0000001a.xml")
	for path, text := range map[string]string{
		root + "/mete/clocks": "boottime 30\nmonotonic 20\nrealtime 1000\n", file: string(domain),
		root + "/proc/" + pid + "/cmdline": "qemu\x00-uuid\x00" + uuid + "\x00", root + "/proc/" + pid + "/cgroup": "0::" + group + "/libvirt/emulator\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	h, err := hostfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	synctest.Test(t, func(t *testing.T) {
		n := newNameTracker(nil)
		n.domains = libvirt.New(h, dir, time.Hour, slog.New(slog.DiscardHandler))
		r := row("instance-0000001a")
		r.Workload.Kind, r.Workload.Path = workload.VM, group
		w := &usage.Window{End: noon.UnixNano(), Rows: []usage.Row{r, row("a")}}
		step := func(name string) {
			t.Helper()
			time.Sleep(10 * time.Second)
			names := n.collectDue(w, noon)
			n.markSent(w, noon)
			if i := slices.IndexFunc(names, func(n batch.Name) bool { return n.Kind == workload.VM }); name == "" && len(names) > 0 || name != "" && (i < 0 || names[i].Name != name ||
				names[i].User != "alice" || names[i].Project != "shop" || names[i].Labels[libvirt.LabelFlavor] != "m1.small" || names[i].Labels[libvirt.LabelDomain] != "instance-0000001a") {
				t.Errorf("names %+v, want %q", names, name)
			}
			rows := []live.Row{{Kind: workload.VM, Name: "instance-0000001a", Path: group}}
			if n.apply("n", rows); name != "" && (rows[0].Name != name || rows[0].Project != "shop" || n.displayName(&r.Workload.Workload) != name) {
				t.Errorf("live name %+v, displayed as %q, want %q", rows[0], n.displayName(&r.Workload.Workload), name)
			}
		}
		step("web-1")
		step("")
		if err := errors.Join(os.WriteFile(file+".new", bytes.ReplaceAll(domain, []byte(">web-1<"), []byte(">web-2<")), 0o600), os.Rename(file+".new", file)); err != nil {
			t.Fatal(err)
		}
		step("web-2")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		w.Rows[0].Ended = true
		step("web-2")
	})
}

// TestManyNames checks that the names of a window fit into a batch however many workloads come and
// go, and that living ones get theirs with later windows.
func TestManyNames(t *testing.T) {
	n := newNameTracker(nil)
	long := strings.Repeat("x", 3000)
	w := &usage.Window{Boot: "b", End: int64(time.Second)}
	for i := range 12_000 {
		r := row(fmt.Sprintf("w%d", i))
		r.Ended = i%2 == 0
		if i < 300 {
			r.Workload.Path += long
		}
		w.Rows = append(w.Rows, r)
	}
	told := map[workload.ID]bool{}
	for range 3 {
		names := n.collectDue(w, noon)
		sent, err := wire.Encode(nil, &batch.Batch{Stream: batch.Stream{1}, Number: 1, Names: names, Windows: []usage.Window{wire.Prepare(w)}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wire.Decode(sent, wire.Default()); err != nil {
			t.Fatalf("%d names: %v", len(names), err)
		}
		for _, m := range names {
			told[m.ID] = true
		}
		n.markSent(w, noon)
		w.Rows = slices.DeleteFunc(w.Rows, func(r usage.Row) bool { return r.Ended })
	}
	for _, r := range w.Rows {
		if !told[r.Workload.ID] {
			t.Fatalf("%s has not got its name", r.Workload.Name)
		}
	}
	if len(told) < 6000+maxEndedNames-1000 || len(n.states) != 6000 {
		t.Errorf("%d were named, %d are remembered; want all that live and most of those that ended, and 6000", len(told), len(n.states))
	}
}

// TestJobTextLimit checks that the jobs that one record of the spool has are limited, and that the next ones have the
// others: a record that is too long would stop all windows.
func TestJobTextLimit(t *testing.T) {
	n, labels := newNameTracker(nil), map[string]string{}
	for i := range 32 {
		labels[fmt.Sprint("label", i)] = strings.Repeat("<", 1024) // six bytes each in JSON
	}
	const jobs = 60
	for i := range jobs {
		n.setJob(fmt.Sprintf("job%03d", i), batch.Name{Name: "n", Labels: labels}, time.Unix(int64(i), 0))
	}
	for _, full := range []bool{true, true, false} {
		got := map[string]bool{}
		for part := 0; len(got) < jobs; part++ {
			b := n.text(full && part == 0)
			var text noteText
			if err := json.Unmarshal(b, &text); err != nil || len(b) > maxTextBytes+1000 || len(text.Jobs) == 0 {
				t.Fatalf("part %d: %d bytes, %d jobs, %v", part, len(b), len(text.Jobs), err)
			}
			for _, job := range text.Jobs {
				if got[job.Key] {
					t.Errorf("%s is in two parts", job.Key)
				}
				got[job.Key] = true
			}
			n.markSent(&usage.Window{}, time.Unix(100, 0))
		}
		if b := n.text(false); b != nil {
			t.Errorf("%d bytes, and all jobs are stored", len(b))
		}
		for key, job := range n.jobs {
			n.setJob(key, job.Name, time.Unix(1, 0))
		}
	}
	noted := 0
	for noted < jobs {
		list, since := n.unrecorded()
		if len(list) == 0 || !since.Equal(time.Unix(1, 0)) {
			t.Fatalf("%d of %d jobs noted, since %v", noted, jobs, since)
		}
		noted += len(list)
		n.markRecorded()
	}
	if list, _ := n.unrecorded(); len(list) > 0 {
		t.Errorf("%d jobs are left", len(list))
	}
}
