package read

import (
	"slices"

	"mete.dev/mete/internal/attribute/idle"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/schema"
)

// groups are the groups of all ranges in their order, with the energy of idle
// machines divided among them as it was asked for. Those that nobody will see may be
// in the rest of the answer instead.
func (s *selection) computeGroups(ranges []schema.Range, a *query.Answer) ([]query.Group, error) {
	if s.idle == power.None {
		sums, err := s.sumGroups(ranges)
		if err != nil {
			return nil, s.rd.db.Fault(err)
		}
		if s.q.Top != nil && a.AveragedOver > 0 {
			return sums.top(s.q.Top, a), nil
		}
		return sums.sorted(), nil
	}
	ends := []query.Dimension{query.ByNode, query.ByKind}
	fine := *s.q
	fine.By = slices.Concat(s.q.By, ends)
	groups, err := s.groupsOf(&fine, ranges)
	if err != nil {
		return nil, err
	}
	all := groups
	if s.filtered() {
		// What was not asked for has its share all the same.
		all, err = s.groupsOf(&query.Query{By: ends, Resources: s.want, Scope: query.Scope{All: s.q.Scope.All || len(s.q.Scope.Clusters) == 0, Clusters: s.q.Scope.Clusters}}, ranges)
		if err != nil {
			return nil, err
		}
	}
	idle.Divide(s.idle, groups, all)
	groups = idle.MergeNodes(groups)
	slices.SortFunc(groups, func(a, b query.Group) int { return compareUse(&a, &b) })
	return groups, nil
}

func (s *selection) groupsOf(q *query.Query, ranges []schema.Range) ([]query.Group, error) {
	other, err := s.rd.newSelection(s.v, q)
	if err != nil {
		return nil, err
	}
	if other.nest = s.nest; s.nest.only || !s.nest.all {
		other.grouped = false
	}
	return other.groupsIn(ranges)
}

func (s *selection) groupsIn(ranges []schema.Range) ([]query.Group, error) {
	sums, err := s.sumGroups(ranges)
	if err != nil {
		return nil, s.rd.db.Fault(err)
	}
	return sums.sorted(), nil
}

// filtered says that not all workloads of the nodes were asked for.
func (s *selection) filtered() bool {
	return len(s.q.Where) > 0 || s.q.OmitOwn || !s.q.Scope.All && len(s.q.Scope.Projects) > 0
}

// judgeEnergies says of the energy that nodes had how it came about, which stands with
// its parts: a part is apportioned where the whole was measured. Of what no part
// has, nobody saw the whole.
func judgeEnergies(groups []query.Group, rest, whole *query.Total) {
	for _, r := range usage.Energies {
		worst := rest.Quality.Get(r)
		for i := range groups {
			if u := &groups[i].Usage; u.Present.Has(r) {
				worst = max(worst, u.Quality.Get(r))
			}
		}
		switch worst {
		case usage.Absent:
			whole.Present &^= usage.SetOf(r)
			whole.Quality.Set(r, usage.Absent)
		case usage.Modelled:
			whole.Quality.Worsen(r, usage.Modelled)
		}
	}
}
