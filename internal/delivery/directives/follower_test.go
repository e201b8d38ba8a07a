package directives

import (
	"context"
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

// awayServer returns a server that does not answer.
func awayServer() *fakeServer {
	s := newServer()
	s.fail = fault.ErrUnavailable
	return s
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

// onMachine runs f in a bubble, with a server and a machine, and stops what the machine runs at the end.
func onMachine(t *testing.T, f func(t *testing.T, s *fakeServer, m *machine)) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		f(t, newServer(), m)
		m.stop()
	})
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
				return fmt.Errorf("it is %s", content)
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
		m.stop = func() {}
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
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
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
		if st := m.f.Status(); len(st) != 1 || st[0].Name != "b" {
			t.Errorf("the status has a section that the server withdrew: %+v", st)
		}
		// In quiet times a request every five minutes is made.
		before := s.count(&s.asked)
		if m.sleep(time.Hour); s.count(&s.asked)-before < 10 || s.count(&s.asked)-before > 13 {
			t.Errorf("%d requests in an hour", s.count(&s.asked)-before)
		}
		if m.stop(); strings.Contains(m.log.String(), "cannot get directives") {
			t.Errorf("the end of the follower is logged as an error:\n%s", m.log)
		}
	})
}

func TestRefuse(t *testing.T) {
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
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
	})
}

func TestFaults(t *testing.T) {
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
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
		before := s.count(&s.asked)
		m.sleep(time.Hour)
		m.follows("")
		if n := s.count(&s.asked) - before; n > 40 || strings.Contains(m.log.String(), "come again") {
			t.Errorf("%d requests in an hour without a section; log:\n%s", n, m.log)
		}
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
		before = s.count(&s.asked)
		if m.sleep(5 * time.Hour); s.count(&s.asked)-before < 4 || s.count(&s.asked)-before > 11 {
			t.Errorf("%d requests in 5 h to a server without directives", s.count(&s.asked)-before)
		}
	})
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
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
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
	})
}

// TestCutRequests ends each request that waits, as a proxy may: what holds is confirmed nevertheless.
func TestCutRequests(t *testing.T) {
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
		s.set("a", "one", 1)
		m.start(cutting{s})
		for range 72 {
			m.sleep(time.Hour)
			m.follows("a=one")
		}
		if s.count(&s.asked) > 72*120 {
			t.Errorf("%d requests in 72 h", s.count(&s.asked))
		}
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
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
		s.set("a", "one", 1)
		m.start(s)
		m.sleep(settle)
		s.change(func() { s.fail = fault.ErrUnavailable })
		m.sleep(23*time.Hour + 55*time.Minute)
		m.follows("a=one")
		s.change(func() { s.fetching = func() { time.Sleep(28 * time.Second) } })
		s.setLife("a", 10*time.Second)
		s.set("b", "two", 1)
		s.change(func() { s.fail = nil })
		m.sleep(10 * time.Minute)
		s.change(func() { s.fetching = nil })
		m.sleep(time.Minute) // the list stays the same
		m.follows("a=one b=two")
	})
}

// TestEpochRecovers checks that an epoch of a clock that was far ahead counts until the section has expired for as long as it lives.
func TestEpochRecovers(t *testing.T) {
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
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
	})
}

// TestManyRejected checks that names and reasons that a server chooses stay few and short, also while a section cannot be fetched.
func TestManyRejected(t *testing.T) {
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
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
	})
}

// TestExpiresInTime checks that a section is given up within 15 seconds after its end, also while no server answers.
func TestExpiresInTime(t *testing.T) {
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
		s.set("a", "one", 1)
		s.setLife("a", time.Minute)
		m.start(s)
		m.follows("a=one")
		s.change(func() { s.fail = fault.ErrUnavailable })
		m.sleep(time.Minute - 1)
		m.follows("a=one")
		m.sleep(1) // the fourth time that the follower looks
		m.follows("")
		m.sleep(time.Hour)
		if n := strings.Count(m.log.String(), "a directive expired"); n != 1 {
			t.Errorf("%d messages:\n%s", n, m.log)
		}
	})
}

// deadlines notes for how long each request may take.
type deadlines struct {
	*fakeServer
	beyond, section time.Duration // beyond the time that the server may wait
}

func (d *deadlines) Directives(ctx context.Context, tag string, wait time.Duration, rejected []string) (directive.List, string, bool, error) {
	end, _ := ctx.Deadline()
	d.beyond = time.Until(end) - wait
	return d.fakeServer.Directives(ctx, tag, wait, rejected)
}

func (d *deadlines) Section(ctx context.Context, hash string) ([]byte, error) {
	end, _ := ctx.Deadline()
	d.section = time.Until(end)
	return d.fakeServer.Section(ctx, hash)
}

// TestDeadlines checks that no request hangs: a server has 30 seconds for its answer.
func TestDeadlines(t *testing.T) {
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
		s.set("a", "one", 1)
		d := &deadlines{fakeServer: s}
		m.start(d)
		m.sleep(settle)
		if d.beyond != 30*time.Second || d.section != 30*time.Second {
			t.Errorf("a request for the list may take %v longer than it may wait, one for a section %v", d.beyond, d.section)
		}
	})
}

// TestRefuseMany checks that the server hears of all sections that are refused, in order, and that reasons are cut.
func TestRefuseMany(t *testing.T) {
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
		want := []string{"a"}
		for i := range 9 {
			name := fmt.Sprintf("later-%d", 9-i)
			s.set(name, "x", 1)
			want = append(want, name)
		}
		slices.Sort(want)
		s.set("a", "bad"+strings.Repeat("x", 1000), 1)
		m.start(s)
		m.sleep(settle)
		if got := s.hears(); !slices.Equal(got, want) {
			t.Errorf("the server hears of %q, want %q", got, want)
		}
		if why := m.f.Status()[0].Rejected; len(why) != 200 || !strings.HasPrefix(why, "it is badxx") {
			t.Errorf("the reason has %d bytes: %s", len(why), why)
		}
		for _, text := range []string{"two", "three"} {
			if n := strings.Count(m.log.String(), "directive refused"); n != len(want) {
				t.Errorf("%d messages:\n%s", n, m.log)
			}
			s.set("b", text, 1) // each is refused again, with the same reason
			m.sleep(settle)
		}
	})
}

// TestPause checks how long a follower waits after each kind of answer, and that agents do not all wait equally long.
func TestPause(t *testing.T) {
	cfg := Config{MinBackoff: time.Second, MaxBackoff: 8 * time.Second, Again: time.Hour}
	for _, c := range []struct {
		err               error
		before, after     time.Duration // the delay
		shortest, longest time.Duration
	}{
		{nil, 4 * time.Second, 0, time.Second, 2 * time.Second},
		{fault.ErrUnavailable, 0, time.Second, time.Second / 2, time.Second},
		{fault.ErrUnavailable, time.Second, 2 * time.Second, time.Second, 2 * time.Second},
		{fault.ErrUnavailable, 3 * time.Second, 6 * time.Second, 3 * time.Second, 6 * time.Second},
		{fault.ErrUnavailable, 5 * time.Second, 8 * time.Second, 4 * time.Second, 8 * time.Second},
		{&fault.RetryError{Err: fault.ErrUnavailable, After: time.Minute}, 0, time.Second, time.Minute + time.Second/2, time.Minute + time.Second},
		{fault.ErrUnsupported, 0, time.Hour, time.Hour / 2, time.Hour},
	} {
		low, high := time.Duration(1<<62), time.Duration(0)
		for range 300 {
			f := &Follower{cfg: cfg, delay: c.before}
			d := f.pause(c.err)
			if low, high = min(low, d), max(high, d); f.delay != c.after {
				t.Fatalf("%v: the delay is %v, want %v", c.err, f.delay, c.after)
			}
		}
		tenth := (c.longest - c.shortest) / 10
		if low < c.shortest || low > c.shortest+tenth || high > c.longest || high < c.longest-tenth {
			t.Errorf("%v after %v: pauses of %v to %v, want %v to %v", c.err, c.before, low, high, c.shortest, c.longest)
		}
	}
}

// TestRequest checks for how long the server may wait.
func TestRequest(t *testing.T) {
	section := func(life time.Duration, content []byte) *held {
		return &held{Section: directive.Section{Life: int64(life / time.Second)}, content: content}
	}
	for _, c := range []struct {
		failing bool
		held    []*held
		want    time.Duration
	}{
		{false, nil, 5 * time.Minute},
		{true, nil, 0},
		{false, []*held{section(24*time.Hour, []byte("x"))}, 5 * time.Minute},
		{false, []*held{section(24*time.Hour, []byte("x")), section(time.Minute, []byte("x"))}, 20 * time.Second},
		{false, []*held{section(time.Minute, nil)}, 5 * time.Minute}, // it expired
	} {
		f := &Follower{cfg: Default(), failing: c.failing, sections: map[string]*held{}}
		for i, h := range c.held {
			f.sections[fmt.Sprint(i)] = h
		}
		if _, wait := f.request(); wait != c.want {
			t.Errorf("%+v: the server may wait for %v", c, wait)
		}
	}
}

// TestForgotten checks from when on the epoch of an expired section does not count any more.
func TestForgotten(t *testing.T) {
	h := &held{Section: directive.Section{Life: 10}, until: 1000}
	for at, want := range map[int64]bool{1000: false, 1000 + 10e9: false, 1001 + 10e9: true} {
		if h.isForgotten(batch.Clock{Boottime: at}) != want {
			t.Errorf("%d ns after the section expired: forgotten %t", at-h.until, !want)
		}
	}
	h.content = []byte("x")
	if h.isForgotten(batch.Clock{Boottime: 1 << 60}) {
		t.Error("a section that holds is forgotten")
	}
}
