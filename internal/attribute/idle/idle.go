// Package idle divides the idle energy of machines among their workloads.
package idle

import (
	"math/bits"
	"slices"
	"strings"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Divide divides the idle energy of each machine among its groups. The last two keys of each group
// are its node and its kind.
//
// all holds all groups on the machines, with any keys before those two; groups are the requested
// ones, which may be fewer or divided differently. Parts of groups that were not requested are
// dropped. Idle and system claim nothing: they belong to the machine. Virtual machines claim
// nothing either: they got their part when they were booked. If nothing claims anything, or p is
// power.None, idle keeps its energy. Divide moves the energy from the idle groups to the Idle of
// each group, so that the parts sum to the idle energy exactly. The error is divided likewise.
func Divide(p power.Policy, groups, all []query.Group) {
	machines := map[string]*machine{}
	for i := range all {
		node, kind := nodeAndKind(all[i].Keys)
		m := machines[node]
		if m == nil {
			m = &machine{}
			machines[node] = m
		}
		switch u := &all[i].Usage; kind {
		case idle:
			m.idle.Add(u)
		case system, guest:
		default:
			m.used = m.used.Plus(u.ClaimCPU)
			m.present = m.present.Plus(u.ClaimCovered)
		}
	}
	for i := range groups {
		node, kind := nodeAndKind(groups[i].Keys)
		m := machines[node]
		if m == nil {
			continue // not in all
		}
		switch u := &groups[i].Usage; kind {
		case idle:
			m.idleGroups = append(m.idleGroups, u)
		case system, guest:
			m.nonClaimants = append(m.nonClaimants, u)
		default:
			m.claimants = append(m.claimants, u)
		}
	}
	for _, m := range machines {
		m.divide(p)
	}
}

var idle, system, guest = workload.Idle.String(), workload.System.String(), workload.VM.String()

func nodeAndKind(keys []string) (node, kind string) { return keys[len(keys)-2], keys[len(keys)-1] }

// A machine is one node with its requested groups.
type machine struct {
	idle          query.Total // all of it
	used, present unit.Sum    // the total claims of all workloads

	claimants, nonClaimants, idleGroups []*query.Total
}

func (m *machine) divide(p power.Policy) {
	sum, quality := m.idle.Energy()
	if quality == usage.Absent {
		return
	}
	for _, u := range slices.Concat(m.claimants, m.nonClaimants, m.idleGroups) {
		u.IdleQuality = max(quality, usage.Apportioned)
	}
	claims, out := m.claims(), make([]int64, len(m.claimants)+1)
	if energy.DivideIdle(p, 1, claims, out) > 0 { // no claims
		for _, u := range m.idleGroups {
			u.Idle, _ = u.Energy()
			u.IdleError = u.Sum[usage.EnergyError]
		}
	} else {
		give := func(amount unit.Sum, f func(u *query.Total, part int64)) {
			for amount != (unit.Sum{}) {
				part := amount.Int64()
				amount = amount.Add(-part)
				energy.DivideIdle(p, part, claims, out)
				for i, u := range m.claimants {
					f(u, out[i])
				}
			}
		}
		give(sum, func(u *query.Total, part int64) { u.Idle = u.Idle.Add(part) })
		give(m.idle.Sum[usage.EnergyError], func(u *query.Total, part int64) { u.IdleError = u.IdleError.Add(part) })
	}
	for _, u := range m.idleGroups {
		for _, r := range usage.Energies {
			u.Sum[r] = unit.Sum{}
		}
		u.Sum[usage.EnergyError], u.Sum[usage.EnergyIdle] = unit.Sum{}, unit.Sum{}
	}
}

// claims returns the claims of the claimants; the last one is that of all other workloads.
func (m *machine) claims() []energy.Claim {
	var used, here []unit.Sum
	for _, u := range m.claimants {
		used, here = append(used, u.ClaimCPU), append(here, u.ClaimCovered)
	}
	claims := make([]energy.Claim, len(m.claimants)+1)
	for i, w := range weights(m.used, used) {
		claims[i].Used = w
	}
	for i, w := range weights(m.present, here) {
		claims[i].Present = w
	}
	return claims
}

// weights returns the parts of a whole and, last, the rest, scaled so that the whole fits 63 bits.
func weights(whole unit.Sum, parts []unit.Sum) []int64 {
	hi, lo := whole.Halves()
	shift := bits.Len64(lo) / 64
	if hi > 0 {
		shift = bits.Len64(hi) + 1
	}
	scaled := func(s unit.Sum) int64 {
		hi, lo := s.Halves()
		return int64(hi<<(64-shift) | lo>>shift)
	}
	var sum unit.Sum
	left := scaled(whole)
	out := make([]int64, len(parts), len(parts)+1)
	for i, p := range parts {
		sum = sum.Plus(p)
		out[i] = scaled(p)
		left -= out[i]
	}
	if sum == whole {
		left = 0 // ignoring rounding
	}
	return append(out, left)
}

// MergeNodes removes node and kind from the groups' keys and merges groups that are then equal, in
// order of first occurrence.
func MergeNodes(groups []query.Group) (out []query.Group) {
	type place struct {
		at    int
		nodes map[string]bool
	}
	places := map[string]*place{}
	for i := range groups {
		g := &groups[i]
		node, _ := nodeAndKind(g.Keys)
		keys := g.Keys[:len(g.Keys)-2]
		name := strings.Join(keys, "\x00")
		p := places[name]
		if p == nil {
			p = &place{len(out), map[string]bool{}}
			places[name] = p
			out = append(out, query.Group{Keys: keys, First: g.First, Last: g.Last})
		}
		to := &out[p.at]
		p.nodes[node] = true
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
