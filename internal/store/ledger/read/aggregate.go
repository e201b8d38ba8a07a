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

// An aggregation adds blocks to the groups of a query.
type aggregation struct {
	*selection
	groups    *groupSet
	index     *groupIndex
	pages     map[int64]*[pageSize]membership
	rowGroups []*group // by row of the current block; nil if excluded
}

// A membership is the group that a workload belongs to.
type membership struct {
	known bool
	node  int64
	key   *groupKey
	group *group // set once the group has a row
}

// aggregateBlocks adds the rows of ranges to gs.
func (s *selection) aggregateBlocks(ranges []schema.Range, gs *groupSet) error {
	ids, err := s.lookUps(ranges)
	if err != nil {
		return err
	}
	a, err := s.newAggregation(gs)
	if err != nil {
		return err
	}
	if s.nesting.guestsOnly && len(s.nesting.covered) == 0 {
		return nil
	}
	return s.rd.scanBlocks(s.v, usageBlocks, s.want, ranges, false, ids, a.addBlock)
}

func (s *selection) newAggregation(gs *groupSet) (*aggregation, error) {
	r, err := s.rd.cache.indexes.find(s)
	if err != nil {
		return nil, err
	}
	if r, err = r.refresh(s.v); err != nil {
		return nil, err
	}
	return &aggregation{selection: s, groups: gs, index: r, pages: map[int64]*[pageSize]membership{}}, nil
}

// lookUps returns the keys of the workloads whose rows are to be looked up; nil means to scan all rows of
// ranges. The group of each row is indexed, so that a scan of cached blocks costs less than to filter all
// workloads, and a scan of the database less than lookups of many of its rows.
func (s *selection) lookUps(ranges []schema.Range) ([]int64, error) {
	if s.where == "" {
		return nil, nil
	}
	if rows, ok := s.cachedRows(ranges); ok {
		if workloads, err := s.countWorkloads(); err != nil || rows <= workloads {
			return nil, err
		}
	}
	ids, err := s.matchingWorkloads(ranges)
	if ids == nil || err != nil {
		return nil, err
	}
	lookups := int64(len(ids)) * unitsOf(ranges)
	if more, err := s.hasMoreRows(ranges, lookups*rowsPerLookup); !more || err != nil {
		return nil, err
	}
	return ids, nil
}

// cachedRows returns the number of rows of ranges; false means that not all of their blocks are cached.
func (s *selection) cachedRows(ranges []schema.Range) (n int64, ok bool) {
	for _, p := range s.rd.cache.blocks.splitRanges(ranges, false, time.Now()) {
		rows, ok := s.rd.cache.blocks.rows(usageBlocks, p, s.want, s.v.Rev)
		if !ok {
			return 0, false
		}
		n += rows
	}
	return n, true
}

// rowsPerLookup is how many rows can be scanned for the cost of looking up one.
const rowsPerLookup = 3

// unitsOf returns how many rows a workload has in ranges at most.
func unitsOf(ranges []schema.Range) (units int64) {
	for _, p := range ranges {
		units += p.Len()
	}
	return units
}

// maxKeyLookups is the maximum number of rows to look up by key instead of scanning. A lookup costs
// as much as scanning several rows, and scanned blocks are cached.
const maxKeyLookups = 20_000

// workloadsPerRow is how many workloads can be filtered for the cost of reading one row.
const workloadsPerRow = 8

// matchingWorkloads returns the keys of the workloads that match the filters if they have few rows;
// nil means to scan all rows.
func (s *selection) matchingWorkloads(ranges []schema.Range) ([]int64, error) {
	if s.where == "" {
		return nil, nil
	}
	workloads, err := s.countWorkloads()
	if err != nil {
		return nil, err
	}
	// Scanning few rows costs less than filtering all workloads that ever existed.
	if more, err := s.hasMoreRows(ranges, workloads/workloadsPerRow); !more || err != nil {
		return nil, err
	}
	most := maxKeyLookups / unitsOf(ranges)
	keys := []int64{}
	err = db.Each(s.v.Ctx, s.v.SQL, func(scan func(...any) error) error {
		var id, node int64
		err := scan(&id, &node)
		keys = s.nesting.rowKeys(keys, id, node)
		return err
	}, fmt.Sprintf("SELECT w.id, w.node FROM workload w JOIN node n ON n.id = w.node%s WHERE true%s LIMIT %d", s.joins, s.where, most+1), s.args...)
	if err != nil || int64(len(keys)) > most {
		return nil, err
	}
	return keys, nil
}

// countWorkloads returns how many workloads ever existed, about.
func (s *selection) countWorkloads() (n int64, err error) {
	err = s.v.SQL.QueryRowContext(s.v.Ctx, "SELECT coalesce(max(id), 0) FROM workload").Scan(&n)
	return n, err
}

// hasMoreRows reports whether ranges have more than most rows. It estimates the rows of a range from those of
// one minute, hour or day in its middle.
func (s *selection) hasMoreRows(ranges []schema.Range, most int64) (bool, error) {
	for _, p := range ranges {
		at := p.From + p.Len()/2*p.Level.Width()
		query := fmt.Sprintf("SELECT count(*) FROM (SELECT 1 FROM %s u WHERE u.minute = $1 LIMIT %d)", p.Table(schema.UsageLayout), most/p.Len()+1)
		var rows int64
		if err := s.v.SQL.QueryRowContext(s.v.Ctx, query, at).Scan(&rows); err != nil {
			return false, err
		}
		if most -= rows * p.Len(); most < 0 {
			return true, nil
		}
	}
	return false, nil
}

// membership returns the entry of a workload. Adjacent ids are mostly adjacent in blocks too, hence
// the pages.
func (a *aggregation) membership(w int64) *membership {
	p := a.pages[w/pageSize]
	if p == nil {
		p = &[pageSize]membership{}
		a.pages[w/pageSize] = p
	}
	return &p[w%pageSize]
}

// findGroups finds the groups of the rows of a block.
func (a *aggregation) findGroups(b *block) error {
	if len(a.pages) > maxPages {
		clear(a.pages)
	}
	var unknown []int64
	for _, key := range b.keys {
		if w, _ := schema.SplitKey(key); !a.membership(w).known {
			unknown = append(unknown, w)
		}
	}
	members, err := a.index.lookUp(a.selection, unknown)
	if err == nil && members == nil { // the index has moved on to a later revision
		a.index = newGroupIndex(a.v.Rev)
		members, err = a.index.lookUp(a.selection, unknown)
	}
	if err != nil {
		return err
	}
	for i, w := range unknown {
		*a.membership(w) = membership{true, members[i].node, members[i].key, nil}
	}
	a.rowGroups = slices.Grow(a.rowGroups[:0], len(b.keys))
	for _, key := range b.keys {
		w, within := schema.SplitKey(key)
		p := a.membership(w)
		if p.key == nil || a.nesting.excludes(p.node, within) {
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

// addBlock adds the rows of a block to their groups.
func (a *aggregation) addBlock(b *block) error {
	if err := a.findGroups(b); err != nil {
		return err
	}
	type column struct {
		place int
		peak  bool
		rows  []int64
	}
	var cols []column
	a.want.Each(func(r usage.Resource) {
		if c := b.cols[blockAmounts+int(r)]; c != nil {
			cols = append(cols, column{a.groups.column[r], isPeak[r], c})
		}
	})
	for i, g := range a.rowGroups {
		if g == nil {
			continue
		}
		g.extend(b.span(i))
		g.present |= usage.Set(b.value(blockPresent, i))
		g.uncertainty = g.uncertainty.Or(b.uncertainty(i))
		g.covered += b.value(blockCovered, i)
		for _, c := range cols {
			sum := &g.sums[c.place]
			if c.peak {
				*sum = sum.Max(unit.Sum{}.Add(c.rows[i]))
			} else {
				*sum = sum.Add(c.rows[i])
			}
		}
	}
	return nil
}
