package cgroup

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// A walked is a BPF reader of a captured machine of version 2, whose rows and events the test gives.
type walked struct {
	*kernel
	t      *testing.T
	h      *hostfs.FS
	table  *Table
	rows   []bpf.Row
	events []bpf.Event
	ids    map[string]uint64
}

func (w *walked) followChanges(t *Table) error {
	w.tick++
	w.kernel.rows[0] = w.rows
	for i := range w.events {
		w.applyEvent(t, t.trees[0], &w.events[i])
	}
	w.rows, w.events = nil, nil
	return nil
}

func openWalked(t *testing.T, groups map[string]uint64) *walked {
	t.Helper()
	h := hosttest.Unpack(t, []byte(`-- mete/clocks --
boottime 1000000000
monotonic 1000000000
realtime 1700000000000000000
-- mete/ids --
-- proc/self/cgroup --
0::/
-- proc/self/mountinfo --
1 0 0:1 / /cg rw - cgroup2 cgroup2 rw
-- cg/cgroup.controllers --
cpu io memory pids
`))
	log := slog.New(slog.DiscardHandler)
	w := &walked{kernel: &kernel{k: &bpf.Kernel{}, log: log}, t: t, h: h, ids: map[string]uint64{}}
	w.make("/", 1)
	for _, p := range slices.Sorted(maps.Keys(groups)) {
		w.make(p, groups[p])
	}
	var err error
	if w.table, err = newTable(h, w, Config{Node: "n", Boot: "b", Every: 3}, log); err == nil {
		w.table.disk = diskBPF
		w.table, err = w.table.findAllOrClose()
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// make makes a group, which has no id if id is 0.
func (w *walked) make(p string, id uint64) {
	w.t.Helper()
	if err := os.MkdirAll(w.h.Path(joinPath("/cg", p)), 0o755); err != nil {
		w.t.Fatal(err)
	}
	w.identify(p, id)
}

// remove removes a group.
func (w *walked) remove(p string) {
	w.t.Helper()
	if err := os.Remove(w.h.Path("/cg" + p)); err != nil {
		w.t.Fatal(err)
	}
	w.identify(p, 0)
}

func (w *walked) identify(p string, id uint64) {
	w.t.Helper()
	if w.ids[p] = id; id == 0 {
		delete(w.ids, p)
	}
	var text []byte
	for p, id := range w.ids {
		text = fmt.Appendf(text, "%d %s\n", id, joinPath("/cg", p))
	}
	if err := os.WriteFile(w.h.Path("/mete/ids"), text, 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// row adds a row with CPU time to the next walk, and memory of ten times as much.
func (w *walked) row(id, cpu uint64) {
	w.rows = append(w.rows, bpf.Row{ID: id, CPU: cpu, Memory: 10 * cpu, PIDs: 1, Has: bpf.HasCPU | bpf.HasMemory | bpf.HasPIDs})
}

// next describes the groups of the next snapshot, without the root: path, CPU time, and what begins and ends.
func (w *walked) next() string {
	w.t.Helper()
	var s usage.Snapshot
	if err := w.table.Read(&s); err != nil {
		w.t.Fatal(err)
	}
	var list []string
	for _, g := range s.Groups[1:] {
		text := fmt.Sprint(g.Workload.Path, " ", g.Value[usage.CPU])
		if !g.Has.Has(usage.CPU) {
			text = g.Workload.Path + " -"
		}
		switch {
		case g.Born:
			text += " born"
		case g.New:
			text += " new"
		}
		switch {
		case g.Exact:
			text += " exact"
		case g.Final:
			text += " final"
		}
		list = append(list, text)
	}
	w.table.Booked()
	if s.Lost > 0 {
		list = append(list, fmt.Sprint("lost ", s.Lost))
	}
	return strings.Join(list, ", ")
}

func (w *walked) want(what, want string) {
	w.t.Helper()
	if got := w.next(); got != want {
		w.t.Errorf("%s: %s; want %s", what, got, want)
	}
}

func birth(id, parent uint64, path string) bpf.Event {
	return bpf.Event{Born: true, ID: id, Parent: parent, Path: []byte(path)}
}

// TestKernelLives follows births and ends by the events of the kernel.
func TestKernelLives(t *testing.T) {
	w := openWalked(t, map[string]uint64{"/a": 10, "/a/b": 11})
	w.row(1, 900)
	w.row(10, 100)
	w.row(11, 40)
	w.want("at first", "/a 100 new, /a/b 40 new")
	for _, g := range w.table.workloads[1:] {
		const counted = 1<<usage.Processes | 1<<usage.DiskRead | 1<<usage.DiskWritten | 1<<usage.DiskReads | 1<<usage.DiskWrites
		if g.group.Has&counted != counted || g.group.Counted != counted || g.group.Own != counted&^(1<<usage.Processes) {
			t.Errorf("%s has %b, counted %b, its own %b", g.path, g.group.Has, g.group.Counted, g.group.Own)
		}
		if g.group.Value[usage.Memory] != 10*g.group.Value[usage.CPU] || g.group.Value[usage.PIDs] != 1 {
			t.Errorf("%s: %v", g.path, g.group.Value)
		}
	}

	w.events = []bpf.Event{birth(12, 1, "/c"), {ID: 11, Parent: 10, Has: bpf.HasCPU | bpf.HasOwnCPU, CPU: 40, OwnCPU: 50}, birth(13, 12, "/c/d")}
	w.row(1, 950)
	w.row(10, 150)
	w.row(12, 7)
	w.want("a birth, an end, and a birth after the walk", "/a 150, /a/b 50 final, /c 7 born, /c/d 0 born")

	w.events = []bpf.Event{{ID: 13, Parent: 12, Has: bpf.HasCPU | bpf.HasOwnCPU, OwnCPU: 3}, {ID: 12, Parent: 1, Has: bpf.HasCPU | bpf.HasOwnCPU, CPU: 7, OwnCPU: 9}}
	w.row(1, 960)
	w.row(10, 160)
	w.want("ends of which all is known", "/a 160, /c 12 exact, /c/d 3 exact")

	w.events = []bpf.Event{{ID: 77, Parent: 10}, birth(14, 10, "/a/e"), {ID: 14, Parent: 10, Has: bpf.HasCPU | bpf.HasOwnCPU, OwnCPU: 4}}
	w.row(10, 170)
	w.want("an end without a birth, and a short life", "/a 170, /a/e 4 born exact")

	e := birth(15, 10, "/a/f")
	e.Cut = true
	w.events = []bpf.Event{e, birth(16, 5, "/a/g"), birth(17, 99, "/nowhere/h")}
	w.row(10, 180)
	w.want("births with a path that is cut, below another life, and below nothing", "/a 180, lost 1")
	w.row(10, 190)
	w.want("after them", "/a 190")
	if tr := w.table.trees[0]; len(tr.byID) != 2 || len(tr.byPath) != 2 || len(w.table.removed) > 1 {
		t.Errorf("groups %v by id and %v by path, %d removed", slices.Sorted(maps.Keys(tr.byID)), slices.Sorted(maps.Keys(tr.byPath)), len(w.table.removed))
	}
}

// TestKernelRenamed checks that a group with another path is another workload, whose life began before, as are those
// below it.
func TestKernelRenamed(t *testing.T) {
	w := openWalked(t, map[string]uint64{"/a": 10, "/a/b": 11})
	w.row(10, 100)
	w.row(11, 40)
	w.next()
	w.remove("/a/b")
	w.remove("/a")
	w.make("/z", 10)
	w.make("/z/b", 11)
	w.events = []bpf.Event{birth(10, 1, "/z")}
	w.row(10, 110)
	w.row(11, 50)
	w.want("renamed", "/a 100 final, /a/b 40 final, /z 110 new, /z/b 50 new")
	w.events = []bpf.Event{birth(12, 10, "/z/c")}
	w.row(10, 120)
	w.row(11, 60)
	w.row(12, 5)
	w.want("after it", "/z 120, /z/b 60, /z/c 5 born")
	for range 3 {
		w.row(10, 120)
		w.row(11, 60)
		w.row(12, 5)
		w.want("later", "/z 120, /z/b 60, /z/c 5")
	}
	if tr := w.table.trees[0]; tr.byID[10] == nil || tr.byID[10].path != "/z" || tr.byID[11] == nil || tr.byPath["/a"] != nil {
		t.Errorf("groups %v by id and %v by path", slices.Sorted(maps.Keys(tr.byID)), slices.Sorted(maps.Keys(tr.byPath)))
	}
}

// TestKernelSearch checks that groups whose events are lost are found: at once, and then once in a window.
func TestKernelSearch(t *testing.T) {
	w := openWalked(t, map[string]uint64{"/a": 10, "/b": 11, "/c": 12})
	rows := func(ids ...uint64) {
		for _, id := range ids {
			w.row(id, 10*id)
		}
	}
	rows(1, 10, 11, 12)
	w.next()

	// Of a new group the birth is lost; one that is in the walk has gone since; one that is not is newer or gone.
	w.make("/d", 20)
	w.remove("/a")
	w.remove("/b")
	rows(1, 10, 20)
	w.want("searched at once", "/a 100, /b 110 final, /c 120, /d 200 born")

	rows(1, 12, 20, 99) // one that is not below the mount
	w.want("an unknown group", "/a 100, /c 120, /d 200")
	w.make("/e", 21)
	rows(1, 12, 20, 21, 99)
	w.want("in the same window", "/a 100, /c 120, /d 200")
	rows(1, 12, 20, 21, 99)
	w.want("in the next window", "/a 100 final, /c 120, /d 200, /e 210 new")
	w.events = []bpf.Event{birth(22, 1, "/f")}
	rows(1, 12, 20, 21, 22, 99)
	w.want("a birth after it", "/c 120, /d 200, /e 210, /f 220 born")

	// The kernel has dropped an event.
	w.lost = math.MaxUint64
	w.make("/g", 23)
	w.row(12, 130)
	w.want("a lost event", "/c 130, /d 200, /e 210, /f 220 final, /g 0 born, lost 1")
	w.make("/h", 24)
	w.row(12, 140)
	w.want("none is lost after it", "/c 140, /d 200, /e 210, /g 0")
}

// TestKernelUnknownAtFirst checks that a group which is unknown since the first tick began before it is found.
func TestKernelUnknownAtFirst(t *testing.T) {
	w := openWalked(t, map[string]uint64{"/a": 10})
	for range 3 {
		w.row(10, 100)
		w.row(20, 7)
		w.next()
	}
	w.make("/b", 20)
	w.row(10, 100)
	w.row(20, 7)
	w.want("found", "/a 100, /b 7 new")
}

// TestIdentified checks that a group without an id gets that of its rows.
func TestIdentified(t *testing.T) {
	w := openWalked(t, map[string]uint64{"/a": 0})
	w.row(1, 900)
	w.want("without an id", "/a - new")
	w.identify("/a", 10)
	w.row(10, 100)
	w.want("with an id", "/a 100")
	n := w.table.trees[0].byID[10]
	if n == nil || n.path != "/a" || len(w.table.trees[0].byID) != 2 || n.group.Life.ID == 10 {
		t.Errorf("%+v of %v", n, slices.Sorted(maps.Keys(w.table.trees[0].byID)))
	}
	if again := openWalked(t, map[string]uint64{"/a": 10}); again.table.workloads[1].group.Life.ID != 10 {
		t.Errorf("life %+v", again.table.workloads[1].group.Life)
	}
}
