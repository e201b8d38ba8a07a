package read

import (
	"context"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// maxEdges is how many edges an answer is made of, the largest ones: a query takes up to 30 MB for them.
const maxEdges = 1 << 15

// Connections returns with whom workloads exchanged network traffic in a range of time, by group: at most q.Limit edges, those
// with the most bytes. Rows within other nodes count as in [Reader.Usage].
func (rd *Reader) Connections(ctx context.Context, q query.Query) (out *query.Connections, err error) {
	q.Nested, q.Idle, q.Top, q.Unused = "", "", nil, false
	q.Resources = usage.SetOf(usage.NetworkRx, usage.NetworkTx)
	err = rd.db.View(ctx, func(v *db.View) error {
		const hour = time.Hour
		from, to := queryRange(v, q.From.Truncate(hour), q.To.Add(hour-1).Truncate(hour))
		out = &query.Connections{By: q.By, From: time.Unix(from*60, 0).UTC(), To: time.Unix(to*60, 0).UTC()}
		if err := rd.addTraffic(v, q, from, to, &out.Traffic); err != nil {
			return err
		}
		s, err := rd.newSelection(v, &q)
		if err != nil || s.hasEmptyScope() {
			return err
		}
		if err := s.findGuests(from, to); err != nil {
			return err
		}
		return rd.db.Fault(s.addEdges(from, to, out))
	})
	if err != nil {
		return nil, db.Wrap(err, "connections")
	}
	limit := maxEdges
	if q.Limit > 0 {
		limit = q.Limit
	}
	out.Limit(limit)
	// Bytes of an edge that are not in its amounts are in the rest.
	rx, tx := out.Rest()
	rest := rx.Plus(tx).Int64()
	out.Missed = min(out.Missed, rest)
	for i := range out.Edges {
		out.Edges[i].Error = min(out.Edges[i].Error, rest)
	}
	return out, nil
}

// addTraffic adds the network traffic of a query's rows to a total.
func (rd *Reader) addTraffic(v *db.View, q query.Query, from, to int64, into *query.Total) error {
	q.By = []query.Dimension{query.ByKind} // few groups
	s, err := rd.newSelection(v, &q)
	if err != nil || s.hasEmptyScope() {
		return err
	}
	s.want = q.Resources
	if err := s.findGuests(from, to); err != nil {
		return err
	}
	groups, _, err := s.computeGroups(v.Cover(from, to, v.Days), nil)
	for i := range groups {
		into.Add(&groups[i].Usage)
	}
	return err
}

// addEdges adds the edges of [from, to) minutes to an answer.
func (s *selection) addEdges(from, to int64, out *query.Connections) error {
	first, err := db.FirstMinute(s.v.Ctx, s.v.SQL, max(from, s.v.HourFloor), "connections")
	if err != nil {
		return err
	}
	sums := connection.NewSums(maxEdges)
	groups := map[string]int{}
	var keys [][]string // by number of the group
	row, node := schema.RowKey{}, int64(0)
	names := make([]string, len(s.keys))
	var sketch []byte
	into := []any{&row.Minute, &row.ID, &node, &sketch}
	for i := range names {
		into = append(into, &names[i])
	}
	text := "SELECT c.minute, c.workload, n.id, c.sketch, " + strings.Join(s.keys, ", ") +
		" FROM connections c JOIN workload w ON w.id = c.workload JOIN node n ON n.id = w.node" + s.joins + " WHERE c.minute >= $1 AND c.minute < $2" + s.where
	for at := first; at < to; at = schema.DayOf(at) + schema.DayMinutes {
		day := schema.Range{Level: schema.Hours, From: at, To: min(to, schema.DayOf(at)+schema.DayMinutes)}
		within, err := s.findWithin(day)
		if err != nil {
			return err
		}
		err = s.eachRow(day, func(scan func(...any) error) error {
			if err := scan(into...); err != nil {
				return err
			}
			c, err := connection.Decode(sketch)
			if err != nil {
				return nil // a finding of a check; its traffic is in the rest
			}
			switch within[row] {
			case excluded:
				return nil
			case partlyExcluded:
				c.Limit(0) // which of the edges had what counts is not known
			}
			for _, i := range s.nodeKeys {
				names[i] = s.nodeNames[node]
			}
			name := groupName(names)
			g, ok := groups[name]
			if !ok {
				g = len(keys)
				groups[name], keys = g, append(keys, slices.Clone(names))
			}
			sums.Add(g, c)
			return nil
		}, text)
		if err != nil {
			return err
		}
	}
	for g, e := range sums.All() {
		out.Edges = append(out.Edges, query.Edge{Keys: keys[g], Entry: e})
	}
	out.Missed = sums.Missed()
	return nil
}

// A withinState says which of the rows of usage of a workload in an hour are left out, as they are within another node that is
// summed too.
type withinState uint8

const (
	counted        withinState = iota // none
	excluded                          // all
	partlyExcluded                    // some
)

// findWithin returns the states of workloads in the hours of a day of which rows of usage are left out.
func (s *selection) findWithin(day schema.Range) (map[schema.RowKey]withinState, error) {
	var nodes []int64
	for p := range s.nesting.covered {
		nodes = append(nodes, p.node)
	}
	if len(nodes) == 0 {
		return nil, nil
	}
	out := map[schema.RowKey]withinState{}
	hours := s.v.Marks
	hours.Day = 0 // no rows of days
	for _, p := range hours.Cover(day.From, day.To, s.v.Days) {
		err := eachInRange(s.v, p, arguments{nil, nil}, func(scan func(...any) error) error {
			var hour, key, node int64
			err := scan(&hour, &key, &node)
			id, within := schema.SplitKey(key)
			k := schema.RowKey{Minute: hour, ID: id}
			state := counted
			if s.nesting.excludes(node, within) {
				state = excluded
			}
			if had, ok := out[k]; ok && had != state {
				state = partlyExcluded
			}
			out[k] = state
			return err
		}, "SELECT DISTINCT u.minute - u.minute % 60, u.workload, w.node FROM "+p.Table(schema.UsageLayout)+" u JOIN workload w ON w.id = "+schema.IDOf("u.workload")+
			" WHERE u.minute >= $1 AND u.minute < $2 AND w.node IN ("+schema.JoinInts(nodes)+") AND "+schema.HasContent("u"))
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
