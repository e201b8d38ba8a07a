package spool

import (
	"fmt"
	"path/filepath"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/x/failpoint"
)

const (
	// maxOpenStreams limits the streams with something to send.
	maxOpenStreams = 4
	// backlogAge is the age of waiting windows at which SplitBacklog splits them off.
	backlogAge = 10 * time.Minute
	// maxQuarantined limits the refused batches in quarantine; the first ones stay, as the
	// most informative ones.
	maxQuarantined = 32
	// maxDetail limits the text of a server's refusal, in bytes.
	maxDetail = 500
)

// ApplyReply applies a server's reply to an offer or a loss of a stream. If the server wants
// a batch that the spool no longer has, ApplyReply returns the loss to report, whose reply
// goes to ApplyReply too.
//
// The next batch or Maintain writes the state to disk. After a crash before that, the spool
// offers the same batch again, and the server answers that it is a duplicate.
func (s *Spool) ApplyReply(id batch.Stream, r batch.Reply) (*batch.Loss, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	st := s.findStream(id)
	if st == nil {
		return nil, fmt.Errorf("spool: stream %v: %w", id, fault.ErrNotFound)
	}
	var err error
	switch v := r.Verdict; {
	case v == batch.Clone:
		return nil, nil
	case v == batch.Conflict:
		s.log.Warn("abandoning stream: the server has another batch of this number", "stream", id, "number", st.Wanted)
		err = s.abandon(st)
	case v != batch.Accepted && v != batch.Duplicate && v != batch.OutOfOrder || r.Next == 0:
		err = fmt.Errorf("reply %q, next %d: %w", v, r.Next, fault.ErrInvalid)
	case r.Next > st.Next:
		// The server has batches that this spool has not made: the spool was restored from
		// a backup. The server would not accept new batches with these numbers.
		if !s.passAhead(st, r.Booked) {
			s.log.Warn("abandoning stream: the server is ahead", "stream", id, "number", st.Next, "next", r.Next)
			err = s.abandon(st)
		}
	default:
		return s.applyReply(st, r), nil
	}
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	return nil, nil
}

// passAhead goes on after a batch, or after missing ones, whose numbers a server knows that is
// ahead. It reports whether there is another batch to offer: the server may refuse each as another
// one. A batch that the server has not compared may be another one than it booked, and it will not
// take it: that is a gap.
func (s *Spool) passAhead(st *stream, booked bool) (more bool) {
	if k, ok := s.findOffered(st); ok {
		if k.Number > st.Wanted {
			st.Gaps = append(st.Gaps, s.lossGap(st, st.Wanted, k.Number-1, k.Start, usage.Forgotten))
			st.Wanted = k.Number
		} else {
			if !booked {
				st.addGap(k.gap(usage.Forgotten, ""))
			}
			st.Wanted++
		}
		s.dirty[st.ID] = true
	}
	_, more = s.findOffered(st)
	return more
}

func (s *Spool) applyReply(st *stream, r batch.Reply) *batch.Loss {
	before := st.Wanted
	if r.Next < before {
		s.log.Info("server went back", "stream", st.ID, "from", before, "to", r.Next)
		s.reofferLast(func(other *stream) bool { return other != st })
	}
	if r.Next != before {
		st.Wanted = r.Next
		s.dirty[st.ID] = true
		failpoint.At("spool.acked")
	}
	if r.Next == 1 && before > 1 || r.Verdict == batch.Accepted && before == 1 {
		s.reportForgotten(st)
	}
	st.MaxWanted = max(st.MaxWanted, st.Wanted)
	for len(st.Missing) > 0 && r.Verdict != batch.OutOfOrder && st.Missing[0].Number < st.Wanted {
		st.Missing = st.Missing[1:]
	}
	if r.Verdict != batch.OutOfOrder {
		return nil
	}
	why := usage.Corrupt
	if r.Next < before {
		why = usage.Forgotten
	}
	return s.findLoss(st, why)
}

// reportForgotten adds a gap for earlier streams, which the spool no longer has, if a server
// had the first batch of a stream and now lacks it: it may lack the earlier streams too.
func (s *Spool) reportForgotten(st *stream) {
	if st.MaxWanted > 1 && st.EarlierStart != 0 && st.EarlierStart < st.FirstStart {
		live := s.liveStream()
		live.addGap(newGap(st.EarlierStart, st.FirstStart, usage.Forgotten, ""))
		s.dirty[live.ID] = true
	}
}

// reofferLast makes fully acknowledged streams offer their last batch again, because a server
// that went back in one stream may have gone back in all.
func (s *Spool) reofferLast(which func(*stream) bool) {
	for _, st := range s.streams {
		if k, ok := s.findBatch(st.ID, st.Next-1); which(st) && st.Wanted == st.Next && ok && k.Number < st.Next {
			st.Wanted = k.Number
			s.dirty[st.ID] = true
		}
	}
}

// findLoss returns the loss of the missing batches from the wanted one on, or nil if the
// spool has the wanted one.
func (s *Spool) findLoss(st *stream, why usage.Reason) *batch.Loss {
	l := &batch.Loss{Stream: st.ID, From: st.Wanted, To: st.Next - 1, Hash: st.Last}
	to := st.Through
	k, ok := s.findBatch(st.ID, st.Wanted)
	if ok && k.Number > st.Wanted {
		// Batches before UncertainBefore may have been sent in another stream, which the
		// server would not notice, so they count as lost.
		k, ok = s.findBatch(st.ID, max(k.Number, st.UncertainBefore))
	}
	if ok && k.Number < st.Next {
		l.To, l.Hash, to = k.Number-1, k.Previous, k.Start
	}
	if l.To < l.From {
		return nil
	}
	l.Gap = s.lossGap(st, l.From, l.To, to, why)
	return l
}

// lossGap returns the gap of missing batches first to last: as addMissing recorded it, or
// else from the end of the previous batch to until.
func (s *Spool) lossGap(st *stream, first, last uint64, until int64, why usage.Reason) usage.Gap {
	var told []usage.Gap
	for _, m := range st.Missing {
		if m.Number >= first && m.Number <= last {
			told = append(told, m.Gap)
		}
	}
	if uint64(len(told)) <= last-first {
		from := st.FirstStart
		for _, p := range st.History {
			if p.Number < first {
				from = p.Through
			}
		}
		for _, k := range s.stored[st.ID] {
			if k.Number < first {
				from = k.Through
			}
		}
		told = append(told, newGap(min(from, until), max(from, until), why, ""))
	}
	g := told[0]
	for _, t := range told[1:] {
		if t.From.Before(g.From) {
			g.From = t.From
		}
		if t.To.After(g.To) {
			g.To = t.To
		}
	}
	return g
}

// abandon ends a stream at the wanted batch, and moves this batch and all that follow to a
// new stream.
func (s *Spool) abandon(old *stream) error {
	st, successor := old.clone(), s.newStream()
	successor.From, successor.To, successor.Live, successor.Batched = st.Batched+1, st.To, st.Live, st.Batched
	successor.Through, successor.Gaps = st.Through, st.Gaps
	for n := st.Wanted; n < st.Next; n++ {
		k, ok := s.findBatch(st.ID, n)
		if !ok || k.Number >= st.Next {
			successor.Gaps = append(successor.Gaps, s.lossGap(st, n, st.Next-1, st.Through, usage.Forgotten))
			break
		}
		if k.Number > n {
			successor.Gaps = append(successor.Gaps, s.lossGap(st, n, k.Number-1, k.Start, usage.Forgotten))
		}
		if k.Number < st.UncertainBefore {
			successor.addGap(k.gap(usage.Corrupt, ""))
		} else {
			successor.Inherited = append(successor.Inherited, inheritedBatch{st.ID, k.Number, k.extent})
		}
		if n = k.Number; n == st.Wanted {
			st.Last = k.Previous
		}
	}
	successor.Inherited = append(successor.Inherited, st.Inherited...)
	st.Live, st.To, st.Next = false, st.Batched, st.Wanted
	st.Gaps, st.Inherited, st.Missing = nil, nil, nil
	if err := s.persist([]*stream{st, successor}, nil, nil); err != nil {
		return err
	}
	if successor.Live {
		// The first rows of a stream have their Totals.
		clear(s.totals)
	}
	return nil
}

// Reject removes a batch that a server refused as invalid, and stores it in quarantine, a
// file for inspection. The next exchange reports it to the server as lost, with detail as
// the reason.
func (s *Spool) Reject(id batch.Stream, number uint64, detail string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if err := s.reject(id, number, detail); err != nil {
		return fmt.Errorf("spool: stream %v: batch %d: %w", id, number, err)
	}
	return nil
}

func (s *Spool) reject(id batch.Stream, number uint64, detail string) error {
	st := s.findStream(id)
	if st == nil {
		return fault.ErrNotFound
	}
	k, ok := s.findBatch(id, number)
	if !ok || k.Number != number || number < st.Wanted || number >= st.Next {
		return fault.ErrNotFound
	}
	sent, err := s.readBatch(k)
	if err != nil {
		return err
	}
	if err := s.quarantine(k, sent); err != nil {
		// The file is only for inspection, so its failure must not keep the batch offered.
		s.log.Warn("cannot store a refused batch in quarantine", "err", err)
	}
	if number == 1 {
		s.reportForgotten(st)
	}
	s.stats.Refused++
	s.giveUpBatch(st, k, usage.Refused, detail[:min(len(detail), maxDetail)])
	return s.flush()
}

// quarantine writes an encoded batch to its own file.
func (s *Spool) quarantine(k storedBatch, sent []byte) error {
	dir := filepath.Join(s.cfg.Dir, "aside")
	if err := s.fs.MkdirAll(dir); err != nil {
		return err
	}
	names, err := s.fs.List(dir)
	if err != nil || len(names) >= maxQuarantined {
		return err
	}
	f, err := s.fs.Create(filepath.Join(dir, fmt.Sprintf("%v-%d.batch", k.Stream, k.Number)))
	if err != nil {
		return err
	}
	err = writeSync(f, sent, 0)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// SplitBacklog starts a new live stream if windows of the current one have waited for more
// than ten minutes and fewer than four streams are open. The backlog stays in its stream and
// is sent in parallel with new windows. It reports whether it started one.
func (s *Spool) SplitBacklog(now time.Time) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, errClosed
	}
	open := 0
	for _, st := range s.streams {
		if !s.isDrained(st) {
			open++
		}
	}
	live := s.liveStream()
	own := s.waitingWindows(live)
	if open >= maxOpenStreams || len(own) == 0 || !wallTime(own[0].wallEnd()).Before(now.Add(-backlogAge)) {
		return false, nil
	}
	old := live.clone()
	old.Live, old.To = false, s.lastWindow
	if err := s.persist([]*stream{old, s.newLiveStream()}, nil, nil); err != nil {
		return false, fmt.Errorf("spool: %w", err)
	}
	clear(s.totals)
	return true, nil
}
