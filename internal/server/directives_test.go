package server

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/delivery/directives"
	"mete.dev/mete/internal/model/directive"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/syncbuf"
)

// atlas is topologies in memory, and nodes n1@lab, n2@lab, far@other.
type atlas struct {
	mu    sync.Mutex
	lab   pod.Topology
	epoch int64
	reads int
	fail  error
}

func (a *atlas) put(t pod.Topology) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lab = t
	a.epoch++
}

func (a *atlas) TopologyEpochs(context.Context) (map[string]int64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lab == nil {
		return nil, a.fail
	}
	return map[string]int64{"lab": a.epoch}, a.fail
}

func (a *atlas) Topology(_ context.Context, cluster string) (pod.Topology, int64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reads++
	if cluster != "lab" {
		return nil, 0, fault.ErrNotFound
	}
	return a.lab, a.epoch, nil
}

func (a *atlas) Node(_ context.Context, id string) (registry.Node, error) {
	name, cluster, _ := strings.Cut(id, "@")
	if cluster == "" {
		return registry.Node{}, fault.ErrNotFound
	}
	return registry.Node{ID: id, Name: name, Cluster: cluster}, nil
}

// network returns a node in a zone with pods in 10.0.N.0/24.
func network(zone string, n int) pod.NodeNetwork {
	return pod.NodeNetwork{Zone: zone, Prefixes: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", n))}}
}

// withDirectives runs f in a bubble with directives that are read in the background.
func withDirectives(t *testing.T, f func(t *testing.T, d *directiveSource, a *atlas, log *syncbuf.Buffer, stop func())) {
	synctest.Test(t, func(t *testing.T) {
		a, log := &atlas{}, &syncbuf.Buffer{}
		d := newDirectives(a, slog.New(slog.NewTextHandler(log, nil)))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- d.run(ctx) }()
		synctest.Wait()
		f(t, d, a, log, stop)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// read returns what a node gets, without waiting: the contents of its sections.
func (d *directiveSource) readAll(t *testing.T, node string) (tag string, texts []string) {
	t.Helper()
	l, tag, err := d.await(t.Context(), node, "", 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range l.Sections {
		c, err := d.section(t.Context(), node, s.Hash)
		if err != nil || directive.HashOf(c.Plain) != s.Hash {
			t.Errorf("%s: %v", s.Name, err)
			continue
		}
		texts = append(texts, string(c.Plain))
	}
	return tag, texts
}

func TestDirectives(t *testing.T) {
	withDirectives(t, func(t *testing.T, d *directiveSource, a *atlas, _ *syncbuf.Buffer, _ func()) {
		expect := func(node string, want ...string) (tag string) {
			t.Helper()
			tag, got := d.readAll(t, node)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: %q, want %q", node, got, want)
			}
			return tag
		}
		before := expect("n1@lab")
		a.put(pod.Topology{"n1": network("east", 1), "n2": network("west", 2), "n3": network("east", 3)})
		time.Sleep(topologyInterval)
		synctest.Wait()
		one := expect("n1@lab", `{"classes":{"internal":["10.0.1.0/24","10.0.3.0/24"],"zone":["10.0.2.0/24"]}}`, `{"classes":{"node":["10.0.1.0/24"]}}`)
		expect("n2@lab", `{"classes":{"internal":["10.0.2.0/24"],"zone":["10.0.1.0/24","10.0.3.0/24"]}}`, `{"classes":{"node":["10.0.2.0/24"]}}`)
		expect("n9@lab") // unknown: it may have another name for a while
		expect("n1@other")
		if one == before {
			t.Error("the tag has not changed")
		}
		// Nodes of one zone share its section.
		l1, _, _ := d.await(t.Context(), "n1@lab", "", 0, nil)
		l3, _, _ := d.await(t.Context(), "n3@lab", "", 0, nil)
		if l1.Sections[0] != l3.Sections[0] || l1.Sections[1] == l3.Sections[1] {
			t.Errorf("%+v, %+v", l1, l3)
		}
		if l1.Sections[0].Epoch != 1 || l1.Sections[0].Lifetime() != classesLife {
			t.Errorf("%+v", l1.Sections[0])
		}
		// No node gets what holds for others.
		for _, node := range []string{"n2@lab", "n1@other", "n9@lab"} {
			if _, err := d.section(t.Context(), node, l1.Sections[1].Hash); !errors.Is(err, fault.ErrNotFound) {
				t.Errorf("%s gets the section of n1: %v", node, err)
			}
		}
		reads := a.reads
		time.Sleep(time.Minute)
		if synctest.Wait(); a.reads != reads {
			t.Errorf("%d reads although nothing changed", a.reads-reads)
		}
	})
}

func TestDirectivesWait(t *testing.T) {
	withDirectives(t, func(t *testing.T, d *directiveSource, a *atlas, _ *syncbuf.Buffer, stop func()) {
		type answer struct {
			l    directive.List
			tag  string
			err  error
			took time.Duration
		}
		wait := func(ctx context.Context, node, tag string, d *directiveSource, wait time.Duration) chan answer {
			out := make(chan answer, 1)
			go func() {
				began := time.Now()
				l, now, err := d.await(ctx, node, tag, wait, nil)
				out <- answer{l, now, err, time.Since(began)}
			}()
			return out
		}
		empty, _ := d.readAll(t, "n1@lab")
		if x := <-wait(t.Context(), "n1@lab", empty, d, time.Minute); x.err != nil || x.tag != empty || x.took != time.Minute {
			t.Errorf("without a change: %+v", x)
		}
		if x := <-wait(t.Context(), "n1@lab", "another", d, time.Minute); x.err != nil || x.tag != empty || x.took != 0 {
			t.Errorf("with another tag: %+v", x)
		}
		// A change wakes all, within a time that grows with their number.
		var all []chan answer
		for i := range 1000 {
			all = append(all, wait(t.Context(), fmt.Sprintf("n%d@lab", i), empty, d, time.Hour))
		}
		synctest.Wait()
		if s := d.stats(); s.Waiting != 1000 {
			t.Errorf("%d wait", s.Waiting)
		}
		changed := time.Now()
		nodes := pod.Topology{}
		for i := range 1000 {
			nodes[fmt.Sprintf("n%d", i)] = network("east", i%250)
		}
		a.put(nodes)
		late := 0
		for _, one := range all {
			x := <-one
			if x.err != nil || x.tag == empty || len(x.l.Sections) != 2 || time.Since(changed) > topologyInterval+1000*spread {
				t.Errorf("after a change: %+v", x)
			}
			if x.took > topologyInterval+500*spread {
				late++
			}
		}
		if late == 0 || late == 1000 {
			t.Errorf("%d of 1000 answers in the second half of the time", late)
		}
		if s := d.stats(); s.Waiting != 0 || len(d.waiting) != 0 {
			t.Errorf("%d wait", s.Waiting)
		}
		// Few requests of a node wait.
		now, _ := d.readAll(t, "n1@lab")
		ctx, cancel := context.WithCancel(t.Context())
		all = nil
		for range maxWaiting {
			all = append(all, wait(ctx, "n1@lab", now, d, time.Hour))
		}
		synctest.Wait()
		if x := <-wait(ctx, "n1@lab", now, d, time.Hour); !errors.Is(x.err, errBusy) {
			t.Errorf("one too many: %+v", x)
		}
		other, _ := d.readAll(t, "m0@lab")
		var last []chan answer
		for i := range 1000 {
			last = append(last, wait(t.Context(), fmt.Sprintf("m%d@lab", i), other, d, time.Hour))
		}
		synctest.Wait()
		cancel()
		for _, one := range all {
			if x := <-one; !errors.Is(x.err, context.Canceled) {
				t.Errorf("canceled: %+v", x)
			}
		}
		// When the server ends, no request waits any longer.
		stop()
		ended := time.Now()
		for _, one := range last {
			if x := <-one; x.err != nil || x.tag != other || time.Since(ended) > 0 {
				t.Fatalf("at the end: %+v after %v", x, time.Since(ended))
			}
		}
	})
}

// TestDirectivesLimits checks that a node gets no list before the server has read one, and that it cannot ask as often as it likes.
func TestDirectivesLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &atlas{fail: errors.New("the disk is gone")}
		d := newDirectives(a, slog.New(slog.DiscardHandler))
		if _, _, err := d.await(t.Context(), "n1@lab", "", 0, nil); !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("before the first reading: %v", err)
		}
		if err := d.read(t.Context()); err == nil {
			t.Error("no error")
		}
		a.fail = nil
		if err := d.read(t.Context()); err != nil {
			t.Error(err)
		}
		d.readAll(t, "n1@lab")
		ask := func() (list, section error) {
			_, _, list = d.await(t.Context(), "n2@lab", "", 0, nil)
			_, section = d.section(t.Context(), "n3@lab", directive.HashOf(nil))
			return list, section
		}
		for i := range requestBurst {
			if list, section := ask(); list != nil || !errors.Is(section, fault.ErrNotFound) {
				t.Errorf("request %d: %v, %v", i, list, section)
			}
		}
		list, section := ask()
		for _, err := range []error{list, section} {
			if after, _ := fault.RetryAfter(err); !errors.Is(err, errBusy) || after <= 0 || after > time.Minute/50 {
				t.Errorf("too many requests: %v, again after %v", err, after)
			}
		}
		d.readAll(t, "n1@lab") // another node
		taken := requestBurst
		for range 59 {
			time.Sleep(time.Second)
			if list, _ := ask(); list == nil {
				taken++
			}
		}
		if taken < 98 || taken > 100 {
			t.Errorf("%d requests in a minute, want 100", taken)
		}
	})
}

func TestDirectivesRejected(t *testing.T) {
	withDirectives(t, func(t *testing.T, d *directiveSource, a *atlas, log *syncbuf.Buffer, _ func()) {
		say := func(node string, names ...string) {
			t.Helper()
			if _, _, err := d.await(t.Context(), node, "", 0, names); err != nil {
				t.Fatal(err)
			}
		}
		say("n1@lab", directive.NetworkNode, "x", directive.NetworkClasses, directive.NetworkNode, strings.Repeat("y", 1000))
		say("n2@lab", directive.NetworkNode)
		say("n1@lab", directive.NetworkNode, directive.NetworkClasses)
		say("n1@lab", directive.NetworkNode)
		say("n1@lab", directive.NetworkNode, " "+directive.NetworkClasses)
		say("n1@lab", directive.NetworkNode, directive.NetworkClasses)
		if got := d.stats().Rejected; got[directive.NetworkNode] != 2 || got[directive.NetworkClasses] != 1 || len(got) != 2 {
			t.Errorf("%v", got)
		}
		if n := strings.Count(log.String(), "does not follow"); n != 2 || strings.Contains(log.String(), "yyy") {
			t.Errorf("%d messages:\n%s", n, log)
		}
		say("n1@lab")
		if got := d.stats().Rejected; got[directive.NetworkNode] != 1 || got[directive.NetworkClasses] != 0 {
			t.Errorf("%v", got)
		}
		time.Sleep(rejectedFor + time.Second)
		if got := d.stats().Rejected; got[directive.NetworkNode] != 0 || len(d.rejected) != 0 {
			t.Errorf("of a node that is silent: %v", got)
		}
		// The log says once that the ledger cannot be read.
		a.mu.Lock()
		a.fail = errors.New("the disk is gone")
		a.mu.Unlock()
		time.Sleep(time.Minute)
		if n := strings.Count(log.String(), "the disk is gone"); n != 1 {
			t.Errorf("%d messages:\n%s", n, log)
		}
	})
}

// TestDirectivesOverlap checks that the log says that addresses of nodes overlap, at most once a minute.
func TestDirectivesOverlap(t *testing.T) {
	withDirectives(t, func(t *testing.T, _ *directiveSource, a *atlas, log *syncbuf.Buffer, _ func()) {
		wide := pod.NodeNetwork{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}
		for i, c := range []struct {
			t    pod.Topology
			wait time.Duration
			want int // messages so far
			last string
		}{
			{pod.Topology{"n1": network("", 1), "n2": network("", 2)}, topologyInterval, 0, ""},
			{pod.Topology{"n1": network("", 1), "n2": wide}, topologyInterval, 1, `cluster=lab prefixes=1 first=10.0.1.0/24`},
			{pod.Topology{"n1": network("", 3), "n2": wide}, time.Minute, 1, ""},
			{pod.Topology{"n1": network("", 3), "n2": wide, "n3": network("", 1)}, topologyInterval, 2, `cluster=lab prefixes=2 first=10.0.1.0/24`},
		} {
			a.put(c.t)
			time.Sleep(c.wait)
			synctest.Wait()
			if n := strings.Count(log.String(), "overlap"); n != c.want || !strings.Contains(log.String(), c.last) {
				t.Errorf("step %d: %d messages, want %d with %s:\n%s", i, n, c.want, c.last, log)
			}
		}
	})
}

// TestDirectivesTooMany checks that no agent gets a section with more prefixes than agents take: the list lacks it, so that it
// expires.
func TestDirectivesTooMany(t *testing.T) {
	withDirectives(t, func(t *testing.T, d *directiveSource, a *atlas, log *syncbuf.Buffer, _ func()) {
		put := func(prefixes int) {
			many := pod.Topology{"n1": {Zone: "east"}, "n2": {Zone: "west", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}
			for i := range prefixes - 1 { // one is that of n2
				name, a := fmt.Sprint("m", i/2), netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
				n := many[name]
				n.Zone, n.Prefixes = "east", append(n.Prefixes, netip.PrefixFrom(a, 32))
				many[name] = n
			}
			a.put(many)
			time.Sleep(topologyInterval)
			synctest.Wait()
		}
		for i, c := range []struct {
			prefixes int
			want     []string // sections
		}{
			{directive.MaxPrefixes, []string{directive.NetworkClasses, directive.NetworkNode}},
			{directive.MaxPrefixes + 1, []string{directive.NetworkNode}},
			{directive.MaxPrefixes + 2, []string{directive.NetworkNode}},
			{10, []string{directive.NetworkClasses, directive.NetworkNode}},
		} {
			put(c.prefixes)
			for _, node := range []string{"n1@lab", "n2@lab"} {
				l, _, err := d.await(t.Context(), node, "", 0, nil)
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, s := range l.Sections {
					names = append(names, s.Name)
					got, err := d.section(t.Context(), node, s.Hash)
					if err != nil || s.Epoch != int64(i+1) {
						t.Errorf("%s with %d prefixes: %s of epoch %d: %v", node, c.prefixes, s.Name, s.Epoch, err)
					} else if _, err := directive.DecodeClasses(got.Plain); err != nil {
						t.Errorf("%s with %d prefixes: an agent refuses %s: %v", node, c.prefixes, s.Name, err)
					}
				}
				if !slices.Equal(names, c.want) {
					t.Errorf("%s with %d prefixes: %v, want %v", node, c.prefixes, names, c.want)
				}
				if _, err := d.section(t.Context(), node, directive.HashOf(nil)); !errors.Is(err, fault.ErrNotFound) {
					t.Errorf("another hash: %v", err)
				}
			}
		}
		if text := log.String(); strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, "cluster=lab prefixes=60001 most=60000 life=168h0m0s") {
			t.Errorf("log:\n%s", text)
		}
	})
}

// TestDirectivesHTTP checks the answers to requests.
func TestDirectivesHTTP(t *testing.T) {
	withDirectives(t, func(t *testing.T, d *directiveSource, a *atlas, _ *syncbuf.Buffer, _ func()) {
		many := pod.Topology{}
		for i := range 100 {
			many[fmt.Sprintf("n%d", i)] = network("", i)
		}
		a.put(many)
		time.Sleep(topologyInterval)
		synctest.Wait()
		who := "n1@lab"
		var denied error
		h := d.handler(func(*http.Request) (string, string, error) { return who, "lab", denied })
		do := func(method, path string, headers ...string) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
			for i := 0; i < len(headers); i += 2 {
				r.Header.Set(headers[i], headers[i+1])
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		w := do("GET", "/v1/directives")
		l, err := directive.ParseList(w.Body.Bytes())
		if err != nil || w.Code != 200 || len(l.Sections) != 2 || w.Header().Get("ETag") == "" {
			t.Fatalf("%d %s %v", w.Code, w.Body, err)
		}
		tag := w.Header().Get("ETag")
		began := time.Now()
		if w := do("GET", "/v1/directives?wait=60", "If-None-Match", tag); w.Code != 304 || w.Body.Len() != 0 || w.Header().Get("ETag") != tag || time.Since(began) != time.Minute {
			t.Errorf("%d %s after %v", w.Code, w.Body, time.Since(began))
		}
		for path, code := range map[string]int{
			"/v1/directives?wait=601": 400, "/v1/directives?wait=600": 200, "/v1/directives?wait=-1": 400, "/v1/directives?wait=": 200, "/v1/directives?wait=1&wait=2": 400,
			"/v1/directives?x=1": 400, "/v1/directives?wait=1&x=1": 400, "/v1/directives?wait=1e1": 400, "/v1/directives?wait=99999999999999999999": 400,
			"/v1/directives/": 404, "/v1/directives/x": 404, "/v1/directives/" + strings.Repeat("0", 64): 404, "/v1/directives/" + l.Sections[0].Hash + "?x=1": 400,
			"/v1/directives/" + l.Sections[0].Hash: 200,
		} {
			if w := do("GET", path); w.Code != code {
				t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, code)
			}
		}
		if w := do("POST", "/v1/directives"); w.Code != 405 {
			t.Errorf("%d", w.Code)
		}
		who = "n1"
		if w := do("GET", "/v1/directives"); w.Code != 404 {
			t.Errorf("unknown node: %d %s", w.Code, w.Body)
		}
		who = "n1@lab"
		for _, c := range []struct {
			err  error
			code int
		}{{errors.New("no certificate"), 401}, {fault.ErrDenied, 403}, {fault.ErrUnavailable, 503}} {
			denied = c.err
			if w := do("GET", "/v1/directives/"+l.Sections[0].Hash); w.Code != c.code {
				t.Errorf("%v: %d %s", c.err, w.Code, w.Body)
			}
		}
		denied = nil
		plain, packed := do("GET", "/v1/directives/"+l.Sections[0].Hash), do("GET", "/v1/directives/"+l.Sections[0].Hash, "Accept-Encoding", "gzip")
		z, err := gzip.NewReader(packed.Body)
		if err != nil || packed.Header().Get("Content-Encoding") != "gzip" || packed.Body.Len() >= plain.Body.Len() {
			t.Fatalf("%v, %d bytes of %d", err, packed.Body.Len(), plain.Body.Len())
		}
		if b, err := io.ReadAll(z); err != nil || string(b) != plain.Body.String() || directive.HashOf(b) != l.Sections[0].Hash {
			t.Errorf("%v: %s", err, b)
		}
		if s := d.stats(); s.Bytes < int64(plain.Body.Len()) || s.Answers != 4 {
			t.Errorf("%+v", s)
		}
		do("GET", "/v1/directives", directives.HeaderRejected, directive.NetworkNode+",x")
		if s := d.stats(); s.Rejected[directive.NetworkNode] != 1 {
			t.Errorf("%+v", s)
		}
		var p fault.Problem
		if err := json.Unmarshal(do("GET", "/v1/directives?x=1").Body.Bytes(), &p); err != nil || p.Status != 400 {
			t.Errorf("%+v, %v", p, err)
		}
	})
}

// TestLongWait lets requests wait for longer than the server lets others take, over HTTP/1.1 and HTTP/2.
func TestLongWait(t *testing.T) {
	testkit.Stage(t, "timing", "waits for longer than the time-outs of a server")
	d := newDirectives(&atlas{}, slog.New(slog.DiscardHandler))
	if err := d.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, two := range []bool{false, true} {
		srv := httptest.NewUnstartedServer(d.handler(func(*http.Request) (string, string, error) { return "n1@lab", "lab", nil }))
		srv.EnableHTTP2 = two
		srv.Config.ReadTimeout, srv.Config.WriteTimeout = time.Second, time.Second
		srv.StartTLS()
		base, err := url.Parse(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		h := directives.NewHTTP(base, srv.Client())
		_, tag, _, err := h.Directives(t.Context(), "", 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, _, changed, err := h.Directives(t.Context(), tag, 4*time.Second, nil)
		if took := time.Since(began); err != nil || changed || took < 4*time.Second {
			t.Errorf("HTTP/2 %t: %t, %v after %v", two, changed, err, took)
		}
		srv.Close()
	}
}
