package spool

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"mete.dev/mete/internal/model/usage"
)

// reofferInterval is the interval at which the last batch of a finished but stored stream is
// offered again: otherwise a server restored from a backup would not notice that it lacks
// it.
const reofferInterval = time.Hour

// Maintain writes acknowledgements to disk, merges old windows, removes expired batches and
// keeps the spool within its limit. The caller calls it about every minute.
func (s *Spool) Maintain(now time.Time) error {
	err := s.repeat(func() (bool, error) {
		if now.Sub(s.lastReoffer) >= reofferInterval {
			s.reofferLast(func(st *stream) bool { return !st.Live })
			s.lastReoffer = now
		}
		return false, errors.Join(s.flush(), s.expire(now))
	})
	for _, c := range slices.Backward(s.cfg.MergeRules) {
		before := now.Add(-c.After).UnixNano()
		// Release the lock between merges, because each takes long.
		err = errors.Join(err, s.repeat(func() (bool, error) { return s.merge(c.Span, before) }))
	}
	// Merge early rather than drop windows later.
	err = errors.Join(err, s.repeat(func() (bool, error) {
		if s.bytes() < s.cfg.MaxBytes*3/4 {
			return false, nil
		}
		return s.mergeEarly()
	}), s.repeat(func() (bool, error) {
		s.prune()
		return false, s.makeRoom(0)
	}))
	if err != nil {
		return fmt.Errorf("spool: tidy: %w", err)
	}
	return nil
}

// repeat calls f with s.mu held until it returns false or an error, and releases the lock
// between calls.
func (s *Spool) repeat(f func() (bool, error)) error {
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return errClosed
		}
		more, err := f()
		s.mu.Unlock()
		if err != nil || !more {
			return err
		}
	}
}

// makeRoom frees space for need more bytes within the limit of the spool.
func (s *Spool) makeRoom(need int64) error {
	for s.bytes()+need > s.cfg.MaxBytes {
		freed, err := s.freeSpace()
		if err != nil || !freed {
			return err
		}
	}
	return nil
}

// freeSpace frees space in the way that loses least, and reports whether it freed any.
func (s *Spool) freeSpace() (bool, error) {
	for _, free := range [...]func() (bool, error){s.evict, s.mergeEarly, s.dropWindows, s.dropBatches} {
		if done, err := free(); done || err != nil {
			return done, err
		}
	}
	return false, nil
}

// batchesIn returns the batches in a segment: those that a server may still lack, and the
// others.
func (s *Spool) batchesIn(seg *segment) (needed, others []storedBatch) {
	for _, list := range s.stored {
		for _, k := range list {
			switch {
			case k.location.seg != seg:
			case k.acked == 0 || s.isNeeded(k.Stream, k.Number):
				needed = append(needed, k)
			default:
				others = append(others, k)
			}
		}
	}
	return needed, others
}

// removeSegment removes the first segment of batches with its content.
func (s *Spool) removeSegment(seg *segment, in ...storedBatch) error {
	for _, k := range in {
		s.removeBatch(k.Stream, k.Number)
	}
	streams := len(s.streams)
	if s.dropFinished(); len(s.streams) < streams {
		// Write EarlierStart of the dropped streams before the removal. Otherwise nothing is written: a full disk
		// would keep the segment.
		if err := s.flush(); err != nil {
			return err
		}
	}
	return s.batches.remove(seg)
}

// expire removes batches that a server acknowledged longer than Config.Retention ago.
func (s *Spool) expire(now time.Time) error {
	before := now.Add(-s.cfg.Retention).UnixNano()
	for len(s.batches.list) > 1 {
		seg := s.batches.list[0]
		needed, others := s.batchesIn(seg)
		if len(needed) > 0 || slices.ContainsFunc(others, func(k storedBatch) bool { return k.acked > before }) {
			return nil
		}
		if err := s.removeSegment(seg, others...); err != nil {
			return err
		}
	}
	return nil
}

// evict removes the oldest segment of acknowledged batches. It moves unacknowledged ones in
// it to the end of the log if they are at most half of it.
func (s *Spool) evict() (bool, error) {
	if len(s.batches.list) < 2 {
		return false, nil
	}
	seg := s.batches.list[0]
	needed, others := s.batchesIn(seg)
	var size int64
	for _, k := range needed {
		size += int64(k.location.size)
	}
	if size*2 > seg.size {
		return false, nil
	}
	for _, k := range needed {
		sent, err := s.readBatch(k)
		if errors.Is(err, errCorrupt) {
			continue // reoffer reports the loss to the server
		}
		if err != nil {
			return false, err
		}
		if err := s.persist(nil, &k.batchHead, sent); err != nil {
			return false, err
		}
	}
	s.stats.Evicted += int64(len(others))
	needed, others = s.batchesIn(seg)
	return true, s.removeSegment(seg, append(needed, others...)...)
}

// mergeEarly merges windows before their time.
func (s *Spool) mergeEarly() (bool, error) {
	for _, c := range s.cfg.MergeRules {
		if done, err := s.merge(c.Span, maxWallTime); done || err != nil {
			return done, err
		}
	}
	return false, nil
}

// dropWindows drops the oldest segment of windows and records the gaps.
func (s *Spool) dropWindows() (bool, error) {
	if len(s.index) == 0 || s.index[0].location.seg == s.windows.last() {
		return false, nil
	}
	seg := s.index[0].location.seg
	var changed []*stream
	dropped := 0
	for _, w := range s.index {
		if w.location.seg != seg {
			break
		}
		own := s.findOwner(w.First)
		i := slices.IndexFunc(changed, func(st *stream) bool { return st.ID == own.ID })
		if i < 0 {
			i = len(changed)
			changed = append(changed, own.clone())
		}
		st := changed[i]
		if w.First > st.Batched+1 {
			st.addHole(w.wallStart())
		}
		st.addGap(newGap(w.startWithGaps(), w.wallEnd(), usage.Overflow, ""))
		st.Batched, st.Through = w.Last, w.wallEnd()
		dropped++
	}
	if err := s.persist(changed, nil, nil); err != nil {
		return false, err
	}
	s.log.Warn("spool is full: dropping windows", "windows", dropped)
	s.stats.Dropped += int64(dropped)
	s.prune()
	return true, nil
}

// dropBatches drops the oldest segment of batches, although a server lacks them, and records
// the gaps.
func (s *Spool) dropBatches() (bool, error) {
	if len(s.batches.list) < 2 {
		return false, nil
	}
	seg := s.batches.list[0]
	needed, others := s.batchesIn(seg)
	var changed []*stream
	for _, old := range s.streams {
		st := old.clone()
		for _, k := range needed {
			st.giveUpBatch(k)
		}
		changed = append(changed, st)
	}
	if err := s.persist(changed, nil, nil); err != nil {
		return false, err
	}
	s.log.Warn("spool is full: dropping batches", "batches", len(needed))
	s.stats.Evicted += int64(len(needed) + len(others))
	return true, s.removeSegment(seg, append(needed, others...)...)
}

// giveUpBatch records the gap of a dropped batch that the stream had to send.
func (st *stream) giveUpBatch(k storedBatch) {
	lost := k.gap(usage.Overflow, "")
	if k.Stream == st.ID && k.Number >= st.Wanted && k.Number < st.Next {
		st.addMissing(k.Number, lost)
	}
	st.Inherited = slices.DeleteFunc(st.Inherited, func(i inheritedBatch) bool {
		given := i.Stream == k.Stream && i.Number == k.Number
		if given {
			st.addGap(lost)
		}
		return given
	})
}
