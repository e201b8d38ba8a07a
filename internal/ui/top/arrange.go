package top

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/x/text"
)

// Arrange orders the workloads of m. Idle is always last.
func Arrange(m *live.Machine, o Options) *Table {
	f := newForest(m, o.Filter)
	t := &Table{Count: len(m.Rows), fleet: m.Fleet}
	for i := range f.nodes {
		t.Total = t.Total.Plus(&f.nodes[i].own)
	}
	t.Differs = differs(m, &t.Total)
	f.prune(o, m)
	if o.Flat {
		f.list(t, o)
	} else {
		f.sort(f.roots, o)
		for i, n := range f.roots {
			f.draw(t, o, n, "", i == len(f.roots)-1, true)
		}
	}
	for i := range t.Rows {
		t.longest = max(t.longest, t.Rows[i].cells())
	}
	for i := range f.nodes {
		if n := &f.nodes[i]; !n.shown {
			t.Rest = t.Rest.Plus(&n.own)
			if n.row.Group == "" {
				t.RestCount++
			}
		}
	}
	return t
}

// Uses returns the figures of each row of m: its own, but those of a machine or cluster of a fleet
// are the sums that a table shows, as it has none of its own.
func Uses(m *live.Machine) []live.Figures {
	out := make([]live.Figures, len(m.Rows))
	if m.Fleet == nil {
		for i := range m.Rows {
			out[i] = m.Rows[i].Figures()
		}
		return out
	}
	for i, n := range newForest(m, "").nodes {
		out[i] = n.own
		if n.row.Group != "" {
			out[i] = n.sum
		}
	}
	return out
}

// A node is a workload in a forest.
type node struct {
	row      *live.Row
	label    string // in the list
	short    string // in the tree
	own, sum live.Figures
	free     live.Figures // unused CPU and memory, here and below
	kids     []int
	below    int
	match    bool // itself or an ancestor matches
	keep     bool // to be shown
	shown    bool // its own figures are in some row
}

type forest struct {
	nodes []node
	roots []int
}

// newForest builds the forest. A parent precedes its children; a row whose parent does not
// becomes a root, so that no row is lost and no cycle forms.
func newForest(m *live.Machine, filter string) *forest {
	f := &forest{nodes: make([]node, len(m.Rows))}
	filter = strings.ToLower(filter)
	parents := make([]int, len(m.Rows))
	seen := make(map[workload.ID]int, len(m.Rows))
	for i := range m.Rows {
		r := &m.Rows[i]
		n := node{row: r, label: Label(r), own: r.Figures()}
		n.sum = n.own
		if r.Kind == workload.Idle {
			n.free[live.CPU], n.free[live.Memory] = n.own[live.CPU], n.own[live.Memory]
		}
		n.match = filter == "" || matches(r, n.label, filter)
		p, ok := seen[r.Parent]
		if r.Parent == "" || !ok {
			p = -1
		}
		n.short = n.label
		if p >= 0 && r.Name == r.Path {
			// Only its path is known, whose beginning is the parent's name.
			n.short = text.Clean(strings.TrimPrefix(r.Name, m.Rows[p].Path+"/"))
		}
		if n.short == "" {
			n.short = n.label
		}
		if parents[i] = p; p < 0 {
			f.roots = append(f.roots, i)
		} else {
			f.nodes[p].kids = append(f.nodes[p].kids, i)
		}
		if _, twice := seen[r.ID]; !twice {
			seen[r.ID] = i
		}
		f.nodes[i] = n
	}
	for i := len(m.Rows) - 1; i >= 0; i-- {
		if p := parents[i]; p >= 0 {
			n, up := &f.nodes[i], &f.nodes[p]
			up.sum = up.sum.Plus(&n.sum)
			up.free = up.free.Plus(&n.free)
			up.below += n.below + 1
		}
	}
	for i := range f.nodes {
		if n := &f.nodes[i]; n.row.Group != "" {
			// Unused CPU and memory do not count as activity.
			n.sum[live.CPU].Value -= n.free[live.CPU].Value
			n.sum[live.Memory].Value -= n.free[live.Memory].Value
		}
	}
	return f
}

func matches(r *live.Row, label, filter string) bool {
	for _, s := range []string{label, r.Name, r.Path, kindOf(r), r.Node, r.State} {
		if strings.Contains(strings.ToLower(s), filter) {
			return true
		}
	}
	return false
}

// prune selects the nodes to keep: those that match, their descendants and, in a tree,
// their ancestors.
func (f *forest) prune(o Options, m *live.Machine) {
	shown := func(n *node) bool {
		return !o.HideIdle || IsBusy(m, &n.own) || residual(n.row) || o.Recent[n.row.ID]
	}
	var visit func(n *node, above bool) bool
	visit = func(n *node, above bool) bool {
		within := n.match || above
		n.keep = within && shown(n)
		any := n.keep
		for _, k := range n.kids {
			if visit(&f.nodes[k], within) {
				any = true
			}
		}
		if !o.Flat {
			n.keep = any
		}
		return any
	}
	for _, i := range f.roots {
		visit(&f.nodes[i], false)
	}
}

// list fills t with every kept workload at one level.
func (f *forest) list(t *Table, o Options) {
	var all []int
	for i := range f.nodes {
		n := &f.nodes[i]
		n.sum = n.own // order a list by the displayed figures
		if n.row.Group != "" {
			n.shown = true // it has no figures of its own
			continue
		}
		if n.row.Node != "" {
			n.label = text.Clean(n.row.Node) + ": " + n.label
		}
		if n.keep {
			all = append(all, i)
		}
	}
	f.sort(all, o)
	for _, i := range all {
		n := &f.nodes[i]
		n.shown = true
		t.Rows = append(t.Rows, Row{Row: n.row, Label: n.label, Figures: n.own, Match: n.match})
	}
}

// draw appends the row of a workload and its descendants. before is the branch drawing that
// its children inherit.
func (f *forest) draw(t *Table, o Options, i int, before string, last, root bool) {
	n := &f.nodes[i]
	if !n.keep {
		return
	}
	row := Row{Row: n.row, Label: n.short, Figures: n.own, Below: n.below, Match: n.match}
	inherit := ""
	if !root {
		g := glyphsOf(o)
		row.Branch, inherit = before+g.branch, before+g.trunk
		if last {
			row.Branch, inherit = before+g.corner, before+g.blank
		}
	}
	n.shown = true
	row.Folded = o.Folded[n.row.ID] && o.Filter == "" && len(n.kids) > 0
	if row.Folded || o.Sums || n.row.Group != "" {
		row.Figures = n.sum
	}
	t.Rows = append(t.Rows, row)
	if row.Folded {
		f.cover(n)
		return
	}
	kids := slices.DeleteFunc(slices.Clone(n.kids), func(k int) bool { return !f.nodes[k].keep })
	f.sort(kids, o)
	for j, k := range kids {
		f.draw(t, o, k, inherit, j == len(kids)-1, false)
	}
}

// cover marks all descendants of n as shown: their figures are in its row.
func (f *forest) cover(n *node) {
	for _, k := range n.kids {
		f.nodes[k].shown = true
		f.cover(&f.nodes[k])
	}
}

// sort orders siblings by their subtrees, then by name, then by their input order.
func (f *forest) sort(idx []int, o Options) {
	slices.SortStableFunc(idx, func(i, j int) int {
		a, b := &f.nodes[i], &f.nodes[j]
		if ia, ib := a.row.Kind == workload.Idle, b.row.Kind == workload.Idle; ia || ib {
			return cmp.Compare(index(ia), index(ib)) // idle comes last
		}
		order := cmp.Or(compare(a, b, o.Sort), cmp.Compare(a.label, b.label))
		if o.Reverse {
			return -order
		}
		return order
	})
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

func compare(a, b *node, s Sort) int {
	if s == ByName {
		return 0 // use the tie breaker
	}
	return cmp.Compare(key(&b.sum, s), key(&a.sum, s))
}

// key returns the value to sort a row by; absent is below zero.
func key(a *live.Figures, s Sort) float64 {
	var v live.Figure
	switch s {
	case ByMemory:
		v = a[live.Memory]
	case ByDisk:
		v = a.Disk()
	case ByNetwork:
		v = a.Network()
	case ByPIDs:
		v = a[live.PIDs]
	case ByPower:
		v = a[live.Power]
	case ByPressure:
		v, _ = worst(a)
	default:
		v = a[live.CPU]
	}
	if v.Quality == usage.Absent || math.IsNaN(v.Value) {
		return math.Inf(-1)
	}
	return v.Value
}

// differs names the resources that do not sum to the machine's capacity. Figures are
// floating-point numbers, so it tolerates a thousandth of a percent; the balance has the
// exact check.
func differs(m *live.Machine, total *live.Figures) (names []string) {
	check := func(name string, sum live.Figure, whole float64) {
		if sum.Quality != usage.Absent && math.Abs(sum.Value-whole) > 1e-5*math.Abs(whole)+1e-6 {
			names = append(names, name)
		}
	}
	skew := 0.0 // of readings at different instants: see usage.Balance
	if m.Tick > 0 {
		skew = float64(m.Balance.Skew.Get(usage.CPU)) / float64(m.Tick)
	}
	check("cpu", total[live.CPU], m.CPU.Whole+skew)
	check("memory", total[live.Memory], float64(m.Memory.Whole+m.Memory.Skew))
	if m.Energy != nil {
		check("power", total[live.Power], m.Energy.Watts)
	}
	return names
}

// Shown returns a copy of m with only the displayed workloads, in the order of the table;
// its totals remain those of the machine.
func (t *Table) Shown(m *live.Machine) *live.Machine {
	out := *m
	out.Rows = make([]live.Row, 0, len(t.Rows))
	for i := range t.Rows {
		out.Rows = append(out.Rows, *t.Rows[i].Row)
	}
	return &out
}
