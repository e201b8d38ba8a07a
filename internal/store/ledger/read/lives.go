package read

import (
	"fmt"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A life is a span that has all rows of a workload: from minute First on, before minute Last.
type life struct {
	node, workload int64
	schema.MinuteSpan
	run *listedRun
}

// A lifeRow is a row of a workload.
type lifeRow struct {
	minute, width    int64
	present, covered int64
	rough            usage.Uncertainty
	amounts          [usage.Limit]int64
}

// addTo adds the row to a group.
func (r *lifeRow) addTo(gs *groupSet, g *group) {
	g.extend(r.minute, r.minute+r.width)
	g.addRow(r.present, r.rough, r.covered)
	gs.want.Each(func(res usage.Resource) { gs.add(g, res, unit.Sum{}.Add(r.amounts[res])) })
}

// findLives finds the nodes that rows of lives are within.
func (n *nesting) findLives(v *db.View, lives []life) error {
	all := schema.MinuteSpan{First: schema.EndMinute}
	for i := range lives {
		all = schema.MinuteSpan{First: min(all.First, lives[i].First), Last: max(all.Last, lives[i].Last)}
	}
	return n.find(v, all.First, all.Last)
}

// lookups is how many rows one statement looks up by key.
const lookups = 2000

// eachLifeRow calls f with every row of every life, within other nodes or not. Each row is a lookup by
// primary key, so the cost follows from the length of the lives and not from what else there is.
func (rd *Reader) eachLifeRow(v *db.View, n *nesting, lives []life, want usage.Set, f func(*life, *lifeRow)) error {
	pending := map[schema.Range]*lifeLookup{} // by table: level and first minute of its day
	flush := func(p *lifeLookup) error {
		err := p.read(rd, v, want, f)
		p.keys = p.keys[:0]
		return err
	}
	var keys []int64
	for i := range lives {
		of := &lives[i]
		keys = n.rowKeys(keys[:0], of.workload, of.node)
		from, to := v.Widen(of.First, min(of.Last, schema.EndMinute))
		for _, p := range v.Cover(from, to, v.Days) {
			table := schema.Range{Level: p.Level}
			if p.Level == schema.Minutes {
				table.From = schema.DayOf(p.From)
			}
			l := pending[table]
			if l == nil {
				l = &lifeLookup{table: p}
				pending[table] = l
			}
			for at := p.From; at < p.To; at += p.Level.Width() {
				for _, key := range keys {
					l.keys = append(l.keys, lifeKey{at, key, of})
				}
				if len(l.keys) >= lookups {
					if err := flush(l); err != nil {
						return err
					}
				}
			}
		}
	}
	for _, l := range pending {
		if err := flush(l); err != nil {
			return err
		}
	}
	return nil
}

// A lifeLookup collects keys of rows of a table.
type lifeLookup struct {
	table schema.Range
	keys  []lifeKey
}

// A lifeKey is the key of a row that a workload may have.
type lifeKey struct {
	minute, key int64
	of          *life
}

// read calls f with the rows that exist.
func (l *lifeLookup) read(rd *Reader, v *db.View, want usage.Set, f func(*life, *lifeRow)) error {
	if len(l.keys) == 0 {
		return nil
	}
	row := lifeRow{width: l.table.Level.Width()}
	var i int64
	into := []any{&i, &row.minute, &row.present, &row.rough[0], &row.rough[1], &row.covered}
	var text strings.Builder
	text.WriteString("WITH k (i, minute, workload) AS (VALUES ")
	for i, k := range l.keys {
		if i > 0 {
			text.WriteString(", ")
		}
		number := func(n int64, end string) { text.WriteString(strconv.FormatInt(n, 10) + end) }
		text.WriteString("(")
		number(int64(i), ", ")
		if i == 0 { // the types of all rows follow from it
			fmt.Fprintf(&text, "CAST(%d AS {int}), CAST(%d AS {int}))", k.minute, k.key)
			continue
		}
		number(k.minute, ", ")
		number(k.key, ")")
	}
	text.WriteString(") SELECT k.i, u.minute, u.present, u.rough, u.rough_high, u.covered_ms")
	want.Each(func(r usage.Resource) {
		text.WriteString(", u." + r.String())
		into = append(into, &row.amounts[r])
	})
	// CROSS JOIN makes k the outer loop in SQLite.
	text.WriteString(" FROM k CROSS JOIN " + l.table.Table(schema.UsageLayout) + " u WHERE u.minute = k.minute AND u.workload = k.workload AND " + schema.HasContent("u"))
	return db.Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
		if err := scan(into...); err != nil {
			return err
		}
		f(l.keys[i].of, &row)
		return nil
	}, rd.db.Expand(text.String()))
}
