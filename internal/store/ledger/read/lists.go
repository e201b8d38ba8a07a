package read

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// How long a node is live after its last window, and behind after its last batch.
const (
	liveFor   = time.Minute
	behindFor = 2 * time.Minute
	// reportedFor replaces liveFor for nodes of downstream servers, which send minutes once they are
	// over.
	reportedFor = 5 * time.Minute
)

// Nodes lists the nodes that a scope covers, by cluster and name, without the pseudo-nodes of volumes. State "live" means booked up to
// the last minute, "behind" that it sends but is not, "silent" that it sends nothing, and "revoked"
// that it may not send. A guest whose host is outside the scope is listed as not nested: no other
// node in the scope includes its use.
func (rd *Reader) Nodes(ctx context.Context, s query.Scope) (out []query.Node, err error) {
	if !s.All && len(s.Clusters) == 0 {
		return nil, nil
	}
	var args arguments
	where, host := clusterCondition(&args, s), clusterConditionOf("h", &args, s)
	now := time.Now()
	err = rd.db.View(ctx, func(v *db.View) error {
		return db.Each(ctx, v.SQL, func(scan func(...any) error) error {
			var n query.Node
			var enrolled, through, seen, revoked, since, equal int64
			var in query.Nesting
			err := scan(&n.ID, &n.Name, &n.Cluster, &n.MachineID, &n.Boot, &n.CPUs, &enrolled, &through, &n.Streams, &seen, &revoked, &n.Source,
				&in.Host, &in.HostName, &in.Workload, &in.Name, &since, &equal)
			if in.Host != "" {
				in.Since, in.Seen = schema.FromNanos(since), schema.FromNanos(equal)
				n.Nested = &in
			}
			n.Enrolled, n.Through, n.Revoked = schema.FromNanos(enrolled), schema.FromNanos(through), schema.FromNanos(revoked)
			live := liveFor
			if n.Source != "" {
				live = reportedFor
			}
			n.State = stateOf(n.Revoked, now.Sub(n.Through), now.Sub(schema.FromNanos(seen)), live)
			out = append(out, n)
			return err
		}, `SELECT n.node_id, n.name, n.cluster, n.machine_id, n.boot, n.cpus, n.enrolled_ns, n.through_ns,
			(SELECT count(*) FROM stream s WHERE s.node = n.id), (SELECT coalesce(max(s.seen_ns), 0) FROM stream s WHERE s.node = n.id),
			n.revoked_ns, coalesce(o.source_id, ''),
			coalesce(h.node_id, ''), coalesce(h.name, ''), coalesce(w.wid, ''), coalesce(w.name, ''), n.nested_ns, n.equal_ns
			FROM node n LEFT JOIN source o ON o.id = n.source LEFT JOIN node h ON h.id = n.host`+host+` LEFT JOIN workload w ON w.id = n.host_workload WHERE NOT `+schema.IsVolumesOf("n")+where+" ORDER BY n.cluster, n.name, n.node_id", args...)
	})
	return out, db.Wrap(rd.db.Fault(err), "nodes")
}

// stateOf returns a state, given the times since the latest booked window and the latest batch, and how
// long one is live.
func stateOf(revoked time.Time, booked, heard, live time.Duration) string {
	switch {
	case !revoked.IsZero():
		return "revoked"
	case booked < live:
		return "live"
	case heard < behindFor:
		return "behind"
	}
	return "silent"
}

// DownstreamServers lists the downstream servers that a scope covers, by cluster and name. Their states are
// those of [Reader.Nodes], for the node that is booked furthest.
func (rd *Reader) DownstreamServers(ctx context.Context, s query.Scope) (out []query.Source, err error) {
	if !s.All && len(s.Clusters) == 0 {
		return nil, nil
	}
	var args arguments
	where := clusterCondition(&args, s)
	now := time.Now()
	err = rd.db.View(ctx, func(v *db.View) error {
		return db.Each(ctx, v.SQL, func(scan func(...any) error) error {
			var b query.Source
			var enrolled, seen, revoked, through, pages int64
			var position string
			err := scan(&b.ID, &b.Name, &b.Cluster, &b.Nodes, &pages, &position, &enrolled, &seen, &revoked, &through)
			b.Enrolled, b.Seen, b.Revoked, b.Through = schema.FromNanos(enrolled), schema.FromNanos(seen), schema.FromNanos(revoked), schema.FromNanos(through)
			b.Pages = uint64(pages)
			b.Epoch, _, _ = strings.Cut(position, ".")
			b.State = stateOf(b.Revoked, now.Sub(b.Through), now.Sub(b.Seen), reportedFor)
			out = append(out, b)
			return err
		}, `SELECT n.source_id, n.name, n.cluster, (SELECT count(*) FROM node b WHERE b.source = n.id AND NOT `+schema.IsVolumesOf("b")+`), n.sequence, n.position,
			n.enrolled_ns, n.seen_ns, n.revoked_ns, (SELECT coalesce(max(b.through_ns), 0) FROM node b WHERE b.source = n.id)
			FROM source n WHERE 1 = 1`+where+" ORDER BY n.cluster, n.name, n.source_id", args...)
	})
	return out, db.Wrap(rd.db.Fault(err), "downstream servers")
}

// Dimensions counts, of the workloads that a scope covers, those that have a value of each optional
// dimension.
func (rd *Reader) Dimensions(ctx context.Context, s query.Scope) (out []query.DimensionCount, err error) {
	for _, d := range query.OptionalDimensions {
		out = append(out, query.DimensionCount{Dimension: d})
	}
	if !s.All && len(s.Clusters)+len(s.Projects) == 0 {
		return out, nil
	}
	var args arguments
	where := clusterCondition(&args, s)
	if !s.All && len(s.Projects) > 0 {
		where += " AND w.project IN " + args.addList(s.Projects)
	}
	var counts []string
	for _, d := range query.OptionalDimensions {
		counts = append(counts, fmt.Sprintf("count(DISTINCT CASE WHEN w.%s <> '' THEN %s END)", columnOf(d), firstVersion))
	}
	err = rd.db.View(ctx, func(v *db.View) error {
		return db.Each(ctx, v.SQL, func(scan func(...any) error) error {
			into := make([]any, len(out))
			for i := range out {
				into[i] = &out[i].Workloads
			}
			return scan(into...)
		}, "SELECT "+strings.Join(counts, ", ")+` FROM workload w JOIN node n ON n.id = w.node WHERE w.wid <> '' AND NOT `+schema.IsCarrier+where, args...)
	})
	return out, db.Wrap(rd.db.Fault(err), "dimensions")
}

// Streams lists the streams of the nodes that a query covers, by id: at most q.Limit, after q.After. A node
// may have millions.
func (rd *Reader) Streams(ctx context.Context, q query.StreamQuery) (out []query.Stream, err error) {
	if !q.Scope.All && len(q.Scope.Clusters) == 0 {
		return nil, nil
	}
	after, _ := hex.DecodeString(q.After) // of a text that is not hex, the part before its first bad digit: any text has a place in the order
	args := arguments{after}
	where := clusterCondition(&args, q.Scope) + oneNode(&args, q.Node) + " ORDER BY s.id"
	if q.Limit > 0 {
		where += fmt.Sprintf(" LIMIT %d", q.Limit)
	}
	err = rd.db.View(ctx, func(v *db.View) error {
		return db.Each(ctx, v.SQL, func(scan func(...any) error) error {
			var t query.Stream
			var id []byte
			var next, opened, seen int64
			err := scan(&id, &next, &t.Boot, &opened, &seen, &t.Node, &t.Name, &t.Cluster)
			t.ID, t.Next, t.Opened, t.Seen = hex.EncodeToString(id), uint64(next), schema.FromNanos(opened), schema.FromNanos(seen)
			out = append(out, t)
			return err
		}, `SELECT s.id, s.next, s.boot, s.opened_ns, s.seen_ns, n.node_id, n.name, n.cluster
			FROM stream s JOIN node n ON n.id = s.node WHERE s.id > $1`+where, args...)
	})
	return out, db.Wrap(rd.db.Fault(err), "streams")
}

// LatestBoots returns the boot of the latest batch of each node, by id.
func (rd *Reader) LatestBoots(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	err := rd.db.View(ctx, func(v *db.View) error {
		return db.Each(ctx, v.SQL, func(scan func(...any) error) error {
			var node, boot string
			err := scan(&node, &boot)
			out[node] = boot // of batches taken at once, that of the stream opened last remains
			return err
		}, `SELECT n.node_id, s.boot FROM (SELECT node, max(seen_ns) AS seen_ns FROM stream GROUP BY node) AS l
			JOIN stream s ON s.node = l.node AND s.seen_ns = l.seen_ns JOIN node n ON n.id = l.node ORDER BY s.opened_ns, s.id`)
	})
	return out, db.Wrap(rd.db.Fault(err), "boots")
}

// oneNode returns the condition that node n has an id or a name, or "" if that is "".
func oneNode(a *arguments, node string) string {
	if node == "" {
		return ""
	}
	place := a.add(schema.Clean(node))
	return " AND (n.node_id = " + place + " OR n.name = " + place + ")"
}

// Gaps lists gaps that overlap [from, to) and clock shifts that begin in it, latest first, of one
// node by id or name, or of all if node is "". It returns at most one more than [query.MaxGaps].
func (rd *Reader) Gaps(ctx context.Context, from, to time.Time, node string, s query.Scope) (out []query.Gap, err error) {
	end := fmt.Sprintf(" ORDER BY g.from_ns DESC, n.node_id, g.reason LIMIT %d", query.MaxGaps+1)
	err = rd.eachGap(ctx, from, to, node, s, end, func(g *query.Gap) { out = append(out, *g) })
	return out, err
}

// EachGap calls f for everything that [Reader.Gaps] lists, without limit and in no order. f must
// not keep its argument.
func (rd *Reader) EachGap(ctx context.Context, from, to time.Time, s query.Scope, f func(*query.Gap)) error {
	return rd.eachGap(ctx, from, to, "", s, "", f)
}

// eachGap is EachGap for one node, or all; end is appended to the statement.
func (rd *Reader) eachGap(ctx context.Context, from, to time.Time, node string, s query.Scope, end string, f func(*query.Gap)) error {
	if !s.All && len(s.Clusters) == 0 {
		return nil
	}
	args := arguments{schema.ClampNanos(to), schema.ClampNanos(from)}
	where := clusterCondition(&args, s) + oneNode(&args, node)
	err := rd.db.View(ctx, func(v *db.View) error {
		return db.Each(ctx, v.SQL, func(scan func(...any) error) error {
			var g query.Gap
			var begin, end, booked, by int64
			var reason string // "" of a clock shift
			if err := scan(&g.Node, &g.Name, &begin, &end, &reason, &g.Detail, &booked, &by); err != nil {
				return err
			}
			g.From, g.To, g.Booked, g.Reason, g.Shift = schema.FromNanos(begin), schema.FromNanos(end), schema.FromNanos(booked), usage.ParseReason(reason), time.Duration(by)
			f(&g)
			return nil
		}, `SELECT n.node_id, n.name, g.from_ns, g.to_ns, g.reason, g.detail, g.booked_ns, g.by_ns
			FROM (SELECT node, from_ns, to_ns, reason, detail, booked_ns, 0 AS by_ns FROM gap WHERE from_ns < $1 AND to_ns > $2
				UNION ALL SELECT node, from_ns, from_ns, '', '', at_ns, by_ns FROM shift WHERE from_ns < $1 AND from_ns >= $2) AS g
			JOIN node n ON n.id = g.node WHERE true`+where+end, args...)
	})
	return db.Wrap(rd.db.Fault(err), "gaps")
}

// Uptimes returns for how long of [from, to) the machines that a scope covers were up, by cluster and name: of the
// one with an id or a name, or of all if node is "". Nodes of jobs alone are not in it, nor those that were not known
// yet.
func (rd *Reader) Uptimes(ctx context.Context, from, to time.Time, node string, s query.Scope) (out []query.Uptime, err error) {
	if !s.All && len(s.Clusters) == 0 {
		return nil, nil
	}
	now := time.Now()
	if to.After(now) {
		to = now
	}
	err = rd.db.View(ctx, func(v *db.View) error {
		var args arguments
		where := clusterCondition(&args, s) + oneNode(&args, node)
		list, err := listKnown(v, where, args)
		if err != nil {
			return err
		}
		gaps := map[int64][]usage.Gap{}
		const columns = "SELECT n.id, g.from_ns, g.to_ns, g.reason FROM gap g JOIN node n ON n.id = g.node WHERE g.from_ns < %s AND g.to_ns > %s AND g.reason IN %s%s"
		text := fmt.Sprintf(columns, args.add(schema.ClampNanos(to)), args.add(schema.ClampNanos(from)), args.addList([]string{usage.Rebooted.String(), usage.StateLost.String()}), where)
		err = db.Each(ctx, v.SQL, func(scan func(...any) error) error {
			var id, begin, end int64
			var reason string
			err := scan(&id, &begin, &end, &reason)
			gaps[id] = append(gaps[id], usage.Gap{From: schema.FromNanos(begin), To: schema.FromNanos(end), Reason: usage.ParseReason(reason)})
			return err
		}, text, args...)
		if err != nil {
			return err
		}
		for _, n := range list {
			if n.first.IsZero() || n.through.IsZero() {
				continue
			}
			n.SetUptime(from, to, n.first, n.through, now.Sub(n.through) >= n.live, gaps[n.id])
			if n.From.Before(n.To) {
				out = append(out, n.Uptime)
			}
		}
		return nil
	})
	return out, db.Wrap(rd.db.Fault(err), "uptime")
}

// A knownNode is a node, and since when it is known.
type knownNode struct {
	query.Uptime
	id             int64
	first, through time.Time
	live           time.Duration
}

// listKnown lists nodes that are machines. One is known since it enrolled or since its first figures that are folded: it
// may have enrolled again, and a server below does not say when.
func listKnown(v *db.View, where string, args arguments) (list []knownNode, err error) {
	at := map[int64]int{}
	var keys []string
	err = db.Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
		n := knownNode{live: liveFor}
		var enrolled, through, source int64
		var machine string
		if err := scan(&n.id, &n.Node, &n.Name, &n.Cluster, &machine, &enrolled, &through, &source); err != nil || registry.IsJobsMachine(machine) || registry.IsVolumesMachine(machine) {
			return err
		}
		n.first, n.through = schema.FromNanos(enrolled), schema.FromNanos(through)
		if source != 0 {
			n.live = reportedFor
		}
		system, _ := workload.ShortIDOf(workload.NewID(n.Node, workload.System, "")) // each machine has it from its first window on
		at[n.id], keys = len(list), append(keys, fmt.Sprintf("(%d, %d)", n.id, int64(system)))
		list = append(list, n)
		return nil
	}, "SELECT n.id, n.node_id, n.name, n.cluster, n.machine_id, n.enrolled_ns, n.through_ns, n.source FROM node n WHERE true"+where+" ORDER BY n.cluster, n.name, n.node_id", args...)
	for some := range slices.Chunk(keys, lookupSize) {
		if err != nil {
			break
		}
		err = db.Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
			var id, minute int64
			err := scan(&id, &minute)
			n := &list[at[id]]
			if begin := schema.FromNanos(minute * int64(time.Minute)); n.first.IsZero() || begin.Before(n.first) {
				n.first = begin
			}
			return err
		}, "SELECT node, min(first_minute) FROM workload WHERE (node, short) IN (VALUES "+strings.Join(some, ", ")+") AND first_minute <> 0 GROUP BY node")
	}
	return list, err
}

// GapTimes returns the total length of all gaps of each node, by id. Nodes without gaps are not in
// it. It sums ms: a sum of ns might not fit an int64.
func (rd *Reader) GapTimes(ctx context.Context) (map[string]time.Duration, error) {
	out := map[string]time.Duration{}
	err := rd.db.View(ctx, func(v *db.View) error {
		return db.Each(ctx, v.SQL, func(scan func(...any) error) error {
			var id string
			var ms int64
			err := scan(&id, &ms)
			out[id] = time.Duration(ms) * time.Millisecond
			return err
		}, `SELECT n.node_id, CAST(sum(g.to_ns / 1000000 - g.from_ns / 1000000) AS bigint) FROM gap g JOIN node n ON n.id = g.node GROUP BY n.node_id`)
	})
	return out, db.Wrap(rd.db.Fault(err), "gaps")
}

// Workloads lists the workloads used in a range that match the query's filters, in the order of their
// keys: at most q.Limit, after q.After. It holds about twice the limit of them at once, and with SQLite also two
// minutes for each workload that matches. The list does not have the reservations of pods.
func (rd *Reader) Workloads(ctx context.Context, q query.Query) ([]query.Workload, error) {
	if !q.Scope.All && len(q.Scope.Clusters)+len(q.Scope.Projects) == 0 {
		return nil, nil
	}
	if len(q.By) == 0 {
		q.By = []query.Dimension{query.ByWorkload}
	}
	var out []query.Workload
	err := rd.db.View(ctx, func(v *db.View) error {
		s, err := rd.newSelection(v, &q)
		if err != nil {
			return err
		}
		from, to := queryRange(v, q.From, q.To)
		if err := s.nesting.find(v, from, to); err != nil {
			return rd.db.Fault(err)
		}
		page := s.newPage((*query.Workload).PageKey)
		if err := s.findWorkloads(v.Cover(from, to, v.Days), page); err != nil {
			return rd.db.Fault(err)
		}
		ids := page.cut()
		if err := page.addLabels(v, ids); err != nil {
			return rd.db.Fault(err)
		}
		for _, id := range ids {
			out = append(out, *page.found[id])
		}
		return nil
	})
	return out, db.Wrap(err, "workloads")
}

// findWorkloads adds the workloads that have rows in ranges to a page.
func (s *selection) findWorkloads(ranges []schema.Range, page *workloadPage) error {
	if !s.rd.db.IsSQLite() {
		for _, p := range ranges {
			if err := s.findWorkloadsIn(p, page); err != nil {
				return err
			}
		}
		return nil
	}
	chosen, err := s.matchingWorkloads(ranges)
	if err != nil {
		return err
	}
	type minutes struct{ first, end int64 }
	found := map[int64]minutes{}
	err = s.rd.scanBlocks(s.v, usageBlocks, 0, ranges, false, chosen, func(b *block) error {
		for i, key := range b.keys {
			w, _ := schema.SplitKey(key)
			first, end := b.span(i)
			if m, ok := found[w]; ok {
				first, end = min(first, m.first), max(end, m.end)
			}
			found[w] = minutes{first, end}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(found)), lookupSize) {
		text := fmt.Sprintf("SELECT w.id, w.from_minute, "+firstVersion+", n.name, n.cluster, %s FROM workload w JOIN node n ON n.id = w.node%s WHERE w.id IN (%s) AND NOT %s%s", schema.NameColumns, s.joins, schema.JoinInts(some), schema.IsCarrier, s.where)
		err := db.Each(s.v.Ctx, s.v.SQL, func(scan func(...any) error) error {
			var v foundVersion
			var row int64
			var node, cluster string
			var r schema.NameRow
			if err := scan(append([]any{&v.row, &v.from, &row, &node, &cluster}, r.Targets()...)...); err != nil {
				return err
			}
			m := found[v.row]
			page.add(&query.Workload{Row: row, Node: node, Cluster: cluster, Name: r.Name(), PartOf: r.Run(), First: time.Unix(m.first*60, 0).UTC(), Last: time.Unix(m.end*60, 0).UTC()}, v)
			return nil
		}, text, s.args...)
		if err != nil {
			return err
		}
	}
	return nil
}

// findWorkloadsIn adds the workloads that have rows in one range.
func (s *selection) findWorkloadsIn(p schema.Range, page *workloadPage) error {
	text := fmt.Sprintf(`SELECT w.id, w.from_minute, `+firstVersion+`, n.name, n.cluster, u.first, u.last, %s
		FROM (SELECT %s AS id, min(r.minute) AS first, max(r.minute) AS last FROM %s r WHERE r.minute >= $1 AND r.minute < $2 AND %s GROUP BY %[2]s) AS u
		JOIN workload w ON w.id = u.id JOIN node n ON n.id = w.node%[5]s WHERE NOT %[6]s%[7]s`,
		schema.NameColumns, schema.IDOf("r.workload"), p.Table(schema.UsageLayout), schema.HasContent("r"), s.joins, schema.IsCarrier, s.where)
	var v foundVersion
	var row, first, last int64
	var node, cluster string
	return s.eachRow(p, func(scan func(...any) error) error {
		var r schema.NameRow
		if err := scan(append([]any{&v.row, &v.from, &row, &node, &cluster, &first, &last}, r.Targets()...)...); err != nil {
			return err
		}
		page.add(&query.Workload{Row: row, Node: node, Cluster: cluster, Name: r.Name(), PartOf: r.Run(), First: time.Unix(first*60, 0).UTC(), Last: time.Unix((last+p.Level.Width())*60, 0).UTC()}, v)
		return nil
	}, text)
}

// firstVersion is SQL for the id of the first version of workload w: the same for all its versions.
const firstVersion = "CASE WHEN w.version_of = 0 THEN w.id ELSE w.version_of END"

// Names returns the latest names of workloads of a node, with the labels of [batch.LabelNamespace] and so on of
// those in a pod. Workloads without a name are not in it.
func (rd *Reader) Names(ctx context.Context, node string, shorts []workload.ShortID) (map[workload.ShortID]batch.Name, error) {
	out := make(map[workload.ShortID]batch.Name, len(shorts))
	err := rd.db.View(ctx, func(v *db.View) error {
		for chunk := range slices.Chunk(shorts, lookupSize) {
			args := arguments{schema.Clean(node)}
			places := make([]string, len(chunk))
			for i, s := range chunk {
				places[i] = args.add(int64(s))
			}
			err := db.Each(ctx, v.SQL, func(scan func(...any) error) error {
				var short int64
				name, err := scanPlaced(scan, &short)
				out[workload.ShortID(short)] = name
				return err
			}, "SELECT w.short, "+placedColumns+" FROM workload w JOIN node n ON n.id = w.node WHERE n.node_id = $1 AND w.wid <> '' AND w.short IN ("+strings.Join(places, ", ")+") ORDER BY w.from_minute", args...)
			if err != nil {
				return err
			}
		}
		return addPodUIDs(v, node, maps.Values(out))
	})
	return out, db.Wrap(rd.db.Fault(err), "names")
}
