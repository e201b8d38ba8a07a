package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync"
	"sync/atomic"

	"modernc.org/sqlite"
)

// rowSinks are functions that are given rows by SQL itself, by the numbers that SQL
// knows them by.
type rowSinks struct {
	last atomic.Int64
	all  sync.Map // of func([]driver.Value), by int64; each row asks for one
}

// EnterSink gives a function its number, until it leaves. SQLite calls it with the
// arguments of mete_take that follow the number.
func (db *DB) EnterSink(take func([]driver.Value)) (number int64, leave func()) {
	s := db.sinks
	number = s.last.Add(1)
	s.all.Store(number, take)
	return number, func() { s.all.Delete(number) }
}

// find finds a function by its number.
func (s *rowSinks) find(number any) func([]driver.Value) {
	take, _ := s.all.Load(number)
	return take.(func([]driver.Value))
}

// A sqliteConnector opens connections of SQLite that have the function mete_take: it
// gives a row to a sink.
type sqliteConnector struct {
	driver *sqlite.Driver
	dsn    string
}

func openSQLiteReader(dsn string, s *rowSinks) (*sql.DB, error) {
	r := sqliteConnector{&sqlite.Driver{}, dsn}
	err := r.driver.RegisterFunction("mete_take", &sqlite.FunctionImpl{NArgs: -1,
		Scalar: func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
			s.find(args[0])(args[1:]) // all are integers
			return nil, nil
		}})
	return sql.OpenDB(r), err
}

// Connect implements driver.Connector.
func (r sqliteConnector) Connect(context.Context) (driver.Conn, error) { return r.driver.Open(r.dsn) }

// Driver implements driver.Connector.
func (r sqliteConnector) Driver() driver.Driver { return r.driver }
