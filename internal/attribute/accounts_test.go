package attribute_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A machine is a simulated tree of groups that knows the true use of each.
type machine struct {
	t      *rapid.T
	groups []*sim // by slot; nil where free
	ended  []*sim
	nextID uint64
	now    int64
	cpus   int
	steal  int64
	disk   int64 // written by all
}

type sim struct {
	name   string
	slot   usage.Slot
	parent *sim
	id     uint64
	own    int64 // CPU ns used by itself alone
	below  int64 // of all descendants, ended ones included
	disk   int64
	disk0  int64 // when it was first shown and there before
	mem    int64 // own level
	shown  bool
	seen   int64 // own CPU when it was first shown and there before
	dead   bool
	born   bool
	past   int64 // used by groups below before they were seen, late
}

func (m *machine) add(parent *sim, born bool) *sim {
	slot := len(m.groups)
	for i, g := range m.groups {
		if g == nil {
			slot = i
			break
		}
	}
	if slot == len(m.groups) {
		m.groups = append(m.groups, nil)
	}
	m.nextID++
	g := &sim{name: fmt.Sprintf("g%d", m.nextID), slot: usage.Slot(slot), parent: parent, id: m.nextID, born: born}
	m.groups[slot] = g
	return g
}

func (m *machine) use(g *sim, cpu, disk int64) {
	g.own += cpu
	g.disk += disk
	m.disk += disk
	for p := g.parent; p != nil; p = p.parent {
		p.below += cpu
	}
}

// alive lists the groups, parents first.
func (m *machine) alive() (out []*sim) {
	depth := func(g *sim) (d int) {
		for ; g.parent != nil; g = g.parent {
			d++
		}
		return d
	}
	for d := 0; ; d++ {
		n := len(out)
		for _, g := range m.groups {
			if g != nil && depth(g) == d {
				out = append(out, g)
			}
		}
		if len(out) == n {
			return out
		}
	}
}

func (m *machine) memory() (sum int64) {
	for _, g := range m.groups {
		if g != nil && g.parent != nil {
			sum += g.mem
		}
	}
	return sum
}

func (m *machine) snapshot(busy func(*sim)) *usage.Snapshot {
	s := &usage.Snapshot{Boot: "b", At: m.now, Mono: m.now}
	s.Node = usage.Node{CPUs: m.cpus, Steal: m.steal, MemTotal: 1 << 34, MemFree: 1<<34 - m.memory() - 1<<30}
	s.Node.Total.Put(usage.DiskWritten, m.disk)
	var fresh []*sim // there before they were seen
	for _, g := range m.alive() {
		r := &usage.Group{Slot: g.slot, Parent: usage.NoSlot, Life: workload.Life{ID: g.id},
			Workload: workload.Workload{ID: workload.ID(g.name), Kind: workload.Path, Name: g.name},
			New:      !g.shown, Born: g.born, Final: g.dead, Exact: true}
		if g.parent != nil {
			r.Parent, r.MemoryParent = g.parent.slot, g.parent.slot
			mem := g.mem
			for _, c := range m.groups {
				if c != nil && below(c, g) {
					mem += c.mem
				}
			}
			r.Put(usage.Memory, mem)
			r.Put(usage.DiskWritten, g.disk)
			r.Own |= usage.SetOf(usage.DiskWritten)
		}
		r.Put(usage.CPU, g.own+g.below)
		if !g.shown && !g.isKnown() {
			g.seen, g.disk0 = g.own, g.disk
			up := g.parent
			for ; up != nil && !up.shown; up = up.parent {
			}
			if up != nil {
				up.past += g.own
			}
			fresh = append(fresh, g)
		} else {
			g.shown = true
		}
		s.Groups = append(s.Groups, r)
		if busy != nil {
			busy(g) // the machine runs while it is read
		}
	}
	for _, g := range fresh {
		g.shown = true
	}
	for i, g := range m.groups {
		if g != nil && g.dead {
			m.groups[i] = nil
			m.ended = append(m.ended, g)
		}
	}
	return s
}

func below(g, top *sim) bool {
	for p := g.parent; p != nil; p = p.parent {
		if p == top {
			return true
		}
	}
	return false
}

// isKnown reports whether everything that g ever used falls into observed ticks: it was born
// observed, and so were all groups above it up to one shown before.
func (g *sim) isKnown() bool {
	return g.born && (g.parent == nil || g.parent.shown || g.parent.isKnown())
}

func (g *sim) leaf(m *machine) bool {
	for _, c := range m.groups {
		if c != nil && c.parent == g {
			return false
		}
	}
	return true
}

// step simulates some time.
func (m *machine) step() {
	t := m.t
	span := rapid.Int64Range(1e6, 3e9).Draw(t, "span")
	m.now += span
	left := span * int64(m.cpus)
	stolen := rapid.Int64Range(0, left/10).Draw(t, "steal")
	m.steal += stolen
	left -= stolen
	for range rapid.IntRange(0, 4).Draw(t, "births") {
		if len(m.groups) < 30 {
			live := m.alive()
			p := live[rapid.IntRange(0, len(live)-1).Draw(t, "parent")]
			if !p.dead {
				m.add(p, rapid.IntRange(0, 3).Draw(t, "seen late") > 0)
			}
		}
	}
	for _, g := range m.alive() {
		cpu := rapid.Int64Range(0, left).Draw(t, "cpu")
		left -= cpu
		m.use(g, cpu, rapid.Int64Range(0, 1<<20).Draw(t, "disk"))
		g.mem = rapid.Int64Range(0, 1<<28).Draw(t, "mem")
		if g.parent != nil && g.leaf(m) && rapid.IntRange(0, 4).Draw(t, "dies") == 0 {
			g.dead = true
		}
	}
}

// TestAccountsGiveEachItsOwn checks that every workload is booked exactly what it used since it was
// first seen, and that the parts sum to the whole in integers, whatever groups are born, run and
// end.
func TestAccountsGiveEachItsOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{t: t, cpus: rapid.IntRange(1, 8).Draw(t, "cpus"), now: 1e9}
		root := m.add(nil, false)
		m.use(root, 5e9, 0)
		for range rapid.IntRange(0, 6).Draw(t, "groups") {
			live := m.alive()
			g := m.add(live[rapid.IntRange(0, len(live)-1).Draw(t, "parent")], false)
			m.use(g, rapid.Int64Range(0, 1e9).Draw(t, "past"), 7)
		}
		acc := attribute.New("n")
		booked := map[string]int64{}
		disk := map[string]int64{}
		var w usage.Window
		acc.Tick(m.snapshot(nil))
		for _, g := range m.groups {
			if g != nil {
				g.past = 0
			}
		}
		lives := map[string]*sim{}
		for range rapid.IntRange(1, 20).Draw(t, "ticks") {
			m.step()
			for _, g := range m.groups {
				if g != nil {
					lives[g.name] = g
				}
			}
			bal := acc.Tick(m.snapshot(nil))
			for _, r := range usage.Wholes {
				if !bal.IsBalanced(r) {
					t.Fatalf("tick: parts of %v do not sum to the whole: %+v", r, bal)
				}
			}
			if bal.Skew != (usage.Shares{}) {
				t.Fatalf("skew %v on an instantaneous snapshot", bal.Skew)
			}
			if rapid.Bool().Draw(t, "close") {
				collect(t, acc, &w, booked, disk)
			}
		}
		collect(t, acc, &w, booked, disk)
		for name, g := range lives {
			if g.parent == nil {
				name = "g1"
			}
			if want := g.own - g.seen + g.past; booked[name] != want {
				t.Errorf("%s: booked %d ns of CPU, want %d", name, booked[name], want)
			}
			if want := g.disk - g.disk0; g.parent != nil && disk[name] != want {
				t.Errorf("%s: booked %d bytes of disk, want %d", name, disk[name], want)
			}
		}
	})
}

func collect(t *rapid.T, acc *attribute.Accounts, w *usage.Window, cpu, disk map[string]int64) {
	start := w.End
	acc.CloseWindow(w)
	if w.Balance.Violations != 0 {
		t.Fatalf("window: %d violations: %+v", w.Balance.Violations, w.Balance)
	}
	if start != 0 && w.Start != start {
		t.Fatalf("window starts at %d, the previous one ended at %d", w.Start, start)
	}
	for _, r := range w.Rows {
		cpu[r.Workload.Name] += r.Usage.Amount[usage.CPU]
		disk[r.Workload.Name] += r.Usage.Amount[usage.DiskWritten]
	}
}

// TestAccountsBearSkew reads the machine while it runs: parents are read before their children use
// more. No tick may book a negative amount, the parts must sum to the whole, and in the end no
// group may be booked more than a tick's skew too much.
func TestAccountsBearSkew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{t: t, cpus: 4, now: 1e9}
		root := m.add(nil, false)
		for range rapid.IntRange(1, 8).Draw(t, "groups") {
			live := m.alive()
			m.add(live[rapid.IntRange(0, len(live)-1).Draw(t, "parent")], false)
		}
		_ = root
		const most = 20_000 // ns used while one group is read
		busy := func(g *sim) {
			if !g.dead {
				m.use(g, rapid.Int64Range(0, most).Draw(t, "meanwhile"), 0)
			}
		}
		acc := attribute.New("n")
		var w usage.Window
		booked, disk := map[string]int64{}, map[string]int64{}
		acc.Tick(m.snapshot(busy))
		for _, g := range m.groups {
			g.past = 0
		}
		lives := map[string]*sim{}
		for range rapid.IntRange(1, 12).Draw(t, "ticks") {
			m.step()
			for _, g := range m.groups {
				if g != nil {
					lives[g.name] = g
				}
			}
			bal := acc.Tick(m.snapshot(busy))
			for _, r := range usage.Wholes {
				if !bal.IsBalanced(r) {
					t.Fatalf("parts of %v do not sum to the whole: %+v", r, bal)
				}
			}
		}
		collect(t, acc, &w, booked, disk)
		for name, g := range lives {
			// Every group read in the same tick may have run once since.
			if got, want := booked[name], g.own-g.seen+g.past; got < want-40*most || got > want+40*most {
				t.Errorf("%s: booked %d ns, used %d, skew at most %d", name, got, want, 40*most)
			}
		}
	})
}
