package ledgertest

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// A drawnGroup is a control group, or what a job without a group of its own measures of one.
type drawnGroup struct {
	parent int     // the machine is its own
	some   bool    // it is some processes of its parent, without a group of their own
	hides  bool    // a meter in it sees nothing above: it is the root of a namespace
	used   []int64 // ns of CPU time by slot, without the groups below
}

// A drawnMeter measures a group at times.
type drawnMeter struct {
	group  int
	node   string
	job    bool
	ranges [][2]int // windows, slots
}

// A drawnTree is a machine with groups in groups, and meters of some.
type drawnTree struct {
	first  time.Time
	slots  int
	groups []drawnGroup
	meters []drawnMeter
}

func (d *drawnTree) time(slot int) time.Time { return d.first.Add(time.Duration(slot) * withinSlot) }

// extent is what a meter says that it measures.
func (d *drawnTree) extent(m *drawnMeter) usage.Extent {
	id := func(g int) uint64 { return uint64(g) + 100 }
	at := m.group
	if at == 0 {
		return usage.Extent{Scope: usage.Machine}
	}
	var above []uint64
	p := usage.Extent{Scope: usage.ScopeOf(id(at))}
	if d.groups[at].some {
		at = d.groups[at].parent
		if p.Scope = usage.ScopeOf(id(at)); at == 0 {
			p.Scope = usage.Machine
		}
		above = append(above, id(at))
	}
	// A meter that is the agent of a container has its root as its scope.
	for !(d.groups[at].hides && (at != m.group || !m.job)) && at != 0 {
		if at = d.groups[at].parent; at != 0 {
			above = append(above, id(at))
		}
	}
	p.Ancestors = usage.AncestorsOf(0, above...)
	return p
}

// contains reports whether a group contains another one.
func (d *drawnTree) contains(outer, inner int) bool {
	for inner != outer && inner != 0 {
		inner = d.groups[inner].parent
	}
	return inner == outer
}

// use is what the processes in a group used in a slot.
func (d *drawnTree) use(group, slot int) (sum int64) {
	for g := range d.groups {
		if d.contains(group, g) {
			sum += d.groups[g].used[slot]
		}
	}
	return sum
}

// drawTree draws a machine. Some meters cannot know of each other.
func drawTree(t *rapid.T, first time.Time) *drawnTree {
	d := &drawnTree{first: first, slots: 3 * 360}
	for g := range rapid.IntRange(2, 7).Draw(t, "groups") {
		n := drawnGroup{used: make([]int64, d.slots)}
		if g > 0 {
			for n.parent = rapid.IntRange(0, g-1).Draw(t, "parent"); d.groups[n.parent].some; {
				n.parent = d.groups[n.parent].parent
			}
			n.some, n.hides = rapid.IntRange(0, 4).Draw(t, "some") == 0, rapid.IntRange(0, 3).Draw(t, "hides") == 0
		}
		for at := range n.used {
			n.used[at] = rapid.Int64Range(0, 9).Draw(t, "cpu")
		}
		d.groups = append(d.groups, n)
	}
	for g, n := range d.groups {
		m := drawnMeter{group: g, node: fmt.Sprint("agent", g)}
		switch kind := rapid.IntRange(0, 3).Draw(t, "meter"); {
		case n.some || g > 0 && kind == 1:
			m.job, m.node = true, rapid.SampledFrom([]string{"jobs1", "jobs2"}).Draw(t, "jobs")
		case g > 0 && kind == 0:
			continue
		}
		from, to := 0, d.slots
		if rapid.Bool().Draw(t, "at times") {
			from, to = rapid.IntRange(0, d.slots-1).Draw(t, "from"), rapid.IntRange(1, d.slots).Draw(t, "to")
		}
		for at := from; at < to; {
			end := min(to, at+rapid.SampledFrom([]int{1, 6, 45, 360}).Draw(t, "length"))
			if rapid.IntRange(0, 9).Draw(t, "missing") > 0 {
				m.ranges = append(m.ranges, [2]int{at, end})
			}
			at = end
		}
		d.meters = append(d.meters, m)
	}
	return d
}

// book enrolls nodes and books all windows in some order, some of them together.
func (d *drawnTree) book(rt *rapid.T, t *testing.T, l *ledger.Ledger, cluster string) {
	enrolled := map[string]bool{}
	type window struct {
		meter    int
		from, to int
	}
	var ws []window
	for i := range d.meters {
		m := &d.meters[i]
		n := registry.Node{ID: cluster + m.node, Cluster: cluster, Name: cluster + m.node, MachineID: cluster + m.node, At: Day}
		if m.job {
			n.MachineID = registry.JobsMachineID(n.MachineID)
		}
		if !enrolled[m.node] {
			enrolled[m.node] = true
			if err := l.PutNode(t.Context(), n); err != nil {
				rt.Fatal(err)
			}
		}
		for _, r := range m.ranges {
			ws = append(ws, window{i, r[0], r[1]})
		}
	}
	if rapid.Bool().Draw(rt, "shuffled") {
		ws = rapid.Permutation(ws).Draw(rt, "order")
	} else {
		slices.SortStableFunc(ws, func(a, b window) int { return cmp.Compare(a.to, b.to) })
	}
	var es []*batch.Entry
	for n, w := range ws {
		m := &d.meters[w.meter]
		hash := batch.HashOf(fmt.Append(nil, cluster, w))
		e := &batch.Entry{Node: cluster + m.node, Stream: batch.Stream([]byte(hash.String())[:16]), Number: 1, Hash: hash,
			Boot: cluster, Boottime: int64(d.slots) * int64(withinSlot), Through: d.time(w.to)}
		e.Measured = []batch.Measured{{Boot: cluster, Extent: d.extent(m), From: int64(w.from) * int64(withinSlot), To: int64(w.to) * int64(withinSlot), Offset: d.first.UnixNano()}}
		short := workload.ShortID(100 + w.meter)
		if m.job {
			e.Measured[0].Workload = short
		}
		for slot := w.from; slot < w.to; slot++ {
			at := minuteOf(d.time(slot))
			if i := len(e.Minutes) - 1; i < 0 || e.Minutes[i].Minute != at {
				row := batch.Minute{Workload: short, Minute: at}
				row.Usage.Put(usage.CPU, 0, usage.Measured)
				e.Minutes, e.Nodes = append(e.Minutes, row), append(e.Nodes, batch.NodeMinute{Minute: at})
			}
			row, node, cpu := &e.Minutes[len(e.Minutes)-1], &e.Nodes[len(e.Nodes)-1], d.use(m.group, slot)
			row.Usage.Amount[usage.CPU] += cpu
			row.Usage.Covered += withinSlot
			node.Covered += withinSlot
			if whole := slices.Index(usage.Wholes[:], usage.CPU); m.job {
				node.Skew[whole] += cpu
			} else {
				node.Whole[whole], node.CPUs = node.Whole[whole]+cpu, 4
			}
		}
		es = append(es, e)
		if n+1 == len(ws) || rapid.IntRange(0, 3).Draw(rt, "together") == 0 {
			book(t, l, batch.Accepted, es...)
			es = nil
		}
		if rapid.IntRange(0, 99).Draw(rt, "fold") == 0 {
			if err := l.Fold(t.Context(), d.time(w.to)); err != nil {
				rt.Fatal(err)
			}
		}
	}
}

// covers returns how many slots of a minute two meters measured both.
func (d *drawnTree) covers(a, b *drawnMeter, minute int) (n int) {
	has := func(m *drawnMeter, slot int) bool {
		return slices.ContainsFunc(m.ranges, func(r [2]int) bool { return r[0] <= slot && slot < r[1] })
	}
	for slot := 6 * minute; slot < 6*minute+6; slot++ {
		if has(a, slot) && has(b, slot) {
			n++
		}
	}
	return n
}

// knows reports whether the ledger can know that all that a meter measured is measured by another one, and
// at which level.
func (d *drawnTree) knows(inner, outer *drawnMeter) (level int, ok bool) {
	switch {
	case inner == outer || inner.group == outer.group || !d.contains(outer.group, inner.group):
		return 0, false
	case outer.job: // any user can send jobs
		return 0, false
	case outer.group == 0:
		return usage.MaxAncestors, true
	}
	at := inner.group
	if d.groups[at].some {
		at = d.groups[at].parent
		if at == outer.group {
			return 0, true
		}
		level++
	}
	for d.groups[at].parent != 0 {
		if d.groups[at].hides && (at != inner.group || !inner.job) {
			return 0, false
		}
		if at = d.groups[at].parent; at == outer.group {
			return level, true
		}
		level++
	}
	return 0, false
}

// owner returns the meter that rows of a meter in a minute are within, or nil.
func (d *drawnTree) owner(m *drawnMeter, minute int) (owner *drawnMeter) {
	least := 0
	for i := range d.meters {
		o := &d.meters[i]
		if level, ok := d.knows(m, o); ok && d.covers(m, o, minute) > 0 && (owner == nil || level < least) {
			owner, least = o, level
		}
	}
	return owner
}

// check compares the sums of some views and ranges with what is not within another node of the view.
func (d *drawnTree) check(rt *rapid.T, t *testing.T, l *ledger.Ledger, cluster, when string) {
	var views [][]string
	for i := range d.meters {
		for j := range i {
			views = append(views, []string{d.meters[i].node, d.meters[j].node})
		}
		views = append(views, []string{d.meters[i].node})
	}
	for _, view := range append([][]string{nil}, views...) {
		ends := []int{rapid.IntRange(0, d.slots/6).Draw(rt, "from"), rapid.IntRange(0, d.slots/6).Draw(rt, "to")}
		slices.Sort(ends)
		if rapid.Bool().Draw(rt, "all") {
			ends = []int{0, d.slots / 6}
		}
		var want, kernel int64
		unknown, whole := false, false // something cannot be known to be counted twice; the machine is measured
		for minute := ends[0]; minute < ends[1]; minute++ {
			for slot := 6 * minute; slot < 6*minute+6; slot++ {
				kernel += d.use(0, slot)
			}
			for i := range d.meters {
				m := &d.meters[i]
				if view != nil && !slices.Contains(view, m.node) {
					continue
				}
				for j := range d.meters {
					_, known := d.knows(m, &d.meters[j])
					unknown = unknown || i != j && !known && d.contains(d.meters[j].group, m.group) && d.covers(m, &d.meters[j], minute) > 0
				}
				if o := d.owner(m, minute); o != nil && (view == nil || slices.Contains(view, o.node)) {
					continue
				}
				for slot := 6 * minute; slot < 6*minute+6; slot++ {
					if slices.ContainsFunc(m.ranges, func(r [2]int) bool { return r[0] <= slot && slot < r[1] }) {
						want += d.use(m.group, slot)
					}
				}
			}
		}
		var ids []string
		for _, n := range view {
			ids = append(ids, cluster+n)
		}
		if got := cpuOf(t, l, d.time(6*ends[0]), d.time(6*ends[1]), cluster, ids...); got != fmt.Sprint(want) {
			rt.Fatalf("%s of %s, %v, minutes %v of %v: %s ns, want %d", when, cluster, d.meters, ends, view, got, want)
		}
		m := &d.meters[0] // of the machine
		whole = len(m.ranges) > 0 && m.ranges[0][0] == 0 && m.ranges[len(m.ranges)-1][1] == d.slots
		for i := 1; i < len(m.ranges); i++ {
			whole = whole && m.ranges[i][0] == m.ranges[i-1][1]
		}
		if view == nil && (want > kernel && !unknown || want != kernel && whole) {
			rt.Fatalf("%s of %s, %v, minutes %v: %d ns, the kernel counted %d; measured as a whole: %v", when, cluster, d.meters, ends, want, kernel, whole)
		}
	}
}

// testExtentsDrawn: sums over meters of groups in groups have the use of each group once, whatever the
// order in which it came, and whichever rows are folded.
func testExtentsDrawn(t *testing.T, dsn string) {
	checks(t, dsn)
	l := Open(t, dsn)
	round := 0
	rapid.Check(t, func(t2 *rapid.T) {
		round++
		d := drawTree(t2, Day.AddDate(0, 0, 4*round).Add(22*time.Hour+30*time.Minute))
		for order := range 2 {
			cluster := fmt.Sprintf("p%d-%d-", round, order)
			d.book(t2, t, l, cluster)
			for _, when := range []string{"minutes", "hours", "days"} {
				d.check(t2, t, l, cluster, when)
				if err := l.Fold(t.Context(), d.first.Add(map[string]time.Duration{"minutes": 4 * time.Hour, "hours": 60 * time.Hour, "days": 60 * time.Hour}[when])); err != nil {
					t2.Fatal(err)
				}
			}
		}
	})
	findings, err := l.Check(t.Context())
	if err != nil || len(findings) > 0 {
		t.Errorf("the check reports %q, %v", findings, err)
	}
}

// testExtents: in each pair of meters of which one measures all that the other does, in each order of arrival, the
// machine's use counts once, and each keeps its own rows.
func testExtents(t *testing.T, dsn string) {
	l := Open(t, dsn)
	machine := usage.Extent{Scope: usage.Machine}
	box := usage.Extent{Scope: usage.ScopeOf(50), Ancestors: "0:"} // in a namespace of its own
	in := func(id uint64, above usage.Ancestors) usage.Extent {
		return usage.Extent{Scope: usage.ScopeOf(id), Ancestors: above}
	}
	type meter struct {
		node   string // of jobs if it begins so
		extent usage.Extent
		cpu    int64 // in each minute
	}
	for i, c := range []struct {
		name   string
		meters []meter
		want   int64    // of all, in each minute
		view   []string // some of the nodes
		seen   int64    // in them
	}{
		{"job in machine", []meter{{"agent", machine, 1000}, {"jobs", in(77, "0:50"), 1}}, 1000, []string{"jobs"}, 1},
		{"job of an older version in machine", []meter{{"agent", machine, 1000}, {"jobs", in(77, ""), 1}}, 1000, []string{"jobs"}, 1},
		{"job without a group in machine", []meter{{"agent", machine, 1000}, {"jobs", machine, 1}}, 1000, []string{"jobs"}, 1},
		{"job in container", []meter{{"agent", box, 100}, {"jobs", in(77, "0:60,50"), 1}}, 100, []string{"jobs"}, 1},
		{"job without a group in container", []meter{{"agent", box, 100}, {"jobs", in(50, "0:50"), 1}}, 100, []string{"jobs"}, 1},
		{"job beside container", []meter{{"agent", box, 100}, {"jobs", in(77, "0:60"), 1}}, 101, []string{"agent"}, 100},
		{"jobs in and beside container", []meter{{"agent", box, 100}, {"jobs", in(77, "0:50"), 1}, {"jobs", in(78, "0:60"), 10}}, 110, []string{"jobs"}, 11},
		{"job in job", []meter{{"jobs", in(77, "0:60"), 10}, {"jobs", in(78, "0:77,60"), 1}}, 11, []string{"jobs"}, 11},
		{"job in job of another user", []meter{{"jobs", in(77, "0:60"), 10}, {"jobs2", in(78, "0:77,60"), 1}}, 11, []string{"jobs2"}, 1},
		{"job in job in machine", []meter{{"agent", machine, 1000}, {"jobs", in(77, "0:60"), 10}, {"jobs", in(78, "0:77,60"), 1}}, 1000, []string{"jobs"}, 11},
		{"jobs of one session", []meter{{"jobs", in(60, "0:60"), 10}, {"jobs", in(78, "0:60"), 1}}, 11, []string{"jobs"}, 11},
		{"container in machine", []meter{{"agent", machine, 1000}, {"inside", box, 100}}, 1000, []string{"inside"}, 100},
		{"container of an older version in machine", []meter{{"agent", machine, 1000}, {"inside", in(50, ""), 100}}, 1000, []string{"inside"}, 100},
		{"container in container", []meter{{"agent", box, 100}, {"inside", in(77, "0:50"), 10}}, 100, []string{"inside"}, 10},
		{"agent that saw less for a while", []meter{{"agent", box, 100}, {"agent", in(77, "0:50"), 10}}, 110, []string{"agent"}, 110},
		{"containers", []meter{{"agent", box, 100}, {"inside", in(51, "0:"), 10}}, 110, []string{"inside"}, 10},
		{"job in container in machine", []meter{{"agent", machine, 1000}, {"inside", box, 100}, {"jobs", in(77, "0:50"), 1}}, 1000, []string{"inside", "jobs"}, 100},
		{"job in another hierarchy", []meter{{"agent", box, 100}, {"jobs", in(77, "3:50"), 1}}, 101, []string{"jobs"}, 1},
	} {
		for order := range 2 * len(c.meters) {
			cluster := fmt.Sprintf("%d-%d-", i, order)
			var es []*batch.Entry
			enrolled := map[string]bool{}
			for k, m := range c.meters {
				n := registry.Node{ID: cluster + m.node, Cluster: cluster, Name: cluster + m.node, MachineID: cluster + m.node, At: Day}
				job := m.node == "jobs" || m.node == "jobs2"
				if job {
					n.MachineID = registry.JobsMachineID(n.MachineID)
				}
				if !enrolled[m.node] {
					enrolled[m.node] = true
					if err := l.PutNode(t.Context(), n); err != nil {
						t.Fatal(err)
					}
				}
				// Ten minutes in two windows.
				for half := range int64(2) {
					from, to := half*5*int64(time.Minute), (half+1)*5*int64(time.Minute)
					hash := batch.HashOf(fmt.Append(nil, cluster, k, half))
					e := &batch.Entry{Node: n.ID, Stream: batch.Stream([]byte(hash.String())[:16]), Number: 1, Hash: hash, Boot: cluster, Boottime: 2 * to, Through: Day.Add(time.Duration(to))}
					e.Measured = []batch.Measured{{Boot: cluster, Extent: m.extent, From: from, To: to, Offset: Day.UnixNano()}}
					if job {
						e.Measured[0].Workload = workload.ShortID(k + 1)
					}
					for at := 5 * half; at < 5*half+5; at++ {
						row := batch.Minute{Workload: workload.ShortID(k + 1), Minute: minuteOf(Day) + at, Usage: usage.Usage{Covered: time.Minute}}
						row.Usage.Put(usage.CPU, m.cpu, usage.Measured)
						node := batch.NodeMinute{Minute: row.Minute, Covered: time.Minute}
						node.Skew[slices.Index(usage.Wholes[:], usage.CPU)] = m.cpu
						e.Minutes, e.Nodes = append(e.Minutes, row), append(e.Nodes, node)
					}
					es = append(es, e)
				}
			}
			n := order / 2 * 2 // another meter is first
			es = append(slices.Clone(es[n:]), es[:n]...)
			if order%2 == 0 {
				book(t, l, batch.Accepted, es...)
			} else {
				for _, e := range es {
					book(t, l, batch.Accepted, e)
				}
			}
			var view []string
			for _, n := range c.view {
				view = append(view, cluster+n)
			}
			to := Day.Add(24 * time.Hour)
			if got := cpuOf(t, l, Day, to, cluster); got != fmt.Sprint(10*c.want) {
				t.Errorf("%s, order %d: %s ns, want %d", c.name, order, got, 10*c.want)
			}
			if got := cpuOf(t, l, Day, to, cluster, view...); got != fmt.Sprint(10*c.seen) {
				t.Errorf("%s, order %d: %s ns of %v, want %d", c.name, order, got, c.view, 10*c.seen)
			}
		}
	}
	if findings, err := l.Check(t.Context()); err != nil || len(findings) > 0 {
		t.Errorf("the check reports %q, %v", findings, err)
	}
}

// testExtentMinute: a minute of a job is within the machine as a whole, also what was booked of it before the machine
// measured the job, and another job of the same node was within the machine then.
func testExtentMinute(t *testing.T, dsn string) {
	l := Open(t, dsn)
	for id, machine := range map[string]string{"agent": "m", "jobs": registry.JobsMachineID("m")} {
		if err := l.PutNode(t.Context(), registry.Node{ID: id, Cluster: "c", Name: id, MachineID: machine, At: Day}); err != nil {
			t.Fatal(err)
		}
	}
	for n, c := range []struct {
		node     string
		of       workload.ShortID
		from, to time.Duration // of the minute
		cpu      int64
		want     string
	}{
		{"agent", 1, 30 * time.Second, time.Minute, 1000, "1000"},
		{"jobs", 7, 30 * time.Second, 40 * time.Second, 10, "1000"},
		{"jobs", 8, 0, 10 * time.Second, 1, "1001"},
		{"jobs", 8, 30 * time.Second, 40 * time.Second, 1, "1000"},
	} {
		e := &batch.Entry{Node: c.node, Stream: batch.Stream{byte(n)}, Number: 1, Boot: "b", Boottime: int64(time.Hour), Through: Day.Add(c.to)}
		e.Measured = []batch.Measured{{Boot: "b", Extent: usage.Extent{Scope: usage.Machine}, Workload: c.of, From: int64(c.from), To: int64(c.to), Offset: Day.UnixNano()}}
		row := batch.Minute{Workload: c.of, Minute: minuteOf(Day), Usage: usage.Usage{Covered: c.to - c.from}}
		row.Usage.Put(usage.CPU, c.cpu, usage.Measured)
		e.Minutes = append(e.Minutes, row)
		book(t, l, batch.Accepted, e)
		if got := cpuOf(t, l, Day, Day.Add(time.Hour), "c"); got != c.want {
			t.Errorf("after %d entries: %s ns, want %s", n+1, got, c.want)
		}
	}
}

// testInnerExtentMinute: where an inner meter begins within a minute, the whole minute is within it, also what was
// booked of its earlier part.
func testInnerExtentMinute(t *testing.T, dsn string) {
	l := Open(t, dsn)
	box := usage.Extent{Scope: usage.ScopeOf(50), Ancestors: "0:"}
	inside := usage.Extent{Scope: usage.ScopeOf(77), Ancestors: "0:50"}
	for _, id := range []string{"agent", "box", "inside"} {
		if err := l.PutNode(t.Context(), registry.Node{ID: id, Cluster: "c", Name: id, MachineID: id, At: Day}); err != nil {
			t.Fatal(err)
		}
	}
	for n, c := range []struct {
		node         string
		extent       usage.Extent
		from, to     time.Duration // of the minute
		cpu          int64
		all, without string // in all nodes, and in all but the box
	}{
		{"agent", usage.Extent{Scope: usage.Machine}, 0, time.Minute, 1000, "1000", "1000"},
		{"inside", inside, 0, 10 * time.Second, 1, "1000", "1000"},
		{"box", box, 10 * time.Second, time.Minute, 100, "1000", "1000"},
		{"inside", inside, 10 * time.Second, time.Minute, 10, "1000", "1011"},
	} {
		e := &batch.Entry{Node: c.node, Stream: batch.Stream{byte(n)}, Number: 1, Boot: "b", Boottime: int64(time.Hour), Through: Day.Add(c.to)}
		e.Measured = []batch.Measured{{Boot: "b", Extent: c.extent, From: int64(c.from), To: int64(c.to), Offset: Day.UnixNano()}}
		row := batch.Minute{Workload: 1, Minute: minuteOf(Day), Usage: usage.Usage{Covered: c.to - c.from}}
		row.Usage.Put(usage.CPU, c.cpu, usage.Measured)
		e.Minutes = append(e.Minutes, row)
		book(t, l, batch.Accepted, e)
		if got := cpuOf(t, l, Day, Day.Add(time.Hour), "c"); got != c.all {
			t.Errorf("after %d entries: %s ns, want %s", n+1, got, c.all)
		}
		if got := cpuOf(t, l, Day, Day.Add(time.Hour), "c", "agent", "inside"); got != c.without {
			t.Errorf("after %d entries: %s ns without the box, want %s", n+1, got, c.without)
		}
	}
}

// testOlderExtents: what jobs measured before the ledger knew of which job it was is within the machine as before.
func testOlderExtents(t *testing.T, dsn string) {
	l := Open(t, dsn)
	for id, machine := range map[string]string{"agent": "m", "jobs": registry.JobsMachineID("m")} {
		if err := l.PutNode(t.Context(), registry.Node{ID: id, Cluster: "c", Name: id, MachineID: machine, At: Day}); err != nil {
			t.Fatal(err)
		}
	}
	entry := func(node string, number uint64, cpu int64) *batch.Entry {
		e := &batch.Entry{Node: node, Stream: batch.Stream{node[0]}, Number: number, Boot: "b", Boottime: int64(time.Hour), Through: Day.Add(time.Duration(number) * time.Minute)}
		if e.Hash[0] = byte(number); number > 1 {
			e.Previous[0] = byte(number - 1)
		}
		from := int64(number-1) * int64(time.Minute)
		e.Measured = []batch.Measured{{Boot: "b", Extent: usage.Extent{Scope: usage.Machine}, From: from, To: from + int64(time.Minute), Offset: Day.UnixNano()}}
		row := batch.Minute{Workload: 1, Minute: minuteOf(Day) + int64(number) - 1, Usage: usage.Usage{Covered: time.Minute}}
		row.Usage.Put(usage.CPU, cpu, usage.Measured)
		e.Minutes = append(e.Minutes, row)
		return e
	}
	book(t, l, batch.Accepted, entry("jobs", 1, 1))
	closeLedger(t, l)
	db := DB(t, dsn)
	UndoMigrations(t, db, 17)
	if _, err := db.ExecContext(t.Context(), "INSERT INTO inner_range (node, boot, from_ns, to_ns, offset_ns, taken_ns) SELECT id, 'b', 0, $1, $2, $3 FROM node WHERE node_id = 'jobs'",
		int64(time.Minute), Day.UnixNano(), time.Now().UnixNano()); err != nil {
		t.Fatal(err)
	}
	l = Open(t, dsn)
	for n, want := range []string{"1", "100", "110", "200"} {
		switch n {
		case 1:
			book(t, l, batch.Accepted, entry("agent", 1, 100))
		case 2:
			book(t, l, batch.Accepted, entry("jobs", 2, 10))
		case 3:
			book(t, l, batch.Accepted, entry("agent", 2, 100))
		}
		if got := cpuOf(t, l, Day, Day.Add(time.Hour), "c"); got != want {
			t.Errorf("after %d entries: %s ns, want %s", n, got, want)
		}
	}
}
