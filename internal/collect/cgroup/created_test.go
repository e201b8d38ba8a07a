package cgroup_test

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// The use of a group that is created while groups are read counts once: for itself, or for
// its parent if it was found too late.
func TestCreatedWhileReading(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1", "memcg1")
	for _, looks := range []int{0, 1, 2, 4} { // 0 is without directory events
		t.Run(fmt.Sprint(looks), func(t *testing.T) {
			p := top(t)
			before := usageOf(t, p)
			cfg := config()
			cfg.Every = 1
			s := openFixture(t, "files", cfg, bpf.Default())
			if looks == 0 {
				s.table.Blind()
			}
			s.tick()
			want, made := map[string]int64{}, false
			s.table.BeforeReading(max(1, looks), func() {
				if made {
					return
				}
				made = true
				for _, g := range []string{p + "/a", p + "/a/b"} {
					mkdir(t, in(g)...)
					want[g] = work(t, g, "5ms")
				}
			})
			s.tick()
			more := work(t, p+"/a/b", "2ms") - want[p+"/a/b"]
			s.tick()
			want[p+"/a/b"] += more
			want[p+"/a"] = usageOf(t, p+"/a") - want[p+"/a/b"]
			for g, ns := range want {
				if s.booked[g] != ns && looks > 1 {
					t.Errorf("%s: booked %d ns, its counter shows %d", g, s.booked[g], ns)
				}
			}
			if got, all := s.below(p), usageOf(t, p)-before; got != all {
				t.Errorf("booked %d ns below %s, its counter gained %d", got, p, all)
			}
		})
	}
}

// work uses CPU time in a group and returns its counter afterwards.
func work(t *testing.T, p, work string) int64 {
	t.Helper()
	l := newLoad(t, in(p)...)
	l.do(work)
	l.end()
	return usageOf(t, p)
}

// The use of a group that is created after the walk, with a child that ends before the
// events are drained, counts once and for the right group.
func TestCreatedAfterWalk(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1", "bpf")
	p := top(t)
	s := openFixture(t, "bpf", config(), bpf.Default())
	s.tick()
	want, made := map[string]int64{}, false
	s.table.AfterWalk(func() {
		if made {
			return
		}
		made = true
		mkdir(t, in(p+"/a")...)
		want[p+"/a/b"] = life(t, p+"/a/b", "5ms")
	})
	s.tick()
	want[p+"/a"] = work(t, p+"/a", "3ms") - want[p+"/a/b"]
	s.tick()
	for g, ns := range want {
		if s.booked[g] != ns {
			t.Errorf("%s: booked %d ns, its counter shows %d", g, s.booked[g], ns)
		}
	}
	if got, all := s.below(p), usageOf(t, p); got != all {
		t.Errorf("booked %d ns below %s, its counter gained %d", got, p, all)
	}
}

// Births and deaths that were reported before the search, of a group that another one has
// replaced under its path and of groups below it, are not applied to the replacement.
func TestCreatedBeforeSearch(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1", "memcg1", "bpf")
	p := top(t)
	cfg := bpf.Default()
	cfg.Parts = bpf.Walks | bpf.Events
	k, err := bpf.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Close() }()
	mkdir(t, in(p+"/a")...)
	mkdir(t, in(p+"/a/b")...)
	life(t, p+"/a/b/c", "2ms")
	removeAll(t, cpuMount+p+"/a")
	removeAll(t, memoryMount+p+"/a")
	mkdir(t, in(p+"/a")...)
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	table, err := cgroup.OpenBPF(h, k, config(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = table.Close() }()
	var snap usage.Snapshot
	if err := table.Read(&snap); err != nil {
		t.Fatal(err)
	}
	for _, g := range snap.Groups {
		if strings.HasPrefix(g.Workload.Path, p+"/a/") {
			t.Errorf("%s is in the snapshot although it ended before its parent was created", g.Workload.Path)
		}
	}
}

// If the birth of a group was lost and a search finds it in the same tick, its use until
// then counts for itself and not for its parent; if births were lost at earlier ticks, for
// its parent.
func TestBirthLost(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1", "memcg1", "bpf")
	p := top(t)
	kernel := bpf.Default()
	kernel.Ring = os.Getpagesize()
	s := openFixture(t, "bpf", config(), kernel)
	for i := range 60 {
		mkdir(t, in(fmt.Sprintf("%s/g%d", p, i))...)
	}
	g := p + "/late"
	mkdir(t, in(g)...)
	work(t, g, "5ms")
	s.tick()
	if s.lost == 0 {
		t.Fatal("120 events fit into a ring of one page")
	}
	s.tick()
	if got, want := s.booked[g], usageOf(t, g); got != want && got != 0 {
		t.Errorf("booked %d ns, its counter shows %d", got, want)
	}
	if got, want := s.below(p), usageOf(t, p); got != want {
		t.Errorf("booked %d ns below %s, its counter gained %d", got, p, want)
	}
}

// A group that a search finds late, as its path was cut in the event of its birth, is not
// new: what it used until then was booked to its parent.
func TestFoundLate(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1", "bpf")
	hosttest.LockExclusive(t, "cut-paths") // another test that sees a cut path would miss a birth
	p := top(t)
	s := openFixture(t, "bpf", config(), bpf.Default())
	var up strings.Builder
	up.WriteString(p)
	for range 2 {
		up.WriteString("/" + strings.Repeat("a", 200))
		mkdir(t, cpuMount+up.String())
	}
	first, second := up.String()+"/"+strings.Repeat("b", 200), up.String()+"/"+strings.Repeat("c", 200)
	mkdir(t, cpuMount+first)
	s.tick() // this searches, and the next two do not
	if s.group(first) == nil {
		t.Fatal("no search in the tick of the birth")
	}
	mkdir(t, cpuMount+second)
	use := func(work string) int64 {
		before := usageOf(t, second)
		l := newLoad(t, cpuMount+second)
		l.do(work)
		l.end()
		return usageOf(t, second) - before
	}
	past, ticks := use("5ms"), 0
	for ; s.group(second) == nil; ticks++ {
		s.tick()
	}
	later := use("3ms")
	s.tick()
	if ticks < 2 || s.booked[second] != later || s.booked[up.String()] != past {
		t.Errorf("found after %d ticks; booked %d ns to the group and %d above, want %d and %d", ticks, s.booked[second], s.booked[up.String()], later, past)
	}
	if got, want := s.below(p), usageOf(t, p); got != want {
		t.Errorf("booked %d ns below %s, its counter gained %d", got, p, want)
	}
}
