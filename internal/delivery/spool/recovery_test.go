package spool

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// newRecovery returns a recovery of an empty spool.
func newRecovery() *recovery {
	return &recovery{s: &Spool{stored: map[batch.Stream][]storedBatch{}}, uncertain: map[batch.Stream]uint64{}, lastSerial: map[batch.Stream]uint64{}}
}

func packed(t *testing.T, head any, body string) []byte {
	t.Helper()
	return pack(head, []byte(body))
}

// TestReadState checks which records of the log of batches count: those with a serial behind the last
// one, or with all streams. A hole in the serials makes the streams uncertain that no later record has.
func TestReadState(t *testing.T) {
	a, b := stream{ID: batch.Stream{1}, From: 1}, stream{ID: batch.Stream{2}, From: 2, Live: true}
	next := func(s stream, n uint64) stream { s.Next = n; return s }
	for _, c := range []struct {
		name      string
		records   []stateHead
		corrupt   int
		lost      bool
		next      string // numbers of a and b
		uncertain string
	}{
		{"in order", []stateHead{{Serial: 1, All: true, Streams: []stream{a, b}}, {Serial: 2, Streams: []stream{next(a, 5)}}, {Serial: 3, Streams: []stream{next(b, 7)}}}, 0, false, "5 7", ""},
		{"one twice", []stateHead{{Serial: 1, All: true, Streams: []stream{a, b}}, {Serial: 2, Streams: []stream{next(a, 5)}}, {Serial: 2, Streams: []stream{next(a, 6)}}}, 1, false, "5 0", ""},
		{"one too late", []stateHead{{Serial: 1, All: true, Streams: []stream{a, b}}, {Serial: 2, Streams: []stream{next(a, 5)}}, {Serial: 1, Streams: []stream{next(a, 6)}}}, 1, false, "5 0", ""},
		{"all again", []stateHead{{Serial: 1, All: true, Streams: []stream{a, b}}, {Serial: 2, Streams: []stream{next(a, 5)}}, {Serial: 2, All: true, Streams: []stream{next(a, 6), b}}}, 0, false, "6 0", ""},
		{"a later first one", []stateHead{{Serial: 8, All: true, Streams: []stream{a, b}}}, 0, false, "0 0", ""},
		{"a hole", []stateHead{{Serial: 1, All: true, Streams: []stream{a, b}}, {Serial: 3, Top: 9, Streams: []stream{next(a, 5)}}}, 0, true, "5 0", "2:9"},
		{"two holes", []stateHead{{Serial: 1, All: true, Streams: []stream{a, b}}, {Serial: 3, Top: 9}, {Serial: 5, Top: 11}}, 0, true, "0 0", "1:9 2:9"},
		{"a hole before all", []stateHead{{Serial: 1, All: true, Streams: []stream{a, b}}, {Serial: 3, Top: 9, All: true, Streams: []stream{a, b}}}, 0, true, "0 0", ""},
	} {
		r := newRecovery()
		for i := range c.records {
			r.readState(location{}, kindState, packed(t, c.records[i], ""))
		}
		for _, head := range c.records {
			if last := head.Serial; r.top < head.Top || last > 1 && len(head.Streams) > 0 && r.lastSerial[head.Streams[0].ID] < last && c.corrupt == 0 {
				t.Errorf("%s: top %d, serials %v", c.name, r.top, r.lastSerial)
			}
		}
		var got, uncertain []string
		for _, st := range r.s.streams {
			got = append(got, fmt.Sprint(st.Next))
			if top, ok := r.uncertain[st.ID]; ok {
				uncertain = append(uncertain, fmt.Sprintf("%d:%d", st.ID[0], top))
			}
		}
		if strings.Join(got, " ") != c.next || r.corrupt != c.corrupt || r.recordLost != c.lost || strings.Join(uncertain, " ") != c.uncertain {
			t.Errorf("%s: next %v, %d corrupt, lost %t, uncertain %v; want %+v", c.name, got, r.corrupt, r.recordLost, uncertain, c)
		}
	}
	acked := newRecovery()
	k := batchHead{Stream: a.ID, Number: 1}
	for _, head := range []stateHead{{Serial: 1, At: 70, All: true, Batch: &k, Streams: []stream{{ID: a.ID, Wanted: 1, Next: 2}}}, {Serial: 2, At: 77, Streams: []stream{{ID: a.ID, Wanted: 2, Next: 2}}}, {Serial: 3, At: 80}} {
		acked.readState(location{}, kindState, packed(t, head, ""))
	}
	if got := acked.s.stored[a.ID]; len(got) != 1 || got[0].acked != 77 {
		t.Errorf("a batch that was acknowledged at 77: %+v", got)
	}
	r := newRecovery()
	for _, payload := range [][]byte{packed(t, stateHead{Serial: 1, Streams: []stream{a}}, ""), nil} {
		kind := byte(kindState)
		if payload != nil {
			kind = kindWindow
		}
		r.readState(location{}, kind, payload)
	}
	if r.corrupt != 2 || r.s.serial != 0 {
		t.Errorf("records of another kind, and of none: %d corrupt", r.corrupt)
	}
}

// TestReadWindows checks the windows, the checkpoint and the notes that follow from the records of the
// log of windows. A word is a record: a window with its numbers, "f" with a full checkpoint, "c" with a
// change of it, "-" with none; or a note after a window, "F" a full one.
func TestReadWindows(t *testing.T) {
	for _, c := range []struct {
		records     string
		windows     string
		checkpoints int
		notes       int
	}{
		{"1f 2c 3c", "1 2 3", 3, 0},
		{"1f 2- 3c", "1 2 3", 2, 0},
		{"1f 2c 3f 4c", "1 2 3 4", 2, 0},
		{"1- 2c", "1 2", 1, 0},
		{"1f 3c 4c", "1 3 4", 0, 0},
		{"1f 3c 4f 5c", "1 3 4 5", 2, 0},
		{"1f 3- 4c", "1 3 4", 0, 0},
		{"1f 2c 2c", "1 2", 0, 0}, // a write that failed and was retried in a segment with a full one
		{"1f 2c 3c 2f", "1 2", 1, 0},
		{"1f 2c 3c 4c 3f 4c", "1 2 3 4", 2, 0},
		{"n0", "", 0, 1},
		{"n1", "", 0, 0},
		{"F0 n0 n0", "", 0, 3},
		{"F0 n0 1f", "1", 1, 0},
		{"1f n1 n1", "1", 1, 2},
		{"1f n0 n1", "1", 1, 1},
		{"1f n1 2c n1 n2", "1 2", 2, 1},
		{"1f 3c n3", "1 3", 0, 0},
		{"1f F1 n1", "1", 0, 2},
		{"1f 3c F3 n3 4c", "1 3 4", 1, 0},
		{"F7 n7 8c", "8", 1, 0},
	} {
		r := newRecovery()
		for word := range strings.FieldsSeq(c.records) {
			var n uint64
			switch {
			case word[0] == 'n' || word[0] == 'F':
				_, _ = fmt.Sscan(word[1:], &n)
				r.readWindow(location{}, kindNote, packed(t, noteHead{After: n, Full: word[0] == 'F'}, "note"))
				continue
			default:
				_, _ = fmt.Sscan(word[:1], &n)
			}
			body := "wire"
			if word[1] != '-' {
				body += "checkpoint"
			}
			r.readWindow(location{}, kindWindow, packed(t, windowHead{First: n, Last: n, Wire: 4, Full: word[1] == 'f', End: int64(n)}, body))
		}
		var windows []string
		for _, w := range r.s.index {
			windows = append(windows, fmt.Sprint(w.First))
		}
		if got := strings.Join(windows, " "); got != c.windows || len(r.s.checkpoints) != c.checkpoints || len(r.s.notes) != c.notes || r.corrupt != 0 {
			t.Errorf("%s: windows %s, %d parts of a checkpoint, %d notes, %d corrupt; want %+v", c.records, got, len(r.s.checkpoints), len(r.s.notes), r.corrupt, c)
		}
	}
	for head, ok := range map[windowHead]bool{
		{First: 1, Last: 1, Wire: 4}: true, {First: 1, Last: 1, Wire: 0}: true, {First: 1, Last: 2, Wire: 1}: true,
		{First: 1, Last: 1, Wire: -1}: false, {First: 1, Last: 1, Wire: 5}: false, {First: 0, Last: 1, Wire: 4}: false, {First: 2, Last: 1, Wire: 4}: false,
	} {
		r := newRecovery()
		r.readWindow(location{}, kindWindow, packed(t, head, "wire"))
		if got := r.corrupt == 0 && len(r.s.index) == 1; got != ok || got == (r.corrupt == 1) {
			t.Errorf("%+v: read %t, %d corrupt", head, got, r.corrupt)
		}
	}
	r := newRecovery()
	r.readWindow(location{}, kindState, packed(t, windowHead{First: 1, Last: 1}, ""))
	r.readWindow(location{}, kindNote, []byte("note"))
	if r.corrupt != 2 || len(r.s.index)+len(r.s.notes) > 0 {
		t.Errorf("%d corrupt records, want a state and an unreadable note", r.corrupt)
	}
	// Serials say from which window on a record of the other log is lost.
	for _, c := range []struct {
		serials []uint64 // of windows 1, 2, 3; the last record of the other log has serial 5
		from    uint64
	}{{[]uint64{4, 5, 5}, 0}, {[]uint64{5, 6, 6}, 2}, {[]uint64{6, 7, 8}, 1}, {[]uint64{5, 5, 6}, 3}} {
		r := newRecovery()
		r.s.serial = 5
		for i, serial := range c.serials {
			r.readWindow(location{}, kindWindow, packed(t, windowHead{First: uint64(i + 1), Last: uint64(i + 1), Serial: serial}, ""))
		}
		if r.lostFrom != c.from || r.recordLost != (c.from > 0) {
			t.Errorf("serials %v: lost from window %d on, %t; want %d", c.serials, r.lostFrom, r.recordLost, c.from)
		}
	}
}

// TestTruncateStreams checks which windows a stream loses because a later record of another stream shows
// that they moved there.
func TestTruncateStreams(t *testing.T) {
	for _, c := range []struct {
		name       string
		old, other stream
		later      bool
		live       bool
		to         uint64
	}{
		{"a live stream follows", stream{From: 1, Batched: 2, Live: true}, stream{From: 4, Batched: 3, Live: true}, true, false, 3},
		{"from the batched windows on", stream{From: 1, Batched: 5, Live: true}, stream{From: 4, Batched: 3, Live: true}, true, false, 5},
		{"an earlier record", stream{From: 1, Batched: 2, Live: true}, stream{From: 4, Batched: 3, Live: true}, false, true, 0},
		{"one that ended", stream{From: 1, To: 9, Batched: 2}, stream{From: 4, Batched: 3, Live: true}, true, false, 3},
		{"one that ended just before", stream{From: 1, To: 3, Batched: 2}, stream{From: 4, Batched: 3, Live: true}, true, false, 3},
		{"one that ended there", stream{From: 1, To: 4, Batched: 2}, stream{From: 4, Batched: 3, Live: true}, true, false, 3},
		{"both ended", stream{From: 1, To: 9, Batched: 2}, stream{From: 4, To: 6, Batched: 3}, true, false, 3},
		{"the other has only batched windows", stream{From: 1, To: 9, Batched: 6}, stream{From: 4, To: 6, Batched: 3}, true, false, 9},
		{"the other has one more", stream{From: 1, To: 9, Batched: 5}, stream{From: 4, To: 6, Batched: 3}, true, false, 5},
	} {
		r := newRecovery()
		c.old.ID, c.other.ID = batch.Stream{1}, batch.Stream{2}
		r.lastSerial[c.old.ID], r.lastSerial[c.other.ID] = 5, 5
		if c.later {
			r.lastSerial[c.other.ID]++
		}
		r.s.streams = []*stream{&c.old, &c.other}
		r.truncateStreams()
		if c.old.Live != c.live || c.old.To != c.to || c.other.From != 4 {
			t.Errorf("%s: live %t, to %d, want %t, %d", c.name, c.old.Live, c.old.To, c.live, c.to)
		}
	}
}

// TestFindOrphans checks which windows and batches belong to no stream after a record was lost.
func TestFindOrphans(t *testing.T) {
	gap := func(from, to int64) usage.Gap { return newGap(from*1e9, to*1e9, usage.Corrupt, "") }
	stored := func(id byte, number uint64, from, to int64) storedBatch {
		return storedBatch{batchHead: batchHead{Stream: batch.Stream{id}, Number: number, extent: extent{Start: from * 1e9, Through: to * 1e9}}}
	}
	index := []window{numbered(1, 0, 600), numbered(2, 600, 1200), numbered(3, 1200, 1800), numbered(4, 1800, 2400)}
	for _, c := range []struct {
		name    string
		streams []*stream
		stored  []storedBatch
		want    []usage.Gap
	}{
		{"no stream", nil, nil, []usage.Gap{gap(0, 2400)}},
		{"live from the third on", []*stream{{From: 3, Live: true}}, nil, []usage.Gap{gap(0, 1200)}},
		{"live from the first on", []*stream{{From: 1, Live: true}}, nil, nil},
		{"up to the second", []*stream{{From: 1, To: 2}}, nil, []usage.Gap{gap(1200, 2400)}},
		{"batched up to the third", []*stream{{From: 1, To: 2, Batched: 3}}, nil, []usage.Gap{gap(1800, 2400)}},
		{"one between", []*stream{{From: 1, To: 2}, {From: 4, Live: true}}, nil, []usage.Gap{gap(1200, 1800)}},
		{"a batch of no stream", []*stream{{From: 1, Live: true}}, []storedBatch{stored(7, 1, 5000, 5010)}, []usage.Gap{gap(5000, 5010)}},
		{"batches that were made", []*stream{{ID: batch.Stream{7}, From: 1, Live: true, Next: 3, Wanted: 2}}, []storedBatch{stored(7, 1, 5000, 5010), stored(7, 2, 5010, 5020)}, nil},
		{"a batch to come", []*stream{{ID: batch.Stream{7}, From: 1, Live: true, Next: 3, Wanted: 2}}, []storedBatch{stored(7, 3, 5000, 5010)}, []usage.Gap{gap(5000, 5010)}},
		{"a batch that another stream inherited", []*stream{{From: 1, Live: true, Inherited: []inheritedBatch{{Stream: batch.Stream{7}, Number: 3}}}}, []storedBatch{stored(7, 3, 5000, 5010)}, nil},
	} {
		for _, lost := range []bool{true, false} {
			r := newRecovery()
			r.s.index, r.s.streams, r.recordLost = index, c.streams, lost
			for _, k := range c.stored {
				r.s.addStored(k)
			}
			want := c.want
			if !lost {
				want = nil
			}
			if got := r.findOrphans(); !slices.Equal(got, want) {
				t.Errorf("%s, a record is lost %t: %v, want %v", c.name, lost, got, want)
			}
		}
	}
}

// TestNoLiveStream checks that windows of no stream become a gap of a new live stream if the record of the
// last live one is lost.
func TestNoLiveStream(t *testing.T) {
	s := opened(t, &hookFS{})
	r := newRecovery()
	r.s, r.lastWindow = s, 2
	s.streams = []*stream{{ID: batch.Stream{1}, From: 1, To: 1, Batched: 1, Next: 2, Wanted: 1}}
	s.index = []window{numbered(2, 50, 60)}
	if err := r.reconcile(); err != nil {
		t.Fatal(err)
	}
	live := s.liveStream()
	if want := []usage.Gap{newGap(50e9, 60e9, usage.Corrupt, "")}; len(s.streams) != 2 || !live.Live || live.From != 3 || !slices.Equal(live.Gaps, want) {
		t.Errorf("%d streams, the live one is %+v", len(s.streams), live)
	}
}

// TestIsNeeded checks which batches a server may still lack.
func TestIsNeeded(t *testing.T) {
	s := &Spool{streams: []*stream{{ID: batch.Stream{1}, Wanted: 3, Next: 5}, {ID: batch.Stream{2}, Wanted: 1, Next: 1, Inherited: []inheritedBatch{{Stream: batch.Stream{1}, Number: 7}}}}}
	for number, want := range map[uint64]bool{2: false, 3: true, 4: true, 5: false, 6: false, 7: true, 8: false} {
		if got := s.isNeeded(batch.Stream{1}, number); got != want {
			t.Errorf("batch %d is needed %t", number, got)
		}
	}
	if s.isNeeded(batch.Stream{2}, 1) || s.isNeeded(batch.Stream{3}, 3) || s.isNeeded(batch.Stream{2}, 7) {
		t.Error("a batch that no stream made is needed")
	}
}

// TestDrained checks which streams have nothing left to send.
func TestDrained(t *testing.T) {
	done := stream{Wanted: 4, Next: 4, Batched: 9, To: 9}
	for name, c := range map[string]struct {
		change func(st *stream)
		want   bool
	}{
		"done":              {func(*stream) {}, true},
		"live":              {func(st *stream) { st.Live = true }, false},
		"a batch":           {func(st *stream) { st.Wanted = 3 }, false},
		"the server is off": {func(st *stream) { st.Wanted = 5 }, true},
		"a gap":             {func(st *stream) { st.Gaps = []usage.Gap{{}} }, false},
		"inherited":         {func(st *stream) { st.Inherited = []inheritedBatch{{}} }, false},
		"a window":          {func(st *stream) { st.Batched = 8 }, false},
		"more batched":      {func(st *stream) { st.Batched = 10 }, true},
	} {
		st := done
		c.change(&st)
		if got := (&Spool{}).isDrained(&st); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestOwns checks which windows belong to a stream and wait.
func TestOwns(t *testing.T) {
	for _, c := range []struct {
		st   stream
		want string
	}{
		{stream{From: 3, Batched: 4, To: 6}, "56"}, {stream{From: 3, Batched: 2, To: 6}, "3456"}, {stream{From: 3, Batched: 0, To: 4}, "34"},
		{stream{From: 3, Batched: 4, To: 6, Live: true}, "5678"}, {stream{From: 7, Live: true}, "78"},
	} {
		var got strings.Builder
		for n := range uint64(9) {
			if c.st.owns(n) {
				fmt.Fprint(&got, n)
			}
		}
		if got.String() != c.want {
			t.Errorf("%+v has windows %s, want %s", c.st, got.String(), c.want)
		}
	}
}
