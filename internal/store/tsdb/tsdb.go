// Package tsdb is the time series database of a server: Prometheus's, as a
// library. Each window that a server takes becomes samples of cumulative values
// at the instants at which the ledger cuts it, so that between two minute edges a
// series grows by what the ledger booked.
//
// Samples are idempotent, and their order means nothing within [Config.OutOfOrderWindow]: what
// is offered again changes nothing.
package tsdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/workload"
)

// A Config says what is kept.
type Config struct {
	Dir string
	// Retention is how long samples are kept, and MaxBytes how many bytes all of
	// them take on disk, about; 0 bytes is no limit.
	Retention time.Duration
	MaxBytes  int64
	// OutOfOrderWindow is how much older than the newest sample one may be.
	OutOfOrderWindow time.Duration
	// BackfillDelay is how long a node has sent again before what the metrics lack of it
	// is filled in: all that lives has to be seen, and what waited to be sent.
	BackfillDelay time.Duration
	// Workloads is how many workloads of a node have series of their own at once, and
	// begin to have them within an hour. What is one too many has that of the short-lived ones
	// together: see [metric.ShortLived].
	Workloads int
}

// Default keeps 15 days, and takes what an agent's spool holds at most. A node has some
// thousand workloads: one that makes up more does not fill the memory with them.
func Default() Config {
	return Config{Retention: 15 * 24 * time.Hour, OutOfOrderWindow: 26 * time.Hour, BackfillDelay: 6 * time.Minute, Workloads: 20_000}
}

// Validate reports what cannot work. The error wraps fault.ErrInvalid.
func (c Config) Validate() error {
	switch {
	case c.Retention < 2*time.Hour:
		return fmt.Errorf("metrics kept for %v: at least two hours: %w", c.Retention, fault.ErrInvalid)
	case c.Workloads < 1:
		return fmt.Errorf("metrics of %d workloads of a node: at least one: %w", c.Workloads, fault.ErrInvalid)
	case c.MaxBytes < 0 || c.OutOfOrderWindow < 0 || c.BackfillDelay < 0:
		return fmt.Errorf("metrics: neither a size nor a delay is negative: %w", fault.ErrInvalid)
	}
	return nil
}

// Names knows what nodes and workloads are called.
type Names interface {
	Node(ctx context.Context, id string) (registry.Node, error)
	Names(ctx context.Context, node string, shorts []workload.ShortID) (map[workload.ShortID]batch.Name, error)
}

// A Store is a time series database.
type Store struct {
	cfg          Config
	db           *tsdb.DB
	names        Names
	history      History // nil where nobody knows
	missingSince int64   // since when blocks are missing, ms since 1970; never where none is
	log          *slog.Logger

	mu        sync.Mutex
	nodes     map[string]*node
	unsampled map[string]unsampledNode

	stats counts
}

// Stats are counts since the store was opened.
type Stats struct {
	Samples         int64 // that were appended
	Refused         int64 // too old, or other than what is there
	Series          int64 // in memory
	Backfilled      int64 // samples that were filled in from the ledger
	OverLimit       int64 // rows of workloads without series of their own, as their nodes have too many
	IncompleteNodes int64 // nodes of which samples are missing that the ledger can tell of
}

type counts struct{ samples, refused, backfilled, overLimit atomic.Int64 }

// Open opens the database in cfg.Dir, and makes it where there is none. What of it
// cannot be read is set aside, so that the server starts; where names is a [History]
// too, Run fills it in again. The caller closes the store.
func Open(cfg Config, names Names, reg prometheus.Registerer, log *slog.Logger) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, names: names, log: log, nodes: map[string]*node{}, unsampled: map[string]unsampledNode{}}
	s.history, _ = names.(History)
	var err error
	if s.missingSince, err = setAsideUnreadable(cfg.Dir, log); err != nil {
		return nil, err
	}
	if err := truncateTornRecords(cfg.Dir, log); err != nil {
		return nil, err
	}
	db, own, err := openDB(cfg, log)
	// The less is set aside the better: chunks of what is in memory are in its log
	// too, and the log has some hours.
	for _, parts := range [][]string{{"chunks_head"}, {"wbl"}, {"chunks_head", "wbl", "wal"}, nil} {
		if err == nil || errors.Is(err, os.ErrPermission) {
			break
		}
		if errors.Is(err, errCorrupt) && len(parts) == 1 {
			continue
		}
		why, aside := err, cfg.Dir+".broken-"+time.Now().UTC().Format("20060102T150405.000")
		if parts == nil {
			err = os.Rename(cfg.Dir, aside)
			s.missingSince = never // each node is compared with the ledger
		} else {
			err = moveEntries(parts, cfg.Dir, aside)
			s.missingSince = min(s.missingSince, time.Now().Add(-cfg.OutOfOrderWindow).UnixMilli()) // what was late is there alone
		}
		if err != nil {
			return nil, err
		}
		if db, own, err = openDB(cfg, log); err != nil && parts != nil {
			if err := errors.Join(moveEntries(parts, aside, cfg.Dir), os.Remove(aside)); err != nil {
				return nil, err
			}
			continue
		}
		log.Warn("metrics cannot be read and are set aside", "path", aside, "err", why,
			"hint", "nothing has to be done: what the ledger has is filled in again; remove this when nobody wants to look at it")
	}
	if err != nil {
		return nil, err
	}
	s.db = db
	if err := s.loadUnsampled(context.Background()); err != nil {
		return nil, errors.Join(fmt.Errorf("metrics: %w", err), db.Close())
	}
	if reg != nil {
		if err := reg.Register(own); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return s, nil
}

// moveEntries moves parts of a directory into another one, in place of what is there.
func moveEntries(parts []string, from, to string) error {
	errs := []error{os.MkdirAll(to, 0o700)}
	for _, part := range parts {
		into := filepath.Join(to, part)
		if _, err := os.Lstat(filepath.Join(from, part)); err != nil {
			continue // there is none
		}
		errs = append(errs, os.RemoveAll(into), os.Rename(filepath.Join(from, part), into))
	}
	return errors.Join(errs...)
}

// openDB opens the database, with what it tells of itself: a second try has others.
func openDB(cfg Config, log *slog.Logger) (*tsdb.DB, *prometheus.Registry, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, nil, err
	}
	own := prometheus.NewRegistry()
	o := tsdb.DefaultOptions()
	o.RetentionDuration = cfg.Retention.Milliseconds()
	o.MaxBytes = cfg.MaxBytes
	o.OutOfOrderTimeWindow = cfg.OutOfOrderWindow.Milliseconds()
	o.MaxBlockDuration = min(31*24*time.Hour, max(2*time.Hour, cfg.Retention/10)).Milliseconds()
	// Workloads come and go: what ended leaves memory without waiting for the rest.
	o.StaleSeriesCompactionThreshold = 0.2
	// The directory of the server's state is locked already, and a lock of a
	// server that was killed is no reason not to start.
	o.NoLockfile = true
	db, err := tsdb.Open(filepath.Clean(cfg.Dir), slog.New(quietHandler{log.Handler()}), own, o, nil)
	if err != nil {
		return nil, nil, err
	}
	if err := checkCorruption(own); err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return db, own, nil
}

// errCorrupt says that the database left out what came after a damage of its log. What
// is left ends at another instant for each series, as some of it stands in chunks: it
// is easier to fill in all of it than to find out what.
var errCorrupt = errors.New("the log of what was in memory is damaged")

func checkCorruption(own prometheus.Gatherer) error {
	families, err := own.Gather()
	if err != nil {
		return err
	}
	for _, f := range families {
		if f.GetName() != "prometheus_tsdb_wal_corruptions_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetCounter().GetValue() > 0 {
				return errCorrupt
			}
		}
	}
	return nil
}

// quietHandler is a log without the database's warning that blocks overlap: here they do
// by design, as series that ended are written early and gaps are filled in late. Nor
// does it tell that work was broken off, which is when the database is closed.
type quietHandler struct{ slog.Handler }

func (h quietHandler) Handle(ctx context.Context, r slog.Record) error {
	closed := false
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		closed = ok && errors.Is(err, context.Canceled)
		return !closed
	})
	if closed || strings.HasPrefix(r.Message, "Overlapping blocks found") {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}
func (h quietHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return quietHandler{h.Handler.WithAttrs(as)}
}
func (h quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{h.Handler.WithGroup(name)}
}

// Close writes what is in memory, and closes the database.
func (s *Store) Close() error { return s.db.Close() }

// Queryable answers queries.
func (s *Store) Queryable() storage.SampleAndChunkQueryable { return s.db }

// Retention is how long samples are kept.
func (s *Store) Retention() time.Duration { return s.cfg.Retention }

// DB is the database, for what shows its state.
func (s *Store) DB() *tsdb.DB { return s.db }

// Stats returns what was appended so far.
func (s *Store) Stats() Stats {
	return Stats{
		Samples: s.stats.samples.Load(), Refused: s.stats.refused.Load(),
		Series: int64(s.db.Head().NumSeries()), Backfilled: s.stats.backfilled.Load(), OverLimit: s.stats.overLimit.Load(), IncompleteNodes: int64(s.IncompleteNodes()),
	}
}
