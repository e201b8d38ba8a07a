package read

import (
	"database/sql/driver"
	"fmt"
	"strings"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A reading puts rows into a slab one by one. SQLite has no grouping but by
// sorting, which costs three times as much. It hands the rows to a function of
// SQL within the database, for half of what it costs to fetch them.
type reading struct {
	*slab
	into []int   // where the values of a row stand in a slab's
	row  []int64 // of the slab
}

// take adds a row: its minute, its key, and the columns that into says.
func (r *reading) take(values []driver.Value) {
	minute, _ := values[0].(int64)
	key, _ := values[1].(int64)
	for i, to := range r.into {
		r.row[to], _ = values[2+i].(int64)
	}
	if r.kind == usageSlab {
		r.row[slabRough] &= roughOf(usage.Set(r.row[slabPresent]))
		r.row[slabGivenCPU], r.row[slabGivenCovered] = 0, 0
		if usage.Set(r.row[slabPresent]).Has(usage.EnergyIdle) {
			r.row[slabGivenCPU], r.row[slabGivenCovered] = r.row[slabAmounts+int(usage.CPU)], r.row[slabCovered]
		}
	}
	r.add(key, minute, minute, r.row)
}

// roughOf is the bits of column rough that are of some resources: what a row says
// of what it does not have is nothing.
func roughOf(set usage.Set) int64 {
	// Each bit goes to twice its place.
	v := uint64(set)
	for _, s := range [...]struct {
		by   int
		mask uint64
	}{{16, 0x0000ffff0000ffff}, {8, 0x00ff00ff00ff00ff}, {4, 0x0f0f0f0f0f0f0f0f}, {2, 0x3333333333333333}, {1, 0x5555555555555555}} {
		v = (v | v<<s.by) & s.mask
	}
	return int64(v | v<<1)
}

// columns are SQL for what a slab holds of a row of u, and where each stands.
func (k *slabKind) columns(want usage.Set) (list []string, into []int) {
	put := func(at int, text string) { list, into = append(list, text), append(into, at) }
	if k == nodeSlab {
		put(slabCPUs, "u.cpus")
		// A node without a CPU is a machine of which only single jobs were measured.
		put(slabMeasured, "CASE WHEN u.cpus > 0 THEN u.covered_ms ELSE 0 END")
		for i, r := range usage.Wholes {
			put(slabWholes+2*i, "u.whole_"+r.String())
			put(slabWholes+2*i+1, "u.skew_"+r.String())
		}
		return list, into
	}
	put(slabPresent, "u.present")
	put(slabRough, "u.rough")
	put(slabCovered, "u.covered_ms")
	want.Each(func(r usage.Resource) { put(slabAmounts+int(r), "u."+r.String()) })
	return list, into
}

// read makes a slab of the rows of a stretch; where keys is not nil, of those keys
// alone.
func (rd *Reader) read(v *db.View, k *slabKind, p schema.Range, want usage.Set, keys []int64) (*slab, error) {
	columns, into := k.columns(want)
	rows := len(keys)
	if keys == nil {
		// The pages of one minute are in memory when the next is read.
		query := fmt.Sprintf("SELECT count(*) FROM %s u WHERE u.minute = $1", p.Table(k.shape))
		if err := v.SQL.QueryRowContext(v.Ctx, query, p.From).Scan(&rows); err != nil {
			return nil, err
		}
	}
	r := &reading{newSlab(k, p, want, rows), into, make([]int64, len(k.hows))}
	number, leave := rd.db.EnterSink(r.take)
	defer leave()
	chosen := "u.minute >= $1 AND u.minute < $2"
	args := arguments{p.From, p.To}
	if keys != nil {
		var minutes []int64
		for _, part := range p.Split() {
			minutes = append(minutes, part.From)
		}
		// So each row is looked up by the primary key.
		chosen, args = fmt.Sprintf("u.minute IN (%s) AND u.%s IN (%s)", schema.JoinInts(minutes), k.shape.Key, schema.JoinInts(keys)), nil
	}
	text := fmt.Sprintf("SELECT count(mete_take(%d, u.minute, u.%s, %s)) FROM %s u WHERE %s", number, k.shape.Key, strings.Join(columns, ", "), p.Table(k.shape), chosen)
	var none int64
	if err := v.SQL.QueryRowContext(v.Ctx, text, args...).Scan(&none); err != nil {
		return nil, err
	}
	r.at = nil
	return r.slab, nil
}
