package replica

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// States returns the next page for an upstream server at mark m: at most o.Rows records of one
// snapshot. The page is empty if there are none.
func (e *Exchange) States(ctx context.Context, m replica.Mark, o replica.Offer) (*replica.Page, error) {
	p := &replica.Page{From: m, Within: true}
	err := e.db.View(ctx, func(v *db.View) error {
		var rev int64
		if err := v.SQL.QueryRowContext(ctx, "SELECT rev FROM counter WHERE id = 1").Scan(&rev); err != nil {
			return e.db.Fault(err)
		}
		from, err := resume(v, o, m.Position, rev)
		if err != nil {
			return err
		}
		f := &pageBuilder{v: v, page: p, from: from, limit: max(o.Rows, 1), last: rev}
		if err := f.holdBack(o); err != nil {
			return err
		}
		end := cursor{rev: f.last, kind: kindEnd}
		if err := f.collect(m, o); err != nil {
			return err
		}
		if f.truncated {
			end = f.records[len(f.records)-1].at
		}
		epoch, err := v.EpochOf(end.rev)
		if err != nil {
			return err
		}
		p.To = formatPosition(o, epoch, end)
		return f.fillPage()
	})
	if err != nil {
		return nil, db.Wrap(err, "states for the upstream server")
	}
	return p, nil
}

// A pageBuilder collects the records after a cursor.
type pageBuilder struct {
	v         *db.View
	page      *replica.Page
	from      cursor
	limit     int
	last      int64 // revisions after it are not in the page
	records   []record
	truncated bool // there are records beyond the limit
}

// A record is one thing to replicate.
type record struct {
	at     cursor
	level  replica.Resolution
	values []int64 // of a row, after minute and key
	gap    replica.Gap
	shift  replica.Shift
	sketch *connection.Sketch // of connections; nil cannot be read
	node   int64              // of a gap or a shift
	// The workload of a nested node on its host; 0 is unknown.
	hostWorkload int64
}

// holdBack excludes all changes since the first change of a minute that is not over. They follow
// once it is.
func (pb *pageBuilder) holdBack(o replica.Offer) error {
	if o.OpenMinute == 0 || o.Finest != replica.Minute {
		return nil
	}
	open, _ := slices.BinarySearch(pb.v.Days, schema.DayOf(o.OpenMinute))
	for _, day := range pb.v.Days[open:] {
		for _, s := range []*schema.Layout{schema.UsageLayout, schema.NodeLayout} {
			var rev sql.NullInt64
			err := pb.v.SQL.QueryRowContext(pb.v.Ctx, "SELECT min(rev) FROM "+s.MinuteTable(day)+" WHERE rev >= $1 AND minute >= $2", pb.from.rev, o.OpenMinute).Scan(&rev)
			if err != nil {
				return pb.v.DB.Fault(err)
			}
			if rev.Valid {
				pb.last = min(pb.last, rev.Int64-1)
			}
		}
	}
	return nil
}

// collect collects the records. Rows that the upstream server or this one no longer keeps are
// replaced by the next coarser ones.
func (pb *pageBuilder) collect(m replica.Mark, o replica.Offer) error {
	floor, hourFloor := max(pb.v.MinuteFloor, m.MinuteFloor), max(pb.v.HourFloor, m.HourFloor)
	if o.Finest == replica.Hour {
		floor = math.MaxInt64
	}
	for _, t := range []struct {
		kind recordKind
		s    *schema.Layout
	}{{kindNodeMinute, schema.NodeLayout}, {kindMinute, schema.UsageLayout}} {
		kept, _ := slices.BinarySearch(pb.v.Days, floor)
		for _, day := range pb.v.Days[kept:] {
			if err := pb.collectRows(t.kind, replica.Minute, t.s, t.s.MinuteTable(day), floor, math.MaxInt64); err != nil {
				return err
			}
		}
		if err := pb.collectRows(t.kind+2, replica.Hour, t.s, t.s.HourTable(), hourFloor, floor); err != nil {
			return err
		}
		if err := pb.collectRows(t.kind+4, replica.Day, t.s, t.s.DayTable(), 0, min(hourFloor, floor)); err != nil {
			return err
		}
	}
	for _, table := range []struct {
		kind recordKind
		name string
	}{{kindNode, "node"}, {kindWorkload, "workload"}} {
		if err := pb.collectIDs(table.kind, table.name); err != nil {
			return err
		}
	}
	if err := pb.collectGaps(); err != nil {
		return err
	}
	if err := pb.collectShifts(); err != nil {
		return err
	}
	if err := pb.collectNestings(); err != nil {
		return err
	}
	return pb.collectConnections(hourFloor)
}

// Numbers of a record's place that stand for no record: it is before or after all of its revision.
const (
	beforeAll = -1
	afterAll  = math.MaxInt64
)

// startAfter returns what a record of a kind must be greater than: the revision and two more
// numbers.
func (pb *pageBuilder) startAfter(k recordKind) (rev, a, b int64) {
	switch {
	case k < pb.from.kind:
		return pb.from.rev, afterAll, afterAll
	case k > pb.from.kind:
		return pb.from.rev, beforeAll, beforeAll
	}
	return pb.from.rev, pb.from.a, pb.from.b
}

// weight is for how many records one of a kind counts: connections are of up to 1.5 KB.
func (k recordKind) weight() int {
	if k == kindConnections {
		return 4
	}
	return 1
}

// truncate drops the records beyond the limit, but for the first one, and lowers last to the revision where they were cut.
func (pb *pageBuilder) truncate() {
	sum := 0
	for i := range pb.records {
		sum += pb.records[i].at.kind.weight()
	}
	if sum <= pb.limit {
		return
	}
	slices.SortFunc(pb.records, func(a, b record) int { return a.at.compare(b.at) })
	n := len(pb.records)
	for ; n > 1 && sum > pb.limit; n-- {
		sum -= pb.records[n-1].at.kind.weight()
	}
	pb.truncated = pb.truncated || n < len(pb.records)
	pb.records = pb.records[:n]
	pb.last = pb.records[n-1].at.rev
}

// collectRows collects the rows of a table that begin in [from, to). A row that holds a coarser
// span is sent as that span: the upstream server may have finer rows in it that this ledger lost
// when an older copy was restored. The other rows in the span are then left out.
func (pb *pageBuilder) collectRows(k recordKind, v replica.Resolution, s *schema.Layout, table string, from, to int64) error {
	if from >= to {
		return nil
	}
	rev, a, b := pb.startAfter(k)
	var minute, key int64
	values := make([]int64, len(s.Columns))
	dest := []any{&minute, &key}
	for i := range values {
		dest = append(dest, &values[i])
	}
	return pb.query(k, func(i *record, scan func(...any) error) error {
		err := scan(dest...)
		i.at.rev, i.at.a, i.at.b, i.level, i.values = values[schema.ColRev], minute, key, heldLevel(v, values), slices.Clone(values)
		return err
	}, fmt.Sprintf("SELECT %[1]s FROM %[2]s AS r WHERE (rev, minute, %[3]s) > ($1, $2, $3) AND rev <= $4 AND minute >= $5 AND minute < $6%[4]s ORDER BY rev, minute, %[3]s",
		s.ColumnList(), table, s.Key, heldCondition(s, table)), rev, a, b, pb.last, from, to)
}

// query collects records of a kind: the first rows of a result, which f scans.
func (pb *pageBuilder) query(k recordKind, f func(i *record, scan func(...any) error) error, query string, args ...any) error {
	err := db.Each(pb.v.Ctx, pb.v.SQL, func(scan func(...any) error) error {
		i := record{at: cursor{kind: k}}
		err := f(&i, scan)
		pb.records = append(pb.records, i)
		return err
	}, fmt.Sprintf("%s LIMIT %d", query, max(pb.limit/k.weight(), 1)+1), args...)
	pb.truncate()
	return pb.v.DB.Fault(err)
}

// collectIDs collects records that have an id and a revision.
func (pb *pageBuilder) collectIDs(k recordKind, table string) error {
	rev, a, _ := pb.startAfter(k)
	return pb.query(k, func(i *record, scan func(...any) error) error { return scan(&i.at.rev, &i.at.a) },
		"SELECT rev, id FROM "+table+" WHERE (rev, id) > ($1, $2) AND rev <= $3 ORDER BY rev, id", rev, a, pb.last)
}

func (pb *pageBuilder) collectGaps() error {
	rev, a, _ := pb.startAfter(kindGap)
	return pb.query(kindGap, func(i *record, scan func(...any) error) error {
		var from, to, booked int64
		var reason string
		g := &i.gap
		err := scan(&i.at.rev, &i.at.a, &i.node, &from, &to, &reason, &g.Detail, &booked)
		g.From, g.To, g.Booked, g.Reason = schema.FromNanos(from), schema.FromNanos(to), schema.FromNanos(booked), usage.ParseReason(reason)
		return err
	}, "SELECT rev, id, node, from_ns, to_ns, reason, detail, booked_ns FROM gap WHERE (rev, id) > ($1, $2) AND rev <= $3 ORDER BY rev, id", rev, a, pb.last)
}

func (pb *pageBuilder) collectShifts() error {
	rev, a, _ := pb.startAfter(kindShift)
	return pb.query(kindShift, func(i *record, scan func(...any) error) error {
		var at, by, from int64
		err := scan(&i.at.rev, &i.at.a, &i.node, &i.shift.Boot, &at, &by, &from)
		i.shift.At, i.shift.By, i.shift.From = schema.FromNanos(at), time.Duration(by), schema.FromNanos(from)
		return err
	}, "SELECT rev, id, node, boot, at_ns, by_ns, from_ns FROM shift WHERE (rev, id) > ($1, $2) AND rev <= $3 ORDER BY rev, id", rev, a, pb.last)
}

func (pb *pageBuilder) collectNestings() error {
	rev, a, b := pb.startAfter(kindNesting)
	node, host := b, b
	if b != beforeAll && b != afterAll {
		node, host = schema.SplitKey(b)
	}
	return pb.query(kindNesting, func(i *record, scan func(...any) error) error {
		var node, host int64
		err := scan(&i.at.rev, &i.at.a, &node, &host, &i.hostWorkload)
		i.at.b = schema.Key(node, host)
		return err
	}, "SELECT rev, minute, node, host, workload FROM within_day WHERE (rev, minute, host, node) > ($1, $2, $3, $4) AND rev <= $5 ORDER BY rev, minute, host, node", rev, a, host, node, pb.last)
}

// collectConnections collects the connections of hours from a minute on that are folded: those of others change with each batch, and
// are due once they are. Connections that cannot be read are a finding of a check, and are left out.
func (pb *pageBuilder) collectConnections(from int64) error {
	rev, a, b := pb.startAfter(kindConnections)
	return pb.query(kindConnections, func(i *record, scan func(...any) error) error {
		var stored []byte
		err := scan(&i.at.rev, &i.at.a, &i.at.b, &stored)
		i.sketch, _ = connection.Decode(stored)
		return err
	}, `SELECT rev, minute, workload, sketch FROM connections WHERE (rev, minute, workload) > ($1, $2, $3) AND rev <= $4 AND minute >= $5
		AND (minute < $6 OR minute = $6 AND workload < $7) ORDER BY rev, minute, workload`, rev, a, b, pb.last, from, pb.v.Hour, pb.v.HourProgress.Workload)
}

// places are the indexes of nodes or workloads in a page, by id.
type places map[int64]int

// add adds an id, whose index is found later; 0 is none.
func (p places) add(id int64) {
	if id != 0 {
		p[id] = 0
	}
}

// maxIDs is how many ids a query lists.
const maxIDs = 500

// fillPage builds the page from the records.
func (pb *pageBuilder) fillPage() error {
	if err := pb.addSpilled(); err != nil {
		return err
	}
	changed := map[int64]bool{} // workloads
	workloads, nodes := places{}, places{}
	for _, i := range pb.records {
		id, within := schema.SplitKey(i.at.b)
		switch i.at.kind {
		case kindNode:
			nodes.add(i.at.a)
		case kindWorkload:
			workloads.add(i.at.a)
			changed[i.at.a] = true
		case kindGap, kindShift:
			nodes.add(i.node)
		case kindNodeMinute, kindNodeHour, kindNodeDay, kindNesting:
			nodes.add(id)
			nodes.add(within)
			workloads.add(i.hostWorkload)
		default:
			workloads.add(id)
			nodes.add(within)
		}
	}
	if err := pb.addWorkloads(workloads, nodes, changed); err != nil {
		return err
	}
	p := pb.page
	for _, i := range pb.records {
		id, host := schema.SplitKey(i.at.b)
		within := 0
		if host != 0 {
			within = nodes[host] + 1
		}
		switch i.at.kind {
		case kindGap:
			i.gap.Node = nodes[i.node]
			p.Gaps = append(p.Gaps, i.gap)
		case kindShift:
			i.shift.Node = nodes[i.node]
			p.Shifts = append(p.Shifts, i.shift)
		case kindNesting:
			n := replica.Nesting{Node: nodes[id], Host: within - 1, Workload: -1, Minute: i.at.a}
			if host == id {
				n.Host = -1 // not known here either
			}
			if i.hostWorkload != 0 {
				n.Workload = workloads[i.hostWorkload]
			}
			p.Nestings = append(p.Nestings, n)
		case kindNodeMinute, kindNodeHour, kindNodeDay:
			p.NodeRows = append(p.NodeRows, replica.NodeRow{Resolution: i.level, Node: nodes[id], Within: within, NodeMinute: schema.DecodeNodeMinute(i.at.a, i.values)})
		case kindConnections:
			if i.sketch != nil {
				p.Connections = append(p.Connections, replica.Connections{Minute: i.at.a, Workload: workloads[id], Sketch: i.sketch})
			}
		case kindMinute, kindHour, kindDay:
			p.Rows = append(p.Rows, replica.Row{Resolution: i.level, Minute: i.at.a, Workload: workloads[id], Within: within, Usage: schema.DecodeUsage(i.values, schema.ColRest)})
		}
	}
	return nil
}

// addWorkloads adds workloads and nodes to the page, and stores their indexes in the maps.
func (pb *pageBuilder) addWorkloads(workloads, nodes places, changed map[int64]bool) error {
	nodeOf := map[int64]int64{} // node by workload
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(workloads)), maxIDs) {
		err := db.Each(pb.v.Ctx, pb.v.SQL, func(scan func(...any) error) error {
			var id, node, short, named int64
			var w replica.Workload
			var r schema.NameRow
			err := scan(append([]any{&id, &node, &short, &w.From, &w.Next, &named, &w.Namespace, &w.Pod, &w.Container}, r.Targets()...)...)
			w.Short = workload.ShortID(short)
			if changed[id] {
				name := r.Name()
				w.Name, w.Named, w.Run = &name, schema.FromNanos(named), r.Run()
			} else {
				w.Namespace, w.Pod, w.Container = "", "", ""
			}
			nodes.add(node)
			workloads[id], nodeOf[id] = len(pb.page.Workloads), node
			pb.page.Workloads = append(pb.page.Workloads, w)
			return err
		}, "SELECT w.id, w.node, w.short, w.from_minute, coalesce((SELECT min(o.from_minute) FROM workload o WHERE o.node = w.node AND o.short = w.short AND o.from_minute > w.from_minute), 0), w.named_ns, w.namespace, w.pod, w.container, "+schema.NameColumns+" FROM workload w WHERE w.id IN ("+schema.JoinInts(ids)+") ORDER BY w.id")
		if err != nil {
			return pb.v.DB.Fault(err)
		}
	}
	if err := pb.addLabels(slices.Sorted(maps.Keys(changed)), workloads); err != nil {
		return err
	}
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(nodes)), maxIDs) {
		err := db.Each(pb.v.Ctx, pb.v.SQL, func(scan func(...any) error) error {
			var id, at, revoked, through, short, since, seen int64
			var n replica.Node
			err := scan(&id, &n.ID, &n.Cluster, &n.Name, &n.MachineID, &n.Boot, &n.Pool, &at, &revoked, &through, &n.CPUs, &n.CPUMinute,
				&n.Host.Node, &short, &since, &seen)
			if n.Host.Node != "" {
				n.Host.Workload, n.Host.Since, n.Host.Seen = workload.ShortID(short), schema.FromNanos(since), schema.FromNanos(seen)
			}
			n.At, n.Revoked, n.Through = schema.FromNanos(at), schema.FromNanos(revoked), schema.FromNanos(through).Truncate(time.Minute)
			nodes[id] = len(pb.page.Nodes)
			pb.page.Nodes = append(pb.page.Nodes, n)
			return err
		}, `SELECT n.id, n.node_id, n.cluster, n.name, n.machine_id, n.boot, n.pool, n.enrolled_ns, n.revoked_ns, n.through_ns, n.cpus, n.cpus_minute,
			coalesce(h.node_id, ''), coalesce(w.short, 0), n.nested_ns, n.equal_ns
			FROM node n LEFT JOIN node h ON h.id = n.host LEFT JOIN workload w ON w.id = n.host_workload WHERE n.id IN (`+schema.JoinInts(ids)+") ORDER BY n.id")
		if err != nil {
			return pb.v.DB.Fault(err)
		}
	}
	for id, place := range workloads {
		pb.page.Workloads[place].Node = nodes[nodeOf[id]]
	}
	return nil
}

func (pb *pageBuilder) addLabels(ids []int64, workloads places) error {
	for ids := range slices.Chunk(ids, maxIDs) {
		err := db.Each(pb.v.Ctx, pb.v.SQL, func(scan func(...any) error) error {
			var id int64
			var key, value string
			err := scan(&id, &key, &value)
			n := pb.page.Workloads[workloads[id]].Name
			if n.Labels == nil {
				n.Labels = map[string]string{}
			}
			n.Labels[key] = value
			return err
		}, "SELECT workload, key, value FROM workload_label WHERE workload IN ("+schema.JoinInts(ids)+")")
		if err != nil {
			return pb.v.DB.Fault(err)
		}
	}
	return nil
}
