package read

import (
	"context"
	"strings"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// Minutes calls f with the kept rows of minutes of nodes in [from, to), in the order of minutes;
// node is the row's index in nodes. m is valid until f returns. All rows are of one snapshot.
func (rd *Reader) Minutes(ctx context.Context, nodes []string, from, to time.Time, f func(node int, m *batch.Minute) error) error {
	var short, covered, minute, present, id int64
	var rough usage.Uncertainty
	var m batch.Minute
	into := []any{&short, &id, &minute, &present, &rough[0], &rough[1], &covered}
	for r := usage.Resource(1); r < usage.Limit; r++ {
		into = append(into, &m.Usage.Amount[r])
	}
	text := "SELECT w.short, w.node, u.minute, u.present, u.rough, u.rough_high, u.covered_ms" + amountColumns() +
		" FROM %s u JOIN workload w ON w.id = " + schema.IDOf("u.workload") + " WHERE u.minute >= $1 AND u.minute < $2 AND " + schema.HasContent("u") + " AND w.node IN (%s) ORDER BY u.minute"
	return rd.eachMinuteRow(ctx, schema.UsageLayout, nodes, from, to, text, func(at map[int64]int, scan func(...any) error) error {
		if err := scan(into...); err != nil {
			return err
		}
		m.Workload, m.Minute = workload.ShortID(short), minute
		m.Usage.Present, m.Usage.Covered = usage.Set(present), time.Duration(covered)*time.Millisecond
		m.Usage.Quality = rough.Qualities(m.Usage.Present)
		return f(at[id], &m)
	})
}

// Wholes calls f with what nodes had in each kept minute of [from, to), as Minutes does for
// workloads. It leaves out skew, violations and losses.
func (rd *Reader) Wholes(ctx context.Context, nodes []string, from, to time.Time, f func(node int, m *batch.NodeMinute) error) error {
	var covered, minute, present, id int64
	var rough usage.Uncertainty
	var m batch.NodeMinute
	into := []any{&id, &minute, &present, &rough[0], &rough[1], &covered, &m.CPUs}
	var text strings.Builder
	text.WriteString("SELECT " + schema.IDOf("u.node") + ", u.minute, u.present, u.rough, u.rough_high, u.covered_ms, u.cpus")
	for i, r := range usage.Wholes {
		into = append(into, &m.Whole[i])
		text.WriteString(", u.whole_" + r.String())
	}
	for r := usage.Resource(1); r < usage.Limit; r++ {
		into = append(into, &m.Total.Amount[r])
	}
	text.WriteString(amountColumns() + " FROM %s u WHERE u.minute >= $1 AND u.minute < $2 AND (" + schema.HasContent("u") + " OR u.cpus > 0) AND " + schema.IDOf("u.node") + " IN (%s) ORDER BY u.minute")
	return rd.eachMinuteRow(ctx, schema.NodeLayout, nodes, from, to, text.String(), func(at map[int64]int, scan func(...any) error) error {
		if err := scan(into...); err != nil {
			return err
		}
		m.Minute, m.Covered = minute, time.Duration(covered)*time.Millisecond
		m.Total.Present, m.Total.Covered = usage.Set(present), m.Covered
		m.Total.Quality = rough.Qualities(m.Total.Present)
		return f(at[id], &m)
	})
}

// amounts returns the columns of all resources in order.
func amountColumns() string {
	var b strings.Builder
	for _, c := range schema.ResourceColumns() {
		b.WriteString(", u." + c.Name)
	}
	return b.String()
}

// eachMinuteRow reads the tables of minutes of a range in turn. In text the first %s is a table,
// the second the nodes.
func (rd *Reader) eachMinuteRow(ctx context.Context, s *schema.Layout, nodes []string, from, to time.Time, text string, f func(map[int64]int, func(...any) error) error) error {
	if len(nodes) == 0 {
		return nil
	}
	place := make(map[string]int, len(nodes))
	for i, n := range nodes {
		place[schema.Clean(n)] = i
	}
	return db.Wrap(rd.db.View(ctx, func(v *db.View) error {
		var args arguments
		list := args.addList(nodes)
		at := map[int64]int{}
		err := db.Each(ctx, v.SQL, func(scan func(...any) error) error {
			var id int64
			var name string
			err := scan(&id, &name)
			at[id] = place[name]
			return err
		}, "SELECT id, node_id FROM node WHERE node_id IN "+list, args...)
		if err != nil || len(at) == 0 {
			return rd.db.Fault(err)
		}
		args = arguments{nil, nil}
		var places []string
		for id := range at {
			places = append(places, args.add(id))
		}
		in := strings.Join(places, ", ")
		a, b := min(max(floorMinute(from), 0), schema.EndMinute), min(max(floorMinute(to), 0), schema.EndMinute)
		for _, p := range schema.CoverMinutes(a, b, v.Days) {
			query := strings.NewReplacer("%s u", p.Table(s)+" u", "(%s)", "("+in+")").Replace(text)
			err := eachInRange(v, p, args, func(scan func(...any) error) error { return f(at, scan) }, query)
			if err != nil {
				return rd.db.Fault(err)
			}
		}
		return nil
	}), "minutes")
}
