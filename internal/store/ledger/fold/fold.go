// Package fold sums minutes into hours, hours into days and days into groups, and
// removes old rows.
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

// Config says how long what is kept.
type Config struct {
	Minutes     time.Duration // for how long minutes are kept at most
	MinuteBytes int64         // how much room they may take, about; the oldest go first
	Hours       time.Duration // for how long hours are kept; days stay for ever
	Batches     time.Duration // for how long the hash of a batch is remembered
	Grace       time.Duration // how long after its end an hour is folded
	Slice       int           // how many rows are folded in one transaction at most, about; fewer where that takes long
}

// A Folder sums minutes into hours and hours into days, and removes what is old.
type Folder struct {
	db  *db.DB
	cfg Config

	sliceRows  atomic.Int64 // how many rows are folded in one transaction, by what they took
	heldNS     atomic.Int64 // ns for which folding held the writer
	sliceCount atomic.Int64 // how many transactions that were
	deleteRows atomic.Int64 // how many rows are deleted in one transaction, by what they took
}

func New(database *db.DB, cfg Config) *Folder {
	f := &Folder{db: database, cfg: cfg}
	f.sliceRows.Store(min(firstSlice, int64(cfg.Slice)))
	f.deleteRows.Store(min(firstSlice/2, int64(cfg.Slice)))
	return f
}

// Fold sums the minutes of hours that are over into hours, those into days, and
// days into groups.
func (f *Folder) Fold(ctx context.Context, now time.Time) error {
	for err := range f.Folding(ctx, now) {
		if err != nil {
			return err
		}
	}
	return nil
}

// Folding folds as Fold does, a slice at a time, and stops at an error. A slice
// is a transaction that holds the writer for a moment only, and that says how
// far folding came. Who waits to write is let in after each, as the writer is
// had in turn. What is booked between two slices is right, and folding that was
// cut off goes on from there.
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

// A folding is one call of Folding.
type foldRun struct {
	*Folder
	limit int64 // hours before it are over
	// begun are the days whose groups it began to sum. Where rows come for one
	// of them meanwhile it is left for the next time.
	begun map[int64]bool
}

// A slice is what is folded in one transaction: a range of keys of an hour or of
// a day.
type slice struct {
	into  schema.Level   // hours or days
	start int64          // the first minute of the hour or day
	keys  *schema.Layout // of which tables; nil is the groups of a day
	// first and end are the keys: [FirstMinute, end).
	first, end int64
	finer      []any // the minutes of the rows that are summed
	rows       int64 // of minutes; about, as more may have come
	skip       bool  // there is nothing to fold before at, and this is all that is to be said
}

const (
	firstSlice = 1 << 14 // rows
	minSlice   = 1 << 10

	// maxHold is how long a slice is to hold the writer.
	maxHold = 150 * time.Millisecond
)

// nextSlice finds what is to be folded next; nil is nothing. It reads only, and so
// keeps nobody from booking.
func (f *foldRun) nextSlice(ctx context.Context) (s *slice, err error) {
	err = f.db.View(ctx, func(v *db.View) error {
		for _, find := range []func(*db.View) (*slice, error){f.hourSlice, f.daySlice, f.groupSlice} {
			if s, err = find(v); s != nil || err != nil {
				return f.db.Fault(err)
			}
		}
		return nil
	})
	return s, err
}

func (f *foldRun) hourSlice(v *db.View) (*slice, error) {
	return f.levelSlice(v, schema.Hours, f.limit)
}
func (f *foldRun) daySlice(v *db.View) (*slice, error) {
	return f.levelSlice(v, schema.Days, v.Hour-v.Hour%schema.DayMinutes)
}

// levelSlice is the next slice of hours or days before the limit.
func (f *foldRun) levelSlice(v *db.View, into schema.Level, limit int64) (*slice, error) {
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
	s := &slice{into: into, start: mark, keys: schema.UsageLayout}
	if done.Workload == schema.MaxKey {
		s.keys = schema.NodeLayout
	}
	s.first = *done.Key(s.keys)
	from := schema.Range{Level: into - 1, From: mark, To: mark + into.Width()}
	for m := from.From; m < from.To; m += from.Level.Width() {
		s.finer = append(s.finer, m)
	}
	cost := int64(hourCost)
	if into == schema.Days {
		cost = dayCost
	}
	var err error
	if s.end, err = f.sliceEnd(v, from.Table(s.keys), s.keys.Key, s.finer, s.first, cost); err != nil || into != schema.Hours || s.keys != schema.UsageLayout {
		return s, err
	}
	query := fmt.Sprintf("SELECT count(*) FROM %s WHERE %s", from.Table(s.keys), keyRange(s.keys, 1, len(s.finer)))
	return s, v.SQL.QueryRowContext(v.Ctx, query, append([]any{s.first, s.end}, s.finer...)...).Scan(&s.rows)
}

// What it costs to sum a row, and to write the sum, by that of a minute's.
const (
	hourCost  = 1
	dayCost   = 3
	groupCost = 16
)

// sliceEnd is where a slice ends that begins with a key, such that it has not too
// many rows at the minutes.
func (f *foldRun) sliceEnd(v *db.View, table, key string, minutes []any, first, cost int64) (int64, error) {
	query := fmt.Sprintf("SELECT %[1]s FROM %[2]s WHERE minute = $1 AND %[1]s >= $2 ORDER BY %[1]s LIMIT 1 OFFSET $3", key, table)
	end, rows := int64(schema.MaxKey), max(1, f.sliceRows.Load()/cost/int64(len(minutes)))
	for _, m := range minutes {
		ends, err := db.Ints(v.Ctx, v.SQL, query, m, first, rows)
		if err != nil {
			return 0, err
		}
		for _, e := range ends {
			end = min(end, e)
		}
	}
	return end, nil
}

// groupSlice is the next slice of the groups of a day.
func (f *foldRun) groupSlice(v *db.View) (s *slice, err error) {
	err = db.Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
		var day, first int64
		if err := scan(&day, &first); err != nil || s != nil || first == 0 && f.begun[day] {
			return err
		}
		s = &slice{into: schema.Days, start: day, first: first}
		return nil
	}, "SELECT minute, next FROM stale_day WHERE minute < $1 ORDER BY minute", v.Day)
	if err != nil || s == nil {
		return nil, err
	}
	s.end, err = f.sliceEnd(v, schema.UsageLayout.DayTable(), schema.UsageLayout.Key, []any{s.start}, s.first, groupCost)
	return s, err
}

// firstUnfolded is the first minute of the rows that are to be folded into hours or
// days, and are not; math.MaxInt64 where there is none.
func firstUnfolded(ctx context.Context, q db.Queryer, m *schema.Marks, into schema.Level) (int64, error) {
	if into == schema.Days {
		return db.FirstMinute(ctx, q, m.Day, schema.UsageLayout.HourTable(), schema.NodeLayout.HourTable())
	}
	kept, err := db.Ints(ctx, q, "SELECT day FROM kept WHERE day > $1 ORDER BY day", m.Hour-schema.DayMinutes)
	if err != nil {
		return 0, err
	}
	for _, day := range kept {
		if day+schema.DayMinutes <= m.MinuteFloor {
			continue
		}
		at, err := db.FirstMinute(ctx, q, m.Hour, schema.UsageMinuteTable(day), schema.NodeMinuteTable(day))
		if err != nil || at < math.MaxInt64 {
			return at, err
		}
	}
	return math.MaxInt64, nil
}

// foldSlice folds a slice, and finds out how large the next one may be.
func (f *foldRun) foldSlice(ctx context.Context, s *slice) error {
	var began time.Time
	err := f.db.Write(ctx, func(t *db.Tx) error {
		began = time.Now()
		if err := f.foldIn(t, s); err != nil {
			return fmt.Errorf("%s: %w", schema.FormatMinute(s.start), err)
		}
		failpoint.At("ledger.folding")
		return nil
	})
	if err != nil || s.skip {
		return err
	}
	took := time.Since(began)
	f.heldNS.Add(int64(took))
	f.sliceCount.Add(1)
	size := f.sliceRows.Load()
	switch {
	case took > maxHold:
		f.sliceRows.Store(max(size*int64(maxHold)/int64(took), min(minSlice, int64(f.cfg.Slice))))
	case took < maxHold/3 && s.end != schema.MaxKey:
		f.sliceRows.Store(min(2*size, int64(f.cfg.Slice)))
	}
	return nil
}
