package ledgertest

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// checkNested compares the host of each node at the end.
func (r *queryRound) checkNested() {
	hosts := map[string]string{} // by node; "" if it is not a guest
	for _, n := range r.book.nodes {
		if hosts[n.id] = ""; n.in != nil {
			hosts[n.id] = n.in.node.id
		}
	}
	nodes, err := r.l.Nodes(r.t.Context(), query.Scope{All: true})
	if err != nil {
		r.Fatal(err)
	}
	for _, n := range nodes {
		var host string
		if n.Nested != nil {
			host = n.Nested.Host
		}
		if want, ok := hosts[n.ID]; ok && host != want {
			r.Fatalf("node %s is nested in %q, want %q", n.ID, host, want)
		}
	}
}

// checkAnswer compares an answer with the book.
func (r *queryRound) checkAnswer() {
	q := r.query()
	var got *query.Answer
	err := Try(r, func() (err error) {
		got, err = r.l.Usage(r.t.Context(), q)
		return err
	})
	if err != nil {
		r.Fatalf("%+v: %v", q, err)
	}
	from, to := r.minutes(&q)
	if got.From.Unix() != 60*from || got.To.Unix() != 60*to || got.From.Nanosecond()+got.To.Nanosecond() != 0 {
		r.Fatalf("%+v: from %v to %v, want from %v to %v", q, got.From, got.To, time.Unix(60*from, 0).UTC(), time.Unix(60*to, 0).UTC())
	}
	want := r.book.groups(&q, from, to)
	r.checkTotals(&q, got, want, from, to)
	if q.Limit > 0 && len(want) > q.Limit {
		want = want[:q.Limit]
	}
	if len(got.Groups) != len(want) {
		r.Fatalf("%+v: %d groups %v, want %d", q, len(got.Groups), got.Groups, len(want))
	}
	for i, g := range want {
		r.checkGroup(&q, &got.Groups[i], g)
	}
	r.checkGuests(q, got, from, to)
	r.checkWorkloads(q, from, to)
	if rapid.IntRange(0, 3).Draw(r.T, "periods") == 0 {
		r.checkPeriods(q, from, to)
	}
	if rapid.Bool().Draw(r.T, "few") {
		r.checkTop(q)
	}
	if rapid.Bool().Draw(r.T, "shared") {
		r.checkIdleShares(q, from, to)
	}
}

// checkGuests compares the groups of guests that an answer has beside its other groups.
func (r *queryRound) checkGuests(q query.Query, got *query.Answer, from, to int64) {
	mode, also := q.Nested, q.Nested == query.NestedAlso || q.Nested == "" && slices.Contains(q.By, query.ByNode)
	if also {
		mode = query.NestedAlso
	}
	if got.Nested != mode {
		r.Fatalf("%+v: nested %q, want %q", q, got.Nested, mode)
	}
	var want []*groupTotal
	if q.Nested = query.NestedOnly; also {
		want = r.book.groups(&q, from, to)
	}
	if q.Limit > 0 && len(want) > q.Limit {
		want = want[:q.Limit]
	}
	if len(got.NestedGroups) != len(want) {
		r.Fatalf("%+v: %d groups of guests %v, want %d", q, len(got.NestedGroups), got.NestedGroups, len(want))
	}
	for i, g := range want {
		r.checkGroup(&q, &got.NestedGroups[i], g)
	}
}

// checkGroup compares a group of an answer with the expected one.
func (r *queryRound) checkGroup(q *query.Query, got *query.Group, want *groupTotal) {
	fail := func(what string, g, w any) {
		r.Helper()
		r.Fatalf("%+v: group %q: %s %v, want %v", *q, want.keys, what, g, w)
	}
	u := &got.Usage
	switch {
	case !slices.Equal(got.Keys, want.keys):
		fail("keys", got.Keys, want.keys)
	case got.Nodes != len(want.nodes):
		fail("nodes", got.Nodes, len(want.nodes))
	case u.Present != want.present:
		fail("present", u.Present, want.present)
	case u.Quality != want.quality:
		fail("quality", u.Quality, want.quality)
	case u.Covered != unit.Sum{}.Add(int64(want.covered)):
		fail("covered", u.Covered, want.covered)
	}
	for i, s := range want.sums {
		if u.Sum[i].String() != s.String() {
			fail(usage.Resource(i).String(), u.Sum[i], s)
		}
	}
	// The instants are as fine as the rows that the answer was read from.
	first, last := got.First.Unix()/60, got.Last.Unix()/60
	if first > want.first || first < want.first-want.first%dayMinutes {
		fail("first", got.First, time.Unix(60*want.first, 0))
	}
	if last < want.last || last > want.last+dayMinutes-1 {
		fail("last", got.Last, time.Unix(60*want.last, 0))
	}
}

// checkTotals compares an answer's time, gaps and capacity with those of the nodes.
func (r *queryRound) checkTotals(q *query.Query, got *query.Answer, groups []*groupTotal, from, to int64) {
	var over time.Duration
	gaps := 0
	whole := map[usage.Resource]*big.Int{}
	filtered := len(q.Where) > 0 || q.OmitOwn || len(q.Scope.Projects) > 0 || !q.Scope.All && len(q.Scope.Clusters) == 0
	for _, n := range r.book.nodes {
		if !r.book.inScope(n, q.Scope, r.workloads) {
			continue
		}
		var covered time.Duration
		for m, at := range n.minutes {
			if m < from || m >= to {
				continue
			}
			if covered += at.covered; r.book.excludes(n, m, q) {
				continue
			}
			for i, res := range usage.Wholes {
				if whole[res] == nil {
					whole[res] = new(big.Int)
				}
				whole[res].Add(whole[res], at.had[i])
			}
		}
		over = max(over, covered)
		for _, g := range r.book.gaps {
			if g.node == n && g.from.Before(got.To) && g.to.After(got.From) {
				gaps++
			}
		}
	}
	if got.AveragedOver != over || got.Gaps != gaps {
		r.Fatalf("%+v: over %v with %d gaps, want %v with %d", *q, got.AveragedOver, got.Gaps, over, gaps)
	}
	for _, res := range usage.Wholes {
		parts, quality := new(big.Int), usage.Absent
		for _, g := range groups {
			parts.Add(parts, g.sums[res])
			if g.present.Has(res) {
				quality = max(quality, g.quality.Get(res))
			}
		}
		// Energy has no capacity of its own: it is the sum of the groups.
		energy := slices.Contains(usage.Energies[:], res)
		there := !filtered && (!energy || quality != usage.Absent)
		if there != got.Capacity.Present.Has(res) {
			r.Fatalf("%+v: whole has %s: %v", *q, res, !there)
		}
		if !there {
			continue
		}
		if modelled := energy && quality == usage.Modelled; modelled != (got.Capacity.Quality.Get(res) == usage.Modelled) {
			r.Fatalf("%+v: whole %s is %v of parts that are %v", *q, res, got.Capacity.Quality.Get(res), quality)
		}
		if w := whole[res]; w != nil && w.Cmp(parts) != 0 || got.Capacity.Sum[res].String() != parts.String() {
			r.Fatalf("%+v: whole %s is %v, want %v, of parts %v", *q, res, got.Capacity.Sum[res], w, parts)
		}
	}
}

// checkWorkloads compares the list of the query's workloads.
func (r *queryRound) checkWorkloads(q query.Query, from, to int64) {
	q.Limit = 0
	var got []query.Workload
	err := Try(r, func() (err error) {
		got, err = r.l.Workloads(r.t.Context(), q)
		return err
	})
	if err != nil {
		r.Fatalf("workloads of %+v: %v", q, err)
	}
	want := map[string]*bookWorkload{}
	for i := range r.book.rows {
		if row := &r.book.rows[i]; row.minute >= from && row.minute < to && r.book.includes(row.workload, &q) {
			want[fmt.Sprint(row.workload.node.name, row.workload.told.ID)] = row.workload
		}
	}
	found := map[string]bool{}
	for _, w := range got {
		found[fmt.Sprint(w.Node, w.ID)] = true
	}
	if a, b := slices.Sorted(maps.Keys(found)), slices.Sorted(maps.Keys(want)); !slices.Equal(a, b) {
		r.Fatalf("workloads of %+v: %v, want %v", q, a, b)
	}
	// The pages together are the same list.
	q.Limit = max(1, len(got)/3)
	var pages []query.Workload
	for {
		page, err := r.l.Workloads(r.t.Context(), q)
		if err != nil || len(page) > q.Limit {
			r.Fatalf("page of %+v: %d workloads, %v", q, len(page), err)
		}
		if len(page) == 0 {
			break
		}
		pages = append(pages, page...)
		q.After = page[len(page)-1].PageKey()
	}
	if d := cmp.Diff(got, pages); d != "" {
		r.Fatalf("pages of %+v (-list +pages):\n%s", q, d)
	}
}
