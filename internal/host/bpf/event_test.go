package bpf_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// seen are the recorded events by group.
type seen struct{ born, died map[uint64]bpf.Event }

// drain returns all events, with copies of their paths.
func drain(k *bpf.Kernel) seen {
	s := seen{map[uint64]bpf.Event{}, map[uint64]bpf.Event{}}
	s.drain(k)
	return s
}

func (s seen) drain(k *bpf.Kernel) {
	k.Drain(func(e *bpf.Event) {
		c := *e
		c.Path = append([]byte(nil), e.Path...)
		if c.Born {
			s.born[c.ID] = c
		} else {
			s.died[c.ID] = c
		}
	})
}

func boottime(t testing.TB) uint64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		t.Fatal(err)
	}
	return uint64(ts.Nano())
}

// Fifty groups live and die, ten between two drains. Their CPU time is known to the
// nanosecond in version 1, to the microsecond of the file in version 2.
func TestDeathCPU(t *testing.T) {
	for _, c := range []struct {
		controller, file, key string
		has                   bpf.Has
		value                 func(bpf.Event) uint64
	}{
		{"cpuacct", "cpuacct.usage", "", bpf.HasCPU,
			func(e bpf.Event) uint64 { return e.CPU }},
		{"", "cpu.stat", "usage_usec", bpf.HasCPU | bpf.HasOwnCPU,
			func(e bpf.Event) uint64 { return e.OwnCPU / 1000 }},
	} {
		t.Run(c.controller+"."+c.file, func(t *testing.T) {
			cfg := config(bpf.Events)
			cfg.Hierarchies = []uint32{hierarchy(t, c.controller)}
			k := need(t, cfg)
			root := mount(t, c.controller)
			top := group(t, root)
			const n = 50
			begin := boottime(t)
			want := map[uint64]uint64{}
			path := map[uint64]string{}
			got := drain(k)
			for i := range n {
				if i%10 == 0 {
					got.drain(k)
				}
				dir := group(t, top)
				kid := spawn(t, []string{dir}, nil, "burn", "3ms")
				kid.start()
				kid.answer()
				kid.leave(root)
				kid.end()
				id := kernfsID(t, dir)
				want[id] = number(t, filepath.Join(dir, c.file), c.key)
				path[id] = strings.TrimPrefix(dir, root)
				remove(t, dir)
			}
			end := boottime(t)

			got.drain(k)
			if k.Lost() != 0 {
				t.Fatalf("%d events are lost", k.Lost())
			}
			for id, cpu := range want {
				b, d := got.born[id], got.died[id]
				if b.ID != id || d.ID != id {
					t.Errorf("group %d: born %v, died %v", id, b.ID == id, d.ID == id)
					continue
				}
				if v := c.value(d); v != cpu || v == 0 {
					t.Errorf("group %d died with %d, want %d", id, v, cpu)
				}
				if d.Has != c.has || b.Has != 0 {
					t.Errorf("group %d: Has %b and %b, want none and %b", id, b.Has, d.Has, c.has)
				}
				if b.Parent != kernfsID(t, top) || d.Parent != b.Parent || b.Level != 2 || d.Level != 2 {
					t.Errorf("group %d: parents %d %d, levels %d %d", id, b.Parent, d.Parent, b.Level, d.Level)
				}
				if string(b.Path) != path[id] || string(d.Path) != path[id] || b.Cut || d.Cut {
					t.Errorf("group %d: paths %q and %q, want %q", id, b.Path, d.Path, path[id])
				}
				if b.Time < begin || d.Time < b.Time || end < d.Time {
					t.Errorf("group %d: times %d, %d not in %d, %d", id, b.Time, d.Time, begin, end)
				}
				if b.Hierarchy != cfg.Hierarchies[0] || d.Hierarchy != cfg.Hierarchies[0] {
					t.Errorf("group %d: hierarchies %d, %d, want %d", id, b.Hierarchy, d.Hierarchy, cfg.Hierarchies[0])
				}
			}
			for id := range drain(k).died {
				if _, ok := want[id]; ok {
					t.Errorf("group %d dies twice", id)
				}
			}
		})
	}
}

// A dead group's event has the memory that its file showed last.
func TestDeathMemory(t *testing.T) {
	k := need(t, config(bpf.Events))
	root := mount(t, "memory")
	dir := group(t, root)
	kid := spawn(t, []string{dir}, nil, "wait")
	kid.start()
	kid.answer()
	kid.leave(root)
	kid.end()
	// The page cache of this file stays charged to the group of its writer.
	want := number(t, filepath.Join(dir, "memory.usage_in_bytes"), "")
	id := kernfsID(t, dir)
	remove(t, dir)
	d := drain(k).died[id]
	if d.Has&bpf.HasMemory == 0 || d.Memory > want {
		t.Errorf("died with %d bytes, Has %b; the file showed %d", d.Memory, d.Has, want)
	}
}

// A path that is too long is cut and marked; one that just fits is not.
func TestLongPath(t *testing.T) {
	cfg := config(bpf.Events)
	cfg.Hierarchies = []uint32{hierarchy(t, "cpuacct")}
	root := mount(t, "cpuacct")
	// Another test that sees a cut path would miss a birth. Waiting for it would fill an open ring.
	hosttest.LockExclusive(t, "cut-paths")
	k := need(t, cfg)
	top := group(t, root)
	a := filepath.Join(top, strings.Repeat("a", 250))
	fits := filepath.Join(a, strings.Repeat("b", 510-len(a)+len(root)))
	over := filepath.Join(a, strings.Repeat("b", 512-len(a)+len(root)))
	for _, dir := range []string{a, fits, over} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		defer remove(t, dir)
	}
	got := drain(k).born
	for _, c := range []struct {
		dir string
		cut bool
	}{{a, false}, {fits, false}, {over, true}} {
		e := got[kernfsID(t, c.dir)]
		want := strings.TrimPrefix(c.dir, root)
		if e.Cut != c.cut || string(e.Path) != want[:min(len(want), 511)] {
			t.Errorf("path of %d bytes: %d bytes, cut %v; want cut %v\n%s", len(want), len(e.Path), e.Cut, c.cut, e.Path)
		}
	}
}

// Events that find the ring full are counted, and the ring works again afterwards.
func TestRingOverflow(t *testing.T) {
	cfg := config(bpf.Events)
	cfg.Ring = os.Getpagesize()
	cfg.Hierarchies = []uint32{hierarchy(t, "cpuacct")}
	k := need(t, cfg)
	top := group(t, mount(t, "cpuacct"))
	const n = 50
	for range n {
		dir := filepath.Join(top, "x")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		remove(t, dir)
	}
	got := k.Drain(func(*bpf.Event) {})
	// Other processes may create groups too.
	if lost := k.Lost(); got == 0 || lost == 0 || uint64(got)+lost < 2*n+1 {
		t.Errorf("%d events and %d lost, want at least %d in all", got, lost, 2*n+1)
	}
	// Groups of other processes may fill the ring again.
	testkit.Eventually(t, "an event after the ring was full", func() bool {
		drain(k)
		dir := group(t, top)
		return drain(k).born[kernfsID(t, dir)].ID != 0
	})
}

// Events of other hierarchies are filtered out.
func TestHierarchiesFilter(t *testing.T) {
	cfg := config(bpf.Events)
	cfg.Hierarchies = []uint32{hierarchy(t, "pids")}
	k := need(t, cfg)
	loud, silent := group(t, mount(t, "pids")), group(t, mount(t, "cpuacct"))
	n := 0
	k.Drain(func(e *bpf.Event) {
		switch {
		case e.Hierarchy != cfg.Hierarchies[0]:
			t.Errorf("event of hierarchy %d", e.Hierarchy)
		case e.ID == kernfsID(t, loud):
			n++
		}
	})
	if n != 1 {
		t.Errorf("%d births of %s, want 1; %s is filtered out", n, loud, silent)
	}
}

func BenchmarkDrain(b *testing.B) {
	cfg := config(bpf.Events)
	cfg.Hierarchies = []uint32{hierarchy(b, "cpuacct")}
	k := need(b, cfg)
	top := group(b, mount(b, "cpuacct"))
	dir := filepath.Join(top, "x")
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		remove(b, dir)
		n += k.Drain(func(*bpf.Event) {})
	}
	if n < 2*b.N {
		b.Errorf("%d events, want %d; lost %d", n, 2*b.N, k.Lost())
	}
}
