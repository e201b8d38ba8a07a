package ledger

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
)

// Book books entries, all in one transaction: after an error nothing has
// changed. (Where the connection to a server breaks within the commit nobody
// can tell; offered again, what was taken is Known.) What is wrong with one
// entry is in its Result and costs that entry only. Entries of one stream are
// judged one after another, in their order here.
func (l *Ledger) Book(ctx context.Context, es []*batch.Entry) ([]batch.Result, error) {
	results, err := l.book(ctx, es, false)
	if errors.Is(err, errRange) {
		// The database refused a value of one of them: see of which.
		results, err = l.book(ctx, es, true)
	}
	return results, about(err, "booking")
}

func (l *Ledger) book(ctx context.Context, es []*batch.Entry, apart bool) ([]batch.Result, error) {
	results := make([]batch.Result, len(es))
	return results, l.write(ctx, func(t *txn) error {
		if !apart {
			return t.book(es, results)
		}
		for i := range es {
			if err := t.bookApart(es[i:i+1], results[i:i+1]); err != nil {
				return err
			}
		}
		return nil
	})
}

// bookApart books one entry, or refuses it where the database does.
func (t *txn) bookApart(e []*batch.Entry, result []batch.Result) error {
	if _, err := t.exec("SAVEPOINT apart"); err != nil {
		return err
	}
	err := t.book(e, result)
	if errors.Is(err, errRange) {
		t.forget()
		result[0] = batch.Result{Err: about(err, "batch %d of stream %s", e[0].Number, e[0].Stream)}
		_, err = t.exec("ROLLBACK TO SAVEPOINT apart")
	}
	if err != nil {
		return err
	}
	_, err = t.exec("RELEASE SAVEPOINT apart")
	return err
}

// A booking is what entries of one transaction come to, before it is written.
type booking struct {
	*txn
	now   int64 // by this machine's clock, ns
	nodes map[string]*bookedNode
	usage heap
	whole heap
}

// A bookedNode is a node that an entry came from.
type bookedNode struct {
	id      int64 // 0 where it is not enrolled, or not any more
	through int64 // ns, the end of the latest window
	cpus    int   // in the latest minute
	minute  int64
	host    int64 // in which it is a guest now; 0 is none
	revoked int64 // ns, when it was; 0 is never
	changed bool
}

func (t *txn) book(es []*batch.Entry, results []batch.Result) error {
	b := &booking{
		txn: t, now: time.Now().UnixNano(), nodes: map[string]*bookedNode{},
		usage: newHeap(usageShape), whole: newHeap(nodeShape),
	}
	for i, e := range es {
		var err error
		if results[i], err = b.entry(e); err != nil {
			return about(err, "batch %d of stream %s", e.Number, e.Stream)
		}
	}
	return b.flush()
}

// entry books one entry. The error is one of the database.
func (b *booking) entry(e *batch.Entry) (r batch.Result, err error) {
	refuse := func(err error) batch.Result {
		return batch.Result{Err: about(err, "batch %d of stream %s", e.Number, e.Stream)}
	}
	n, err := b.node(e.Node)
	if err != nil {
		return r, err
	}
	if n.id == 0 {
		return refuse(n.denied(e.Node)), nil
	}
	s, err := b.stream(e.Stream)
	switch {
	case err != nil:
		return r, err
	case s.node != 0 && s.node != n.id:
		return refuse(fmt.Errorf("the stream is another node's: %w", fault.ErrDenied)), nil
	}
	if err := valid(e); err != nil {
		return refuse(err), nil
	}
	var known *batch.Hash
	if e.Number < s.mark.Next {
		if known, err = b.known(e.Stream, e.Number); err != nil {
			return r, err
		}
	}
	r.Verdict, r.Next = s.mark.Judge(e.Number, e.Previous, e.Hash, known), s.mark.Next
	switch r.Verdict {
	case batch.Accepted:
		r.Next++
		r.Names, err = b.take(e, n)
	case batch.Conflict:
		err = b.aside(e, n)
	}
	return r, err
}

// take books an entry that is next in its stream, and returns which of its
// workloads have no name.
func (b *booking) take(e *batch.Entry, n *bookedNode) (nameless []batch.ShortID, err error) {
	if err := b.move(e.Stream, n.id, batch.Mark{Next: e.Number + 1, Last: e.Hash}, e.Boot, b.now); err != nil {
		return nil, err
	}
	_, err = b.exec("INSERT INTO batch (stream, number, hash, taken_ns) VALUES ($1, $2, $3, $4)", e.Stream[:], int64(e.Number), e.Hash[:], b.now)
	if err != nil {
		return nil, err
	}
	for i := range e.Names {
		if err := b.name(&e.Names[i], n.id, cmp.Or(nano(e.Through), n.through)); err != nil {
			return nil, err
		}
	}
	asked := map[batch.ShortID]bool{}
	for i := range e.Minutes {
		m := &e.Minutes[i]
		w, err := b.workload(n.id, m.Workload)
		if err != nil {
			return nil, err
		}
		if !w.named && !asked[m.Workload] {
			asked[m.Workload] = true
			nameless = append(nameless, m.Workload)
		}
		if err := b.usage.add(rowKey{m.Minute, w.id}, usageValues(&m.Usage, b.rev)); err != nil {
			return nil, err
		}
	}
	for i := range e.Nodes {
		m := &e.Nodes[i]
		if err := b.whole.add(rowKey{m.Minute, n.id}, nodeValues(m, b.rev)); err != nil {
			return nil, err
		}
		if m.Minute >= n.minute {
			n.minute, n.cpus, n.changed = m.Minute, m.CPUs, true
		}
	}
	if through := nano(e.Through); through > n.through {
		n.through, n.changed = through, true
	}
	for _, g := range e.Gaps {
		if err := b.gap(n.id, g, b.now); err != nil {
			return nil, err
		}
	}
	for _, s := range e.Shifts {
		_, err := b.exec("INSERT INTO shift (node, boot, at_ns, by_ns, from_ns, rev) VALUES ($1, $2, $3, $4, $5, $6)",
			n.id, clean(s.Boot), nano(s.At), int64(s.By), nano(s.From), b.rev)
		if err != nil {
			return nil, err
		}
	}
	return nameless, b.handovers(e, n)
}

// node finds the node that an entry came from.
func (b *booking) node(id string) (*bookedNode, error) {
	if n := b.nodes[id]; n != nil {
		return n, nil
	}
	n := &bookedNode{}
	err := b.queryRow("SELECT id, through_ns, cpus, cpus_minute, host, revoked_ns FROM node WHERE node_id = $1 AND source = 0", clean(id)).
		scan(&n.id, &n.through, &n.cpus, &n.minute, &n.host, &n.revoked)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, err
	}
	if n.revoked != 0 {
		n.id = 0
	}
	b.nodes[id] = n
	return n, nil
}

// denied is why nothing is booked of a node without an id.
func (n *bookedNode) denied(id string) error {
	if n.revoked != 0 {
		return registry.RevokedError(id)
	}
	return fmt.Errorf("node %q is not enrolled: %w", id, fault.ErrDenied)
}

func (t *txn) gap(node int64, g usage.Gap, now int64) error {
	if is, err := t.longer(node, g); is || err != nil {
		return err
	}
	_, err := t.exec("INSERT INTO gap (node, from_ns, to_ns, reason, detail, booked_ns, rev) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
		node, nano(g.From), nano(g.To), g.Reason.String(), clean(g.Detail), now, t.rev)
	return err
}

// flush writes the rows.
func (b *booking) flush() error {
	for _, id := range slices.Sorted(maps.Keys(b.nodes)) {
		n := b.nodes[id]
		if !n.changed {
			continue
		}
		_, err := b.exec("UPDATE node SET through_ns = $2, cpus = $3, cpus_minute = $4, rev = $5 WHERE id = $1",
			n.id, n.through, int64(n.cpus), n.minute, b.rev)
		if err != nil {
			return err
		}
	}
	if err := b.rows(b.usage); err != nil {
		return err
	}
	return b.rows(b.whole)
}

// rows writes rows of minutes, and adds those that are late to the hours and
// days that they belong to.
func (b *booking) rows(h heap) error {
	tables := map[string]heap{
		h.shape.hourTable(): newHeap(h.shape),
		h.shape.dayTable():  newHeap(h.shape),
	}
	stale := map[int64]bool{}
	late := map[int64]span{}
	for k, values := range h.rows {
		coarse := func(table string, v level) error {
			return tables[table].add(rowKey{k.minute - k.minute%v.width(), k.id}, slices.Clone(values))
		}
		day := k.minute - k.minute%dayMinutes
		if k.minute >= b.MinuteFloor {
			table := h.shape.minuteTable(day)
			if err := b.minutes(day); err != nil {
				return err
			}
			if _, ok := tables[table]; !ok {
				tables[table] = newHeap(h.shape)
			}
			tables[table].rows[k] = values
		}
		if b.folded(hours, h.shape, k) {
			late[k.id] = late[k.id].with(k.minute)
			if k.minute >= b.HourFloor {
				if err := coarse(h.shape.hourTable(), hours); err != nil {
					return err
				}
			}
		}
		if b.folded(days, h.shape, k) {
			stale[day] = true
			if err := coarse(h.shape.dayTable(), days); err != nil {
				return err
			}
		}
	}
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		if err := b.upsert(table, tables[table]); err != nil {
			return fmt.Errorf("%s: %w", table, err)
		}
	}
	if h.shape != usageShape {
		return nil
	}
	for id, s := range late {
		if err := b.used(id, s); err != nil {
			return err
		}
	}
	for day := range stale {
		if err := b.stale(day); err != nil {
			return err
		}
	}
	return nil
}

// A span is from a first to a last minute; the zero value is none.
type span struct{ first, last int64 }

func (s span) with(minute int64) span {
	if s == (span{}) {
		return span{minute, minute}
	}
	return span{min(s.first, minute), max(s.last, minute)}
}

// minutes makes the tables of minutes of a day, where they are not there.
func (t *txn) minutes(day int64) error {
	name := minuteTable(day)
	if t.tables[name] || t.l.tables[name] {
		return nil
	}
	t.tables[name] = true
	for _, s := range []*shape{usageShape, nodeShape} {
		if err := t.define(s.create(s.minuteTable(day), minutes)); err != nil {
			return err
		}
		if err := t.indexRevs(s, s.minuteTable(day)); err != nil {
			return err
		}
	}
	_, err := t.exec("INSERT INTO kept (day, rows) VALUES ($1, 0) ON CONFLICT DO NOTHING", day)
	return err
}

// upsert adds rows to a table.
func (t *txn) upsert(table string, h heap) error {
	return t.put(table, h, h.shape.merge(table, t.l.d, false))
}

// put writes rows into a table; conflict is the clause that says what becomes
// of those that are there.
func (t *txn) put(table string, h heap, conflict string) error {
	if len(h.rows) == 0 {
		return nil
	}
	keys := h.sorted()
	v := h.shape.levelOf(table)
	for i, k := range keys { // by minute
		if i == 0 || k.minute != keys[i-1].minute {
			t.touched[cell{v, k.minute}] = true
		}
	}
	width := len(h.shape.cols) + 2
	insert := fmt.Sprintf("INSERT INTO %s (%s) ", table, h.shape.names())
	if t.l.d == lite {
		query := insert + "VALUES (?" + strings.Repeat(", ?", width-1) + ")" + conflict
		args := make([]any, width)
		for _, k := range keys {
			args[0], args[1] = k.minute, k.id
			for i, v := range h.rows[k] {
				args[2+i] = v
			}
			if _, err := t.exec(query, args...); err != nil {
				return err
			}
		}
		return nil
	}
	columns, params := make([]any, width), make([]string, width)
	for i := range columns {
		column := make([]int64, len(keys))
		for j, k := range keys {
			switch i {
			case 0:
				column[j] = k.minute
			case 1:
				column[j] = k.id
			default:
				column[j] = h.rows[k][i-2]
			}
		}
		columns[i], params[i] = column, fmt.Sprintf("$%d::bigint[]", i+1)
	}
	_, err := t.exec(insert+"SELECT * FROM unnest("+strings.Join(params, ", ")+")"+conflict, columns...)
	return err
}

// stale notes that the groups of a day are to be summed anew, from the start.
func (t *txn) stale(day int64) error {
	_, err := t.exec("INSERT INTO stale_day (minute, next) VALUES ($1, 0) ON CONFLICT (minute) DO UPDATE SET next = 0", day)
	return err
}

// clean makes a text that both databases hold: valid UTF-8 without zero bytes.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}
