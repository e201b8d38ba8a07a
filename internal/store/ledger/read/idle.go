package read

import (
	"slices"

	"mete.dev/mete/internal/attribute/idle"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/schema"
)

// computeGroups returns the groups of all ranges in order, with idle energy divided by the query's
// policy. Groups that the query leaves out may be added to a.Other.
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
	if s.isFiltered() {
		// Workloads that the filters exclude have their share too.
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
	if other.nesting = s.nesting; s.nesting.guestsOnly || !s.nesting.coversAll {
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

// filtered reports whether the query excludes workloads of its nodes.
func (s *selection) isFiltered() bool {
	return len(s.q.Where) > 0 || s.q.OmitOwn || !s.q.Scope.All && len(s.q.Scope.Projects) > 0
}

// judgeEnergies derives the quality of whole energies from their parts: the whole is modelled if a
// part is, and absent if no part has it. An apportioned part comes from a measured whole.
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
