package read

import (
	"database/sql/driver"
	"fmt"
	"strings"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A blockReader adds rows to a block one by one. SQLite groups only by sorting, which costs three
// times as much. The SQL function mete_take passes rows within the database, at half the cost of
// fetching them.
type blockReader struct {
	*block
	into []int   // index in a block's row, by column of the query
	row  []int64 // scratch row of the block
}

// takeRow adds a row: its minute, its key, and the columns of into.
func (b *blockReader) takeRow(values []driver.Value) {
	minute, _ := values[0].(int64)
	key, _ := values[1].(int64)
	for i, to := range b.into {
		b.row[to], _ = values[2+i].(int64)
	}
	if b.kind == usageBlocks {
		if b.row[blockPresent] == 0 && b.row[blockCovered] == 0 {
			return // see schema.HasContent
		}
		rough := usage.Uncertainty{b.row[blockUncertainty], b.row[blockUncertaintyHigh]}.Only(usage.Set(b.row[blockPresent]))
		b.row[blockUncertainty], b.row[blockUncertaintyHigh] = rough[0], rough[1]
	}
	b.add(key, minute, minute, b.row)
}

// columns returns the SQL columns of a row u that a block holds, and their indexes in it.
func (k *blockKind) columns(want usage.Set) (list []string, into []int) {
	put := func(at int, text string) { list, into = append(list, text), append(into, at) }
	if k == nodeBlocks {
		put(blockCPUs, "u.cpus")
		// A node without CPUs is a machine of which only jobs are measured.
		put(blockMeasured, "CASE WHEN u.cpus > 0 THEN u.covered_ms ELSE 0 END")
		for i, r := range usage.Wholes {
			whole, skew := wholeColumns(i)
			put(whole, "u.whole_"+r.String())
			put(skew, "u.skew_"+r.String())
		}
		return list, into
	}
	put(blockPresent, "u.present")
	put(blockUncertainty, "u.rough")
	put(blockUncertaintyHigh, "u.rough_high")
	put(blockCovered, "u.covered_ms")
	want.Each(func(r usage.Resource) { put(blockAmounts+int(r), "u."+r.String()) })
	return list, into
}

// readBlock reads a block; if keys is not nil, of those keys only.
func (rd *Reader) readBlock(v *db.View, k *blockKind, p schema.Range, want usage.Set, keys []int64) (*block, error) {
	columns, into := k.columns(want)
	rows := len(keys)
	if keys == nil {
		// This also reads pages into the cache that the next query needs.
		query := fmt.Sprintf("SELECT count(*) FROM %s u WHERE u.minute = $1", p.Table(k.layout))
		if err := v.SQL.QueryRowContext(v.Ctx, query, p.From).Scan(&rows); err != nil {
			return nil, err
		}
	}
	r := &blockReader{newBlock(k, p, want, rows), into, make([]int64, len(k.rules))}
	number, leave := rd.db.AddSink(r.takeRow)
	defer leave()
	chosen := "u.minute >= $1 AND u.minute < $2"
	args := arguments{p.From, p.To}
	if keys != nil {
		var minutes []int64
		for _, part := range p.Split() {
			minutes = append(minutes, part.From)
		}
		// Each row is then a lookup by primary key.
		chosen, args = fmt.Sprintf("u.minute IN (%s) AND u.%s IN (%s)", schema.JoinInts(minutes), k.layout.Key, schema.JoinInts(keys)), nil
	}
	text := fmt.Sprintf("SELECT count(mete_take(%d, u.minute, u.%s, %s)) FROM %s u WHERE %s", number, k.layout.Key, strings.Join(columns, ", "), p.Table(k.layout), chosen)
	var none int64
	if err := v.SQL.QueryRowContext(v.Ctx, text, args...).Scan(&none); err != nil {
		return nil, err
	}
	r.at = nil
	return r.block, nil
}
