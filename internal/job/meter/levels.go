package meter

import (
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// levels are what a job holds, as opposed to what it has used, and the marks of their peaks; 0 is none.
var levels = [...]struct{ level, mark usage.Resource }{
	{usage.Memory, usage.MemoryPeak}, {usage.MemoryAnon, 0}, {usage.MemoryFile, 0}, {usage.PIDs, usage.PIDsPeak},
}

var levelSet = usage.SetOf(usage.Memory, usage.MemoryAnon, usage.MemoryFile, usage.PIDs)

// levelSums integrates levels that are sampled more often than the accounts tick, so that averages and
// peaks are right for a job of 50 ms too.
type levelSums struct {
	at          int64 // of the latest sample, ns of CLOCK_BOOTTIME; before the first, the start of the job
	seen        usage.Set
	apportioned usage.Set
	of          [len(levels)]levelSum
}

type levelSum struct {
	last, highest int64
	rest          unit.Integral
	held          int64 // since the last reset
}

// add adds a sample. A level begins with its first sample, and changes linearly between two; one
// that the sample lacks stays.
func (s *levelSums) add(r *usage.Reading, at int64) {
	span := max(0, at-s.at)
	for i := range levels {
		l, res := &s.of[i], levels[i].level
		from, to := l.last, l.last
		if r.Has.Has(res) {
			to = r.Value[res]
			if !s.seen.Has(res) {
				from = to
			}
			s.seen |= usage.SetOf(res)
			s.apportioned |= r.Apportioned & usage.SetOf(res)
		}
		l.held += l.rest.Add(from, to, span)
		l.last, l.highest = to, max(l.highest, to)
	}
	s.at = max(s.at, at)
}

// hold extends the last sample to a time. A job's levels drop as it ends, so interpolation to what
// remains would be too low.
func (s *levelSums) hold(at int64) { s.add(&usage.Reading{}, at) }

// put gives a group its levels: the last ones, their integrals, and marks where the kernel has none.
func (s *levelSums) put(g *usage.Group) {
	g.Held = map[usage.Resource]int64{}
	for i := range levels {
		res, mark := levels[i].level, levels[i].mark
		if !s.seen.Has(res) {
			continue
		}
		g.Put(res, s.of[i].last)
		g.Held[res] = s.of[i].held
		if mark != 0 && !g.Has.Has(mark) {
			g.Put(mark, s.of[i].highest)
		}
	}
	g.Apportioned |= s.apportioned
}

// reset begins new integrals.
func (s *levelSums) reset() {
	for i := range s.of {
		s.of[i].held = 0
	}
}

// peak returns the highest sample.
func (s *levelSums) peak(res usage.Resource) int64 {
	for i := range levels {
		if levels[i].level == res {
			return s.of[i].highest
		}
	}
	return 0
}
