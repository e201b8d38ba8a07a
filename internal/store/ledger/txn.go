package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"mete.dev/mete/internal/x/failpoint"
)

// A marks is the row of table counter: up to where rows are folded, and from
// where they are kept. All are minutes since 1970.
type marks struct {
	Hour, Day              int64 // hours and days before it are folded
	MinuteFloor, HourFloor int64 // minutes and hours before it are gone
	hourPart, dayPart      part  // of those that begin at Hour and at Day
}

// A part is how far an hour or a day is folded: the rows of keys before these.
type part struct{ workload, node int64 }

// of is the one of the tables of a shape.
func (p *part) of(s *shape) *int64 {
	if s == nodeShape {
		return &p.node
	}
	return &p.workload
}

// at is up to where hours or days are folded.
func (m *marks) at(v level) (mark int64, p *part) {
	if v == days {
		return m.Day, &m.dayPart
	}
	return m.Hour, &m.hourPart
}

// folded reports whether the hour or the day of a row is folded as far as the
// row's key. If so, what is added to the row is to be added there as well.
func (m *marks) folded(v level, s *shape, k rowKey) bool {
	mark, p := m.at(v)
	return k.minute < mark || k.minute < mark+v.width() && k.id < *p.of(s)
}

// marksColumns are those of table counter that make the marks, for into.
const marksColumns = "hour_mark, day_mark, minute_floor, hour_floor, hour_workload, hour_node, day_workload, day_node"

func (m *marks) into() []any {
	return []any{&m.Hour, &m.Day, &m.MinuteFloor, &m.HourFloor, &m.hourPart.workload, &m.hourPart.node, &m.dayPart.workload, &m.dayPart.node}
}

// A txn is the one transaction that writes.
type txn struct {
	l   *Ledger
	ctx context.Context // of the transaction; it ends with the call
	tx  *sql.Tx
	rev int64 // of the rows that it writes
	marks
	// found are the workloads that this transaction made or looked up. Others
	// may use them once it is committed.
	found  map[workloadKey]workloadRef
	tables map[string]bool // the same of tables of minutes
	// touched are the cells of usage and of nodes that it wrote to.
	touched map[cell]bool
}

// write calls f within a transaction, which is committed if f returns nil. Else
// nothing has changed.
func (l *Ledger) write(ctx context.Context, f func(*txn) error) error {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if l.d == lite {
		// Writing is quick, and a context that can end costs a goroutine for
		// each statement.
		ctx = context.WithoutCancel(ctx)
	}
	begin := l.writer.BeginTx
	if l.conn != nil {
		begin = l.conn.BeginTx
	}
	tx, err := begin(ctx, nil)
	if err != nil {
		return l.d.fault(err)
	}
	t := &txn{l: l, ctx: ctx, tx: tx, touched: map[cell]bool{}}
	t.forget()
	if err = t.begin(); err == nil && t.rev <= l.rev {
		// The database went back to an older copy of itself meanwhile.
		err = t.newEpoch(t.rev)
	}
	if err == nil {
		err = f(t)
	}
	if err == nil {
		failpoint.At("ledger.before-commit")
		// Who reads may see it before this goes on.
		l.noted(t)
		if err = l.d.fault(tx.Commit()); err != nil {
			l.shelf.failed(t)
		}
	}
	if err != nil {
		// A transaction that the database has ended already cannot be rolled back.
		_ = tx.Rollback()
		return err
	}
	failpoint.At("ledger.committed")
	t.share()
	l.rev = t.rev
	return nil
}

// noted says to what keeps answers in memory what a transaction has written.
func (l *Ledger) noted(t *txn) {
	if t.rev <= l.rev {
		l.rolls.forget()
	}
	l.shelf.writes(t, l.rev)
}

// begin locks the counter and takes the next revision.
func (t *txn) begin() error {
	return t.queryRow("UPDATE counter SET rev = rev + 1 WHERE id = 1 RETURNING rev, " + marksColumns).
		scan(append([]any{&t.rev}, t.into()...)...)
}

// forget drops what the transaction has found, as it may not be there any more.
func (t *txn) forget() {
	t.found, t.tables = map[workloadKey]workloadRef{}, map[string]bool{}
}

// maxCached is how many workloads are kept in memory, about 40 bytes each.
const maxCached = 1 << 20

// share gives what the transaction has found to those that follow.
func (t *txn) share() {
	if len(t.l.workloads)+len(t.found) > maxCached {
		clear(t.l.workloads)
	}
	maps.Copy(t.l.workloads, t.found)
	maps.Copy(t.l.tables, t.tables)
}

// statement returns query as a prepared statement, nil where the driver keeps
// those itself. It is one of the connection, so it runs within the transaction
// that the connection is in.
func (t *txn) statement(query string) (*sql.Stmt, error) {
	if t.l.conn == nil {
		return nil, nil
	}
	if s := t.l.prepared[query]; s != nil {
		return s, nil
	}
	s, err := t.l.conn.PrepareContext(t.ctx, query)
	if err != nil {
		return nil, t.l.d.fault(err)
	}
	t.l.prepared[query] = s
	return s, nil
}

// unprepare closes the statements about a table that is going.
func (t *txn) unprepare(table string) error {
	for query, s := range t.l.prepared {
		if strings.Contains(query, table) {
			delete(t.l.prepared, query)
			if err := s.Close(); err != nil {
				return t.l.d.fault(err)
			}
		}
	}
	return nil
}

// define runs a statement in the words of the schema files, once.
func (t *txn) define(statement string) error {
	_, err := t.tx.ExecContext(t.ctx, t.l.d.words.Replace(statement))
	return t.l.d.fault(err)
}

// exec runs a statement and returns how many rows it changed.
func (t *txn) exec(query string, args ...any) (int64, error) {
	s, err := t.statement(query)
	if err != nil {
		return 0, err
	}
	var r sql.Result
	if s != nil {
		r, err = s.ExecContext(t.ctx, args...)
	} else {
		r, err = t.tx.ExecContext(t.ctx, query, args...)
	}
	if err != nil {
		return 0, t.l.d.fault(err)
	}
	n, err := r.RowsAffected()
	return n, t.l.d.fault(err)
}

// A row is the one row of a query's answer.
type row struct {
	t   *txn
	row *sql.Row
	err error
}

func (t *txn) queryRow(query string, args ...any) row {
	s, err := t.statement(query)
	switch {
	case err != nil:
		return row{t, nil, err}
	case s != nil:
		return row{t, s.QueryRowContext(t.ctx, args...), nil}
	}
	return row{t, t.tx.QueryRowContext(t.ctx, query, args...), nil}
}

// scan reads the row. Where there is none it is sql.ErrNoRows.
func (r row) scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	return r.t.l.d.fault(r.row.Scan(dest...))
}

// A view is one moment of the ledger, for reading.
type view struct {
	ctx context.Context
	tx  *sql.Tx
	rev int64 // of the last transaction that it sees
	marks
	days []int64 // first minutes of the days that have tables of minutes, in order
}

// view calls f with the ledger as it is at one moment, whatever is written
// meanwhile.
func (l *Ledger) view(ctx context.Context, f func(*view) error) (err error) {
	tx, err := l.reader.BeginTx(ctx, &l.d.view)
	if err != nil {
		return l.d.fault(err)
	}
	return l.viewIn(ctx, tx, f)
}

// viewIn is view in a transaction, which ends with it.
func (l *Ledger) viewIn(ctx context.Context, tx *sql.Tx, f func(*view) error) (err error) {
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	if l.d.reading != "" {
		if _, err := tx.ExecContext(ctx, l.d.reading); err != nil {
			return l.d.fault(err)
		}
	}
	v := &view{ctx: ctx, tx: tx}
	err = tx.QueryRowContext(ctx, "SELECT rev, "+marksColumns+" FROM counter WHERE id = 1").Scan(append([]any{&v.rev}, v.into()...)...)
	if err != nil {
		return l.d.fault(err)
	}
	if v.days, err = numbers(ctx, tx, "SELECT day FROM kept WHERE day >= $1 ORDER BY day", v.MinuteFloor); err != nil {
		return l.d.fault(err)
	}
	return f(v)
}

// A queryer is a database or a transaction.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// each calls f for every row of the answer.
func each(ctx context.Context, q queryer, f func(scan func(...any) error) error, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	for err == nil && rows.Next() {
		err = f(rows.Scan)
	}
	return errors.Join(err, rows.Err(), rows.Close())
}

// numbers is an answer of one column of integers.
func numbers(ctx context.Context, q queryer, query string, args ...any) (all []int64, err error) {
	err = each(ctx, q, func(scan func(...any) error) error {
		var n int64
		err := scan(&n)
		all = append(all, n)
		return err
	}, query, args...)
	return all, err
}

// each calls f for every row of the answer, which may not use the transaction.
func (t *txn) each(f func(scan func(...any) error) error, query string, args ...any) error {
	var q queryer = t.tx
	s, err := t.statement(query)
	if err != nil {
		return err
	}
	if s != nil {
		q = prepared{s}
	}
	return t.l.d.fault(each(t.ctx, q, f, query, args...))
}

// A prepared is a statement as a queryer of that one query.
type prepared struct{ *sql.Stmt }

// QueryContext implements queryer.
func (p prepared) QueryContext(ctx context.Context, _ string, args ...any) (*sql.Rows, error) {
	return p.Stmt.QueryContext(ctx, args...)
}

func (t *txn) numbers(query string, args ...any) ([]int64, error) {
	all, err := numbers(t.ctx, t.tx, query, args...)
	return all, t.l.d.fault(err)
}

// nano is t as it is stored, fromNano the way back. 0 is no time.
func nano(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromNano(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// about names the thing that err is about.
func about(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("ledger: %s: %w", fmt.Sprintf(format, args...), err)
}
