package read

import (
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A block holds the rows of a range in memory, column by column: one row for each key, with the
// sums of all its rows.
type block struct {
	schema.Range
	kind *blockKind
	has  usage.Set // of usage: the resources whose amounts it holds
	keys []int64   // a key whose sums overflow appears again
	// first and last are the minutes of a key's first and last row, relative to the start of the
	// range; nil if the range is one row long.
	first, last []int32
	cols        [][]int64 // see kind; nil is all zero

	at map[int64]int32 // index of a key while the block is being built; nil if each key comes once
}

// A blockKind defines the columns of blocks of one layout.
type blockKind struct {
	layout *schema.Layout
	rules  []schema.MergeRule
}

// Columns of usage blocks: present resources, their quality and ms covered. The amount of resource r
// is at blockAmounts + r.
const (
	blockPresent         = iota
	blockUncertainty     // of resources below 32
	blockUncertaintyHigh // of the others
	blockCovered
	blockAmounts = blockCovered // resources begin with 1
)

// Columns of node blocks: CPUs, ms during which the whole machine was measured, and two for each of
// usage.Wholes, see wholeColumns.
const (
	blockCPUs = iota
	blockMeasured
	blockWholes
)

// wholeColumns returns the columns of the whole and the skew of usage.Wholes[i].
func wholeColumns(i int) (whole, skew int) {
	return blockWholes + i, blockWholes + len(usage.Wholes) + i
}

var (
	usageBlocks = func() *blockKind {
		k := &blockKind{schema.UsageLayout, []schema.MergeRule{schema.MergeOr, schema.MergeOr, schema.MergeOr, schema.MergeSum}}
		usage.All.Each(func(r usage.Resource) {
			h := schema.MergeSum
			if isPeak[r] {
				h = schema.MergeMax
			}
			k.rules = append(k.rules, h)
		})
		return k
	}()
	nodeBlocks = &blockKind{schema.NodeLayout, append([]schema.MergeRule{schema.MergeMax, schema.MergeSum}, make([]schema.MergeRule, len(usage.Wholes)+len(usage.Wholes))...)}
)

func newBlock(k *blockKind, p schema.Range, has usage.Set, rows int) *block {
	s := &block{Range: p, kind: k, has: has, cols: make([][]int64, len(k.rules)), keys: make([]int64, 0, rows)}
	if p.To-p.From > p.Level.Width() {
		s.at, s.first, s.last = make(map[int64]int32, rows), make([]int32, 0, rows), make([]int32, 0, rows)
	}
	return s
}

// add adds a row, or the sum of rows between two minutes.
func (b *block) add(key, first, last int64, values []int64) {
	if b.at == nil {
		b.append(key, first, last, values)
		return
	}
	i, ok := b.at[key]
	if !ok || !b.fits(i, values) {
		b.at[key] = int32(len(b.keys))
		b.append(key, first, last, values)
		return
	}
	b.first[i], b.last[i] = min(b.first[i], int32(first-b.From)), max(b.last[i], int32(last-b.From))
	for c, v := range values {
		if v == 0 {
			continue
		}
		col := b.column(c)
		switch b.kind.rules[c] {
		case schema.MergeSum:
			col[i] += v
		case schema.MergeOr:
			col[i] |= v
		case schema.MergeMax, schema.MergeLatest:
			col[i] = max(col[i], v)
		}
	}
}

func (b *block) append(key, first, last int64, values []int64) {
	b.keys = append(b.keys, key)
	if b.first != nil {
		b.first, b.last = append(b.first, int32(first-b.From)), append(b.last, int32(last-b.From))
	}
	for c, v := range values {
		switch {
		case b.cols[c] != nil:
			b.cols[c] = append(b.cols[c], v)
		case v != 0:
			b.column(c)[len(b.keys)-1] = v
		}
	}
}

// column returns a column, allocating it on first use.
func (b *block) column(c int) []int64 {
	if b.cols[c] == nil {
		b.cols[c] = make([]int64, len(b.keys), cap(b.keys))
	}
	return b.cols[c]
}

// fits reports whether values can be added to row i without overflow.
func (b *block) fits(i int32, values []int64) bool {
	for c, v := range values {
		if b.kind.rules[c] != schema.MergeSum || b.cols[c] == nil {
			continue
		}
		if _, fits := schema.AddInts(b.cols[c][i], v); !fits {
			return false
		}
	}
	return true
}

// value returns the value of row i in column c.
func (b *block) value(c, i int) int64 {
	if b.cols[c] == nil {
		return 0
	}
	return b.cols[c][i]
}

// uncertainty returns the uncertainty of row i of usage.
func (b *block) uncertainty(i int) usage.Uncertainty {
	return usage.Uncertainty{b.value(blockUncertainty, i), b.value(blockUncertaintyHigh, i)}
}

// span returns the minutes in which the first row of a key begins and its last row ends.
func (b *block) span(i int) (first, end int64) {
	if b.first == nil {
		return b.From, b.To
	}
	return b.From + int64(b.first[i]), b.From + int64(b.last[i]) + b.Level.Width()
}

// bytes returns the approximate memory use of the block.
func (b *block) bytes() int64 {
	n := 8*cap(b.keys) + 4*cap(b.first) + 4*cap(b.last)
	for _, c := range b.cols {
		n += 8 * cap(c)
	}
	return int64(n)
}

// joinBlocks merges blocks of parts of a range into one block.
func joinBlocks(p schema.Range, parts []*block) *block {
	has := usage.All
	for _, part := range parts {
		has &= part.has
	}
	s := newBlock(parts[0].kind, p, has, len(parts[0].keys)) // most keys are in all parts
	row := make([]int64, len(s.cols))
	for _, part := range parts {
		for i, key := range part.keys {
			for c := range row {
				row[c] = part.value(c, i)
			}
			first, end := part.span(i)
			s.add(key, first, end-p.Level.Width(), row)
		}
	}
	for c := range s.cols {
		if r := usage.Resource(c - blockAmounts); s.kind == usageBlocks && c > blockAmounts && !has.Has(r) {
			s.cols[c] = nil
		}
	}
	s.at = nil
	return s
}
