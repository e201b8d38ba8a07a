package spool

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// recovering returns the recovery of an empty spool that is open, so that it can write.
func recovering(t *testing.T, streams ...*stream) *recovery {
	t.Helper()
	r := newRecovery()
	r.s = opened(t, &hookFS{})
	r.s.streams = streams
	return r
}

// TestReconcileNumbers checks the number of the last window after a start: the highest that any record states. The
// checkpoint counts only if it is as new.
func TestReconcileNumbers(t *testing.T) {
	live := func(change func(st *stream)) *stream {
		st := &stream{ID: batch.Stream{2}, From: 1, Live: true, Next: 1, Wanted: 1}
		change(st)
		return st
	}
	none := func(*stream) {}
	for _, c := range []struct {
		name             string
		top, windows     uint64
		streams          []*stream
		want             uint64
		checkpoint, kept bool
	}{
		{"nothing", 0, 0, []*stream{live(none)}, 0, true, true},
		{"the log of windows", 3, 5, []*stream{live(none)}, 5, true, true},
		{"both", 5, 5, []*stream{live(none)}, 5, true, true},
		{"the log of batches", 6, 5, []*stream{live(none)}, 6, true, false},
		{"a batch", 0, 5, []*stream{live(func(st *stream) { st.Batched = 7 })}, 7, true, true},
		{"the start of a stream", 0, 5, []*stream{live(func(st *stream) { st.From = 9 })}, 8, true, true},
		{"the next start", 0, 5, []*stream{live(func(st *stream) { st.From = 6 })}, 5, true, true},
		{"the end of a stream", 0, 5, []*stream{{ID: batch.Stream{1}, From: 1, To: 8, Next: 1, Wanted: 1}, live(func(st *stream) { st.From = 7 })}, 8, true, true},
	} {
		r := recovering(t, c.streams...)
		r.top, r.lastWindow = c.top, c.windows
		r.s.checkpoints, r.s.notes = []location{{}}, []location{{}}
		if err := r.reconcile(); err != nil {
			t.Fatal(err)
		}
		if r.s.lastWindow != c.want || (len(r.s.checkpoints) == 1) != c.kept || (len(r.s.notes) == 1) != c.kept {
			t.Errorf("%s: the last window is %d, want %d; checkpoint %v, notes %v", c.name, r.s.lastWindow, c.want, r.s.checkpoints, r.s.notes)
		}
		if n := len(r.s.streams); !r.s.streams[n-1].Live || r.s.streams[n-1].ID != (batch.Stream{2}) {
			t.Errorf("%s: another stream is live: %+v", c.name, r.s.streams)
		}
	}
}

// TestReconcileUncertain checks which streams end because a record of theirs may be lost: those with windows, gaps or
// inherited batches that it may have put into a batch. Window n is from n to n+1.
func TestReconcileUncertain(t *testing.T) {
	gap := newGap(77e9, 78e9, usage.Overflow, "")
	for _, c := range []struct {
		name      string
		change    func(st *stream)
		uncertain int64  // the last window that may be in a batch, -1 if none
		lost      uint64 // the first window that knows a record that is lost
		ends      bool
		from      uint64 // first window of the stream after it
		gaps      []usage.Gap
	}{
		{"certain", func(*stream) {}, -1, 0, false, 1, nil},
		{"nothing to lose", func(*stream) {}, 2, 0, false, 1, nil},
		{"one window", func(*stream) {}, 3, 0, true, 4, []usage.Gap{newGap(3e9, 4e9, usage.Corrupt, "")}},
		{"all windows", func(*stream) {}, 5, 0, true, 6, []usage.Gap{newGap(3e9, 6e9, usage.Corrupt, "")}},
		{"fewer than are batched", func(*stream) {}, 1, 0, false, 1, nil},
		{"a gap", func(st *stream) { st.Gaps = []usage.Gap{gap} }, 2, 0, true, 3, []usage.Gap{gap}},
		{"a gap, and fewer than are batched", func(st *stream) { st.Gaps = []usage.Gap{gap} }, 1, 0, true, 3, []usage.Gap{gap}},
		{"an inherited batch", func(st *stream) {
			st.Inherited = []inheritedBatch{{batch.Stream{9}, 1, extent{Start: 1e15, Through: 2e15}}}
		}, 2, 0, true, 3, []usage.Gap{newGap(1e15, 2e15, usage.Corrupt, "")}},
		{"windows know of it", func(*stream) {}, -1, 5, true, 5, []usage.Gap{newGap(3e9, 5e9, usage.Corrupt, "")}},
		{"the first window knows of it", func(*stream) {}, -1, 3, false, 1, nil},
		{"the first window of all knows of it", func(*stream) {}, -1, 1, false, 1, nil},
		{"windows know more", func(*stream) {}, 3, 5, true, 5, []usage.Gap{newGap(3e9, 5e9, usage.Corrupt, "")}},
		{"windows know less", func(*stream) {}, 4, 4, true, 5, []usage.Gap{newGap(3e9, 5e9, usage.Corrupt, "")}},
	} {
		st := &stream{ID: batch.Stream{1}, From: 1, Batched: 2, Live: true, Next: 4, Wanted: 2, Through: 3e9, FirstStart: 1e9}
		c.change(st)
		r := recovering(t, st)
		r.lastWindow, r.lostFrom = 5, c.lost
		for n := range int64(3) {
			r.s.index = append(r.s.index, numbered(uint64(n+3), n+3, n+4))
			r.s.index[n].location.seg = &segment{}
		}
		if c.uncertain >= 0 {
			r.uncertain[st.ID] = uint64(c.uncertain)
		}
		serial := r.s.serial
		if err := r.reconcile(); err != nil {
			t.Fatal(err)
		}
		old, live := r.s.findStream(st.ID), r.s.liveStream()
		if doubted := old.UncertainBefore == 4; doubted != (c.uncertain >= 0 || c.lost > 0) || !doubted && old.UncertainBefore > 0 {
			t.Errorf("%s: batches before %d are in doubt", c.name, old.UncertainBefore)
		} else if doubted != (r.s.serial == serial+1) || len(r.s.dirty) > 0 {
			t.Errorf("%s: %d records are written", c.name, r.s.serial-serial)
		}
		if len(old.Gaps)+len(old.Inherited) > 0 && c.ends {
			t.Errorf("%s: the stream that ended has %v, %v", c.name, old.Gaps, old.Inherited)
		}
		if ends := !old.Live; ends != c.ends || live.From != c.from || !slices.Equal(live.Gaps, c.gaps) {
			t.Errorf("%s: it ends %t, and the live one has windows from %d on, gaps %v; want %t, %d, %v", c.name, ends, live.From, live.Gaps, c.ends, c.from, c.gaps)
		}
		if got, want := len(r.s.index), 6-max(int(c.from), 3); got != want {
			t.Errorf("%s: %d windows wait, want %d", c.name, got, want)
		}
	}
}

// TestReconcileOrphans checks that windows of no stream become a gap of the live one beside its own.
func TestReconcileOrphans(t *testing.T) {
	own := newGap(1e15, 2e15, usage.Overflow, "")
	st := &stream{ID: batch.Stream{1}, From: 5, Batched: 4, Live: true, Next: 1, Wanted: 1, Through: 5e9, Gaps: []usage.Gap{own}}
	r := recovering(t, st)
	r.lastWindow, r.recordLost = 5, true
	for n := range int64(3) {
		r.s.index = append(r.s.index, numbered(uint64(n+3), n+3, n+4))
		r.s.index[n].location.seg = &segment{}
	}
	if err := r.reconcile(); err != nil {
		t.Fatal(err)
	}
	if got, want := r.s.liveStream().Gaps, []usage.Gap{own, newGap(3e9, 5e9, usage.Corrupt, "")}; !slices.Equal(got, want) || len(r.s.index) != 1 || r.s.liveStream().ID != st.ID {
		t.Errorf("gaps %v, want %v; %d windows", got, want, len(r.s.index))
	}
	if len(st.Gaps) != 1 {
		t.Errorf("the stream that was read is changed: %v", st.Gaps)
	}
}

// TestReconcileFinished checks that a start forgets streams that are done, and writes nothing for that.
func TestReconcileFinished(t *testing.T) {
	done := &stream{ID: batch.Stream{1}, From: 1, To: 2, Batched: 2, Next: 3, Wanted: 3}
	live := &stream{ID: batch.Stream{2}, From: 3, Batched: 2, Live: true, Next: 1, Wanted: 1}
	r := recovering(t, done, live)
	r.lastWindow = 2
	serial := r.s.serial
	if err := r.reconcile(); err != nil {
		t.Fatal(err)
	}
	if len(r.s.streams) != 1 || r.s.liveStream() != live || r.s.serial != serial {
		t.Errorf("%d streams, %d records", len(r.s.streams), r.s.serial-serial)
	}
}

// TestTruncatedOrder checks that streams are sorted again if the live one turns out to have ended.
func TestTruncatedOrder(t *testing.T) {
	r := newRecovery()
	old := &stream{ID: batch.Stream{1}, From: 1, Batched: 1, Live: true}
	later := &stream{ID: batch.Stream{2}, From: 4, To: 6, Batched: 3}
	r.lastSerial[later.ID] = 2
	r.s.streams = []*stream{later, old}
	r.truncateStreams()
	var got []string
	for _, st := range r.s.streams {
		got = append(got, fmt.Sprint(st.ID[0], "-", st.To))
	}
	if s := strings.Join(got, " "); s != "1-3 2-6" {
		t.Errorf("streams %s", s)
	}
}
