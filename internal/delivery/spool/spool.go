// Package spool keeps an agent's windows on its disk until a server has them.
//
// Two logs do that. The log of windows takes each window with the state of the
// books at its end, and notes of what must not wait for the end of a window; the log of batches takes what is offered to a server, as it
// is offered, and how far each stream is. A window is as good as sent, and its
// record not needed any more, when the record of a batch with it is durable. So
// whatever happens between two records, each window is in exactly one batch,
// and each batch has the bytes that it had when it was first offered.
//
// docs/formats/spool.md describes the files.
package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/x/failpoint"
)

// A MergeRule merges windows older than After into windows of Span, with edges at multiples
// of Span in wall time.
type MergeRule struct{ After, Span time.Duration }

// A Config configures a Spool.
type Config struct {
	Dir string
	// MaxBytes is how many bytes both logs may take together.
	MaxBytes int64
	// Retention is for how long batches are kept that a server has, so that one that
	// was restored from a backup can be filled again.
	Retention time.Duration
	// MergeRules apply to windows that wait, in the order of rising age.
	MergeRules []MergeRule
	// BatchBytes is how many bytes of windows go into one batch.
	BatchBytes int
	// SegmentBytes is the size at which a file of a log is full and the next one
	// begins; 0 derives it from MaxBytes.
	SegmentBytes int64
	// FS is the file system; nil is [OS].
	FS FS
}

// Default returns the configuration of an agent, apart from Dir.
func Default() Config {
	return Config{
		MaxBytes:   512 << 20,
		Retention:  24 * time.Hour,
		MergeRules: []MergeRule{{2 * time.Hour, 5 * time.Minute}, {26 * time.Hour, time.Hour}},
		BatchBytes: 1 << 20,
	}
}

// Validate reports all invalid fields.
func (c Config) Validate() error {
	const least = 1 << 20
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("no directory"))
	}
	if c.MaxBytes < least {
		errs = append(errs, fmt.Errorf("cap of %d bytes: less than %d", c.MaxBytes, least))
	}
	if c.Retention < 0 {
		errs = append(errs, fmt.Errorf("keeping batches for %v: less than 0", c.Retention))
	}
	if c.BatchBytes < 1<<10 || c.BatchBytes > wire.Default().Sent/2 {
		errs = append(errs, fmt.Errorf("batch of %d bytes: not between 1 KiB and %d", c.BatchBytes, wire.Default().Sent/2))
	}
	if c.SegmentBytes < 0 {
		errs = append(errs, fmt.Errorf("segments of %d bytes: less than 0", c.SegmentBytes))
	}
	for i, k := range c.MergeRules {
		if k.Span <= 0 || k.After < 0 || i > 0 && (k.After <= c.MergeRules[i-1].After || k.Span <= c.MergeRules[i-1].Span) {
			errs = append(errs, fmt.Errorf("windows of %v after %v: ages and spans have to rise", k.Span, k.After))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("spool: %w: %w", err, fault.ErrInvalid)
	}
	return nil
}

// segmentSize returns the size at which a segment is full.
func (c Config) segmentSize() int64 {
	if c.SegmentBytes > 0 {
		return c.SegmentBytes
	}
	return max(64<<10, min(c.MaxBytes/16, 4<<20))
}

// batchSize is how many bytes of windows go into one batch. It is no more than a
// segment, so that a small spool is not full of one.
func (c Config) batchSize() int { return min(c.BatchBytes, int(c.segmentSize())) }

// Stats counts the contents of a spool, and the windows and batches that it merged,
// gave up or could not read since it was opened.
type Stats struct {
	Bytes   int64     // of both logs
	Waiting int64     // approximate part of Bytes that no server has
	Limit   int64     // on Bytes
	Windows int       // that are in no batch yet
	Oldest  time.Time // end of the oldest of these windows; zero if there is none
	Batches int       // on disk, including those that a server has
	Streams int       // with data to send, and the live one
	Merged  int64     // windows merged into longer ones
	Dropped int64     // windows given up because the spool was full
	Evicted int64     // batches given up because the spool was full
	Refused int64     // batches put into quarantine because a server called them invalid
	Corrupt int64     // records that could not be read
	Notes   int64     // notes written, each with a sync of its own
	Rows    int64     `json:"-"` // of the windows that were appended
}

// A Spool holds windows and batches in a directory. Its methods may be called
// from several goroutines.
type Spool struct {
	cfg     Config
	fs      FS
	log     *slog.Logger
	changes chan struct{}

	mu      sync.Mutex
	closed  bool
	lock    io.Closer
	windows *segments
	batches *segments

	index       []window   // in no batch yet, in order
	checkpoints []location // a full one, then what changed
	notes       []location // after them; the first may have a full checkpoint in place of them
	unappended  bool       // nothing was appended since it was opened
	lastWindow  uint64     // number of the last window
	lastEnd     int64      // of that, wall time in ns
	totals      totals
	had         []usage.Set // scratch of append
	latest      latest

	streams     []*stream // by their windows, the live one last
	dirty       map[batch.Stream]bool
	stored      map[batch.Stream][]storedBatch // by number
	serial      uint64                         // of the last record of the log of batches
	lastReoffer time.Time
	stats       Stats
}

// Open recovers the spool in a directory, or makes one. The error wraps
// fault.ErrConflict where another process has it open.
func Open(cfg Config, log *slog.Logger) (*Spool, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Spool{
		cfg: cfg, fs: cfg.FS, log: log,
		changes:    make(chan struct{}, 1),
		unappended: true,
		totals:     totals{},
		dirty:      map[batch.Stream]bool{},
		stored:     map[batch.Stream][]storedBatch{},
	}
	if s.fs == nil {
		s.fs = OS{}
	}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("spool: %w", errors.Join(err, s.release()))
	}
	return s, nil
}

func (s *Spool) open() (err error) {
	if err := s.fs.MkdirAll(s.cfg.Dir); err != nil {
		return err
	}
	if s.lock, err = s.fs.Lock(filepath.Join(s.cfg.Dir, "lock")); err != nil {
		return err
	}
	r := recovery{s: s, uncertain: map[batch.Stream]uint64{}, lastSerial: map[batch.Stream]uint64{}}
	var ofBatches, ofWindows damage
	size := s.cfg.segmentSize()
	if s.batches, ofBatches, err = openSegments(s.fs, filepath.Join(s.cfg.Dir, "batches"), size, r.readState); err != nil {
		return err
	}
	if s.windows, ofWindows, err = openSegments(s.fs, filepath.Join(s.cfg.Dir, "windows"), size, r.readWindow); err != nil {
		return err
	}
	if err := r.reconcile(); err != nil {
		return err
	}
	s.stats.Corrupt = int64(ofBatches.corrupt + ofWindows.corrupt + r.corrupt)
	if err := s.makeRoom(0); err != nil {
		s.log.Warn("spool is larger than its cap", "err", err)
	}
	s.log.Info("spool opened", "windows", len(s.index), "streams", len(s.streams), "torn", ofBatches.torn+ofWindows.torn)
	if s.stats.Corrupt > 0 {
		s.log.Warn("spool is damaged", "records", s.stats.Corrupt)
	}
	return nil
}

// release closes all open files.
func (s *Spool) release() error {
	var errs []error
	for _, g := range [...]*segments{s.windows, s.batches} {
		if g != nil {
			errs = append(errs, g.close())
		}
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

var errClosed = fmt.Errorf("spool: %w", os.ErrClosed)

// Close writes pending state to disk and releases the directory. Methods that return
// an error fail with os.ErrClosed after Close, except Close itself.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	err := s.flush()
	if err = errors.Join(err, s.release()); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}

// flush writes the state from servers' replies to disk before the next batch does.
func (s *Spool) flush() error {
	if len(s.dirty) == 0 {
		return nil
	}
	return s.persist(nil, nil, nil)
}

// Changes returns a channel that receives a value after an Append.
func (s *Spool) Changes() <-chan struct{} { return s.changes }

// Checkpoint returns the state of the books at the end of the last window, a
// full checkpoint and then its changes, and then what the notes since say of
// them, in order. It is nil if there is none, as in a new spool.
func (s *Spool) Checkpoint() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	var all [][]byte
	err := s.eachCheckpoint(func(_ json.RawMessage, books []byte) {
		if len(books) > 0 {
			all = append(all, books)
		}
	})
	if err != nil {
		// An incomplete checkpoint does not fit the later windows, so return none.
		s.log.Warn("checkpoint is lost", "err", err)
		return nil
	}
	for _, n := range s.readNotes() {
		if len(n.body) > 0 {
			all = append(all, n.body)
		}
	}
	return all
}

// latest is the last window as the next batch of the live stream, so that it need not be read and encoded
// again to be offered.
type latest struct {
	known  bool        // until an append begins
	batch  batch.Batch // with the window without its rows
	sent   []byte      // the encoded batch, with the rows
	format wire.Format
}

// isNext reports whether the latest window, encoded as it is, is the next batch of the stream.
func (l *latest) isNext(st *stream) bool {
	return l.known && l.batch.Stream == st.ID && l.batch.Number == st.Next && len(st.Gaps) == 0
}

// Append makes a window durable as [wire.Prepare] returns it, with its names, one for a workload, and gaps, and with what
// checkpoint says of the books at its end: everything where full, else what
// changed since the last Append that succeeded. text, nil for none, returns likewise the
// JSON that Texts returns. Both are called once, or not at all
// where the window cannot be written as it is. After an error nothing of the
// window is in the spool.
//
// The rows have their Totals; those that follow from the rows before are not
// kept. Afterwards the rows of w are in another order, and not all have their Totals; after an error
// they have those of what they used.
func (s *Spool) Append(w *usage.Window, names []batch.Name, gaps []usage.Gap, checkpoint, text func(full bool) []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if err := s.append(w, names, gaps, checkpoint, text); err != nil {
		clear(s.totals)
		return fmt.Errorf("spool: %w", err)
	}
	select {
	case s.changes <- struct{}{}:
	default:
	}
	return nil
}

func (s *Spool) append(w *usage.Window, names []batch.Name, gaps []usage.Gap, checkpoint, text func(full bool) []byte) (err error) {
	number := s.lastWindow + 1
	s.latest.known = false
	sent := wire.Prepare(w)
	s.had = s.totals.omitDerivable(s.had[:0], sent.Rows, number)
	defer func() {
		if err != nil {
			restoreTotals(s.had, sent.Rows)
		}
	}()
	live := s.liveStream()
	b := batch.Batch{Stream: live.ID, Number: live.Next, Previous: live.Last, Names: names, Windows: []usage.Window{sent}, Gaps: gaps}
	encoded, err := wire.Encode(nil, &b)
	if err != nil {
		return err
	}
	begin := s.windows.isFull()
	s.latest.sent = encoded
	head := headOf(&b, number, number, encoded)
	head.Full, head.Serial = begin || s.unappended, s.serial
	books := checkpoint(head.Full)
	var said []byte
	if text != nil {
		said = text(head.Full)
	}
	if len(said) > 0 && !json.Valid(said) {
		return errNoJSON
	}
	payload := pack(windowRecord{head, said}, encoded, books)
	if err := s.makeRoom(int64(len(payload))); err != nil {
		return err
	}
	p, err := s.windows.append(kindWindow, payload, begin)
	if errors.Is(err, syscall.ENOSPC) {
		// The next Append may use the space of acknowledged batches.
		_, everr := s.evict()
		return errors.Join(err, everr)
	}
	if err != nil {
		return err
	}
	failpoint.At("spool.window-synced")
	s.lastWindow, s.lastEnd, s.unappended, s.notes = number, head.wallEnd(), false, nil
	s.index = append(s.index, window{head, p})
	s.stats.Rows += int64(len(sent.Rows))
	s.latest.known, s.latest.format = true, wire.FormatOf(&b)
	sent.Rows, sent.Handovers, sent.Volumes = nil, nil, nil
	b.Names, b.Windows, b.Gaps = slices.Clone(names), []usage.Window{sent}, slices.Clone(gaps)
	s.latest.batch = b
	if head.Full {
		s.checkpoints = nil
	}
	if len(books)+len(said) > 0 {
		s.checkpoints = append(s.checkpoints, p)
	}
	return nil
}

// Stats returns the counts of the spool.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Bytes, st.Windows = s.bytes(), len(s.index)
	if len(s.index) > 0 {
		st.Oldest = wallTime(s.index[0].wallEnd())
	}
	st.Waiting, st.Limit = s.windows.bytes(), s.cfg.MaxBytes
	for _, list := range s.stored {
		st.Batches += len(list)
		for i := range list {
			if list[i].acked == 0 {
				st.Waiting += int64(list[i].location.size)
			}
		}
	}
	for _, stream := range s.streams {
		if !s.isDrained(stream) {
			st.Streams++
		}
	}
	return st
}

// Unsent returns the time range of the data in the spool that no server is known
// to have; from is zero if there is none. last is the end of the last window
// that was appended to the spool, 1970 if there was none.
func (s *Spool) Unsent() (from, to, last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	widen := func(a, b int64) {
		if t := wallTime(a); from.IsZero() || t.Before(from) {
			from = t
		}
		if t := wallTime(b); t.After(to) {
			to = t
		}
	}
	for i := range s.index {
		widen(s.index[i].startWithGaps(), s.index[i].wallEnd())
	}
	for _, list := range s.stored {
		for _, k := range list {
			if k.acked == 0 || s.isNeeded(k.Stream, k.Number) {
				widen(k.startWithGaps(), max(k.Through, k.Until))
			}
		}
	}
	return from, to, wallTime(s.lastEnd)
}

func (s *Spool) bytes() int64 { return s.windows.bytes() + s.batches.bytes() }
