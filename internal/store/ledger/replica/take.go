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
	if err := p.Check(); err != nil {
		return m, db.Wrap(err, "source %q", src.ID)
	}
	if err := checkFuture(p, now); err != nil {
		return m, db.Wrap(err, "source %q", src.ID)
	}
	var moved, reset bool
	err = e.db.Write(ctx, func(t *db.Tx) error {
		s := &pageTaker{Tx: t, page: p, src: src, now: now, usage: book.NewChange(schema.UsageLayout), whole: book.NewChange(schema.NodeLayout), nested: map[[2]int64]int64{}}
		var err error
		if moved, reset, err = s.take(); err == nil && moved {
			return errMarkMoved
		}
		return err
	})
	if reset || errors.Is(err, errMarkMoved) {
		if m, err = e.StatesMark(ctx, src); err == nil {
			err = fmt.Errorf("the states do not continue at page %d: %w", m.Sequence, fault.ErrConflict)
		}
		return m, db.Wrap(err, "source %q", src.ID)
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
	latest := int64(0)
	for i := range p.Rows {
		latest = max(latest, p.Rows[i].Minute)
	}
	for i := range p.NodeRows {
		latest = max(latest, p.NodeRows[i].Minute)
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
	workloads []int64
	usage     *book.Change
	whole     *book.Change
	nested    map[[2]int64]int64 // host by node and day, where all rows of the day are within it
}

// take takes the page. moved says that the page does not continue the mark and nothing may change;
// reset says that the source must start over and the page itself is not taken.
func (t *pageTaker) take() (moved, reset bool, err error) {
	var sequence int64
	var position string
	err = t.QueryRow(`INSERT INTO source (source_id, cluster, seen_ns) VALUES ($1, $2, $3)
		ON CONFLICT (source_id) DO UPDATE SET cluster = excluded.cluster, seen_ns = excluded.seen_ns RETURNING id, sequence, position, coarse`,
		schema.Clean(t.src.ID), schema.Clean(t.src.Cluster), schema.Nanos(t.now)).Scan(&t.source, &sequence, &position, &t.coarse)
	if err != nil {
		return false, false, err
	}
	here := replica.Mark{Sequence: uint64(sequence), Position: position}
	if !here.SamePosition(t.page.From) || t.hasTooFineRows() {
		return true, false, nil
	}
	position = schema.Clean(t.page.To)
	if reset, err = t.takeNodes(); err != nil {
		return false, false, err
	}
	if reset {
		position = ""
	} else if err := t.takeAll(); err != nil {
		return false, false, err
	}
	_, err = t.Exec("UPDATE source SET sequence = $2, position = $3, coarse = $4 WHERE id = $1", t.source, sequence+1, position, t.coarse)
	failpoint.At("upstream.before-commit")
	return false, reset, err
}

// hasTooFineRows reports whether the page has rows of a level that is no longer kept, so that it is
// unknown what they replace.
func (t *pageTaker) hasTooFineRows() bool {
	bad := func(v replica.Resolution, minute int64) bool {
		return v == replica.Minute && minute < t.MinuteFloor || v == replica.Hour && minute < min(t.HourFloor, t.MinuteFloor)
	}
	return slices.ContainsFunc(t.page.Rows, func(r replica.Row) bool { return bad(r.Resolution, r.Minute) }) ||
		slices.ContainsFunc(t.page.NodeRows, func(r replica.NodeRow) bool { return bad(r.Resolution, r.Minute) })
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

// findHost returns the node that hosts a guest and the guest's workload in it. Both are 0 if there
// is none or if the host is in a cluster that the source may not write to. A host that the source
// has yet to send is created.
func (t *pageTaker) findHost(id string, short workload.ShortID) (node, workload int64, err error) {
	if id == "" {
		return 0, 0, nil
	}
	var owner int64
	var cluster string
	err = t.QueryRow("SELECT id, source, cluster FROM node WHERE node_id = $1", schema.Clean(id)).Scan(&node, &owner, &cluster)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		node, err = t.newNode(id)
	case err == nil && owner != t.source:
		var mine bool
		if mine, err = t.isOwnCluster(owner, cluster); err == nil && !mine {
			return 0, 0, nil
		}
	}
	if err != nil {
		return 0, 0, err
	}
	ref, err := t.Workload(node, short)
	return node, ref.ID, err
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
		if n.Host >= 0 && n.Workload >= 0 {
			id, short = t.page.Nodes[n.Host].ID, t.page.Workloads[n.Workload].Short
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
			return schema.Key(id, 0), nil
		}
		host := t.nodes[within-1]
		if host == 0 {
			if host, err = t.findOwnNode(t.page.Nodes[within-1].ID); err != nil {
				return 0, err
			}
		}
		if host == 0 || host >= schema.EndWithin {
			host = node // not known here
		}
		return schema.Key(id, host), nil
	}
	day := [2]int64{node, minute - minute%schema.DayMinutes}
	host, ok := t.nested[day]
	if !ok {
		hosts, err := t.Ints("SELECT host FROM within_day WHERE node = $1 AND minute = $2 AND whole = 1", node, day[1])
		if err != nil {
			return 0, err
		}
		if len(hosts) > 0 {
			host = hosts[0]
		}
		t.nested[day] = host
	}
	return schema.Key(id, host), nil
}

// findOwnNode returns a node of another source that is in a cluster of this one, or 0.
func (t *pageTaker) findOwnNode(id string) (node int64, err error) {
	var owner int64
	var cluster string
	err = t.QueryRow("SELECT id, source, cluster FROM node WHERE node_id = $1", schema.Clean(id)).Scan(&node, &owner, &cluster)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if mine, err := t.isOwnCluster(owner, cluster); err != nil || !mine {
		return 0, err
	}
	return node, nil
}

// takeNodes stores the nodes of the page. reset says that the source took over a node of another
// source, and must send all of it.
func (t *pageTaker) takeNodes() (reset bool, err error) {
	t.nodes = make([]int64, len(t.page.Nodes))
	for i := range t.page.Nodes {
		n := &t.page.Nodes[i]
		var id, owner int64
		var cluster, pool string
		err := t.QueryRow("SELECT id, source, cluster, pool FROM node WHERE node_id = $1", schema.Clean(n.ID)).Scan(&id, &owner, &cluster, &pool)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			id, err = t.newNode(n.ID)
		case err == nil && owner != t.source:
			var got bool
			if got, err = t.claimForeign(id, owner, n.ID, cluster); err == nil && !got {
				continue
			}
			reset = true
		}
		if err != nil {
			return false, err
		}
		t.nodes[i] = id
		host, workload, err := t.findHost(n.Host.Node, n.Host.Workload)
		if err != nil {
			return false, err
		}
		_, err = t.Exec(`UPDATE node SET cluster = $2, name = $3, machine_id = $4, boot = $5, pool = $6, enrolled_ns = $7, revoked_ns = $8, through_ns = $9,
			cpus = $10, cpus_minute = $11, rev = $12, source = $13, host = $14, host_workload = $15, nested_ns = $16, equal_ns = $17 WHERE id = $1`,
			id, schema.Clean(t.src.ResolveCluster(n.Cluster)), schema.Clean(n.Name), schema.Clean(n.MachineID), schema.Clean(n.Boot), schema.Clean(n.Pool), schema.Nanos(n.At), schema.Nanos(n.Revoked), schema.Nanos(n.Through),
			int64(n.CPUs), n.CPUMinute, t.Rev, t.source, host, workload, schema.Nanos(n.Host.Since), schema.Nanos(n.Host.Seen))
		if err != nil {
			return false, err
		}
		if cluster == schema.Clean(t.src.ResolveCluster(n.Cluster)) && pool == schema.Clean(n.Pool) {
			continue
		}
		// Its days are in other groups now.
		_, err = t.Exec("INSERT INTO stale_day (minute) SELECT DISTINCT minute FROM group_day WHERE cluster = $1 AND pool = $2 ON CONFLICT (minute) DO UPDATE SET next = 0", cluster, pool)
		if err != nil {
			return false, err
		}
	}
	return reset, nil
}

// isOwnCluster reports whether a node of another source is in a cluster of this source: rights in
// one cluster give none to nodes of another.
func (t *pageTaker) isOwnCluster(owner int64, cluster string) (bool, error) {
	if cluster == "" && owner != 0 { // the node is only created; use the cluster of its source
		if err := t.QueryRow("SELECT cluster FROM source WHERE id = $1", owner).Scan(&cluster); err != nil {
			return false, err
		}
	}
	return schema.Clean(t.src.ResolveCluster(cluster)) == cluster, nil
}

// claimForeign decides about a node that another source sent before. Its rows count once: from the
// first source, unless that one has gone silent and this source is of the node's cluster.
func (t *pageTaker) claimForeign(node, owner int64, id, cluster string) (got bool, err error) {
	mine, err := t.isOwnCluster(owner, cluster)
	if err != nil {
		return false, err
	}
	if owner != 0 && mine {
		var seen, revoked, coarse int64
		if err := t.QueryRow("SELECT seen_ns, revoked_ns, coarse FROM source WHERE id = $1", owner).Scan(&seen, &revoked, &coarse); err != nil {
			return false, err
		}
		if revoked != 0 || schema.Nanos(t.now)-seen > int64(abandonAfter) {
			t.coarse = max(t.coarse, coarse) // of the rows taken over
			return true, t.Audit(registry.Audit{At: t.now, Actor: t.src.ID, Action: "states.node-moved", Object: id, Detail: "from a server that no longer sends"})
		}
	}
	fresh, err := t.Exec("INSERT INTO foreign_node (source, node) VALUES ($1, $2) ON CONFLICT DO NOTHING", t.source, node)
	if err != nil || fresh == 0 {
		return false, err
	}
	detail := "another source already sends rows of this node; rows from this server are ignored"
	if !mine {
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
		ref, err := t.Workload(node, w.Short)
		if err != nil {
			return err
		}
		if t.workloads[i] = ref.ID; w.Name == nil || w.Name.ID == "" {
			continue
		}
		if err := book.ReplaceName(t.Tx, ref.ID, w); err != nil {
			return err
		}
		t.NameWorkload(node, w.Short, ref.ID)
	}
	return nil
}
