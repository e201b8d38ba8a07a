package ledgertest

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
)

// ErrFault is the error of a step of a database that [Try] lets fail.
var ErrFault = errors.New("a fault of the database")

// A faultValue is a value that no integer, text and bytes can hold, so that a row with it is not read.
type faultValue struct{}

// aValue begins the description of a step that reads a faultValue.
const aValue = "a value of "

// Faults lets steps of SQLite databases fail: the beginning or the end of a transaction, a
// statement, its preparation, or the first row of its result, which is not sent or cannot be read.
// Each chain of calls of the product that leads to a step fails once in the test program.
type Faults struct {
	mu      sync.Mutex
	failed  string // the step that failed since armed
	armed   bool
	seen    map[[32]byte]bool
	product map[uintptr]bool // whether an instruction is of the product
	steps   int
}

// faults are those of all ledgers of the test program.
var faults = &Faults{seen: map[[32]byte]bool{}, product: map[uintptr]bool{}}

// Try makes a call of a ledger that [Open] opened, and returns its error. Before, it makes the call
// with each fault that no test of the program has had yet. Then the call must return the fault, and
// change nothing.
func Try(t tester, call func() error) error {
	t.Helper()
	for {
		faults.arm()
		err := call()
		failed := faults.disarm()
		if failed == "" {
			return err
		}
		if !isFault(err) {
			t.Errorf("a step failed, but the error is %v: %s", err, failed)
		}
	}
}

// isFault reports whether an error is of a step that was let fail. Package sql says which type of
// value it cannot read, and does not wrap an error.
func isFault(err error) bool {
	return errors.Is(err, ErrFault) || err != nil && strings.Contains(err.Error(), fmt.Sprintf("%T", faultValue{}))
}

// A tester is a test or a round of a property.
type tester interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

func (f *Faults) arm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed, f.failed = true, ""
}

func (f *Faults) disarm() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = false
	return f.failed
}

// count returns how many steps there were.
func (f *Faults) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.steps
}

// step returns an error if a step is to fail.
func (f *Faults) step(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps++
	if !f.armed || f.failed != "" {
		return nil
	}
	var pcs [100]uintptr
	var chain []byte
	for _, pc := range pcs[:runtime.Callers(2, pcs[:])] {
		is, known := f.product[pc]
		if !known {
			name := runtime.FuncForPC(pc).Name()
			is = strings.HasPrefix(name, "mete.dev/mete/internal/store/ledger") && !strings.Contains(name, "_test.")
			f.product[pc] = is
		}
		if is {
			chain = binary.LittleEndian.AppendUint64(chain, uint64(pc))
		}
	}
	if strings.HasPrefix(what, aValue) { // the product makes one call for a row and its values
		chain = append(chain, aValue...)
	}
	key := sha256.Sum256(chain)
	if f.seen[key] {
		return nil
	}
	f.seen[key], f.failed = true, what
	return ErrFault
}

// Wrap wraps connections of a database that a test opens itself, so that [Try] lets its steps fail.
func Wrap(c driver.Connector) driver.Connector { return faults.wrap(c) }

// wrap wraps connections; see ledger.OpenWrapped.
func (f *Faults) wrap(c driver.Connector) driver.Connector { return faultyConnector{c, f} }

type faultyConnector struct {
	driver.Connector
	f *Faults
}

// Connect implements driver.Connector.
func (c faultyConnector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return faultyConn{inner.(Conn), c.f}, nil
}

// A Conn is what package sql uses of a connection.
type Conn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

type faultyConn struct {
	Conn
	f *Faults
}

func (c faultyConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if err := c.f.step("begin"); err != nil {
		return nil, err
	}
	tx, err := c.Conn.BeginTx(ctx, opts)
	return faultyTx{tx, c.f}, err
}

func (c faultyConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.f.step("prepare " + query); err != nil {
		return nil, err
	}
	s, err := c.Conn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return faultyStmt{s.(sqliteStmt), query, c.f}, nil
}

func (c faultyConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.f.step(query); err != nil {
		return nil, err
	}
	return c.Conn.ExecContext(ctx, query, args)
}

func (c faultyConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.f.step(query); err != nil {
		return nil, err
	}
	rows, err := c.Conn.QueryContext(ctx, query, args)
	return &faultyRows{Rows: rows, query: query, f: c.f}, err
}

// A faultyTx ends for the database too if its commit fails.
type faultyTx struct {
	driver.Tx
	f *Faults
}

func (t faultyTx) Commit() error {
	if err := t.f.step("commit"); err != nil {
		return errors.Join(err, t.Rollback())
	}
	return t.Tx.Commit()
}

type sqliteStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type faultyStmt struct {
	sqliteStmt
	query string
	f     *Faults
}

func (s faultyStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := s.f.step(s.query); err != nil {
		return nil, err
	}
	return s.sqliteStmt.ExecContext(ctx, args)
}

func (s faultyStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.f.step(s.query); err != nil {
		return nil, err
	}
	rows, err := s.sqliteStmt.QueryContext(ctx, args)
	return &faultyRows{Rows: rows, query: s.query, f: s.f}, err
}

// faultyRows fails at the first row, if any: it is not sent, or its values cannot be read.
type faultyRows struct {
	driver.Rows
	query string
	f     *Faults
	begun bool
}

func (r *faultyRows) Next(to []driver.Value) error {
	if r.begun {
		return r.Rows.Next(to)
	}
	r.begun = true
	if err := r.f.step("a row of " + r.query); err != nil {
		return err
	}
	err := r.Rows.Next(to)
	if err == nil && r.f.step(aValue+r.query) != nil {
		for i := range to {
			to[i] = faultValue{}
		}
	}
	return err
}
