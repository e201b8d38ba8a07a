package spool

import (
	"math"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// A recovery puts a spool together from the records of its logs.
type recovery struct {
	s   *Spool
	top uint64 // the highest that a record of the log of batches knows
	// uncertain are the streams that a lost record may have changed, and the
	// last window that there was then.
	uncertain map[batch.Stream]uint64
	// told is the serial of the last record in which a stream stands.
	told    map[batch.Stream]uint64
	last    uint64 // number of the last window of the log of windows
	since   uint64 // first window that was appended after a record that is lost at the end of the log of batches
	hole    bool   // a record of the log of batches is lost
	broken  bool   // a part of the checkpoint is lost
	corrupt int    // records that are whole and yet make no sense
}

// state takes a record of the log of batches.
func (r *recovery) state(p place, kind byte, payload []byte) {
	s := r.s
	var head stateHead
	if _, err := unpack(payload, &head); err != nil || kind != kindState || head.Serial <= s.serial && !head.All {
		r.corrupt++
		return
	}
	if s.serial > 0 && head.Serial > s.serial+1 {
		r.hole = true
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
		r.told[changed[i].ID] = head.Serial
		delete(r.uncertain, changed[i].ID)
	}
	if head.All {
		s.streams = nil
		clear(r.uncertain)
	}
	s.streams = with(s.streams, changed)
	if b := head.Batch; b != nil {
		s.keep(kept{batchHead: *b, place: p})
	}
	s.note(head.At)
}

// window takes a record of the log of windows.
func (r *recovery) window(p place, kind byte, payload []byte) {
	s := r.s
	var head windowHead
	body, err := unpack(payload, &head)
	if err != nil || kind != kindWindow || head.Wire < 0 || head.Wire > len(body) || head.First == 0 || head.Last < head.First {
		r.corrupt++
		return
	}
	switch checkpoint := len(body) > head.Wire; {
	case head.Full:
		s.checkpoints, r.broken = nil, false
		if checkpoint {
			s.checkpoints = []place{p}
		}
	case head.First != r.last+1:
		// What changed in between is not known, so what changed since is of no use.
		s.checkpoints, r.broken = nil, true
	case checkpoint && !r.broken:
		s.checkpoints = append(s.checkpoints, p)
	}
	if head.Serial > s.serial && r.since == 0 {
		r.since, r.hole = head.First, true
	}
	// A number that stands twice is of a write that failed and was done again.
	for len(s.index) > 0 && s.index[len(s.index)-1].Last >= head.First {
		s.index = s.index[:len(s.index)-1]
	}
	r.last, s.end = head.Last, head.wallEnd()
	s.index = append(s.index, window{head, p})
}

// resolve ends the recovery when all records were read: there is one live
// stream, and of each it is certain what was in its batches. The records of the
// two logs tell on each other where one is lost.
func (r *recovery) resolve() error {
	s := r.s
	if r.top > r.last {
		// The last windows are lost, and the checkpoint is of one before them. It
		// would have their use booked again, although it may have been sent.
		s.checkpoints = nil
	}
	s.top = max(r.top, r.last)
	r.clip()
	for _, st := range s.streams {
		if r.since > 0 {
			r.uncertain[st.ID] = max(r.uncertain[st.ID], r.since-1)
		}
		s.top = max(s.top, st.Taken, st.To, st.From-1)
	}
	var changed []*stream
	if n := len(s.streams); n == 0 || !s.streams[n-1].Live {
		r.hole = r.hole || n > 0 || r.last > 0
		changed = append(changed, s.newLive())
	}
	orphans := r.orphans()
	for _, st := range s.streams {
		top, ok := r.uncertain[st.ID]
		if !ok {
			continue
		}
		c := st.copy()
		c.Doubt = c.Next
		if changed = append(changed, c); top > c.Taken || len(c.Inherit)+len(c.Gaps) > 0 {
			changed = append(changed, r.doubt(c, max(top, c.Taken)))
		}
	}
	if len(orphans) > 0 {
		after := with(s.streams, changed)
		live := after[len(after)-1].copy()
		for _, g := range orphans {
			live.lose(g)
		}
		changed = with(changed, []*stream{live})
	}
	if len(changed) > 0 {
		if err := s.put(changed, nil, nil); err != nil {
			return err
		}
	}
	s.note(time.Now().UnixNano())
	s.forget()
	s.prune()
	for id := range s.kept {
		if s.stream(id) == nil && !slices.ContainsFunc(s.kept[id], func(k kept) bool { return s.needed(id, k.Number) }) {
			delete(s.kept, id)
		}
	}
	return nil
}

// clip takes from streams the windows that went to another one by a record that
// is lost: what a later record says of the other one holds. It is always the end
// of a stream that goes, and with it that it is live.
func (r *recovery) clip() {
	s := r.s
	for _, st := range s.streams {
		for _, other := range s.streams {
			// As long as it took windows before, it did not have those of the other one.
			later := r.told[other.ID] > r.told[st.ID] && (other.Live || other.To > st.Taken)
			if later && (st.Live || other.From <= st.To) {
				st.Live, st.To = false, max(st.Taken, other.From-1)
			}
		}
	}
	s.streams = with(s.streams, nil)
}

// orphans are gaps for windows and batches that no stream has, where a record of
// one is lost. Nobody knows which of them were sent.
func (r *recovery) orphans() (gaps []usage.Gap) {
	if !r.hole {
		return nil
	}
	s := r.s
	for _, w := range s.index {
		if !slices.ContainsFunc(s.streams, func(st *stream) bool {
			return w.First >= st.From && (st.Live || w.First <= max(st.To, st.Taken))
		}) {
			from, to := r.around(w)
			gaps = addGap(gaps, gap(from, to, usage.Corrupt, ""))
		}
	}
	for id, list := range s.kept {
		st := s.stream(id)
		for _, k := range list {
			if (st == nil || k.Number >= st.Next) && !s.needed(id, k.Number) {
				gaps = addGap(gaps, k.gap(usage.Corrupt, ""))
			}
		}
	}
	return gaps
}

// around is the time of a window, and of those at its sides that are lost: the
// stream that would tell of them is not known.
func (r *recovery) around(w window) (from, to int64) {
	s := r.s
	from, to = w.since(), w.wallEnd()
	before, after := uint64(0), uint64(math.MaxUint64)
	ends := func(number uint64, at int64) {
		if number < w.First && number > before && at != 0 {
			before, from = number, min(w.since(), at)
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
		ends(st.Taken, st.Through)
		if st.Taken < st.From {
			begins(st.From, st.Through)
		} else {
			begins(st.From, st.Began)
		}
	}
	if before+1 == w.First {
		from = w.since()
	}
	if after == w.Last+1 {
		to = w.wallEnd()
	}
	return from, to
}

// doubt ends a stream of which a record is lost that may have been of a batch.
// Its windows through top, or what it inherited, may have been in that batch: they
// are given up, as a server may have them. What came later goes into the stream that it returns.
func (r *recovery) doubt(st *stream, top uint64) *stream {
	s := r.s
	if !st.Live {
		top = min(top, st.To)
	}
	from, to, last := st.Through, st.Through, st.Taken
	for _, w := range s.index {
		if st.has(w.First) && w.First <= top {
			if from == 0 {
				from = w.since()
			}
			to, last = w.wallEnd(), w.Last
		}
	}
	if i := slices.IndexFunc(s.index, func(w window) bool { return w.First > top }); last < top && i >= 0 {
		to = s.index[i].wallStart()
	}
	heir := s.newStream()
	heir.From, heir.Taken, heir.To, heir.Live = top+1, top, st.To, st.Live
	heir.Through, heir.Gaps = to, st.Gaps
	if to > from {
		heir.lose(gap(from, to, usage.Corrupt, ""))
	}
	for _, i := range st.Inherit {
		heir.lose(i.gap(usage.Corrupt, ""))
	}
	st.Live, st.To, st.Gaps, st.Inherit = false, st.Taken, nil, nil
	return heir
}
