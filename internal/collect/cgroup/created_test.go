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

// What a group uses that is made while groups are read, below it and in itself,
// is booked once: to itself, or above it where it was found too late to be read.
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
					t.Errorf("%s: booked %d ns, its own counter said %d", g, s.booked[g], ns)
				}
			}
			if got, all := s.below(p), usageOf(t, p)-before; got != all {
				t.Errorf("booked %d ns below %s, its counter gained %d", got, p, all)
			}
		})
	}
}

// work uses CPU time in a group, and returns what its counter shows then.
func work(t *testing.T, p, work string) int64 {
	t.Helper()
	l := newLoad(t, in(p)...)
	l.do(work)
	l.end()
	return usageOf(t, p)
}

// What a group uses that is made after the walk, with one below it that has ended
// before births and deaths are taken over, is booked once, and to each its own.
func TestCreatedAfterTheWalk(t *testing.T) {
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
			t.Errorf("%s: booked %d ns, its own counter said %d", g, s.booked[g], ns)
		}
	}
	if got, all := s.below(p), usageOf(t, p); got != all {
		t.Errorf("booked %d ns below %s, its counter gained %d", got, p, all)
	}
}

// Births and deaths that were told of before the groups were searched for: of a
// group under whose path another one is by then, and of those below it. None of
// them is taken for one below that other.
func TestCreatedBeforeTheSearch(t *testing.T) {
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
			t.Errorf("%s is shown, and went before the group above it was made", g.Workload.Path)
		}
	}
}

// A group of which the birth was lost, and that a search finds in the same tick,
// is booked what it used by then, and nobody above it is; the other way round
// where births of others were lost at earlier ticks.
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
		t.Fatal("120 events found room in a ring of a page")
	}
	s.tick()
	if got, want := s.booked[g], usageOf(t, g); got != want && got != 0 {
		t.Errorf("booked %d ns, its own counter said %d", got, want)
	}
	if got, want := s.below(p), usageOf(t, p); got != want {
		t.Errorf("booked %d ns below %s, its counter gained %d", got, p, want)
	}
}
