package cgroup_test

import (
	"fmt"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// Files of a machine with groups: version 1 with two hierarchies, or version 2.
const (
	fakeV1 = `-- mete/clocks --
boottime 1000000000
monotonic 1000000000
realtime 1700000000000000000
-- mete/ids --
-- proc/devices --
Block devices:
-- proc/diskstats --
-- proc/self/cgroup --
2:memory:/
1:cpuacct:/
-- proc/self/mountinfo --
1 0 0:1 / /cpu rw - cgroup cgroup rw,cpuacct
2 0 0:2 / /memory rw - cgroup cgroup rw,memory
-- cpu/cpuacct.usage --
0
-- memory/memory.usage_in_bytes --
0
`
	fakeV2 = `-- mete/clocks --
boottime 1000000000
monotonic 1000000000
realtime 1700000000000000000
-- mete/ids --
-- proc/devices --
Block devices:
-- proc/diskstats --
-- proc/self/cgroup --
0::/
-- proc/self/mountinfo --
1 0 0:1 / /cg rw - cgroup2 cgroup2 rw
-- cg/cgroup.controllers --
memory
-- cg/cpu.stat --
usage_usec 0
user_usec 0
system_usec 0
`
)

// A fakeMachine is a machine of files, whose groups the test creates, uses and removes.
type fakeMachine struct {
	t      rapid.TB
	h      *hostfs.FS
	v2     bool
	table  *cgroup.Table
	books  *attribute.Accounts
	window usage.Window
	now    int64
	ids    []string
	nextID uint64

	groups []*fakeGroup // parents before children
	top    int64        // CPU us of all groups and tasks outside
	booked map[string]int64
}

type fakeGroup struct {
	path    string
	parent  *fakeGroup
	cpu     int64 // us, with all groups below, dead ones included
	since   int64 // CPU when it was first seen
	steady  bool  // exists all the time and is readable
	garbage bool  // its file is malformed now
}

// dirs returns the directories of a group, the one that counts CPU first.
func (f *fakeMachine) dirs(p string) []string {
	if f.v2 {
		return []string{f.h.Path("/cg" + p)}
	}
	return []string{f.h.Path("/cpu" + p), f.h.Path("/memory" + p)}
}

func (f *fakeMachine) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakeMachine) mkdir(parent *fakeGroup, name string) {
	g := &fakeGroup{path: name, parent: parent}
	if parent != nil {
		g.path = parent.path + name
	}
	for _, d := range f.dirs(g.path) {
		f.nextID++
		f.ids = append(f.ids, fmt.Sprintf("%d %s\n", f.nextID+100, strings.TrimPrefix(d, strings.TrimSuffix(f.h.Path("/"), "/"))))
		f.must(os.WriteFile(f.h.Path("/mete/ids"), []byte(strings.Join(f.ids, "")), 0o644))
		f.must(os.Mkdir(d, 0o755))
	}
	f.groups = append(f.groups, g)
	f.write(g)
}

func (f *fakeMachine) write(g *fakeGroup) {
	text, d := fmt.Sprintln(g.cpu*1000), f.dirs(g.path)
	file := "/cpuacct.usage"
	if f.v2 {
		text, file = fmt.Sprintf("usage_usec %d\nuser_usec %d\nsystem_usec 0\n", g.cpu, g.cpu), "/cpu.stat"
	}
	if g.garbage {
		text = "garbage\n"
	}
	f.must(os.WriteFile(d[0]+file, []byte(text), 0o644))
	if !f.v2 {
		f.must(os.WriteFile(d[1]+"/memory.usage_in_bytes", []byte("4096\n"), 0o644))
	}
}

func (f *fakeMachine) rmdir(g *fakeGroup) {
	for _, d := range f.dirs(g.path) {
		rel := strings.TrimPrefix(d, strings.TrimSuffix(f.h.Path("/"), "/"))
		f.ids = slices.DeleteFunc(f.ids, func(l string) bool { return strings.HasSuffix(l, " "+rel+"\n") })
		f.must(os.RemoveAll(d))
	}
	f.must(os.WriteFile(f.h.Path("/mete/ids"), []byte(strings.Join(f.ids, "")), 0o644))
	f.groups = slices.DeleteFunc(f.groups, func(o *fakeGroup) bool { return o == g })
}

func (f *fakeMachine) use(g *fakeGroup, us int64) {
	f.top += us
	for ; g != nil; g = g.parent {
		g.cpu += us
	}
}

// live changes the machine at random.
func (f *fakeMachine) live(t *rapid.T) {
	f.now += 1e9
	for range rapid.IntRange(0, 5).Draw(t, "deeds") {
		var g *fakeGroup
		if len(f.groups) > 0 {
			g = f.groups[rapid.IntRange(0, len(f.groups)-1).Draw(t, "group")]
		}
		name := fmt.Sprintf("/g%d", rapid.IntRange(0, 3).Draw(t, "name"))
		leaf := g != nil && !slices.ContainsFunc(f.groups, func(o *fakeGroup) bool { return o.parent == g })
		switch rapid.IntRange(0, 3).Draw(t, "deed") {
		case 0, 1:
			parent := g
			if rapid.Bool().Draw(t, "top") {
				parent, name = nil, name+"-top"
			}
			p := name
			if parent != nil {
				p = parent.path + name
			}
			if len(f.groups) < 12 && !slices.ContainsFunc(f.groups, func(o *fakeGroup) bool { return o.path == p }) {
				f.mkdir(parent, name)
			}
		case 2:
			if leaf {
				f.use(g, rapid.Int64Range(0, 500).Draw(t, "last"))
				f.rmdir(g)
			}
		case 3:
			if leaf && g.path != "" { // a new life under the old path
				parent, base := g.parent, "/"+path.Base(g.path)
				f.rmdir(g)
				f.mkdir(parent, base)
			}
		}
	}
	for _, g := range f.groups {
		f.use(g, rapid.Int64Range(0, 1000).Draw(t, "us"))
		g.garbage = rapid.IntRange(0, 7).Draw(t, "garbage") == 0
		g.steady = g.steady && !g.garbage
	}
	f.use(nil, rapid.Int64Range(0, 1000).Draw(t, "outside"))
	f.writeAll()
}

// writeAll writes the counters of all groups.
func (f *fakeMachine) writeAll() {
	for _, g := range f.groups {
		f.write(g)
	}
	if !f.v2 {
		f.must(os.WriteFile(f.h.Path("/cpu/cpuacct.usage"), fmt.Appendln(nil, f.top*1000), 0o644))
	}
}

func (f *fakeMachine) tick() usage.Balance {
	f.t.Helper()
	s := &usage.Snapshot{Boot: "boot", At: f.now, Mono: f.now, Node: usage.Node{CPUs: 1, MemTotal: 1 << 30, MemFree: 1 << 29}}
	f.must(f.table.Read(s))
	b := f.books.Tick(s)
	f.table.Booked()
	f.books.CloseWindow(&f.window)
	if f.window.Balance.Violations > 0 {
		f.t.Fatalf("%d violations", f.window.Balance.Violations)
	}
	for _, r := range f.window.Rows {
		f.booked[r.Workload.Path] += r.Usage.Amount[usage.CPU]
	}
	return b
}

// For any sequence of creation, use and removal of groups, readable or not, with directory
// events or without: in every tick the booked sum is the increase of the machine's counter,
// and each group that existed all the time, with all groups below it, has the increase of
// its own counter.
func TestFilesBookAll(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) { testFilesBookAll(t, r) })
}

func testFilesBookAll(t *testing.T, r *rapid.T) {
	v2, blind := rapid.Bool().Draw(r, "v2"), rapid.Bool().Draw(r, "blind")
	capture := map[bool]string{false: fakeV1, true: fakeV2}[v2]
	f := &fakeMachine{t: r, h: hosttest.Unpack(t, []byte(capture)), v2: v2, now: 1e9, booked: map[string]int64{}, books: attribute.New("node")}
	for range rapid.IntRange(0, 6).Draw(r, "groups") {
		f.live(r)
	}
	for _, g := range f.groups {
		g.garbage, g.steady, g.since = false, true, g.cpu
		f.write(g)
	}
	var err error
	cfg := cgroup.Config{Node: "node", Boot: "boot", Every: 3, Files: rapid.IntRange(0, 20).Draw(r, "descriptors")}
	f.table, err = cgroup.OpenFiles(f.h, cfg, slog.New(slog.DiscardHandler))
	f.must(err)
	defer func() { f.must(f.table.Close()) }()
	if blind {
		f.table.Blind()
	}
	f.tick()
	clear(f.booked)
	for range rapid.IntRange(1, 12).Draw(r, "ticks") {
		before := f.top
		f.live(r)
		b := f.tick()
		if got, want := b.Workloads[0]+b.System[0], (f.top-before)*1000; !v2 && got != want {
			r.Fatalf("booked %d ns in a tick, the machine's counter gained %d", got, want)
		}
	}
	for _, g := range f.groups {
		var got int64
		for p, ns := range f.booked {
			if p == g.path || strings.HasPrefix(p, g.path+"/") {
				got += ns
			}
		}
		if want := (g.cpu - g.since) * 1000; g.steady && got != want {
			r.Errorf("%s and below: booked %d ns, its counter gained %d", g.path, got, want)
		}
	}
}

// The directory event of a group whose parent was replaced meanwhile, with a group of the same
// name below it: the new group belongs to the new parent. Below the old one its use would count
// twice.
func TestFilesReplacedParent(t *testing.T) {
	f := &fakeMachine{t: t, h: hosttest.Unpack(t, []byte(fakeV1)), now: 1e9, booked: map[string]int64{}, books: attribute.New("node")}
	f.mkdir(nil, "/a")
	var err error
	f.table, err = cgroup.OpenFiles(f.h, cgroup.Config{Node: "node", Boot: "boot", Every: 3, Files: 20}, slog.New(slog.DiscardHandler))
	f.must(err)
	defer func() { f.must(f.table.Close()) }()
	f.tick()
	f.mkdir(f.groups[0], "/b")
	f.rmdir(f.groups[1])
	f.rmdir(f.groups[0])
	f.mkdir(nil, "/a")
	f.mkdir(f.groups[0], "/b")
	for range 2 {
		clear(f.booked)
		f.now += 1e9
		before := f.top
		f.use(f.groups[1], 138)
		f.use(f.groups[0], 2)
		f.use(nil, 1)
		f.writeAll()
		b := f.tick()
		if got, want := b.Workloads[0]+b.System[0], (f.top-before)*1000; got != want {
			t.Errorf("booked %d ns in a tick, the machine's counter gained %d", got, want)
		}
		if a, b := f.booked["/a"], f.booked["/a/b"]; a != 2000 || b != 138_000 {
			t.Errorf("booked %d ns to /a and %d to /a/b, want 2000 and 138000", a, b)
		}
	}
}
