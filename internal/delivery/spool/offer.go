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

// Limits of one batch in addition to Config.BatchBytes; a single window may exceed them. A
// decoded row takes about 550 bytes.
const (
	maxWindows = 360
	maxRows    = 10_000 // whose connections fit into a batch too
	maxNames   = 5_000
)

// Status is the state of a stream.
type Status struct {
	Stream  batch.Stream
	Windows int       // windows in no batch yet
	Bytes   int64     // of these windows on disk
	Oldest  time.Time // end of the oldest window that the server may lack, or zero
	Next    uint64    // number of the batch to offer next
	Live    bool      // new windows go to this stream
}

// Streams returns the streams with something to send, sorted by the age of their windows,
// and the live one last.
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
		if k, ok := s.findOffered(st); ok {
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

// An Offer is a batch to send.
type Offer struct {
	Stream  batch.Stream
	Number  uint64
	Hash    batch.Hash
	Bytes   []byte
	Through time.Time   // end of its time: usually the end of its last window
	Format  wire.Format // format that the server has to read
}

// NextOffer returns the batch that a stream has to offer: the unacknowledged one that was
// offered before, or else a new one with waiting windows. ok is false if there is nothing to
// send. The error wraps fault.ErrNotFound if the stream does not exist.
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

// reoffer offers the batch that the server wants, or the next stored one: the server then
// answers that it is out of order, and ApplyReply returns the loss to report.
func (s *Spool) reoffer(st *stream) (Offer, bool, error) {
	for {
		k, ok := s.findOffered(st)
		if !ok {
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

// readBatch reads the encoded batch.
func (s *Spool) readBatch(k storedBatch) ([]byte, error) {
	payload, err := s.batches.read(k.location)
	if err != nil {
		return nil, err
	}
	var head stateHead
	return unpack(payload, &head)
}

// giveUpBatch removes a batch that will not be sent and records its gap.
func (s *Spool) giveUpBatch(st *stream, k storedBatch, why usage.Reason, detail string) {
	s.removeBatch(k.Stream, k.Number)
	st.addMissing(k.Number, k.gap(why, detail))
	s.dirty[st.ID] = true
}

// addMissing records a batch that was given up. A batch that recovery found again may be
// given up twice.
func (st *stream) addMissing(number uint64, g usage.Gap) {
	if !slices.ContainsFunc(st.Missing, func(m missingBatch) bool { return m.Number == number }) {
		st.Missing = append(st.Missing, missingBatch{number, g})
	}
}

// compose makes the next batch of a stream from inherited batches or waiting windows and
// writes it to disk.
func (s *Spool) compose(old *stream) (Offer, bool, error) {
	if err := s.makeRoom(s.estimateBatchSize(old)); err != nil {
		return Offer{}, false, err
	}
	// makeRoom may have given up the stream's windows.
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
	fromMemory := false
	if !inherited {
		if fromMemory, err = s.addWaiting(st, b); err != nil {
			return Offer{}, false, err
		}
	}
	b.Gaps = append(b.Gaps, st.Gaps...)
	st.Gaps = nil
	if len(b.Windows) == 0 && len(b.Gaps) == 0 {
		return Offer{}, false, s.handOverLosses(st)
	}
	head.extent = extentOf(b, st.Through)
	sent, format := s.latest.sent, s.latest.format
	if !fromMemory {
		format = wire.FormatOf(b)
		if sent, err = wire.Encode(nil, b); err != nil {
			return Offer{}, false, err
		}
	}
	if !wire.BaseFormat().CanRead(format) {
		head.Format = &format
	}
	if st.FirstStart == 0 {
		st.FirstStart = head.startWithGaps()
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

// handOverLosses adds the gap of batches that a finished stream lacks to the live stream: the
// finished one sends nothing more by which the server could notice the loss.
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

// estimateBatchSize estimates the size of a stream's next batch on disk, with the state of the stream.
func (s *Spool) estimateBatchSize(st *stream) int64 {
	const state = 4 << 10
	var size int
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

// addInherited copies the next batch that the stream inherited from an abandoned one to b,
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

// addWaiting adds as many waiting windows to b as fit. If the latest window is all that waits, and b is the
// batch as which it was encoded, it comes from memory, and b has it without its rows.
func (s *Spool) addWaiting(st *stream, b *batch.Batch) (fromMemory bool, err error) {
	var size, rows, names, volumes int
	waiting := s.waitingWindows(st)
	fromMemory = len(waiting) == 1 && waiting[0].First == s.lastWindow && s.lastWindow == st.Batched+1 && s.latest.isNext(st)
	for _, w := range waiting {
		if n := len(b.Windows); n > 0 && (n == maxWindows || size+w.Wire > s.cfg.batchSize() || rows+w.Rows > maxRows || names+w.Names > maxNames || volumes+w.Volumes > wire.Default().Volumes) {
			return false, nil
		}
		part, err := &s.latest.batch, error(nil)
		if !fromMemory {
			part, err = s.readWindow(w)
		}
		if errors.Is(err, errCorrupt) {
			s.stats.Corrupt++
			continue // addHole covers it at the next window or the end of the stream
		}
		if err != nil {
			return false, err
		}
		size, rows, names, volumes = size+w.Wire, rows+w.Rows, names+w.Names, volumes+w.Volumes
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
	return fromMemory, nil
}

// addHole adds a gap for lost windows, from the end of the last batched window to the time
// to.
func (st *stream) addHole(to int64) {
	st.addGap(newGap(st.Through, to, usage.Corrupt, ""))
}

// nextWindowStart returns the start of the first window after those of a stream, or the end
// of the last window.
func (s *Spool) nextWindowStart(st *stream) int64 {
	for i := range s.index {
		if s.index[i].First > st.To {
			return s.index[i].wallStart()
		}
	}
	return s.lastEnd
}
