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
	// maxOpen is how many streams may have something to send at once.
	maxOpen = 4
	// backlog is how old what waits may be before it is set aside.
	backlog = 10 * time.Minute
	// maxAside is how many refused batches are kept for people to see: the first
	// ones, which tell most.
	maxAside = 32
	// maxDetail bounds the text of a server's refusal.
	maxDetail = 500
)

// Settle takes a server's reply to an offer of a stream, or to what it was told
// is lost. Where the server wants a batch that is not there any more, Settle
// returns what it has to be told; its reply to that goes to Settle, too.
//
// What a server has, it has: after a crash the same is offered once more and
// known. So this is made durable with the next batch, or by Tidy.
func (s *Spool) Settle(id batch.Stream, r batch.Reply) (*batch.Lost, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	st := s.stream(id)
	if st == nil {
		return nil, fmt.Errorf("spool: stream %v: %w", id, fault.ErrNotFound)
	}
	var err error
	switch v := r.Verdict; {
	case v == batch.Clone:
		return nil, nil
	case v == batch.Conflict:
		s.log.Warn("stream is abandoned: the server has another content", "stream", id, "number", st.Want)
		err = s.abandon(st)
	case v != batch.Taken && v != batch.Known && v != batch.Behind || r.Next == 0:
		err = fmt.Errorf("reply %q, next %d: %w", v, r.Next, fault.ErrInvalid)
	case r.Next > st.Next:
		// The server has batches that this spool has never made: it was itself
		// restored from a backup. What it would number so is not taken.
		s.log.Warn("stream is abandoned: the server is ahead", "stream", id, "number", st.Next, "next", r.Next)
		st.Want = st.Next
		s.dirty[id] = true
		err = s.abandon(st)
	default:
		return s.settle(st, r), nil
	}
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	return nil, nil
}

func (s *Spool) settle(st *stream, r batch.Reply) *batch.Lost {
	before := st.Want
	if r.Next < before {
		s.log.Info("server went back", "stream", st.ID, "from", before, "to", r.Next)
		s.probe(func(other *stream) bool { return other != st })
	}
	if r.Next != before {
		st.Want = r.Next
		s.dirty[st.ID] = true
		failpoint.At("spool.acked")
	}
	if r.Next == 1 && before > 1 || r.Verdict == batch.Taken && before == 1 {
		s.unknown(st)
	}
	st.Had = max(st.Had, st.Want)
	for len(st.Missing) > 0 && r.Verdict != batch.Behind && st.Missing[0].Number < st.Want {
		st.Missing = st.Missing[1:]
	}
	if r.Verdict != batch.Behind {
		return nil
	}
	why := usage.Corrupt
	if r.Next < before {
		why = usage.Forgotten
	}
	return s.lost(st, why)
}

// unknown tells, where a server had the first batch of a stream and now lacks it,
// that it may lack the streams before, of which nothing is left.
func (s *Spool) unknown(st *stream) {
	if st.Had > 1 && st.Before != 0 && st.Before < st.Began {
		live := s.live()
		live.lose(gap(st.Before, st.Began, usage.Forgotten, ""))
		s.dirty[live.ID] = true
	}
}

// probe has streams that wait for nothing offer their last batch again. A server
// that went back in one stream may have gone back in all.
func (s *Spool) probe(which func(*stream) bool) {
	for _, st := range s.streams {
		if k, ok := s.find(st.ID, st.Next-1); which(st) && st.Want == st.Next && ok && k.Number < st.Next {
			st.Want = k.Number
			s.dirty[st.ID] = true
		}
	}
}

// lost says which batches from the one that is wanted on are not there, and why;
// nil where it is there.
func (s *Spool) lost(st *stream, why usage.Reason) *batch.Lost {
	l := &batch.Lost{Stream: st.ID, From: st.Want, To: st.Next - 1, Hash: st.Last}
	to := st.Through
	k, ok := s.find(st.ID, st.Want)
	if ok && k.Number > st.Want && k.Number < st.Doubt {
		// The server would take what follows, and cannot say that it went into
		// another stream: that shows in the batch which it wants.
		k, ok = s.find(st.ID, st.Doubt)
	}
	if ok && k.Number < st.Next {
		l.To, l.Hash, to = k.Number-1, k.Previous, k.Start
	}
	if l.To < l.From {
		return nil
	}
	l.Gap = s.hole(st, l.From, l.To, to, why)
	return l
}

// hole is the gap that batches leave which are not there any more: as it was
// noted when they were given up, else from the end of the one before until a
// time.
func (s *Spool) hole(st *stream, first, last uint64, until int64, why usage.Reason) usage.Gap {
	var told []usage.Gap
	for _, m := range st.Missing {
		if m.Number >= first && m.Number <= last {
			told = append(told, m.Gap)
		}
	}
	if uint64(len(told)) <= last-first {
		from := st.Began
		for _, p := range st.Past {
			if p.Number < first {
				from = p.Through
			}
		}
		for _, k := range s.kept[st.ID] {
			if k.Number < first {
				from = k.Through
			}
		}
		told = append(told, gap(min(from, until), max(from, until), why, ""))
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

// abandon ends a stream at the batch that is wanted. That one and what follows
// goes into a new stream.
func (s *Spool) abandon(old *stream) error {
	st, heir := old.copy(), s.newStream()
	heir.From, heir.To, heir.Live, heir.Taken = st.Taken+1, st.To, st.Live, st.Taken
	heir.Through, heir.Gaps = st.Through, st.Gaps
	for n := st.Want; n < st.Next; n++ {
		k, ok := s.find(st.ID, n)
		if !ok || k.Number >= st.Next {
			heir.Gaps = append(heir.Gaps, s.hole(st, n, st.Next-1, st.Through, usage.Forgotten))
			break
		}
		if k.Number > n {
			heir.Gaps = append(heir.Gaps, s.hole(st, n, k.Number-1, k.Start, usage.Forgotten))
		}
		if k.Number < st.Doubt {
			heir.lose(k.gap(usage.Corrupt, ""))
		} else {
			heir.Inherit = append(heir.Inherit, piece{st.ID, k.Number, k.extent})
		}
		if n = k.Number; n == st.Want {
			st.Last = k.Previous
		}
	}
	heir.Inherit = append(heir.Inherit, st.Inherit...)
	st.Live, st.To, st.Next = false, st.Taken, st.Want
	st.Gaps, st.Inherit, st.Missing = nil, nil, nil
	if err := s.put([]*stream{st, heir}, nil, nil); err != nil {
		return err
	}
	if heir.Live {
		// The Totals of a stream begin with it.
		clear(s.totals)
	}
	return nil
}

// Refuse takes a server's word that a batch of a stream is invalid. It is set
// aside, in a file that a person can look at, and never offered again: with the
// next offer the server is told that it is lost, and why.
func (s *Spool) Refuse(id batch.Stream, number uint64, detail string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if err := s.refuse(id, number, detail); err != nil {
		return fmt.Errorf("spool: stream %v: batch %d: %w", id, number, err)
	}
	return nil
}

func (s *Spool) refuse(id batch.Stream, number uint64, detail string) error {
	st := s.stream(id)
	if st == nil {
		return fault.ErrNotFound
	}
	k, ok := s.find(id, number)
	if !ok || k.Number != number || number < st.Want || number >= st.Next {
		return fault.ErrNotFound
	}
	sent, err := s.sent(k)
	if err != nil {
		return err
	}
	if err := s.setAside(k, sent); err != nil {
		// It is for people only, and no reason to offer the batch for ever.
		s.log.Warn("refused batch is not kept", "err", err)
	}
	if number == 1 {
		s.unknown(st)
	}
	s.stats.Refused++
	s.giveUp(st, k, usage.Refused, detail[:min(len(detail), maxDetail)])
	return s.flush()
}

// setAside writes a batch's bytes into a file of its own.
func (s *Spool) setAside(k kept, sent []byte) error {
	dir := filepath.Join(s.cfg.Dir, "aside")
	if err := s.fs.MkdirAll(dir); err != nil {
		return err
	}
	names, err := s.fs.List(dir)
	if err != nil || len(names) >= maxAside {
		return err
	}
	f, err := s.fs.Create(filepath.Join(dir, fmt.Sprintf("%v-%d.batch", k.Stream, k.Number)))
	if err != nil {
		return err
	}
	err = write(f, sent, 0)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// SetAside opens a new live stream where windows of the present one have waited
// for more than ten minutes and fewer than four streams are open. What waits
// keeps its stream, and is sent beside what comes. It reports whether it did.
func (s *Spool) SetAside(now time.Time) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, errClosed
	}
	open := 0
	for _, st := range s.streams {
		if !s.drained(st) {
			open++
		}
	}
	live := s.live()
	own := s.waiting(live)
	if open >= maxOpen || len(own) == 0 || !wall(own[0].wallEnd()).Before(now.Add(-backlog)) {
		return false, nil
	}
	old := live.copy()
	old.Live, old.To = false, s.top
	if err := s.put([]*stream{old, s.newLive()}, nil, nil); err != nil {
		return false, fmt.Errorf("spool: %w", err)
	}
	clear(s.totals)
	return true, nil
}
