// Package idle divides the idle energy of machines among their workloads.
//
// It is divided machine by machine, hour by hour and workload by workload, in integers. The share of
// a group of workloads over a range is the sum of these parts. So the shares over ranges of whole
// hours sum to the share over the range that they form, and filters change no share.
package idle

import (
	"iter"
	"slices"
	"strings"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Share is a part of the idle energy of a machine, and its error, in uJ.
type Share struct{ Energy, Error unit.Sum }

// Add adds o to s.
func (s *Share) Add(o Share) { s.Energy, s.Error = s.Energy.Plus(o.Energy), s.Error.Plus(o.Error) }

// A Claim is a workload's claim to the idle energy of its machine in an hour.
type Claim struct {
	CPU     int64 // used CPU time, ns
	Covered int64 // how long it existed; any unit, but the same for all claims
}

// Claims reports whether a workload of a kind, with these resources, claims idle energy. Idle and
// system do not: they belong to the machine. Volumes, which belong to no machine, do not. Virtual machines do
// not, nor other workloads that have idle energy of their own: they got their part when they were booked. Nor does
// what is reserved, which is booked beside what is used.
func Claims(kind string, present usage.Set) bool {
	switch kind {
	case Kind, system, guest, volume:
		return false
	}
	return !present.Has(usage.EnergyIdle) && (present&usage.Specified == 0 || present&usage.Metered != 0)
}

// Kind is the kind of the row that holds the idle energy of a machine.
var Kind = workload.Idle.String()

var system, guest, volume = workload.System.String(), workload.VM.String(), workload.Volume.String()

// A Divider divides the idle energy of one machine after another.
type Divider struct {
	Policy power.Policy
	claims []energy.Claim
	out    []int64
	shares []Share
}

// Divide divides the idle energy of a machine in an hour among claims. The shares sum to whole
// exactly; they are valid until the next call. It returns nil if nothing claims anything, or if the
// policy is power.None: then the machine keeps its idle energy.
func (d *Divider) Divide(whole Share, claims []Claim) []Share {
	d.claims, d.shares = d.claims[:0], slices.Grow(d.shares[:0], len(claims))[:len(claims)]
	for _, c := range claims {
		d.claims = append(d.claims, energy.Claim{Used: c.CPU, Present: c.Covered})
	}
	d.out = slices.Grow(d.out[:0], len(claims))[:len(claims)]
	if energy.DivideIdle(d.Policy, 1, d.claims, d.out) == 1 {
		return nil
	}
	clear(d.shares)
	give := func(amount unit.Sum, to func(s *Share) *unit.Sum) {
		for amount != (unit.Sum{}) {
			part := amount.Int64()
			amount = amount.Add(-part)
			energy.DivideIdle(d.Policy, part, d.claims, d.out)
			for i, v := range d.out {
				sum := to(&d.shares[i])
				*sum = sum.Add(v)
			}
		}
	}
	give(whole.Energy, func(s *Share) *unit.Sum { return &s.Energy })
	give(whole.Error, func(s *Share) *unit.Sum { return &s.Error })
	return d.shares
}

// Put sets the idle energy of a group of a machine whose idle energy has this quality. kind is of the
// group. The energy of the group idle moves from its resources to its share, as far as it was not
// divided.
func Put(u *query.Total, kind string, s Share, quality usage.Quality) {
	if quality == usage.Absent {
		return
	}
	u.Idle, u.IdleError, u.IdleQuality = s.Energy, s.Error, max(quality, usage.Apportioned)
	if kind != Kind {
		return
	}
	for _, r := range usage.Energies {
		u.Sum[r] = unit.Sum{}
	}
	u.Sum[usage.EnergyError], u.Sum[usage.EnergyIdle] = unit.Sum{}, unit.Sum{}
}

// MergeNodes removes node and kind from the groups' keys and merges groups that are then equal, in
// order of first occurrence. It holds no group after the next one, so that only the merged ones take memory.
func MergeNodes(groups iter.Seq[*query.Group]) (out []query.Group) {
	type place struct {
		at    int
		nodes map[string]bool
	}
	places := map[string]*place{}
	for g := range groups {
		node := g.Keys[len(g.Keys)-2]
		keys := g.Keys[:len(g.Keys)-2]
		name := strings.Join(keys, "\x00")
		p := places[name]
		if p == nil {
			p = &place{len(out), map[string]bool{}}
			places[name] = p
			out = append(out, query.Group{Keys: keys, First: g.First, Last: g.Last})
		}
		to := &out[p.at]
		if g.Nodes > 0 { // volumes are on none
			p.nodes[node] = true
		}
		to.Nodes = len(p.nodes)
		if g.First.Before(to.First) {
			to.First = g.First
		}
		if g.Last.After(to.Last) {
			to.Last = g.Last
		}
		to.Usage.Add(&g.Usage)
	}
	return out
}
