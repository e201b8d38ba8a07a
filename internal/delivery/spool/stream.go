package spool

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// The kinds of record.
const (
	kindWindow = 1
	kindState  = 2
	kindNote   = 3
)

// A payload is the length of the head in 4 bytes, the head as JSON, and the body.

func pack(head any, body ...[]byte) []byte {
	h, err := json.Marshal(head)
	if err != nil {
		panic(fmt.Sprintf("spool: a head that JSON lacks: %v", err)) // its types have no such values
	}
	length := binary.LittleEndian.AppendUint32(nil, uint32(len(h)))
	return slices.Concat(append([][]byte{length, h}, body...)...)
}

func unpack(payload []byte, head any) (body []byte, err error) {
	if len(payload) < 4 {
		return nil, errCorrupt
	}
	n := int64(binary.LittleEndian.Uint32(payload))
	if n > int64(len(payload)-4) {
		return nil, errCorrupt
	}
	if err := json.Unmarshal(payload[4:4+n], head); err != nil {
		return nil, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	return payload[4+n:], nil
}

// A stateHead is the head of a record of the log of batches: a change of the state.
type stateHead struct {
	Serial uint64 `json:"serial"` // consecutive number of the record in this log
	Top    uint64 `json:"top"`    // number of the last window at that time
	At     int64  `json:"at"`     // wall time, ns
	// All says that Streams lists all streams, as in the first record of a segment;
	// otherwise it lists the changed ones.
	All     bool       `json:"all,omitempty"`
	Streams []stream   `json:"streams"`
	Batch   *batchHead `json:"batch,omitempty"` // of the encoded batch in the body
}

type batchHead struct {
	Stream   batch.Stream `json:"stream"`
	Number   uint64       `json:"number"`
	Previous batch.Hash   `json:"previous"`
	// Format is the format that a server has to read; nil is wire.BaseFormat.
	Format *wire.Format `json:"format,omitempty"`
	extent
}

// An extent is the time of a batch, in ns of wall time.
type extent struct {
	Start   int64 `json:"start"`   // of its first window; without windows stream.Through
	Through int64 `json:"through"` // end of its last window
	// Gap and Until are the start of its first gap, if before Start, and the end of its
	// last gap, if after Through.
	Gap   int64 `json:"gap,omitempty"`
	Until int64 `json:"until,omitempty"`
}

func extentOf(b *batch.Batch, at int64) (e extent) {
	var gaps [2]int64
	for i, g := range b.Gaps {
		from, to := g.From.UnixNano(), g.To.UnixNano()
		if i == 0 {
			gaps = [2]int64{from, to}
		}
		gaps[0], gaps[1] = min(gaps[0], from), max(gaps[1], to)
	}
	if n := len(b.Windows); n > 0 {
		first, last := &b.Windows[0], &b.Windows[n-1]
		e.Start, e.Through = first.Start+first.Offset, last.End+last.Offset
	} else {
		e.Start, e.Through = at, at
	}
	if gaps[0] < e.Start {
		e.Gap = gaps[0]
	}
	if gaps[1] > e.Through {
		e.Until = gaps[1]
	}
	return e
}

// startWithGaps returns the start of the batch including its gaps.
func (e extent) startWithGaps() int64 {
	if e.Gap != 0 {
		return e.Gap
	}
	return e.Start
}

// gap returns the gap of a batch that is not sent.
func (e extent) gap(why usage.Reason, detail string) usage.Gap {
	return newGap(e.startWithGaps(), max(e.Through, e.Until), why, detail)
}

// A stream is the state of a stream after a record.
type stream struct {
	ID batch.Stream `json:"id"`
	// The stream has the windows with the numbers From to To; a live one has all from From
	// on.
	From uint64 `json:"from"`
	To   uint64 `json:"to,omitempty"`
	Live bool   `json:"live,omitempty"`
	// Windows through Batched are in batches or were given up.
	Batched   uint64     `json:"taken"`
	Next      uint64     `json:"next"`          // number of the next batch to make
	Last      batch.Hash `json:"last"`          // hash of the batch before
	Wanted    uint64     `json:"want"`          // number that the server wants, according to its last reply
	MaxWanted uint64     `json:"had,omitempty"` // highest Wanted so far
	// FirstStart is the start of the first batch; like the times below, in ns of wall time.
	FirstStart int64 `json:"began,omitempty"`
	// EarlierStart is the start of the earliest stream that the spool no longer has.
	EarlierStart int64 `json:"before,omitempty"`
	// History has the ends of some of its batches, to estimate the time of batches that the
	// spool no longer has.
	History []historyEntry `json:"past,omitempty"`
	Through int64          `json:"through,omitempty"` // end of the window Batched
	// Gaps go into the next batch.
	Gaps []usage.Gap `json:"gaps,omitempty"`
	// Inherited has batches of abandoned streams to send before the windows of this one.
	Inherited []inheritedBatch `json:"inherit,omitempty"`
	// Missing has batches that were given up before a server acknowledged them.
	Missing []missingBatch `json:"missing,omitempty"`
	// UncertainBefore is set if a record of the stream is lost: the content of batches before
	// this number may have been sent in another stream.
	UncertainBefore uint64 `json:"doubt,omitempty"`
}

// An inheritedBatch is a batch of an abandoned stream.
type inheritedBatch struct {
	Stream batch.Stream `json:"stream"`
	Number uint64       `json:"number"`
	extent
}

type historyEntry struct {
	Number  uint64 `json:"number"`
	Through int64  `json:"through"`
}

// addHistory adds every 360th batch to History and thins out older ones.
func (st *stream) addHistory(number uint64, through int64) {
	const most = 16
	if number%360 != 1 {
		return
	}
	st.History = append(st.History, historyEntry{number, through})
	if len(st.History) > most {
		for i := range most / 4 {
			st.History[i] = st.History[2*i+1]
		}
		st.History = slices.Delete(st.History, most/4, most/2)
	}
}

type missingBatch struct {
	Number uint64    `json:"number"`
	Gap    usage.Gap `json:"gap"`
}

// A storedBatch is a batch on disk.
type storedBatch struct {
	batchHead
	location location
	acked    int64 // time of the acknowledgement, ns of wall time; 0 while it is needed
}

// owns reports whether a window belongs to the stream and is in no batch yet.
func (st *stream) owns(first uint64) bool {
	return first > st.Batched && first >= st.From && (st.Live || first <= st.To)
}

func (s *Spool) newStream() *stream {
	st := &stream{Next: 1, Wanted: 1}
	_, _ = rand.Read(st.ID[:]) // never fails
	for _, other := range s.streams {
		st.EarlierStart = earliest(st.EarlierStart, other.EarlierStart)
	}
	return st
}

// newLiveStream returns a stream for new windows.
func (s *Spool) newLiveStream() *stream {
	st := s.newStream()
	st.Live, st.From, st.Batched, st.Through = true, s.lastWindow+1, s.lastWindow, s.lastEnd
	if st.Through == 0 {
		st.Through = time.Now().UnixNano()
	}
	return st
}

// clone returns a copy to change, which persist installs.
func (st *stream) clone() *stream {
	c := *st
	c.History, c.Gaps, c.Inherited, c.Missing = slices.Clone(st.History), slices.Clone(st.Gaps), slices.Clone(st.Inherited), slices.Clone(st.Missing)
	return &c
}

// addGap adds a gap for the next batch, or extends an adjacent one.
func (st *stream) addGap(g usage.Gap) { st.Gaps = addGap(st.Gaps, g) }

func addGap(gaps []usage.Gap, g usage.Gap) []usage.Gap {
	const near = time.Minute
	if g.To.Before(g.From) {
		g.From, g.To = g.To, g.From
	}
	for i := range gaps {
		if h := &gaps[i]; h.Reason == g.Reason && h.Detail == g.Detail && !g.From.After(h.To.Add(near)) && !h.From.After(g.To.Add(near)) {
			if g.From.Before(h.From) {
				h.From = g.From
			}
			if g.To.After(h.To) {
				h.To = g.To
			}
			return gaps
		}
	}
	return append(gaps, g)
}

func wallTime(ns int64) time.Time { return time.Unix(0, ns).UTC() }

func newGap(from, to int64, reason usage.Reason, detail string) usage.Gap {
	return usage.Gap{From: wallTime(from), To: wallTime(to), Reason: reason, Detail: detail}
}

// findStream returns the stream with an id, or nil.
func (s *Spool) findStream(id batch.Stream) *stream {
	for _, st := range s.streams {
		if st.ID == id {
			return st
		}
	}
	return nil
}

func (s *Spool) liveStream() *stream { return s.streams[len(s.streams)-1] }

// replaceStreams returns streams with the changed ones replaced or added, sorted by their
// windows, the live one last.
func replaceStreams(streams, changed []*stream) []*stream {
	all := slices.Clone(streams)
	for _, c := range changed {
		if i := slices.IndexFunc(all, func(st *stream) bool { return st.ID == c.ID }); i >= 0 {
			all[i] = c
		} else {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b *stream) int {
		if a.Live != b.Live {
			if a.Live {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.From, b.From)
	})
	return all
}

// persist writes the changed streams, those marked dirty, and the batch b with its encoded
// body if b is not nil, to disk, and installs them. After an error nothing has changed.
func (s *Spool) persist(changed []*stream, b *batchHead, body []byte) error {
	begin := s.batches.isFull()
	after := replaceStreams(s.streams, changed)
	head := stateHead{Serial: s.serial + 1, Top: s.lastWindow, At: time.Now().UnixNano(), All: begin, Batch: b}
	for _, st := range after {
		if begin || s.dirty[st.ID] || slices.Contains(changed, st) {
			head.Streams = append(head.Streams, *st)
		}
	}
	p, err := s.batches.append(kindState, pack(head, body), begin)
	if err != nil {
		return err
	}
	s.serial, s.streams = head.Serial, after
	clear(s.dirty)
	if b != nil {
		s.addStored(storedBatch{batchHead: *b, location: p})
	}
	s.markAcked(head.At)
	s.dropFinished()
	return nil
}

// addStored adds a batch on disk to the index, and replaces an older copy.
func (s *Spool) addStored(k storedBatch) {
	list := s.stored[k.Stream]
	i, ok := slices.BinarySearchFunc(list, k.Number, func(k storedBatch, n uint64) int { return cmp.Compare(k.Number, n) })
	if ok {
		list[i] = k
	} else {
		list = slices.Insert(list, i, k)
	}
	s.stored[k.Stream] = list
}

// findBatch returns the first stored batch of a stream with this number or a higher one.
func (s *Spool) findBatch(id batch.Stream, number uint64) (storedBatch, bool) {
	list := s.stored[id]
	i, _ := slices.BinarySearchFunc(list, number, func(k storedBatch, n uint64) int { return cmp.Compare(k.Number, n) })
	if i == len(list) {
		return storedBatch{}, false
	}
	return list[i], true
}

// findOffered returns the first stored batch of a stream that the server may lack.
func (s *Spool) findOffered(st *stream) (storedBatch, bool) {
	k, ok := s.findBatch(st.ID, st.Wanted)
	return k, ok && k.Number < st.Next
}

// removeBatch removes a batch from the index.
func (s *Spool) removeBatch(id batch.Stream, number uint64) {
	s.stored[id] = slices.DeleteFunc(s.stored[id], func(k storedBatch) bool { return k.Number == number })
}

// isNeeded reports whether a server may still lack a batch.
func (s *Spool) isNeeded(id batch.Stream, number uint64) bool {
	for _, st := range s.streams {
		if st.ID == id && number >= st.Wanted && number < st.Next {
			return true
		}
		for _, i := range st.Inherited {
			if i.Stream == id && i.Number == number {
				return true
			}
		}
	}
	return false
}

// markAcked sets the time since which batches are not needed. The needed ones are the last
// of their stream.
func (s *Spool) markAcked(at int64) {
	for id, list := range s.stored {
		for i := len(list) - 1; i >= 0; i-- {
			k := &list[i]
			if s.isNeeded(id, k.Number) {
				k.acked = 0
				continue
			}
			if k.acked != 0 {
				break
			}
			k.acked = at
		}
	}
}

// dropFinished drops streams without anything to send or stored. The others keep the earliest
// start of dropped ones in EarlierStart.
func (s *Spool) dropFinished() {
	var before int64
	s.streams = slices.DeleteFunc(s.streams, func(st *stream) bool {
		list := s.stored[st.ID] // batches from Next on are inherited by another stream
		gone := s.isDrained(st) && (len(list) == 0 || list[0].Number >= st.Next)
		if gone {
			before = earliest(before, earliest(st.EarlierStart, st.FirstStart))
		}
		return gone
	})
	for _, st := range s.streams {
		if at := earliest(st.EarlierStart, before); at != st.EarlierStart {
			st.EarlierStart = at
			s.dirty[st.ID] = true
		}
	}
}

// earliest returns the earlier of two times; 0 is none.
func earliest(a, b int64) int64 {
	switch {
	case a == 0:
		return b
	case b == 0:
		return a
	}
	return min(a, b)
}

// isDrained reports whether a stream that is not live has nothing left to send.
func (s *Spool) isDrained(st *stream) bool {
	if st.Live || st.Wanted < st.Next || len(st.Gaps) > 0 || len(st.Inherited) > 0 {
		return false
	}
	return st.Batched >= st.To
}
