// Package idle divides what machines use while they are idle among the
// workloads on them.
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

// Divide divides the energy that each machine used while idle among the groups on
// it, in the range that they are of. The last two keys of each group are its node
// and its kind.
//
// All are the groups that there are on the machines, of whatever keys come
// before those two; groups are those that were asked for, which are the same or
// fewer, or cut otherwise. What those get that nobody asked for is in no group.
// Idle and system claim nothing: they are the machine's own. Nor do virtual machines,
// which were given their part when they were booked. Where nobody claims
// anything, or p is power.None, idle keeps it. What a group gets is in its Idle,
// and what idle had is nowhere else any more, so that the parts sum to the idle
// energy exactly. How far that may be off is divided likewise.
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
			m.present = m.present.Plus(coveredTime(u))
		}
	}
	for i := range groups {
		node, kind := nodeAndKind(groups[i].Keys)
		m := machines[node]
		if m == nil {
			continue // nothing is known of it
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

// nodeAndKind are the node and the kind of a group.
func nodeAndKind(keys []string) (node, kind string) { return keys[len(keys)-2], keys[len(keys)-1] }

func coveredTime(u *query.Total) unit.Sum { return unit.Sum{}.Add(max(0, int64(u.ClaimCovered))) }

// A machine is one node, with what is asked of it.
type machine struct {
	idle          query.Total // all of it
	used, present unit.Sum    // what all workloads on it can claim with

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
	if energy.DivideIdle(p, 1, claims, out) > 0 { // nobody claims anything
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

// claims are those of the claimants; the last is that of all others.
func (m *machine) claims() []energy.Claim {
	var used, here []unit.Sum
	for _, u := range m.claimants {
		used, here = append(used, u.ClaimCPU), append(here, coveredTime(u))
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

// weights are the parts of a whole and, the last one, what is left of it. They
// are in a unit in which the whole fits 63 bits.
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
		left = 0 // but for what was shifted out
	}
	return append(out, left)
}

// MergeNodes takes node and kind off the groups' keys, and makes one group of those
// that are alike without. The order is that of the first of each.
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
