// Package ledger keeps what was used, for as long as anyone asks for it: in
// SQLite, or in PostgreSQL, by one schema.
//
// What nodes send is booked exactly once: a batch's number, its names and its
// minutes are written in one transaction. Minutes are in one table for each UTC
// day, and when an hour is over it is folded: its minutes are summed into a row
// of hours, and 24 of those into a row of days. A mark says up to when. What
// comes late for a folded hour is added to the hour as well, in the same
// transaction, so that minutes, hours and days always have the same sums, and a
// reader may take for each stretch of time whichever rows are still kept.
// Folding holds the writer for a moment at a time: a slice of the workloads of an
// hour is one transaction, and the mark moves with the last one.
//
// There is one writer at a time. Within a program they take turns, and between
// programs the row of table counter is locked first, for the whole transaction.
package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
)

// Config says how long what is kept.
type Config struct {
	Minutes     time.Duration // for how long minutes are kept at most
	MinuteBytes int64         // how much room they may take, about; the oldest go first
	Hours       time.Duration // for how long hours are kept; days stay for ever
	Batches     time.Duration // for how long the hash of a batch is remembered
	Grace       time.Duration // how long after its end an hour is folded
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
	case c.Minutes <= 0 || c.MinuteBytes <= 0 || c.Hours <= 0 || c.Batches <= 0 || c.Every <= 0 || c.Grace < 0:
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
	cfg    Config
	log    *slog.Logger
	d      *dialect
	writer *sql.DB
	reader *sql.DB
	conn   *sql.Conn // the one that writes, of SQLite only; its statements stay prepared
	epoch  string

	readings *readings     // that use reader
	helpers  chan struct{} // has an entry for each that helps another one
	shelf    *shelf        // of SQLite
	rolls    *rolls        // of SQLite

	// turn is held by the one who writes. It guards what is below.
	turn      chan struct{}
	workloads map[workloadKey]workloadRef
	tables    map[string]bool // of minutes, that are known to exist
	prepared  map[string]*sql.Stmt
	rev       int64 // of the last transaction here

	slice  atomic.Int64 // how many rows are folded in one transaction, by what they took
	folds  atomic.Int64 // ns for which folding held the writer
	slices atomic.Int64 // how many transactions that were
	thins  atomic.Int64 // how many rows are deleted in one transaction, by what they took

	closing sync.Once
}

// A workloadKey finds a workload: by the surrogate id of its node, and by the
// short id that rows carry.
type workloadKey struct {
	node  int64
	short batch.ShortID
}

// A workloadRef is a workload's surrogate id, and whether it has a name.
type workloadRef struct {
	id    int64
	named bool
}

// Open opens the ledger that dsn names: a path or sqlite:PATH, which is made
// where it does not exist, or postgres://... It brings an older schema up to
// date. One that is newer than this program is fault.ErrUnsupported.
func Open(ctx context.Context, dsn string, cfg Config, log *slog.Logger) (*Ledger, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	reads := &readings{}
	d, writer, reader, err := open(dsn, reads)
	if err != nil {
		return nil, err
	}
	l := &Ledger{
		cfg: cfg.tune(), log: log, d: d, writer: writer, reader: reader, readings: reads,
		helpers:   make(chan struct{}, helping()),
		turn:      make(chan struct{}, 1),
		workloads: map[workloadKey]workloadRef{}, tables: map[string]bool{}, prepared: map[string]*sql.Stmt{},
	}
	l.slice.Store(min(firstSlice, int64(cfg.Slice)))
	l.thins.Store(min(firstSlice/2, int64(cfg.Slice)))
	if d == lite {
		if l.conn, err = writer.Conn(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("ledger: %w", d.fault(err)), l.Close())
		}
	}
	if err := l.migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("ledger: %w", err), l.Close())
	}
	if l.epoch, err = l.Meta(ctx, metaEpoch); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	err = l.view(ctx, func(v *view) error {
		l.shelf, l.rolls = newShelf(v.rev), &rolls{all: map[[32]byte]*roll{}}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ledger: %w", err), l.Close())
	}
	return l, nil
}

// Close closes the ledger.
func (l *Ledger) Close() (err error) {
	l.closing.Do(func() {
		for _, s := range l.prepared {
			err = errors.Join(err, s.Close())
		}
		if l.conn != nil {
			err = errors.Join(err, l.conn.Close())
		}
		err = errors.Join(err, l.writer.Close())
		if l.reader != l.writer {
			err = errors.Join(err, l.reader.Close())
		}
	})
	return err
}

// Epoch is a random id that was made with the database. Revisions of rows are
// comparable within one epoch.
func (l *Ledger) Epoch() string { return l.epoch }

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
