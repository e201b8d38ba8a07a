package follower

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/directive"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit/syncbuf"
)

// A fakeServer has directives that a test sets.
type fakeServer struct {
	mu       sync.Mutex
	list     directive.List
	contents map[string][]byte
	changed  chan struct{}
	fail     error // of the list
	bad      error // of a section
	asked    int   // for the list
	fetched  int
	rejected []string
	fetching func() // called in each request for a section
}

func newServer() *fakeServer {
	return &fakeServer{contents: map[string][]byte{}, changed: make(chan struct{})}
}

// set sets a section with a life of a day; "" is none.
func (s *fakeServer) set(name, text string, epoch int64) {
	s.change(func() {
		s.list.Sections = slices.DeleteFunc(slices.Clone(s.list.Sections), func(x directive.Section) bool { return x.Name == name })
		if text != "" {
			hash := directive.HashOf([]byte(text))
			s.contents[hash] = []byte(text)
			s.list.Sections = append(s.list.Sections, directive.Section{Name: name, Hash: hash, Epoch: epoch, Life: 24 * 3600})
		}
	})
}

func (s *fakeServer) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *fakeServer) Directives(ctx context.Context, tag string, wait time.Duration, rejected []string) (directive.List, string, bool, error) {
	s.mu.Lock()
	s.asked++
	s.rejected = rejected
	defer s.mu.Unlock()
	over := time.After(wait)
	for {
		if s.fail != nil {
			return directive.List{}, "", false, s.fail
		}
		now := fmt.Sprint(s.list)
		if now != tag {
			return s.list, now, true, nil
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
			s.mu.Lock()
		case <-over:
			s.mu.Lock()
			return directive.List{}, tag, false, nil
		case <-ctx.Done():
			s.mu.Lock()
			return directive.List{}, "", false, ctx.Err()
		}
	}
}

func (s *fakeServer) Section(_ context.Context, hash string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fetched++
	if f := s.fetching; f != nil {
		s.mu.Unlock()
		f()
		s.mu.Lock()
	}
	if s.bad != nil {
		return nil, s.bad
	}
	return s.contents[hash], nil
}

// count returns a counter of s.
func (s *fakeServer) count(n *int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *n
}

// hears returns the sections that the latest request says are refused.
func (s *fakeServer) hears() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rejected
}

// A machine is where a follower runs: clocks, a file, and what is followed now.
type machine struct {
	t      *testing.T
	boot   string
	booted time.Time
	shift  time.Duration // of the wall clock
	file   string
	mu     sync.Mutex
	now    map[string]string
	log    *syncbuf.Buffer
	f      *Follower
	stop   func()
}

func newMachine(t *testing.T) *machine {
	return &machine{t: t, boot: "first", booted: time.Now().Add(-time.Hour), file: filepath.Join(t.TempDir(), "state", "directives.json"), log: &syncbuf.Buffer{}, stop: func() {}}
}

func (m *machine) clock() (batch.Clock, error) {
	return batch.Clock{Boot: m.boot, Boottime: int64(time.Since(m.booted)), Wall: time.Now().Add(m.shift).UnixNano()}, nil
}

// start starts a follower of sections a and b, which refuse a content that begins with "bad".
func (m *machine) start(s Server) {
	m.now = map[string]string{}
	apply := map[string]Apply{}
	for _, name := range []string{"a", "b"} {
		apply[name] = func(content []byte) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			if strings.HasPrefix(string(content), "bad") {
				return errors.New("it is bad")
			}
			delete(m.now, name)
			if content != nil {
				m.now[name] = string(content)
			}
			return nil
		}
	}
	cfg := Default()
	cfg.File, cfg.Node = m.file, "n1"
	if err := cfg.Validate(); err != nil {
		m.t.Fatal(err)
	}
	m.f = New(cfg, s, apply, m.clock, slog.New(slog.NewTextHandler(m.log, nil)))
	ctx, cancel := context.WithCancel(m.t.Context())
	done := make(chan error, 1)
	go func() { done <- m.f.Run(ctx) }()
	m.stop = func() {
		cancel()
		if err := <-done; err != nil {
			m.t.Error(err)
		}
	}
}

// follows checks what is followed, as "a=x b=y", once everything rests.
func (m *machine) follows(want string) {
	m.t.Helper()
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	var got []string
	for _, name := range slices.Sorted(maps.Keys(m.now)) {
		got = append(got, name+"="+m.now[name])
	}
	if strings.Join(got, " ") != want {
		m.t.Errorf("follows %q, want %q; log:\n%s", got, want, m.log)
	}
}

func (m *machine) sleep(d time.Duration) { time.Sleep(d); synctest.Wait() }

// settle is longer than the pause between two requests.
const settle = 3 * time.Second

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := newServer(), newMachine(t)
		s.set("a", "one", 1)
		m.start(s)
		m.follows("a=one")
		m.sleep(settle)
		s.set("b", "two", 1)
		m.follows("a=one b=two")
		if s.count(&s.fetched) != 2 {
			t.Errorf("the follower fetched %d contents, want 2: each section once, although the second list has the first section too", s.count(&s.fetched))
		}
		// A change of the epoch alone fetches nothing.
		m.sleep(settle)
		s.set("a", "one", 2)
		m.sleep(settle)
		if m.follows("a=one b=two"); s.count(&s.fetched) != 2 || m.f.Status()[0].Epoch != 2 {
			t.Errorf("%d contents, %+v", s.count(&s.fetched), m.f.Status())
		}
		if b, err := os.ReadFile(m.file); err != nil || !strings.Contains(string(b), `"epoch":2`) {
			t.Errorf("the file has not the new epoch: %s, %v", b, err)
		}
		// One that the server no longer has stays until it expires, a day after the server had it last.
		s.set("a", "", 0)
		m.sleep(23 * time.Hour)
		m.follows("a=one b=two")
		m.sleep(time.Hour + time.Minute)
		m.follows("b=two")
		// In quiet times a request every five minutes is made.
		before := s.count(&s.asked)
		if m.sleep(time.Hour); s.count(&s.asked)-before < 10 || s.count(&s.asked)-before > 13 {
			t.Errorf("%d requests in an hour", s.count(&s.asked)-before)
		}
		m.stop()
	})
}

func TestRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := newServer(), newMachine(t)
		s.set("a", "one", 5)
		s.set("later", "x", 5)
		m.start(s)
		m.sleep(settle)
		m.follows("a=one")
		if !slices.Equal(s.hears(), []string{"later"}) {
			t.Errorf("the server hears of %q", s.hears())
		}
		s.set("later", "", 5)
		m.sleep(settle)
		// An older epoch, as of a server that was restored from a backup, changes nothing and confirms nothing.
		s.set("a", "old", 4)
		m.sleep(settle)
		m.follows("a=one")
		if st := m.f.Status(); len(st) != 1 || !strings.Contains(st[0].Rejected, "epoch 4 is older than 5") || st[0].Epoch != 5 || len(s.hears()) != 0 || strings.Contains(m.log.String(), `level=WARN msg="directive refused" section=a`) {
			t.Errorf("%+v, the server hears of %q", st, s.hears())
		}
		m.sleep(25 * time.Hour)
		m.follows("")
		s.set("a", "old", 4)
		m.sleep(settle)
		m.follows("") // also after it expired
		s.set("a", "bad", 6)
		m.sleep(settle)
		m.follows("")
		s.set("a", "new", 7)
		m.sleep(settle)
		m.follows("a=new")
		if st := m.f.Status(); st[0].Rejected != "" || len(s.hears()) != 0 {
			t.Errorf("%+v, the server hears of %q", st, s.hears())
		}
		s.set("a", "bad", 8)
		m.sleep(settle)
		m.follows("a=new") // never half applied
		if st := m.f.Status(); st[0].Rejected != "it is bad" || st[0].Epoch != 7 {
			t.Errorf("%+v", st)
		}
		s.set("a", "new", 9)
		m.sleep(settle)
		if st := m.f.Status(); len(s.hears()) != 0 || st[0].Rejected != "" || st[0].Left < 23*time.Hour {
			t.Errorf("%+v, the server hears of %q", st, s.hears())
		}
		// The same epoch with another content, as of a server of another version, counts.
		s.set("a", "same", 9)
		m.sleep(settle)
		m.follows("a=same")
		m.stop()
	})
}

func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := newServer(), newMachine(t)
		s.change(func() { s.fail = fault.ErrUnavailable })
		s.set("a", "one", 1)
		s.set("b", "two", 1)
		m.start(s)
		m.sleep(time.Hour)
		m.follows("")
		if s.count(&s.asked) < 13 || s.count(&s.asked) > 40 {
			t.Errorf("%d requests in an hour without an answer", s.count(&s.asked))
		}
		if n := strings.Count(m.log.String(), "cannot get directives"); n != 1 {
			t.Errorf("%d messages:\n%s", n, m.log)
		}
		s.change(func() { s.fail, s.bad = nil, errors.New("broken") })
		m.sleep(time.Hour)
		m.follows("")
		s.change(func() { s.bad = nil; s.contents[directive.HashOf([]byte("one"))] = []byte("other") })
		m.sleep(10 * time.Minute)
		m.follows("b=two") // each section is by itself
		s.set("a", "three", 2)
		m.sleep(10 * time.Minute)
		m.follows("a=three b=two")
		m.sleep(time.Hour)
		if n := strings.Count(m.log.String(), "directives come again"); n != 1 {
			t.Errorf("%d messages:\n%s", n, m.log)
		}
		// The server is away for longer than a section lives, then it is back with the same list.
		s.change(func() { s.fail = fault.ErrUnavailable })
		m.sleep(25 * time.Hour)
		m.follows("")
		s.change(func() { s.fail = nil })
		m.sleep(10 * time.Minute)
		m.follows("a=three b=two")
		// An older server gets a request an hour.
		s.change(func() { s.fail = fault.ErrUnsupported })
		m.sleep(10 * time.Minute)
		before := s.count(&s.asked)
		if m.sleep(5 * time.Hour); s.count(&s.asked)-before < 4 || s.count(&s.asked)-before > 11 {
			t.Errorf("%d requests in 5 h to a server without directives", s.count(&s.asked)-before)
		}
		m.stop()
	})
}

func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := newServer(), newMachine(t)
		s.set("a", "one", 5)
		m.start(s)
		m.sleep(settle)
		m.stop()
		away := newServer()
		away.fail = fault.ErrUnavailable
		// The same boot: what is on disk holds at once, and expires in boottime, whatever the wall clock says.
		m.shift = 1000 * time.Hour
		m.sleep(12 * time.Hour)
		m.start(away)
		m.follows("a=one")
		m.sleep(13 * time.Hour)
		m.follows("")
		m.stop()
		// After it expired its epoch is still known.
		m.shift = 0
		old := newServer()
		old.set("a", "old", 4)
		m.start(old)
		m.sleep(settle)
		m.follows("")
		old.set("a", "new", 6)
		m.sleep(settle)
		m.follows("a=new")
		m.stop()
		// Another boot: the wall clock says how long it was away; one that went back says nothing.
		for _, c := range []struct {
			wall time.Duration
			want string
		}{{2 * time.Hour, "a=new"}, {-1000 * time.Hour, "a=new"}, {23 * time.Hour, "a=new"}, {25 * time.Hour, ""}} {
			m.boot, m.booted, m.shift = fmt.Sprint("boot", c.wall), time.Now(), c.wall
			content, err := os.ReadFile(m.file)
			if err != nil {
				t.Fatal(err)
			}
			m.start(away)
			m.follows(c.want)
			m.stop()
			if err := os.WriteFile(m.file, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := newServer(), newMachine(t)
		away := newServer()
		away.fail = fault.ErrUnavailable
		s.set("a", "one", 5)
		m.start(s)
		m.sleep(settle)
		m.stop()
		content, err := os.ReadFile(m.file)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(m.file); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", st, err)
		}
		for name, c := range map[string]struct {
			from, to string // what is replaced in the file
			log      string // what is said of it
			after    string
		}{
			"another node":    {`"n1"`, `"n2"`, "", ""},
			"broken":          {`{`, `[`, "cannot be used", ""},
			"another version": {`"version":1`, `"version":2`, "cannot be used", ""},
			"another hash":    {`"hash":"`, `"hash":"0`, "is corrupt", ""},
			"as it was":       {`"a"`, `"a"`, "", "a=one"},
			"unknown section": {`"a"`, `"z"`, "", ""},
		} {
			if err := os.WriteFile(m.file, []byte(strings.Replace(string(content), c.from, c.to, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			m.log = &syncbuf.Buffer{}
			m.start(away)
			m.follows(c.after)
			m.stop()
			if !strings.Contains(m.log.String(), c.log) || c.log == "" && strings.Contains(m.log.String(), "disk") {
				t.Errorf("%s: log:\n%s", name, m.log)
			}
			// The server gives it again.
			m.start(s)
			m.sleep(settle)
			m.follows("a=one")
			m.stop()
		}
		// A section that cannot be kept holds while the follower runs.
		if err := errors.Join(os.Remove(m.file), os.MkdirAll(filepath.Join(m.file, "x"), 0o700)); err != nil {
			t.Fatal(err)
		}
		m.log = &syncbuf.Buffer{}
		m.start(s)
		m.sleep(settle)
		m.follows("a=one")
		m.sleep(48 * time.Hour)
		m.follows("a=one")
		if n := strings.Count(m.log.String(), "cannot be kept on disk"); n != 1 {
			t.Errorf("%d messages:\n%s", n, m.log)
		}
		if err := os.RemoveAll(m.file); err != nil {
			t.Fatal(err)
		}
		m.sleep(6 * time.Minute)
		m.stop()
		if now, err := os.ReadFile(m.file); err != nil || !strings.Contains(string(now), `"epoch":5`) {
			t.Errorf("the file is not written once it can be: %s, %v", now, err)
		}
	})
}

// TestSaves checks that confirmations are written seldom, and often enough.
func TestSaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := newServer(), newMachine(t)
		s.set("a", "one", 5)
		m.start(s)
		m.sleep(settle)
		writes := 0
		var last time.Time
		for range 20 * 60 {
			m.sleep(time.Minute)
			st, err := os.Stat(m.file)
			if err != nil {
				t.Fatal(err)
			}
			if !st.ModTime().Equal(last) {
				writes, last = writes+1, st.ModTime()
			}
		}
		if writes < 15 || writes > 22 {
			t.Errorf("%d writes in 20 h, want one an hour, which is 1/24 of the life", writes)
		}
		m.stop()
	})
}

// TestExpiry checks the moment in which a section expires, from the file and while it is held.
func TestExpiry(t *testing.T) {
	section := directive.Section{Name: "a", Hash: directive.HashOf([]byte("one")), Epoch: 5, Life: 60}
	for _, c := range []struct {
		left int64 // ns when the file was written
		boot string
		boottime, wall,
		until int64 // when it expires as boottime
	}{
		{50, "b", 1000, 7000, 1050},
		{50, "b", 1049, 9000, 1050}, // the wall clock counts only after another boot
		{50, "b", 1050, 7000, 0},
		{50, "other", 10, 7000, 60},
		{50, "other", 10, 7049, 11},
		{50, "other", 10, 7050, 0},
		{50, "other", 10, 6000, 60},
	} {
		now := batch.Clock{Boot: c.boot, Boottime: c.boottime, Wall: c.wall}
		cfg := Default()
		cfg.Node, cfg.File = "n1", filepath.Join(t.TempDir(), "f")
		b, err := json.Marshal(stored{Version: 1, Node: "n1", Boot: "b", Boottime: 1000, Wall: 7000, Sections: []storedSection{{section, c.left, []byte("one")}}})
		if err := errors.Join(err, os.WriteFile(cfg.File, b, 0o600)); err != nil {
			t.Fatal(err)
		}
		var follows []byte
		f := New(cfg, nil, map[string]Apply{"a": func(content []byte) error { follows = content; return nil }}, func() (batch.Clock, error) { return now, nil }, slog.New(slog.DiscardHandler))
		if (follows != nil) != (c.until > 0) {
			t.Errorf("%+v: follows %q", c, follows)
		}
		if st := f.Status(); len(st) != 1 || st[0].Epoch != 5 || int64(st[0].Left) != max(0, c.until-c.boottime) {
			t.Errorf("%+v: %+v", c, st)
		}
		if c.until == 0 {
			continue
		}
		for _, at := range []int64{c.until - 1, c.until} {
			now.Boottime = at
			if f.expire(now); (follows != nil) != (at < c.until) {
				t.Errorf("%+v: follows %q at %d", c, follows, at)
			}
		}
	}
	// Without a clock the file says nothing.
	cfg := Default()
	cfg.Node, cfg.File = "n1", filepath.Join(t.TempDir(), "f")
	b, err := json.Marshal(stored{Version: 1, Node: "n1", Boot: "b", Boottime: 1000, Sections: []storedSection{{section, 50, []byte("one")}}})
	if err := errors.Join(err, os.WriteFile(cfg.File, b, 0o600)); err != nil {
		t.Fatal(err)
	}
	f := New(cfg, nil, map[string]Apply{"a": func([]byte) error { t.Error("applied"); return nil }}, func() (batch.Clock, error) { return batch.Clock{}, errors.New("no clock") }, slog.New(slog.DiscardHandler))
	if st := f.Status(); len(st) != 0 {
		t.Errorf("%+v", st)
	}
	if err := f.poll(t.Context()); err == nil || err.Error() != "no clock" {
		t.Errorf("a request without a clock: %v", err)
	}
}

func TestConfig(t *testing.T) {
	if d := Default(); d.Wait != 5*time.Minute || d.MinBackoff != time.Second || d.MaxBackoff != 5*time.Minute || d.Again != time.Hour {
		t.Errorf("%+v", d)
	}
	for _, c := range []struct {
		change func(*Config)
		ok     bool
	}{
		{func(*Config) {}, true}, {func(c *Config) { c.Wait = 0 }, true}, {func(c *Config) { c.Wait = -1 }, false},
		{func(c *Config) { c.MinBackoff = 1 }, true}, {func(c *Config) { c.MinBackoff = 0 }, false},
		{func(c *Config) { c.MaxBackoff = c.MinBackoff }, true}, {func(c *Config) { c.MaxBackoff = c.MinBackoff - 1 }, false},
		{func(c *Config) { c.Again = 1 }, true}, {func(c *Config) { c.Again = 0 }, false},
	} {
		cfg := Default()
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// setLife sets the life of a section.
func (s *fakeServer) setLife(name string, life time.Duration) {
	s.change(func() {
		s.list.Sections = slices.Clone(s.list.Sections)
		for i := range s.list.Sections {
			if s.list.Sections[i].Name == name {
				s.list.Sections[i].Life = int64(life / time.Second)
			}
		}
	})
}

// TestShortLife checks that a section that lives shorter than a request may wait does not expire.
func TestShortLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := newServer(), newMachine(t)
		s.set("a", "one", 1)
		s.setLife("a", time.Minute)
		m.start(s)
		for range 600 {
			m.sleep(time.Second)
			m.follows("a=one")
		}
		if strings.Contains(m.log.String(), "expired") || s.count(&s.asked) > 40 {
			t.Errorf("%d requests in 10 min:\n%s", s.count(&s.asked), m.log)
		}
		m.stop()
	})
}

// TestCutRequests ends each request that waits, as a proxy may: what holds is confirmed nevertheless.
func TestCutRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := newServer(), newMachine(t)
		s.set("a", "one", 1)
		m.start(cutting{s})
		for range 72 {
			m.sleep(time.Hour)
			m.follows("a=one")
		}
		if s.count(&s.asked) > 72*120 {
			t.Errorf("%d requests in 72 h", s.count(&s.asked))
		}
		m.stop()
	})
}

// cutting ends requests after a minute.
type cutting struct{ *fakeServer }

func (c cutting) Directives(ctx context.Context, tag string, wait time.Duration, rejected []string) (directive.List, string, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return c.fakeServer.Directives(ctx, tag, wait, rejected)
}

// TestExpiresMeanwhile lets a section expire while another one of the list is fetched: it is fetched again.
func TestExpiresMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := newServer(), newMachine(t)
		s.set("a", "one", 1)
		m.start(s)
		m.sleep(settle)
		s.change(func() { s.fail = fault.ErrUnavailable })
		m.sleep(23*time.Hour + 55*time.Minute)
		m.follows("a=one")
		s.change(func() { s.fetching = func() { time.Sleep(20 * time.Second) } })
		s.setLife("a", 10*time.Second)
		s.set("b", "two", 1)
		s.change(func() { s.fail = nil })
		m.sleep(10 * time.Minute)
		s.change(func() { s.fetching = nil })
		s.setLife("a", 24*time.Hour)
		m.sleep(10 * time.Minute)
		m.follows("a=one b=two")
		m.stop()
	})
}

// TestEpochRecovers checks that an epoch of a clock that was far ahead counts until the section has expired for as long as it lives.
func TestEpochRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := newServer(), newMachine(t)
		s.set("a", "ahead", 1<<50)
		m.start(s)
		m.sleep(settle)
		m.follows("a=ahead")
		s.set("a", "right", 1000)
		for range 23 {
			m.sleep(time.Hour)
			m.follows("a=ahead")
		}
		m.sleep(2 * time.Hour)
		m.follows("")
		m.sleep(22 * time.Hour)
		s.set("a", "right", 1001)
		m.sleep(settle)
		m.follows("")
		m.sleep(2 * time.Hour)
		s.set("a", "right", 1002)
		m.sleep(settle)
		m.follows("a=right")
		m.stop()
	})
}

// TestManyRejected checks that names and reasons that a server chooses stay few and short, also while a section cannot be fetched.
func TestManyRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := newServer(), newMachine(t)
		s.set("a", "bad "+strings.Repeat("x", 10_000), 1)
		s.change(func() { s.bad = errors.New("broken") })
		m.start(s)
		for i := range 100 {
			s.set(fmt.Sprintf("later-%d", i), "x", 1)
			s.set(fmt.Sprintf("later-%d", i-1), "", 1)
			m.sleep(10 * time.Minute)
		}
		if len(s.hears()) > 1 {
			t.Errorf("%d sections are refused: %q", len(s.hears()), s.hears())
		}
		m.stop()
	})
}

// TestRebootSaves checks that the file is written soon after a reboot: its time is of the other boot.
func TestRebootSaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := newServer(), newMachine(t)
		s.set("a", "one", 1)
		m.start(s)
		m.sleep(settle)
		m.stop()
		for i := range 10 { // each for less than the time after which a file is written otherwise
			m.boot, m.booted = fmt.Sprint("boot", i), time.Now()
			m.start(s)
			m.sleep(50 * time.Minute)
			m.stop()
			time.Sleep(2 * time.Hour)
		}
		away := newServer()
		away.fail = fault.ErrUnavailable
		m.boot, m.booted = "last", time.Now()
		m.start(away)
		m.follows("a=one")
		m.stop()
	})
}
