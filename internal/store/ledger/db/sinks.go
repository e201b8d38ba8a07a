package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync"
	"sync/atomic"

	"modernc.org/sqlite"
)

// rowSinks holds functions that receive rows from within SQL, by number.
type rowSinks struct {
	last atomic.Int64
	all  sync.Map // of func([]driver.Value), by int64; looked up for each row
}

// AddSink registers take until leave is called, and returns its number. SQLite calls take with
// the arguments of mete_take that follow the number.
func (db *DB) AddSink(take func([]driver.Value)) (number int64, leave func()) {
	s := db.sinks
	number = s.last.Add(1)
	s.all.Store(number, take)
	return number, func() { s.all.Delete(number) }
}

// find returns a function by its number.
func (s *rowSinks) find(number any) func([]driver.Value) {
	take, _ := s.all.Load(number)
	return take.(func([]driver.Value))
}

// A sqliteConnector opens SQLite connections that have the function mete_take, which passes a row
// to a sink.
type sqliteConnector struct {
	driver *sqlite.Driver
	dsn    string
}

// A Wrapper wraps connections to SQLite. Tests let their statements fail.
type Wrapper func(driver.Connector) driver.Connector

func openSQLite(c driver.Connector, wrap Wrapper) *sql.DB {
	if wrap != nil {
		c = wrap(c)
	}
	return sql.OpenDB(c)
}

// connector returns the connector of readers.
func (s *rowSinks) connector(dsn string) sqliteConnector {
	r := sqliteConnector{&sqlite.Driver{}, dsn}
	// The driver is new and has no function of this name, so that this cannot fail.
	_ = r.driver.RegisterFunction("mete_take", &sqlite.FunctionImpl{NArgs: -1,
		Scalar: func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
			s.find(args[0])(args[1:]) // all are integers
			return nil, nil
		}})
	return r
}

// Connect implements driver.Connector.
func (r sqliteConnector) Connect(context.Context) (driver.Conn, error) { return r.driver.Open(r.dsn) }

// Driver implements driver.Connector.
func (r sqliteConnector) Driver() driver.Driver { return r.driver }
