package read

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A nesting holds which rows of a query are within another node. Sums leave out rows within a host
// that is among what is summed.
type nesting struct {
	guestsOnly bool              // sum only such rows, instead of all others
	hosts      map[int64][]int64 // the nodes that rows of a node are within
	covered    map[pair]bool     // of these, those that the query covers
	coversAll  bool              // it covers all of them
	count      int               // guests that the query would cover if they were not nested
}

// inDays is the SQL condition that a row of a day is in the minutes [$1, $2).
var inDays = fmt.Sprintf("minute > CAST($1 AS bigint) - %d AND minute < $2", schema.DayMinutes)

// A pair is a node of which rows are within another one.
type pair struct{ node, host int64 }

// findGuests finds the nodes of which rows are within others in [from, to) minutes.
func (s *selection) findGuests(from, to int64) error {
	s.nesting = nesting{hosts: map[int64][]int64{}, covered: map[pair]bool{}, coversAll: true}
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
		var p pair
		var g, h place
		var project string
		if err := scan(&p.node, &p.host, &g.cluster, &g.name, &g.id, &h.cluster, &h.name, &h.id, &project); err != nil {
			return err
		}
		if !slices.Contains(s.nesting.hosts[p.node], p.host) {
			s.nesting.hosts[p.node] = append(s.nesting.hosts[p.node], p.host)
		}
		if p.host == p.node || !covers(h, project) { // the node itself: its host is not known here
			return nil
		}
		s.nesting.covered[p] = true
		if s.coversNode(g) {
			asked[p.node] = true
		}
		return nil
	}, `SELECT x.node, x.host, n.cluster, n.name, n.node_id, h.cluster, h.name, h.node_id, coalesce(w.project, '')
		FROM (SELECT DISTINCT node, host, workload FROM within_day WHERE `+inDays+`) AS x
		JOIN node n ON n.id = x.node JOIN node h ON h.id = x.host LEFT JOIN workload w ON w.id = x.workload OR w.version_of = x.workload AND w.version_of <> 0`, from, to)
	for node, hosts := range s.nesting.hosts {
		for _, h := range hosts {
			s.nesting.coversAll = s.nesting.coversAll && s.nesting.covered[pair{node, h}]
		}
	}
	s.nesting.count = len(asked)
	if s.nesting.guestsOnly || !s.nesting.coversAll {
		s.grouped = false // group_day leaves out all rows within other nodes
	}
	return s.rd.db.Fault(err)
}

// excludes reports whether sums leave out the rows of a node within another one, 0 for none.
func (n *nesting) excludes(node, within int64) bool {
	return (within != 0 && n.covered[pair{node, within}]) != n.guestsOnly
}

// rowKeys returns the keys of the rows of a workload of a node, or of the node.
func (n *nesting) rowKeys(to []int64, id, node int64) []int64 {
	to = append(to, schema.Key(id, 0))
	for _, h := range n.hosts[node] {
		to = append(to, schema.Key(id, h))
	}
	return to
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

// outsideCondition returns the condition that excludes rows within a host that is summed too, or
// selects only them if the query asks for that. node and key are SQL for the id of a row's node
// and the row's key.
func (s *selection) outsideCondition(node, key string) string {
	n := &s.nesting
	within := fmt.Sprintf("%s >= %d", key, int64(schema.FirstWithin))
	switch {
	case len(n.covered) == 0 && n.guestsOnly:
		return " AND false"
	case len(n.covered) == 0:
		return ""
	case !n.coversAll:
		var pairs []string
		for p := range n.covered {
			pairs = append(pairs, fmt.Sprintf("(%d, %d)", p.node, p.host))
		}
		slices.Sort(pairs)
		within = fmt.Sprintf("(%s, %s) IN (%s)", node, schema.WithinOf(key), strings.Join(pairs, ", "))
	}
	if n.guestsOnly {
		return " AND " + within
	}
	return " AND NOT (" + within + ")"
}

// groupedOutsideCondition is outsideCondition for counting nodes of grouped days: w counts only if
// it has a row that is not within another node. days lists the days' minutes for SQL.
func (s *selection) groupedOutsideCondition(days string) string {
	if len(s.nesting.hosts) == 0 {
		return ""
	}
	return fmt.Sprintf(` AND (n.id NOT IN (%s) OR EXISTS (SELECT 1 FROM day u WHERE u.minute IN (%s) AND u.workload = w.id AND %s))`,
		schema.JoinInts(slices.Sorted(maps.Keys(s.nesting.hosts))), days, schema.HasContent("u"))
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
	groups, _, err := other.computeGroups(ranges, nil)
	return groups, err
}

// find finds only within which nodes rows are in [from, to) minutes.
func (n *nesting) find(v *db.View, from, to int64) error {
	n.hosts = map[int64][]int64{}
	return db.Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
		var p pair
		err := scan(&p.node, &p.host)
		n.hosts[p.node] = append(n.hosts[p.node], p.host)
		return err
	}, "SELECT DISTINCT node, host FROM within_day WHERE "+inDays, from, to)
}
