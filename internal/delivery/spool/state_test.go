package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// failIn lets a call fail for files in a directory, "windows" or "batches".
func failIn(err error, call, dir string) func(call, name string) error {
	return func(got, name string) error {
		if got == call && strings.Contains(name, "/"+dir+"/") {
			return err
		}
		return nil
	}
}

// add appends a window from s.lastEnd to 10 s later, with one row.
func add(s *Spool, row usage.Row, books string) error {
	const day = int64(1772323200e9)
	start := int64(s.lastWindow) * 10e9
	w := &usage.Window{Boot: "boot", Start: start, End: start + 10e9, Offset: day, StartReason: usage.StartResumed, Rows: []usage.Row{row}}
	var b []byte
	if books != "" {
		b = []byte(books)
	}
	return s.Append(w, nil, nil, func(bool) []byte { return b }, nil)
}

// TestTotalsAfterFailure checks that the first row of a workload has its total if the window with its previous row
// could not be written.
func TestTotalsAfterFailure(t *testing.T) {
	fs := &hookFS{}
	s := spaced(t, fs)
	row := usage.Row{ShortID: 9, Has: usage.SetOf(usage.CPU)}
	row.Usage.Put(usage.CPU, 0, usage.Measured)
	row.Total[usage.CPU] = 7
	fs.fail = failIn(errDisk, "write", "windows")
	if err := add(s, row, ""); !errors.Is(err, errDisk) || len(s.index) > 0 || s.lastWindow > 0 {
		t.Fatal(err, s.lastWindow)
	}
	select {
	case <-s.Changes():
		t.Error("a window that was not written counts as a change")
	default:
	}
	fs.fail = nil
	for i, want := range []usage.Set{row.Has, 0} {
		if err := add(s, row, ""); err != nil {
			t.Fatal(err)
		}
		b, err := s.readWindow(s.index[i])
		if err != nil || b.Windows[0].Rows[0].Has != want {
			t.Errorf("row %d has totals of %v, want %v; %v", i, b.Windows[0].Rows[0].Has, want, err)
		}
	}
}

// TestFullDisk checks that an acknowledged batch is removed if a window does not fit on the disk, and only then.
func TestFullDisk(t *testing.T) {
	for _, c := range []struct {
		name    string
		failure error
		remove  bool
		removed bool
	}{{"full", syscall.ENOSPC, true, true}, {"another error", errDisk, true, false}, {"full, and it cannot be removed", syscall.ENOSPC, false, false}} {
		fs := &hookFS{}
		s := spaced(t, fs)
		for range 3 {
			take(t, s)
		}
		before := len(s.batches.list)
		fs.fail = func(call, name string) error {
			if call == "remove" && !c.remove && strings.Contains(name, "/batches/") {
				return errDisk
			}
			return failIn(c.failure, "write", "windows")(call, name)
		}
		err := add(s, usage.Row{}, "")
		if !errors.Is(err, c.failure) || !c.remove && !errors.Is(err, errDisk) {
			t.Errorf("%s: %v", c.name, err)
		}
		if removed := len(s.batches.list) == before-1; removed != c.removed {
			t.Errorf("%s: %d segments became %d", c.name, before, len(s.batches.list))
		}
	}
}

// TestNoCheckpoint checks that a window without one is not a part of the checkpoint, before a restart and after it.
func TestNoCheckpoint(t *testing.T) {
	cfg := innerConfig(t)
	s := openInner(t, cfg)
	for _, c := range []struct{ books, want string }{{"", ""}, {"b", "b"}, {"", "b"}, {"d", "b d"}} {
		if err := add(s, usage.Row{}, c.books); err != nil {
			t.Fatal(err)
		}
		if got := string(bytes.Join(s.Checkpoint(), []byte(" "))); got != c.want || (s.Checkpoint() == nil) != (c.want == "") {
			t.Errorf("after %q the checkpoint is %q, want %q", c.books, got, c.want)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openInner(t, cfg)
	if got := string(bytes.Join(s.Checkpoint(), []byte(" "))); got != "b d" {
		t.Errorf("after a restart the checkpoint is %q", got)
	}
	if err := add(s, usage.Row{}, "f"); err != nil { // the first of a process is a whole one
		t.Fatal(err)
	}
	if got := s.Checkpoint(); len(got) != 1 || string(got[0]) != "f" {
		t.Errorf("the whole one: %q", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNotesAreCounted checks that notes count, and that one that does not fit is not written.
func TestNotesAreCounted(t *testing.T) {
	fs := &hookFS{}
	s := spaced(t, fs)
	for range 3 {
		take(t, s)
	}
	if err := add(s, usage.Row{}, "books"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.AppendNote(nil, func() []byte { return []byte("x") }); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Stats().Notes; n != 2 {
		t.Errorf("%d notes, want 2", n)
	}
	before := s.windows.bytes()
	s.cfg.MaxBytes = s.bytes()
	fs.fail = failIn(errDisk, "remove", "batches")
	if err := s.AppendNote(nil, func() []byte { return []byte("x") }); !errors.Is(err, errDisk) || s.windows.bytes() != before {
		t.Errorf("a note without room: %v", err)
	}
	if err := s.Begin(nil, nil); !errors.Is(err, errDisk) || len(s.checkpoints) != 1 {
		t.Errorf("a checkpoint without room: %v", err)
	}
	if err := add(s, usage.Row{}, "books"); !errors.Is(err, errDisk) || s.windows.bytes() != before {
		t.Errorf("a window without room: %v", err)
	}
	if _, _, err := s.NextOffer(s.liveStream().ID); !errors.Is(err, errDisk) || !strings.HasPrefix(err.Error(), "spool: ") {
		t.Errorf("a batch without room: %v", err)
	}
	if n := s.Stats().Notes; n != 2 {
		t.Errorf("%d notes, want 2", n)
	}
	fs.fail = nil
	segments := len(s.batches.list)
	if err := s.AppendNote(nil, func() []byte { return []byte("x") }); err != nil || len(s.batches.list) == segments {
		t.Errorf("a note for which room is made: %v", err)
	}
}

// TestSmallerCap checks that a spool that is opened with a smaller cap removes what does not fit.
func TestSmallerCap(t *testing.T) {
	cfg := innerConfig(t)
	cfg.SegmentBytes = 1
	s := openInner(t, cfg)
	for range 5 {
		if err := add(s, usage.Row{}, strings.Repeat("x", 400<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.MaxBytes = s.bytes()
	s = openInner(t, cfg)
	if st := s.Stats(); st.Bytes != cfg.MaxBytes || st.Windows != 5 || st.Dropped != 0 {
		t.Errorf("all fits: %+v", st)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.MaxBytes = 1 << 20
	s = openInner(t, cfg)
	if st := s.Stats(); st.Bytes > 1<<20 || st.Windows != 2 || st.Dropped != 3 || st.Limit != 1<<20 {
		t.Errorf("%+v", st)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A recorder keeps the texts of warnings.
type recorder struct {
	slog.Handler
	warnings *[]string
}

func (r recorder) Enabled(context.Context, slog.Level) bool { return true }

func (r recorder) Handle(_ context.Context, rec slog.Record) error {
	if rec.Level >= slog.LevelWarn {
		*r.warnings = append(*r.warnings, rec.Message)
	}
	return nil
}

// TestWarnings checks what is logged as a warning: damage that a start finds, a refused batch that cannot be kept,
// and nothing else.
func TestWarnings(t *testing.T) {
	cfg := innerConfig(t)
	fs := &hookFS{}
	cfg.FS = fs
	var warnings []string
	open := func() *Spool {
		t.Helper()
		s, err := Open(cfg, slog.New(recorder{slog.DiscardHandler, &warnings}))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	reject := func(fail func(call, name string) error, want string) {
		t.Helper()
		warnings = nil
		o := offerOne(t, s)
		fs.fail = fail
		if err := s.Reject(o.Stream, o.Number, "x"); err != nil {
			t.Fatal(err)
		}
		fs.fail = nil
		if got := strings.Join(warnings, " "); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("warnings %q, want %q", got, want)
		}
		s.liveStream().Wanted = s.liveStream().Next
	}
	reject(nil, "")
	reject(failOn(errDisk, "list aside"), "quarantine")
	for _, call := range []string{"create", "write", "sync", "close"} {
		reject(failIn(errDisk, call, "aside"), "quarantine")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	warnings = nil
	s = open()
	if len(warnings) > 0 {
		t.Errorf("warnings of a sound spool: %q", warnings)
	}
	if _, err := s.batches.append(kindState, nil, false); err != nil { // has no head
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open()
	if len(warnings) != 1 || !strings.Contains(warnings[0], "damaged") || s.stats.Corrupt != 1 {
		t.Errorf("warnings %q, %d corrupt records", warnings, s.stats.Corrupt)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestUnsentGaps checks that the time of what no server has includes gaps before the windows and behind the batch.
func TestUnsentGaps(t *testing.T) {
	s := opened(t, &hookFS{})
	want := func(from, to int64) {
		t.Helper()
		if f, u, _ := s.Unsent(); !f.Equal(wallTime(from)) || !u.Equal(wallTime(to)) {
			t.Errorf("from %v to %v, want %v, %v", f, u, wallTime(from), wallTime(to))
		}
	}
	const at = int64(1e15)
	gaps := []usage.Gap{newGap(at-9, at-8, usage.Unwatched, ""), newGap(at+15, at+25, usage.Unwatched, "")}
	if err := s.Append(&usage.Window{Boot: "b", Start: 10, End: 20, Offset: at}, nil, gaps, func(bool) []byte { return nil }, nil); err != nil {
		t.Fatal(err)
	}
	want(at-9, at+20)
	if _, ok, err := s.NextOffer(s.liveStream().ID); !ok || err != nil {
		t.Fatal(ok, err)
	}
	want(at-9, at+25)
	k := &s.stored[s.liveStream().ID][0]
	k.acked = 1
	want(at-9, at+25) // the server wants it again
	s.liveStream().Wanted = 2
	if f, u, _ := s.Unsent(); !f.IsZero() || !u.IsZero() {
		t.Errorf("all is sent, and from %v to %v not", f, u)
	}
	k.acked = 0
	want(at-9, at+25) // that it has it is not on disk
	if st := s.Stats(); st.Waiting != s.windows.bytes()+int64(k.location.size) {
		t.Errorf("%d bytes wait", st.Waiting)
	}
}

// TestStreamBytes checks how many bytes wait in each stream.
func TestStreamBytes(t *testing.T) {
	s := opened(t, &hookFS{})
	fill(t, s, 2)
	if done, err := s.SplitBacklog(time.Now().Add(1000 * time.Hour)); !done || err != nil {
		t.Fatal(done, err)
	}
	if got, want := s.liveStream().Through, s.lastEnd; got != want || got == 0 {
		t.Errorf("the new stream begins at %d, want %d", got, want)
	}
	fill(t, s, 1)
	var want []string
	for _, list := range [][]window{s.index[:2], s.index[2:]} {
		var bytes int
		for _, w := range list {
			bytes += w.location.size
		}
		want = append(want, fmt.Sprintf("%d windows, %d bytes", len(list), bytes))
	}
	var got []string
	for _, st := range s.Streams() {
		got = append(got, fmt.Sprintf("%d windows, %d bytes", st.Windows, st.Bytes))
	}
	if !slices.Equal(got, want) {
		t.Errorf("streams have %q, want %q", got, want)
	}
	if n := s.Stats().Streams; n != 2 {
		t.Errorf("%d streams have data", n)
	}
}

// TestFirstStream checks that the first stream begins now.
func TestFirstStream(t *testing.T) {
	before := time.Now().UnixNano()
	s := opened(t, &hookFS{})
	if got := s.liveStream().Through; got < before || got > time.Now().UnixNano() || s.liveStream().From != 1 {
		t.Errorf("%+v, opened after %d", s.liveStream(), before)
	}
}

// TestStateRecords checks which streams a record has: all at the beginning of a segment, and else those that
// changed. Records are numbered.
func TestStateRecords(t *testing.T) {
	cfg := innerConfig(t)
	s := openInner(t, cfg)
	fill(t, s, 1)
	old := s.liveStream().ID
	if done, err := s.SplitBacklog(time.Now().Add(1000 * time.Hour)); !done || err != nil { // changes both
		t.Fatal(done, err)
	}
	if _, ok, err := s.NextOffer(old); !ok || err != nil { // changes the first one
		t.Fatal(ok, err)
	}
	s.dirty[s.liveStream().ID] = true
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // nothing is left to write
		if err := s.flush(); err != nil {
			t.Fatal(err)
		}
	}
	s.batches.size = 1
	s.dirty[old] = true
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for number := range uint64(2) {
		scanRecords(read(t, s.batches, number+1), number+1, func(_ int64, _ byte, payload []byte) {
			var head stateHead
			body, err := unpack(payload, &head)
			if err != nil || (head.Batch != nil) != (len(body) > 0) || head.Top != 1 && head.Serial > 1 {
				t.Errorf("%+v, %v", head, err)
			}
			got = append(got, fmt.Sprintf("%d: %d all %t", head.Serial, len(head.Streams), head.All))
		})
	}
	if want := []string{"1: 1 all true", "2: 2 all false", "3: 1 all false", "4: 1 all false", "5: 2 all true"}; !slices.Equal(got, want) {
		t.Errorf("records %q, want %q", got, want)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestStoredBatches checks that batches are found by their numbers, in whichever order they are stored.
func TestStoredBatches(t *testing.T) {
	id := batch.Stream{1}
	s := &Spool{stored: map[batch.Stream][]storedBatch{}}
	for _, n := range []uint64{5, 2, 9, 2} {
		s.addStored(storedBatch{batchHead: batchHead{Stream: id, Number: n}, acked: int64(len(s.stored[id]))})
	}
	for n, want := range map[uint64]uint64{0: 2, 1: 2, 2: 2, 3: 5, 5: 5, 6: 9, 9: 9, 10: 0} {
		if k, ok := s.findBatch(id, n); k.Number != want || ok != (want > 0) {
			t.Errorf("from %d on there is %d, %t; want %d", n, k.Number, ok, want)
		}
	}
	if k, _ := s.findBatch(id, 2); k.acked != 3 || len(s.stored[id]) != 3 {
		t.Errorf("of batch 2 the copy %+v is kept, of %d batches", k, len(s.stored[id]))
	}
	s.removeBatch(id, 5)
	if k, _ := s.findBatch(id, 3); k.Number != 9 || len(s.stored[id]) != 2 {
		t.Errorf("after the removal of 5 there is %d", k.Number)
	}
	st := &stream{ID: id, Wanted: 3, Next: 9}
	if k, ok := s.findOffered(st); ok {
		t.Errorf("batch %d is offered, which was not made", k.Number)
	}
	if st.Next = 10; true {
		if k, ok := s.findOffered(st); !ok || k.Number != 9 {
			t.Errorf("batch %d is offered, %t", k.Number, ok)
		}
	}
}

// TestMarkAcked checks since when batches are not needed: since the first record that says so, until they are
// needed again.
func TestMarkAcked(t *testing.T) {
	id := batch.Stream{1}
	st := &stream{ID: id, Wanted: 3, Next: 5}
	s := &Spool{stored: map[batch.Stream][]storedBatch{}, streams: []*stream{st}}
	for n := range uint64(4) {
		s.addStored(storedBatch{batchHead: batchHead{Stream: id, Number: n + 1}})
	}
	for _, c := range []struct {
		wanted uint64
		at     int64
		want   []int64
	}{{1, 7, []int64{0, 0, 0, 0}}, {3, 10, []int64{10, 10, 0, 0}}, {4, 20, []int64{10, 10, 20, 0}}, {5, 30, []int64{10, 10, 20, 30}}, {2, 40, []int64{10, 0, 0, 0}}, {5, 50, []int64{10, 50, 50, 50}}, {5, 60, []int64{10, 50, 50, 50}}} {
		st.Wanted = c.wanted
		s.markAcked(c.at)
		var got []int64
		for _, k := range s.stored[id] {
			got = append(got, k.acked)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("batch %d is wanted at %d: not needed since %v, want %v", c.wanted, c.at, got, c.want)
		}
	}
}

// TestDropFinished checks which streams are forgotten, and that the others know when they began.
func TestDropFinished(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(st *stream)
		stored []uint64
		gone   bool
		began  int64
	}{
		{"done", func(*stream) {}, nil, true, 40},
		{"with a batch", func(*stream) {}, []uint64{2}, false, 0},
		{"with a batch that another stream inherited", func(*stream) {}, []uint64{3}, true, 40},
		{"with batches of both", func(*stream) {}, []uint64{2, 3}, false, 0},
		{"after an earlier one", func(st *stream) { st.EarlierStart = 30 }, nil, true, 30},
		{"without batches", func(st *stream) { st.FirstStart = 0 }, nil, true, 0},
		{"with a gap", func(st *stream) { st.Gaps = []usage.Gap{{}} }, nil, false, 0},
	} {
		st := &stream{ID: batch.Stream{1}, Wanted: 3, Next: 3, FirstStart: 40}
		live := &stream{ID: batch.Stream{2}, Live: true}
		s := &Spool{stored: map[batch.Stream][]storedBatch{}, streams: []*stream{st, live}, dirty: map[batch.Stream]bool{}}
		for _, n := range c.stored {
			s.addStored(storedBatch{batchHead: batchHead{Stream: st.ID, Number: n}})
		}
		c.change(st)
		s.dropFinished()
		if gone := len(s.streams) == 1; gone != c.gone || live.EarlierStart != c.began || s.dirty[live.ID] != (c.began != 0) {
			t.Errorf("%s: gone %t, the live one knows %d, to be written %t", c.name, gone, live.EarlierStart, s.dirty[live.ID])
		}
		live.EarlierStart = 20
		clear(s.dirty)
		if s.dropFinished(); live.EarlierStart != 20 || len(s.dirty) > 0 {
			t.Errorf("%s: the live one knows %d after 20", c.name, live.EarlierStart)
		}
	}
}

// TestStreamOrder checks that streams are sorted by their windows, the live one last.
func TestStreamOrder(t *testing.T) {
	of := func(id byte, from uint64, live bool) *stream {
		return &stream{ID: batch.Stream{id}, From: from, Live: live}
	}
	before := []*stream{of(1, 5, false), of(2, 3, true)}
	after := replaceStreams(before, []*stream{of(3, 4, false), of(2, 3, false), of(4, 1, true)})
	var got []byte
	for _, st := range after {
		got = append(got, '0'+st.ID[0])
	}
	if string(got) != "2314" || len(before) != 2 || !before[1].Live {
		t.Errorf("streams %s, want 2314; before %v", got, before)
	}
}

// TestWriteFaults checks that nothing changes if the state cannot be written, and that the error is returned.
func TestWriteFaults(t *testing.T) {
	for name, call := range map[string]func(s *Spool) error{
		"a conflict":             func(s *Spool) error { return reply(s, batch.Reply{Verdict: batch.Conflict, Next: 1}) },
		"a server that is ahead": func(s *Spool) error { return reply(s, batch.Reply{Verdict: batch.OutOfOrder, Next: 9, Booked: true}) },
		"a backlog": func(s *Spool) error {
			_, err := s.SplitBacklog(time.Now().Add(1000 * time.Hour))
			return err
		},
		"a batch":          func(s *Spool) error { _, _, err := s.compose(s.liveStream()); return err },
		"windows too many": func(s *Spool) error { _, err := s.dropWindows(); return err },
		"batches too many": func(s *Spool) error { _, err := s.dropBatches(); return err },
		"a note of a loss": func(s *Spool) error {
			st := &stream{ID: batch.Stream{1}, Next: 2, Wanted: 1}
			s.streams = append([]*stream{st}, s.streams...)
			defer func() { s.streams = s.streams[1:] }()
			return s.handOverLosses(st)
		},
	} {
		fs := &hookFS{}
		s := spaced(t, fs)
		offerOne(t, s)
		fill(t, s, 2)
		st := s.liveStream()
		before := fmt.Sprintf("%+v %+v %v", st, s.index, s.totals)
		fs.fail = failIn(errDisk, "create", "batches")
		if err := call(s); !errors.Is(err, errDisk) {
			t.Errorf("%s: %v", name, err)
		}
		fs.fail = nil
		if after := fmt.Sprintf("%+v %+v %v", s.liveStream(), s.index, s.totals); name != "a server that is ahead" && after != before {
			t.Errorf("%s: %s, before %s", name, after, before)
		}
	}
}

// reply applies a reply to the live stream.
func reply(s *Spool, r batch.Reply) error {
	_, err := s.ApplyReply(s.liveStream().ID, r)
	return err
}

// TestClone checks that a change of a copy leaves the stream as it is.
func TestClone(t *testing.T) {
	st := &stream{History: make([]historyEntry, 1, 9), Gaps: make([]usage.Gap, 1, 9), Inherited: make([]inheritedBatch, 1, 9), Missing: make([]missingBatch, 1, 9)}
	c := st.clone()
	c.History[0].Number, c.Gaps[0].Detail, c.Inherited[0].Number, c.Missing[0].Number = 7, "x", 7, 7
	if st.History[0].Number+st.Inherited[0].Number+st.Missing[0].Number > 0 || st.Gaps[0].Detail != "" {
		t.Errorf("%+v", st)
	}
}

// TestChanges checks that windows for which no reader waited count as one change.
func TestChanges(t *testing.T) {
	s := opened(t, &hookFS{})
	fill(t, s, 3)
	<-s.Changes()
	select {
	case <-s.Changes():
		t.Error("another change")
	default:
	}
	gap := usage.Gap{From: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)} // beyond what a batch can state
	if err := s.Append(&usage.Window{Boot: "boot", Start: 30e9, End: 31e9}, nil, []usage.Gap{gap}, func(bool) []byte { return nil }, nil); err == nil || len(s.index) != 3 || s.lastWindow != 3 {
		t.Errorf("a window that cannot be written: %v, %d windows", err, len(s.index))
	}
}
