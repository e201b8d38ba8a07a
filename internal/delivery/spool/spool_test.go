package spool_test

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/faultfs"
)

// onDisk returns the configuration of a spool in a temporary directory.
func onDisk(t *testing.T) spool.Config {
	t.Helper()
	cfg := spool.Default()
	cfg.Dir = filepath.Join(t.TempDir(), "state", "spool")
	return cfg
}

func appendTicks(t *testing.T, s *spool.Spool, a *agent, ticks ...int64) {
	t.Helper()
	for _, n := range ticks {
		if err := a.window(s, n, nil); err != nil {
			t.Fatal(err)
		}
	}
}

func shut(t tb, s *spool.Spool) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// wall returns the wall time of a boottime of the model's machine.
func wall(at int64) time.Time { return time.Unix(0, started+at).UTC() }

func live(s *spool.Spool) batch.Stream {
	all := s.Streams()
	return all[len(all)-1].Stream
}

func TestDirectory(t *testing.T) {
	cfg := onDisk(t)
	s := openSpool(t, cfg)
	appendTicks(t, s, &agent{}, 1)
	if _, err := spool.Open(cfg, quiet()); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("opened twice: %v", err)
	}
	err := filepath.WalkDir(cfg.Dir, func(path string, d fs.DirEntry, err error) error {
		info, err2 := d.Info()
		if err != nil || err2 != nil {
			return errors.Join(err, err2)
		}
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, want %v", path, info.Mode().Perm(), want)
		}
		return nil
	})
	if err := errors.Join(err, s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = openSpool(t, cfg)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := (&agent{}).window(s, 1, nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("appended to a closed spool: %v", err)
	}
}

// The spool offers the same bytes until a server acknowledges them, also after a restart.
func TestOfferIsStableUntilReply(t *testing.T) {
	cfg := onDisk(t)
	s := openSpool(t, cfg)
	a := agent{}
	appendTicks(t, s, &a, 1, 1)
	id := live(s)
	first, ok, err := s.NextOffer(id)
	if err != nil || !ok || first.Number != 1 {
		t.Fatalf("%+v, %v, %v", first, ok, err)
	}
	if want := time.Unix(0, started+2*tick); !first.Through.Equal(want) {
		t.Errorf("through %v, want %v", first.Through, want)
	}
	appendTicks(t, s, &a, 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openSpool(t, cfg)
	defer shut(t, s)
	again, ok, err := s.NextOffer(id)
	if err != nil || !ok || again.Number != 1 || again.Hash != first.Hash || !bytes.Equal(again.Bytes, first.Bytes) || !again.Through.Equal(first.Through) {
		t.Fatalf("%+v, %v, %v", again, ok, err)
	}
	if _, err := s.ApplyReply(id, batch.Reply{Verdict: batch.Accepted, Next: 2}); err != nil {
		t.Fatal(err)
	}
	second, ok, err := s.NextOffer(id)
	if err != nil || !ok || second.Number != 2 {
		t.Fatalf("%+v, %v, %v", second, ok, err)
	}
	b, err := wire.Decode(second.Bytes, wire.Default())
	if err != nil || b.Previous != first.Hash || len(b.Windows) != 1 {
		t.Fatalf("%+v, %v", b, err)
	}
	if _, err := s.ApplyReply(id, batch.Reply{Verdict: batch.Accepted, Next: 3}); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := s.NextOffer(id); ok || err != nil {
		t.Errorf("offer without waiting windows: %v, %v", ok, err)
	}
	if _, _, err := s.NextOffer(batch.Stream{1}); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("no such stream: %v", err)
	}
	if _, err := s.ApplyReply(id, batch.Reply{}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("no verdict: %v", err)
	}
}

// A checkpoint is a full one and the changes since; the first one of a process is full.
func TestCheckpoint(t *testing.T) {
	cfg := onDisk(t)
	a := agent{}
	for range 2 {
		s := openSpool(t, cfg)
		appendTicks(t, s, &a, 1, 1, 1)
		var got []byte
		for _, part := range s.Checkpoint() {
			got = append(got, part[0])
		}
		if string(got) != "fdd" {
			t.Errorf("checkpoint %q, want a full part and two changes", got)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Waiting windows are merged into longer ones with edges at whole spans.
func TestMerge(t *testing.T) {
	cfg := config(faultfs.New(func(int) int { return 0 }))
	cfg.MaxBytes = 1 << 30
	cfg.SegmentBytes = 4 << 10
	s := openSpool(t, cfg)
	defer shut(t, s)
	a, v := agent{}, newServer()
	for range 6 * 60 * 30 { // 30 hours of 10 s
		appendTicks(t, s, &a, 1)
	}
	before := s.Stats()
	if err := s.Maintain(time.Unix(0, started+a.now)); err != nil {
		t.Fatal(err)
	}
	after := s.Stats()
	// 4 windows of an hour, 24 hours of 12, 2 hours of 360, and some in the last segments.
	if want := 4 + 24*12 + 2*360; after.Windows < want || after.Windows > want+100 || after.Bytes > before.Bytes/4 {
		t.Errorf("%d windows in %d bytes, of %d in %d; want about %d", after.Windows, after.Bytes, before.Windows, before.Bytes, want)
	}
	drain(t, s, v)
	if alone := v.check(t, a.now); alone != 0 || len(v.gaps) > 0 {
		t.Errorf("gaps: %v", v.gaps)
	}
	for _, w := range v.taken {
		from, to := time.Unix(0, w.Start+w.Offset), time.Unix(0, w.End+w.Offset)
		span := 5 * time.Minute
		if w.End-w.Start > int64(span) {
			span = time.Hour
		}
		if from.Truncate(span).Add(span).Before(to) {
			t.Errorf("window %v - %v crosses an edge of %v", from, to, span)
		}
	}
}

// A window that covers a pause of the agent is not merged into the previous one: a server that
// has booked some of its time refuses all of it.
func TestMergeKeepsPauses(t *testing.T) {
	cfg := config(faultfs.New(func(int) int { return 0 }))
	cfg.MaxBytes = 1 << 30
	cfg.SegmentBytes = 4 << 10
	s := openSpool(t, cfg)
	defer shut(t, s)
	at, pauses := int64(0), 0
	for i := range 6 * 60 * 4 { // 4 hours of 10 s
		reason := usage.StartContinued
		if i%100 == 50 {
			reason, pauses = usage.StartResumed, pauses+1
		}
		if err := s.Append(between(at, at+tick, reason), nil, nil, func(bool) []byte { return nil }, nil); err != nil {
			t.Fatal(err)
		}
		at += tick
	}
	if err := s.Maintain(time.Unix(0, started+at)); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Merged == 0 {
		t.Fatal("nothing was merged")
	}
	v := newServer()
	drain(t, s, v)
	for _, w := range v.taken {
		if w.StartReason == usage.StartResumed {
			pauses--
			if (w.Start/tick)%100 != 50 {
				t.Errorf("the window from %d ns covers no pause", w.Start)
			}
		}
	}
	if pauses != 0 {
		t.Errorf("%d windows that cover a pause are merged into others", pauses)
	}
}

// TestMergedRowsAreInOrder checks that merged windows have their rows in the order of
// ShortIDs, whichever workloads each window had.
func TestMergedRowsAreInOrder(t *testing.T) {
	cfg := config(faultfs.New(func(int) int { return 0 }))
	cfg.MaxBytes = 1 << 30
	cfg.SegmentBytes = 4 << 10
	s := openSpool(t, cfg)
	defer shut(t, s)
	at := int64(0)
	for i := range 6 * 60 * 4 { // 4 hours of 10 s
		w := between(at, at+tick, usage.StartContinued)
		w.Rows = w.Rows[workloads-1-i%workloads:][:1]
		if err := s.Append(w, nil, nil, func(bool) []byte { return nil }, nil); err != nil {
			t.Fatal(err)
		}
		at += tick
	}
	if err := s.Maintain(time.Unix(0, started+at)); err != nil {
		t.Fatal(err)
	}
	o, ok, err := s.NextOffer(s.Streams()[0].Stream)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	b, err := wire.Decode(o.Bytes, wire.Default())
	if err != nil {
		t.Fatal(err)
	}
	merged := 0
	for _, w := range b.Windows {
		if len(w.Rows) == workloads {
			merged++
		}
		if !slices.IsSortedFunc(w.Rows, func(a, b usage.Row) int { return cmp.Compare(a.ShortID, b.ShortID) }) {
			t.Fatalf("rows of the window of %v are out of order", w.Length())
		}
	}
	if merged < 20 {
		t.Errorf("%d windows were merged, want 20 and more", merged)
	}
}

func TestSplitBacklog(t *testing.T) {
	s := openSpool(t, onDisk(t))
	defer shut(t, s)
	a := agent{}
	appendTicks(t, s, &a, 1)
	now := func() time.Time { return time.Unix(0, started+a.now) }
	if did, err := s.SplitBacklog(now().Add(9 * time.Minute)); did || err != nil {
		t.Fatalf("after 9 minutes: %v, %v", did, err)
	}
	for i := range 4 {
		a.now += int64(11 * time.Minute)
		if did, err := s.SplitBacklog(now()); err != nil || did != (i < 3) {
			t.Fatalf("with %d streams: %v, %v", i+1, did, err)
		}
		appendTicks(t, s, &a, 1)
	}
	all := s.Streams()
	for i, st := range all {
		if st.Live != (i == 3) || st.Windows == 0 || st.Next != 1 || st.Oldest.IsZero() {
			t.Errorf("stream %d: %+v", i, st)
		}
	}
	if len(all) != 4 {
		t.Errorf("%d streams", len(all))
	}
	for _, st := range all {
		o, _, err := s.NextOffer(st.Stream)
		if err != nil {
			t.Fatal(err)
		}
		b, err := wire.Decode(o.Bytes, wire.Default())
		if err != nil || b.Windows[0].Rows[0].Has == 0 {
			t.Errorf("%v: the first row has no total; %v", st.Stream, err)
		}
	}
	v := newServer()
	drain(t, s, v)
	if alone := v.check(t, a.now); alone != 0 || len(s.Streams()) != 1 {
		t.Errorf("gaps: %v; streams: %v", v.gaps, s.Streams())
	}
}

func TestReject(t *testing.T) {
	cfg := onDisk(t)
	s := openSpool(t, cfg)
	defer shut(t, s)
	a, v := agent{}, newServer()
	appendTicks(t, s, &a, 1)
	o, _, err := s.NextOffer(live(s))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Reject(o.Stream, 7, "x"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("reject of an unknown batch: %v", err)
	}
	if err := s.Reject(o.Stream, o.Number, strings.Repeat("x", 10_000)); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(filepath.Join(cfg.Dir, "aside", o.Stream.String()+"-1.batch"))
	if err != nil || !bytes.Equal(kept, o.Bytes) {
		t.Errorf("%d bytes of %d in quarantine: %v", len(kept), len(o.Bytes), err)
	}
	appendTicks(t, s, &a, 1)
	drain(t, s, v)
	if alone := v.check(t, a.now); alone != tick || len(v.gaps) != 1 || v.gaps[0].Reason != usage.Refused || len(v.gaps[0].Detail) != 500 {
		t.Errorf("gaps: %v", v.gaps)
	}
}

// A server that lost everything gets the stored batches and a gap for the rest.
func TestWipedServerGetsGap(t *testing.T) {
	cfg := onDisk(t)
	cfg.SegmentBytes = 1
	s := openSpool(t, cfg)
	defer shut(t, s)
	a, v := agent{}, newServer()
	for range 5 {
		appendTicks(t, s, &a, 1)
		drain(t, s, v)
	}
	// All but the last segment is older than 24 h.
	if err := s.Maintain(time.Now().Add(25 * time.Hour)); err != nil {
		t.Fatal(err)
	}
	appendTicks(t, s, &a, 1)
	v = newServer()
	drain(t, s, v)
	v.check(t, a.now)
	if len(v.gaps) != 1 || v.gaps[0].Reason != usage.Forgotten || !v.gaps[0].From.Equal(time.Unix(0, started)) {
		t.Errorf("gaps: %v", v.gaps)
	}
}

// If a server goes back in one stream, the spool offers the last batches of the others again.
func TestServerWentBack(t *testing.T) {
	s := openSpool(t, onDisk(t))
	defer shut(t, s)
	a, v := agent{}, newServer()
	appendTicks(t, s, &a, 1)
	a.now += int64(11 * time.Minute)
	if did, err := s.SplitBacklog(time.Unix(0, started+a.now)); !did || err != nil {
		t.Fatal(did, err)
	}
	old := v.backup()
	appendTicks(t, s, &a, 1)
	drain(t, s, v)
	if all := s.Streams(); len(all) != 1 {
		t.Fatalf("streams: %v", all)
	}
	appendTicks(t, s, &a, 1)
	if _, err := exchange(t, s, old, live(s), false); err != nil {
		t.Fatal(err)
	}
	if all := s.Streams(); len(all) != 2 || all[0].Next != 1 || all[1].Next != 1 {
		t.Errorf("streams: %v", all)
	}
	drain(t, s, old)
	if alone := old.check(t, a.now); alone != 0 {
		t.Errorf("gaps: %v", old.gaps)
	}
}

// Append, exchange and Maintain run concurrently.
func TestConcurrency(t *testing.T) {
	cfg := config(faultfs.New(func(int) int { return 0 }))
	cfg.SegmentBytes = 1 << 10
	s := openSpool(t, cfg)
	a, v := agent{}, newServer()
	appended, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		var err error
		for range 200 {
			err = errors.Join(err, a.window(s, 1, nil))
		}
		appended <- err
	}()
	tidied := make(chan error, 1)
	go func() {
		var err error
		for range 50 {
			err = errors.Join(err, s.Maintain(time.Unix(0, started).Add(24*time.Hour)))
			s.Stats()
			s.Checkpoint()
		}
		tidied <- err
	}()
	for running := true; running; {
		select {
		case <-s.Changes():
			drain(t, s, v)
		case <-done:
			running = false
		}
	}
	if err := errors.Join(<-appended, <-tidied); err != nil {
		t.Fatal(err)
	}
	drain(t, s, v)
	if alone := v.check(t, a.now); alone != 0 {
		t.Errorf("gaps: %v", v.gaps)
	}
	shut(t, s)
}

// fill writes a file.
func fill(t testing.TB, fs spool.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}

// A spool opens and works with any content of valid records.
func FuzzOpen(f *testing.F) {
	fs := faultfs.New(func(int) int { return 0 })
	s, err := spool.Open(config(fs), quiet())
	if err != nil {
		f.Fatal(err)
	}
	a := agent{}
	for range 2 {
		if err := a.window(s, 1, nil); err != nil {
			f.Fatal(err)
		}
		if _, _, err := s.NextOffer(live(s)); err != nil {
			f.Fatal(err)
		}
	}
	const segment = "/0000000000000001.seg"
	windows, batches := spool.Payloads(fs.Read("spool/windows"+segment)), spool.Payloads(fs.Read("spool/batches"+segment))
	f.Add(windows[0], windows[1], batches[0], batches[1])
	f.Add(windows[1], windows[0], batches[1], batches[0])
	f.Add([]byte{}, []byte{2, 0, 0, 0, '{', '}'}, []byte{}, []byte{4, 0, 0, 0, 'n', 'u', 'l', 'l'})
	f.Fuzz(func(t *testing.T, w1, w2, b1, b2 []byte) {
		fs := faultfs.New(func(int) int { return 0 })
		fill(t, fs, "spool/windows"+segment, spool.Segment(1, w1, w2))
		fill(t, fs, "spool/batches"+segment, spool.Segment(2, b1, b2))
		s := openSpool(t, config(fs))
		s.Checkpoint()
		s.Stats()
		a := agent{now: int64(time.Hour)}
		appendTicks(t, s, &a, 1)
		for _, st := range s.Streams() {
			for range 2 {
				if o, ok, err := s.NextOffer(st.Stream); err == nil && ok {
					_, _ = s.ApplyReply(st.Stream, batch.Reply{Verdict: batch.Accepted, Next: o.Number + 1})
				}
			}
			_, _ = s.ApplyReply(st.Stream, batch.Reply{Verdict: batch.OutOfOrder, Next: 1})
			_, _ = s.ApplyReply(st.Stream, batch.Reply{Verdict: batch.Conflict, Next: 1})
		}
		_ = s.Maintain(time.Now())
		_ = s.Close()
	})
}
