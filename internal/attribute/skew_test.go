package attribute_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestEndsReadTooEarly checks two nested groups that end after the lower one used 50 ns between
// their readings: what was booked to the lower one is not booked above.
func TestEndsReadTooEarly(t *testing.T) {
	unseen := func(g *usage.Group) { g.Exact = false }
	for _, how := range []string{"shown as ended", "not shown", "shown without a reading", "only the upper one shown", "the meter away"} {
		t.Run(how, func(t *testing.T) {
			s := newScenario(t)
			groups := []namedGroup{{name: "top", life: 5, cpu: 1000}, {name: "up", up: "top", life: 6, cpu: 500}, {name: "low", up: "up", life: 7, cpu: 200}}
			s.tick(10*second, 9000, groups...)
			groups[0].cpu, groups[1].cpu, groups[2].cpu = 1100, 600, 350
			s.tick(11*second, 9100, groups...)
			booked := map[string]int64{}
			count := func() {
				for _, r := range s.w.Rows {
					booked[r.Workload.Name] += r.Usage.Amount[usage.CPU]
				}
			}
			if how == "the meter away" {
				s.restart()
				count()
			}
			groups[0].cpu = 1150
			switch how {
			case "shown as ended":
				groups[1].final, groups[1].also = true, unseen
				groups[2].final, groups[2].also = true, unseen
			case "shown without a reading":
				groups[1].final, groups[1].cpu = true, -1
				groups[2].final, groups[2].cpu = true, -1
			case "only the upper one shown":
				groups = groups[:2]
				groups[1].final, groups[1].also = true, unseen
			default:
				groups = groups[:1]
			}
			s.tick(12*second, 9150, groups...)
			s.tick(13*second, 9150, groups[0])
			s.close()
			count()
			if booked["low"] != 150 || booked["up"] != 0 || booked["top"] != 0 {
				t.Errorf("booked %v, want 150 ns to low", booked)
			}
		})
	}
}

// A grove is a tree of groups read one after another, parents first, while leaves run. Other groups
// use nothing, so any use booked to them is an error or comes from groups that ended unseen.
type grove struct {
	t      *rapid.T
	groups []*twig // parents before children
	lives  uint64
	now    int64
	fresh  bool // the agent has just started
}

type twig struct {
	path     string
	parent   *twig
	life     uint64
	cpu      int64 // with all below, dead ones too
	shown    int64 // at the latest reading; -1 before
	dead     bool
	end      end
	constant bool
}

// An end is how the end of a group is shown.
type end int

const (
	exact  end = iota
	stale      // with its previous reading
	blank      // without a reading
	hidden     // not at all, nor those below
)

func (g *grove) add(parent *twig, name string) *twig {
	g.lives++
	w := &twig{path: name, parent: parent, life: g.lives, shown: -1}
	if parent != nil {
		w.path = parent.path + "/" + name
	}
	g.groups = append(g.groups, w)
	return w
}

func (g *grove) leaf(w *twig) bool {
	return !w.dead && !slices.ContainsFunc(g.groups, func(o *twig) bool { return o.parent == w && !o.dead })
}

// use has some of the groups use CPU time.
func (g *grove) use() {
	for _, w := range g.groups {
		if !g.leaf(w) || w.constant || rapid.IntRange(0, 2).Draw(g.t, "uses") > 0 {
			continue
		}
		for ns := rapid.Int64Range(1, 100).Draw(g.t, "ns"); w != nil; w = w.parent {
			w.cpu += ns
		}
	}
}

// step lets groups be born, run and end.
func (g *grove) step() {
	g.now += second
	for range rapid.IntRange(0, 2).Draw(g.t, "births") {
		p := g.groups[rapid.IntRange(1, len(g.groups)-1).Draw(g.t, "parent")]
		if len(g.groups) < 12 && !p.dead {
			g.add(p, fmt.Sprintf("g%d", g.lives))
		}
	}
	g.use()
	for _, w := range slices.Backward(g.groups) {
		if g.leaf(w) && !w.constant && rapid.IntRange(0, 3).Draw(g.t, "dies") == 0 {
			w.dead, w.end = true, end(rapid.IntRange(0, 3).Draw(g.t, "end"))
			if w.end == hidden && slices.ContainsFunc(g.groups, func(o *twig) bool { return o.parent == w && o.end != hidden }) {
				w.end = exact
			}
		}
	}
}

// show returns a snapshot, taken while the groups run unless it is calm. Ends are seen or not.
func (g *grove) show(calm bool) *usage.Snapshot {
	s := &usage.Snapshot{Boot: "b", At: g.now, Mono: g.now, Node: usage.Node{CPUs: 4, MemTotal: 1 << 30, MemFree: 1 << 29}}
	slots := map[*twig]usage.Slot{nil: usage.NoSlot}
	for _, w := range g.groups {
		up := w.parent
		for _, shown := slots[up]; !shown; _, shown = slots[up] {
			up = up.parent
		}
		r := &usage.Group{Slot: usage.Slot(w.life - 1), Parent: slots[up], MemoryParent: slots[up], Final: w.dead, New: g.fresh || w.shown < 0,
			Born: !g.fresh && w.shown < 0, Life: workload.Life{ID: w.life}, Workload: workload.Workload{ID: workload.ID(w.path), Name: w.path}}
		v := w.cpu
		switch {
		case w.dead && w.end == hidden:
			continue
		case w.dead && w.end == stale && w.shown >= 0 && !g.fresh:
			v = w.shown
		case w.dead && w.end == exact:
			r.Exact = true
		}
		slots[w] = r.Slot
		if !w.dead || r.Exact || v == w.shown && w.end == stale {
			r.Put(usage.CPU, v)
			w.shown = v
		}
		s.Groups = append(s.Groups, r)
		if !calm {
			g.use()
		}
	}
	g.groups = slices.DeleteFunc(g.groups, func(w *twig) bool { return w.dead })
	g.fresh = false
	return s
}

// TestReadOneAfterTheOther checks sequential reads of running groups, with unseen ends and
// restarts: once all are read at rest, each group that existed all the time has, with its
// descendants, what its counter gained.
func TestReadOneAfterTheOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := &grove{t: t}
		root := g.add(nil, "root")
		for i := range 2 {
			g.add(g.add(root, fmt.Sprintf("a%d", i)), "b")
		}
		constant := slices.Clone(g.groups)
		for _, w := range constant {
			w.constant = true
		}
		acc := attribute.New("n")
		var v recordLog
		var w usage.Window
		booked := map[string]int64{}
		acc.Tick(g.show(true))
		for range rapid.IntRange(1, 12).Draw(t, "ticks") {
			g.step()
			acc.Tick(g.show(false))
			acc.CloseWindow(&w)
			for _, r := range w.Rows {
				booked[r.Workload.Name] += r.Usage.Amount[usage.CPU]
			}
			v.save(acc, false)
			if rapid.IntRange(0, 3).Draw(t, "restart") == 0 {
				acc, g.fresh = v.restore(t), true
			}
		}
		g.now += second
		acc.Tick(g.show(true))
		acc.CloseWindow(&w)
		for _, r := range w.Rows {
			booked[r.Workload.Name] += r.Usage.Amount[usage.CPU]
		}
		for _, c := range constant {
			got := int64(0)
			for name, ns := range booked {
				if name == c.path || strings.HasPrefix(name, c.path+"/") {
					got += ns
				}
			}
			if got != c.cpu {
				t.Errorf("%s: booked %d ns with all below, its counter gained %d", c.path, got, c.cpu)
			}
		}
	})
}
