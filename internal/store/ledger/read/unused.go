package read

import (
	"slices"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/schema"
)

// unusedResources are the resources from which it follows what was reserved and not used.
var unusedResources = func() (set usage.Set) {
	for _, r := range query.Reservable {
		set |= usage.SetOf(r.Reserved, r.Used)
	}
	return set
}()

// unused is what of each of [query.Reservable] was reserved and not used.
type unused [len(query.Reservable)]query.Unused

// unusedOfGroups returns what was reserved and not used over ranges, by the names of groups. present are the resources
// that the groups have.
func (s *selection) unusedOfGroups(ranges []schema.Range, present usage.Set) (map[string]*unused, error) {
	if !s.q.Unused || present&usage.Specified == 0 {
		return nil, nil
	}
	q, n := *s.q, len(s.q.By)
	q.By = slices.Concat(q.By, []query.Dimension{query.ByNode, query.ByNamespace, query.ByPod, query.ByContainer})
	q.Resources, q.Unused, q.Idle = unusedResources, false, ""
	of, err := s.sameNesting(&q)
	if err != nil {
		return nil, err
	}
	of.where += " AND w.pod <> ''"
	sums, err := of.sumGroups(ranges)
	if err != nil {
		return nil, s.rd.db.Fault(err)
	}
	pods := map[string][]*group{}
	for _, g := range sums.all {
		name := groupName(g.keys[n : n+3])
		pods[name] = append(pods[name], g)
	}
	out := map[string]*unused{}
	for _, parts := range pods {
		slices.SortFunc(parts, func(a, b *group) int { return slices.Compare(a.keys, b.keys) })
		for i := range query.Reservable {
			sums.eachUnused(parts, i, func(g *group, u query.Unused) {
				name := groupName(g.keys[:n])
				if out[name] == nil {
					out[name] = &unused{}
				}
				out[name][i].Add(u)
			})
		}
	}
	return out, nil
}

// eachUnused calls f with what the parts of a pod, by container, reserved of a resource and did not use. Use of containers
// beyond what they reserve themselves counts against what the pod reserves beyond them, and not against other
// containers.
func (gs *groupSet) eachUnused(parts []*group, resource int, f func(*group, query.Unused)) {
	of := query.Reservable[resource]
	var beyond query.Unused                   // what they use beyond what they reserve
	for _, own := range []bool{false, true} { // the containers, and then the pod's own part
		for _, g := range parts {
			if isOwn := g.keys[len(g.keys)-1] == ""; isOwn != own {
				continue
			}
			qualities := g.uncertainty.Qualities(g.present & gs.want)
			reserved, used := g.sums[gs.column[of.Reserved]], query.Unused{Sum: g.sums[gs.column[of.Used]], Quality: qualities.Get(of.Used)}
			if own {
				used.Add(beyond)
				beyond = query.Unused{}
			}
			if used.Sum.Compare(reserved) > 0 {
				beyond.Add(query.Unused{Sum: used.Sum.Less(reserved), Quality: used.Quality})
			}
			if reserved != (unit.Sum{}) {
				f(g, query.Unused{Sum: reserved.Less(used.Sum), Quality: max(used.Quality, qualities.Get(of.Reserved))})
			}
		}
	}
}
