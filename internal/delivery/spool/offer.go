package spool

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/x/failpoint"
)

// What goes into one batch at most, besides Config.Batch, unless one window
// alone is more. A decoded row takes about 450 bytes.
const (
	maxWindows = 360
	maxRows    = 10_000
	maxNames   = 5_000
)

// Status is how a stream stands.
type Status struct {
	Stream  batch.Stream
	Windows int       // in no batch yet
	Bytes   int64     // of those, on the disk
	Oldest  time.Time // end of the oldest window that the server may lack; zero where there is none
	Next    uint64    // number that is offered next
	Live    bool      // takes the windows to come
}

// Streams returns the streams that have something to send, by the age of their
// windows, and last the live one.
func (s *Spool) Streams() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Status
	for _, st := range s.streams {
		if s.closed || s.drained(st) {
			continue
		}
		status := Status{Stream: st.ID, Next: st.Want, Live: st.Live}
		oldest := func(end int64) {
			if at := wall(end); status.Oldest.IsZero() || at.Before(status.Oldest) {
				status.Oldest = at
			}
		}
		if k, ok := s.find(st.ID, st.Want); ok && k.Number < st.Next {
			oldest(k.Through)
		}
		for i := range s.index {
			if w := &s.index[i]; st.has(w.First) {
				status.Windows++
				status.Bytes += int64(w.place.n)
				oldest(w.wallEnd())
			}
		}
		all = append(all, status)
	}
	return all
}

// An Offer is a batch to be sent.
type Offer struct {
	Stream  batch.Stream
	Number  uint64
	Hash    batch.Hash
	Bytes   []byte
	Through time.Time   // end of what it tells of: of its last window, as a rule
	Format  wire.Format // what the server has to read
}

// Offer returns the batch that a stream has to offer now: the one that was
// offered and is not settled, else one made of what waits. ok is false where
// nothing waits. The error wraps fault.ErrNotFound where there is no such
// stream (any more).
func (s *Spool) Offer(id batch.Stream) (o Offer, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return o, false, errClosed
	}
	st := s.stream(id)
	if st == nil {
		return o, false, fmt.Errorf("spool: stream %v: %w", id, fault.ErrNotFound)
	}
	if o, ok, err = s.repeat(st); err == nil && !ok {
		o, ok, err = s.compose(st)
	}
	if err != nil {
		err = fmt.Errorf("spool: %w", err)
	}
	return o, ok, err
}

// repeat offers the batch that the server wants, or the next one that there is:
// then the server says that it is behind, and is told what it will not get.
func (s *Spool) repeat(st *stream) (Offer, bool, error) {
	for {
		k, ok := s.find(st.ID, st.Want)
		if !ok || k.Number >= st.Next {
			return Offer{}, false, nil
		}
		sent, err := s.sent(k)
		if errors.Is(err, errCorrupt) {
			s.stats.Corrupt++
			s.giveUp(st, k, usage.Corrupt, "")
			continue
		}
		if err != nil {
			return Offer{}, false, err
		}
		return offer(&k.batchHead, sent), true, nil
	}
}

func offer(k *batchHead, sent []byte) Offer {
	format := wire.First()
	if k.Format != nil {
		format = *k.Format
	}
	return Offer{Stream: k.Stream, Number: k.Number, Hash: batch.HashOf(sent), Bytes: sent, Through: wall(k.Through), Format: format}
}

// sent reads a batch's bytes.
func (s *Spool) sent(k kept) ([]byte, error) {
	payload, err := s.batches.read(k.place)
	if err != nil {
		return nil, err
	}
	var head stateHead
	return unpack(payload, &head)
}

// giveUp notes that a batch will never be sent, and why.
func (s *Spool) giveUp(st *stream, k kept, why usage.Reason, detail string) {
	s.drop(k.Stream, k.Number)
	st.miss(k.Number, k.gap(why, detail))
	s.dirty[st.ID] = true
}

// miss notes a batch that was given up. One that was found again on the disk may be
// given up twice.
func (st *stream) miss(number uint64, g usage.Gap) {
	if !slices.ContainsFunc(st.Missing, func(m missing) bool { return m.Number == number }) {
		st.Missing = append(st.Missing, missing{number, g})
	}
}

// compose makes the next batch of a stream of what waits, and makes it durable.
func (s *Spool) compose(old *stream) (Offer, bool, error) {
	if err := s.fit(s.estimate(old)); err != nil {
		return Offer{}, false, err
	}
	// To make room what waited may have been given up.
	if old = s.stream(old.ID); old == nil {
		return Offer{}, false, nil
	}
	st := old.copy()
	b := &batch.Batch{Stream: st.ID, Number: st.Next, Previous: st.Last}
	head := batchHead{Stream: st.ID, Number: st.Next, Previous: st.Last}
	inherited, err := s.inherit(st, b)
	if err != nil {
		return Offer{}, false, err
	}
	if !inherited {
		if err := s.gather(st, b); err != nil {
			return Offer{}, false, err
		}
	}
	b.Gaps = append(b.Gaps, st.Gaps...)
	st.Gaps = nil
	if len(b.Windows) == 0 && len(b.Gaps) == 0 {
		return Offer{}, false, s.resign(st)
	}
	head.extent = extentOf(b, st.Through)
	if format := wire.FormatOf(b); !wire.First().Reads(format) {
		head.Format = &format
	}
	if st.Began == 0 {
		st.Began = head.since()
	}
	sent, err := wire.Encode(nil, b)
	if err != nil {
		return Offer{}, false, err
	}
	st.remember(st.Next, head.Through)
	st.Last = batch.HashOf(sent)
	st.Next++
	if err := s.put([]*stream{st}, &head, sent); err != nil {
		return Offer{}, false, err
	}
	failpoint.At("spool.batch-synced")
	s.prune()
	return offer(&head, sent), true, nil
}

// resign has the live stream tell of batches that a stream lacks which has no
// more to send: nothing will come in it that shows the server that it is behind.
func (s *Spool) resign(st *stream) error {
	l := s.lost(st, usage.Corrupt)
	if st.Live || l == nil {
		return nil
	}
	live := s.live().copy()
	live.lose(l.Gap)
	st.Want, st.Missing = st.Next, nil
	return s.put([]*stream{st, live}, nil, nil)
}

// estimate is how much the next batch of a stream takes on the disk.
func (s *Spool) estimate(st *stream) int64 {
	const state = 4 << 10
	size := 0
	for _, i := range st.Inherit {
		if k, ok := s.find(i.Stream, i.Number); ok {
			size = max(size, k.place.n)
		}
	}
	for i := range s.index {
		if w := &s.index[i]; st.has(w.First) && size < s.cfg.batchSize() {
			size += w.Wire
		}
	}
	return state + int64(size)
}

// inherit puts into b the next batch that the stream has from an abandoned one,
// and reports whether there is one.
func (s *Spool) inherit(st *stream, b *batch.Batch) (bool, error) {
	for len(st.Inherit) > 0 {
		i := st.Inherit[0]
		st.Inherit = st.Inherit[1:]
		k, ok := s.find(i.Stream, i.Number)
		if !ok || k.Number != i.Number {
			st.lose(i.gap(usage.Corrupt, ""))
			continue
		}
		sent, err := s.sent(k)
		if err == nil {
			var was *batch.Batch
			if was, err = wire.Decode(sent, wire.Default()); err == nil {
				b.Names, b.Windows, b.Gaps = was.Names, was.Windows, was.Gaps
				return true, nil
			}
			err = errors.Join(errCorrupt, err)
		}
		if !errors.Is(err, errCorrupt) {
			return false, err
		}
		s.stats.Corrupt++
		st.lose(k.gap(usage.Corrupt, ""))
	}
	return false, nil
}

// gather puts into b windows that wait, as many as fit.
func (s *Spool) gather(st *stream, b *batch.Batch) error {
	var size, rows, names int
	for _, w := range s.waiting(st) {
		if n := len(b.Windows); n > 0 && (n == maxWindows || size+w.Wire > s.cfg.batchSize() || rows+w.Rows > maxRows || names+w.Names > maxNames) {
			return nil
		}
		part, err := s.part(w)
		if errors.Is(err, errCorrupt) {
			s.stats.Corrupt++
			continue // the next window, or the end of the stream, shows the hole
		}
		if err != nil {
			return err
		}
		size, rows, names = size+w.Wire, rows+w.Rows, names+w.Names
		if w.First > st.Taken+1 {
			st.hole(w.wallStart())
		}
		st.Taken, st.Through = w.Last, w.wallEnd()
		b.Windows = append(b.Windows, part.Windows[0])
		join(b, part)
	}
	if !st.Live && st.Taken < st.To {
		st.hole(s.after(st))
		st.Taken = st.To
	}
	return nil
}

// hole adds the gap that windows leave which are not in the spool any more, from
// the last one that was taken.
func (st *stream) hole(to int64) {
	from := st.Through
	if from == 0 {
		from = to
	}
	st.lose(gap(from, to, usage.Corrupt, ""))
}

// after is when the windows behind a stream's begin, or the last one ended.
func (s *Spool) after(st *stream) int64 {
	for i := range s.index {
		if s.index[i].First > st.To {
			return s.index[i].wallStart()
		}
	}
	return s.end
}
