// Package ledger keeps what was used, for as long as anyone asks for it: in
// SQLite, or in PostgreSQL, by one schema.
//
// What nodes send is booked exactly once: a batch's number, its names and its
// minutes are written in one transaction. Minutes are in one table for each UTC
// day, and when an hour is over it is folded: its minutes are summed into a row
// of hours, and 24 of those into a row of days. A mark says up to when. What
// comes late for a folded hour is added to the hour as well, in the same
// transaction, so that minutes, hours and days always have the same sums, and a
// reader may take for each range of time whichever rows are still kept.
// Folding holds the writer for a moment at a time: a slice of the workloads of an
// hour is one transaction, and the mark moves with the last one.
//
// There is one writer at a time. Within a program they take turns, and between
// programs the row of table counter is locked first, for the whole transaction.
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

// Config says how long what is kept.
type Config struct {
	Minutes     time.Duration // for how long minutes are kept at most
	MinuteBytes int64         // how much room they may take, about; the oldest go first
	Hours       time.Duration // for how long hours are kept; days stay for ever
	Batches     time.Duration // for how long the hash of a batch is remembered
	Grace       time.Duration // how long after its end an hour is folded; before its end if negative
	Every       time.Duration // how often Run looks for something to fold or to drop
	Slice       int           // how many rows are folded in one transaction at most, about; fewer where that takes long
	Upstream    bool          // rows are told to a server above: they are indexed by rev
}

// Default keeps minutes for a week, and hours for 25 months.
func Default() Config {
	const day = 24 * time.Hour
	return Config{
		Minutes: 7 * day, MinuteBytes: 20 << 30, Hours: 25 * 31 * day,
		Batches: 2 * day, Grace: 5 * time.Minute, Every: time.Minute, Slice: 1 << 18,
	}
}

// Validate says what is wrong with c.
func (c Config) Validate() error {
	switch {
	case c.Minutes <= 0 || c.MinuteBytes <= 0 || c.Hours <= 0 || c.Batches <= 0 || c.Every <= 0:
		return fmt.Errorf("ledger: a length of time or a size is not positive: %w", fault.ErrInvalid)
	case c.Slice < 1:
		return fmt.Errorf("ledger: slices of %d rows: %w", c.Slice, fault.ErrInvalid)
	case c.Hours < c.Minutes:
		return fmt.Errorf("ledger: hours are kept for %v, which is less than minutes (%v): %w", c.Hours, c.Minutes, fault.ErrInvalid)
	}
	return nil
}

// A Ledger is an open ledger. Its methods may be called from several
// goroutines.
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

// The parts of a ledger, whose methods are its own.
type (
	reader    = read.Reader
	booker    = book.Booker
	folder    = fold.Folder
	exchange  = replica.Exchange
	registrar = registry.Registry
	checker   = check.Checker
)

// What some of its methods return.
type (
	Stats      = fold.Stats
	OuterMeter = book.MeterState
	OuterRatio = book.MeterRatio
)

// Open opens the ledger that dsn names: a path or sqlite:PATH, which is made
// where it does not exist, or postgres://... It brings an older schema up to
// date. One that is newer than this program is fault.ErrUnsupported.
func Open(ctx context.Context, dsn string, cfg Config, log *slog.Logger) (*Ledger, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	database, err := db.Open(ctx, dsn, cfg.Upstream)
	if err != nil {
		return nil, err
	}
	answers, err := read.New(ctx, database)
	if err != nil {
		return nil, errors.Join(err, database.Close())
	}
	return &Ledger{
		cfg: cfg, log: log, db: database,
		reader: answers, booker: book.New(database, cfg.Minutes), folder: fold.New(database, fold.Config{
			Minutes: cfg.Minutes, MinuteBytes: cfg.MinuteBytes, Hours: cfg.Hours, Batches: cfg.Batches, Grace: cfg.Grace, Slice: cfg.Slice,
		}),
		exchange: replica.New(database), registrar: registry.New(database), checker: check.New(database),
	}, nil
}

// Close closes the ledger.
func (l *Ledger) Close() (err error) {
	l.closing.Do(func() { err = l.db.Close() })
	return err
}

// Epoch is a random id that was made with the database. Revisions of rows are
// comparable within one epoch.
func (l *Ledger) Epoch() string { return l.db.Epoch() }

// Backup writes the ledger as it is at one instant into a new file, as a ledger.
// Who writes and who reads goes on meanwhile. One in PostgreSQL is
// fault.ErrUnsupported: it has tools of its own. What was written when it fails is
// for the caller to remove.
func (l *Ledger) Backup(ctx context.Context, path string) error { return l.db.Backup(ctx, path) }

// Run folds what is over and drops what is too old, until ctx ends.
func (l *Ledger) Run(ctx context.Context) error {
	tick := time.NewTicker(l.cfg.Every)
	defer tick.Stop()
	for {
		now := time.Now()
		if err := errors.Join(l.Fold(ctx, now), l.Retain(ctx, now)); err != nil && ctx.Err() == nil {
			l.log.Warn("the ledger cannot be tidied", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
