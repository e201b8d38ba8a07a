package spool

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// TestForgottenStreams checks when a server that lacks the first batch of a stream, after it had it, gets a
// gap for the earlier streams, which the spool no longer has. The stream began at 50, the earlier ones at 20.
func TestForgottenStreams(t *testing.T) {
	gap := []usage.Gap{newGap(20, 50, usage.Forgotten, "")}
	for _, c := range []struct {
		name        string
		wanted, had uint64
		earlier     int64
		reply       batch.Reply
		want        []usage.Gap
		most        uint64
	}{
		{"went back to the first", 3, 3, 20, batch.Reply{Verdict: batch.OutOfOrder, Next: 1}, gap, 3},
		{"went back from the second to the first", 2, 2, 20, batch.Reply{Verdict: batch.OutOfOrder, Next: 1}, gap, 2},
		{"went back to the second", 3, 3, 20, batch.Reply{Verdict: batch.OutOfOrder, Next: 2}, nil, 3},
		{"is still at the first", 1, 3, 20, batch.Reply{Verdict: batch.OutOfOrder, Next: 1}, nil, 3},
		{"is still at the second", 2, 2, 20, batch.Reply{Verdict: batch.OutOfOrder, Next: 2}, nil, 2},
		{"takes the first again", 1, 3, 20, batch.Reply{Verdict: batch.Accepted, Next: 2}, gap, 3},
		{"has the first", 1, 3, 20, batch.Reply{Verdict: batch.Duplicate, Next: 2}, nil, 3},
		{"takes the second", 2, 3, 20, batch.Reply{Verdict: batch.Accepted, Next: 3}, nil, 3},
		{"takes the first", 1, 1, 20, batch.Reply{Verdict: batch.Accepted, Next: 2}, nil, 2},
		{"takes the first of a new stream", 1, 0, 20, batch.Reply{Verdict: batch.Accepted, Next: 2}, nil, 2},
		{"there was no earlier stream", 3, 3, 0, batch.Reply{Verdict: batch.OutOfOrder, Next: 1}, nil, 3},
		{"the earlier one began later", 3, 3, 51, batch.Reply{Verdict: batch.OutOfOrder, Next: 1}, nil, 3},
		{"the earlier one began with it", 3, 3, 50, batch.Reply{Verdict: batch.OutOfOrder, Next: 1}, nil, 3},
	} {
		s := opened(t, &hookFS{})
		live := s.liveStream()
		st := &stream{ID: batch.Stream{1}, Next: 3, Wanted: c.wanted, MaxWanted: c.had, EarlierStart: c.earlier, FirstStart: 50}
		s.streams = []*stream{st, live}
		clear(s.dirty)
		s.applyReply(st, c.reply)
		if !slices.Equal(live.Gaps, c.want) || s.dirty[live.ID] != (c.want != nil) {
			t.Errorf("%s: gaps %v, to be written: %t; want %v", c.name, live.Gaps, s.dirty[live.ID], c.want)
		}
		if st.MaxWanted != c.most || st.Wanted != c.reply.Next || s.dirty[st.ID] != (c.wanted != c.reply.Next) {
			t.Errorf("%s: it had %d and wants %d, to be written: %t", c.name, st.MaxWanted, st.Wanted, s.dirty[st.ID])
		}
	}
}

// TestReplyReason checks the reason of the gap for batches that the spool does not have: the server lost them if
// it went back, or else the spool. It checks too which given up batches are remembered after a reply.
func TestReplyReason(t *testing.T) {
	for _, c := range []struct {
		name    string
		reply   batch.Reply
		missing string
		why     usage.Reason // 0 if nothing is lost
	}{
		{"back", batch.Reply{Verdict: batch.OutOfOrder, Next: 2}, "234", usage.Forgotten},
		{"the same", batch.Reply{Verdict: batch.OutOfOrder, Next: 3}, "234", usage.Corrupt},
		{"forward", batch.Reply{Verdict: batch.OutOfOrder, Next: 5}, "234", usage.Corrupt},
		{"accepted", batch.Reply{Verdict: batch.Accepted, Next: 4}, "4", 0},
		{"duplicate", batch.Reply{Verdict: batch.Duplicate, Next: 5}, "", 0},
		{"accepted, one before", batch.Reply{Verdict: batch.Accepted, Next: 3}, "34", 0},
	} {
		s := opened(t, &hookFS{})
		st := &stream{ID: batch.Stream{1}, From: 1, Live: true, Next: 9, Wanted: 3, Through: 90}
		for _, n := range "234" {
			st.Missing = append(st.Missing, missingBatch{Number: uint64(n - '0'), Gap: newGap(0, 1, usage.Refused, "")})
		}
		s.streams = []*stream{st}
		l := s.applyReply(st, c.reply)
		var missing strings.Builder
		for _, m := range st.Missing {
			missing.WriteByte(byte('0' + m.Number))
		}
		if missing.String() != c.missing || (l != nil) != (c.why != 0) {
			t.Errorf("%s: missing %s, want %s; loss %+v", c.name, missing.String(), c.missing, l)
		}
		st.Missing = nil
		if l = s.applyReply(st, batch.Reply{Verdict: c.reply.Verdict, Next: st.Wanted}); l != nil && l.Gap.Reason != usage.Corrupt {
			t.Errorf("%s: then again: %+v", c.name, l)
		}
		st.Wanted = 3
		if l = s.applyReply(st, c.reply); l != nil && l.Gap.Reason != c.why {
			t.Errorf("%s: the gap is %v, want the reason %v", c.name, l.Gap, c.why)
		}
	}
}

// TestLossBackwards checks that the gap of a lost batch is not a negative time if the clock was set back.
func TestLossBackwards(t *testing.T) {
	s := &Spool{}
	st := &stream{FirstStart: 50}
	if got := s.lossGap(st, 1, 1, 30, usage.Corrupt); got != newGap(30, 50, usage.Corrupt, "") {
		t.Errorf("gap %v", got)
	}
	st.Missing = []missingBatch{{2, newGap(60, 70, usage.Refused, "")}, {1, newGap(40, 50, usage.Refused, "")}, {3, newGap(55, 65, usage.Refused, "")}}
	if got := s.lossGap(st, 1, 3, 30, usage.Corrupt); got != newGap(40, 70, usage.Refused, "") {
		t.Errorf("gap of three in another order: %v", got)
	}
}

// TestMissingOnce checks that a batch that is given up twice counts once.
func TestMissingOnce(t *testing.T) {
	st := &stream{}
	for _, n := range []uint64{4, 5, 4, 5} {
		st.addMissing(n, usage.Gap{})
	}
	if len(st.Missing) != 2 || st.Missing[0].Number != 4 || st.Missing[1].Number != 5 {
		t.Errorf("missing %v", st.Missing)
	}
}

// offerOne appends a window and returns its batch.
func offerOne(t *testing.T, s *Spool) Offer {
	t.Helper()
	fill(t, s, 1)
	o, ok, err := s.NextOffer(s.liveStream().ID)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	return o
}

// TestReplyIsKept checks that what a reply changed is on disk after Close: a number, a batch that was passed,
// one that was refused or is unreadable, and one that is offered again.
func TestReplyIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, s *Spool, o Offer)
		wanted uint64
		lost   int
	}{
		"accepted": {func(t *testing.T, s *Spool, o Offer) {
			if _, err := s.ApplyReply(o.Stream, batch.Reply{Verdict: batch.Accepted, Next: 3}); err != nil {
				t.Fatal(err)
			}
		}, 3, 0},
		"passed": {func(t *testing.T, s *Spool, o Offer) {
			if _, err := s.ApplyReply(o.Stream, batch.Reply{Verdict: batch.Duplicate, Next: 9, Booked: true}); err != nil {
				t.Fatal(err)
			}
		}, 2, 0},
		"unreadable": {func(t *testing.T, s *Spool, o Offer) {
			k, _ := s.findBatch(o.Stream, 1)
			f, err := os.OpenFile(s.batches.name(1), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte("?"), k.location.offset+recordHeadSize); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if o, ok, err := s.NextOffer(o.Stream); !ok || err != nil || o.Number != 2 {
				t.Fatal(o.Number, ok, err)
			}
		}, 1, 1},
		"offered again": {func(t *testing.T, s *Spool, o Offer) {
			if _, err := s.ApplyReply(o.Stream, batch.Reply{Verdict: batch.Accepted, Next: 3}); err != nil {
				t.Fatal(err)
			}
			if err := s.flush(); err != nil {
				t.Fatal(err)
			}
			s.reofferLast(func(*stream) bool { return true })
		}, 2, 0},
	} {
		cfg := innerConfig(t)
		s := openInner(t, cfg)
		o := offerOne(t, s)
		fill(t, s, 1)
		b, ok, err := s.compose(s.liveStream())
		if err != nil || !ok || b.Number != 2 {
			t.Fatal(b.Number, ok, err)
		}
		c.change(t, s, o)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openInner(t, cfg)
		if st := s.liveStream(); st.Wanted != c.wanted || len(st.Missing) != c.lost {
			t.Errorf("%s: batch %d is wanted, want %d; missing %v", name, st.Wanted, c.wanted, st.Missing)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRejectIsWritten checks that a refused batch is given up at once, and that refusing the first one of a
// stream that the server had makes a gap for the earlier streams.
func TestRejectIsWritten(t *testing.T) {
	for number, gaps := range map[uint64]int{1: 1, 2: 0} {
		s := opened(t, &hookFS{})
		o := offerOne(t, s)
		fill(t, s, 1)
		if _, _, err := s.compose(s.liveStream()); err != nil {
			t.Fatal(err)
		}
		st := s.liveStream()
		st.MaxWanted, st.EarlierStart = 2, st.FirstStart-5e9
		serial := s.serial
		if err := s.Reject(o.Stream, number, "why"); err != nil {
			t.Fatal(err)
		}
		if s.serial != serial+1 || len(s.dirty) != 0 || len(s.liveStream().Gaps) != gaps || len(s.stored[o.Stream]) != 1 {
			t.Errorf("batch %d: record %d after %d, gaps %v", number, s.serial, serial, s.liveStream().Gaps)
		}
	}
}

// TestFirstStart checks that a stream remembers the start of its first batch, with its gaps.
func TestFirstStart(t *testing.T) {
	s := opened(t, &hookFS{})
	w := &usage.Window{Boot: "b", Start: 10, End: 20, Offset: 1e15}
	gap := newGap(1e15-5, 1e15, usage.Unwatched, "")
	if err := s.Append(w, nil, []usage.Gap{gap}, func(bool) []byte { return nil }, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, ok, err := s.compose(s.liveStream()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if got := s.liveStream().FirstStart; got != 1e15-5 {
			t.Errorf("the stream began at %d, want %d", got, int64(1e15-5))
		}
		w.Start, w.End = w.End, w.End+10
		if err := s.Append(w, nil, nil, func(bool) []byte { return nil }, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFormatOfOffer checks that a batch with a resource that not every server knows states its format, which
// its record keeps.
func TestFormatOfOffer(t *testing.T) {
	for r := range usage.All.All() {
		s := opened(t, &hookFS{})
		w := &usage.Window{Boot: "b", End: 20}
		w.Total.Put(r, 1, usage.Measured)
		want := wire.FormatOf(&batch.Batch{Windows: []usage.Window{*w}})
		if wire.BaseFormat().CanRead(want) {
			if want = wire.BaseFormat(); r > 1 {
				continue
			}
		}
		if err := s.Append(w, nil, nil, func(bool) []byte { return nil }, nil); err != nil {
			t.Fatal(err)
		}
		o, _, err := s.NextOffer(s.liveStream().ID)
		if err != nil || o.Format != want {
			t.Errorf("%v: format %v, want %v, %v", r, o.Format, want, err)
		}
		if k, _ := s.findBatch(o.Stream, 1); (k.Format == nil) != (want == wire.BaseFormat()) {
			t.Errorf("%v: its record has the format %v", r, k.Format)
		}
	}
}

// TestEstimate checks how much room is made for the next batch: for the windows of about one batch, or a batch
// that the stream inherited.
func TestEstimate(t *testing.T) {
	for _, c := range []struct {
		name      string
		wires     []int
		inherited []int // sizes of batches
		want      int64
	}{
		{"nothing", nil, nil, 0},
		{"windows", []int{100, 200}, nil, 300},
		{"a full batch", []int{500, 524, 300}, nil, 1024},
		{"one byte less", []int{500, 523, 300, 9}, nil, 1323},
		{"one large window", []int{5000, 100}, nil, 5000},
		{"a small inherited batch", nil, []int{100}, 100},
		{"the largest inherited batch", nil, []int{100, 300, 200}, 300},
	} {
		s := &Spool{cfg: Config{BatchBytes: 1 << 10, MaxBytes: 1 << 20}, stored: map[batch.Stream][]storedBatch{}}
		st := &stream{From: 2, Live: true}
		s.index = []window{{windowHead: windowHead{First: 1, Wire: 777}}} // of another stream
		for i, n := range c.wires {
			s.index = append(s.index, window{windowHead: windowHead{First: uint64(i + 2), Wire: n}})
		}
		for i, n := range c.inherited {
			k := storedBatch{batchHead: batchHead{Stream: batch.Stream{1}, Number: uint64(i + 1)}, location: location{size: n}}
			s.addStored(k)
			st.Inherited = append(st.Inherited, inheritedBatch{Stream: k.Stream, Number: k.Number})
		}
		st.Inherited = append(st.Inherited, inheritedBatch{Stream: batch.Stream{2}, Number: 1}) // which is lost
		const state = 4 << 10                                                                   // room for that of the stream
		if got := s.estimateBatchSize(st); got != state+c.want {
			t.Errorf("%s: %d bytes, want %d", c.name, got, state+c.want)
		}
	}
}

// TestHandOver checks that the loss of the last batches of a finished stream becomes a gap of the live one, and
// that of others does not.
func TestHandOver(t *testing.T) {
	s := opened(t, &hookFS{})
	live := s.liveStream()
	st := &stream{ID: batch.Stream{1}, From: 1, To: 3, Batched: 3, Next: 3, Wanted: 2, FirstStart: 1e15, Through: 2e15}
	st.Missing = []missingBatch{{2, newGap(15e14, 2e15, usage.Refused, "why")}}
	s.streams = []*stream{st, live}
	if o, ok, err := s.NextOffer(st.ID); ok || err != nil {
		t.Fatal(o, ok, err)
	}
	if got := s.liveStream().Gaps; len(got) != 1 || got[0] != st.Missing[0].Gap {
		t.Errorf("gaps %v", got)
	}
	if got := s.findStream(st.ID); got != nil {
		t.Errorf("the stream is kept: %+v", got)
	}
	s.liveStream().Gaps = nil
	lost := s.liveStream().clone()
	lost.Next, lost.Wanted = 3, 2 // the server hears of it with the next batch
	s.streams = []*stream{lost}
	if o, ok, err := s.NextOffer(lost.ID); ok || err != nil || s.liveStream().Wanted != 2 || len(s.liveStream().Gaps) > 0 {
		t.Errorf("of the live stream: %v, %t, %v, %+v", o, ok, err, s.liveStream())
	}
	done := &stream{ID: batch.Stream{1}, From: 1, To: 3, Batched: 3, Next: 3, Wanted: 3}
	serial := s.serial
	s.streams = []*stream{done, lost}
	if o, ok, err := s.NextOffer(done.ID); ok || err != nil || s.serial != serial {
		t.Errorf("of a stream that lost nothing: %v, %t, %v", o, ok, err)
	}
}

// TestSplitCounts checks that streams with nothing to send do not count when a backlog is split off.
func TestSplitCounts(t *testing.T) {
	for open, want := range map[int]bool{2: true, 3: false} {
		s := opened(t, &hookFS{})
		fill(t, s, 1)
		live := s.liveStream()
		var others []*stream
		for i := range 6 {
			st := &stream{ID: batch.Stream{byte(i + 1)}, To: 0, Next: 2, Wanted: 2}
			if i < open {
				st.Gaps = []usage.Gap{{}}
			}
			s.addStored(storedBatch{batchHead: batchHead{Stream: st.ID, Number: 1}, acked: 1})
			others = append(others, st)
		}
		s.streams = append(others, live)
		now := time.Date(2026, 3, 1, 1, 0, 0, 0, time.UTC)
		if done, err := s.SplitBacklog(now); done != want || err != nil {
			t.Errorf("with %d streams besides the live one: %t, %v", open, done, err)
		}
		if want && (live.ID == s.liveStream().ID || s.findStream(live.ID).To != 1 || s.findStream(live.ID).Live) {
			t.Errorf("the live stream goes on: %+v", s.liveStream())
		}
	}
	s := opened(t, &hookFS{})
	if done, err := s.SplitBacklog(time.Now().Add(time.Hour)); done || err != nil {
		t.Errorf("without windows: %t, %v", done, err)
	}
}
