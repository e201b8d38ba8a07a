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

// An aggregation adds blocks to the groups of a question.
type aggregation struct {
	*selection
	groups    *groupSet
	index     *groupIndex
	pages     map[int64]*[pageSize]membership
	rowGroups []*group // of the block at hand; nil is not asked for
	guestDays guestDays
}

// A membership is where a workload belongs.
type membership struct {
	known bool
	node  int64
	key   *groupKey
	group *group // once it has a row
}

// aggregateBlocks adds the rows of ranges.
func (s *selection) aggregateBlocks(ranges []schema.Range, gs *groupSet) error {
	ids, err := s.matchingWorkloads(ranges)
	if err != nil {
		return err
	}
	r, err := s.rd.cache.indexes.find(s)
	if err != nil {
		return err
	}
	if r, err = r.refresh(s.v); err != nil {
		return err
	}
	a := &aggregation{selection: s, groups: gs, index: r, pages: map[int64]*[pageSize]membership{}, guestDays: guestDays{selection: s}}
	if s.nest.only && len(s.nest.out) == 0 {
		return nil
	}
	return s.rd.scanBlocks(s.v, usageBlocks, s.want, ranges, len(s.nest.out) > 0, ids, a.addBlock)
}

// maxKeyLookups is how many rows are looked up one by one, rather than read with all
// others: each costs as much as some that are read on their way, and what was read
// is kept.
const maxKeyLookups = 20_000

// workloadsPerRow is how many workloads can be looked at, to choose among them, for what it
// costs to read a row.
const workloadsPerRow = 8

// matchingWorkloads are the workloads that filters choose, where they have few rows; nil is
// that all are to be read.
func (s *selection) matchingWorkloads(ranges []schema.Range) ([]int64, error) {
	if s.where == "" {
		return nil, nil
	}
	if few, err := s.isScanCheaper(ranges); few || err != nil {
		return nil, err
	}
	var units int64
	for _, p := range ranges {
		units += p.Len()
	}
	most := maxKeyLookups / units
	ids, err := db.Ints(s.v.Ctx, s.v.SQL, fmt.Sprintf("SELECT w.id FROM workload w JOIN node n ON n.id = w.node%s WHERE true%s LIMIT %d", s.joins, s.where, most+1), s.args...)
	if err != nil || int64(len(ids)) > most {
		return nil, err
	}
	return append([]int64{}, ids...), nil
}

// isScanCheaper says that to read all rows of ranges costs less than to look at all workloads
// that there ever were. In each range it is the rows of one minute, hour or day that
// are counted.
func (s *selection) isScanCheaper(ranges []schema.Range) (bool, error) {
	var left int64
	if err := s.v.SQL.QueryRowContext(s.v.Ctx, "SELECT coalesce(max(id), 0) FROM workload").Scan(&left); err != nil {
		return false, err
	}
	left /= workloadsPerRow
	for _, p := range ranges {
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
// blocks too, mostly.
func (a *aggregation) membership(w int64) *membership {
	p := a.pages[w/pageSize]
	if p == nil {
		p = &[pageSize]membership{}
		a.pages[w/pageSize] = p
	}
	return &p[w%pageSize]
}

// findGroups finds the groups of the rows of a block.
func (a *aggregation) findGroups(s *block) error {
	if len(a.pages) > maxPages {
		clear(a.pages)
	}
	var unknown []int64
	for _, w := range s.keys {
		if !a.membership(w).known {
			unknown = append(unknown, w)
		}
	}
	members, err := a.index.lookUp(a.selection, unknown)
	if err != nil {
		return err
	}
	if members == nil { // it is of a later moment by now
		a.index = newGroupIndex(a.v.Rev)
		if members, err = a.index.lookUp(a.selection, unknown); err != nil {
			return err
		}
	}
	for i, w := range unknown {
		*a.membership(w) = membership{true, members[i].node, members[i].key, nil}
	}
	guests, err := a.guestDays.on(s.From - s.From%schema.DayMinutes)
	if err != nil {
		return err
	}
	a.rowGroups = slices.Grow(a.rowGroups[:0], len(s.keys))
	for _, w := range s.keys {
		p := a.membership(w)
		if p.key == nil || len(a.nest.out) > 0 && guests[p.node] != a.nest.only {
			a.rowGroups = append(a.rowGroups, nil)
			continue
		}
		if p.group == nil {
			p.group = a.groups.getNamed(p.key.name, p.key.keys)
			p.group.addNode(p.node)
		}
		a.rowGroups = append(a.rowGroups, p.group)
	}
	return nil
}

// guestDays are the nodes that are guests on a day, of those that are so within
// what is asked for.
type guestDays struct {
	*selection
	days map[int64]map[int64]bool
}

func (g *guestDays) on(day int64) (map[int64]bool, error) {
	if len(g.nest.out) == 0 {
		return nil, nil
	}
	if found := g.days[day]; found != nil {
		return found, nil
	}
	ids, err := db.Ints(g.v.Ctx, g.v.SQL, "SELECT x.node FROM nested_day x WHERE x.minute = $1"+g.nest.hostsCondition(), day)
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

// addBlock adds the rows of a block.
func (a *aggregation) addBlock(s *block) error {
	if err := a.findGroups(s); err != nil {
		return err
	}
	type column struct {
		place int
		peak  bool
		rows  []int64
	}
	var cols []column
	a.want.Each(func(r usage.Resource) {
		if c := s.cols[blockAmounts+int(r)]; c != nil {
			cols = append(cols, column{a.groups.column[r], isPeak[r], c})
		}
	})
	for i, g := range a.rowGroups {
		if g == nil {
			continue
		}
		g.extend(s.span(i))
		ms := s.value(blockCovered, i)
		g.present |= usage.Set(s.value(blockPresent, i))
		g.uncertainty |= s.value(blockUncertainty, i)
		g.covered += time.Duration(ms) * time.Millisecond
		g.claimCovered += time.Duration(ms-s.value(blockGivenCovered, i)) * time.Millisecond
		g.claimCPU = g.claimCPU.Add(s.value(blockAmounts+int(usage.CPU), i) - s.value(blockGivenCPU, i))
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
