package tsdb

import "mete.dev/mete/internal/model/usage"

// A gap is a part of a stretch that is filled in: between two samples with edges
// between them, or until a series ends.
type gap struct {
	res         usage.Resource
	open, ends  bool  // there is a value where it begins, and where it ends
	early, late bool  // of the stretch, where the gap is at its beginning or its end
	from, to    int64 // ms since 1970 of both values
	va, vb      int64
	first, last int64 // minutes that it touches

	cut    bool  // it begins within its first minute, ...
	head   int64 // ... of which this is left for it
	tail   int64 // the same of the last one, where it ends in it
	shared bool  // together with the head of the next gap

	sum        int64 // used in it
	begin, end int64 // minutes of the first and the last use; 0 is none

	base  int64 // value where it begins
	cross int64 // how much of sum the old life uses, where another one follows it; else never
	run   int64 // used so far
}

// use adds what is used in a minute.
func (g *gap) use(m, v int64) {
	if v == 0 {
		return
	}
	if g.sum += v; g.begin == 0 {
		g.begin = m
	}
	g.begin, g.end = min(g.begin, m), max(g.end, m)
}

// plan finds out how the value runs. reborn says that others of the workload began
// anew.
func (g *gap) plan(reborn bool) {
	g.base, g.cross = g.va, never
	more := g.more()
	switch {
	case !g.ends:
	case !g.open && more <= 0:
		g.base = -more
	case more <= g.inexact():
		// What was used and is not booked yet follows at the end.
	case g.open && g.vb >= g.va && domain(g.res) && !reborn:
		// Meters outside the machine showed more to the ledger.
	case g.sum >= g.vb:
		g.cross = g.sum - g.vb
	case g.vb < g.va:
		g.cross = 0
	}
}

// more is by how much more was used than the value grows where the life goes on.
func (g *gap) more() int64 { return g.va + g.sum - g.vb }

func (g *gap) inexact() int64 { return inexact(max(g.va, g.vb)) }

// reborn says whether it can only be that another life began in it.
func (g *gap) reborn() bool { return g.open && g.ends && !domain(g.res) && g.more() > g.inexact() }

// value is what it shows after what was used so far.
func (g *gap) value() int64 {
	v := g.base + g.run
	if g.run > g.cross {
		v = g.run - g.cross
	}
	if g.ends && (g.run > g.cross || g.cross == never) {
		v = min(v, g.vb) // it is not passed
	}
	return v
}

// add takes what is used in a minute, in their order, to show it. Where another life
// begins in it, turns is true: then the old one ends with a value at an instant.
func (g *gap) add(m, v int64) (at, last int64, turns bool) {
	if m < g.first || m > g.last {
		return 0, 0, false
	}
	// Of a minute there may be several rows.
	switch {
	case m == g.first && g.cut:
		v = min(v, g.head)
		g.head -= v
	case m == g.last && g.ends:
		v = min(v, g.tail)
		g.tail -= v
	case m == g.last:
		return 0, 0, false
	}
	was := g.run
	g.run += v
	// Of the last minute no edge shows what the old life used, where that is all.
	over := g.run > g.cross || g.run == g.cross && m == g.last
	if was > g.cross || !over || v == 0 || g.base+g.cross == 0 {
		return 0, 0, false
	}
	from, to := max(m*minute, g.from), min((m+1)*minute, g.to)
	at = from + (to-from)/2
	return at, g.base + g.cross, at > from && at+1 < to
}

// holds reports whether it has a sample of its own at an edge.
func (g *gap) holds(edge int64) bool {
	at := edge * minute
	switch {
	case at < g.from, at > g.to, !g.open && (g.begin == 0 || edge < g.begin):
		return false
	case at == g.from && g.open:
		return g.early
	case at == g.to && g.ends:
		return g.late
	}
	return g.ends || edge <= g.end+1
}

// domain says whether a resource is energy that others may add to.
func domain(r usage.Resource) bool {
	for _, e := range usage.Energies {
		if r == e {
			return true
		}
	}
	return r == usage.EnergyError
}
