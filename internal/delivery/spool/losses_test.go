package spool_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
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
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/faultfs"
)

// bulky are names that take about 3 KB each in a record.
func bulky(n int) []batch.Name {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	names := make([]batch.Name, n)
	for i := range names {
		at := r.IntN(len(noise()) - 4000)
		names[i] = batch.Name{ID: workload.IDFromBytes([16]byte{byte(i), byte(n)}), Kind: workload.Path, Path: noise()[at : at+4000]}
	}
	return names
}

// rot changes a byte of the payload of the n-th record of a segment.
func rot(t *testing.T, fs *faultfs.FS, name string, n int) {
	t.Helper()
	const header, head = 52, 13
	b, at := fs.Read(name), int64(header)
	for range n {
		at += head + int64(b[at]) + int64(b[at+1])<<8 + int64(b[at+2])<<16
	}
	fs.FlipBit(name, 8*(at+head+20))
}

// gapsOf are the gaps at the server, in ticks.
func gapsOf(v *server) (all []string) {
	for _, g := range v.gaps {
		at := func(x time.Time) int64 { return (x.UnixNano() - started) / tick }
		all = append(all, fmt.Sprintf("%v %d-%d", g.Reason, at(g.From), at(g.To)))
	}
	return all
}

// wantGaps checks the gaps at the server, and how much of the time only they cover.
func wantGaps(t *testing.T, v *server, a *agent, alone int64, want ...string) {
	t.Helper()
	if got := v.check(t, a.now) / tick; got != alone {
		t.Errorf("%d ticks are in gaps only, want %d", got, alone)
	}
	if got := strings.Join(gapsOf(v), ", "); got != strings.Join(want, ", ") {
		t.Errorf("gaps %s, want %s", got, strings.Join(want, ", "))
	}
}

// TestRottenBatch checks that a stored batch that cannot be read is reported as lost.
func TestRottenBatch(t *testing.T) {
	fs := faultfs.New(func(int) int { return 0 })
	s := openSpool(t, config(fs))
	defer shut(t, s)
	a, v := &agent{}, newServer()
	appendTicks(t, s, a, 1, 1)
	if _, ok, err := s.NextOffer(live(s)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	rot(t, fs, "spool/batches/0000000000000001.seg", 1)
	if _, ok, err := s.NextOffer(live(s)); ok || err != nil {
		t.Errorf("offered %t, %v", ok, err)
	}
	if st := s.Stats(); st.Corrupt != 1 || st.Batches != 0 {
		t.Errorf("%+v", st)
	}
	appendTicks(t, s, a, 1)
	drain(t, s, v)
	wantGaps(t, v, a, 2, "corrupt 0-2")
}

// TestRottenWindows checks that windows that cannot be read leave a gap: before the next window, at the
// end of a stream, where the next stream begins, and at the end of all.
func TestRottenWindows(t *testing.T) {
	for _, c := range []struct {
		rotten    []int // of windows 1 to 6, of a tick each; after the third the backlog is split off
		liveFirst bool
		alone     int64
		want      []string
	}{
		{nil, false, 0, nil},
		{[]int{2}, false, 1, []string{"corrupt 1-2"}},
		{[]int{3}, false, 1, []string{"corrupt 2-3"}},
		{[]int{2, 3}, false, 2, []string{"corrupt 1-3"}},
		{[]int{4}, false, 1, []string{"corrupt 3-4"}},
		{[]int{5}, false, 1, []string{"corrupt 4-5"}},
		{[]int{2, 3, 5}, false, 3, []string{"corrupt 1-3", "corrupt 4-5"}},
		// Windows that are sent say no more where the lost ones ended.
		{[]int{3}, true, 1, []string{"corrupt 2-6"}},
		{[]int{2, 4}, true, 2, []string{"corrupt 3-4", "corrupt 1-2"}},
	} {
		fs := faultfs.New(func(int) int { return 0 })
		s := openSpool(t, config(fs))
		a, v := &agent{}, newServer()
		appendTicks(t, s, a, 1, 1, 1)
		if done, err := s.SplitBacklog(time.Unix(0, started).Add(time.Hour)); !done || err != nil {
			t.Fatal(done, err)
		}
		appendTicks(t, s, a, 1, 1, 1)
		for _, n := range c.rotten {
			rot(t, fs, "spool/windows/0000000000000001.seg", n-1)
		}
		if c.liveFirst {
			if _, err := exchange(t, s, v, live(s), false); err != nil {
				t.Fatal(err)
			}
		}
		drain(t, s, v)
		got := strings.Join(gapsOf(v), ", ")
		if alone := v.check(t, a.now) / tick; alone != c.alone || got != strings.Join(c.want, ", ") || s.Stats().Corrupt != int64(len(c.rotten)) {
			t.Errorf("windows %v: %d ticks are lost, gaps %s, %d corrupt; want %d, %v", c.rotten, alone, got, s.Stats().Corrupt, c.alone, c.want)
		}
		shut(t, s)
	}
}

// TestRottenLastWindows checks the gap of a backlog whose last windows cannot be read, if no window
// follows.
func TestRottenLastWindows(t *testing.T) {
	fs := faultfs.New(func(int) int { return 0 })
	s := openSpool(t, config(fs))
	a, v := &agent{}, newServer()
	appendTicks(t, s, a, 1, 1, 1)
	if done, err := s.SplitBacklog(time.Unix(0, started).Add(time.Hour)); !done || err != nil {
		t.Fatal(done, err)
	}
	shut(t, s) // it had the last window in memory too
	s = openSpool(t, config(fs))
	defer shut(t, s)
	rot(t, fs, "spool/windows/0000000000000001.seg", 1)
	rot(t, fs, "spool/windows/0000000000000001.seg", 2)
	drain(t, s, v)
	wantGaps(t, v, a, 2, "corrupt 1-3")
}

// TestRottenMerge checks that merging skips a window that cannot be read, which leaves a gap.
func TestRottenMerge(t *testing.T) {
	fs := faultfs.New(func(int) int { return 0 })
	cfg := config(fs)
	cfg.SegmentBytes = 2 << 10
	s := openSpool(t, cfg)
	defer shut(t, s)
	a, v := &agent{}, newServer()
	for range 60 {
		appendTicks(t, s, a, 1)
	}
	rot(t, fs, "spool/windows/0000000000000001.seg", 1)
	before := s.Stats().Windows
	if err := s.Maintain(time.Unix(0, started+a.now).Add(3 * time.Hour)); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Corrupt != 1 || st.Windows >= before/2 || st.Merged != int64(before-st.Windows) {
		t.Errorf("%d windows became %+v", before, st)
	}
	drain(t, s, v)
	wantGaps(t, v, a, 1, "corrupt 1-2")
}

// overflown returns a spool of 1 MiB with acknowledged batches, of which the server forgets all, and the
// server. Both logs have segments of 512 KiB.
func overflown(t *testing.T, forked bool) (*spool.Spool, *agent, *server) {
	t.Helper()
	cfg := config(faultfs.New(func(int) int { return 0 }))
	cfg.SegmentBytes, cfg.MaxBytes = 512<<10, 64<<20
	s := openSpool(t, cfg)
	a, v := &agent{}, newServer()
	for range 20 {
		if err := a.window(s, 1, bulky(18)); err != nil {
			t.Fatal(err)
		}
		drain(t, s, v)
	}
	shut(t, s)
	cfg.MaxBytes = 1 << 20
	s = openSpool(t, cfg)
	if st := s.Stats(); st.Batches != 20 || st.Evicted != 0 {
		t.Fatalf("%+v", st)
	}
	sent := v.sent
	v = newServer()
	v.sent = sent
	if forked {
		v.marks[live(s)] = batch.Mark{Next: 1, Last: batch.HashOf([]byte("another"))}
	}
	appendTicks(t, s, a, 1)
	if _, err := exchange(t, s, v, live(s), false); err != nil { // it is behind
		t.Fatal(err)
	}
	if forked {
		if _, err := exchange(t, s, v, live(s), false); err != nil { // it has another first batch
			t.Fatal(err)
		}
	}
	return s, a, v
}

// TestDropBatches checks that batches that a server lacks are given up, oldest first, if there is no
// other room, and that the server gets gaps for them, also if another stream inherited them.
func TestDropBatches(t *testing.T) {
	for _, forked := range []bool{false, true} {
		s, a, v := overflown(t, forked)
		before := s.Stats()
		for i := 0; s.Stats().Evicted == 0; i++ {
			if i > 20 {
				t.Fatalf("nothing is given up: %+v", s.Stats())
			}
			if err := a.window(s, 1, bulky(18)); err != nil {
				t.Fatal(err)
			}
		}
		st := s.Stats()
		dropped := int64(before.Batches - st.Batches)
		if st.Evicted != dropped || dropped < 13 || dropped > 16 || st.Bytes > 1<<20 || st.Dropped > 0 {
			t.Errorf("%d batches are gone: %+v", dropped, st)
		}
		if from, _, _ := s.Unsent(); !from.Equal(time.Unix(0, started+dropped*tick)) {
			t.Errorf("forked %t: %d batches are gone, and what is left begins at %v", forked, dropped, from)
		}
		drain(t, s, v)
		if st := s.Stats(); st.Streams != 1 || st.Windows != 0 {
			t.Errorf("%+v", st)
		}
		lost := dropped + st.Dropped
		if alone := v.check(t, a.now) / tick; alone != lost {
			t.Errorf("forked %t: %d ticks are lost, want %d: %v", forked, alone, lost, gapsOf(v))
		}
		for _, g := range v.gaps {
			if g.Reason != usage.Overflow {
				t.Errorf("forked %t: gap %v", forked, g)
			}
		}
		shut(t, s)
	}
}

// TestEvictKeepsNeeded checks that batches that a server has are removed before others, and that those
// in between that it lacks are moved.
func TestEvictKeepsNeeded(t *testing.T) {
	cfg := config(faultfs.New(func(int) int { return 0 }))
	cfg.SegmentBytes = 256 << 10
	s := openSpool(t, cfg)
	defer shut(t, s)
	a, v := &agent{}, newServer()
	if err := a.window(s, 1, bulky(18)); err != nil {
		t.Fatal(err)
	}
	drain(t, s, v)
	appendTicks(t, s, a, 1)
	old := live(s)
	if done, err := s.SplitBacklog(time.Unix(0, started).Add(time.Hour)); !done || err != nil {
		t.Fatal(done, err)
	}
	if _, ok, err := s.NextOffer(old); !ok || err != nil { // the server does not get it
		t.Fatal(ok, err)
	}
	for i := 0; s.Stats().Evicted == 0; i++ {
		if i > 40 {
			t.Fatalf("nothing is removed: %+v", s.Stats())
		}
		if err := a.window(s, 1, bulky(18)); err != nil {
			t.Fatal(err)
		}
		if sent, err := exchange(t, s, v, live(s), false); !sent || err != nil {
			t.Fatal(sent, err)
		}
	}
	if all := s.Streams(); len(all) != 2 || all[0].Stream != old || all[0].Oldest.IsZero() {
		t.Errorf("streams %+v", all)
	}
	drain(t, s, v)
	wantGaps(t, v, a, 0)
}

// TestRestoredSpool checks a spool that was put back from a backup: a server that is ahead in its stream
// would take no later batch of it, so later windows go to another stream.
func TestRestoredSpool(t *testing.T) {
	fs := faultfs.New(func(int) int { return 0 })
	s := openSpool(t, config(fs))
	a, v := &agent{}, newServer()
	appendTicks(t, s, a, 1)
	drain(t, s, v)
	const windows, batches = "spool/windows/0000000000000001.seg", "spool/batches/0000000000000001.seg"
	shut(t, s)
	w, b := fs.Read(windows), fs.Read(batches)
	s = openSpool(t, config(fs))
	id := live(s)
	for range 3 {
		appendTicks(t, s, a, 1)
		drain(t, s, v)
	}
	shut(t, s)
	fill(t, fs, windows, w)
	fill(t, fs, batches, b)
	s = openSpool(t, config(fs))
	defer shut(t, s)
	v.sent, v.hashes = map[string]batch.Hash{}, map[string]batch.Hash{} // it does not remember their content
	appendTicks(t, s, a, 1)
	if sent, err := exchange(t, s, v, id, false); !sent || err != nil {
		t.Fatal(sent, err)
	}
	if _, ok, err := s.NextOffer(id); live(s) == id || ok || err != nil && !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("the stream goes on: %t, %v", ok, err)
	}
	taken := len(v.taken)
	appendTicks(t, s, a, 1)
	drain(t, s, v)
	if n := len(v.taken); n != taken+1 || v.taken[n-1].End != a.now {
		t.Errorf("%d windows are taken, want one more than %d", n, taken)
	}
	// The window before is not booked, as the server took it for another one.
	if want := (usage.Gap{From: wall(a.now - 2*tick), To: wall(a.now - tick), Reason: usage.Forgotten}); !slices.Contains(v.gaps, want) {
		t.Errorf("gaps %v, want %v", v.gaps, want)
	}
	if st := s.Stats(); st.Streams != 1 {
		t.Errorf("%+v", st)
	}
}

// TestAhead checks a spool whose server knows the numbers of batches 2 to 4 and of more than were made: each
// batch is offered in turn, since only its own answer shows which windows the server has. A batch of which the
// server knows only the number, and one that is missing, are gaps in the stream that follows.
func TestAhead(t *testing.T) {
	for _, c := range []struct {
		booked string // answers to batches 2 to 4
		reject uint64
		gaps   []int // batches
	}{
		{"yyy", 0, nil}, {"nnn", 0, []int{2, 3, 4}}, {"yny", 0, []int{3}}, {"nyn", 0, []int{2, 4}},
		{"?yy", 2, []int{2}}, {"y?n", 3, []int{3, 4}}, {"yy?", 4, []int{4}},
	} {
		s := openSpool(t, config(faultfs.New(func(int) int { return 0 })))
		a, v := &agent{}, newServer()
		for range 4 {
			appendTicks(t, s, a, 30) // apart, so that gaps are not joined
			drain(t, s, v)
		}
		old := live(s)
		if _, err := s.ApplyReply(old, batch.Reply{Verdict: batch.OutOfOrder, Next: 2}); err != nil {
			t.Fatal(err)
		}
		if c.reject > 0 {
			if err := s.Reject(old, c.reject, "for a test"); err != nil {
				t.Fatal(err)
			}
		}
		var offered []uint64
		for {
			o, ok, err := s.NextOffer(old)
			if errors.Is(err, fault.ErrNotFound) || live(s) != old {
				break
			}
			if err != nil || !ok || len(offered) > 9 {
				t.Fatal(offered, ok, err)
			}
			if n := len(offered); n == 0 || offered[n-1] != o.Number { // after a missing one it is offered twice
				offered = append(offered, o.Number)
			}
			if lost, err := s.ApplyReply(old, batch.Reply{Verdict: batch.Duplicate, Next: 9, Booked: c.booked[o.Number-2] == 'y'}); lost != nil || err != nil {
				t.Fatal(lost, err)
			}
		}
		want := slices.DeleteFunc([]uint64{2, 3, 4}, func(n uint64) bool { return n == c.reject })
		if !slices.Equal(offered, want) {
			t.Errorf("%+v: batches %v are offered, want %v", c, offered, want)
		}
		v.gaps = nil
		appendTicks(t, s, a, 30)
		drain(t, s, v)
		var gaps []int
		for n := range 5 {
			from, to := wall(int64(n-1)*30*tick), wall(int64(n)*30*tick)
			if slices.ContainsFunc(v.gaps, func(g usage.Gap) bool { return !g.From.After(from) && !g.To.Before(to) }) {
				gaps = append(gaps, n)
			}
		}
		for _, g := range v.gaps {
			if refused := g.Reason == usage.Refused && g.Detail == "for a test" && c.reject > 0; g.Reason != usage.Forgotten && !refused {
				t.Errorf("%+v: %+v", c, g)
			}
		}
		if !slices.Equal(gaps, c.gaps) {
			t.Errorf("%+v: gaps of batches %v, want %v: %v", c, gaps, c.gaps, v.gaps)
		}
		shut(t, s)
	}
}

// TestReplies checks which replies to batch 2 of a stream are refused, and which number is offered next
// after the others. Batch 1 is acknowledged.
func TestReplies(t *testing.T) {
	for _, c := range []struct {
		verdict batch.Verdict
		next    uint64
		err     error
		offered uint64 // 0 is none
	}{
		{batch.Accepted, 3, nil, 0}, {batch.Duplicate, 3, nil, 0}, {batch.OutOfOrder, 1, nil, 1}, {batch.OutOfOrder, 2, nil, 2},
		{batch.Clone, 0, nil, 2}, {0, 3, fault.ErrInvalid, 2}, {77, 3, fault.ErrInvalid, 2}, {batch.Accepted, 0, fault.ErrInvalid, 2},
	} {
		s := openSpool(t, config(faultfs.New(func(int) int { return 0 })))
		a := &agent{}
		for range 2 {
			appendTicks(t, s, a, 1)
			o, ok, err := s.NextOffer(live(s))
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			if o.Number == 1 {
				if _, err := s.ApplyReply(o.Stream, batch.Reply{Verdict: batch.Accepted, Next: 2}); err != nil {
					t.Fatal(err)
				}
			}
		}
		id := live(s)
		if lost, err := s.ApplyReply(id, batch.Reply{Verdict: c.verdict, Next: c.next}); lost != nil || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%v, next %d: %v, %v", c.verdict, c.next, lost, err)
		}
		if o, ok, err := s.NextOffer(id); err != nil || ok != (c.offered > 0) || o.Number != c.offered {
			t.Errorf("%v, next %d: then batch %d is offered, want %d, %v", c.verdict, c.next, o.Number, c.offered, err)
		}
		if _, err := s.ApplyReply(batch.Stream{1}, batch.Reply{Verdict: batch.Accepted, Next: 2}); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("of no stream: %v", err)
		}
		shut(t, s)
	}
}

// TestOtherStreams checks that finished streams offer their last batch again after a reply that goes back,
// and not after another one.
func TestOtherStreams(t *testing.T) {
	for _, c := range []struct {
		reply   batch.Reply
		streams int
	}{{batch.Reply{Verdict: batch.OutOfOrder, Next: 2}, 1}, {batch.Reply{Verdict: batch.OutOfOrder, Next: 1}, 2}, {batch.Reply{Verdict: batch.Accepted, Next: 3}, 1}} {
		s := openSpool(t, config(faultfs.New(func(int) int { return 0 })))
		a, v := &agent{}, newServer()
		appendTicks(t, s, a, 1)
		if done, err := s.SplitBacklog(time.Unix(0, started).Add(time.Hour)); !done || err != nil {
			t.Fatal(done, err)
		}
		for range 2 { // batch 1 of the backlog, and batches 1 and 2 of the live stream
			appendTicks(t, s, a, 1)
			if a.now < 3*tick {
				drain(t, s, v)
			}
		}
		if _, ok, err := s.NextOffer(live(s)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if _, err := s.ApplyReply(live(s), c.reply); err != nil {
			t.Fatal(err)
		}
		if all := s.Streams(); len(all) != c.streams {
			t.Errorf("after %+v: %+v, want %d streams", c.reply, all, c.streams)
		}
		shut(t, s)
	}
}

// TestRejectOnlyOffered checks which batches can be rejected: those that a stream has to send.
func TestRejectOnlyOffered(t *testing.T) {
	s := openSpool(t, config(faultfs.New(func(int) int { return 0 })))
	defer shut(t, s)
	a, v := &agent{}, newServer()
	appendTicks(t, s, a, 1)
	drain(t, s, v)
	appendTicks(t, s, a, 1)
	o, _, err := s.NextOffer(live(s))
	if err != nil || o.Number != 2 {
		t.Fatal(o.Number, err)
	}
	for _, number := range []uint64{0, 1, 3} {
		if err := s.Reject(o.Stream, number, "x"); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("batch %d: %v", number, err)
		}
	}
	if err := s.Reject(batch.Stream{1}, 2, "x"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("of no stream: %v", err)
	}
	if err := s.Reject(o.Stream, 2, "x"); err != nil || s.Stats().Refused != 1 {
		t.Errorf("%v, %+v", err, s.Stats())
	}
	appendTicks(t, s, a, 1)
	drain(t, s, v)
	wantGaps(t, v, a, 1, "refused 1-2")
}

// TestQuarantine checks that the first 32 refused batches are kept, and that a batch is given up even if
// it cannot be kept.
func TestQuarantine(t *testing.T) {
	cfg := onDisk(t)
	s := openSpool(t, cfg)
	defer shut(t, s)
	a, v := &agent{}, newServer()
	reject := func() string {
		t.Helper()
		appendTicks(t, s, a, 1)
		for { // earlier ones have to be reported as lost first
			o, ok, err := s.NextOffer(live(s))
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			if v.mark(o.Stream).Next == o.Number {
				if err := s.Reject(o.Stream, o.Number, "x"); err != nil {
					t.Fatal(err)
				}
				return filepath.Join(cfg.Dir, "aside", fmt.Sprintf("%v-%d.batch", o.Stream, o.Number))
			}
			if _, err := exchange(t, s, v, o.Stream, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 34 {
		name := reject()
		if _, err := os.Stat(name); (err == nil) != (i < 32) {
			t.Errorf("batch %d: %v", i+1, err)
		}
	}
	if err := os.RemoveAll(filepath.Join(cfg.Dir, "aside")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cfg.Dir, "aside"), nil, 0o600); err != nil { // no directory can be made
		t.Fatal(err)
	}
	reject()
	appendTicks(t, s, a, 1)
	drain(t, s, v)
	if alone := v.check(t, a.now) / tick; alone != 35 || s.Stats().Refused != 35 {
		t.Errorf("%d ticks are lost, %+v", alone, s.Stats())
	}
}

// TestQuarantineFaults fails each call of the file system while a batch is rejected, one at a time: it is
// given up even if it cannot be kept, but not if it cannot be read, or its loss cannot be written.
func TestQuarantineFaults(t *testing.T) {
	for n := 1; ; n++ {
		fs := faultfs.New(func(int) int { return 0 })
		faulty := &faultyFS{FS: fs}
		s := openSpool(t, config(faulty))
		a, v := &agent{}, newServer()
		appendTicks(t, s, a, 1)
		o, _, err := s.NextOffer(live(s))
		if err != nil {
			t.Fatal(err)
		}
		faulty.calls, faulty.fails = 0, n
		err = s.Reject(o.Stream, o.Number, "x")
		faulty.fails = 0
		done := faulty.failed == ""
		if aside := n > 1 && n < 8; (err == nil) != (aside || done) || !done && !aside && !errors.Is(err, errFault) {
			t.Errorf("call %d, %s: %v", n, faulty.failed, err)
		}
		appendTicks(t, s, a, 1)
		drain(t, s, v)
		if alone := v.check(t, a.now) / tick; alone > 1 {
			t.Errorf("call %d, %s: %d ticks are lost: %v", n, faulty.failed, alone, gapsOf(v))
		}
		shut(t, s)
		if done {
			return
		}
	}
}

// TestSplitBacklogAfter checks that a backlog is split off after ten minutes.
func TestSplitBacklogAfter(t *testing.T) {
	for more, want := range map[time.Duration]bool{0: false, 1: true} {
		s := openSpool(t, config(faultfs.New(func(int) int { return 0 })))
		a := &agent{}
		appendTicks(t, s, a, 1)
		if done, err := s.SplitBacklog(time.Unix(0, started+a.now).Add(10*time.Minute + more)); done != want || err != nil {
			t.Errorf("after 10 minutes and %v: %t, %v", more, done, err)
		}
		shut(t, s)
	}
}

// TestStreams checks the state of a stream while its windows wait, are in a batch, and are taken.
func TestStreams(t *testing.T) {
	s := openSpool(t, config(faultfs.New(func(int) int { return 0 })))
	defer shut(t, s)
	a, v := &agent{}, newServer()
	at := func(ticks int64) time.Time { return time.Unix(0, started+ticks*tick).UTC() }
	want := func(what string, windows int, oldest time.Time, next uint64) {
		t.Helper()
		all := s.Streams()
		st := all[len(all)-1]
		if len(all) != 1 || !st.Live || st.Windows != windows || !st.Oldest.Equal(oldest) || st.Next != next || (st.Bytes > 0) != (windows > 0) {
			t.Errorf("%s: %+v, want %d windows, the oldest to %v, next %d", what, all, windows, oldest, next)
		}
		stats := s.Stats()
		if oldest := s.Stats().Oldest; stats.Windows != windows || (windows == 0) != oldest.IsZero() {
			t.Errorf("%s: %+v", what, stats)
		}
	}
	want("nothing", 0, time.Time{}, 1)
	appendTicks(t, s, a, 1, 1)
	want("two windows", 2, at(1), 1)
	o, _, err := s.NextOffer(live(s))
	if err != nil {
		t.Fatal(err)
	}
	want("a batch", 0, at(2), 1)
	appendTicks(t, s, a, 1)
	want("a batch and a window", 1, at(2), 1)
	if _, err := s.ApplyReply(o.Stream, v.offer(t, o)); err != nil {
		t.Fatal(err)
	}
	want("a window", 1, at(3), 2)
	if got := s.Stats().Oldest; !got.Equal(at(3)) {
		t.Errorf("the oldest window ended at %v", got)
	}
}

// TestNamesOfBatch checks that a later name of a workload replaces an earlier one in a batch.
func TestNamesOfBatch(t *testing.T) {
	s := openSpool(t, config(faultfs.New(func(int) int { return 0 })))
	defer shut(t, s)
	name := func(key, text string) batch.Name {
		return batch.Name{ID: workload.NewID("n", workload.Path, key), Kind: workload.Path, Key: key, Name: text}
	}
	for i, names := range [][]batch.Name{{name("a", "1"), name("b", "1")}, {name("c", "2"), name("b", "2")}, {name("a", "3")}, nil} {
		w := between(int64(i)*tick, int64(i+1)*tick, usage.StartContinued)
		if err := s.Append(w, names, []usage.Gap{{Detail: fmt.Sprint(i)}}, func(bool) []byte { return nil }, nil); err != nil {
			t.Fatal(err)
		}
	}
	o, _, err := s.NextOffer(live(s))
	if err != nil {
		t.Fatal(err)
	}
	b, err := wire.Decode(o.Bytes, wire.Default())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range b.Names {
		got = append(got, n.Key+n.Name)
	}
	if s := strings.Join(got, " "); s != "a3 b2 c2" || len(b.Gaps) != 4 {
		t.Errorf("names %s, %d gaps", s, len(b.Gaps))
	}
}

// TestLostBatchLog checks that windows whose stream is lost with the log of batches become a gap: they may
// have been sent.
func TestLostBatchLog(t *testing.T) {
	for _, lost := range []int64{1, 3} {
		fs := faultfs.New(func(int) int { return 0 })
		s := openSpool(t, config(fs))
		a, v := &agent{}, newServer()
		for range lost {
			appendTicks(t, s, a, 1)
		}
		shut(t, s)
		if err := fs.Remove("spool/batches/0000000000000001.seg"); err != nil {
			t.Fatal(err)
		}
		s = openSpool(t, config(fs))
		appendTicks(t, s, a, 1)
		drain(t, s, v)
		wantGaps(t, v, a, lost, fmt.Sprint("corrupt 0-", lost))
		if len(v.taken) != 1 {
			t.Errorf("%d windows are taken, want the one after the loss", len(v.taken))
		}
		shut(t, s)
	}
}

// TestWipedServerAfterStreams checks that a server that lost everything gets a gap for the streams that the
// spool no longer has.
func TestWipedServerAfterStreams(t *testing.T) {
	cfg := config(faultfs.New(func(int) int { return 0 }))
	cfg.SegmentBytes = 1
	s := openSpool(t, cfg)
	defer shut(t, s)
	a, v := &agent{}, newServer()
	appendTicks(t, s, a, 1)
	if done, err := s.SplitBacklog(time.Unix(0, started).Add(time.Hour)); !done || err != nil {
		t.Fatal(done, err)
	}
	for range 3 {
		appendTicks(t, s, a, 1)
		drain(t, s, v)
	}
	for range 2 {
		if err := s.Maintain(time.Now().Add(25 * time.Hour)); err != nil {
			t.Fatal(err)
		}
		drain(t, s, v)
	}
	sent := v.sent
	v = newServer()
	v.sent = sent
	appendTicks(t, s, a, 1)
	drain(t, s, v)
	v.check(t, a.now)
	if got := gapsOf(v); !slices.Contains(got, "forgotten 0-1") {
		t.Errorf("gaps %v", got)
	}
}

// TestRetentionKeepsNeeded checks that a batch that no server acknowledged does not expire.
func TestRetentionKeepsNeeded(t *testing.T) {
	cfg := config(faultfs.New(func(int) int { return 0 }))
	cfg.SegmentBytes = 1
	s := openSpool(t, cfg)
	defer shut(t, s)
	a, v := &agent{}, newServer()
	appendTicks(t, s, a, 1)
	if _, ok, err := s.NextOffer(live(s)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	appendTicks(t, s, a, 1)
	if done, err := s.SplitBacklog(time.Unix(0, started).Add(time.Hour)); !done || err != nil { // a later record
		t.Fatal(done, err)
	}
	for range 3 {
		appendTicks(t, s, a, 1)
		if err := s.Maintain(time.Now().Add(25 * time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	drain(t, s, v)
	wantGaps(t, v, a, 0)
}

// TestExpireFaults fails each call of the file system while batches expire, one at a time: the error is
// returned, and the next call removes them.
func TestExpireFaults(t *testing.T) {
	for n := 1; ; n++ {
		faulty := &faultyFS{FS: faultfs.New(func(int) int { return 0 })}
		cfg := config(faulty)
		cfg.SegmentBytes = 1
		s := openSpool(t, cfg)
		a, v := &agent{}, newServer()
		for range 3 {
			appendTicks(t, s, a, 1)
			drain(t, s, v)
		}
		if err := s.Maintain(time.Now()); err != nil { // which writes the acknowledgments
			t.Fatal(err)
		}
		before := s.Stats().Batches
		later := time.Now().Add(25 * time.Hour)
		faulty.calls, faulty.fails = 0, n
		err := s.Maintain(later)
		faulty.fails = 0
		done := faulty.failed == ""
		tolerated := strings.HasPrefix(faulty.failed, "close") // of a segment whose bytes are synced
		if !done && !tolerated && !errors.Is(err, errFault) || done && err != nil {
			t.Errorf("call %d, %s: %v", n, faulty.failed, err)
		}
		if err := s.Maintain(later); err != nil {
			t.Errorf("call %d, %s, then again: %v", n, faulty.failed, err)
		}
		if st := s.Stats(); before != 3 || st.Batches > 1 || st.Evicted != 0 {
			t.Errorf("call %d, %s: %+v", n, faulty.failed, st)
		}
		appendTicks(t, s, a, 1)
		drain(t, s, v)
		wantGaps(t, v, a, 0)
		shut(t, s)
		if done {
			return
		}
	}
}

// TestRetention checks that batches stay for 24 hours after they were acknowledged.
func TestRetention(t *testing.T) {
	for more, kept := range map[time.Duration]bool{-time.Minute: true, time.Minute: false} {
		cfg := config(faultfs.New(func(int) int { return 0 }))
		cfg.SegmentBytes = 1
		s := openSpool(t, cfg)
		a, v := &agent{}, newServer()
		for range 3 {
			appendTicks(t, s, a, 1)
			drain(t, s, v)
		}
		if err := s.Maintain(time.Now()); err != nil {
			t.Fatal(err)
		}
		if err := s.Maintain(time.Now().Add(24*time.Hour + more)); err != nil {
			t.Fatal(err)
		}
		if got := s.Stats().Batches; (got == 3) != kept {
			t.Errorf("after 24 hours and %v there are %d batches", more, got)
		}
		shut(t, s)
	}
}

// files are all files of a file system.
func files(t *testing.T, fs *faultfs.FS) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, dir := range []string{"spool/windows", "spool/batches"} {
		names, err := fs.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			all[dir+"/"+name] = fs.Read(dir + "/" + name)
		}
	}
	return all
}

// TestReadFaults fails each call of the file system while a batch is offered again, or made of windows in
// earlier segments, one at a time: the error is returned, and the batch is offered afterwards.
func TestReadFaults(t *testing.T) {
	for _, again := range []bool{true, false} {
		for n := 1; ; n++ {
			faulty := &faultyFS{FS: faultfs.New(func(int) int { return 0 })}
			cfg := config(faulty)
			cfg.SegmentBytes = 1
			s := openSpool(t, cfg)
			a, v := &agent{}, newServer()
			appendTicks(t, s, a, 1, 1)
			id := live(s)
			if again {
				if _, ok, err := s.NextOffer(id); !ok || err != nil {
					t.Fatal(ok, err)
				}
				appendTicks(t, s, a, 1)
				if done, err := s.SplitBacklog(time.Unix(0, started).Add(time.Hour)); !done || err != nil { // a later record
					t.Fatal(done, err)
				}
			}
			faulty.calls, faulty.fails = 0, n
			_, ok, err := s.NextOffer(id)
			faulty.fails = 0
			done := faulty.failed == ""
			// A segment whose bytes are synced need not be closed, and one that is used up need not be removed.
			tolerated := faulty.failed == "close" && ok || strings.HasPrefix(faulty.failed, "remove spool/windows")
			if !done && !tolerated && (ok || !errors.Is(err, errFault)) || (done || tolerated) && (!ok || err != nil) {
				t.Errorf("again %t, call %d, %s: %t, %v", again, n, faulty.failed, ok, err)
			}
			drain(t, s, v)
			wantGaps(t, v, a, 0)
			shut(t, s)
			if done {
				break
			}
		}
	}
}

// TestFullFaults fails each call of the file system while a window is appended to a full spool, one at a
// time: the error is returned, and no time is lost without a gap or sent twice.
func TestFullFaults(t *testing.T) {
	for _, scenario := range []string{"a server has the batches", "a server lacks the batches", "windows wait"} {
		fs := faultfs.New(func(int) int { return 0 })
		cfg := config(fs)
		cfg.SegmentBytes, cfg.MaxBytes = 512<<10, 64<<20
		if scenario == "windows wait" {
			cfg.SegmentBytes = 128 << 10
		}
		s := openSpool(t, cfg)
		a, v := &agent{}, newServer()
		add := func() {
			t.Helper()
			a.opening = usage.StartResumed // is not merged
			if err := a.window(s, 1, bulky(18)); err != nil {
				t.Fatal(err)
			}
		}
		if scenario != "windows wait" {
			for range 20 {
				add()
				drain(t, s, v)
			}
			if err := s.Maintain(time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		if scenario == "a server lacks the batches" {
			sent := v.sent
			v = newServer()
			v.sent = sent
			add()
			if _, err := exchange(t, s, v, live(s), false); err != nil {
				t.Fatal(err)
			}
		}
		for s.Stats().Bytes < 1<<20 {
			add()
		}
		most := s.Stats().Bytes + 8<<10 // a window takes more than 8 KiB
		shut(t, s)
		kept := files(t, fs)
		for n := 1; ; n++ {
			fs := faultfs.New(func(int) int { return 0 })
			for name, b := range kept {
				fill(t, fs, name, b)
			}
			faulty := &faultyFS{FS: fs}
			cfg.FS, cfg.MaxBytes = faulty, most
			s := openSpool(t, cfg)
			a, v := *a, v.backup()
			v.sent = map[string]batch.Hash{}
			before := s.Stats()
			a.opening = usage.StartResumed
			faulty.calls, faulty.fails = 0, n
			err := a.window(s, 1, bulky(18))
			faulty.fails = 0
			done := faulty.failed == ""
			// Nothing depends on the closing of a full segment, or on the removal of windows.
			tolerated := strings.HasPrefix(faulty.failed, "close") || strings.HasPrefix(faulty.failed, "remove spool/windows")
			if !done && !tolerated && !errors.Is(err, errFault) || (done || tolerated) && err != nil {
				t.Errorf("%s: call %d, %s: %v", scenario, n, faulty.failed, err)
			}
			if st := s.Stats(); done && st.Evicted == before.Evicted && st.Dropped == 0 {
				t.Errorf("%s: nothing made room: %+v", scenario, st)
			}
			for range 2 {
				if err := a.window(s, 1, nil); err != nil {
					t.Errorf("%s: call %d, %s, then again: %v", scenario, n, faulty.failed, err)
				}
			}
			drain(t, s, v)
			v.check(t, a.now)
			shut(t, s)
			if done {
				break
			}
		}
	}
}
