package read

import (
	"fmt"
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
	for i, r := range usage.Wholes {
		sum, ok := sums[i].total()
		if !ok {
			continue // skew of earlier minutes can exceed a short range
		}
		into.Sum[r] = sum
		into.Present |= usage.SetOf(r)
		into.Quality.Set(r, usage.Measured)
	}
	return nil
}

// wholes are sums of usage.Wholes, skew included.
type wholes [len(usage.Wholes)]halves

// halves are a sum of integers: of the lower 32 bits of each, and of the rest. Neither overflows.
type halves struct{ high, low int64 }

// split splits an integer.
func split(v int64) halves { return halves{v >> 32, int64(uint32(v))} }

func (h *halves) add(o halves) { h.high, h.low = h.high+o.high, h.low+o.low }

// total returns the sum, or false if it is negative.
func (h halves) total() (unit.Sum, bool) {
	carry := split(h.low)
	high := h.high + carry.high
	return unit.SumOf(uint64(high)>>32, uint64(high)<<32).Add(carry.low), high >= 0
}

// noNodes is the most CPUs of a node if there is none.
const noNodes = -1

// sumWholes returns the sums of usage.Wholes, and the most CPUs that a node had. A node without CPUs is
// a machine of which only jobs are measured.
func (s *selection) sumWholes(ranges []schema.Range) (sums wholes, most int64, err error) {
	if s.rd.db.IsSQLite() {
		return s.wholesOfBlocks(ranges)
	}
	most = noNodes
	var part wholes
	var cpus int64
	cols, into := []string{fmt.Sprintf("CAST(coalesce(max(u.cpus), %d) AS {int})", noNodes)}, []any{&cpus}
	for i, r := range usage.Wholes {
		high := fmt.Sprintf("(u.whole_%[1]s >> 32) + (u.skew_%[1]s >> 32)", r)
		low := fmt.Sprintf("(u.whole_%[1]s & 4294967295) + (u.skew_%[1]s & 4294967295)", r)
		cols = append(cols, "CAST(coalesce(sum("+high+"), 0) AS {int})", "CAST(coalesce(sum("+low+"), 0) AS {int})")
		into = append(into, &part[i].high, &part[i].low)
	}
	for _, p := range ranges {
		args := arguments{p.From, p.To}
		text := fmt.Sprintf("SELECT %s FROM %s u JOIN node n ON n.id = %s WHERE u.minute >= $1 AND u.minute < $2%s%s",
			strings.Join(cols, ", "), p.Table(schema.NodeLayout), schema.IDOf("u.node"), clusterCondition(&args, s.q.Scope), s.outsideCondition("n.id", "u.node"))
		if err := s.v.SQL.QueryRowContext(s.v.Ctx, s.rd.db.Expand(text), args...).Scan(into...); err != nil {
			return sums, noNodes, s.rd.db.Fault(err)
		}
		most = max(most, cpus)
		for i := range sums {
			sums[i].add(part[i])
		}
	}
	return sums, most, nil
}

// wholesOfBlocks is sumWholes from blocks.
func (s *selection) wholesOfBlocks(ranges []schema.Range) (sums wholes, most int64, err error) {
	args := arguments{}
	matches, err := s.nodesWhere(clusterCondition(&args, s.q.Scope), args)
	if err != nil {
		return sums, noNodes, s.rd.db.Fault(err)
	}
	most = noNodes
	if s.nesting.guestsOnly && len(s.nesting.covered) == 0 {
		return sums, most, nil
	}
	err = s.rd.scanBlocks(s.v, nodeBlocks, 0, ranges, false, nil, func(b *block) error {
		for i, key := range b.keys {
			node, host := schema.SplitKey(key)
			if !matches[node] || s.nesting.excludes(node, host) {
				continue
			}
			most = max(most, b.value(blockCPUs, i))
			for w := range sums {
				whole, skew := wholeColumns(w)
				sums[w].add(split(b.value(whole, i)))
				sums[w].add(split(b.value(skew, i)))
			}
		}
		return nil
	})
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
			return longest, s.rd.db.Fault(err)
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
			return longest, s.rd.db.Fault(err)
		}
	}
	return longest, nil
}
