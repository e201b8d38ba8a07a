// Package book writes what nodes and meters send: batches, names, handovers of energy to virtual
// machines, and minutes of external meters.
package book

import (
	"cmp"
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
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A Booker books what nodes and meters send.
type Booker struct {
	db    *db.DB
	keep  time.Duration // maximum age of minutes
	quota Quota
	// clusterNodes is how many nodes' quotas a cluster has.
	clusterNodes int64
	carriers     carrierQuota
	nodes        carrierNodes // of the cluster whose pods were put last
}

func New(database *db.DB, keep time.Duration, quota Quota, clusterNodes int64) *Booker {
	return &Booker{db: database, keep: keep, quota: quota, clusterNodes: clusterNodes, carriers: carrierQuota{limit: quota.Workloads}}
}

// Book books entries in one transaction: after an error nothing has changed. (If the connection
// breaks during the commit, the outcome is unknown; when offered again, booked entries are
// Duplicate.) An error of one entry is in its Result and affects that entry only. Entries of one
// stream are judged in the order given.
func (b *Booker) Book(ctx context.Context, es []*batch.Entry) ([]batch.Result, error) {
	results, err := b.book(ctx, es, false)
	if errors.Is(err, schema.ErrRange) {
		// The database refused a value of one entry: find out which.
		results, err = b.book(ctx, es, true)
	}
	return results, db.Wrap(err, "booking")
}

func (b *Booker) book(ctx context.Context, es []*batch.Entry, separately bool) ([]batch.Result, error) {
	results := make([]batch.Result, len(es))
	return results, b.db.Write(ctx, func(t *db.Tx) error {
		if !separately {
			return b.bookAll(t, es, results)
		}
		for i := range es {
			if err := b.bookApart(t, es[i:i+1], results[i:i+1]); err != nil {
				return err
			}
		}
		return nil
	})
}

// bookApart books one entry in a savepoint, and refuses it if the database does.
func (b *Booker) bookApart(t *db.Tx, e []*batch.Entry, result []batch.Result) error {
	if _, err := t.Exec("SAVEPOINT apart"); err != nil {
		return err
	}
	err := b.bookAll(t, e, result)
	if errors.Is(err, schema.ErrRange) {
		t.Forget()
		result[0] = batch.Result{Err: db.Wrap(err, "batch %d of stream %s", e[0].Number, e[0].Stream)}
		_, err = t.Exec("ROLLBACK TO SAVEPOINT apart")
	}
	if err != nil {
		return err
	}
	_, err = t.Exec("RELEASE SAVEPOINT apart")
	return err
}

// A booking accumulates the rows of the entries of one transaction.
type booking struct {
	*db.Tx
	now          int64 // this machine's clock, ns
	keptFrom     int64 // wall time, ns, since when all booked time is kept
	quota        Quota
	clusterNodes int64
	clusters     map[string]*quotaHolder
	nodes        map[string]*bookedNode
	usageRows    schema.Pending
	nodeRows     schema.Pending
	guests       map[int64]*guest // of which rows may have to be moved
	connections  Sketches
}

// A bookedNode is a node that sent an entry.
type bookedNode struct {
	id      int64 // 0 if not enrolled or revoked
	node    string
	quota   quotaHolder
	cluster *quotaHolder // nil where nothing counts
	through int64        // ns, end of its latest window
	cpus    int          // in the latest minute
	minute  int64
	host    int64 // host of a nested node, 0 if not nested
	run     int64 // kernel run that it measured last, 0 if none
	jobs    bool  // it is that of a machine's standalone jobs
	// name is the node's own, and clusterName that of its cluster.
	name, clusterName string
	revoked           int64 // ns, 0 if not revoked
	// workloads are those of which the transaction adds rows.
	workloads map[int64]bool
	isGuest   bool // rows of it are within another node
	isHost    bool // rows of another node are within it
	changed   bool
}

// newBooking returns a booking without rows.
func (k *Booker) newBooking(t *db.Tx, now time.Time) *booking {
	return &booking{Tx: t, now: schema.Nanos(now), keptFrom: schema.Nanos(now.Add(-k.keep)), quota: k.quota, clusterNodes: k.clusterNodes,
		clusters: map[string]*quotaHolder{}, nodes: map[string]*bookedNode{}}
}

func (k *Booker) bookAll(t *db.Tx, es []*batch.Entry, results []batch.Result) error {
	b := k.newBooking(t, time.Now())
	b.usageRows, b.nodeRows, b.guests, b.connections = schema.NewPending(schema.UsageLayout), schema.NewPending(schema.NodeLayout), map[int64]*guest{}, Sketches{}
	for i, e := range es {
		var err error
		if results[i], err = b.bookEntry(e); err != nil {
			return db.Wrap(err, "batch %d of stream %s", e.Number, e.Stream)
		}
	}
	if err := b.flush(); err != nil {
		return err
	}
	return b.divideLate()
}

// bookEntry books one entry. The error is a database error; errors of the entry are in r.
func (b *booking) bookEntry(e *batch.Entry) (r batch.Result, err error) {
	refuse := func(err error) batch.Result {
		return batch.Result{Err: db.Wrap(err, "batch %d of stream %s", e.Number, e.Stream)}
	}
	n, err := b.findNode(e.Node)
	if err != nil {
		return r, err
	}
	if n.id == 0 {
		return refuse(n.deniedError(e.Node)), nil
	}
	s, err := findStream(b.Tx, e.Stream)
	switch {
	case err != nil:
		return r, err
	case s.node != 0 && s.node != n.id:
		return refuse(fmt.Errorf("the stream belongs to another node: %w", fault.ErrDenied)), nil
	}
	if err := checkEntry(e); err != nil {
		return refuse(err), nil
	}
	var known *batch.Hash
	if e.Number < s.mark.Next {
		if known, err = knownHash(b.Tx, e.Stream, e.Number); err != nil {
			return r, err
		}
	}
	r.Verdict, r.Next = s.mark.Judge(e.Number, e.Previous, e.Hash, known), s.mark.Next
	if r.Verdict == batch.Duplicate {
		r.Verdict, r.Booked = b.judgeDuplicate(e, n, known != nil)
	}
	switch r.Verdict {
	case batch.Accepted:
		if err = b.addBoots(e, n, s); isOverlap(err) || errors.Is(err, errQuota) || errors.Is(err, errAhead) {
			return refuse(err), nil
		}
		if err != nil {
			return r, err
		}
		n.takeEntryQuota(e, s)
		r.Next++
		r.Names, err = b.takeEntry(e, n)
	case batch.Conflict:
		err = b.keepConflict(e, n)
	}
	return r, err
}

// judgeDuplicate judges an entry whose number was booked. Where the hash of that is not kept any more, its time tells:
// a spool that was restored from a backup gives numbers again, and what it measured later is booked nowhere.
// Booked time is kept for longer than minutes.
func (b *booking) judgeDuplicate(e *batch.Entry, n *bookedNode, same bool) (v batch.Verdict, booked bool) {
	if same {
		return batch.Duplicate, true
	}
	if n.jobs { // their time is not kept
		return batch.Duplicate, false
	}
	var end int64 // of its time that is not booked
	for _, m := range e.Measured {
		end = max(end, m.To+m.Offset)
	}
	for _, g := range e.Gaps {
		if g.Reason == usage.Overlapped {
			end = max(end, schema.Nanos(g.To))
		}
	}
	if end > b.keptFrom {
		return batch.Conflict, false
	}
	return batch.Duplicate, end == 0 && len(e.Claimed) > 0
}

// takeEntry books the next entry of a stream and returns the workloads without a name.
func (b *booking) takeEntry(e *batch.Entry, n *bookedNode) (nameless []workload.ShortID, err error) {
	if err := moveStream(b.Tx, e.Stream, n.id, batch.Mark{Next: e.Number + 1, Last: e.Hash}, e.Boot, b.now); err != nil {
		return nil, err
	}
	_, err = b.Exec("INSERT INTO batch (stream, number, hash, taken_ns) VALUES ($1, $2, $3, $4)", e.Stream[:], int64(e.Number), e.Hash[:], b.now)
	if err != nil {
		return nil, err
	}
	for i := range e.Names {
		if err := b.bookName(&e.Names[i], n, cmp.Or(schema.Nanos(e.Through), n.through)); err != nil {
			return nil, err
		}
	}
	if err := b.findGuests(n); err != nil {
		return nil, err
	}
	asked := map[workload.ShortID]bool{}
	for i := range e.Minutes {
		m := &e.Minutes[i]
		w, err := b.workload(n, m.Workload)
		if err != nil {
			return nil, err
		}
		if !w.Named && !asked[m.Workload] {
			asked[m.Workload] = true
			nameless = append(nameless, m.Workload)
		}
		id := w.At(m.Minute)
		n.workloads[id] = true
		if err := b.usageRows.Add(schema.RowKey{Minute: m.Minute, ID: id}, schema.EncodeUsage(&m.Usage, b.Rev)); err != nil {
			return nil, err
		}
	}
	for i := range e.Nodes {
		m := &e.Nodes[i]
		if err := b.nodeRows.Add(schema.RowKey{Minute: m.Minute, ID: n.id}, schema.EncodeNodeMinute(m, b.Rev)); err != nil {
			return nil, err
		}
		if m.Minute >= n.minute {
			n.minute, n.cpus, n.changed = m.Minute, m.CPUs, true
		}
	}
	if through := schema.Nanos(e.Through); through > n.through {
		n.through, n.changed = through, true
	}
	if !e.Unsampled.IsZero() {
		if err := markUnsampled(b.Tx, n.id, e.Unsampled); err != nil {
			return nil, err
		}
	}
	gaps, err := b.gaps(e, n)
	if err != nil {
		return nil, err
	}
	for _, g := range gaps {
		if err := AddGap(b.Tx, n.id, g, b.now); err != nil {
			return nil, err
		}
	}
	for _, s := range e.Shifts {
		ok, err := b.takeBytes(n, rowBytes+len(s.Boot))
		if err != nil {
			return nil, err
		}
		if !ok {
			break // the windows are booked where they were moved to
		}
		_, err = b.Exec("INSERT INTO shift (node, boot, at_ns, by_ns, from_ns, rev) VALUES ($1, $2, $3, $4, $5, $6)",
			n.id, schema.Clean(s.Boot), schema.Nanos(s.At), int64(s.By), schema.Nanos(s.From), b.Rev)
		if err != nil {
			return nil, err
		}
	}
	return nameless, errors.Join(b.bookHandovers(e, n), b.bookUsed(e, n), b.bookConnections(e, n))
}

// findNode returns the node that sent an entry.
func (b *booking) findNode(id string) (*bookedNode, error) {
	if n := b.nodes[id]; n != nil {
		return n, nil
	}
	n := &bookedNode{node: id, workloads: map[int64]bool{}}
	var machine, cluster string
	var guest, host int64
	err := b.QueryRow(`SELECT id, through_ns, cpus, cpus_minute, host, run, machine_id, cluster, name, revoked_ns,
		CASE WHEN EXISTS (SELECT 1 FROM nested_series x WHERE x.node = node.id) OR EXISTS (SELECT 1 FROM within_day x WHERE x.node = node.id) THEN 1 ELSE 0 END,
		CASE WHEN EXISTS (SELECT 1 FROM nested_series x WHERE x.host = node.id) THEN 1 ELSE 0 END
		FROM node WHERE node_id = $1 AND source = 0`, schema.Clean(id)).
		Scan(&n.id, &n.through, &n.cpus, &n.minute, &n.host, &n.run, &machine, &cluster, &n.name, &n.revoked, &guest, &host)
	n.isGuest, n.isHost = guest != 0, host != 0
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, err
	}
	if n.revoked != 0 {
		n.id = 0
	}
	n.jobs, n.clusterName = registry.IsJobsMachine(machine), cluster
	n.quota = quotaHolder{kind: "node", id: id, key: n.id, limit: b.quota}
	n.cluster = b.findCluster(cluster)
	b.nodes[id] = n
	return n, nil
}

// deniedError explains why nothing is booked for a node without an id.
func (n *bookedNode) deniedError(id string) error {
	if n.revoked != 0 {
		return registry.RevokedError(id)
	}
	return fmt.Errorf("node %q is not enrolled: %w", id, fault.ErrDenied)
}

func AddGap(t *db.Tx, node int64, g usage.Gap, now int64) error {
	if is, err := extendGap(t, node, g); is || err != nil {
		return err
	}
	_, err := t.Exec("INSERT INTO gap (node, from_ns, to_ns, reason, detail, booked_ns, rev) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
		node, schema.Nanos(g.From), schema.Nanos(g.To), g.Reason.String(), schema.Clean(g.Detail), now, t.Rev)
	return err
}

// flush writes the accumulated rows.
func (b *booking) flush() error {
	for _, id := range slices.Sorted(maps.Keys(b.nodes)) {
		n := b.nodes[id]
		if !n.changed {
			continue
		}
		_, err := b.Exec("UPDATE node SET through_ns = $2, cpus = $3, cpus_minute = $4, run = $5, rev = $6 WHERE id = $1",
			n.id, n.through, int64(n.cpus), n.minute, n.run, b.Rev)
		if err != nil {
			return err
		}
	}
	if err := b.flushQuotas(); err != nil {
		return err
	}
	if err := b.settleGuests(); err != nil {
		return err
	}
	if err := b.addRows(b.usageRows); err != nil {
		return err
	}
	if err := b.addRows(b.nodeRows); err != nil {
		return err
	}
	return b.flushConnections()
}

// addRows writes rows of minutes, and adds late ones to the hours and days that contain them.
func (b *booking) addRows(h schema.Pending) error {
	tables := map[string]schema.Pending{
		h.Layout.HourTable(): schema.NewPending(h.Layout),
		h.Layout.DayTable():  schema.NewPending(h.Layout),
	}
	minutes := map[int64]schema.Pending{} // by day
	stale := map[int64]bool{}
	late := map[int64]schema.MinuteSpan{}
	for k, values := range h.Rows {
		coarse := func(table string, v schema.Level) error {
			return tables[table].Add(schema.RowKey{Minute: k.Minute - k.Minute%v.Width(), ID: k.ID}, slices.Clone(values))
		}
		day := k.Minute - k.Minute%schema.DayMinutes
		if k.Minute >= b.MinuteFloor {
			if _, ok := minutes[day]; !ok {
				if err := b.EnsureMinutes(day); err != nil {
					return err
				}
				minutes[day] = schema.NewPending(h.Layout)
				tables[h.Layout.MinuteTable(day)] = minutes[day]
			}
			minutes[day].Rows[k] = values
		}
		if b.IsFolded(schema.Hours, h.Layout, k) {
			late[k.ID] = late[k.ID].Extend(k.Minute)
			if k.Minute >= b.HourFloor {
				if err := coarse(h.Layout.HourTable(), schema.Hours); err != nil {
					return err
				}
			}
		}
		if b.IsFolded(schema.Days, h.Layout, k) {
			stale[day] = true
			if err := coarse(h.Layout.DayTable(), schema.Days); err != nil {
				return err
			}
		}
	}
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		if err := b.Upsert(table, tables[table]); err != nil {
			return fmt.Errorf("%s: %w", table, err)
		}
	}
	if h.Layout != schema.UsageLayout {
		return nil
	}
	for key, s := range late {
		id, _ := schema.SplitKey(key)
		if err := noteUsed(b.Tx, id, s); err != nil {
			return err
		}
	}
	for day := range stale {
		if err := b.MarkStale(day); err != nil {
			return err
		}
	}
	return nil
}
