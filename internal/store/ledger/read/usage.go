package read

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// Usage sums what was used in a range of time, by group. It returns at most q.Limit groups, those
// with the most CPU time; groups that q.Top leaves out are summed in Other. An unknown dimension is
// fault.ErrInvalid.
func (rd *Reader) Usage(ctx context.Context, q query.Query) (out *query.Answer, err error) {
	err = rd.db.View(ctx, func(v *db.View) (err error) {
		from, to := queryRange(v, q.From, q.To)
		out, err = rd.usageIn(v, q, from, to)
		return err
	})
	if err != nil {
		return nil, db.Wrap(err, "usage")
	}
	return out, nil
}

// usageIn is Usage for a widened range in minutes.
func (rd *Reader) usageIn(v *db.View, q query.Query, from, to int64) (*query.Answer, error) {
	out := &query.Answer{By: q.By, Idle: q.Idle, Nested: q.Nested, From: time.Unix(from*60, 0).UTC(), To: time.Unix(to*60, 0).UTC()}
	also := q.Nested == query.NestedAlso || q.Nested == "" && slices.Contains(q.By, query.ByNode)
	if also {
		out.Nested, q.Nested = query.NestedAlso, ""
	}
	s, err := rd.newSelection(v, &q)
	if err != nil || s.hasEmptyScope() {
		return out, err
	}
	if err := s.findGuests(from, to); err != nil {
		return nil, err
	}
	out.NestedNodes = s.nesting.count
	ranges := v.Cover(from, to, v.Days)
	if out.AveragedOver, err = s.longestCovered(ranges); err != nil {
		return nil, err
	}
	groups, others, err := s.computeGroups(ranges, out)
	if err != nil {
		return nil, err
	}
	if err := s.addWhole(ranges, &out.Capacity); err != nil {
		return nil, err
	}
	judgeEnergies(groups, others.Worst(out.Other.Quality), &out.Capacity)
	if also && s.nesting.count > 0 {
		if out.NestedGroups, err = s.guestGroups(from, to, ranges); err != nil {
			return nil, err
		}
	}
	out.Groups = groups
	if q.Limit > 0 {
		out.Groups, out.NestedGroups = groups[:min(len(groups), q.Limit)], out.NestedGroups[:min(len(out.NestedGroups), q.Limit)]
	}
	out.Gaps, err = s.countGaps(out.From, out.To)
	return out, err
}

// queryRange returns a range in minutes, widened to kept rows and limited to the years that can be
// stored.
func queryRange(v *db.View, from, to time.Time) (int64, int64) {
	a, b := floorMinute(from), floorMinute(to)
	if to.After(time.Unix(b*60, 0)) {
		b++
	}
	a, b = min(max(a, 0), schema.EndMinute), min(max(b, 0), schema.EndMinute)
	return v.Widen(a, max(a, b))
}

// floorMinute returns the minute of a time, which is not before 1970.
func floorMinute(t time.Time) int64 { return t.Unix() / 60 }

// A selection is the part of a query that is the same for all ranges.
type selection struct {
	rd        *Reader
	v         *db.View
	q         *query.Query
	keys      []string // SQL by dimension
	nodeKeys  []int    // indexes of keys that are names of nodes
	joins     string
	where     string
	args      arguments // $1 and $2 are the range's ends
	grouped   bool      // group_day can answer the query
	idle      power.Policy
	want      usage.Set // the resources to sum
	nesting   nesting
	nodeNames map[int64]string // by surrogate id, for keys
}

// seesNothing reports whether the scope is empty.
func (s *selection) hasEmptyScope() bool {
	return !s.q.Scope.All && len(s.q.Scope.Clusters)+len(s.q.Scope.Projects) == 0
}

func (rd *Reader) newSelection(v *db.View, q *query.Query) (*selection, error) {
	s := &selection{rd: rd, v: v, q: q, args: arguments{nil, nil}, grouped: !q.OmitOwn}
	if s.want = q.Resources & usage.All; s.want == 0 {
		s.want = usage.All
	}
	if q.Unused {
		s.want |= unusedResources
	}
	s.want |= usage.SetOf(usage.CPU) // groups are ordered by it, and it claims idle energy
	if q.Idle != "" {
		if err := s.idle.UnmarshalText([]byte(q.Idle)); err != nil {
			return nil, err
		}
		s.want |= usage.SetOf(usage.Energies[:]...) | usage.SetOf(usage.EnergyError, usage.EnergyIdle)
	}
	if len(q.By) == 0 {
		return nil, fmt.Errorf("no dimension to group by: %w", fault.ErrInvalid)
	}
	for i, d := range q.By {
		key, err := s.dimensionSQL(d)
		if err != nil {
			return nil, err
		}
		s.keys = append(s.keys, key)
		if d == query.ByNode {
			s.nodeKeys = append(s.nodeKeys, i)
		}
	}
	for _, d := range slices.Sorted(maps.Keys(q.Where)) {
		key, err := s.dimensionSQL(d)
		if err != nil {
			return nil, err
		}
		list := s.args.addList(q.Where[d])
		cond := key + " IN " + list
		if d == query.ByNode {
			cond = fmt.Sprintf("(%s OR n.node_id IN %[2]s OR n.name || ' ' || n.node_id IN %[2]s)", cond, list)
		}
		s.where += " AND " + cond
	}
	if !q.Scope.All {
		s.where += clusterCondition(&s.args, q.Scope)
		if len(q.Scope.Projects) > 0 {
			s.where += " AND w.project IN " + s.args.addList(q.Scope.Projects)
		}
	}
	if q.OmitOwn {
		s.where += " AND w.name NOT IN " + s.args.addList(query.OwnNames)
	}
	if len(s.args) > maxArguments {
		return nil, fault.WithHint(fmt.Errorf("%d filter values: %w", len(s.args), fault.ErrInvalid), "use fewer values per query")
	}
	if len(s.nodeKeys) > 0 {
		return s, s.loadNodeNames()
	}
	return s, nil
}

// maxArguments limits the arguments of a statement: SQLite takes 32766, PostgreSQL 65535.
const maxArguments = 30_000

// loadNodeNames loads the names of the nodes in scope. Nodes with the same name get their ids
// appended.
func (s *selection) loadNodeNames() error {
	var args arguments
	where := clusterCondition(&args, s.q.Scope)
	s.nodeNames = map[int64]string{}
	first, ids := map[string]int64{}, map[int64]string{}
	return s.rd.db.Fault(db.Each(s.v.Ctx, s.v.SQL, func(scan func(...any) error) error {
		var n int64
		var id, name string
		if err := scan(&n, &id, &name); err != nil {
			return err
		}
		s.nodeNames[n], ids[n] = name, id
		if twin, ok := first[name]; ok {
			s.nodeNames[twin], s.nodeNames[n] = name+" "+ids[twin], name+" "+id
		} else {
			first[name] = n
		}
		return nil
	}, "SELECT n.id, n.node_id, n.name FROM node n WHERE true"+where, args...))
}

// arguments are the arguments of a statement.
type arguments []any

// add adds an argument and returns its placeholder.
func (a *arguments) add(v any) string {
	*a = append(*a, v)
	return fmt.Sprintf("$%d", len(*a))
}

// addList adds cleaned values and returns a list of their placeholders.
func (a *arguments) addList(values []string) string {
	if len(values) == 0 {
		return "(NULL)" // matches nothing
	}
	places := make([]string, len(values))
	for i, v := range values {
		places[i] = a.add(schema.Clean(v))
	}
	return "(" + strings.Join(places, ", ") + ")"
}

// clusterCondition returns the condition that node n is in the clusters of a scope.
func clusterCondition(a *arguments, s query.Scope) string { return clusterConditionOf("n", a, s) }

// clusterConditionOf is clusterCondition for a node of another alias.
func clusterConditionOf(node string, a *arguments, s query.Scope) string {
	if s.All || len(s.Clusters) == 0 {
		return ""
	}
	return " AND " + node + ".cluster IN " + a.addList(s.Clusters)
}

// nodeCondition returns the condition that a scope covers a node, if only by one of its workloads.
func nodeCondition(a *arguments, s query.Scope) string {
	where := clusterCondition(a, s)
	if !s.All && len(s.Projects) > 0 {
		where += " AND n.id IN (SELECT w.node FROM workload w WHERE w.project IN " + a.addList(s.Projects) + ")"
	}
	return where
}

// residualKey returns SQL for a key that idle and system rows lack: they use their own names.
func residualKey(column string) string {
	return "CASE WHEN w.kind IN ('idle', 'system') THEN w.kind ELSE " + column + " END"
}

// columnOf returns the column of a workload that has the value of an optional dimension.
func columnOf(d query.Dimension) string {
	if d == query.ByUser {
		return "username"
	}
	return string(d)
}

// dimensionSQL returns the SQL of a dimension's key.
func (s *selection) dimensionSQL(d query.Dimension) (string, error) {
	switch d {
	case query.ByCluster:
		return "n.cluster", nil
	case query.ByKind:
		return "w.kind", nil
	case query.ByUser, query.ByProject, query.ByNamespace:
		return residualKey("w." + columnOf(d)), nil
	}
	s.grouped = false // the dimensions below are not in group_day
	switch d {
	case query.ByNode:
		return "n.name", nil
	case query.ByWorkload:
		// The reservation of a container stands beside its use.
		return "CASE WHEN " + schema.IsCarrier + " THEN replace(w.name, '" + batch.ReservedSuffix + "', '') ELSE w.name END", nil
	case query.ByJob:
		return "CASE WHEN w.job <> '' THEN w.job ELSE w.name END", nil
	case query.ByPod, query.ByContainer:
		return residualKey("w." + columnOf(d)), nil
	}
	label, ok := strings.CutPrefix(string(d), string(query.ByLabel))
	if !ok || label == "" {
		return "", fault.WithHint(fmt.Errorf("dimension %q: %w", d, fault.ErrInvalid),
			"use cluster, node, workload, kind, job, user, project, namespace, pod, container or label:KEY")
	}
	place := s.args.add(schema.Clean(label))
	alias := "l" + place[1:]
	s.joins += fmt.Sprintf(" LEFT JOIN workload_label %[1]s ON %[1]s.workload = w.id AND %[1]s.key = %[2]s", alias, place)
	return residualKey("coalesce(" + alias + ".value, '')"), nil
}

// countGaps counts the gaps that overlap a range.
func (s *selection) countGaps(from, to time.Time) (n int, err error) {
	args := arguments{schema.ClampNanos(to), schema.ClampNanos(from)}
	where := nodeCondition(&args, s.q.Scope)
	err = s.v.SQL.QueryRowContext(s.v.Ctx, "SELECT count(*) FROM gap g JOIN node n ON n.id = g.node WHERE g.from_ns < $1 AND g.to_ns > $2"+where, args...).Scan(&n)
	return n, s.rd.db.Fault(err)
}
