package spool_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/faultfs"
)

// The machine of the model has one boot. The use of its workloads is a function of the time,
// so the expected content of every window is known.
const (
	tick      = int64(10 * time.Second)
	workloads = 3
)

// A tb is a *testing.T or a *rapid.T.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

var started = time.Now().Truncate(time.Hour).UnixNano()

// used returns the use of workload w until a time.
func used(w int, at int64) int64 { return at / int64(time.Millisecond) * int64(w+1) / 7 }

func short(w int) workload.ShortID { return workload.ShortID(100 + w) }

// between returns the window of the machine from one time to another.
func between(from, to int64, opening usage.StartReason) *usage.Window {
	w := &usage.Window{Boot: "boot", Start: from, End: to, Offset: started, StartReason: opening, CPUs: 2}
	for i := range workloads {
		row := usage.Row{ShortID: short(i), Has: usage.SetOf(usage.CPU)}
		row.Usage.Put(usage.CPU, used(i, to)-used(i, from), usage.Measured)
		row.Usage.Covered = time.Duration(to - from)
		row.Total[usage.CPU] = used(i, to)
		w.Rows = append(w.Rows, row)
	}
	return w
}

// An agent books windows, and restarts from the spool's checkpoint.
type agent struct {
	now     int64 // of the machine
	booked  int64 // end of the last window
	pending *usage.Window
	durable int64   // end of the last window that was appended
	tried   []int64 // ends of later windows whose append failed
	notes   int     // appended since that window
	opening usage.StartReason
}

func state(at int64, full bool) []byte {
	b := []byte{'d'}
	if full {
		b[0] = 'f'
	}
	return binary.LittleEndian.AppendUint64(b, uint64(at))
}

// restore restores the agent from the checkpoint of a newly opened spool.
func (a *agent) restore(t tb, parts [][]byte) {
	t.Helper()
	a.pending, a.booked, a.opening = nil, 0, usage.StartFirst
	found := 0
	for i, part := range parts {
		if part[0] == 'n' {
			if at := int64(binary.LittleEndian.Uint64(part[1:])); at != a.booked {
				t.Fatalf("a note follows the window to %d, the checkpoint is of %d", at, a.booked)
			}
			found++
			continue
		}
		if (part[0] == 'f') != (i == 0) {
			t.Fatalf("part %d of the checkpoint is %q", i, part)
		}
		at := int64(binary.LittleEndian.Uint64(part[1:]))
		if at <= a.booked {
			t.Fatalf("part %d of the checkpoint has the time %d, the previous part %d", i, at, a.booked)
		}
		a.booked, a.opening = at, usage.StartResumed
	}
	if a.booked == a.durable && found < a.notes {
		t.Fatalf("%d notes, %d were appended", found, a.notes)
	}
	a.notes = found
}

// note appends a note, if there is a durable window that it can follow.
func (a *agent) note(s *spool.Spool) error {
	if a.pending != nil || a.booked != a.durable || a.durable == 0 {
		return nil
	}
	err := s.AppendNote(nil, func() []byte { return append([]byte{'n'}, state(a.durable, false)[1:]...) })
	if err == nil {
		a.notes++
	}
	return err
}

// window closes a window and appends it, merged with those whose append failed.
func (a *agent) window(s *spool.Spool, ticks int64, names []batch.Name) error {
	a.now += ticks * tick
	next := between(a.booked, a.now, a.opening)
	a.booked, a.opening = a.now, usage.StartContinued
	if a.pending != nil {
		a.pending.Merge(next)
	} else {
		a.pending = next
	}
	a.tried = append(a.tried, a.booked)
	err := s.Append(a.pending, names, nil, func(full bool) []byte { return state(a.booked, full) }, nil)
	if err == nil {
		a.pending, a.durable, a.tried, a.notes = nil, a.booked, nil, 0
	}
	return err
}

// A server follows batch.Mark.Judge.
type server struct {
	marks  map[batch.Stream]batch.Mark
	hashes map[string]batch.Hash
	taken  []usage.Window
	gaps   []usage.Gap
	sent   map[string]batch.Hash // of all offers so far
	totals map[string]int64      // by stream and workload, with the end
}

func newServer() *server {
	return &server{marks: map[batch.Stream]batch.Mark{}, hashes: map[string]batch.Hash{}, sent: map[string]batch.Hash{}, totals: map[string]int64{}}
}

// backup returns a copy of the server, which shares the record of all offers.
func (v *server) backup() *server {
	return &server{marks: maps.Clone(v.marks), hashes: maps.Clone(v.hashes), taken: slices.Clone(v.taken), gaps: slices.Clone(v.gaps), sent: v.sent, totals: maps.Clone(v.totals)}
}

func (v *server) mark(id batch.Stream) batch.Mark {
	if m, ok := v.marks[id]; ok {
		return m
	}
	return batch.Mark{Next: 1}
}

func (v *server) offer(t tb, o spool.Offer) batch.Reply {
	t.Helper()
	b, err := wire.Decode(o.Bytes, wire.Default())
	if err != nil {
		t.Fatalf("batch %v/%d: %v", o.Stream, o.Number, err)
	}
	if b.Stream != o.Stream || b.Number != o.Number || batch.HashOf(o.Bytes) != o.Hash {
		t.Fatalf("offer of batch %v/%d has batch %v/%d", o.Stream, o.Number, b.Stream, b.Number)
	}
	key := fmt.Sprintf("%v/%d", o.Stream, o.Number)
	if was, ok := v.sent[key]; ok && was != o.Hash {
		t.Fatalf("batch %s changed", key)
	}
	v.sent[key] = o.Hash
	m := v.mark(o.Stream)
	var known *batch.Hash
	if h, ok := v.hashes[key]; ok {
		known = &h
	}
	verdict := m.Judge(b.Number, b.Previous, o.Hash, known)
	if verdict == batch.Accepted {
		v.book(t, b)
		m = batch.Mark{Next: b.Number + 1, Last: o.Hash}
		v.marks[o.Stream], v.hashes[key] = m, o.Hash
	}
	return batch.Reply{Verdict: verdict, Next: m.Next, Booked: verdict == batch.Duplicate && known != nil}
}

func (v *server) book(t tb, b *batch.Batch) {
	t.Helper()
	if n := len(b.Windows); n > 0 && len(b.Windows[n-1].Rows) == 0 {
		t.Fatal("window without rows")
	}
	for _, w := range b.Windows {
		for i, row := range w.Rows {
			if want := used(i, w.End) - used(i, w.Start); row.ShortID != short(i) || row.Usage.Amount[usage.CPU] != want {
				t.Fatalf("window %d-%d: row %d: %+v, want %d", w.Start, w.End, i, row, want)
			}
			key := fmt.Sprintf("%v/%v/", b.Stream, row.ShortID)
			total, ok := v.totals[fmt.Sprint(key, w.Start)]
			if total += row.Usage.Amount[usage.CPU]; row.Has.Has(usage.CPU) {
				total, ok = row.Total[usage.CPU], true
			}
			if ok && total != used(i, w.End) {
				t.Fatalf("window %d-%d: row %d: total %d, want %d", w.Start, w.End, i, total, used(i, w.End))
			}
			if ok {
				v.totals[fmt.Sprint(key, w.End)] = total
			}
		}
	}
	v.taken = append(v.taken, b.Windows...)
	v.gaps = append(v.gaps, b.Gaps...)
}

func (v *server) lost(l *batch.Loss) batch.Reply {
	m := v.mark(l.Stream)
	if l.From > m.Next || l.To < m.Next {
		return batch.Reply{Verdict: batch.OutOfOrder, Next: m.Next}
	}
	v.marks[l.Stream] = batch.Mark{Next: l.To + 1, Last: l.Hash}
	v.gaps = append(v.gaps, l.Gap)
	return batch.Reply{Verdict: batch.Accepted, Next: l.To + 1}
}

// check verifies that each instant until end is in exactly one accepted window or in a gap.
// It returns the time that only gaps cover.
func (v *server) check(t tb, end int64) (alone int64) {
	t.Helper()
	slices.SortFunc(v.taken, func(a, b usage.Window) int { return int(a.Start - b.Start) })
	at := int64(0)
	hole := func(to int64) {
		for at < to {
			next := at
			for _, g := range v.gaps {
				from, through := g.From.UnixNano()-started, g.To.UnixNano()-started
				if from <= at && through > next {
					next = through
				}
			}
			if next == at {
				t.Fatalf("from %v to %v there is neither a window nor a gap: %v", time.Duration(at), time.Duration(to), v.gaps)
			}
			next = min(next, to)
			alone += next - at
			at = next
		}
	}
	for _, w := range v.taken {
		if w.Start < at {
			t.Fatalf("window %v-%v starts before %v: its time was accepted twice", time.Duration(w.Start), time.Duration(w.End), time.Duration(at))
		}
		hole(w.Start)
		at = w.End
	}
	hole(end)
	return alone
}

// exchange sends one batch of a stream and reports whether there was one. deaf loses the
// reply.
func exchange(t tb, s *spool.Spool, v *server, id batch.Stream, deaf bool) (bool, error) {
	t.Helper()
	o, ok, err := s.NextOffer(id)
	if err != nil || !ok {
		return false, err
	}
	r := v.offer(t, o)
	if deaf {
		return true, nil
	}
	for {
		lost, err := s.ApplyReply(id, r)
		if err != nil || lost == nil {
			return true, err
		}
		r = v.lost(lost)
	}
}

// drain sends all waiting windows.
func drain(t tb, s *spool.Spool, v *server) {
	t.Helper()
	for range 10_000 {
		sentAny := false
		for _, st := range s.Streams() {
			sent, err := exchange(t, s, v, st.Stream, false)
			if err != nil && !errors.Is(err, fault.ErrNotFound) {
				t.Fatalf("%v: %v", st, err)
			}
			sentAny = sentAny || sent
		}
		if !sentAny {
			return
		}
	}
	t.Fatal("drain does not end")
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func config(fs spool.FS) spool.Config {
	cfg := spool.Default()
	cfg.Dir, cfg.FS, cfg.MaxBytes = "spool", fs, 1<<20
	return cfg
}

func openSpool(t tb, cfg spool.Config) *spool.Spool {
	t.Helper()
	s, err := spool.Open(cfg, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// noise is text that compresses to half its length at best.
var noise = sync.OnceValue(func() string {
	var b []byte
	r := rand.New(rand.NewPCG(1, 2))
	for len(b) < 1<<20 {
		b = fmt.Appendf(b, "%016x", r.Uint64())
	}
	return string(b)
})

// newLongNames returns long names that fill a spool.
func newLongNames(t *rapid.T) []batch.Name {
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	names := make([]batch.Name, rapid.IntRange(0, 40).Draw(t, "names"))
	for i := range names {
		var id [16]byte
		binary.LittleEndian.PutUint64(id[:], r.Uint64())
		at := r.IntN(len(noise()) - 4000)
		names[i] = batch.Name{ID: workload.IDFromBytes(id), Kind: workload.Path, Path: noise()[at : at+4000]}
	}
	return names
}

// world is the state of the model.
type world struct {
	fs      *faultfs.FS
	cfg     spool.Config
	s       *spool.Spool
	agent   agent
	server  *server
	backup  *server
	segment int64
	lossy   bool // data may be lost if a gap covers it
	rotten  bool // a record of the log of batches may be lost
}

func (w *world) stream(t *rapid.T) batch.Stream {
	return rapid.SampledFrom(w.s.Streams()).Draw(t, "stream").Stream
}

func (w *world) wall() time.Time { return time.Unix(0, started+w.agent.now) }

// reopen opens the spool after a crash or a close.
func (w *world) reopen(t *rapid.T) {
	s, err := spool.Open(w.cfg, quiet())
	for range 6 { // injected failures may fail a few calls
		if err != nil {
			s, err = spool.Open(w.cfg, quiet())
		}
	}
	if errors.Is(err, syscall.ENOSPC) {
		w.fs.SetFree(-1)
		s, err = spool.Open(w.cfg, quiet())
	}
	if err != nil {
		t.Fatal(err)
	}
	w.s = s
	if w.lossy {
		w.agent.notes = 0
	}
	w.agent.restore(t, w.s.Checkpoint())
	if w.agent.booked == 0 && w.agent.durable > 0 && w.lossy {
		// The checkpoint is lost, and the agent reports a gap.
		w.agent.booked = w.agent.now
		w.server.gaps = append(w.server.gaps, usage.Gap{From: time.Unix(0, started), To: w.wall()})
		w.agent.tried = append(w.agent.tried, w.agent.now)
	}
	if at := w.agent.booked; !w.lossy && at != w.agent.durable && !slices.Contains(w.agent.tried, at) {
		t.Fatalf("the checkpoint has the time %d; the last durable window ended at %d", at, w.agent.durable)
	}
	w.agent.durable = w.agent.booked
}

func (w *world) actions(longNames bool) map[string]func(*rapid.T) {
	a := map[string]func(*rapid.T){
		"append": func(t *rapid.T) {
			var names []batch.Name
			if longNames {
				names = newLongNames(t)
			}
			for range rapid.IntRange(1, 8).Draw(t, "windows") {
				_ = w.agent.window(w.s, rapid.Int64Range(1, 6).Draw(t, "ticks"), names)
			}
		},
		"note": func(t *rapid.T) {
			for range rapid.IntRange(1, 3).Draw(t, "notes") {
				_ = w.agent.note(w.s)
			}
		},
		"exchange": func(t *rapid.T) {
			id := w.stream(t)
			for range rapid.IntRange(1, 3).Draw(t, "batches") {
				_, _ = exchange(t, w.s, w.server, id, rapid.IntRange(0, 4).Draw(t, "deaf") == 0)
			}
		},
		"split": func(t *rapid.T) { _, _ = w.s.SplitBacklog(w.wall()) },
		"sleep": func(t *rapid.T) { w.agent.now += rapid.Int64Range(1, 120).Draw(t, "minutes") * int64(time.Minute) },
		"tidy":  func(t *rapid.T) { _ = w.s.Maintain(w.wall()) },
		"close": func(t *rapid.T) {
			_ = w.s.Close()
			w.reopen(t)
		},
		"crash": func(t *rapid.T) {
			w.fs.Crash()
			w.reopen(t)
		},
		"fork": func(t *rapid.T) {
			id := w.stream(t)
			m := w.server.mark(id)
			m.Last = batch.HashOf([]byte("another"))
			w.server.marks[id] = m
		},
		"full":      func(t *rapid.T) { w.fs.SetFree(rapid.Int64Range(0, 5000).Draw(t, "room")) },
		"room":      func(t *rapid.T) { w.fs.SetFree(-1) },
		"bad disk":  func(t *rapid.T) { w.fs.FailSyncs(rapid.IntRange(1, 3).Draw(t, "syncs")) },
		"bad names": func(t *rapid.T) { w.fs.FailNames(rapid.IntRange(1, 3).Draw(t, "calls")) },
		"backup":    func(t *rapid.T) { w.backup = w.server.backup() },
		"restore": func(t *rapid.T) {
			if w.backup != nil {
				w.server = w.backup.backup()
			}
		},
		"": func(t *rapid.T) {
			st := w.s.Stats()
			if most := w.cfg.MaxBytes + w.segment + 256<<10; st.Bytes > most {
				t.Fatalf("%d bytes, more than %d", st.Bytes, most)
			}
			if !w.lossy && st.Dropped+st.Refused+st.Corrupt > 0 {
				t.Fatalf("%+v", st)
			}
		},
	}
	return a
}

// losses adds actions that may lose data.
func (w *world) losses(a map[string]func(*rapid.T)) map[string]func(*rapid.T) {
	w.lossy = true
	a["wipe"] = func(t *rapid.T) {
		// The spool notices the loss in a stream that the server knew.
		w.settle(t)
		// An earlier backup would have data that goes to other streams now.
		w.backup = nil
		sent := w.server.sent
		w.server = newServer()
		w.server.sent = sent
	}
	a["refuse"] = func(t *rapid.T) {
		id := w.stream(t)
		if o, ok, err := w.s.NextOffer(id); err == nil && ok && w.server.mark(id).Next == o.Number {
			_ = w.s.Reject(id, o.Number, "for a test")
		}
	}
	a["days"] = func(t *rapid.T) {
		// The spool no longer has batches that a server acknowledged that long ago.
		w.settle(t)
		w.backup = nil
		w.agent.now += int64(48 * time.Hour)
		_ = w.s.Maintain(w.wall())
	}
	a["rot"] = func(t *rapid.T) {
		// The loss of the last record of a log shows only in the other log, from the next
		// window on.
		if w.agent.window(w.s, 1, nil) != nil {
			return
		}
		if rapid.Bool().Draw(t, "sent") {
			w.mend()
			drain(t, w.s, w.server)
		}
		dir := rapid.SampledFrom([]string{"spool/windows", "spool/batches"}).Draw(t, "dir")
		names, _ := w.fs.List(dir)
		if dir == "spool/batches" {
			if w.rotten || len(names) == 1 {
				return // a complete loss of a log cannot be detected
			}
			w.rotten = true
		}
		name := dir + "/" + rapid.SampledFrom(names).Draw(t, "file")
		w.fs.FlipBit(name, rapid.Int64Range(0, 8*w.fs.Bytes(name)-1).Draw(t, "bit"))
		if err := w.s.Close(); err == nil {
			w.reopen(t)
			return
		}
		w.fs.Crash()
		w.reopen(t)
	}
	return a
}

// settle sends everything to the server, including some data of each stream.
func (w *world) settle(t *rapid.T) {
	w.mend()
	drain(t, w.s, w.server)
	err := w.agent.window(w.s, 1, nil)
	drain(t, w.s, w.server)
	if err := errors.Join(err, w.s.Maintain(w.wall())); err != nil { // writes the replies to disk
		t.Fatal(err)
	}
}

func (w *world) mend() {
	w.fs.SetFree(-1)
	w.fs.FailSyncs(0)
	w.fs.FailNames(0)
}

// finish ends all failures, sends everything, and checks it. It returns the time that only
// gaps cover.
func (w *world) finish(t *rapid.T) (alone int64) {
	w.mend()
	for range 2 {
		w.agent.now += int64(time.Hour)
		if err := w.s.Maintain(w.wall()); err != nil {
			t.Fatal(err)
		}
		if err := w.agent.window(w.s, 1, nil); err != nil {
			t.Fatal(err)
		}
		drain(t, w.s, w.server)
	}
	if st := w.s.Stats(); st.Windows != 0 || st.Streams != 1 {
		t.Fatalf("after everything was sent: %+v", st)
	}
	return w.server.check(t, w.agent.now)
}

func newWorld(t *rapid.T, size, segment int64) *world {
	fs := faultfs.New(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") })
	w := &world{fs: fs, cfg: config(fs), server: newServer()}
	w.cfg.MaxBytes = size
	// A few windows fill a segment.
	w.segment = rapid.Int64Range(1, 4).Draw(t, "segment") * segment
	w.cfg.SegmentBytes = w.segment
	w.agent.opening = usage.StartFirst
	w.s = openSpool(t, w.cfg)
	return w
}

func without(actions map[string]func(*rapid.T), names ...string) map[string]func(*rapid.T) {
	for _, name := range names {
		delete(actions, name)
	}
	return actions
}

// Whatever crashes and fails, a server gets each appended window exactly once.
func TestModelLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 1<<30, 1<<10)
		t.Repeat(without(w.actions(false), "restore"))
		if alone := w.finish(t); alone != 0 {
			t.Fatalf("%v are lost: %v", time.Duration(alone), w.server.gaps)
		}
	})
}

// A server restored from a backup gets the later batches again.
func TestModelRefillsServers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 1<<30, 1<<10)
		t.Repeat(without(w.actions(false), "full"))
		if alone := w.finish(t); alone != 0 {
			t.Fatalf("%v are lost: %v", time.Duration(alone), w.server.gaps)
		}
	})
}

// If the spool is too small for the waiting windows or a server refuses batches, gaps cover
// the loss.
func TestModelReportsLosses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 1<<20, 32<<10)
		t.Repeat(without(w.losses(w.actions(true)), "rot", "wipe", "days", "restore"))
		w.finish(t)
	})
}

// A server that lost everything gets the stored batches and gaps for the rest.
func TestModelServerLosesAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 1<<20, 32<<10)
		t.Repeat(without(w.losses(w.actions(true)), "rot", "fork", "split"))
		w.finish(t)
	})
}

// Flipped bits on disk lose the data of their records and duplicate nothing.
func TestModelSurvivesRot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 1<<30, 1<<10)
		// Send a first batch, because the start of time before it would be unknown.
		if err := w.agent.window(w.s, 1, nil); err != nil {
			t.Fatal(err)
		}
		drain(t, w.s, w.server)
		t.Repeat(without(w.losses(w.actions(false)), "wipe", "days", "restore", "full"))
		w.finish(t)
	})
}
