// Package tsdb is the time series database of a server, built on Prometheus's. Each window
// becomes samples of cumulative values at the instants at which the ledger cuts it, so that
// between two minute edges a series grows by the amount that the ledger books.
//
// Samples are idempotent and may come in any order within [Config.OutOfOrderWindow]:
// appending a window again changes nothing.
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

// dirMode is the mode of directories: only the server's user may read them.
const dirMode = 0o700

// A Config configures a Store.
type Config struct {
	Dir string
	// Retention limits the age of samples, MaxBytes their approximate size on disk; 0 bytes
	// means that the size is unlimited.
	Retention time.Duration
	MaxBytes  int64
	// OutOfOrderWindow limits how much older than the newest sample a sample may be.
	OutOfOrderWindow time.Duration
	// BackfillDelay is the time for which a node must have sent windows again before its
	// missing samples are rebuilt: by then all live workloads and the backlog have arrived.
	BackfillDelay time.Duration
	// Reserve is how many bytes of the disk stay free beside those for a chunk of each series: with less, the store
	// takes no samples. 0 takes them until the disk is full.
	Reserve int64
	// Workloads limits the workloads of a node with series of their own, at once and of new
	// ones per hour. Those above the limit share the series [metric.ShortLived].
	Workloads int
}

// Default returns a Config that keeps samples for 15 days and accepts samples as old as an
// agent's spool can hold. Nodes have some thousand workloads; the limit of Workloads keeps a
// node that invents more from filling the memory.
func Default() Config {
	return Config{Retention: 15 * 24 * time.Hour, OutOfOrderWindow: 26 * time.Hour, BackfillDelay: 6 * time.Minute, Workloads: 20_000, Reserve: 32 << 20}
}

// Validate reports the first invalid field. The error wraps fault.ErrInvalid.
func (c Config) Validate() error {
	switch {
	case c.Retention < 2*time.Hour:
		return fmt.Errorf("metrics kept for %v: at least two hours: %w", c.Retention, fault.ErrInvalid)
	case c.Workloads < 1:
		return fmt.Errorf("metrics of %d workloads of a node: at least one: %w", c.Workloads, fault.ErrInvalid)
	case c.MaxBytes < 0 || c.OutOfOrderWindow < 0 || c.BackfillDelay < 0 || c.Reserve < 0:
		return fmt.Errorf("metrics: sizes and delays must not be negative: %w", fault.ErrInvalid)
	}
	return nil
}

// Names returns the names of nodes and workloads.
type Names interface {
	Node(ctx context.Context, id string) (registry.Node, error)
	Names(ctx context.Context, node string, shorts []workload.ShortID) (map[workload.ShortID]batch.Name, error)
}

// A Store is a time series database.
type Store struct {
	cfg          Config
	db           *tsdb.DB
	names        Names
	history      History // nil without a ledger
	missingSince int64   // start of the time of which blocks are missing, ms since 1970, or never
	log          *slog.Logger

	mu        sync.Mutex
	nodes     map[string]*node
	unsampled map[string]unsampledNode

	stats counts
	space space
}

// Stats are counts since the store was opened.
type Stats struct {
	Samples         int64 // appended samples
	Refused         int64 // samples that are too old or differ from a stored one
	Series          int64 // in memory
	Backfilled      int64 // samples rebuilt from the ledger
	OverLimit       int64 // rows of workloads above Config.Workloads
	IncompleteNodes int64 // see Store.IncompleteNodes
}

type counts struct{ samples, refused, backfilled, overLimit atomic.Int64 }

// Open opens the database in cfg.Dir, or creates it. It sets unreadable parts aside, so that
// the server starts; if names is a [History] too, Run rebuilds their samples. The caller
// closes the store.
func Open(cfg Config, names Names, reg prometheus.Registerer, log *slog.Logger) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, dirMode); err != nil {
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
	// Set aside as little as possible: the log has the samples of the head chunks too, and it
	// has some hours of samples.
	for _, parts := range [][]string{{"chunks_head"}, {"wbl"}, {"chunks_head", "wbl", "wal"}, nil} {
		if err == nil || errors.Is(err, os.ErrPermission) {
			break
		}
		if errors.Is(err, errCorrupt) && len(parts) == 1 {
			continue
		}
		why, aside := err, cfg.Dir+".broken-"+time.Now().UTC().Format("20060102T150405.000")
		if parts == nil {
			err = errors.Join(os.Rename(cfg.Dir, aside), os.Mkdir(cfg.Dir, dirMode))
			s.missingSince = never // detectUnsampled compares each node with the ledger
		} else {
			err = moveEntries(parts, cfg.Dir, aside)
			s.missingSince = min(s.missingSince, time.Now().Add(-cfg.OutOfOrderWindow).UnixMilli()) // late samples were only there
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
		log.Warn("metrics are unreadable and set aside", "path", aside, "err", why,
			"hint", "no action is needed: the samples are rebuilt from the ledger; remove the directory when it is no longer needed")
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
	s.openSpace()
	return s, nil
}

// moveEntries moves entries of a directory into another one and replaces those there.
func moveEntries(parts []string, from, to string) error {
	errs := []error{os.MkdirAll(to, dirMode)}
	for _, part := range parts {
		into := filepath.Join(to, part)
		if _, err := os.Lstat(filepath.Join(from, part)); err != nil {
			continue // does not exist
		}
		errs = append(errs, os.RemoveAll(into), os.Rename(filepath.Join(from, part), into))
	}
	return errors.Join(errs...)
}

// maxBlockSpan returns the longest time of a compacted block. A block is removed as a whole, so it
// has at most a tenth of the retention, as in Prometheus.
func maxBlockSpan(retention time.Duration) time.Duration {
	return min(31*24*time.Hour, max(blockSpan, retention/10))
}

// openDB opens the database with a new registry for its own metrics.
func openDB(cfg Config, log *slog.Logger) (*tsdb.DB, *prometheus.Registry, error) {
	own := prometheus.NewRegistry()
	o := tsdb.DefaultOptions()
	o.RetentionDuration = cfg.Retention.Milliseconds()
	o.MaxBytes = cfg.MaxBytes
	o.OutOfOrderTimeWindow = cfg.OutOfOrderWindow.Milliseconds()
	o.MaxBlockDuration = maxBlockSpan(cfg.Retention).Milliseconds()
	// Series of ended workloads leave memory early.
	o.StaleSeriesCompactionThreshold = 0.2
	// The directory of the server's state is already locked, and a stale lock file of a
	// killed server must not prevent the start.
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

// errCorrupt reports that the database dropped the rest of its log after a corrupt record.
// The remaining samples end at a different time for each series, because some are in head
// chunks, so all samples of the log are rebuilt.
var errCorrupt = errors.New("the write-ahead log is corrupt")

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

// quietHandler drops the database's warnings about overlapping blocks, which are normal
// here: series that ended are written early and backfilled blocks late. It also drops errors
// of work canceled by Close.
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

// Close flushes and closes the database.
func (s *Store) Close() error {
	close(s.space.stop)
	<-s.space.done
	return s.closeDB()
}

// Queryable returns the database for queries. Ranges of the counters of workloads have the samples at
// the ends of windows, evenly spaced, and not those at minute edges between them.
func (s *Store) Queryable() storage.SampleAndChunkQueryable { return evenQueryable{s.db} }

// Retention returns Config.Retention.
func (s *Store) Retention() time.Duration { return s.cfg.Retention }

// DB returns the underlying database.
func (s *Store) DB() *tsdb.DB { return s.db }

// Stats returns the counts.
func (s *Store) Stats() Stats {
	return Stats{
		Samples: s.stats.samples.Load(), Refused: s.stats.refused.Load(),
		Series: int64(s.db.Head().NumSeries()), Backfilled: s.stats.backfilled.Load(), OverLimit: s.stats.overLimit.Load(), IncompleteNodes: int64(s.IncompleteNodes()),
	}
}
