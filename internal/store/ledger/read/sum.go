package read

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// sumGroups sums the rows of all ranges by group.
func (s *selection) sumGroups(ranges []schema.Range) (*groupSet, error) {
	gs := newGroups(s.want)
	var err error
	if gs.volumes, err = s.nodesWhere(" AND "+schema.IsVolumesOf("n"), nil); err != nil {
		return nil, err
	}
	var single []schema.Range
	for _, p := range ranges {
		if p.Level != schema.Days || !s.grouped {
			single = append(single, p)
			continue
		}
		stale, err := db.Ints(s.v.Ctx, s.v.SQL, "SELECT minute FROM stale_day WHERE minute >= $1 AND minute < $2", p.From, p.To)
		if err != nil {
			return nil, err
		}
		for _, day := range stale {
			single = append(single, schema.Range{Level: schema.Days, From: day, To: day + schema.DayMinutes})
		}
		if err := s.groupDays(p, gs); err != nil {
			return nil, err
		}
	}
	if s.rd.db.IsSQLite() {
		return gs, s.aggregateBlocks(single, gs)
	}
	for _, p := range single {
		if err := s.aggregate(p, gs); err != nil {
			return nil, err
		}
	}
	return gs, nil
}

// planning tunes PostgreSQL's planner. It overestimates the number of groups and would sort the
// rows of a month to group them; parallel workers read a table of more than 8 MB
// (min_parallel_table_scan_size).
const planning = "SET LOCAL enable_sort = off; SET LOCAL work_mem = '64MB'; SET LOCAL parallel_setup_cost = 0; SET LOCAL parallel_tuple_cost = 0"

// aggregate adds rows of usage that PostgreSQL sums in 128 bits. A sum is returned as its lower 32
// bits and the rest, since sums of a large group do not fit 64 bits.
func (s *selection) aggregate(p schema.Range, gs *groupSet) error {
	if _, err := s.v.SQL.ExecContext(s.v.Ctx, planning); err != nil {
		return err
	}
	cols := append(slices.Clone(s.keys), "n.id", "u.present", "u.rough", "u.rough_high", "min(u.minute)", "max(u.minute)", "CAST(sum(u.covered_ms) AS {int})")
	usage.All.Each(func(r usage.Resource) {
		name := "u." + r.String()
		if !s.want.Has(r) {
			cols = append(cols, "0", "0")
			return
		}
		if isPeak[r] {
			cols = append(cols, "0", "max("+name+")")
			return
		}
		cols = append(cols, "CAST(div(sum("+name+"), 4294967296) AS {int})", "CAST(mod(sum("+name+"), 4294967296) AS {int})")
	})
	text := fmt.Sprintf(`SELECT %s FROM %s u JOIN workload w ON w.id = %s JOIN node n ON n.id = w.node%s
		WHERE u.minute >= $1 AND u.minute < $2 AND %s%s%s GROUP BY %s, n.id, u.present, u.rough, u.rough_high`,
		strings.Join(cols, ", "), p.Table(schema.UsageLayout), schema.IDOf("u.workload"), s.joins, schema.HasContent("u"), s.where, s.outsideCondition("n.id", "u.workload"), strings.Join(s.keys, ", "))
	var r summedRow
	return s.eachRow(p, func(scan func(...any) error) error {
		var node int64
		if err := scan(r.into(s, &node)...); err != nil {
			return err
		}
		g := s.groupOf(gs, r.keys, node)
		g.addNode(node)
		gs.addSummed(g, &r, p.Level.Width())
		return nil
	}, text)
}

// groupDays adds days from group_day, except stale ones.
func (s *selection) groupDays(p schema.Range, gs *groupSet) error {
	// The table has the columns of workload and node that it groups by.
	own := strings.NewReplacer("n.cluster", "w.cluster")
	keys := own.Replace(strings.Join(s.keys, ", "))
	cols := []string{keys, "w.present", "w.rough", "w.rough_high", "min(w.minute)", "max(w.minute)", "CAST(sum(w.covered_ms) AS {int})"}
	usage.All.Each(func(r usage.Resource) {
		name := "w." + r.String()
		if !s.want.Has(r) {
			cols = append(cols, "0", "0")
			return
		}
		if isPeak[r] {
			cols = append(cols, "0", "max("+name+"_hi * 4294967296 + "+name+"_lo)")
			return
		}
		cols = append(cols, "CAST(sum("+name+"_hi) AS {int})", "CAST(sum("+name+"_lo) AS {int})")
	})
	text := fmt.Sprintf(`SELECT %s FROM group_day w WHERE w.minute >= $1 AND w.minute < $2
		AND w.minute NOT IN (SELECT minute FROM stale_day)%s GROUP BY %s, w.present, w.rough, w.rough_high`,
		strings.Join(cols, ", "), own.Replace(s.where), keys)
	var r summedRow
	err := s.eachRow(p, func(scan func(...any) error) error {
		if err := scan(r.into(s, nil)...); err != nil {
			return err
		}
		gs.addSummed(gs.get(r.keys), &r, schema.DayMinutes)
		return nil
	}, text)
	if err != nil {
		return err
	}
	return s.groupNodes(p, gs)
}

// groupNodes counts the nodes of grouped days. A workload whose first or last row is in the range
// counts; for one that began before and ended after it, a query looks for rows.
func (s *selection) groupNodes(p schema.Range, gs *groupSet) error {
	var list []string
	for day := p.From; day < p.To; day += schema.DayMinutes {
		list = append(list, strconv.FormatInt(day, 10))
	}
	keys := strings.Join(s.keys, ", ")
	text := fmt.Sprintf(`SELECT %[1]s, n.id FROM workload w JOIN node n ON n.id = w.node
		WHERE w.last_minute >= $1 AND w.first_minute < $2%[2]s%[4]s
		AND (w.first_minute >= $1 OR w.last_minute < $2 OR EXISTS (SELECT 1 FROM day u WHERE u.minute IN (%[3]s) AND u.workload = w.id))
		GROUP BY %[1]s, n.id`, keys, s.where, strings.Join(list, ", "), s.groupedOutsideCondition(strings.Join(list, ", ")))
	names := make([]string, len(s.keys))
	var node int64
	into := make([]any, 0, len(names)+1)
	for i := range names {
		into = append(into, &names[i])
	}
	into = append(into, &node)
	return s.eachRow(p, func(scan func(...any) error) error {
		err := scan(into...)
		gs.get(names).addNode(node)
		return err
	}, text)
}

// A summedRow is a row that the database has summed.
type summedRow struct {
	keys                            []string
	present, first, last, coveredMS int64
	uncertainty                     usage.Uncertainty
	halves                          [2 * usage.Limit]int64
	places                          []any
}

// into returns the scan targets of a row: keys, the node if not nil, and amounts in halves.
func (r *summedRow) into(s *selection, node *int64) []any {
	if r.keys == nil {
		r.keys = make([]string, len(s.keys))
	}
	r.places = r.places[:0]
	for i := range r.keys {
		r.places = append(r.places, &r.keys[i])
	}
	if node != nil {
		r.places = append(r.places, node)
	}
	r.places = append(r.places, &r.present, &r.uncertainty[0], &r.uncertainty[1], &r.first, &r.last, &r.coveredMS)
	for i := range r.halves[2:] {
		r.places = append(r.places, &r.halves[2+i])
	}
	return r.places
}

// addSummed adds a row whose last minute spans width.
func (gs *groupSet) addSummed(g *group, row *summedRow, width int64) {
	g.extend(row.first, row.last+width)
	g.addRow(row.present, row.uncertainty, row.coveredMS)
	gs.want.Each(func(r usage.Resource) {
		v, _ := halves{row.halves[2*r], row.halves[2*r+1]}.total()
		gs.add(g, r, v)
	})
}

// groupOf returns the group of a node's row; keys are as in the database.
func (s *selection) groupOf(gs *groupSet, keys []string, node int64) *group {
	for _, i := range s.nodeKeys {
		keys[i] = s.nodeNames[node]
	}
	return gs.get(keys)
}

// eachRow runs a query over a range.
func (s *selection) eachRow(p schema.Range, f func(scan func(...any) error) error, text string) error {
	return eachInRange(s.v, p, s.args, f, s.rd.db.Expand(text))
}

// eachInRange runs a query over a range, whose ends replace the first two of args.
func eachInRange(v *db.View, p schema.Range, args arguments, f func(scan func(...any) error) error, text string) error {
	args = slices.Clone(args)
	args[0], args[1] = p.From, p.To
	return db.Each(v.Ctx, v.SQL, f, text, args...)
}
