package spool

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// spaced returns a spool with one record in each segment.
func spaced(t *testing.T, fs FS) *Spool {
	t.Helper()
	cfg := innerConfig(t)
	cfg.SegmentBytes, cfg.FS = 1, fs
	s := openInner(t, cfg)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// take offers a new window, which the server takes, and writes that.
func take(t *testing.T, s *Spool) {
	t.Helper()
	o := offerOne(t, s)
	if _, err := s.ApplyReply(o.Stream, batch.Reply{Verdict: batch.Accepted, Next: o.Number + 1}); err != nil {
		t.Fatal(err)
	}
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
}

// TestReofferInterval checks that finished streams offer their last batch again at each hour, and the live one
// does not.
func TestReofferInterval(t *testing.T) {
	s := opened(t, &hookFS{})
	take(t, s)
	old := s.liveStream().ID
	fill(t, s, 1)
	if done, err := s.SplitBacklog(time.Now().Add(1000 * time.Hour)); !done || err != nil {
		t.Fatal(done, err)
	}
	if _, _, err := s.NextOffer(old); err != nil {
		t.Fatal(err)
	}
	take(t, s)
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		at   time.Duration
		want bool
	}{{0, true}, {1, false}, {time.Hour - 1, false}, {time.Hour, true}, {2*time.Hour - 1, false}, {2*time.Hour + 1, true}, {3 * time.Hour, false}, {3*time.Hour + 1, true}} {
		st := s.findStream(old)
		st.Wanted = st.Next
		if err := s.Maintain(now.Add(c.at)); err != nil {
			t.Fatal(err)
		}
		if got := s.findStream(old).Wanted == 2; got != c.want {
			t.Errorf("after %v it is offered again %t", c.at, got)
		}
		if live := s.liveStream(); live.Wanted != live.Next {
			t.Errorf("after %v the live stream offers batch %d again", c.at, live.Wanted)
		}
	}
}

// TestEarlyMerge checks that windows are merged before their time once the spool is full to three quarters.
func TestEarlyMerge(t *testing.T) {
	for less, want := range map[int64]bool{0: true, 1: false} {
		s := spaced(t, &hookFS{})
		fill(t, s, 40)
		for i := range s.index {
			s.index[i].Continues = true
		}
		// Three quarters of it are the bytes, and then one more.
		s.cfg.MaxBytes = (s.bytes()*4 + 2) / 3
		if got := s.cfg.MaxBytes * 3 / 4; got != s.bytes() {
			t.Fatal(got, s.bytes())
		}
		if less > 0 {
			s.cfg.MaxBytes += 2
		}
		if err := s.Maintain(time.Date(2026, 3, 1, 1, 0, 0, 0, time.UTC)); err != nil {
			t.Fatal(err)
		}
		if got := s.stats.Merged > 0; got != want {
			t.Errorf("%d bytes less than three quarters: %d windows were merged", less, s.stats.Merged)
		}
	}
}

// TestMergeAge checks the age at which windows are merged: that of the rule, from the edge of the span on.
func TestMergeAge(t *testing.T) {
	for _, c := range []struct {
		at   time.Duration // since the edge of the span
		want time.Duration // of the first window
	}{
		{2*time.Hour - 1, 10 * time.Second}, {2 * time.Hour, 5 * time.Minute},
		{26*time.Hour + 55*time.Minute - 1, 5 * time.Minute}, {26*time.Hour + 55*time.Minute, 10 * time.Minute},
	} {
		s := spaced(t, &hookFS{})
		fill(t, s, 61)
		for i := range s.index {
			s.index[i].Continues = true
		}
		day := time.Date(2026, 3, 1, 0, 5, 0, 0, time.UTC)
		if err := s.Maintain(day.Add(c.at)); err != nil {
			t.Fatal(err)
		}
		if got := time.Duration(s.index[0].End - s.index[0].Start); got != c.want {
			t.Errorf("after %v the first window is %v long", c.at, got)
		}
	}
}

// TestMaintainMakesRoom checks that Maintain removes what does not fit any more, and segments that could not be
// removed before.
func TestMaintainMakesRoom(t *testing.T) {
	fs := &hookFS{}
	s := spaced(t, fs)
	for range 6 {
		take(t, s)
	}
	now := time.Now()
	if err := s.Maintain(now); err != nil {
		t.Fatal(err)
	}
	before := s.stats.Evicted
	s.cfg.MaxBytes = s.bytes()
	if err := s.Maintain(now); err != nil || s.bytes() != s.cfg.MaxBytes {
		t.Errorf("%v, all fits, and of %d bytes %d are left", err, s.cfg.MaxBytes, s.bytes())
	}
	s.cfg.MaxBytes = s.bytes() - 1
	if err := s.Maintain(now); err != nil || s.bytes() > s.cfg.MaxBytes || s.stats.Evicted == before {
		t.Errorf("%v, %d bytes of %d, %d batches are gone", err, s.bytes(), s.cfg.MaxBytes, s.stats.Evicted)
	}
	s.cfg.MaxBytes = 1 << 30
	fs.fail = failOn(errDisk, "remove")
	fill(t, s, 2)
	if _, ok, err := s.NextOffer(s.liveStream().ID); !ok || err != nil {
		t.Fatal(ok, err)
	}
	segments := len(s.windows.list)
	fs.fail = nil
	if err := s.Maintain(now); err != nil || segments < 2 || len(s.windows.list) != 1 {
		t.Errorf("%v, %d segments of windows became %d", err, segments, len(s.windows.list))
	}
	fs.fail = failOn(errDisk, "remove")
	s.cfg.MaxBytes = s.bytes() - 1
	if err := s.Maintain(now); !errors.Is(err, errDisk) {
		t.Errorf("what does not fit cannot be removed: %v", err)
	}
}

// TestMakeRoom checks that nothing is removed as long as all fits.
func TestMakeRoom(t *testing.T) {
	s := spaced(t, &hookFS{})
	for range 4 {
		take(t, s)
	}
	s.cfg.MaxBytes = s.bytes() + 100
	before := len(s.batches.list)
	if err := s.makeRoom(100); err != nil || len(s.batches.list) != before {
		t.Errorf("%v, %d segments became %d", err, before, len(s.batches.list))
	}
	if err := s.makeRoom(101); err != nil || len(s.batches.list) != before-1 {
		t.Errorf("%v, %d segments became %d", err, before, len(s.batches.list))
	}
	if err := s.makeRoom(1 << 40); err != nil || len(s.batches.list) != 1 {
		t.Errorf("more than ever fits: %v, %d segments of batches", err, len(s.batches.list))
	}
}

// TestBatchesIn checks which batches of a segment a server may lack: those that it has not acknowledged, as is
// written, and those that are wanted again.
func TestBatchesIn(t *testing.T) {
	seg := &segment{}
	s := &Spool{stored: map[batch.Stream][]storedBatch{}, streams: []*stream{{ID: batch.Stream{1}, Wanted: 3, Next: 6}}}
	for _, k := range []storedBatch{{acked: 0}, {acked: 1}, {acked: 2}, {acked: 3}, {acked: 0}, {acked: 0}} {
		k.Stream, k.location.seg = batch.Stream{1}, seg
		k.Number = uint64(len(s.stored[k.Stream]) + 1)
		if k.Number == 5 {
			k.location.seg = &segment{}
		}
		s.addStored(k)
	}
	numbers := func(list []storedBatch) (all []uint64) {
		for _, k := range list {
			all = append(all, k.Number)
		}
		return all
	}
	needed, others := s.batchesIn(seg)
	if got, rest := numbers(needed), numbers(others); !slices.Equal(got, []uint64{1, 3, 4, 6}) || !slices.Equal(rest, []uint64{2}) {
		t.Errorf("needed %v, others %v", got, rest)
	}
}

// TestExpire checks when the first segments of batches are removed: when all of their batches were acknowledged
// 24 hours ago and more. The last segment stays.
func TestExpire(t *testing.T) {
	now := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	at := now.Add(-24 * time.Hour).UnixNano()
	for _, c := range []struct {
		name  string
		acked [3]int64 // of the batches, of which each has a segment
		left  int      // segments, with an empty one
	}{
		{"none", [3]int64{at + 1, at, at}, 4},
		{"the first", [3]int64{at, at + 1, at}, 3},
		{"two", [3]int64{at - 1, at - 1, at + 1}, 2},
		{"not the last segment", [3]int64{at, at, at}, 1},
		{"one that is not acknowledged", [3]int64{0, at, at}, 4},
	} {
		s := spaced(t, &hookFS{})
		for range 3 {
			o := offerOne(t, s)
			s.liveStream().Wanted = o.Number + 1
		}
		fill(t, s, 1)
		if done, err := s.SplitBacklog(now.Add(1000 * time.Hour)); !done || err != nil { // the last segment
			t.Fatal(done, err)
		}
		for len(s.batches.list) > 4 {
			if err := s.batches.remove(s.batches.list[0]); err != nil {
				t.Fatal(err)
			}
		}
		for id := range s.stored {
			for i := range s.stored[id] {
				s.stored[id][i].acked = c.acked[i]
			}
		}
		if err := s.expire(now); err != nil {
			t.Fatal(err)
		}
		if got := len(s.batches.list); got != c.left {
			t.Errorf("%s: %d segments are left, want %d", c.name, got, c.left)
		}
		var stored int
		for _, list := range s.stored {
			stored += len(list)
		}
		if stored != c.left-1 {
			t.Errorf("%s: %d batches are left, want %d", c.name, stored, c.left-1)
		}
	}
}

// TestExpiredStream checks that the start of a stream that is gone with its last batch is written before that is
// removed, and that the batch stays if the start cannot be written.
func TestExpiredStream(t *testing.T) {
	fs := &hookFS{}
	s := spaced(t, fs)
	take(t, s)
	old := s.liveStream()
	fill(t, s, 1)
	if done, err := s.SplitBacklog(time.Now().Add(1000 * time.Hour)); !done || err != nil {
		t.Fatal(done, err)
	}
	if _, _, err := s.NextOffer(old.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ApplyReply(old.ID, batch.Reply{Verdict: batch.Accepted, Next: 3}); err != nil {
		t.Fatal(err)
	}
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	k, _ := s.findBatch(old.ID, 2)
	serial, last, later := s.serial, k.location.seg, time.Now().Add(25*time.Hour)
	fs.fail = failIn(errDisk, "create", "batches")
	if err := s.expire(later); !errors.Is(err, errDisk) || !slices.Contains(s.batches.list, last) {
		t.Errorf("the start cannot be written: %v, the last batch is there %t", err, slices.Contains(s.batches.list, last))
	}
	fs.fail = nil
	if err := errors.Join(s.flush(), s.expire(later)); err != nil {
		t.Fatal(err)
	}
	if slices.Contains(s.batches.list, last) {
		t.Error("the last batch stays")
	}
	if s.findStream(old.ID) != nil || s.liveStream().EarlierStart != old.FirstStart || old.FirstStart == 0 || s.serial != serial+1 || len(s.dirty) > 0 {
		t.Errorf("the live stream knows %d of %d, record %d after %d", s.liveStream().EarlierStart, old.FirstStart, s.serial, serial)
	}
	if st := s.newLiveStream(); st.EarlierStart != old.FirstStart {
		t.Errorf("the next stream knows %d of %d", st.EarlierStart, old.FirstStart)
	}
}

// TestEvict checks which segments are removed for room: those of which not more than half is needed, and which are
// not the last. Needed batches are moved, unless they cannot be read.
func TestEvict(t *testing.T) {
	for _, c := range []struct {
		name    string
		size    func(needed int64) int64 // of the segment
		corrupt bool
		done    bool
		left    int
	}{
		{"half", func(n int64) int64 { return 2 * n }, false, true, 1},
		{"more than half", func(n int64) int64 { return 2*n - 1 }, false, false, 1},
		{"less", func(n int64) int64 { return 9 * n }, false, true, 1},
		{"unreadable", func(n int64) int64 { return 2 * n }, true, true, 0},
	} {
		s := opened(t, &hookFS{})
		for range 2 {
			fill(t, s, 1)
			if _, ok, err := s.compose(s.liveStream()); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		id := s.liveStream().ID
		if done, err := s.evict(); done || err != nil {
			t.Errorf("%s: the last segment is removed: %t, %v", c.name, done, err)
		}
		s.batches.size = 1 // so that the next record begins a segment
		s.liveStream().Wanted = 2
		s.dirty[id] = true
		if err := s.flush(); err != nil {
			t.Fatal(err)
		}
		k, _ := s.findBatch(id, 2)
		seg := s.batches.list[0]
		seg.size = c.size(int64(k.location.size))
		if c.corrupt {
			if err := os.WriteFile(s.batches.name(seg.number), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		done, err := s.evict()
		if err != nil || done != c.done || done == slices.Contains(s.batches.list, seg) {
			t.Errorf("%s: %t, %v", c.name, done, err)
		}
		moved, ok := s.findBatch(id, 2)
		if ok != (c.left == 1) || ok && (moved.location.seg == seg) == c.done {
			t.Errorf("%s: batch 2 is there %t", c.name, ok)
		}
		if _, ok := s.findBatch(id, 1); ok && c.done && len(s.stored[id]) != c.left || s.stats.Evicted != int64(map[bool]int{true: 1}[c.done]) {
			t.Errorf("%s: batches %v, %d evicted", c.name, s.stored[id], s.stats.Evicted)
		}
		if ok {
			if _, err := s.readBatch(moved); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
}

// TestDropWindows checks what is recorded of windows that are given up: the gap of each stream, and those of windows
// that are lost between.
func TestDropWindows(t *testing.T) {
	cfg := innerConfig(t)
	s := openInner(t, cfg)
	defer func() { _ = s.Close() }()
	if done, err := s.dropWindows(); done || err != nil {
		t.Errorf("of none: %t, %v", done, err)
	}
	fill(t, s, 6)
	if done, err := s.dropWindows(); done || err != nil {
		t.Errorf("of the segment that is written: %t, %v", done, err)
	}
	old := s.liveStream().ID
	if done, err := s.SplitBacklog(time.Now().Add(1000 * time.Hour)); !done || err != nil {
		t.Fatal(done, err)
	}
	fill(t, s, 5)
	s.windows.size = 1
	fill(t, s, 2)                                    // of the live stream, in segments of their own
	s.index = slices.Delete(s.index, 3, 4)           // the fourth is lost
	s.index = slices.Delete(s.index, 6, 7)           // and the eighth
	s.index[5].Gap = s.index[5].wallStart() - 3600e9 // the first of the live stream has a gap of its own
	if done, err := s.dropWindows(); !done || err != nil {
		t.Fatal(done, err)
	}
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixNano()
	gap := func(from, to int64, why usage.Reason) usage.Gap { return newGap(day+from*1e9, day+to*1e9, why, "") }
	st, live := s.findStream(old), s.liveStream()
	if want := []usage.Gap{gap(0, 60, usage.Overflow), gap(30, 40, usage.Corrupt)}; !slices.Equal(st.Gaps, want) || st.Batched != 6 || st.Through != day+60e9 {
		t.Errorf("gaps %v, want %v; windows through %d", st.Gaps, want, st.Batched)
	}
	if want := []usage.Gap{gap(60-3600, 110, usage.Overflow), gap(70, 80, usage.Corrupt)}; !slices.Equal(live.Gaps, want) || live.Batched != 11 || live.Through != day+110e9 {
		t.Errorf("gaps %v, want %v; windows through %d", live.Gaps, want, live.Batched)
	}
	if len(s.index) != 2 || s.stats.Dropped != 9 {
		t.Errorf("%d windows are left, %d dropped", len(s.index), s.stats.Dropped)
	}
	if names, err := filepath.Glob(filepath.Join(cfg.Dir, "windows", "*.seg")); err != nil || len(names) != 2 {
		t.Errorf("segments %v, %v", names, err)
	}
	// Without a hole there is one gap only.
	if done, err := s.dropWindows(); !done || err != nil || len(s.liveStream().Gaps) != 2 || s.stats.Dropped != 10 {
		t.Errorf("one more: %t, %v, gaps %v", done, err, s.liveStream().Gaps)
	}
}

// TestGiveUpBatch checks which streams have to send a batch that is given up: the one that made it, if the server
// lacks it, and the one that inherited it.
func TestGiveUpBatch(t *testing.T) {
	k := storedBatch{batchHead: batchHead{Stream: batch.Stream{1}, Number: 5, extent: extent{Start: 10, Through: 20}}}
	gap := newGap(10, 20, usage.Overflow, "")
	for _, c := range []struct {
		name    string
		st      stream
		missing bool
		gap     bool
	}{
		{"its own", stream{ID: batch.Stream{1}, Wanted: 5, Next: 6}, true, false},
		{"one of more", stream{ID: batch.Stream{1}, Wanted: 2, Next: 9}, true, false},
		{"acknowledged", stream{ID: batch.Stream{1}, Wanted: 6, Next: 9}, false, false},
		{"abandoned", stream{ID: batch.Stream{1}, Wanted: 2, Next: 5}, false, false},
		{"of another stream", stream{ID: batch.Stream{2}, Wanted: 5, Next: 6}, false, false},
		{"inherited", stream{ID: batch.Stream{2}, Inherited: []inheritedBatch{{Stream: batch.Stream{1}, Number: 4}, {Stream: batch.Stream{1}, Number: 5}, {Stream: batch.Stream{2}, Number: 5}}}, false, true},
	} {
		inherited := len(c.st.Inherited)
		c.st.giveUpBatch(k)
		if got := len(c.st.Missing) == 1 && c.st.Missing[0] == (missingBatch{5, gap}); got != c.missing || !got && len(c.st.Missing) > 0 {
			t.Errorf("%s: missing %v", c.name, c.st.Missing)
		}
		if got := slices.Equal(c.st.Gaps, []usage.Gap{gap}); got != c.gap || c.gap && len(c.st.Inherited) != inherited-1 {
			t.Errorf("%s: gaps %v, inherited %v", c.name, c.st.Gaps, c.st.Inherited)
		}
	}
}

// TestDropLastBatches checks that the last segment of batches is not given up, and that streams without batches
// in a segment that is stay as they are.
func TestDropLastBatches(t *testing.T) {
	s := opened(t, &hookFS{})
	offerOne(t, s)
	if done, err := s.dropBatches(); done || err != nil {
		t.Errorf("the last: %t, %v", done, err)
	}
	s.batches.size = 1
	s.dirty[s.liveStream().ID] = true
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	if done, err := s.dropBatches(); !done || err != nil || len(s.batches.list) != 2 || len(s.liveStream().Missing) != 1 || s.stats.Evicted != 1 || len(s.stored[s.liveStream().ID]) != 0 {
		t.Errorf("the first: %t, %v, %d segments, missing %v", done, err, len(s.batches.list), s.liveStream().Missing)
	}
}

// TestDroppedWhileComposing checks that a stream that is gone with what was removed for room offers nothing.
func TestDroppedWhileComposing(t *testing.T) {
	s := spaced(t, &hookFS{})
	fill(t, s, 1)
	old := s.liveStream().ID
	if done, err := s.SplitBacklog(time.Now().Add(1000 * time.Hour)); !done || err != nil {
		t.Fatal(done, err)
	}
	if _, _, err := s.NextOffer(old); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ApplyReply(old, batch.Reply{Verdict: batch.Accepted, Next: 2}); err != nil {
		t.Fatal(err)
	}
	if err := s.flush(); err != nil || s.findStream(old) == nil {
		t.Fatal(err, s.streams)
	}
	s.cfg.MaxBytes = 1
	if o, ok, err := s.NextOffer(old); ok || err != nil || s.findStream(old) != nil {
		t.Errorf("%+v, %t, %v", o, ok, err)
	}
}

// TestEvictFaults checks that nothing is removed if what is needed cannot be moved.
func TestEvictFaults(t *testing.T) {
	for _, failing := range []string{"read", "create"} {
		fs := &hookFS{}
		s := spaced(t, fs)
		offerOne(t, s)
		s.dirty[s.liveStream().ID] = true
		if err := s.flush(); err != nil {
			t.Fatal(err)
		}
		if done, err := s.evict(); !done || err != nil { // which has no batch
			t.Fatal(done, err)
		}
		k, _ := s.findBatch(s.liveStream().ID, 1)
		k.location.seg.size *= 9
		segments := len(s.batches.list)
		fs.fail = failIn(errDisk, failing, "batches")
		if done, err := s.evict(); done || !errors.Is(err, errDisk) || len(s.batches.list) != segments {
			t.Errorf("%s: %t, %v, %d segments of %d", failing, done, err, len(s.batches.list), segments)
		}
		if again, _ := s.findBatch(s.liveStream().ID, 1); again.location != k.location {
			t.Errorf("%s: the batch is at %+v", failing, again.location)
		}
		fs.fail = nil
		if o, ok, err := s.NextOffer(s.liveStream().ID); !ok || err != nil || o.Number != 1 {
			t.Errorf("%s: %t, %v", failing, ok, err)
		}
	}
}

// TestRemoveOnFullDisk checks that batches which the server has are removed although the disk is full and
// other state waits to be written: only their room lets it be written.
func TestRemoveOnFullDisk(t *testing.T) {
	fs := &hookFS{}
	s := opened(t, fs)
	for range 2 {
		fill(t, s, 1)
		if _, ok, err := s.compose(s.liveStream()); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	s.batches.size = 1 // so that the next record begins a segment
	s.liveStream().Wanted = 3
	s.dirty[s.liveStream().ID] = true
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	s.dirty[s.liveStream().ID] = true
	fs.fail = func(call, _ string) error {
		if call == "remove" {
			return nil
		}
		return errDisk
	}
	seg := s.batches.list[0]
	if done, err := s.evict(); !done || err != nil || slices.Contains(s.batches.list, seg) {
		t.Errorf("%t, %v, %d segments", done, err, len(s.batches.list))
	}
}
