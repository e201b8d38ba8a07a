// Package fold sums minutes into hours, hours into days and days into groups, and removes old rows.
package fold

import (
	"context"
	"fmt"
	"iter"
	"math"
	"sync/atomic"
	"time"

	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
	"mete.dev/mete/internal/x/failpoint"
)

// Config sets how long rows are kept and how they are folded.
type Config struct {
	Minutes     time.Duration // maximum age of minutes
	MinuteBytes int64         // approximate size limit of minutes; the oldest are dropped first
	Hours       time.Duration // maximum age of hours; days are kept forever
	Batches     time.Duration // how long the hash of a batch is kept
	Grace       time.Duration // time from the end of an hour until it is folded
	Slice       int           // approximate maximum of rows per fold transaction; fewer when that takes too long
}

// A Folder sums minutes into hours and hours into days, and removes old rows.
type Folder struct {
	db  *db.DB
	cfg Config

	// Rows to fold into hours, days and groups, and to delete, in one transaction. They differ in cost, so
	// that each is adapted to the time it takes.
	hourRows, dayRows, groupRows, deleteRows atomic.Int64

	heldNS     atomic.Int64 // ns that folding held the writer
	sliceCount atomic.Int64 // transactions of folding

	runsDropped time.Time // when Retain dropped kernel runs last
}

func New(database *db.DB, cfg Config) *Folder {
	f := &Folder{db: database, cfg: cfg}
	for _, rows := range []*atomic.Int64{&f.hourRows, &f.dayRows, &f.groupRows, &f.deleteRows} {
		rows.Store(min(minSlice, int64(cfg.Slice)))
	}
	return f
}

// Fold sums the minutes of completed hours into hours, those into days, and days into groups.
func (f *Folder) Fold(ctx context.Context, now time.Time) error {
	for err := range f.Folding(ctx, now) {
		if err != nil {
			return err
		}
	}
	return nil
}

// Folding folds as Fold does, a slice at a time, and stops at an error. A slice is one transaction,
// which holds the writer briefly and records how far folding has come. Waiting writers get their
// turn after each slice. Rows that are booked between slices are folded correctly, and interrupted folding
// resumes where it stopped.
func (f *Folder) Folding(ctx context.Context, now time.Time) iter.Seq[error] {
	closed := now.Add(-f.cfg.Grace).Unix() / 60
	g := &foldRun{Folder: f, limit: closed - closed%schema.HourMinutes, begun: map[int64]bool{}}
	return func(yield func(error) bool) {
		for {
			s, err := g.nextSlice(ctx)
			if err == nil && s == nil {
				return
			}
			if err == nil {
				err = g.foldSlice(ctx, s)
			}
			if !yield(db.Wrap(err, "folding")) || err != nil {
				return
			}
		}
	}
}

// A foldRun is one call of Folding.
type foldRun struct {
	*Folder
	limit int64 // hours before it are over
	// begun are the days whose groups this run has started to sum. If rows arrive for one of them
	// meanwhile, the next run sums it again.
	begun map[int64]bool
}

// A slice is what one transaction folds: a range of keys of an hour or a day.
type slice struct {
	into  schema.Level   // hours or days
	start int64          // the first minute of the hour or day
	keys  *schema.Layout // whose tables; nil is the groups of a day
	// The keys are [first, end).
	first, end int64
	finer      []any         // minutes of the rows to sum
	rows       int64         // rows of minutes, approximately: more may have arrived
	size       *atomic.Int64 // how many rows to sum
	skip       bool          // nothing to fold before start; only move the mark
}

// minSlice is the number of rows in the first slice and in the smallest one, if Config.Slice is not
// smaller.
const minSlice = 1024

// maxHold is the target for how long a slice holds the writer.
const maxHold = 150 * time.Millisecond

// nextSlice returns the next slice to fold, or nil. It only reads and so blocks no writer.
func (r *foldRun) nextSlice(ctx context.Context) (s *slice, err error) {
	err = r.db.View(ctx, func(v *db.View) error {
		for _, find := range []func(*db.View) (*slice, error){r.hourSlice, r.daySlice, r.groupSlice} {
			if s, err = find(v); s != nil || err != nil {
				return r.db.Fault(err)
			}
		}
		return nil
	})
	return s, err
}

func (r *foldRun) hourSlice(v *db.View) (*slice, error) {
	return r.levelSlice(v, schema.Hours, r.limit)
}
func (r *foldRun) daySlice(v *db.View) (*slice, error) {
	return r.levelSlice(v, schema.Days, v.Hour-v.Hour%schema.DayMinutes)
}

// levelSlice returns the next slice of hours or days before the limit.
func (r *foldRun) levelSlice(v *db.View, into schema.Level, limit int64) (*slice, error) {
	mark, done := v.Mark(into)
	if mark >= limit {
		return nil, nil
	}
	if *done == (schema.Progress{}) {
		first, err := firstUnfolded(v.Ctx, v.SQL, &v.Marks, into)
		if err != nil {
			return nil, err
		}
		if at := min(first-first%into.Width(), limit); at > mark {
			return &slice{into: into, start: at, skip: true}, nil
		}
	}
	s := &slice{into: into, start: mark, keys: schema.UsageLayout, size: &r.hourRows}
	if into == schema.Days {
		s.size = &r.dayRows
	}
	if done.Workload == schema.MaxKey {
		s.keys = schema.NodeLayout
	}
	s.first = *done.Key(s.keys)
	from := schema.Range{Level: into - 1, From: mark, To: mark + into.Width()}
	for m := from.From; m < from.To; m += from.Level.Width() {
		s.finer = append(s.finer, m)
	}
	var err error
	if s.end, err = sliceEnd(v, from.Table(s.keys), s.keys.Key, s.finer, s); err != nil || into != schema.Hours || s.keys != schema.UsageLayout {
		return s, err
	}
	query := fmt.Sprintf("SELECT count(*) FROM %s WHERE %s", from.Table(s.keys), keyRange(s.keys, 1, len(s.finer)))
	return s, v.SQL.QueryRowContext(v.Ctx, query, append([]any{s.first, s.end}, s.finer...)...).Scan(&s.rows)
}

// sliceEnd returns the end of a slice of the rows of some minutes, chosen to limit the slice's rows.
func sliceEnd(v *db.View, table, key string, minutes []any, s *slice) (int64, error) {
	query := fmt.Sprintf("SELECT %[1]s FROM %[2]s WHERE minute = $1 AND %[1]s >= $2 ORDER BY %[1]s LIMIT 1 OFFSET $3", key, table)
	end, rows := int64(schema.MaxKey), max(1, s.size.Load()/int64(len(minutes)))
	for _, m := range minutes {
		ends, err := db.Ints(v.Ctx, v.SQL, query, m, s.first, rows)
		if err != nil {
			return 0, err
		}
		for _, e := range ends {
			end = min(end, e)
		}
	}
	return end, nil
}

// groupSlice returns the next slice of the groups of a day.
func (r *foldRun) groupSlice(v *db.View) (s *slice, err error) {
	err = db.Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
		var day, first int64
		if err := scan(&day, &first); err != nil || s != nil || first == 0 && r.begun[day] {
			return err
		}
		s = &slice{into: schema.Days, start: day, first: first, size: &r.groupRows}
		return nil
	}, "SELECT minute, next FROM stale_day WHERE minute < $1 ORDER BY minute", v.Day)
	if err != nil || s == nil {
		return nil, err
	}
	s.end, err = sliceEnd(v, schema.UsageLayout.DayTable(), schema.UsageLayout.Key, []any{s.start}, s)
	return s, err
}

// firstUnfolded returns the first minute of the rows that are not folded into hours or days yet, or
// math.MaxInt64.
func firstUnfolded(ctx context.Context, q db.Queryer, m *schema.Marks, into schema.Level) (int64, error) {
	if into == schema.Days {
		return db.FirstMinute(ctx, q, m.Day, schema.UsageLayout.HourTable(), schema.NodeLayout.HourTable())
	}
	kept, err := db.Ints(ctx, q, fmt.Sprintf("SELECT day FROM kept WHERE day + %d > $1 ORDER BY day", schema.DayMinutes), m.Hour)
	if err != nil {
		return 0, err
	}
	for _, day := range kept {
		at, err := db.FirstMinute(ctx, q, m.Hour, schema.UsageMinuteTable(day), schema.NodeMinuteTable(day))
		if err != nil || at < math.MaxInt64 {
			return at, err
		}
	}
	return math.MaxInt64, nil
}

// foldSlice folds a slice, and adapts the size of the next one.
func (r *foldRun) foldSlice(ctx context.Context, s *slice) error {
	var began time.Time
	err := r.db.Write(ctx, func(t *db.Tx) error {
		began = time.Now()
		if err := r.foldIn(t, s); err != nil {
			return fmt.Errorf("%s: %w", schema.FormatMinute(s.start), err)
		}
		failpoint.At("ledger.folding")
		return nil
	})
	if err != nil || s.skip {
		return err
	}
	took := time.Since(began)
	r.heldNS.Add(int64(took))
	r.sliceCount.Add(1)
	r.adapt(s.size, took, maxHold, s.end != schema.MaxKey)
	return nil
}

// adapt adapts the rows of slices after one that took some time, see [nextSize].
func (f *Folder) adapt(size *atomic.Int64, took, hold time.Duration, full bool) {
	size.Store(nextSize(size.Load(), took, hold, full, int64(f.cfg.Slice)))
}

// nextSize returns the rows of the slice after one of size rows that took some time and should hold
// the writer for at most hold. It grows, up to limit, only after a full slice.
func nextSize(size int64, took, hold time.Duration, full bool, limit int64) int64 {
	switch {
	case took > hold:
		return max(size*int64(hold)/int64(took), min(minSlice, limit))
	case took < hold/3 && full:
		return min(2*size, limit)
	}
	return size
}
