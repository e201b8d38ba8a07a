package read

import (
	"math"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A block is the rows of a range in memory: one for each key, of the amounts of
// all its rows, column by column.
type block struct {
	schema.Range
	kind *blockKind
	has  usage.Set // of usage: the resources of which it has amounts
	keys []int64   // a key whose sums would not fit 64 bits is there again
	// first and last are the minutes of a key's first and last row, from the
	// range's start on; nil where the range is one row long.
	first, last []int32
	cols        [][]int64 // as kind says; nil is all zero

	at map[int64]int32 // where a key is, until the block is whole; nil where each comes once
}

// A blockKind is what blocks of one shape hold.
type blockKind struct {
	shape *schema.Layout
	rules []schema.MergeRule
}

// The columns of blocks of usage: what is there, how good where it is, ms, what of
// CPU time and of ms was given its idle energy already, and so claims none. The
// amount of resource r is at blockAmounts + r.
const (
	blockPresent = iota
	blockUncertainty
	blockCovered
	blockGivenCPU
	blockGivenCovered
	blockAmounts = blockGivenCovered // as resources begin with 1
)

// The columns of blocks of nodes: CPUs, ms for which the machine was measured as a
// whole, and two for each of usage.Wholes: the whole, and skew.
const (
	blockCPUs = iota
	blockMeasured
	blockWholes
)

var (
	usageBlocks = func() *blockKind {
		k := &blockKind{schema.UsageLayout, []schema.MergeRule{schema.MergeOr, schema.MergeOr, schema.MergeSum, schema.MergeSum, schema.MergeSum}}
		usage.All.Each(func(r usage.Resource) {
			h := schema.MergeSum
			if isPeak[r] {
				h = schema.MergeMax
			}
			k.rules = append(k.rules, h)
		})
		return k
	}()
	nodeBlocks = &blockKind{schema.NodeLayout, append([]schema.MergeRule{schema.MergeMax, schema.MergeSum}, make([]schema.MergeRule, 2*len(usage.Wholes))...)}
)

func newBlock(k *blockKind, p schema.Range, has usage.Set, rows int) *block {
	s := &block{Range: p, kind: k, has: has, cols: make([][]int64, len(k.rules)), keys: make([]int64, 0, rows)}
	if p.To-p.From > p.Level.Width() {
		s.at, s.first, s.last = make(map[int64]int32, rows), make([]int32, 0, rows), make([]int32, 0, rows)
	}
	return s
}

// add adds a row, or the sum of some between two minutes.
func (s *block) add(key, first, last int64, values []int64) {
	if s.at == nil {
		s.append(key, first, last, values)
		return
	}
	i, ok := s.at[key]
	if !ok || !s.fits(i, values) {
		s.at[key] = int32(len(s.keys))
		s.append(key, first, last, values)
		return
	}
	s.first[i], s.last[i] = min(s.first[i], int32(first-s.From)), max(s.last[i], int32(last-s.From))
	for c, v := range values {
		if v == 0 {
			continue
		}
		col := s.column(c)
		switch s.kind.rules[c] {
		case schema.MergeSum:
			col[i] += v
		case schema.MergeOr:
			col[i] |= v
		case schema.MergeMax, schema.MergeLatest:
			col[i] = max(col[i], v)
		}
	}
}

func (s *block) append(key, first, last int64, values []int64) {
	s.keys = append(s.keys, key)
	if s.first != nil {
		s.first, s.last = append(s.first, int32(first-s.From)), append(s.last, int32(last-s.From))
	}
	for c, v := range values {
		switch {
		case s.cols[c] != nil:
			s.cols[c] = append(s.cols[c], v)
		case v != 0:
			s.column(c)[len(s.keys)-1] = v
		}
	}
}

// column is a column with a place for each key.
func (s *block) column(c int) []int64 {
	if s.cols[c] == nil {
		s.cols[c] = make([]int64, len(s.keys), cap(s.keys))
	}
	return s.cols[c]
}

// fits says whether values can be added to a row.
func (s *block) fits(i int32, values []int64) bool {
	for c, v := range values {
		if s.kind.rules[c] != schema.MergeSum || v == 0 || s.cols[c] == nil {
			continue
		}
		if a := s.cols[c][i]; v > 0 && a > math.MaxInt64-v || v < 0 && a < math.MinInt64-v {
			return false
		}
	}
	return true
}

// value is that of a row in a column.
func (s *block) value(c, i int) int64 {
	if s.cols[c] == nil {
		return 0
	}
	return s.cols[c][i]
}

// span are the minutes in which the first row of a key begins and the last one
// ends.
func (s *block) span(i int) (first, end int64) {
	if s.first == nil {
		return s.From, s.To
	}
	return s.From + int64(s.first[i]), s.From + int64(s.last[i]) + s.Level.Width()
}

// bytes is how much memory it takes, about.
func (s *block) bytes() int64 {
	n := 8*cap(s.keys) + 4*cap(s.first) + 4*cap(s.last)
	for _, c := range s.cols {
		n += 8 * cap(c)
	}
	return int64(n)
}

// joinBlocks is blocks of parts of a range as one block.
func joinBlocks(p schema.Range, parts []*block) *block {
	has, rows := usage.All, 0
	for _, part := range parts {
		has &= part.has
		rows = max(rows, len(part.keys))
	}
	s := newBlock(parts[0].kind, p, has, rows+rows/8)
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
