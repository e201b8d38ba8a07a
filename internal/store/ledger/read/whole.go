package read

import (
	"fmt"
	"math/big"
	"strings"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// addWhole sums what the nodes had, if the query filters by nodes only and at least one node was
// measured as a whole. Nodes that ran only measured jobs count with what these used.
func (s *selection) addWhole(ranges []schema.Range, into *query.Total) error {
	if s.isFiltered() {
		return nil
	}
	sums, most, err := s.sumWholes(ranges)
	if err != nil || most == 0 {
		return err
	}
	mask := new(big.Int).SetUint64(1<<64 - 1)
	for i, r := range usage.Wholes {
		if sums[i].Sign() < 0 || sums[i].BitLen() > 128 {
			continue // skew of earlier minutes can exceed a short range
		}
		into.Sum[r] = unit.SumOf(new(big.Int).Rsh(sums[i], 64).Uint64(), new(big.Int).And(sums[i], mask).Uint64())
		into.Present |= usage.SetOf(r)
		into.Quality.Set(r, usage.Measured)
	}
	return nil
}

// sumWholes returns the sums of usage.Wholes, skew included, and the most CPUs that a node had, or
// -1 without nodes.
func (s *selection) sumWholes(ranges []schema.Range) (sums []*big.Int, most int64, err error) {
	if s.rd.db.IsSQLite() {
		return s.wholesOfBlocks(ranges)
	}
	var cols []string
	for _, r := range usage.Wholes {
		for _, kind := range []string{"whole_", "skew_"} {
			name := "u." + kind + r.String()
			cols = append(cols, "CAST(coalesce(sum("+name+" >> 32), 0) AS {int})", "CAST(coalesce(sum("+name+" & 4294967295), 0) AS {int})")
		}
	}
	sums = noWholes()
	// A node without CPUs is a machine of which only jobs are measured.
	cols = append(cols, "CAST(coalesce(max(u.cpus), -1) AS {int})")
	parts := make([]int64, len(cols))
	dest := make([]any, len(cols))
	for i := range parts {
		dest[i] = &parts[i]
	}
	most = -1
	for _, p := range ranges {
		args := arguments{p.From, p.To}
		text := fmt.Sprintf("SELECT %s FROM %s u JOIN node n ON n.id = %s WHERE u.minute >= $1 AND u.minute < $2%s%s",
			strings.Join(cols, ", "), p.Table(schema.NodeLayout), schema.IDOf("u.node"), clusterCondition(&args, s.q.Scope), s.outsideCondition("n.id", "u.node"))
		if err := s.v.SQL.QueryRowContext(s.v.Ctx, s.rd.db.Expand(text), args...).Scan(dest...); err != nil {
			return nil, 0, s.rd.db.Fault(err)
		}
		last := len(parts) - 1
		most = max(most, parts[last])
		for i := range parts[:last] {
			v := big.NewInt(parts[i])
			if i%2 == 0 {
				v.Lsh(v, 32)
			}
			sums[i/4].Add(sums[i/4], v)
		}
	}
	return sums, most, nil
}

func noWholes() []*big.Int {
	sums := make([]*big.Int, len(usage.Wholes))
	for i := range sums {
		sums[i] = new(big.Int)
	}
	return sums
}

// wholesOfBlocks is sumWholes from blocks.
func (s *selection) wholesOfBlocks(ranges []schema.Range) (sums []*big.Int, most int64, err error) {
	args := arguments{}
	matches, err := s.nodesWhere(clusterCondition(&args, s.q.Scope), args)
	if err != nil {
		return nil, 0, s.rd.db.Fault(err)
	}
	// Sum upper and lower halves, so that no sum overflows.
	var high, low [len(usage.Wholes)]int64
	most = -1
	if s.nesting.guestsOnly && len(s.nesting.covered) == 0 {
		return noWholes(), most, nil
	}
	err = s.rd.scanBlocks(s.v, nodeBlocks, 0, ranges, false, nil, func(b *block) error {
		for i, key := range b.keys {
			node, host := schema.SplitKey(key)
			if !matches[node] || s.nesting.excludes(node, host) {
				continue
			}
			most = max(most, b.value(blockCPUs, i))
			for w := range usage.Wholes {
				for c := blockWholes + 2*w; c < blockWholes+2*w+2; c++ {
					v := b.value(c, i)
					high[w], low[w] = high[w]+v>>32, low[w]+v&(1<<32-1)
				}
			}
		}
		return nil
	})
	sums = noWholes()
	for w := range sums {
		sums[w].Add(sums[w].Lsh(big.NewInt(high[w]), 32), big.NewInt(low[w]))
	}
	return sums, most, s.rd.db.Fault(err)
}

// nodesWhere returns the nodes n that match a condition.
func (s *selection) nodesWhere(where string, args arguments) (map[int64]bool, error) {
	ids, err := db.Ints(s.v.Ctx, s.v.SQL, "SELECT n.id FROM node n WHERE true"+where, args...)
	matches := make(map[int64]bool, len(ids))
	for _, id := range ids {
		matches[id] = true
	}
	return matches, err
}

// longestCovered returns the longest time that a node was measured as a whole. Other nodes do not
// count: several of their jobs may run at once.
func (s *selection) longestCovered(ranges []schema.Range) (longest time.Duration, err error) {
	sums := map[int64]int64{}
	add := func(node, ms int64) {
		sums[node] += ms
		longest = max(longest, time.Duration(sums[node])*time.Millisecond)
	}
	if s.rd.db.IsSQLite() {
		args := arguments{}
		matches, err := s.nodesWhere(nodeCondition(&args, s.q.Scope), args)
		if err != nil {
			return 0, s.rd.db.Fault(err)
		}
		err = s.rd.scanBlocks(s.v, nodeBlocks, 0, ranges, false, nil, func(b *block) error {
			for i, key := range b.keys {
				if node, _ := schema.SplitKey(key); matches[node] {
					add(node, b.value(blockMeasured, i))
				}
			}
			return nil
		})
		return longest, s.rd.db.Fault(err)
	}
	for _, p := range ranges {
		args := arguments{p.From, p.To}
		text := fmt.Sprintf("SELECT n.id, CAST(sum(u.covered_ms) AS {int}) FROM %s u JOIN node n ON n.id = %s WHERE u.minute >= $1 AND u.minute < $2 AND u.cpus > 0%s GROUP BY n.id",
			p.Table(schema.NodeLayout), schema.IDOf("u.node"), nodeCondition(&args, s.q.Scope))
		err := db.Each(s.v.Ctx, s.v.SQL, func(scan func(...any) error) error {
			var node, ms int64
			err := scan(&node, &ms)
			add(node, ms)
			return err
		}, s.rd.db.Expand(text), args...)
		if err != nil {
			return 0, s.rd.db.Fault(err)
		}
	}
	return longest, nil
}
