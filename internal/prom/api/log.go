package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/stats"

	"mete.dev/mete/internal/model/fault"
)

// A Log is the query log: one line of JSON per query, with the fields of
// Prometheus's query log. It implements promql.QueryLogger.
type Log struct {
	slog.Handler
	file *logFile
}

// OpenLog opens the query log at path and creates the file if it does not exist. For an
// empty path it returns nil. The caller closes the log.
func OpenLog(path string, log *slog.Logger) (*Log, error) {
	if path == "" {
		return nil, nil
	}
	f := &logFile{path: path, log: log}
	if err := f.open(); err != nil {
		return nil, fault.WithHint(fmt.Errorf("--query-log: %w", err), "name a file in a directory that the server may write to")
	}
	return &Log{slog.NewJSONHandler(f, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.String("ts", a.Value.Time().UTC().Format("2006-01-02T15:04:05.000Z07:00"))
		}
		return a
	}}), f}, nil
}

// Close closes the file. On a nil Log it does nothing.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	return l.file.close()
}

// query writes a query with its statistics. On a nil Log it does nothing.
func (l *Log) query(t *admission, q promql.Query, err error) {
	if l == nil {
		return
	}
	stamp := func(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000Z07:00") }
	params := map[string]any{"query": q.String()}
	if s, ok := q.Statement().(*parser.EvalStmt); ok {
		params["start"], params["end"], params["step"] = stamp(s.Start), stamp(s.End), int64(s.Interval/time.Second)
	}
	as := []slog.Attr{slog.Any("params", params)}
	if err != nil {
		as = append(as, slog.String("error", err.Error()))
	}
	took := stats.NewQueryStats(q.Stats())
	if b, ok := took.(*stats.BuiltinStats); ok {
		b.Timings.ExecQueueTime = t.waited.Seconds()
	}
	as = append(as, slog.Any("stats", took), slog.String("reader", t.reader))
	if t.httpRequest != nil {
		as = append(as, slog.Any("httpRequest", t.httpRequest))
	}
	slog.New(l).LogAttrs(context.Background(), slog.LevelInfo, "promql query logged", as...)
}

// A logFile appends lines to a file. It reopens the file when path is gone or names
// another file, as after a rotation.
type logFile struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	f       *os.File
	failing bool
}

// Write implements io.Writer.
func (f *logFile) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.reopen()
	if err == nil {
		_, err = f.f.Write(b)
	}
	switch {
	case err != nil && !f.failing:
		f.log.Warn("cannot write the query log", "path", f.path, "err", err)
	case err == nil && f.failing:
		f.log.Info("writing the query log again", "path", f.path)
	}
	f.failing = err != nil
	return len(b), err
}

// reopen opens the file if path no longer names the open file.
func (f *logFile) reopen() error {
	if f.f != nil {
		now, err := os.Stat(f.path)
		if err == nil {
			if mine, err := f.f.Stat(); err == nil && os.SameFile(now, mine) {
				return nil
			}
		}
		if err := f.f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			return err
		}
		f.f = nil
	}
	return f.open()
}

func (f *logFile) open() (err error) {
	f.f, err = os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		f.f = nil
	}
	return err
}

func (f *logFile) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.f == nil {
		return nil
	}
	return f.f.Close()
}
