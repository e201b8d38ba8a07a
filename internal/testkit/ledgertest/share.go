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
			// Each part is rounded.
			if off := want.Sub(want, rat(has[n])); off.Abs(off).Cmp(big.NewRat(int64(len(r.workloads)), 1)) > 0 {
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

// shares returns what a policy adds to each group.
func (r *queryRound) shares(q *query.Query, from, to int64) map[string]idleShare {
	energy := map[*bookNode]bool{}
	idle, all := map[*bookNode]*idleShare{}, map[*bookNode]*big.Rat{}
	claims := map[*bookWorkload]*big.Rat{}
	for i := range r.book.rows {
		row := &r.book.rows[i]
		if row.minute < from || row.minute >= to || !q.Scope.All && len(q.Scope.Clusters) > 0 && !slices.Contains(q.Scope.Clusters, row.workload.node.cluster) ||
			r.book.excludes(row.workload.node, row.minute, q) {
			continue
		}
		node := row.workload.node
		if idle[node] == nil {
			idle[node], all[node] = &idleShare{new(big.Rat), new(big.Rat)}, new(big.Rat)
		}
		switch row.workload.told.Kind {
		case workload.Idle:
			for _, res := range usage.Energies {
				energy[node] = energy[node] || row.usage.Present.Has(res)
				idle[node][0].Add(idle[node][0], new(big.Rat).SetInt64(row.usage.Amount[res]))
			}
			idle[node][1].Add(idle[node][1], new(big.Rat).SetInt64(row.usage.Amount[usage.EnergyError]))
		case workload.System, workload.VM:
		default:
			if row.usage.Present.Has(usage.EnergyIdle) {
				continue // it has its part already
			}
			v := new(big.Rat).SetInt64(row.usage.Amount[usage.CPU])
			if q.Idle == "equal" {
				v.SetInt64(int64(row.usage.Covered.Round(1e6)))
			}
			all[node].Add(all[node], v)
			if claims[row.workload] == nil {
				claims[row.workload] = new(big.Rat)
			}
			claims[row.workload].Add(claims[row.workload], v)
		}
	}
	change := map[string]idleShare{}
	for _, w := range r.workloads {
		if !energy[w.node] || all[w.node].Sign() == 0 || !r.book.includes(w, q) || w.told.Kind == workload.System {
			continue
		}
		part := new(big.Rat)
		switch {
		case w.told.Kind == workload.Idle:
			part.SetInt64(-1)
		case claims[w] != nil:
			part.Quo(claims[w], all[w.node])
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
		for n, v := range idle[w.node] {
			c[n].Add(c[n], new(big.Rat).Mul(v, part))
		}
		change[k] = c
	}
	return change
}
