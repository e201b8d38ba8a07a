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

// A nesting holds the guests on the days of a query. The use of a guest is within the figures of
// its host: sums leave it out on the days on which it was a guest, if the host is among what is
// summed.
type nesting struct {
	guestsOnly bool           // sum guests only, instead of all others
	guests     map[int64]bool // guests whose hosts the query covers
	hosts      map[int64]bool // the hosts of those
	coversAll  bool           // there are no other guests
	count      int            // guests that the query would cover if they were not nested
}

// findGuests finds the guests on the days in [from, to) minutes.
func (s *selection) findGuests(from, to int64) error {
	s.nesting = nesting{guests: map[int64]bool{}, hosts: map[int64]bool{}, coversAll: true}
	switch s.q.Nested {
	case "":
	case query.NestedOnly:
		s.nesting.guestsOnly = true
	default:
		return fmt.Errorf("nested %q: %w", s.q.Nested, fault.ErrInvalid)
	}
	covers := s.hostCondition()
	asked := map[int64]bool{}
	err := db.Each(s.v.Ctx, s.v.SQL, func(scan func(...any) error) error {
		var guest, host int64
		var g, h place
		var project string
		if err := scan(&guest, &host, &g.cluster, &g.name, &g.id, &h.cluster, &h.name, &h.id, &project); err != nil {
			return err
		}
		if host == 0 || !covers(h, project) {
			s.nesting.coversAll = false
			return nil
		}
		s.nesting.guests[guest], s.nesting.hosts[host] = true, true
		if s.coversNode(g) {
			asked[guest] = true
		}
		return nil
	}, `SELECT x.node, x.host, n.cluster, n.name, n.node_id, coalesce(h.cluster, ''), coalesce(h.name, ''), coalesce(h.node_id, ''), coalesce(w.project, '')
		FROM (SELECT DISTINCT node, host, workload FROM nested_day WHERE minute >= $1 AND minute < $2) AS x
		JOIN node n ON n.id = x.node LEFT JOIN node h ON h.id = x.host LEFT JOIN workload w ON w.id = x.workload`, from-from%schema.DayMinutes, to)
	s.nesting.count = len(asked)
	if s.nesting.guestsOnly || !s.nesting.coversAll {
		s.grouped = false // group_day leaves out all guests
	}
	return s.rd.db.Fault(err)
}

// A place identifies a node for filters.
type place struct{ cluster, name, id string }

// coversNode reports whether the query covers a node.
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

// hostCondition returns a function that reports whether a host is among what is summed, given its
// place and the project of the guest's workload there.
func (s *selection) hostCondition() func(h place, project string) bool {
	return func(h place, project string) bool {
		projects := s.q.Scope.Projects
		return s.coversNode(h) && (s.q.Scope.All || len(projects) == 0 || slices.Contains(projects, project))
	}
}

// outsideCondition returns the condition that excludes rows u of guests, or selects only them if
// the query asks for that. node is SQL for the id of a row's node.
func (s *selection) outsideCondition(node string) string {
	n := &s.nesting
	if len(n.guests) == 0 {
		if n.guestsOnly {
			return " AND false"
		}
		return ""
	}
	nested := fmt.Sprintf("EXISTS (SELECT 1 FROM nested_day x WHERE x.node = %s AND x.minute = u.minute - u.minute %% %d%s)", node, schema.DayMinutes, n.hostsCondition())
	guests := "(" + schema.JoinInts(slices.Sorted(maps.Keys(n.guests))) + ")"
	if n.guestsOnly {
		return fmt.Sprintf(" AND %s IN %s AND %s", node, guests, nested)
	}
	return fmt.Sprintf(" AND (%s NOT IN %s OR NOT %s)", node, guests, nested)
}

// hostsCondition returns the condition that the query covers the host of x.
func (n *nesting) hostsCondition() string {
	if n.coversAll {
		return ""
	}
	return " AND x.host IN (" + schema.JoinInts(slices.Sorted(maps.Keys(n.hosts))) + ")"
}

// groupedOutsideCondition is outsideCondition for counting nodes of grouped days: w counts only if
// it has a row on a day on which its node was not a guest. days lists the days' minutes for SQL.
func (s *selection) groupedOutsideCondition(days string) string {
	if len(s.nesting.guests) == 0 {
		return ""
	}
	return fmt.Sprintf(` AND (n.id NOT IN (%s) OR EXISTS (SELECT 1 FROM day u WHERE u.minute IN (%s) AND u.workload = w.id
		AND NOT EXISTS (SELECT 1 FROM nested_day x WHERE x.node = n.id AND x.minute = u.minute)))`, schema.JoinInts(slices.Sorted(maps.Keys(s.nesting.guests))), days)
}

// guestGroups returns the groups of guests that the query covers.
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
