package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/x/failpoint"
)

// abandoned is after how long without a word a source has no claim to its nodes
// any more, where another one brings them.
const abandoned = 24 * time.Hour

// StatesMark is how far the states of a source have been taken.
func (l *Ledger) StatesMark(ctx context.Context, src replica.Source) (m replica.Mark, err error) {
	err = l.view(ctx, func(v *view) error {
		m.MinuteFloor, m.HourFloor = v.MinuteFloor, v.HourFloor
		var sequence int64
		err := v.tx.QueryRowContext(ctx, "SELECT sequence, position FROM source WHERE source_id = $1", clean(src.ID)).Scan(&sequence, &m.Position)
		m.Sequence = uint64(sequence)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return l.d.fault(err)
	})
	return m, about(err, "mark of source %q", src.ID)
}

// TakeStates takes a page of a source, all of it in one transaction, and returns
// the mark after it. A page that does not continue the mark changes nothing: it
// is fault.ErrConflict, and so is one with rows that are finer than what is kept
// here; the mark is the one to go on from. A page that can never be taken is
// fault.ErrInvalid.
func (l *Ledger) TakeStates(ctx context.Context, src replica.Source, p *replica.Page, now time.Time) (m replica.Mark, err error) {
	if err := p.Check(); err != nil {
		return m, about(err, "source %q", src.ID)
	}
	var moved, reset bool
	err = l.write(ctx, func(t *txn) error {
		s := &taking{txn: t, page: p, src: src, now: now, usage: newChange(usageShape), whole: newChange(nodeShape)}
		var err error
		if moved, reset, err = s.take(); err == nil && moved {
			return errMoved
		}
		return err
	})
	if reset || errors.Is(err, errMoved) {
		if m, err = l.StatesMark(ctx, src); err == nil {
			err = fmt.Errorf("the states do not go on at page %d: %w", m.Sequence, fault.ErrConflict)
		}
		return m, about(err, "source %q", src.ID)
	}
	if err != nil {
		return m, about(err, "states of source %q", src.ID)
	}
	failpoint.At("upstream.committed")
	return l.StatesMark(ctx, src)
}

// PutSource enrols a server that sends its rows here, or replaces what is known
// of it.
func (l *Ledger) PutSource(ctx context.Context, n registry.Node) error {
	return about(l.write(ctx, func(t *txn) error {
		_, err := t.exec(`INSERT INTO source (source_id, cluster, name, machine_id, boot, enrolled_ns) VALUES ($1, $2, $3, $4, $5, $6)
			ON CONFLICT (source_id) DO UPDATE SET cluster = excluded.cluster, name = excluded.name, machine_id = excluded.machine_id,
			boot = excluded.boot, enrolled_ns = excluded.enrolled_ns`,
			clean(n.ID), clean(n.Cluster), clean(n.Name), clean(n.MachineID), clean(n.Boot), nano(n.At))
		return err
	}), "source %q", n.ID)
}

// Sources finds the servers that were enrolled with a ledger's id and are not
// revoked, the newest first.
func (l *Ledger) Sources(ctx context.Context, machineID string) (found []registry.Node, err error) {
	err = each(ctx, l.reader, func(scan func(...any) error) error {
		n, err := scanNode(scan)
		found = append(found, n)
		return err
	}, "SELECT source_id, cluster, name, machine_id, boot, enrolled_ns, '' FROM source WHERE machine_id = $1 AND revoked_ns = 0 ORDER BY enrolled_ns DESC, id DESC", clean(machineID))
	return found, about(l.d.fault(err), "sources of %q", machineID)
}

var errMoved = errors.New("the mark is elsewhere")

// A taking is a page on its way into the ledger.
type taking struct {
	*txn
	page *replica.Page
	src  replica.Source
	now  time.Time

	source    int64   // surrogate id
	coarse    int64   // see table source
	nodes     []int64 // surrogate ids of those of the page, 0 where rows of them count elsewhere
	workloads []int64
	usage     *change
	whole     *change
}

// take reports whether the page does not belong here, in which case nothing may
// change, or whether the source has to begin anew, in which case the page
// itself is not taken.
func (t *taking) take() (moved, reset bool, err error) {
	var sequence int64
	var position string
	err = t.queryRow(`INSERT INTO source (source_id, cluster, seen_ns) VALUES ($1, $2, $3)
		ON CONFLICT (source_id) DO UPDATE SET cluster = excluded.cluster, seen_ns = excluded.seen_ns RETURNING id, sequence, position, coarse`,
		clean(t.src.ID), clean(t.src.Cluster), nano(t.now)).scan(&t.source, &sequence, &position, &t.coarse)
	if err != nil {
		return false, false, err
	}
	here := replica.Mark{Sequence: uint64(sequence), Position: position}
	if !here.SamePosition(t.page.From) || t.tooFine() {
		return true, false, nil
	}
	position = clean(t.page.To)
	if reset, err = t.takeNodes(); err != nil {
		return false, false, err
	}
	if reset {
		position = ""
	} else if err := t.takeAll(); err != nil {
		return false, false, err
	}
	_, err = t.exec("UPDATE source SET sequence = $2, position = $3, coarse = $4 WHERE id = $1", t.source, sequence+1, position, t.coarse)
	failpoint.At("upstream.before-commit")
	return false, reset, err
}

// tooFine reports whether there are rows whose like is not kept any more, so
// that nobody can tell what is to be replaced.
func (t *taking) tooFine() bool {
	bad := func(v replica.Resolution, minute int64) bool {
		return v == replica.Minute && minute < t.MinuteFloor || v == replica.Hour && minute < min(t.HourFloor, t.MinuteFloor)
	}
	return slices.ContainsFunc(t.page.Rows, func(r replica.Row) bool { return bad(r.Resolution, r.Minute) }) ||
		slices.ContainsFunc(t.page.NodeRows, func(r replica.NodeRow) bool { return bad(r.Resolution, r.Minute) })
}

func (t *taking) takeAll() error {
	if err := t.takeWorkloads(); err != nil {
		return err
	}
	for i := range t.page.Gaps {
		g := &t.page.Gaps[i]
		if node := t.nodes[g.Node]; node != 0 {
			if err := t.gap(node, g.Gap, nano(g.Booked)); err != nil {
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
		if r := &t.page.NodeRows[i]; t.nodes[r.Node] != 0 {
			t.whole.want(r.Resolution, rowKey{r.Minute, t.nodes[r.Node]}, nodeValues(&r.NodeMinute, t.rev))
		}
	}
	for i := range t.page.Rows {
		if r := &t.page.Rows[i]; t.workloads[r.Workload] != 0 {
			t.usage.want(r.Resolution, rowKey{r.Minute, t.workloads[r.Workload]}, usageValues(&r.Usage, t.rev))
		}
	}
	before := t.coarse
	for _, c := range []*change{t.whole, t.usage} {
		through, err := c.apply(t.txn, before)
		if err != nil {
			return err
		}
		t.coarse = max(t.coarse, through)
	}
	return nil
}

// takeShift keeps a shift, once.
func (t *taking) takeShift(node int64, s *batch.Shift) error {
	var n int64
	err := t.queryRow("SELECT count(*) FROM shift WHERE node = $1 AND boot = $2 AND at_ns = $3 AND by_ns = $4 AND from_ns = $5",
		node, clean(s.Boot), nano(s.At), int64(s.By), nano(s.From)).scan(&n)
	if err != nil || n > 0 {
		return err
	}
	_, err = t.exec("INSERT INTO shift (node, boot, at_ns, by_ns, from_ns, rev) VALUES ($1, $2, $3, $4, $5, $6)",
		node, clean(s.Boot), nano(s.At), int64(s.By), nano(s.From), t.rev)
	return err
}

// host finds in which node one is a guest, and as what; 0 is none, as it is where
// the host is of a cluster in which the source has nothing to say. The source tells of
// the host as well, so where that is still to come there is room made for it.
func (t *taking) host(id string, short batch.ShortID) (node, workload int64, err error) {
	if id == "" {
		return 0, 0, nil
	}
	var owner int64
	var cluster string
	err = t.queryRow("SELECT id, source, cluster FROM node WHERE node_id = $1", clean(id)).scan(&node, &owner, &cluster)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		node, err = t.newNode(id)
	case err == nil && owner != t.source:
		var mine bool
		if mine, err = t.mine(owner, cluster); err == nil && !mine {
			return 0, 0, nil
		}
	}
	if err != nil {
		return 0, 0, err
	}
	ref, err := t.workload(node, short)
	return node, ref.id, err
}

// newNode makes room for a node of the source.
func (t *taking) newNode(id string) (node int64, err error) {
	err = t.queryRow("INSERT INTO node (node_id, cluster, name, machine_id, boot, enrolled_ns, rev, source) VALUES ($1, '', '', '', '', 0, $2, $3) RETURNING id",
		clean(id), t.rev, t.source).scan(&node)
	return node, err
}

// takeNestings keeps on which days nodes of the source were guests.
func (t *taking) takeNestings() error {
	for _, n := range t.page.Nestings {
		if t.nodes[n.Node] == 0 {
			continue
		}
		var id string
		var short batch.ShortID
		if n.Host >= 0 && n.Workload >= 0 {
			id, short = t.page.Nodes[n.Host].ID, t.page.Workloads[n.Workload].Short
		}
		host, workload, err := t.host(id, short)
		if err == nil {
			err = t.nestDay(t.nodes[n.Node], n.Minute, host, workload)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// takeNodes keeps what the page says of nodes. It reports whether the source
// got a node that was another's: then it has to tell all of it.
func (t *taking) takeNodes() (reset bool, err error) {
	t.nodes = make([]int64, len(t.page.Nodes))
	for i := range t.page.Nodes {
		n := &t.page.Nodes[i]
		var id, owner int64
		var cluster, pool string
		err := t.queryRow("SELECT id, source, cluster, pool FROM node WHERE node_id = $1", clean(n.ID)).scan(&id, &owner, &cluster, &pool)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			id, err = t.newNode(n.ID)
		case err == nil && owner != t.source:
			var got bool
			if got, err = t.foreign(id, owner, n.ID, cluster); err == nil && !got {
				continue
			}
			reset = true
		}
		if err != nil {
			return false, err
		}
		t.nodes[i] = id
		host, workload, err := t.host(n.Host.Node, n.Host.Workload)
		if err != nil {
			return false, err
		}
		_, err = t.exec(`UPDATE node SET cluster = $2, name = $3, machine_id = $4, boot = $5, pool = $6, enrolled_ns = $7, revoked_ns = $8, through_ns = $9,
			cpus = $10, cpus_minute = $11, rev = $12, source = $13, host = $14, host_workload = $15, nested_ns = $16, equal_ns = $17 WHERE id = $1`,
			id, clean(t.src.ResolveCluster(n.Cluster)), clean(n.Name), clean(n.MachineID), clean(n.Boot), clean(n.Pool), nano(n.At), nano(n.Revoked), nano(n.Through),
			int64(n.CPUs), n.CPUMinute, t.rev, t.source, host, workload, nano(n.Host.Since), nano(n.Host.Seen))
		if err != nil {
			return false, err
		}
		if cluster == clean(t.src.ResolveCluster(n.Cluster)) && pool == clean(n.Pool) {
			continue
		}
		// Its days are in other groups now.
		_, err = t.exec("INSERT INTO stale_day (minute) SELECT DISTINCT minute FROM group_day WHERE cluster = $1 AND pool = $2 ON CONFLICT (minute) DO UPDATE SET next = 0", cluster, pool)
		if err != nil {
			return false, err
		}
	}
	return reset, nil
}

// mine says whether a node that comes from somewhere else is in a cluster of the
// source: a right in one cluster is none to the nodes of another.
func (t *taking) mine(owner int64, cluster string) (bool, error) {
	if cluster == "" && owner != 0 { // there is only room for it yet, in its source's
		if err := t.queryRow("SELECT cluster FROM source WHERE id = $1", owner).scan(&cluster); err != nil {
			return false, err
		}
	}
	return clean(t.src.ResolveCluster(cluster)) == cluster, nil
}

// foreign is of a node that came from somewhere else before. Its rows count once:
// from where it came first, unless nothing comes from there any more and the source
// is of the node's cluster.
func (t *taking) foreign(node, owner int64, id, cluster string) (got bool, err error) {
	mine, err := t.mine(owner, cluster)
	if err != nil {
		return false, err
	}
	if owner != 0 && mine {
		var seen, revoked, coarse int64
		if err := t.queryRow("SELECT seen_ns, revoked_ns, coarse FROM source WHERE id = $1", owner).scan(&seen, &revoked, &coarse); err != nil {
			return false, err
		}
		if revoked != 0 || nano(t.now)-seen > int64(abandoned) {
			t.coarse = max(t.coarse, coarse) // of the rows that it gets
			return true, t.audit(registry.Audit{At: t.now, Actor: t.src.ID, Action: "states.node-moved", Object: id, Detail: "from a server that sends no more"})
		}
	}
	fresh, err := t.exec("INSERT INTO foreign_node (source, node) VALUES ($1, $2) ON CONFLICT DO NOTHING", t.source, node)
	if err != nil || fresh == 0 {
		return false, err
	}
	detail := "rows of this node come here another way already, and are not taken from this server"
	if !mine {
		detail = "this node is of another cluster, and its rows are not taken from this server"
	}
	return false, t.audit(registry.Audit{At: t.now, Actor: t.src.ID, Action: "states.foreign", Object: id, Detail: detail})
}

// takeWorkloads keeps what the page says of workloads.
func (t *taking) takeWorkloads() error {
	t.workloads = make([]int64, len(t.page.Workloads))
	for i := range t.page.Workloads {
		w := &t.page.Workloads[i]
		node := t.nodes[w.Node]
		if node == 0 {
			continue
		}
		ref, err := t.workload(node, w.Short)
		if err != nil {
			return err
		}
		if t.workloads[i] = ref.id; w.Name == nil || w.Name.ID == "" {
			continue
		}
		if err := t.takeName(ref.id, w); err != nil {
			return err
		}
		t.found[workloadKey{node, w.Short}] = workloadRef{ref.id, true}
	}
	return nil
}

// takeName replaces what a workload is called.
func (t *taking) takeName(id int64, w *replica.Workload) error {
	var old named
	var first, last int64
	err := t.queryRow("SELECT namespace, job, username, project, kind, first_minute, last_minute FROM workload WHERE id = $1", id).
		scan(&old.namespace, &old.job, &old.username, &old.project, &old.kind, &first, &last)
	if err != nil {
		return err
	}
	now := named{}.with(w.Name, 0)
	now.namespace, now.pod, now.container, now.at = clean(w.Namespace), clean(w.Pod), clean(w.Container), nano(w.Named)
	_, err = t.exec(`UPDATE workload SET wid = $2, kind = $3, key = $4, name = $5, path = $6, parent = $7, job = $8, username = $9, project = $10,
		namespace = $11, pod = $12, container = $13, started_ns = $14, ended_ns = $15, exit_code = $16, named_ns = $17, rev = $18 WHERE id = $1`,
		id, now.id, now.kind, now.key, now.name, now.path, now.parent, now.job, now.username, now.project,
		now.namespace, now.pod, now.container, now.started, now.ended, now.exit, now.at, t.rev)
	if err != nil {
		return err
	}
	if _, err := t.exec("DELETE FROM workload_label WHERE workload = $1", id); err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(w.Name.Labels)) {
		if _, err := t.exec("INSERT INTO workload_label (workload, key, value) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", id, clean(k), clean(w.Name.Labels[k])); err != nil {
			return err
		}
	}
	if now.group() == old.group() || last == 0 {
		return nil
	}
	for day := first - first%dayMinutes; day <= last && day < t.Day; day += dayMinutes {
		if err := t.stale(day); err != nil {
			return err
		}
	}
	return nil
}
