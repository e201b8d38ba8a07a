package read

import (
	"database/sql/driver"
	"fmt"
	"strings"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A blockReader puts rows into a block one by one. SQLite has no grouping but by
// sorting, which costs three times as much. It hands the rows to a function of
// SQL within the database, for half of what it costs to fetch them.
type blockReader struct {
	*block
	into []int   // where the values of a row stand in a block's
	row  []int64 // of the block
}

// takeRow adds a row: its minute, its key, and the columns that into says.
func (r *blockReader) takeRow(values []driver.Value) {
	minute, _ := values[0].(int64)
	key, _ := values[1].(int64)
	for i, to := range r.into {
		r.row[to], _ = values[2+i].(int64)
	}
	if r.kind == usageBlocks {
		r.row[blockUncertainty] &= uncertaintyMask(usage.Set(r.row[blockPresent]))
		r.row[blockGivenCPU], r.row[blockGivenCovered] = 0, 0
		if usage.Set(r.row[blockPresent]).Has(usage.EnergyIdle) {
			r.row[blockGivenCPU], r.row[blockGivenCovered] = r.row[blockAmounts+int(usage.CPU)], r.row[blockCovered]
		}
	}
	r.add(key, minute, minute, r.row)
}

// uncertaintyMask is the bits of column rough that are of some resources: what a row says
// of what it does not have is nothing.
func uncertaintyMask(set usage.Set) int64 {
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

// columns are SQL for what a block holds of a row of u, and where each stands.
func (k *blockKind) columns(want usage.Set) (list []string, into []int) {
	put := func(at int, text string) { list, into = append(list, text), append(into, at) }
	if k == nodeBlocks {
		put(blockCPUs, "u.cpus")
		// A node without a CPU is a machine of which only single jobs were measured.
		put(blockMeasured, "CASE WHEN u.cpus > 0 THEN u.covered_ms ELSE 0 END")
		for i, r := range usage.Wholes {
			put(blockWholes+2*i, "u.whole_"+r.String())
			put(blockWholes+2*i+1, "u.skew_"+r.String())
		}
		return list, into
	}
	put(blockPresent, "u.present")
	put(blockUncertainty, "u.rough")
	put(blockCovered, "u.covered_ms")
	want.Each(func(r usage.Resource) { put(blockAmounts+int(r), "u."+r.String()) })
	return list, into
}

// readBlock makes a block of the rows of a range; where keys is not nil, of those keys
// alone.
func (rd *Reader) readBlock(v *db.View, k *blockKind, p schema.Range, want usage.Set, keys []int64) (*block, error) {
	columns, into := k.columns(want)
	rows := len(keys)
	if keys == nil {
		// The pages of one minute are in memory when the next is read.
		query := fmt.Sprintf("SELECT count(*) FROM %s u WHERE u.minute = $1", p.Table(k.shape))
		if err := v.SQL.QueryRowContext(v.Ctx, query, p.From).Scan(&rows); err != nil {
			return nil, err
		}
	}
	r := &blockReader{newBlock(k, p, want, rows), into, make([]int64, len(k.rules))}
	number, leave := rd.db.EnterSink(r.takeRow)
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
	return r.block, nil
}
