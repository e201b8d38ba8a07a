package replica

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/book"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
	"mete.dev/mete/internal/x/failpoint"
)

// abandonAfter is how long a source may be silent before another source can claim its nodes.
const abandonAfter = 24 * time.Hour

// StatesMark returns how far the states of a source have been taken.
func (e *Exchange) StatesMark(ctx context.Context, src replica.Source) (m replica.Mark, err error) {
	err = e.db.View(ctx, func(v *db.View) error {
		m.MinuteFloor, m.HourFloor = v.MinuteFloor, v.HourFloor
		var sequence int64
		err := v.SQL.QueryRowContext(ctx, "SELECT sequence, position FROM source WHERE source_id = $1", schema.Clean(src.ID)).Scan(&sequence, &m.Position)
		m.Sequence = uint64(sequence)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return e.db.Fault(err)
	})
	return m, db.Wrap(err, "mark of source %q", src.ID)
}

// TakeStates takes a page of a source in one transaction, and returns the mark after it. A page
// that does not continue the mark, or has rows finer than are kept here, changes nothing and is
// fault.ErrConflict; the source continues from the returned mark. One with rows of the future is
// fault.ErrUnavailable until their time. A page that can never be taken is fault.ErrInvalid.
func (e *Exchange) TakeStates(ctx context.Context, src replica.Source, p *replica.Page, now time.Time) (m replica.Mark, err error) {
	var reset bool
	if err = p.Check(); err == nil {
		err = checkFuture(p, now)
	}
	if err == nil {
		err = e.db.Write(ctx, func(t *db.Tx) (err error) {
			s := &pageTaker{Tx: t, page: p, src: src, now: now, usage: book.NewChange(schema.UsageLayout), whole: book.NewChange(schema.NodeLayout)}
			reset, err = s.take()
			return err
		})
	}
	if err == nil && reset || errors.Is(err, errMarkMoved) {
		if m, err = e.StatesMark(ctx, src); err == nil {
			err = fmt.Errorf("the states do not continue at page %d: %w", m.Sequence, fault.ErrConflict)
		}
	}
	if err != nil {
		return m, db.Wrap(err, "states of source %q", src.ID)
	}
	failpoint.At("upstream.committed")
	return e.StatesMark(ctx, src)
}

// maxAhead is how far the clock of a source may be ahead.
const maxAhead = time.Hour

// checkFuture returns an error that wraps fault.ErrUnavailable if a page has rows of the future.
// Each of their days would have tables that are not dropped before that day is over.
func checkFuture(p *replica.Page, now time.Time) error {
	var latest int64
	for i := range p.Rows {
		latest = max(latest, p.Rows[i].Minute)
	}
	for i := range p.NodeRows {
		latest = max(latest, p.NodeRows[i].Minute)
	}
	for i := range p.Connections {
		latest = max(latest, p.Connections[i].Minute)
	}
	if latest <= now.Add(maxAhead).Unix()/60 {
		return nil
	}
	return &fault.RetryError{
		Err: fault.WithHint(fmt.Errorf("rows of %s, and here it is %s: %w", schema.FormatMinute(latest), schema.FormatMinute(now.Unix()/60), fault.ErrUnavailable),
			"compare the clocks of both servers; rows of the future wait until their time"),
		After: time.Minute,
	}
}

var errMarkMoved = errors.New("the mark has moved")

// A pageTaker takes one page into the ledger.
type pageTaker struct {
	*db.Tx
	page *replica.Page
	src  replica.Source
	now  time.Time

	source    int64   // surrogate id
	coarse    int64   // column coarse of table source
	nodes     []int64 // surrogate ids of the page's nodes; 0 for nodes of another source
	hosts     []int64 // likewise, of nodes that rows can be within; 0 for nodes of other clusters
	workloads []int64
	usage     *book.Change
	whole     *book.Change
}

// take takes the page. errMarkMoved says that the page does not continue the mark; reset says that the
// source must start over and the page itself is not taken.
func (t *pageTaker) take() (reset bool, err error) {
	var sequence int64
	var position string
	err = t.QueryRow(`INSERT INTO source (source_id, cluster, seen_ns) VALUES ($1, $2, $3)
		ON CONFLICT (source_id) DO UPDATE SET cluster = excluded.cluster, seen_ns = excluded.seen_ns RETURNING id, sequence, position, coarse`,
		schema.Clean(t.src.ID), schema.Clean(t.src.Cluster), schema.Nanos(t.now)).Scan(&t.source, &sequence, &position, &t.coarse)
	if err != nil {
		return false, err
	}
	here := replica.Mark{Sequence: uint64(sequence), Position: position}
	if !here.SamePosition(t.page.From) || t.hasTooFineRows() {
		return false, errMarkMoved
	}
	if reset, err = t.takeNodes(); err != nil {
		return false, err
	}
	position = ""
	if !reset {
		position = schema.Clean(t.page.To)
		if err := t.takeAll(); err != nil {
			return false, err
		}
	}
	_, err = t.Exec("UPDATE source SET sequence = $2, position = $3, coarse = $4 WHERE id = $1", t.source, sequence+1, position, t.coarse)
	failpoint.At("upstream.before-commit")
	return reset, err
}

// hasTooFineRows reports whether the page has rows of a level that is no longer kept, so that it is
// unknown what they replace.
func (t *pageTaker) hasTooFineRows() bool {
	bad := func(v replica.Resolution, minute int64) bool {
		return v == replica.Minute && minute < t.MinuteFloor || v == replica.Hour && minute < min(t.HourFloor, t.MinuteFloor)
	}
	return slices.ContainsFunc(t.page.Rows, func(r replica.Row) bool { return bad(r.Resolution, r.Minute) }) ||
		slices.ContainsFunc(t.page.NodeRows, func(r replica.NodeRow) bool { return bad(r.Resolution, r.Minute) }) ||
		slices.ContainsFunc(t.page.Connections, func(c replica.Connections) bool { return bad(replica.Hour, c.Minute) })
}

func (t *pageTaker) takeAll() error {
	if err := t.takeWorkloads(); err != nil {
		return err
	}
	for i := range t.page.Gaps {
		g := &t.page.Gaps[i]
		if node := t.nodes[g.Node]; node != 0 {
			if err := book.AddGap(t.Tx, node, g.Gap, schema.Nanos(g.Booked)); err != nil {
				return err
			}
		}
	}
	for i := range t.page.Shifts {
		s := &t.page.Shifts[i]
		node := t.nodes[s.Node]
		if node == 0 {
			continue
		}
		if err := t.takeShift(node, &s.Shift); err != nil {
			return err
		}
	}
	if err := t.takeNestings(); err != nil {
		return err
	}
	for i := range t.page.NodeRows {
		r := &t.page.NodeRows[i]
		node := t.nodes[r.Node]
		if node == 0 {
			continue
		}
		key, err := t.keyOf(node, node, r.Minute, r.Within)
		if err != nil {
			return err
		}
		t.whole.Set(r.Resolution, schema.RowKey{Minute: r.Minute, ID: key}, schema.EncodeNodeMinute(&r.NodeMinute, t.Rev))
	}
	for i := range t.page.Rows {
		r := &t.page.Rows[i]
		id := t.workloads[r.Workload]
		if id == 0 {
			continue
		}
		key, err := t.keyOf(id, t.nodes[t.page.Workloads[r.Workload].Node], r.Minute, r.Within)
		if err != nil {
			return err
		}
		t.usage.Set(r.Resolution, schema.RowKey{Minute: r.Minute, ID: key}, schema.EncodeUsage(&r.Usage, t.Rev))
	}
	if err := t.takeConnections(); err != nil {
		return err
	}
	before := t.coarse
	for _, c := range []*book.Change{t.whole, t.usage} {
		through, err := c.Apply(t.Tx, before)
		if err != nil {
			return err
		}
		t.coarse = max(t.coarse, through)
	}
	return nil
}

// takeConnections stores connections in place of those that were taken before.
func (t *pageTaker) takeConnections() error {
	sketches := book.Sketches{}
	for i := range t.page.Connections {
		c := &t.page.Connections[i]
		if id := t.workloads[c.Workload]; id != 0 {
			sketches[schema.RowKey{Minute: c.Minute, ID: id}] = c.Sketch
		}
	}
	return book.PutConnections(t.Tx, sketches)
}

// takeShift stores a shift, once.
func (t *pageTaker) takeShift(node int64, s *batch.Shift) error {
	var n int64
	err := t.QueryRow("SELECT count(*) FROM shift WHERE node = $1 AND boot = $2 AND at_ns = $3 AND by_ns = $4 AND from_ns = $5",
		node, schema.Clean(s.Boot), schema.Nanos(s.At), int64(s.By), schema.Nanos(s.From)).Scan(&n)
	if err != nil || n > 0 {
		return err
	}
	_, err = t.Exec("INSERT INTO shift (node, boot, at_ns, by_ns, from_ns, rev) VALUES ($1, $2, $3, $4, $5, $6)",
		node, schema.Clean(s.Boot), schema.Nanos(s.At), int64(s.By), schema.Nanos(s.From), t.Rev)
	return err
}

// A known is what is known of a node; id is 0 if there is none.
type known struct {
	id, owner     int64 // owner is its source
	cluster, pool string
	// mine says that it is of the source, or in a cluster of it: rights in one cluster give none to
	// nodes of another.
	mine bool
}

// lookUp returns the node with an id.
func (t *pageTaker) lookUp(id string) (n known, err error) {
	var of string // a node that is only created is in the cluster of its source
	err = t.QueryRow(`SELECT n.id, n.source, n.cluster, n.pool, coalesce(nullif(n.cluster, ''), s.cluster, '') FROM node n
		LEFT JOIN source s ON s.id = n.source WHERE n.node_id = $1`, schema.Clean(id)).Scan(&n.id, &n.owner, &n.cluster, &n.pool, &of)
	if errors.Is(err, sql.ErrNoRows) {
		return n, nil
	}
	n.mine = n.owner == t.source || schema.Clean(t.src.ResolveCluster(of)) == of
	return n, err
}

// findHost returns the node that hosts a guest and the guest's workload in it, 0 if that is not known. Both are 0 if there
// is none or if the host is in a cluster that the source may not write to. A host that the source
// has yet to send is created.
func (t *pageTaker) findHost(id string, short workload.ShortID) (node, workload int64, err error) {
	if id == "" {
		return node, workload, nil
	}
	n, err := t.lookUp(id)
	if err == nil && n.id == 0 {
		n.id, err = t.newNode(id)
		n.mine = true
	}
	if err != nil || !n.mine {
		return node, workload, err
	}
	if short == 0 {
		return n.id, 0, nil
	}
	ref, err := t.Workload(n.id, short)
	return n.id, ref.ID, err
}

// newNode creates a node of the source.
func (t *pageTaker) newNode(id string) (node int64, err error) {
	err = t.QueryRow("INSERT INTO node (node_id, cluster, name, machine_id, boot, enrolled_ns, rev, source) VALUES ($1, '', '', '', '', 0, $2, $3) RETURNING id",
		schema.Clean(id), t.Rev, t.source).Scan(&node)
	return node, err
}

// takeNestings stores within which hosts rows of nodes are on a day. A source of an earlier version
// does not say which rows: then all of them are.
func (t *pageTaker) takeNestings() error {
	for _, n := range t.page.Nestings {
		node := t.nodes[n.Node]
		if node == 0 {
			continue
		}
		var id string
		var short workload.ShortID
		if n.Host >= 0 {
			id = t.page.Nodes[n.Host].ID
			if n.Workload >= 0 { // a job or a container's agent is none of its host's workloads
				short = t.page.Workloads[n.Workload].Short
			}
		}
		host, workload, err := t.findHost(id, short)
		if err == nil {
			if host == 0 {
				host = node // not known here
			}
			if t.page.Within {
				err = book.NoteWithin(t.Tx, node, n.Minute, host, workload, false)
			} else {
				err = book.NestDay(t.Tx, node, n.Minute, host, workload)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// keyOf returns the key of a row of a node: of its workload id, or of the node itself. within is that
// of the row.
func (t *pageTaker) keyOf(id, node, minute int64, within int) (key int64, err error) {
	if t.page.Within {
		if within == 0 {
			return id, nil
		}
		host := t.hosts[within-1]
		if host == 0 {
			host = node // not known here
		}
		if host >= schema.EndWithin {
			return id, nil // as when rows are booked
		}
		return schema.Key(id, host), nil
	}
	var host int64
	err = t.QueryRow("SELECT coalesce(min(host), 0) FROM within_day WHERE node = $1 AND minute = $2 AND whole = 1", node, schema.DayOf(minute)).Scan(&host)
	return schema.Key(id, host), err
}

// takeNodes stores the nodes of the page. reset says that the source took over a node of another
// source, and must send all of it.
func (t *pageTaker) takeNodes() (reset bool, err error) {
	t.nodes, t.hosts = make([]int64, len(t.page.Nodes)), make([]int64, len(t.page.Nodes))
	for i := range t.page.Nodes {
		n := &t.page.Nodes[i]
		had, err := t.lookUp(n.ID)
		got := true
		switch {
		case err != nil:
		case had.id == 0:
			had.id, err = t.newNode(n.ID)
			had.mine = true
		case had.owner != t.source:
			got, err = t.claimForeign(&had, n.ID)
			reset = reset || got
		}
		if err != nil {
			return false, err
		}
		if had.mine && had.id < schema.EndWithin {
			t.hosts[i] = had.id
		}
		if !got {
			continue
		}
		t.nodes[i] = had.id
		host, workload, err := t.findHost(n.Host.Node, n.Host.Workload)
		if err != nil {
			return false, err
		}
		cluster, pool := schema.Clean(t.src.ResolveCluster(n.Cluster)), schema.Clean(n.Pool)
		_, err = t.Exec(`UPDATE node SET cluster = $2, name = $3, machine_id = $4, boot = $5, pool = $6, enrolled_ns = $7, revoked_ns = $8, through_ns = $9,
			cpus = $10, cpus_minute = $11, rev = $12, source = $13, host = $14, host_workload = $15, nested_ns = $16, equal_ns = $17 WHERE id = $1`,
			had.id, cluster, schema.Clean(n.Name), schema.Clean(n.MachineID), schema.Clean(n.Boot), pool, schema.Nanos(n.At), schema.Nanos(n.Revoked), schema.Nanos(n.Through),
			int64(n.CPUs), n.CPUMinute, t.Rev, t.source, host, workload, schema.Nanos(n.Host.Since), schema.Nanos(n.Host.Seen))
		if err == nil && (cluster != had.cluster || pool != had.pool) {
			// Its days are in other groups now.
			_, err = t.Exec("INSERT INTO stale_day (minute) SELECT DISTINCT minute FROM group_day WHERE cluster = $1 AND pool = $2 ON CONFLICT (minute) DO UPDATE SET next = 0", had.cluster, had.pool)
		}
		if err != nil {
			return false, err
		}
	}
	return reset, nil
}

// claimForeign decides about a node that another source sent before. Its rows count once: from the
// first source, unless that one has gone silent and this source is of the node's cluster.
func (t *pageTaker) claimForeign(n *known, id string) (got bool, err error) {
	if n.owner != 0 && n.mine {
		var seen, revoked, coarse int64
		if err := t.QueryRow("SELECT seen_ns, revoked_ns, coarse FROM source WHERE id = $1", n.owner).Scan(&seen, &revoked, &coarse); err != nil {
			return false, err
		}
		if revoked != 0 || schema.Nanos(t.now)-seen > int64(abandonAfter) {
			t.coarse = max(t.coarse, coarse) // of the rows taken over
			return true, t.Audit(registry.Audit{At: t.now, Actor: t.src.ID, Action: "states.node-moved", Object: id, Detail: "from a server that no longer sends"})
		}
	}
	fresh, err := t.Exec("INSERT INTO foreign_node (source, node) VALUES ($1, $2) ON CONFLICT DO NOTHING", t.source, n.id)
	if err != nil || fresh == 0 {
		return false, err
	}
	detail := "another source already sends rows of this node; rows from this server are ignored"
	if !n.mine {
		detail = "the node is in another cluster; its rows from this server are ignored"
	}
	return false, t.Audit(registry.Audit{At: t.now, Actor: t.src.ID, Action: "states.foreign", Object: id, Detail: detail})
}

// takeWorkloads stores the workloads of the page.
func (t *pageTaker) takeWorkloads() error {
	t.workloads = make([]int64, len(t.page.Workloads))
	for i := range t.page.Workloads {
		w := &t.page.Workloads[i]
		node := t.nodes[w.Node]
		if node == 0 {
			continue
		}
		id, err := book.SetVersion(t.Tx, node, w.Short, w.From, w.Next)
		if err != nil {
			return err
		}
		if t.workloads[i] = id; w.Name == nil || w.Name.ID == "" {
			continue
		}
		if err := book.ReplaceName(t.Tx, id, w); err != nil {
			return err
		}
	}
	return nil
}
