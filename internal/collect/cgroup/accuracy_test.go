package cgroup_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// accuracy skips the test unless the accuracy stage runs: it loads the machine.
func accuracy(t *testing.T) {
	t.Helper()
	testkit.Stage(t, "accuracy", "loads the machine")
	hosttest.Need(t, "root", "cgroup1", "memcg1")
}

// Ten thousand groups are read as exactly as ten.
func TestAccuracyManyGroups(t *testing.T) {
	accuracy(t)
	const n = 10_000
	for _, reader := range []string{"bpf", "files"} {
		t.Run(reader, func(t *testing.T) {
			p := top(t)
			for i := range n {
				if i%100 == 0 {
					mkdir(t, fmt.Sprintf("%s%s/s%d", cpuMount, p, i/100))
				}
				mkdir(t, fmt.Sprintf("%s%s/s%d/g%d", cpuMount, p, i/100, i))
			}
			begun := spent()
			s := openFixture(t, reader, config(), bpf.Default())
			t.Logf("opened and read once: %v CPU", spent()-begun)
			before := usageOf(t, p)
			want := map[string]int64{}
			for _, i := range []int{0, 1, 4321, n - 1} {
				g := fmt.Sprintf("%s/s%d/g%d", p, i/100, i)
				l := newLoad(t, cpuMount+g)
				l.do("20ms")
				l.end()
				want[g] = usageOf(t, g)
			}
			s.tick()
			const ticks = 6
			begun = spent()
			for range ticks {
				s.tick()
			}
			t.Logf("a tick: %v CPU, including the accounting and checks of the test", (spent()-begun)/ticks)
			for g, ns := range want {
				if s.booked[g] != ns {
					t.Errorf("%s: booked %d ns, its counter gained %d", g, s.booked[g], ns)
				}
			}
			if got, want := s.below(p), usageOf(t, p)-before; got != want {
				t.Errorf("booked %d ns below %s, want %d", got, p, want)
			}
			if len(s.snap.Groups) < n {
				t.Errorf("%d groups in the snapshot, want more than %d", len(s.snap.Groups), n)
			}
			removeAll(t, cpuMount+p+"/s7")
			s.tick()
			for range 3 {
				s.tick()
			}
			if k := s.table.Entries(p + "/s7"); k > 0 || s.lost > 0 {
				t.Errorf("%d entries remain of 100 removed groups, %d events lost", k, s.lost)
			}
		})
	}
}

// After more births and deaths than the kernel queues for one reader, a search finds the
// existing groups.
func TestAccuracyEventOverflow(t *testing.T) {
	accuracy(t)
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if most > 50_000 {
		t.Skipf("%d events are queued", most)
	}
	p := top(t)
	s := openFixture(t, "files", config(), bpf.Default())
	mkdir(t, in(p+"/gone")...)
	s.tick()
	before := usageOf(t, p)
	for i := range most/2 + 100 {
		d := fmt.Sprintf("%s%s/g%d", cpuMount, p, i%5)
		mkdir(t, d)
		rmdir(t, d)
	}
	rmdir(t, in(p+"/gone")...)
	mkdir(t, in(p+"/new")...)
	l := newLoad(t, in(p+"/new")...)
	l.do("5ms")
	l.end()
	s.tick()
	if s.lost == 0 || s.group(p+"/gone") != nil || s.group(p+"/new") == nil {
		t.Errorf("lost %d; gone: %+v, new: %+v", s.lost, s.group(p+"/gone"), s.group(p+"/new"))
	}
	s.tick()
	if got, want := s.below(p), usageOf(t, p)-before; got != want {
		t.Errorf("booked %d ns below %s, want %d", got, p, want)
	}
}
