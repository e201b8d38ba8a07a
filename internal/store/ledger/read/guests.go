package read

import (
	"fmt"
	"maps"
	"slices"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// Nodes that are guests are within their hosts' figures: sums leave them out on
// the days on which they were, as far as the host is among what is summed.

// A nesting is the guests of the days that a question is about.
type nesting struct {
	only  bool           // it is about them, instead of all others
	out   map[int64]bool // the guests whose hosts are within what is asked for
	hosts map[int64]bool // the hosts of those
	all   bool           // there are no other guests
	count int            // how many of them the question would be about, if they were none
}

// findGuests finds the guests of the days in [from, to) minutes.
func (s *selection) findGuests(from, to int64) error {
	s.nest = nesting{out: map[int64]bool{}, hosts: map[int64]bool{}, all: true}
	switch s.q.Nested {
	case "":
	case query.NestedOnly:
		s.nest.only = true
	default:
		return fmt.Errorf("nested %q: %w", s.q.Nested, fault.ErrInvalid)
	}
	within := s.hostCondition()
	asked := map[int64]bool{}
	err := db.Each(s.v.Ctx, s.v.SQL, func(scan func(...any) error) error {
		var guest, host int64
		var g, h place
		var project string
		if err := scan(&guest, &host, &g.cluster, &g.name, &g.id, &h.cluster, &h.name, &h.id, &project); err != nil {
			return err
		}
		if host == 0 || !within(h, project) {
			s.nest.all = false
			return nil
		}
		s.nest.out[guest], s.nest.hosts[host] = true, true
		if s.coversNode(g) {
			asked[guest] = true
		}
		return nil
	}, `SELECT x.node, x.host, n.cluster, n.name, n.node_id, coalesce(h.cluster, ''), coalesce(h.name, ''), coalesce(h.node_id, ''), coalesce(w.project, '')
		FROM (SELECT DISTINCT node, host, workload FROM nested_day WHERE minute >= $1 AND minute < $2) AS x
		JOIN node n ON n.id = x.node LEFT JOIN node h ON h.id = x.host LEFT JOIN workload w ON w.id = x.workload`, from-from%schema.DayMinutes, to)
	s.nest.count = len(asked)
	if s.nest.only || !s.nest.all {
		s.grouped = false // group_day is without any guest
	}
	return s.rd.db.Fault(err)
}

// A place is where a node stands, for filters.
type place struct{ cluster, name, id string }

// coversNode says whether the question is about a node.
func (s *selection) coversNode(p place) bool {
	if c := s.q.Scope.Clusters; !s.q.Scope.All && len(c) > 0 && !slices.Contains(c, p.cluster) {
		return false
	}
	if c, ok := s.q.Where[query.ByCluster]; ok && !slices.Contains(c, p.cluster) {
		return false
	}
	nodes, ok := s.q.Where[query.ByNode]
	return !ok || slices.ContainsFunc(nodes, func(n string) bool { return n == p.name || n == p.id || n == p.name+" "+p.id })
}

// hostCondition says whether a host is among what is summed, by its place and the
// project of what the guest is there.
func (s *selection) hostCondition() func(h place, project string) bool {
	return func(h place, project string) bool {
		projects := s.q.Scope.Projects
		return s.coversNode(h) && (s.q.Scope.All || len(projects) == 0 || slices.Contains(projects, project))
	}
}

// outsideCondition is the condition that rows of u are not of guests, or that they are, where
// that is what is asked for; node is SQL for the id of a row's node.
func (s *selection) outsideCondition(node string) string {
	n := &s.nest
	if len(n.out) == 0 {
		if n.only {
			return " AND false"
		}
		return ""
	}
	nested := fmt.Sprintf("EXISTS (SELECT 1 FROM nested_day x WHERE x.node = %s AND x.minute = u.minute - u.minute %% %d%s)", node, schema.DayMinutes, n.hostsCondition())
	guests := "(" + schema.JoinInts(slices.Sorted(maps.Keys(n.out))) + ")"
	if n.only {
		return fmt.Sprintf(" AND %s IN %s AND %s", node, guests, nested)
	}
	return fmt.Sprintf(" AND (%s NOT IN %s OR NOT %s)", node, guests, nested)
}

// within is the condition that the host of x is within what is asked for.
func (n *nesting) hostsCondition() string {
	if n.all {
		return ""
	}
	return " AND x.host IN (" + schema.JoinInts(slices.Sorted(maps.Keys(n.hosts))) + ")"
}

// groupedOutsideCondition is outside for the nodes of groups of days: w is counted only
// where it has a row of a day on which its node was no guest. days are those days'
// minutes as SQL lists them.
func (s *selection) groupedOutsideCondition(days string) string {
	if len(s.nest.out) == 0 {
		return ""
	}
	return fmt.Sprintf(` AND (n.id NOT IN (%s) OR EXISTS (SELECT 1 FROM day u WHERE u.minute IN (%s) AND u.workload = w.id
		AND NOT EXISTS (SELECT 1 FROM nested_day x WHERE x.node = n.id AND x.minute = u.minute)))`, schema.JoinInts(slices.Sorted(maps.Keys(s.nest.out))), days)
}

// guests are the groups of what was asked for that are of guests.
func (s *selection) guestGroups(from, to int64, ranges []schema.Range) ([]query.Group, error) {
	q := *s.q
	q.Nested, q.Top = query.NestedOnly, nil
	other, err := s.rd.newSelection(s.v, &q)
	if err != nil {
		return nil, err
	}
	if err := other.findGuests(from, to); err != nil {
		return nil, err
	}
	return other.computeGroups(ranges, nil)
}
