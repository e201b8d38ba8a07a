package read

import (
	"fmt"
	"slices"
	"time"

	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// An adding adds slabs to the groups of a question.
type adding struct {
	*selection
	groups *groups
	roll   *roll
	pages  map[int64]*[rollPage]belonging
	row    []*group // of the slab at hand; nil is not asked for
	guests guestDays
}

// A belonging is where a workload belongs.
type belonging struct {
	known bool
	node  int64
	kin   *kin
	group *group // once it has a row
}

// scan adds the rows of stretches.
func (s *selection) scan(stretches []schema.Range, gs *groups) error {
	ids, err := s.chosen(stretches)
	if err != nil {
		return err
	}
	r, err := s.rd.cache.rolls.of(s)
	if err != nil {
		return err
	}
	if r, err = r.refresh(s.v); err != nil {
		return err
	}
	a := &adding{selection: s, groups: gs, roll: r, pages: map[int64]*[rollPage]belonging{}, guests: guestDays{selection: s}}
	if s.nest.only && len(s.nest.out) == 0 {
		return nil
	}
	return s.rd.gather(s.v, usageSlab, s.want, stretches, len(s.nest.out) > 0, ids, a.add)
}

// maxChosen is how many rows are looked up one by one, rather than read with all
// others: each costs as much as some that are read on their way, and what was read
// is kept.
const maxChosen = 20_000

// looking is how many workloads can be looked at, to choose among them, for what it
// costs to read a row.
const looking = 8

// chosen are the workloads that filters choose, where they have few rows; nil is
// that all are to be read.
func (s *selection) chosen(stretches []schema.Range) ([]int64, error) {
	if s.where == "" {
		return nil, nil
	}
	if few, err := s.few(stretches); few || err != nil {
		return nil, err
	}
	var units int64
	for _, p := range stretches {
		units += p.Len()
	}
	most := maxChosen / units
	ids, err := db.Ints(s.v.Ctx, s.v.SQL, fmt.Sprintf("SELECT w.id FROM workload w JOIN node n ON n.id = w.node%s WHERE true%s LIMIT %d", s.joins, s.where, most+1), s.args...)
	if err != nil || int64(len(ids)) > most {
		return nil, err
	}
	return append([]int64{}, ids...), nil
}

// few says that to read all rows of stretches costs less than to look at all workloads
// that there ever were. In each stretch it is the rows of one minute, hour or day that
// are counted.
func (s *selection) few(stretches []schema.Range) (bool, error) {
	var left int64
	if err := s.v.SQL.QueryRowContext(s.v.Ctx, "SELECT coalesce(max(id), 0) FROM workload").Scan(&left); err != nil {
		return false, err
	}
	left /= looking
	for _, p := range stretches {
		at := p.From + p.Len()/2*p.Level.Width()
		query := fmt.Sprintf("SELECT count(*) FROM (SELECT 1 FROM %s u WHERE u.minute = $1 LIMIT %d)", p.Table(schema.UsageLayout), left/p.Len()+1)
		var rows int64
		if err := s.v.SQL.QueryRowContext(s.v.Ctx, query, at).Scan(&rows); err != nil {
			return false, err
		}
		if left -= rows * p.Len(); left < 0 {
			return false, nil
		}
	}
	return true, nil
}

// of is the place of a workload. Those that stand beside one another do so in
// slabs too, mostly.
func (a *adding) of(w int64) *belonging {
	p := a.pages[w/rollPage]
	if p == nil {
		p = &[rollPage]belonging{}
		a.pages[w/rollPage] = p
	}
	return &p[w%rollPage]
}

// places finds the groups of the rows of a slab.
func (a *adding) places(s *slab) error {
	if len(a.pages) > rollPages {
		clear(a.pages)
	}
	var unknown []int64
	for _, w := range s.keys {
		if !a.of(w).known {
			unknown = append(unknown, w)
		}
	}
	members, err := a.roll.look(a.selection, unknown)
	if err != nil {
		return err
	}
	if members == nil { // it is of a later moment by now
		a.roll = newRoll(a.v.Rev)
		if members, err = a.roll.look(a.selection, unknown); err != nil {
			return err
		}
	}
	for i, w := range unknown {
		*a.of(w) = belonging{true, members[i].node, members[i].kin, nil}
	}
	guests, err := a.guests.of(s.From - s.From%schema.DayMinutes)
	if err != nil {
		return err
	}
	a.row = slices.Grow(a.row[:0], len(s.keys))
	for _, w := range s.keys {
		p := a.of(w)
		if p.kin == nil || len(a.nest.out) > 0 && guests[p.node] != a.nest.only {
			a.row = append(a.row, nil)
			continue
		}
		if p.group == nil {
			p.group = a.groups.named(p.kin.name, p.kin.keys)
			p.group.on(p.node)
		}
		a.row = append(a.row, p.group)
	}
	return nil
}

// guestDays are the nodes that are guests on a day, of those that are so within
// what is asked for.
type guestDays struct {
	*selection
	days map[int64]map[int64]bool
}

func (g *guestDays) of(day int64) (map[int64]bool, error) {
	if len(g.nest.out) == 0 {
		return nil, nil
	}
	if found := g.days[day]; found != nil {
		return found, nil
	}
	ids, err := db.Ints(g.v.Ctx, g.v.SQL, "SELECT x.node FROM nested_day x WHERE x.minute = $1"+g.nest.within(), day)
	found := map[int64]bool{}
	for _, id := range ids {
		found[id] = g.nest.out[id]
	}
	if g.days == nil {
		g.days = map[int64]map[int64]bool{}
	}
	g.days[day] = found
	return found, err
}

// add adds the rows of a slab.
func (a *adding) add(s *slab) error {
	if err := a.places(s); err != nil {
		return err
	}
	type column struct {
		place int
		peak  bool
		rows  []int64
	}
	var cols []column
	a.want.Each(func(r usage.Resource) {
		if c := s.cols[slabAmounts+int(r)]; c != nil {
			cols = append(cols, column{a.groups.place[r], isPeak[r], c})
		}
	})
	for i, g := range a.row {
		if g == nil {
			continue
		}
		g.seen(s.ends(i))
		ms := s.value(slabCovered, i)
		g.present |= usage.Set(s.value(slabPresent, i))
		g.rough |= s.value(slabRough, i)
		g.covered += time.Duration(ms) * time.Millisecond
		g.claimCovered += time.Duration(ms-s.value(slabGivenCovered, i)) * time.Millisecond
		g.claimCPU = g.claimCPU.Add(s.value(slabAmounts+int(usage.CPU), i) - s.value(slabGivenCPU, i))
		for _, c := range cols {
			sum := &g.sums[c.place]
			switch v := c.rows[i]; {
			case !c.peak:
				*sum = sum.Add(v)
			case (unit.Sum{}).Add(v).Compare(*sum) > 0:
				*sum = unit.Sum{}.Add(v)
			}
		}
	}
	return nil
}
