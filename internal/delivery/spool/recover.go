package spool

import (
	"math"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// A recovery rebuilds the state of a spool from the records of its logs.
type recovery struct {
	s   *Spool
	top uint64 // highest window number in a record of the log of batches
	// uncertain has the streams that a lost record may have changed, with the last
	// window at that time.
	uncertain map[batch.Stream]uint64
	// lastSerial has the serial of the last record with each stream.
	lastSerial       map[batch.Stream]uint64
	lastWindow       uint64 // number of the last window of the log of windows
	lostFrom         uint64 // first window after a record that is lost at the end of the log of batches
	recordLost       bool   // a record of the log of batches is lost
	checkpointBroken bool   // a part of the checkpoint is lost
	corrupt          int    // records with a valid checksum but invalid content
}

// readState processes a record of the log of batches.
func (r *recovery) readState(p location, kind byte, payload []byte) {
	s := r.s
	var head stateHead
	if _, err := unpack(payload, &head); err != nil || kind != kindState || head.Serial <= s.serial && !head.All {
		r.corrupt++
		return
	}
	if s.serial > 0 && head.Serial > s.serial+1 {
		r.recordLost = true
		for _, st := range s.streams {
			if _, ok := r.uncertain[st.ID]; !ok {
				r.uncertain[st.ID] = head.Top
			}
		}
	}
	s.serial = head.Serial
	r.top = max(r.top, head.Top)
	changed := make([]*stream, len(head.Streams))
	for i := range head.Streams {
		changed[i] = &head.Streams[i]
		r.lastSerial[changed[i].ID] = head.Serial
		delete(r.uncertain, changed[i].ID)
	}
	if head.All {
		s.streams = nil
		clear(r.uncertain)
	}
	s.streams = replaceStreams(s.streams, changed)
	if b := head.Batch; b != nil {
		s.addStored(storedBatch{batchHead: *b, location: p})
	}
	s.markAcked(head.At)
}

// readWindow processes a record of the log of windows.
func (r *recovery) readWindow(p location, kind byte, payload []byte) {
	if kind == kindNote {
		r.readNote(p, payload)
		return
	}
	s := r.s
	var head windowRecord
	body, err := unpack(payload, &head)
	if err != nil || kind != kindWindow || head.Wire < 0 || head.Wire > len(body) || head.First == 0 || head.Last < head.First {
		r.corrupt++
		return
	}
	switch checkpoint := len(body) > head.Wire || len(head.Text) > 0; {
	case head.Full:
		s.checkpoints, r.checkpointBroken = nil, false
		if checkpoint {
			s.checkpoints = []location{p}
		}
	case head.First != r.lastWindow+1:
		// A part of the checkpoint is lost, so later parts are useless.
		s.checkpoints, r.checkpointBroken = nil, true
	case checkpoint && !r.checkpointBroken:
		s.checkpoints = append(s.checkpoints, p)
	}
	if head.Serial > s.serial && r.lostFrom == 0 {
		r.lostFrom, r.recordLost = head.First, true
	}
	// A repeated number is of a write that failed and was retried.
	for len(s.index) > 0 && s.index[len(s.index)-1].Last >= head.First {
		s.index = s.index[:len(s.index)-1]
	}
	r.lastWindow, s.lastEnd, s.notes = head.Last, head.wallEnd(), nil
	s.index = append(s.index, window{head.windowHead, p})
}

// readNote processes a note in the log of windows. One that does not follow the last window is
// useless, as a part of the checkpoint before it is lost.
func (r *recovery) readNote(p location, payload []byte) {
	s := r.s
	var head noteHead
	if _, err := unpack(payload, &head); err != nil {
		r.corrupt++
		return
	}
	switch {
	case head.Full:
		s.checkpoints, s.notes, r.checkpointBroken = nil, []location{p}, false
		r.lastWindow = max(r.lastWindow, head.After)
	case head.After == r.lastWindow && !r.checkpointBroken:
		s.notes = append(s.notes, p)
	}
}

// reconcile finishes the recovery after all records were read. It ensures that one live
// stream exists, and gives up windows that may have been in a batch whose record is lost. Each
// log shows lost records of the other one.
func (r *recovery) reconcile() error {
	s := r.s
	if r.top > r.lastWindow {
		// The last windows are lost, and the checkpoint is older. With it the agent would
		// book their use again, although it may have been sent.
		s.checkpoints, s.notes = nil, nil
	}
	s.lastWindow = max(r.top, r.lastWindow)
	r.truncateStreams()
	for _, st := range s.streams {
		if r.lostFrom > 0 {
			r.uncertain[st.ID] = max(r.uncertain[st.ID], r.lostFrom-1)
		}
		s.lastWindow = max(s.lastWindow, st.Batched, st.To, st.From-1)
	}
	var changed []*stream
	if n := len(s.streams); n == 0 || !s.streams[n-1].Live {
		r.recordLost = r.recordLost || n > 0 // windows without any stream show it by their serials
		changed = append(changed, s.newLiveStream())
	}
	orphans := r.findOrphans()
	for _, st := range s.streams {
		top, ok := r.uncertain[st.ID]
		if !ok {
			continue
		}
		c := st.clone()
		c.UncertainBefore = c.Next
		if changed = append(changed, c); top > c.Batched || len(c.Inherited)+len(c.Gaps) > 0 {
			changed = append(changed, r.splitUncertain(c, max(top, c.Batched)))
		}
	}
	if len(orphans) > 0 {
		after := replaceStreams(s.streams, changed)
		live := after[len(after)-1].clone()
		for _, g := range orphans {
			live.addGap(g)
		}
		changed = replaceStreams(changed, []*stream{live})
	}
	if len(changed) > 0 {
		if err := s.persist(changed, nil, nil); err != nil {
			return err
		}
	}
	s.markAcked(time.Now().UnixNano())
	s.dropFinished()
	s.prune()
	for id := range s.stored {
		if s.findStream(id) == nil && !slices.ContainsFunc(s.stored[id], func(k storedBatch) bool { return s.isNeeded(id, k.Number) }) {
			delete(s.stored, id)
		}
	}
	return nil
}

// truncateStreams removes windows from streams that a lost record moved to another stream,
// as a later record of the other stream shows. Such windows are always the end of a stream,
// which is not live then.
func (r *recovery) truncateStreams() {
	s := r.s
	for _, st := range s.streams {
		for _, other := range s.streams {
			// A later record shows that other has windows after those batched in st.
			later := r.lastSerial[other.ID] > r.lastSerial[st.ID] && (other.Live || other.To > st.Batched)
			if later && (st.Live || other.From <= st.To) {
				st.Live, st.To = false, max(st.Batched, other.From-1)
			}
		}
	}
	s.streams = replaceStreams(s.streams, nil)
}

// findOrphans returns gaps for windows and batches that belong to no stream because a record
// is lost. They may or may not have been sent.
func (r *recovery) findOrphans() (gaps []usage.Gap) {
	if !r.recordLost {
		return nil
	}
	s := r.s
	for _, w := range s.index {
		if !slices.ContainsFunc(s.streams, func(st *stream) bool {
			return w.First >= st.From && (st.Live || w.First <= max(st.To, st.Batched))
		}) {
			from, to := r.gapAround(w)
			gaps = addGap(gaps, newGap(from, to, usage.Corrupt, ""))
		}
	}
	for id, list := range s.stored {
		st := s.findStream(id)
		for _, k := range list {
			if (st == nil || k.Number >= st.Next) && !s.isNeeded(id, k.Number) {
				gaps = addGap(gaps, k.gap(usage.Corrupt, ""))
			}
		}
	}
	return gaps
}

// gapAround returns the time of a window and of the lost windows next to it, whose stream is
// unknown.
func (r *recovery) gapAround(w window) (from, to int64) {
	s := r.s
	from, to = w.startWithGaps(), w.wallEnd()
	before, after := uint64(0), uint64(math.MaxUint64)
	ends := func(number uint64, at int64) {
		if number < w.First && number > before && at != 0 {
			before, from = number, min(w.startWithGaps(), at)
		}
	}
	begins := func(number uint64, at int64) {
		if number > w.Last && number < after && at != 0 {
			after, to = number, max(w.wallEnd(), at)
		}
	}
	for i := range s.index {
		ends(s.index[i].Last, s.index[i].wallEnd())
		begins(s.index[i].First, s.index[i].wallStart())
	}
	for _, st := range s.streams {
		ends(st.Batched, st.Through)
		if st.Batched < st.From {
			begins(st.From, st.Through)
		} else {
			begins(st.From, st.FirstStart)
		}
	}
	if before+1 == w.First {
		from = w.startWithGaps()
	}
	if after == w.Last+1 {
		to = w.wallEnd()
	}
	return from, to
}

// splitUncertain ends a stream of which a record, possibly of a batch, is lost. It gives up
// the windows through top and the inherited batches, because they may have been in that batch
// and a server may have them. It returns a new stream with the later windows.
func (r *recovery) splitUncertain(st *stream, top uint64) *stream {
	s := r.s
	if !st.Live {
		top = min(top, st.To)
	}
	from, to, last := st.Through, st.Through, st.Batched
	for _, w := range s.index {
		if st.owns(w.First) && w.First <= top {
			if from == 0 {
				from = w.startWithGaps()
			}
			to, last = w.wallEnd(), w.Last
		}
	}
	if i := slices.IndexFunc(s.index, func(w window) bool { return w.First > top }); last < top && i >= 0 {
		to = s.index[i].wallStart()
	}
	successor := s.newStream()
	successor.From, successor.Batched, successor.To, successor.Live = top+1, top, st.To, st.Live
	successor.Through, successor.Gaps = to, st.Gaps
	if to > from {
		successor.addGap(newGap(from, to, usage.Corrupt, ""))
	}
	for _, i := range st.Inherited {
		successor.addGap(i.gap(usage.Corrupt, ""))
	}
	st.Live, st.To, st.Gaps, st.Inherited = false, st.Batched, nil, nil
	return successor
}
