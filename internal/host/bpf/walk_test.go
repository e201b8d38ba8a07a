package bpf_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/testkit"
)

func walker(t testing.TB, k *bpf.Kernel, dir string, flush bool) *bpf.Walker {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer close(t, d)
	w, err := k.NewWalker(int(d.Fd()), flush)
	if err != nil {
		lacking(t, err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("Walker.Close() = %v", err)
		}
	})
	return w
}

// read walks and returns the rows by id.
func read(t testing.TB, w *bpf.Walker) map[uint64]bpf.Row {
	t.Helper()
	rows, err := w.Read()
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[uint64]bpf.Row, len(rows))
	for _, r := range rows {
		if _, ok := m[r.ID]; ok {
			t.Errorf("group %d comes twice", r.ID)
		}
		m[r.ID] = r
	}
	return m
}

// The rows of idle groups match their files exactly.
func TestWalkMatchesFiles(t *testing.T) {
	for _, c := range []struct {
		controller, file, key string
		deed, arg             string
		has                   bpf.Has
		value                 func(bpf.Row) uint64
		least                 uint64
	}{
		{"cpuacct", "cpuacct.usage", "", "burn", "30ms", bpf.HasCPU,
			func(r bpf.Row) uint64 { return r.CPU }, 5e6},
		{"", "cpu.stat", "usage_usec", "burn", "30ms", bpf.HasCPU,
			func(r bpf.Row) uint64 { return r.CPU / 1000 }, 5e3},
		{"memory", "memory.usage_in_bytes", "", "memory", "8388608", bpf.HasMemory,
			func(r bpf.Row) uint64 { return r.Memory }, 8 << 20},
		{"pids", "pids.current", "", "wait", "", bpf.HasPIDs,
			func(r bpf.Row) uint64 { return uint64(r.PIDs) }, 2},
	} {
		t.Run(c.controller+"."+c.file, func(t *testing.T) {
			root := mount(t, c.controller)
			k := need(t, config(bpf.Walks))
			top := group(t, root)
			mid := group(t, top)
			leaf := group(t, mid)
			w := walker(t, k, root, c.controller == "")

			kid := spawn(t, []string{leaf}, nil, c.deed, c.arg)
			kid.start()
			kid.answer()
			if c.has == bpf.HasCPU {
				kid.leave(root) // an empty group uses no CPU time
			}
			shown := map[string]uint64{}
			show := func() {
				for _, dir := range []string{top, mid, leaf} {
					shown[dir] = number(t, filepath.Join(dir, c.file), c.key)
				}
			}
			// The kernel may return memory that it charged ahead, and Go may start a
			// thread: compare a walk during which nothing changed.
			var rows map[uint64]bpf.Row
			testkit.Eventually(t, "nothing changes during a walk", func() bool {
				show()
				before := maps.Clone(shown)
				rows = read(t, w)
				show()
				return maps.Equal(before, shown)
			})
			for _, dir := range []string{top, mid, leaf} {
				r, ok := rows[kernfsID(t, dir)]
				if !ok {
					t.Fatalf("%s is not among %d rows", dir, len(rows))
				}
				if r.Has != c.has {
					t.Errorf("%s: Has %b, want %b", dir, r.Has, c.has)
				}
				want := shown[dir]
				if got := c.value(r); got != want || got < c.least {
					t.Errorf("%s: walk has %d, want %d as %s, and %d or more", dir, got, want, c.file, c.least)
				}
			}
			r := rows[kernfsID(t, root)]
			if has := r.Has&bpf.HasCPU != 0; has != (c.controller == "cpuacct") {
				t.Errorf("root has CPU time: %v", has)
			}
		})
	}
}

// Parents come before their children.
func TestWalkOrder(t *testing.T) {
	k := need(t, config(bpf.Walks))
	top := group(t, mount(t, "cpuacct"))
	mid := group(t, top)
	leaf := group(t, mid)
	rows, err := walker(t, k, top, false).Read()
	if err != nil {
		t.Fatal(err)
	}
	var got []uint64
	for _, r := range rows {
		got = append(got, r.ID)
	}
	if want := []uint64{kernfsID(t, top), kernfsID(t, mid), kernfsID(t, leaf)}; !slices.Equal(got, want) {
		t.Errorf("walk has %d, want %d", got, want)
	}
}

// After groups ended and others began, each row still has the counters of its own group: a walk keeps
// where those of a version 1 group are for the next one, by the place of its row.
func TestWalkAfterChanges(t *testing.T) {
	for _, c := range []struct {
		controller, file string
		value            func(bpf.Row) uint64
		fill             func(t *testing.T, dir string, i int)
	}{
		{"cpuacct", "cpuacct.usage", func(r bpf.Row) uint64 { return r.CPU }, func(t *testing.T, dir string, i int) {
			kid := spawn(t, []string{dir}, nil, "burn", strconv.Itoa(5*i)+"ms")
			kid.start()
			kid.answer()
			kid.leave(filepath.Dir(filepath.Dir(dir)))
		}},
		{"pids", "pids.current", func(r bpf.Row) uint64 { return uint64(r.PIDs) }, func(t *testing.T, dir string, i int) {
			for range i {
				spawn(t, []string{dir}, nil, "wait", "")
			}
		}},
	} {
		t.Run(c.controller, func(t *testing.T) {
			k := need(t, config(bpf.Walks))
			top := group(t, mount(t, c.controller))
			w := walker(t, k, top, false)
			dirs := []string{}
			add := func() {
				dirs = append(dirs, group(t, top))
				c.fill(t, dirs[len(dirs)-1], len(dirs)%3+1)
			}
			check := func(more int) {
				t.Helper()
				var rows map[uint64]bpf.Row
				shown := map[string]uint64{}
				testkit.Eventually(t, "nothing changes during a walk", func() bool {
					before := maps.Clone(shown)
					for _, dir := range dirs {
						shown[dir] = number(t, filepath.Join(dir, c.file), "")
					}
					rows = read(t, w)
					return maps.Equal(before, shown)
				})
				for _, dir := range dirs {
					if r, ok := rows[kernfsID(t, dir)]; !ok || c.value(r) != shown[dir] {
						t.Errorf("%s: walk has %d (%t), want %d as %s", dir, c.value(r), ok, shown[dir], c.file)
					}
				}
				if want := len(dirs) + 1 + more; len(rows) != want {
					t.Errorf("%d rows, want %d", len(rows), want)
				}
			}
			empty := group(t, top)
			for range 3 {
				add()
			}
			check(1)
			remove(t, empty) // the rows of the others move
			check(0)
			add()
			check(0)
		})
	}
}

// A walk starts at any group, sees births and deaths, and makes room for more groups than
// at its start.
func TestWalkGrows(t *testing.T) {
	k := need(t, config(bpf.Walks))
	top := group(t, mount(t, "cpuacct"))
	w := walker(t, k, top, false)
	if got := read(t, w); len(got) != 1 {
		t.Fatalf("%d rows of one group", len(got))
	}
	const n = 600
	want := make(map[uint64]bool)
	for i := range n {
		dir := filepath.Join(top, "mete-test-"+strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		defer remove(t, dir)
		want[kernfsID(t, dir)] = true
	}
	got := read(t, w)
	if len(got) != n+1 {
		t.Fatalf("%d rows, want %d", len(got), n+1)
	}
	for id := range want {
		if _, ok := got[id]; !ok {
			t.Errorf("group %d is missing", id)
		}
	}
	for i := range n {
		remove(t, filepath.Join(top, "mete-test-"+strconv.Itoa(i)))
	}
	if got := read(t, w); len(got) != 1 {
		t.Errorf("%d rows after all died, want 1", len(got))
	}
}

// Walkers of different hierarchies have separate rows.
func TestWalkersIndependent(t *testing.T) {
	k := need(t, config(bpf.Walks))
	a := walker(t, k, group(t, mount(t, "cpuacct")), false)
	b := walker(t, k, group(t, mount(t, "pids")), false)
	ra, err := a.Read()
	if err != nil || len(ra) != 1 {
		t.Fatalf("Read() = %v, %v, want one row", ra, err)
	}
	before := ra[0]
	if rb, err := b.Read(); err != nil || len(rb) != 1 || rb[0].Has != bpf.HasPIDs {
		t.Fatalf("Read() = %v, %v, want one row with tasks", rb, err)
	}
	if ra[0] != before {
		t.Errorf("the other walk changed %v to %v", before, ra[0])
	}
}

func BenchmarkWalk(b *testing.B) {
	for _, c := range []string{"cpuacct", "memory", ""} {
		for _, n := range []int{500, 5000} {
			name := c
			if name == "" {
				name = "unified"
			}
			b.Run(name+"/"+strconv.Itoa(n), func(b *testing.B) {
				k := need(b, config(bpf.Walks))
				top := group(b, mount(b, c))
				for i := range n {
					dir := filepath.Join(top, "mete-test-"+strconv.Itoa(i))
					if err := os.Mkdir(dir, 0o755); err != nil {
						b.Fatal(err)
					}
					defer remove(b, dir)
				}
				w := walker(b, k, top, c == "")
				read(b, w)
				b.ReportAllocs()
				for b.Loop() {
					if rows, err := w.Read(); err != nil || len(rows) != n+1 {
						b.Fatal(len(rows), err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/group")
			})
		}
	}
}
