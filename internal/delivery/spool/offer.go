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
// alone is more. A decoded row takes about 550 bytes.
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
		if s.closed || s.isDrained(st) {
			continue
		}
		status := Status{Stream: st.ID, Next: st.Wanted, Live: st.Live}
		oldest := func(end int64) {
			if at := wallTime(end); status.Oldest.IsZero() || at.Before(status.Oldest) {
				status.Oldest = at
			}
		}
		if k, ok := s.findBatch(st.ID, st.Wanted); ok && k.Number < st.Next {
			oldest(k.Through)
		}
		for i := range s.index {
			if w := &s.index[i]; st.owns(w.First) {
				status.Windows++
				status.Bytes += int64(w.location.size)
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

// NextOffer returns the batch that a stream has to offer now: the one that was
// offered and is not settled, else one made of what waits. ok is false where
// nothing waits. The error wraps fault.ErrNotFound where there is no such
// stream (any more).
func (s *Spool) NextOffer(id batch.Stream) (o Offer, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return o, false, errClosed
	}
	st := s.findStream(id)
	if st == nil {
		return o, false, fmt.Errorf("spool: stream %v: %w", id, fault.ErrNotFound)
	}
	if o, ok, err = s.reoffer(st); err == nil && !ok {
		o, ok, err = s.compose(st)
	}
	if err != nil {
		err = fmt.Errorf("spool: %w", err)
	}
	return o, ok, err
}

// reoffer offers the batch that the server wants, or the next one that there is:
// then the server says that it is behind, and is told what it will not get.
func (s *Spool) reoffer(st *stream) (Offer, bool, error) {
	for {
		k, ok := s.findBatch(st.ID, st.Wanted)
		if !ok || k.Number >= st.Next {
			return Offer{}, false, nil
		}
		sent, err := s.readBatch(k)
		if errors.Is(err, errCorrupt) {
			s.stats.Corrupt++
			s.giveUpBatch(st, k, usage.Corrupt, "")
			continue
		}
		if err != nil {
			return Offer{}, false, err
		}
		return newOffer(&k.batchHead, sent), true, nil
	}
}

func newOffer(k *batchHead, sent []byte) Offer {
	format := wire.BaseFormat()
	if k.Format != nil {
		format = *k.Format
	}
	return Offer{Stream: k.Stream, Number: k.Number, Hash: batch.HashOf(sent), Bytes: sent, Through: wallTime(k.Through), Format: format}
}

// readBatch reads a batch's bytes.
func (s *Spool) readBatch(k storedBatch) ([]byte, error) {
	payload, err := s.batches.read(k.location)
	if err != nil {
		return nil, err
	}
	var head stateHead
	return unpack(payload, &head)
}

// giveUpBatch notes that a batch will never be sent, and why.
func (s *Spool) giveUpBatch(st *stream, k storedBatch, why usage.Reason, detail string) {
	s.removeBatch(k.Stream, k.Number)
	st.addMissing(k.Number, k.gap(why, detail))
	s.dirty[st.ID] = true
}

// addMissing notes a batch that was given up. One that was found again on the disk may be
// given up twice.
func (st *stream) addMissing(number uint64, g usage.Gap) {
	if !slices.ContainsFunc(st.Missing, func(m missingBatch) bool { return m.Number == number }) {
		st.Missing = append(st.Missing, missingBatch{number, g})
	}
}

// compose makes the next batch of a stream of what waits, and makes it durable.
func (s *Spool) compose(old *stream) (Offer, bool, error) {
	if err := s.makeRoom(s.estimateBatchSize(old)); err != nil {
		return Offer{}, false, err
	}
	// To make room what waited may have been given up.
	if old = s.findStream(old.ID); old == nil {
		return Offer{}, false, nil
	}
	st := old.clone()
	b := &batch.Batch{Stream: st.ID, Number: st.Next, Previous: st.Last}
	head := batchHead{Stream: st.ID, Number: st.Next, Previous: st.Last}
	inherited, err := s.addInherited(st, b)
	if err != nil {
		return Offer{}, false, err
	}
	if !inherited {
		if err := s.addWaiting(st, b); err != nil {
			return Offer{}, false, err
		}
	}
	b.Gaps = append(b.Gaps, st.Gaps...)
	st.Gaps = nil
	if len(b.Windows) == 0 && len(b.Gaps) == 0 {
		return Offer{}, false, s.handOverLosses(st)
	}
	head.extent = extentOf(b, st.Through)
	if format := wire.FormatOf(b); !wire.BaseFormat().CanRead(format) {
		head.Format = &format
	}
	if st.FirstStart == 0 {
		st.FirstStart = head.startWithGaps()
	}
	sent, err := wire.Encode(nil, b)
	if err != nil {
		return Offer{}, false, err
	}
	st.addHistory(st.Next, head.Through)
	st.Last = batch.HashOf(sent)
	st.Next++
	if err := s.persist([]*stream{st}, &head, sent); err != nil {
		return Offer{}, false, err
	}
	failpoint.At("spool.batch-synced")
	s.prune()
	return newOffer(&head, sent), true, nil
}

// handOverLosses has the live stream tell of batches that a stream lacks which has no
// more to send: nothing will come in it that shows the server that it is behind.
func (s *Spool) handOverLosses(st *stream) error {
	l := s.findLoss(st, usage.Corrupt)
	if st.Live || l == nil {
		return nil
	}
	live := s.liveStream().clone()
	live.addGap(l.Gap)
	st.Wanted, st.Missing = st.Next, nil
	return s.persist([]*stream{st, live}, nil, nil)
}

// estimateBatchSize is how much the next batch of a stream takes on the disk.
func (s *Spool) estimateBatchSize(st *stream) int64 {
	const state = 4 << 10
	size := 0
	for _, i := range st.Inherited {
		if k, ok := s.findBatch(i.Stream, i.Number); ok {
			size = max(size, k.location.size)
		}
	}
	for i := range s.index {
		if w := &s.index[i]; st.owns(w.First) && size < s.cfg.batchSize() {
			size += w.Wire
		}
	}
	return state + int64(size)
}

// addInherited puts into b the next batch that the stream has from an abandoned one,
// and reports whether there is one.
func (s *Spool) addInherited(st *stream, b *batch.Batch) (bool, error) {
	for len(st.Inherited) > 0 {
		i := st.Inherited[0]
		st.Inherited = st.Inherited[1:]
		k, ok := s.findBatch(i.Stream, i.Number)
		if !ok || k.Number != i.Number {
			st.addGap(i.gap(usage.Corrupt, ""))
			continue
		}
		sent, err := s.readBatch(k)
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
		st.addGap(k.gap(usage.Corrupt, ""))
	}
	return false, nil
}

// addWaiting puts into b windows that wait, as many as fit.
func (s *Spool) addWaiting(st *stream, b *batch.Batch) error {
	var size, rows, names int
	for _, w := range s.waitingWindows(st) {
		if n := len(b.Windows); n > 0 && (n == maxWindows || size+w.Wire > s.cfg.batchSize() || rows+w.Rows > maxRows || names+w.Names > maxNames) {
			return nil
		}
		part, err := s.readWindow(w)
		if errors.Is(err, errCorrupt) {
			s.stats.Corrupt++
			continue // the next window, or the end of the stream, shows the hole
		}
		if err != nil {
			return err
		}
		size, rows, names = size+w.Wire, rows+w.Rows, names+w.Names
		if w.First > st.Batched+1 {
			st.addHole(w.wallStart())
		}
		st.Batched, st.Through = w.Last, w.wallEnd()
		b.Windows = append(b.Windows, part.Windows[0])
		addNamesAndGaps(b, part)
	}
	if !st.Live && st.Batched < st.To {
		st.addHole(s.nextWindowStart(st))
		st.Batched = st.To
	}
	return nil
}

// addHole adds the gap that windows leave which are not in the spool any more, from
// the last one that was taken.
func (st *stream) addHole(to int64) {
	from := st.Through
	if from == 0 {
		from = to
	}
	st.addGap(newGap(from, to, usage.Corrupt, ""))
}

// nextWindowStart is when the windows behind a stream's begin, or the last one ended.
func (s *Spool) nextWindowStart(st *stream) int64 {
	for i := range s.index {
		if s.index[i].First > st.To {
			return s.index[i].wallStart()
		}
	}
	return s.lastEnd
}
