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
	"mete.dev/mete/internal/testkit/spooltest"
)

// The machine of the model has one boot. What its workloads used by some time is
// a function of the time alone, so of every window it is known what has to be in
// it.
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

// used is what workload w used until a time.
func used(w int, at int64) int64 { return at / int64(time.Millisecond) * int64(w+1) / 7 }

func short(w int) workload.ShortID { return workload.ShortID(100 + w) }

// between is the window of the machine from one instant to another.
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

// An agent books windows, and begins anew from the spool's checkpoint.
type agent struct {
	now     int64 // of the machine
	booked  int64 // end of the last window
	pending *usage.Window
	durable int64   // end of the last window that was appended
	tried   []int64 // ends of those since that could not be
	opening usage.StartReason
}

func state(at int64, full bool) []byte {
	b := []byte{'d'}
	if full {
		b[0] = 'f'
	}
	return binary.LittleEndian.AppendUint64(b, uint64(at))
}

// restore takes the checkpoint of a spool that was just opened.
func (a *agent) restore(t tb, parts [][]byte) {
	t.Helper()
	a.pending, a.booked, a.opening = nil, 0, usage.StartFirst
	for i, part := range parts {
		if (part[0] == 'f') != (i == 0) {
			t.Fatalf("part %d of the checkpoint is %q", i, part)
		}
		at := int64(binary.LittleEndian.Uint64(part[1:]))
		if at <= a.booked {
			t.Fatalf("part %d of the checkpoint is of %d, the one before of %d", i, at, a.booked)
		}
		a.booked, a.opening = at, usage.StartResumed
	}
}

// window closes a window and appends it, with those that could not be.
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
	err := s.Append(a.pending, names, nil, func(full bool) []byte { return state(a.booked, full) })
	if err == nil {
		a.pending, a.durable, a.tried = nil, a.booked, nil
	}
	return err
}

// A server follows batch.Mark.Judge.
type server struct {
	marks  map[batch.Stream]batch.Mark
	hashes map[string]batch.Hash
	taken  []usage.Window
	gaps   []usage.Gap
	sent   map[string]batch.Hash // of all offers ever made, by anyone
	totals map[string]int64      // by stream and workload, with the end
}

func newServer() *server {
	return &server{marks: map[batch.Stream]batch.Mark{}, hashes: map[string]batch.Hash{}, sent: map[string]batch.Hash{}, totals: map[string]int64{}}
}

// backup is the server as it is now. What was ever offered is not forgotten.
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
		t.Fatalf("batch %v/%d says that it is %v/%d", o.Stream, o.Number, b.Stream, b.Number)
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
	return batch.Reply{Verdict: verdict, Next: m.Next}
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

// check holds what the server took against the time until end: each instant is
// in one window, or in a gap. It returns how long the gaps alone cover.
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
				t.Fatalf("from %v to %v nothing was taken, and no gap says so: %v", time.Duration(at), time.Duration(to), v.gaps)
			}
			next = min(next, to)
			alone += next - at
			at = next
		}
	}
	for _, w := range v.taken {
		if w.Start < at {
			t.Fatalf("window %v-%v begins before %v: it was taken twice", time.Duration(w.Start), time.Duration(w.End), time.Duration(at))
		}
		hole(w.Start)
		at = w.End
	}
	hole(end)
	return alone
}

// exchange sends one batch of a stream, and reports whether there was one. The
// reply may get lost on its way.
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

// drain sends all that waits.
func drain(t tb, s *spool.Spool, v *server) {
	t.Helper()
	for range 10_000 {
		some := false
		for _, st := range s.Streams() {
			sent, err := exchange(t, s, v, st.Stream, false)
			if err != nil && !errors.Is(err, fault.ErrNotFound) {
				t.Fatalf("%v: %v", st, err)
			}
			some = some || sent
		}
		if !some {
			return
		}
	}
	t.Fatal("it never ends")
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

// noise is text that no compression makes shorter than half.
var noise = sync.OnceValue(func() string {
	var b []byte
	r := rand.New(rand.NewPCG(1, 2))
	for len(b) < 1<<20 {
		b = fmt.Appendf(b, "%016x", r.Uint64())
	}
	return string(b)
})

// fat are names that fill a spool.
func fat(t *rapid.T) []batch.Name {
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

// world is all that the model consists of.
type world struct {
	fs      *spooltest.FS
	cfg     spool.Config
	s       *spool.Spool
	agent   agent
	server  *server
	backup  *server
	segment int64
	lossy   bool // something may be lost, if it is said so
	rotten  bool // a record of the log of batches may be lost
}

func (w *world) stream(t *rapid.T) batch.Stream {
	return rapid.SampledFrom(w.s.Streams()).Draw(t, "stream").Stream
}

func (w *world) wall() time.Time { return time.Unix(0, started+w.agent.now) }

// reopen opens the spool after a crash or a close.
func (w *world) reopen(t *rapid.T) {
	s, err := spool.Open(w.cfg, quiet())
	for range 6 { // what fails may fail a few times
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
	w.agent.restore(t, w.s.Checkpoint())
	if w.agent.booked == 0 && w.agent.durable > 0 && w.lossy {
		// The checkpoint is lost, and the agent says of what.
		w.agent.booked = w.agent.now
		w.server.gaps = append(w.server.gaps, usage.Gap{From: time.Unix(0, started), To: w.wall()})
		w.agent.tried = append(w.agent.tried, w.agent.now)
	}
	if at := w.agent.booked; !w.lossy && at != w.agent.durable && !slices.Contains(w.agent.tried, at) {
		t.Fatalf("the checkpoint is of %d; the last durable window ended at %d", at, w.agent.durable)
	}
	w.agent.durable = w.agent.booked
}

func (w *world) actions(fat_ bool) map[string]func(*rapid.T) {
	a := map[string]func(*rapid.T){
		"append": func(t *rapid.T) {
			var names []batch.Name
			if fat_ {
				names = fat(t)
			}
			for range rapid.IntRange(1, 8).Draw(t, "windows") {
				_ = w.agent.window(w.s, rapid.Int64Range(1, 6).Draw(t, "ticks"), names)
			}
		},
		"exchange": func(t *rapid.T) {
			id := w.stream(t)
			for range rapid.IntRange(1, 3).Draw(t, "batches") {
				_, _ = exchange(t, w.s, w.server, id, rapid.IntRange(0, 4).Draw(t, "deaf") == 0)
			}
		},
		"set aside": func(t *rapid.T) { _, _ = w.s.SplitBacklog(w.wall()) },
		"sleep":     func(t *rapid.T) { w.agent.now += rapid.Int64Range(1, 120).Draw(t, "minutes") * int64(time.Minute) },
		"tidy":      func(t *rapid.T) { _ = w.s.Maintain(w.wall()) },
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

// losses are actions after which something may be missing.
func (w *world) losses(a map[string]func(*rapid.T)) map[string]func(*rapid.T) {
	w.lossy = true
	a["wipe"] = func(t *rapid.T) {
		// That it lacks all shows in a stream that it knew.
		w.settle(t)
		// A backup of before would hold what goes into other streams now.
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
		// What a server took that long ago is not there for it any more.
		w.settle(t)
		w.backup = nil
		w.agent.now += int64(48 * time.Hour)
		_ = w.s.Maintain(w.wall())
	}
	a["rot"] = func(t *rapid.T) {
		// A log of which the very last record is lost cannot show it by itself:
		// the other one does, from the next window on.
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
				return // where all is lost that told of something, nobody can
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

// settle has the server take all that there is, and something of each stream.
func (w *world) settle(t *rapid.T) {
	w.mend()
	drain(t, w.s, w.server)
	err := w.agent.window(w.s, 1, nil)
	drain(t, w.s, w.server)
	if err := errors.Join(err, w.s.Maintain(w.wall())); err != nil { // what the server said is durable then
		t.Fatal(err)
	}
}

func (w *world) mend() {
	w.fs.SetFree(-1)
	w.fs.FailSyncs(0)
	w.fs.FailNames(0)
}

// finish mends what is broken, sends all, and holds it against the agent.
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
		t.Fatalf("after all was sent: %+v", st)
	}
	return w.server.check(t, w.agent.now)
}

func newWorld(t *rapid.T, size, segment int64) *world {
	fs := spooltest.New(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") })
	w := &world{fs: fs, cfg: config(fs), server: newServer()}
	w.cfg.MaxBytes = size
	// A handful of windows fill one.
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

// Whatever crashes and fails: what a server takes is what was appended, once,
// and nothing is missing.
func TestModelLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 1<<30, 1<<10)
		t.Repeat(without(w.actions(false), "restore"))
		if alone := w.finish(t); alone != 0 {
			t.Fatalf("%v are lost: %v", time.Duration(alone), w.server.gaps)
		}
	})
}

// A server that is restored from a backup gets again what it took since.
func TestModelRefillsServers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 1<<30, 1<<10)
		t.Repeat(without(w.actions(false), "full"))
		if alone := w.finish(t); alone != 0 {
			t.Fatalf("%v are lost: %v", time.Duration(alone), w.server.gaps)
		}
	})
}

// A spool that is too small for what waits, and batches that a server refuses:
// what is lost is said.
func TestModelSaysWhatIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 1<<20, 32<<10)
		t.Repeat(without(w.losses(w.actions(true)), "rot", "wipe", "days", "restore"))
		w.finish(t)
	})
}

// A server that lost everything gets what is kept, and is told of the rest.
func TestModelServersLoseAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 1<<20, 32<<10)
		t.Repeat(without(w.losses(w.actions(true)), "rot", "fork", "set aside"))
		w.finish(t)
	})
}

// Bits that change on the disk lose what they are in, and double nothing.
func TestModelSurvivesRot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 1<<30, 1<<10)
		// Of what comes before the first batch nobody could say when it began.
		if err := w.agent.window(w.s, 1, nil); err != nil {
			t.Fatal(err)
		}
		drain(t, w.s, w.server)
		t.Repeat(without(w.losses(w.actions(false)), "wipe", "days", "restore", "full"))
		w.finish(t)
	})
}
