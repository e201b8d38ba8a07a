package book

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// restoreTolerance is by how much the boottime of a kernel may appear to go back, since each
// request states that of its sending.
const restoreTolerance = 2 * time.Second

// maxClockAhead is by how much the boottime of a kernel may be ahead of what the node says that booked the
// kernel first.
const maxClockAhead = time.Minute

// A kernelRun is one execution of a booted kernel.
type kernelRun struct {
	id      int64 // 0 if there is none
	highest int64 // boottime that its meters showed last, ns
	owner   int64 // the node that booked time of it first
	began   int64 // this machine's time of the boot by the owner's clock, ns; 0 if not known
}

// fits reports whether a node may measure a run, if its boottime is at now. Boottime stands still while
// a machine is paused, but is never ahead. So no other node books time before the machine itself has it.
func (r kernelRun) fits(n *bookedNode, at, now int64) bool {
	return r.owner == n.id || r.began == 0 || at <= now-r.began+int64(maxClockAhead)
}

// A clock is what a request states of its sender's kernel, and this machine's time.
type clock struct {
	boot          string
	boottime, now int64
}

// at returns the boottime of what was measured: now for the present boot, else the end of it.
func (c clock) at(m batch.Measured) int64 {
	if m.Boot == c.boot {
		return c.boottime
	}
	return m.To
}

// A bookedRange is booked time of a kernel run.
type bookedRange struct {
	from, to int64
	node     int64
	taken    int64
}

// each calls f for each row of a query, of a transaction or outside of one.
type each func(f func(scan func(...any) error) error, query string, args ...any) error

// Booked returns what of the time that a node's windows measured is booked already, in order
// of the windows; boot and boottime are its clock. The node of a machine's jobs books no time of the
// machine: any user can send jobs. The error is [batch.RivalError] while the
// node of the cluster that booked the same kernel first measures it too.
func (b *Booker) Booked(ctx context.Context, node, boot string, boottime int64, ms []batch.Measured) (list []batch.Measured, err error) {
	each := func(f func(scan func(...any) error) error, query string, args ...any) error {
		return b.db.Lookup(ctx, f, query, args...)
	}
	n := &bookedNode{node: node}
	c := clock{boot, boottime, time.Now().UnixNano()}
	for _, m := range ms {
		run, near, err := findRun(each, n, m, c)
		if err != nil {
			return nil, db.Wrap(err, "booked time of node %q", node)
		}
		if n.jobs {
			return nil, nil
		}
		ranges := overlapping(near, m)
		if isRestored(run, m, boot, boottime, ranges) {
			ranges = trimRanges(ranges, m, boottime)
		}
		for _, r := range ranges {
			if r.node == run.owner && r.node != n.id && c.now-r.taken < int64(batch.RivalTimeout) && !m.Resumed {
				return nil, b.rivalError(ctx, r.node)
			}
			list = append(list, batch.Measured{Boot: m.Boot, Extent: m.Extent, From: max(r.from, m.From), To: min(r.to, m.To)})
		}
	}
	return list, nil
}

func (b *Booker) rivalError(ctx context.Context, id int64) error {
	var node string
	if err := b.db.Reader.QueryRowContext(ctx, "SELECT node_id FROM node WHERE id = $1", id).Scan(&node); err != nil {
		return db.Wrap(b.db.Fault(err), "node %d", id)
	}
	return batch.RivalError(node)
}

// findRun returns the run of a kernel that a node measures: that which it measured last, else
// the latest that agrees with its clock. near are the ranges of that run that overlap with or adjoin what
// was measured, in order. A node without an id is read too.
func findRun(each each, n *bookedNode, m batch.Measured, c clock) (found kernelRun, near []bookedRange, err error) {
	known := n.id != 0
	err = each(func(scan func(...any) error) error {
		var id, last int64
		var machine string
		var r kernelRun
		var b bookedRange
		if err := scan(&id, &last, &machine, &r.id, &r.highest, &r.owner, &r.began, &b.from, &b.to, &b.node, &b.taken); err != nil {
			return err
		}
		if !known {
			n.id, n.run, n.jobs = id, last, registry.IsJobsMachine(machine)
		}
		if r.id != found.id && r.fits(n, c.at(m), c.now) && (found.id == 0 || found.id != n.run) {
			found, near = r, nil
		}
		if r.id == found.id && b.to != 0 {
			near = append(near, b)
		}
		return nil
	}, `SELECT n.id, n.run, n.machine_id, COALESCE(k.id, 0), COALESCE(k.highest_ns, 0), COALESCE(k.node, 0), COALESCE(k.began_ns, 0),
		COALESCE(b.from_ns, 0), COALESCE(b.to_ns, 0), COALESCE(b.node, 0), COALESCE(b.taken_ns, 0)
		FROM node n LEFT JOIN kernel_run k ON k.cluster = n.cluster AND k.boot = $2
		LEFT JOIN booked b ON b.run = k.id AND b.scope = $3 AND b.to_ns >= $4 AND b.from_ns <= $5
		WHERE n.node_id = $1 AND n.source = 0 ORDER BY k.number, b.from_ns`,
		schema.Clean(n.node), schema.Clean(m.Boot), schema.Clean(string(m.Scope)), m.From, m.To)
	return found, near, err
}

// overlapping returns the ranges that overlap with what was measured.
func overlapping(near []bookedRange, m batch.Measured) []bookedRange {
	return slices.DeleteFunc(slices.Clone(near), func(r bookedRange) bool { return r.to <= m.From || r.from >= m.To })
}

// isRestored reports whether a node measures a kernel that was restored to an earlier memory
// image: its boottime went back, and it measures booked time again. A request that was long in transit
// shows an old boottime too, but its windows were not booked before.
func isRestored(run kernelRun, m batch.Measured, boot string, boottime int64, ranges []bookedRange) bool {
	return len(ranges) > 0 && m.Boot == boot && boottime < run.highest-int64(restoreTolerance)
}

// trimRanges returns what of ranges is before an instant and overlaps with m: a restored kernel
// has in common with the run before it at most the time up to where it showed itself first.
func trimRanges(ranges []bookedRange, m batch.Measured, to int64) []bookedRange {
	ranges = slices.Clone(ranges)
	for i := range ranges {
		ranges[i].to = min(ranges[i].to, to)
	}
	return slices.DeleteFunc(ranges, func(r bookedRange) bool { return r.to <= max(r.from, m.From) })
}

// errOverlap refuses an entry whose windows measured booked time. The receiver cuts booked time
// off before it books, so this is a batch that another one overtook.
var errOverlap = &fault.RetryError{
	Err:   fmt.Errorf("some of its time was booked meanwhile: %w", fault.ErrUnavailable),
	After: time.Second,
}

// errAhead refuses an entry with a window of the future.
var errAhead = fmt.Errorf("a window ends after the boottime of its request: %w", fault.ErrInvalid)

// addMeasured books what the windows of an entry measured, if the quota of the node has room for that
// and for fresh other rows. The error wraps errOverlap if some of it is booked.
func (b *booking) addMeasured(e *batch.Entry, n *bookedNode, s streamState, fresh int64) error {
	if n.jobs {
		if err := b.checkQuota(e, n, s, fresh); err != nil {
			return err
		}
		if err := b.findExtents(e, n); err != nil {
			return err
		}
		return b.addExtents(e, n, nil)
	}
	if err := b.findExtents(e, n); err != nil {
		return err
	}
	c := clock{e.Boot, e.Boottime, b.now}
	before, err := b.findRestored(e, n, c)
	if err != nil {
		return err
	}
	if before.id != 0 {
		fresh += 2
	}
	runs := make([]kernelRun, len(e.Measured))
	var near []bookedRange
	for i, m := range e.Measured {
		if m.Boot == e.Boot && m.To > e.Boottime+int64(restoreTolerance) {
			return errAhead
		}
		if runs[i], near, err = findRun(b.Each, n, m, c); err != nil {
			return err
		}
		ranges := overlapping(near, m)
		if before.id != 0 && runs[i].id == before.id {
			ranges = trimRanges(ranges, m, e.Boottime)
		}
		if len(ranges) > 0 {
			return errOverlap
		}
		fresh += countFresh(runs[i], near, m)
	}
	if err := b.checkQuota(e, n, s, fresh); err != nil {
		return err
	}
	if before.id != 0 {
		if _, err = b.addRun(e, n, before, batch.Measured{Boot: e.Boot}, c); err != nil {
			return err
		}
	}
	for i, m := range e.Measured {
		run := runs[i]
		if len(runs) > 1 || run.id == 0 || run.id == before.id { // other ranges or the run may be there now
			if run, near, err = findRun(b.Each, n, m, c); err != nil {
				return err
			}
		}
		if run.id == 0 {
			if run, err = b.addRun(e, n, kernelRun{}, m, c); err != nil {
				return err
			}
		}
		if err := b.addRange(run, near, m, n); err != nil {
			return err
		}
		runs[i] = run
		if m.Boot == e.Boot {
			if err := b.noteClock(run, n, c); err != nil {
				return err
			}
		}
	}
	return b.addExtents(e, n, runs)
}

// findRestored returns the run of a kernel of which an entry shows that it was restored to an earlier
// memory image: the node measures another run from now on. Of the windows up to the boottime that it
// shows first some use may be that of the run before, so they count as booked. Where nothing was cut
// off, nothing was booked before.
func (b *booking) findRestored(e *batch.Entry, n *bookedNode, c clock) (kernelRun, error) {
	if slices.Equal(e.Claimed, e.Measured) {
		return kernelRun{}, nil
	}
	for _, m := range e.Claimed {
		run, near, err := findRun(b.Each, n, m, c)
		if err != nil || isRestored(run, m, e.Boot, e.Boottime, overlapping(near, m)) {
			return run, err
		}
	}
	return kernelRun{}, nil
}

// noteClock keeps what a node's clock shows of the run that it measures.
func (b *booking) noteClock(run kernelRun, n *bookedNode, c clock) error {
	if n.run != run.id {
		n.run, n.changed = run.id, true
	}
	began := run.began
	if now := c.now - c.boottime; run.owner == n.id && max(now-began, began-now) > int64(time.Second) {
		began = now
	}
	highest := max(run.highest, c.boottime)
	if highest == run.highest && began == run.began {
		return nil
	}
	_, err := b.Exec("UPDATE kernel_run SET highest_ns = $2, began_ns = $3 WHERE id = $1", run.id, highest, began)
	return err
}

// countFresh returns how many rows the booking of free time of a run adds: none if it follows booked
// time.
func countFresh(run kernelRun, near []bookedRange, m batch.Measured) int64 {
	switch {
	case run.id == 0:
		return 2
	case slices.ContainsFunc(near, func(r bookedRange) bool { return r.to == m.From }):
		return 0
	}
	return 1
}

// addRun adds a run of a kernel: the first one, or the one after before, with which it has
// in common what was booked up to the present boottime.
func (b *booking) addRun(e *batch.Entry, n *bookedNode, before kernelRun, m batch.Measured, c clock) (r kernelRun, err error) {
	r.highest, r.owner = c.at(m), n.id
	if m.Boot == c.boot {
		r.began = c.now - c.boottime
	}
	boot := m.Boot
	err = b.QueryRow(`INSERT INTO kernel_run (cluster, boot, number, highest_ns, node, began_ns)
		SELECT cluster, CAST($2 AS text), (SELECT COALESCE(max(k.number) + 1, 0) FROM kernel_run k WHERE k.cluster = node.cluster AND k.boot = $2), CAST($3 AS bigint), id, CAST($4 AS bigint) FROM node WHERE id = $1
		RETURNING id`, n.id, schema.Clean(boot), r.highest, r.began).Scan(&r.id)
	n.takeRange()
	if err != nil {
		return r, err
	}
	if m.Boot == c.boot {
		n.run, n.changed = r.id, true
	}
	if before.id == 0 {
		return r, b.auditOtherCluster(e, n, boot)
	}
	_, err = b.Exec(`INSERT INTO booked (run, scope, from_ns, to_ns, node, taken_ns)
		SELECT CAST($2 AS bigint), scope, from_ns, CASE WHEN to_ns < $3 THEN to_ns ELSE $3 END, node, taken_ns FROM booked WHERE run = $1 AND from_ns < $3`,
		before.id, r.id, e.Boottime)
	if err != nil {
		return r, err
	}
	return r, b.Audit(registry.Audit{
		At: schema.FromNanos(b.now), Actor: e.Node, Action: "kernel.restored", Object: boot,
		Detail: fmt.Sprintf("its boottime was %v and is %v: the machine was restored to an earlier memory image, or is a clone", time.Duration(before.highest), time.Duration(e.Boottime)),
	})
}

// auditOtherCluster writes an audit line if another cluster books a kernel too. Time is compared
// within a cluster, since clusters have no rights in each other.
func (b *booking) auditOtherCluster(e *batch.Entry, n *bookedNode, boot string) error {
	var other string
	err := b.Each(func(scan func(...any) error) error { return scan(&other) },
		"SELECT k.cluster FROM kernel_run k JOIN node n ON n.cluster <> k.cluster WHERE n.id = $1 AND k.boot = $2 ORDER BY k.cluster DESC", n.id, schema.Clean(boot))
	if err != nil || other == "" || boot == "" {
		return err
	}
	return b.Audit(registry.Audit{
		At: schema.FromNanos(b.now), Actor: e.Node, Action: "kernel.second-cluster", Object: boot,
		Detail: fmt.Sprintf("cluster %s books this kernel too: a machine sends to two clusters, and both count it", other),
	})
}

// addRange books time that is not booked, and joins it with the ranges near it that it adjoins.
func (b *booking) addRange(run kernelRun, near []bookedRange, m batch.Measured, n *bookedNode) error {
	scope := schema.Clean(string(m.Scope))
	joined := bookedRange{m.From, m.To, n.id, b.now}
	for _, r := range near {
		switch {
		case r.to == m.From:
			joined.from = r.from
		case r.from == m.To:
			joined.to, joined.node, joined.taken = r.to, r.node, r.taken
			if _, err := b.Exec("DELETE FROM booked WHERE run = $1 AND scope = $2 AND from_ns = $3", run.id, scope, r.from); err != nil {
				return err
			}
		}
	}
	query := "UPDATE booked SET to_ns = $4, node = $5, taken_ns = $6 WHERE run = $1 AND scope = $2 AND from_ns = $3"
	if joined.from == m.From {
		n.takeRange()
		query = "INSERT INTO booked (run, scope, from_ns, to_ns, node, taken_ns) VALUES ($1, $2, $3, $4, $5, $6)"
	}
	_, err := b.Exec(query, run.id, scope, joined.from, joined.to, joined.node, joined.taken)
	return err
}

// isOverlap reports whether an entry is refused because another batch was booked meanwhile.
func isOverlap(err error) bool { return errors.Is(err, errOverlap) || errors.Is(err, errPlaced) }
