package cgroup_test

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/hosttest"
)

// An eventMachine is a captured machine of version 2 whose groups come and go.
type eventMachine struct {
	t     *testing.T
	h     *hostfs.FS
	table *cgroup.Table
}

func openEvents(t *testing.T, cfg cgroup.Config) *eventMachine {
	t.Helper()
	cfg.Node, cfg.Boot = "n", "b"
	m := &eventMachine{t: t, h: hosttest.Unpack(t, []byte(fakeV2))}
	m.make("/a")
	var err error
	if m.table, err = cgroup.OpenFiles(m.h, cfg, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.table.Close() }) // of which a blind one has closed its watches
	return m
}

func (m *eventMachine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// make makes a group, or lets it use CPU time.
func (m *eventMachine) make(p string, used ...int) {
	m.t.Helper()
	m.must(os.MkdirAll(m.h.Path("/cg"+p), 0o755))
	m.must(os.WriteFile(m.h.Path("/cg"+p+"/cpu.stat"), fmt.Appendf(nil, "usage_usec %d\n", append(used, 7)[0]), 0o644))
	m.must(os.WriteFile(m.h.Path("/cg"+p+"/memory.current"), []byte("4096\n"), 0o644))
}

// next describes the groups of the next snapshot, which is booked, without the root.
func (m *eventMachine) next() string {
	m.t.Helper()
	text := m.read()
	m.table.Booked()
	return text
}

// read describes the groups of the next snapshot, without the root.
func (m *eventMachine) read() string {
	m.t.Helper()
	var s usage.Snapshot
	m.must(m.table.Read(&s))
	var list []string
	for _, g := range s.Groups[1:] {
		text := g.Workload.Path
		switch {
		case g.Born:
			text += " born"
		case g.New:
			text += " new"
		}
		if g.Final {
			text += " final"
		}
		list = append(list, text)
	}
	if s.Lost > 0 {
		list = append(list, fmt.Sprint("lost ", s.Lost))
	}
	return strings.Join(list, ", ")
}

func (m *eventMachine) want(what, want string) {
	m.t.Helper()
	if got := m.next(); got != want {
		m.t.Errorf("%s: %s; want %s", what, got, want)
	}
}

// TestEvents follows the directories of groups by events: those that are created, removed, and renamed, of which the life
// began before.
func TestEvents(t *testing.T) {
	m := openEvents(t, cgroup.Config{Every: 1000, Files: 20})
	m.want("at first", "/a new")
	m.make("/b")
	m.want("created", "/a, /b born")
	m.make("/b/c")
	m.must(os.WriteFile(m.h.Path("/cg/b/memory.max"), []byte("max\n"), 0o644)) // no group
	m.want("created below it", "/a, /b, /b/c born")
	m.must(os.Rename(m.h.Path("/cg/b"), m.h.Path("/cg/d")))
	m.want("renamed", "/a, /b final, /b/c final, /d new, /d/c new")
	m.make("/d/e")
	m.must(os.RemoveAll(m.h.Path("/cg/a")))
	m.want("created and removed after it", "/a final, /d, /d/c, /d/e born")
	m.want("then", "/d, /d/c, /d/e")
	m.must(os.Rename(m.h.Path("/cg/d"), m.h.Path("/elsewhere")))
	m.want("moved away", "/d final, /d/c final, /d/e final")
	m.want("then", "")
	m.make("/f")
	m.make("/g")
	m.want("then", "/f born, /g born")
	if n := m.table.SlotsLost(); n != 0 {
		t.Errorf("%d slots are lost", n)
	}
	if of, watched := m.table.Watches(); watched != of || of != 3 {
		t.Errorf("%d directories are watched, %d by the kernel; want the root and two groups", of, watched)
	}
}

// TestNotBooked checks that births and ends are repeated until a snapshot is booked.
func TestNotBooked(t *testing.T) {
	m := openEvents(t, cgroup.Config{Every: 1000, Files: 20})
	m.want("at first", "/a new")
	m.make("/b")
	m.must(os.RemoveAll(m.h.Path("/cg/a")))
	for i := range 3 {
		if got := m.read(); got != "/a final, /b born" {
			t.Errorf("snapshot %d that is not booked: %s", i, got)
		}
	}
	m.want("booked", "/a final, /b born")
	m.want("then", "/b")
}

// TestEventsEnd checks that groups are searched for at once when not all can be watched, and then once in a window.
func TestEventsEnd(t *testing.T) {
	m := openEvents(t, cgroup.Config{Every: 3, Files: 20})
	m.want("at first", "/a new")
	m.table.Blind()
	m.make("/b")
	m.must(os.RemoveAll(m.h.Path("/cg/a")))
	m.want("the watches end", "/a final, /b born")
	m.want("searched at the end of the window", "/b")
	m.make("/c")
	var list []string
	for range 3 {
		list = append(list, m.next())
	}
	seen := strings.Join(list, "; ")
	if strings.Count(seen, "/c new") != 1 || strings.Contains(seen, "born") {
		t.Errorf("in a window: %s", seen)
	}
}

// TestDescriptors checks that the busiest groups keep their files open, as far as descriptors reach.
func TestDescriptors(t *testing.T) {
	m := openEvents(t, cgroup.Config{Every: 1, Files: 4})
	for _, p := range []string{"/b", "/c", "/d"} {
		m.make(p)
	}
	used := 1000
	for _, busy := range [][]string{{"/a", "/b"}, {"/c", "/d"}, {"/b", "/d"}} {
		for range 3 {
			for _, p := range busy {
				used += 1000
				m.make(p, used)
			}
			m.next()
		}
		kept := m.table.Kept()
		if len(kept) != 2 || kept[busy[0]] != 2 || kept[busy[1]] != 2 {
			t.Errorf("descriptors %v, while %v work", kept, busy)
		}
	}
}

// TestOpenFails checks that a table is not opened without control groups, or if their ids cannot be read.
func TestOpenFails(t *testing.T) {
	for name, c := range map[string]struct {
		capture string
		want    error
	}{
		"no hierarchy": {strings.Replace(fakeV2, "1 0 0:1 / /cg rw - cgroup2 cgroup2 rw\n", "", 1), fault.ErrUnsupported},
		"bad ids":      {strings.Replace(fakeV2, "-- mete/ids --\n", "-- mete/ids --\nx /cg\n", 1), fault.ErrInvalid},
	} {
		table, err := cgroup.OpenFiles(hosttest.Unpack(t, []byte(c.capture)), cgroup.Config{Node: "n", Boot: "b"}, slog.New(slog.DiscardHandler))
		if table != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v, want %v", name, table, err, c.want)
		}
	}
}

// TestKeyOfRoot checks that a container whose group root made has its id as key.
func TestKeyOfRoot(t *testing.T) {
	hosttest.Need(t, "root")
	m := openEvents(t, cgroup.Config{Every: 1, Files: 20})
	id := hosttest.ContainerID(t)
	m.make("/docker-" + id + ".scope")
	var s usage.Snapshot
	m.must(m.table.Read(&s))
	if last := s.Groups[len(s.Groups)-1].Workload; last.Kind != workload.Container || last.Key != id {
		t.Errorf("%+v, want key %s", last, id)
	}
}

// TestUncounted checks which groups no hierarchy counts the CPU time of: those in the memory hierarchy alone, while they
// are. The CPU time that is added to one is also added to those above it that have no counter either.
func TestUncounted(t *testing.T) {
	h := hosttest.Unpack(t, []byte(fakeV1))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	in := func(mount string, paths ...string) {
		t.Helper()
		for _, p := range paths {
			must(os.MkdirAll(h.Path(mount+p), 0o755))
			must(os.WriteFile(h.Path(mount+p+map[string]string{"/cpu": "/cpuacct.usage", "/memory": "/memory.usage_in_bytes"}[mount]), []byte("4096\n"), 0o644))
		}
	}
	in("/cpu", "/a.service", "/k.slice")
	in("/memory", "/a.service", "/a.service/part", "/k.slice", "/k.slice/n.service", "/m.slice", "/m.slice/o.service")
	table, err := cgroup.OpenFiles(h, cgroup.Config{Node: "n", Boot: "b", Every: 1, Files: 40}, slog.New(slog.DiscardHandler))
	must(err)
	t.Cleanup(func() { must(table.Close()) })
	var s usage.Snapshot
	read := func() map[string]usage.Group {
		t.Helper()
		must(table.Read(&s))
		table.Booked()
		groups := map[string]usage.Group{}
		for _, g := range s.Groups {
			groups[g.Workload.Path] = *g
		}
		return groups
	}
	uncounted := map[string]cgroup.Uncounted{}
	want := func(what string, want map[string]string) {
		t.Helper()
		got := map[string]string{}
		clear(uncounted)
		table.EachUncounted(func(u cgroup.Uncounted, dir string, counter *usage.Group) {
			got[dir], uncounted[dir] = counter.Workload.Path, u
		})
		if !maps.Equal(got, want) {
			t.Errorf("%s: uncounted %v, want %v", what, got, want)
		}
	}
	read()
	want("at first", map[string]string{"/memory/k.slice/n.service": "/k.slice", "/memory/m.slice": "/", "/memory/m.slice/o.service": "/"})
	table.AddCPU(uncounted["/memory/m.slice/o.service"], 500)
	table.AddCPU(uncounted["/memory/m.slice/o.service"], 300)
	table.AddCPU(uncounted["/memory/m.slice"], 30)
	table.AddCPU(uncounted["/memory/k.slice/n.service"], 7)
	cpu := usage.SetOf(usage.CPU)
	groups := read()
	for p, ns := range map[string]int64{"/m.slice/o.service": 800, "/m.slice": 830, "/k.slice/n.service": 7} {
		if g := groups[p]; g.Value[usage.CPU] != ns || g.Has&cpu == 0 || g.Apportioned != cpu || g.Counted != cpu {
			t.Errorf("%s: %d ns of %b, apportioned %b, counted %b; want %d", p, g.Value[usage.CPU], g.Has, g.Apportioned, g.Counted, ns)
		}
	}
	for _, p := range []string{"/", "/k.slice", "/a.service"} {
		if g := groups[p]; g.Apportioned|g.Counted != 0 {
			t.Errorf("%s: apportioned %b, counted %b", p, g.Apportioned, g.Counted)
		}
	}

	in("/memory", "/q.service")
	must(os.RemoveAll(h.Path("/memory/k.slice/n.service")))
	in("/cpu", "/m.slice")
	read()
	want("after changes", map[string]string{"/memory/m.slice/o.service": "/m.slice", "/memory/q.service": "/"})
	groups = read()
	if g := groups["/m.slice"]; g.Apportioned|g.Counted != 0 || g.Value[usage.CPU] != 4096 {
		t.Errorf("a group that is counted now: %d ns, apportioned %b, counted %b", g.Value[usage.CPU], g.Apportioned, g.Counted)
	}
	if groups["/m.slice/o.service"].Parent != groups["/m.slice"].Slot || groups["/m.slice/o.service"].MemoryParent != groups["/m.slice"].Slot {
		t.Errorf("parents %+v of %+v", groups["/m.slice/o.service"], groups["/m.slice"])
	}

	must(os.RemoveAll(h.Path("/memory/q.service")))
	read()
	want("after an end", map[string]string{"/memory/m.slice/o.service": "/m.slice"})

	if kept := table.Kept()["/a.service"]; kept != 2 {
		t.Errorf("%d files of a group are open", kept)
	}
	must(os.RemoveAll(h.Path("/memory/a.service")))
	if g := read()["/a.service"]; g.Has.Has(usage.Memory) || !g.Has.Has(usage.CPU) || g.Final || table.Kept()["/a.service"] != 1 {
		t.Errorf("a group without memory: %b, final %t, %d files are open", g.Has, g.Final, table.Kept()["/a.service"])
	}
}
