package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// A windowHead is the head of a record of the log of windows. Its body is the
// window as a batch of its own, and the checkpoint.
type windowHead struct {
	First  uint64      `json:"first"` // numbers of the windows that are merged in it
	Last   uint64      `json:"last"`
	Boot   string      `json:"boot"`
	Scope  usage.Scope `json:"scope,omitempty"`
	Start  int64       `json:"start"` // ns of CLOCK_BOOTTIME
	End    int64       `json:"end"`
	Offset int64       `json:"offset"` // wall minus boottime, ns
	// Continues says that the window begins where the previous one ended, and that the agent
	// measured all of it. Others are not merged into the previous one: a server that has booked
	// some of the time of such a window refuses it as a whole.
	Continues bool `json:"joins,omitempty"`
	// Unmergeable says that the window is not merged, since a sum might not fit 63 bits.
	Unmergeable bool  `json:"big,omitempty"`
	Gap         int64 `json:"gap,omitempty"` // start of its first gap, wall time in ns, if that is before its own start
	Rows        int   `json:"rows"`
	Names       int   `json:"names,omitempty"`
	Volumes     int   `json:"volumes,omitempty"` // figures of volumes
	Wire        int   `json:"wire"`              // length of the batch
	Full        bool  `json:"full,omitempty"`    // the checkpoint is a whole one, or there is none so far
	// Serial is of the last record of the log of batches when the first of the
	// windows was appended.
	Serial uint64 `json:"serial"`
}

// A windowRecord is the head of a record with the caller's part of the checkpoint.
type windowRecord struct {
	windowHead
	Text json.RawMessage `json:"text,omitempty"`
}

// A window in the index is not yet in a batch.
type window struct {
	windowHead
	location location
}

func (h *windowHead) wallStart() int64 { return h.Start + h.Offset }
func (h *windowHead) wallEnd() int64   { return h.End + h.Offset }

// startWithGaps is the beginning of what the window speaks of, its gaps included.
func (h *windowHead) startWithGaps() int64 {
	if h.Gap != 0 {
		return min(h.Gap, h.wallStart())
	}
	return h.wallStart()
}

// headOf describes a window for its record.
func headOf(b *batch.Batch, first, last uint64, encoded []byte) windowHead {
	w := &b.Windows[0]
	h := windowHead{
		First: first, Last: last, Boot: w.Boot, Scope: w.Scope, Start: w.Start, End: w.End, Offset: w.Offset,
		Continues: w.StartReason == usage.StartContinued,
		Rows:      len(w.Rows), Names: len(b.Names), Volumes: len(w.Volumes), Wire: len(encoded),
	}
	h.Unmergeable = nearOverflow(&w.Total)
	for i := range w.Rows {
		h.Unmergeable = h.Unmergeable || nearOverflow(&w.Rows[i].Usage)
	}
	for _, g := range b.Gaps {
		if from := g.From.UnixNano(); from < h.startWithGaps() {
			h.Gap = from
		}
	}
	return h
}

// nearOverflow reports whether a sum of a thousand such amounts may overflow.
func nearOverflow(u *usage.Usage) (found bool) {
	u.Present.Each(func(r usage.Resource) { found = found || u.Amount[r] >= 1<<50 })
	return found
}

// canMerge reports whether next may be merged into h where windows have this span:
// both lie within one span of wall time, and nothing is between them.
func (h *windowHead) canMerge(next *windowHead, span time.Duration) bool {
	const second = int64(time.Second)
	return next.Continues && !h.Unmergeable && !next.Unmergeable && next.Boot == h.Boot && next.Scope == h.Scope && next.Start == h.End &&
		next.Offset <= h.Offset+second && h.Offset <= next.Offset+second &&
		spanIndex(h.wallEnd(), span) == spanIndex(next.wallEnd(), span)
}

// spanIndex returns the index of the span of a window with this end: an end on an edge
// belongs to the span before.
func spanIndex(end int64, span time.Duration) int64 {
	n := int64(span)
	end--
	if end < 0 {
		return (end+1)/n - 1
	}
	return end / n
}

// readWindow reads a window with its names and gaps. The error wraps errCorrupt where
// that will never succeed.
func (s *Spool) readWindow(w window) (*batch.Batch, error) {
	payload, err := s.windows.read(w.location)
	if err != nil {
		return nil, err
	}
	var head windowHead
	body, err := unpack(payload, &head)
	if err != nil {
		return nil, err
	}
	b, err := wire.Decode(body[:head.Wire], wire.Default())
	if err == nil && len(b.Windows) != 1 {
		err = errors.New("not one window")
	}
	if err != nil {
		return nil, fmt.Errorf("window %d: %w: %w", w.First, errCorrupt, err)
	}
	return b, nil
}

// prune drops from the index what no stream has to send, and removes the
// segments in which nothing is left.
func (s *Spool) prune() {
	s.index = slices.DeleteFunc(s.index, func(w window) bool {
		return !slices.ContainsFunc(s.streams, func(st *stream) bool { return st.owns(w.First) })
	})
	used := map[*segment]bool{s.windows.last(): true}
	for _, w := range s.index {
		used[w.location.seg] = true
	}
	for _, seg := range slices.Clone(s.windows.list) {
		if !used[seg] {
			_ = s.windows.remove(seg) // the next prune retries
		}
	}
}

// waitingWindows returns the windows of a stream that are in no batch yet.
func (s *Spool) waitingWindows(st *stream) []window {
	var own []window
	for i := range s.index {
		if st.owns(s.index[i].First) {
			own = append(own, s.index[i])
		}
	}
	return own
}

// findOwner returns the stream that has to send a window, or nil.
func (s *Spool) findOwner(first uint64) *stream {
	for _, st := range s.streams {
		if st.owns(first) {
			return st
		}
	}
	return nil
}

// merge merges windows that ended before an instant into longer ones, in one
// run of segments, and reports whether it found one where that pays.
func (s *Spool) merge(span time.Duration, before int64) (bool, error) {
	run, windows := s.findMergeable(span, before)
	if run == nil {
		return false, nil
	}
	var merged []window
	err := s.windows.rewrite(run, func(add func(kind byte, payload []byte) (location, error)) error {
		m := merger{s: s, add: add}
		for _, w := range windows {
			if err := m.addWindow(w, span); err != nil {
				return err
			}
		}
		err := m.flush()
		merged = m.done
		return err
	})
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(s.index, func(w window) bool { return w.First == windows[0].First })
	s.index = slices.Replace(s.index, i, i+len(windows), merged...)
	s.stats.Merged += int64(len(windows) - len(merged))
	s.prune()
	return true, nil
}

// findMergeable finds segments side by side, all of whose windows ended before an
// instant, and of which a quarter less would be left.
func (s *Spool) findMergeable(span time.Duration, before int64) ([]*segment, []window) {
	var (
		run   []*segment
		begin int // of the run's windows in the index
		size  int64
		left  int // windows after merging
	)
	pays := func(end int) bool { return len(run) > 0 && left*4 <= (end-begin)*3 }
	at := 0
	for _, seg := range s.windows.list[:max(len(s.windows.list)-1, 0)] {
		end, ripe := at, true
		for ; end < len(s.index) && s.index[end].location.seg == seg; end++ {
			ripe = ripe && (spanIndex(s.index[end].wallEnd(), span)+1)*int64(span) <= before
		}
		if end == at {
			if run != nil {
				run = append(run, seg) // has no windows left
			}
			continue
		}
		if long := len(run) >= 4 && size+seg.size > 4*s.windows.size; !ripe || long {
			if pays(at) {
				return run, s.index[begin:at]
			}
			run = nil
		}
		if ripe {
			if run == nil {
				begin, size, left = at, 0, 0
			}
			run, size = append(run, seg), size+seg.size
			for i := at; i < end; i++ {
				if i == begin || s.findOwner(s.index[i].First) != s.findOwner(s.index[i-1].First) || !s.index[i-1].canMerge(&s.index[i].windowHead, span) {
					left++
				}
			}
		}
		at = end
	}
	if pays(at) {
		return run, slices.Clone(s.index[begin:at])
	}
	return nil, nil
}

// A merger merges adjacent windows, which come in order.
type merger struct {
	s    *Spool
	add  func(kind byte, payload []byte) (location, error)
	sum  *batch.Batch // of which head and stream tell
	head windowHead
	own  *stream
	done []window
}

func (m *merger) addWindow(w window, span time.Duration) error {
	b, err := m.s.readWindow(w)
	if errors.Is(err, errCorrupt) {
		m.s.stats.Corrupt++
		return nil // addHole covers the window when the next one is sent
	}
	if err != nil {
		return err
	}
	own := m.s.findOwner(w.First)
	if m.sum != nil && own == m.own && m.head.canMerge(&w.windowHead, span) {
		m.sum.Windows[0].Merge(&b.Windows[0])
		m.sum.Windows[0].SortRows()
		addNamesAndGaps(m.sum, b)
		m.head.Last, m.head.End, m.head.Offset = w.Last, w.End, w.Offset
		return nil
	}
	if err := m.flush(); err != nil {
		return err
	}
	m.sum, m.head, m.own = b, w.windowHead, own
	return nil
}

func (m *merger) flush() error {
	if m.sum == nil {
		return nil
	}
	encoded, err := wire.Encode(nil, m.sum)
	if err != nil {
		return err
	}
	head := headOf(m.sum, m.head.First, m.head.Last, encoded)
	head.Serial = m.head.Serial
	p, err := m.add(kindWindow, pack(head, encoded))
	if err != nil {
		return err
	}
	m.done = append(m.done, window{head, p})
	return nil
}

// addNamesAndGaps adds the names and gaps of part to b. Later names replace earlier ones.
func addNamesAndGaps(b, part *batch.Batch) {
	at := make(map[string]int, len(b.Names))
	for i := range b.Names {
		at[string(b.Names[i].ID)] = i
	}
	for _, n := range part.Names {
		if i, ok := at[string(n.ID)]; ok {
			b.Names[i] = n
			continue
		}
		at[string(n.ID)] = len(b.Names)
		b.Names = append(b.Names, n)
	}
	b.Gaps = append(b.Gaps, part.Gaps...)
}

// maxWallTime is later than every window.
const maxWallTime = math.MaxInt64
