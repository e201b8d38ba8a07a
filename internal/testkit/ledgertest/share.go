package ledgertest

import (
	"math/big"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// An idleShare is idle energy and its error.
type idleShare [2]*big.Rat

// energyOf returns the energy of a total and its error, idle parts included.
func energyOf(t *query.Total) [2]unit.Sum {
	sum, _ := t.AllEnergy()
	return [2]unit.Sum{sum, t.Sum[usage.EnergyError].Plus(t.IdleError)}
}

// checkIdleShares sends a query with an idle policy: each group has its energy without a
// policy plus its part of each machine's idle energy, and nothing is lost.
func (r *queryRound) checkIdleShares(q query.Query, from, to int64) {
	q.Limit = 0
	plain, err := r.l.Usage(r.t.Context(), q)
	if err != nil {
		r.Fatal(err)
	}
	q.Idle = rapid.SampledFrom([]string{"equal", "used"}).Draw(r.T, "idle")
	got, err := r.l.Usage(r.t.Context(), q)
	if err != nil {
		r.Fatalf("%+v: %v", q, err)
	}
	if len(got.Groups) != len(plain.Groups) || got.Capacity.Sum != plain.Capacity.Sum {
		r.Fatalf("%+v: %d groups of %v, want %d of %v", q, len(got.Groups), got.Capacity.Sum, len(plain.Groups), plain.Capacity.Sum)
	}
	change := r.shares(&q, from, to)
	var before, after [2]unit.Sum
	for i := range got.Groups {
		was, is := &plain.Groups[i], &got.Groups[i]
		if !slices.Equal(was.Keys, is.Keys) || was.Nodes != is.Nodes || was.First != is.First || was.Last != is.Last || was.Usage.Covered != is.Usage.Covered {
			r.Fatalf("%+v: group %+v, want %+v", q, is, was)
		}
		for res := usage.Resource(1); res < usage.EnergyPackage; res++ {
			if was.Usage.Sum[res] != is.Usage.Sum[res] {
				r.Fatalf("%+v: group %q: %s is %v, want %v", q, is.Keys, res, is.Usage.Sum[res], was.Usage.Sum[res])
			}
		}
		had, has := energyOf(&was.Usage), energyOf(&is.Usage)
		for n := range had {
			before[n], after[n] = before[n].Plus(had[n]), after[n].Plus(has[n])
			want := rat(had[n])
			if c := change[strings.Join(is.Keys, "\x00")]; c[n] != nil {
				want.Add(want, c[n])
			}
			// The part of each row is rounded.
			if off := want.Sub(want, rat(has[n])); off.Abs(off).Cmp(big.NewRat(int64(len(r.book.rows)), 1)) > 0 {
				r.Fatalf("%+v: group %q: %v of %d is off by %v", q, is.Keys, has[n], n, off)
			}
		}
	}
	if len(q.Where) == 0 && !q.OmitOwn && len(q.Scope.Projects) == 0 && before != after {
		r.Fatalf("%+v: all groups sum to %v, want %v", q, after, before)
	}
}

func rat(s unit.Sum) *big.Rat {
	v, _ := new(big.Rat).SetString(s.String())
	return v
}

// An idleUnit is a machine in an hour, for which idle energy is divided; in a day where hours are no
// longer kept.
type idleUnit struct {
	node *bookNode
	at   int64 // its first minute
}

// A unitClaim is what a workload used in a unit.
type unitClaim struct {
	of  idleUnit
	by  *bookWorkload
	use *big.Rat
	has usage.Set
}

// shares returns what a policy adds to each group.
func (r *queryRound) shares(q *query.Query, from, to int64) map[string]idleShare {
	_, _, _, hourFloor := r.db.marks()
	energy, idle := map[idleUnit]bool{}, map[idleUnit]*idleShare{}
	type claimant struct {
		idleUnit
		*bookWorkload
	}
	claims := map[claimant]*unitClaim{}
	for i := range r.book.rows {
		row := &r.book.rows[i]
		if row.minute < from || row.minute >= to || !q.Scope.All && len(q.Scope.Clusters) > 0 && !slices.Contains(q.Scope.Clusters, row.workload.node.cluster) ||
			r.book.excludes(row.workload.node, row.minute, q) {
			continue
		}
		at := idleUnit{row.workload.node, row.minute - row.minute%60}
		if day := row.minute - row.minute%dayMinutes; day < hourFloor {
			at.at = day
		}
		if idle[at] == nil {
			idle[at] = &idleShare{new(big.Rat), new(big.Rat)}
		}
		switch row.workload.told.Kind {
		case workload.Idle:
			for _, res := range usage.Energies {
				energy[at] = energy[at] || row.usage.Present.Has(res)
				idle[at][0].Add(idle[at][0], new(big.Rat).SetInt64(row.usage.Amount[res]))
			}
			idle[at][1].Add(idle[at][1], new(big.Rat).SetInt64(row.usage.Amount[usage.EnergyError]))
		case workload.System, workload.VM:
		default:
			v := new(big.Rat).SetInt64(row.usage.Amount[usage.CPU])
			if q.Idle == "equal" {
				v.SetInt64(int64(row.usage.Covered.Round(1e6)))
			}
			c := claims[claimant{at, row.workload}]
			if c == nil {
				c = &unitClaim{of: at, by: row.workload, use: new(big.Rat)}
				claims[claimant{at, row.workload}] = c
			}
			c.use.Add(c.use, v)
			c.has |= row.usage.Present
		}
	}
	all := map[idleUnit]*big.Rat{}
	for k, c := range claims {
		if c.has.Has(usage.EnergyIdle) {
			delete(claims, k) // it has its part already
			continue
		}
		if all[c.of] == nil {
			all[c.of] = new(big.Rat)
		}
		all[c.of].Add(all[c.of], c.use)
	}
	change := map[string]idleShare{}
	add := func(w *bookWorkload, u idleUnit, part *big.Rat) {
		if !r.book.includes(w, q) {
			return
		}
		var keys []string
		for _, d := range q.By {
			keys = append(keys, r.book.value(w, d, q.Scope))
		}
		k := strings.Join(keys, "\x00")
		c, ok := change[k]
		if !ok {
			c = idleShare{new(big.Rat), new(big.Rat)}
		}
		for n, v := range idle[u] {
			c[n].Add(c[n], new(big.Rat).Mul(v, part))
		}
		change[k] = c
	}
	divided := func(u idleUnit) bool { return energy[u] && all[u] != nil && all[u].Sign() > 0 }
	for _, c := range claims {
		if divided(c.of) {
			add(c.by, c.of, new(big.Rat).Quo(c.use, all[c.of]))
		}
	}
	for _, w := range r.workloads {
		for u := range idle {
			if w.told.Kind == workload.Idle && w.node == u.node && divided(u) {
				add(w, u, big.NewRat(-1, 1))
			}
		}
	}
	return change
}
