// Package ledger stores what every workload used, by minute, hour and day, in SQLite or PostgreSQL
// with one schema.
//
// Each batch of a node is booked exactly once: one transaction writes its number, its names and its
// minutes. Each UTC day has its own table of minutes. When an hour is over, [Ledger.Fold] sums its
// minutes into a row of hours, and 24 hours into a row of days; a mark says how far this has come.
// A late row for a folded hour is added to the hour in the same transaction, so minutes, hours and
// days always have the same sums, and a reader may use whichever rows are still kept. Folding holds
// the writer only briefly: each transaction folds a slice of the workloads of an hour, and the last
// one moves the mark.
//
// There is one writer at a time. Writers in one process take turns; a writer locks the row of table
// counter for its whole transaction against other processes.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger/book"
	"mete.dev/mete/internal/store/ledger/check"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/fold"
	"mete.dev/mete/internal/store/ledger/read"
	"mete.dev/mete/internal/store/ledger/registry"
	"mete.dev/mete/internal/store/ledger/replica"
)

// Config sets how long rows are kept and how they are folded.
type Config struct {
	Minutes      time.Duration // maximum age of minutes
	MinuteBytes  int64         // approximate size limit of minutes; the oldest are dropped first
	Hours        time.Duration // maximum age of hours; days are kept forever
	Batches      time.Duration // how long the hash of a batch is kept
	Grace        time.Duration // time from the end of an hour until it is folded; before its end if negative
	Every        time.Duration // interval at which Run folds and drops rows
	Slice        int           // approximate maximum of rows per fold transaction; fewer when that takes too long
	Quota        book.Quota    // of each node
	ClusterNodes int64         // a cluster has the quota of this many nodes
	Upstream     bool          // rows are replicated to an upstream server: index them by rev
}

// Default keeps minutes for a week, and hours for 25 months.
func Default() Config {
	const day = 24 * time.Hour
	return Config{
		Minutes: 7 * day, MinuteBytes: 20 << 30, Hours: 25 * 31 * day,
		Batches: 2 * day, Grace: 5 * time.Minute, Every: time.Minute, Slice: 1 << 18,
		// A batch each ten seconds is 8,640 a day; each standalone job has a stream.
		Quota: book.Quota{Workloads: 200_000, Bytes: 64 << 20, Streams: 100_000, Batches: 1_000_000, Ranges: 20_000, Handovers: 10_000_000},
		// 10,000 nodes that send each ten seconds send 86,400,000 batches a day.
		ClusterNodes: 100,
	}
}

// Validate returns fault.ErrInvalid if a value of c is out of range.
func (c Config) Validate() error {
	switch {
	case c.Minutes <= 0 || c.MinuteBytes <= 0 || c.Hours <= 0 || c.Batches <= 0 || c.Every <= 0:
		return fmt.Errorf("ledger: durations and sizes must be positive: %w", fault.ErrInvalid)
	case min(c.Quota.Workloads, c.Quota.Bytes, c.Quota.Streams, c.Quota.Batches, c.Quota.Ranges, c.Quota.Handovers) < 1:
		return fmt.Errorf("ledger: quota %+v: %w", c.Quota, fault.ErrInvalid)
	case c.ClusterNodes < 1:
		return fmt.Errorf("ledger: quota of a cluster for %d nodes: %w", c.ClusterNodes, fault.ErrInvalid)
	case c.Slice < 1:
		return fmt.Errorf("ledger: slice of %d rows: %w", c.Slice, fault.ErrInvalid)
	case c.Hours < c.Minutes:
		return fmt.Errorf("ledger: hours are kept for %v, less than minutes (%v): %w", c.Hours, c.Minutes, fault.ErrInvalid)
	}
	return nil
}

// A Ledger is an open ledger. Its methods are safe for concurrent use.
type Ledger struct {
	*reader
	*booker
	*folder
	*exchange
	*registrar
	*checker

	cfg     Config
	log     *slog.Logger
	db      *db.DB
	closing sync.Once
}

// The parts of a ledger, whose methods it embeds.
type (
	reader    = read.Reader
	booker    = book.Booker
	folder    = fold.Folder
	exchange  = replica.Exchange
	registrar = registry.Registry
	checker   = check.Checker
)

// Results of some methods.
type (
	Stats         = fold.Stats
	ExternalMeter = book.MeterState
	MeterRatio    = book.MeterRatio
	Finding       = check.Finding
	CheckResult   = check.Result
	CheckProgress = check.Progress
)

// Check checks the ledger at dsn, as [check.Checker.Run] does, which it opens as [db.OpenReadOnly]
// does: it changes nothing, and a server may write meanwhile.
func Check(ctx context.Context, dsn string, progress func(CheckProgress)) (*CheckResult, error) {
	database, err := db.OpenReadOnly(ctx, dsn)
	if err != nil {
		return nil, err
	}
	result, err := check.New(database).Run(ctx, progress)
	return result, errors.Join(err, database.Close())
}

// CheckFile is [db.CheckFile].
func CheckFile(file string, whole bool) (size int64, err error) { return db.CheckFile(file, whole) }

// Open opens the ledger at dsn: a path or sqlite:PATH, which it creates if it does not exist, or
// postgres://... It migrates an older schema. A schema newer than this program is
// fault.ErrUnsupported.
func Open(ctx context.Context, dsn string, cfg Config, log *slog.Logger) (*Ledger, error) {
	return OpenWrapped(ctx, dsn, cfg, log, nil)
}

// OpenWrapped is [Open] with connections to SQLite that go through wrap, if it is not nil: tests let
// statements fail.
func OpenWrapped(ctx context.Context, dsn string, cfg Config, log *slog.Logger, wrap db.Wrapper) (*Ledger, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	database, err := db.Open(ctx, dsn, cfg.Upstream, wrap)
	if err != nil {
		return nil, err
	}
	answers, err := read.New(ctx, database)
	if err != nil {
		return nil, errors.Join(err, database.Close())
	}
	return &Ledger{
		cfg: cfg, log: log, db: database,
		reader: answers, booker: book.New(database, cfg.Minutes, cfg.Quota, cfg.ClusterNodes), folder: fold.New(database, fold.Config{
			Minutes: cfg.Minutes, MinuteBytes: cfg.MinuteBytes, Hours: cfg.Hours, Batches: cfg.Batches, Grace: cfg.Grace, Slice: cfg.Slice,
		}),
		exchange: replica.New(database), registrar: registry.New(database), checker: check.New(database),
	}, nil
}

func (l *Ledger) Close() (err error) {
	l.closing.Do(func() { err = l.db.Close() })
	return err
}

// Epoch returns the random id that was created with the database. Row revisions are comparable only
// within one epoch.
func (l *Ledger) Epoch() string { return l.db.Epoch() }

// Backup writes a consistent copy of the ledger into a new file at path. Reads and writes continue
// meanwhile. A ledger in PostgreSQL is fault.ErrUnsupported: it has its own tools. After an error
// the caller removes the file.
func (l *Ledger) Backup(ctx context.Context, path string) error { return l.db.Backup(ctx, path) }

// Run folds completed hours and days and drops old rows until ctx ends.
func (l *Ledger) Run(ctx context.Context) error {
	tick := time.NewTicker(l.cfg.Every)
	defer tick.Stop()
	for {
		now := time.Now()
		if err := errors.Join(l.Fold(ctx, now), l.Retain(ctx, now)); err != nil && ctx.Err() == nil {
			l.log.Warn("folding or retention failed", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
