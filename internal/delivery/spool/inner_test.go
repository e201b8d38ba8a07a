package spool

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

func openInner(t *testing.T, cfg Config) *Spool {
	t.Helper()
	s, err := Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func innerConfig(t *testing.T) Config {
	cfg := Default()
	cfg.Dir, cfg.FS = t.TempDir(), &hookFS{}
	return cfg
}

// fill appends n adjacent windows of 10 s.
func fill(t *testing.T, s *Spool, n int) {
	t.Helper()
	const step = int64(10 * time.Second)
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixNano()
	for range n {
		start := int64(s.lastWindow) * step
		w := usage.Window{Boot: "boot", Start: start, End: start + step, Offset: day}
		row := usage.Row{ShortID: 100}
		row.Usage.Put(usage.CPU, 5, usage.Measured)
		w.Rows = append(w.Rows, row)
		if err := s.Append(&w, nil, nil, func(bool) []byte { return nil }, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// size returns the bytes of all files in a directory.
func size(t *testing.T, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			info, err := d.Info()
			if err != nil {
				return err
			}
			sum += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// Opening a spool that was closed writes nothing.
func TestReopenWritesNothing(t *testing.T) {
	cfg := innerConfig(t)
	s := openInner(t, cfg)
	fill(t, s, 2)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before := size(t, cfg.Dir)
	for range 2 {
		if err := openInner(t, cfg).Close(); err != nil {
			t.Fatal(err)
		}
	}
	if after := size(t, cfg.Dir); after != before {
		t.Errorf("%d bytes, then %d", before, after)
	}
}

// Where room is needed, windows are merged by the rules for older ones, the first rule first, until
// no rule merges any.
func TestMergeEarly(t *testing.T) {
	cfg := innerConfig(t)
	cfg.SegmentBytes = 4 << 10
	s := openInner(t, cfg)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	fill(t, s, 3*360)
	var spans []time.Duration
	for {
		done, err := s.mergeEarly()
		if err != nil {
			t.Fatal(err)
		}
		if !done {
			break
		}
		spans = append(spans, time.Duration(s.index[0].End-s.index[0].Start))
	}
	if len(spans) < 2 || spans[0] != 5*time.Minute || spans[len(spans)-1] != time.Hour {
		t.Errorf("the first window has in turn %v, want 5 minutes and at last an hour", spans)
	}
	if n := s.stats.Merged; n < 900 {
		t.Errorf("%d of 1080 windows were merged", n)
	}
}

// A stream offers its last batch again, not an earlier one.
func TestReofferLast(t *testing.T) {
	s := openInner(t, innerConfig(t))
	st := s.liveStream()
	for n := range uint64(3) {
		fill(t, s, 1)
		o, ok, err := s.NextOffer(st.ID)
		if err != nil || !ok || o.Number != n+1 {
			t.Fatal(o, ok, err)
		}
		if _, err := s.ApplyReply(st.ID, batch.Reply{Verdict: batch.Accepted, Next: n + 2}); err != nil {
			t.Fatal(err)
		}
	}
	s.reofferLast(func(*stream) bool { return false })
	if got := s.findStream(st.ID).Wanted; got != 4 {
		t.Errorf("batch %d is wanted of a stream that was not chosen", got)
	}
	s.reofferLast(func(*stream) bool { return true })
	if got := s.findStream(st.ID).Wanted; got != 3 {
		t.Errorf("batch %d is offered again, want the last one, 3", got)
	}
	// Batch 4 is of another stream, which inherited it.
	st = s.findStream(st.ID)
	s.stored[st.ID] = slices.DeleteFunc(s.stored[st.ID], func(k storedBatch) bool { return k.Number == 3 })
	s.addStored(storedBatch{batchHead: batchHead{Stream: st.ID, Number: 4}})
	st.Wanted = 4
	clear(s.dirty)
	if s.reofferLast(func(*stream) bool { return true }); st.Wanted != 4 || len(s.dirty) > 0 {
		t.Errorf("batch %d is offered again, which the stream did not make", st.Wanted)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A failing FS fails to release its lock.
type failingFS struct{ OS }

type failingLock struct{ io.Closer }

var errLock = errors.New("lock")

func (f failingLock) Close() error { return errors.Join(f.Closer.Close(), errLock) }

func (f failingFS) Lock(name string) (io.Closer, error) {
	c, err := f.OS.Lock(name)
	return failingLock{c}, err
}

func TestCloseFails(t *testing.T) {
	cfg := innerConfig(t)
	cfg.FS = failingFS{}
	if err := openInner(t, cfg).Close(); !errors.Is(err, errLock) {
		t.Errorf("Close = %v, want the error of the lock", err)
	}
}

// An incomplete record at the end of the last segment is cut off, so that the next one follows the
// last whole record.
func TestResumeCuts(t *testing.T) {
	cfg := innerConfig(t)
	s := openInner(t, cfg)
	fill(t, s, 2)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(cfg.Dir, "windows", "*.seg"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[0], append(whole, whole[headerSize:headerSize+20]...), 0o600); err != nil {
		t.Fatal(err)
	}
	s = openInner(t, cfg)
	if got, err := os.ReadFile(files[0]); err != nil || string(got) != string(whole) {
		t.Errorf("%d bytes after opening, want %d: %v", len(got), len(whole), err)
	}
	fill(t, s, 1)
	if len(s.index) != 3 {
		t.Errorf("%d windows, want 3", len(s.index))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s = openInner(t, cfg); len(s.index) != 3 || s.stats.Corrupt != 0 {
		t.Errorf("%d windows after another start, %d corrupt records", len(s.index), s.stats.Corrupt)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A digest depends on each resource of the set, and on no other.
func TestDigest(t *testing.T) {
	var amounts [usage.Limit]int64
	for r := range amounts {
		amounts[r] = int64(r) * 1000
	}
	whole := digestOf(usage.All, &amounts)
	for r := range usage.All.All() {
		changed := amounts
		changed[r]++
		if digestOf(usage.All, &changed) == whole {
			t.Errorf("%v makes no difference", r)
		}
		if rest := usage.All &^ usage.SetOf(r); digestOf(rest, &changed) != digestOf(rest, &amounts) {
			t.Errorf("%v makes a difference where it is not in the set", r)
		}
	}
}

// TestLatestWindow checks that a window that is offered from memory is the one on disk, although the
// caller has used the memory of its arguments again since.
func TestLatestWindow(t *testing.T) {
	offered := func(fromDisk bool) *batch.Batch {
		s := openInner(t, innerConfig(t))
		fill(t, s, 3)
		live := s.liveStream().ID
		if _, ok, err := s.NextOffer(live); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if _, err := s.ApplyReply(live, batch.Reply{Verdict: batch.Accepted, Next: 2}); err != nil {
			t.Fatal(err)
		}
		w := usage.Window{Boot: "boot", Start: 30_000_000_000, End: 40_000_000_000, Offset: 1_700_000_000_000_000_000, CPUs: 2}
		for i := range 3 {
			row := usage.Row{ShortID: workload.ShortID(100 + i), Ended: i == 1}
			row.Usage.Put(usage.CPU, int64(7*i), usage.Measured)
			row.Usage.Put(usage.Memory, 5, usage.Apportioned)
			row.Has, row.Total = row.Usage.Present, row.Usage.Amount
			row.Connections = &connection.Sketch{Missed: int64(i + 1)}
			w.Rows = append(w.Rows, row)
		}
		names := []batch.Name{{ID: workload.NewID("n", workload.Path, "a"), Kind: workload.Path, Name: strings.Repeat("n", 9000) + "\xff"}, {ID: workload.NewID("n", workload.Path, "b"), Kind: workload.Path}}
		at := time.Unix(1_700_000_000, 0).UTC()
		gaps := []usage.Gap{{From: at, To: at.Add(time.Second), Reason: usage.Corrupt}}
		if err := s.Append(&w, names, gaps, func(bool) []byte { return nil }, nil); err != nil {
			t.Fatal(err)
		}
		clear(w.Rows)
		clear(names)
		clear(gaps)
		if fromDisk {
			// One that fails leaves nothing of the latest window in memory.
			next := usage.Window{Boot: "boot", Start: w.End, End: w.End + 1, Offset: w.Offset}
			if err := s.Append(&next, nil, nil, func(bool) []byte { return nil }, func(bool) []byte { return []byte("no JSON") }); err == nil {
				t.Fatal("appended")
			}
		}
		o, ok, err := s.NextOffer(live)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		b, err := wire.Decode(o.Bytes, wire.Default())
		if err != nil || len(b.Windows) != 1 || len(b.Windows[0].Rows) != 3 || len(b.Names) != 2 || len(b.Gaps) == 0 || b.Windows[0].Rows[2].Connections == nil || b.Windows[0].Rows[2].Connections.Missed != 3 {
			t.Fatalf("%+v, %v", b, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		b.Stream, b.Previous = batch.Stream{}, batch.Hash{} // drawn when a spool is made
		return b
	}
	if memory, disk := offered(false), offered(true); !reflect.DeepEqual(memory, disk) {
		t.Errorf("from memory %+v\nfrom disk %+v", memory, disk)
	}
}

// TestLatestAfterHole checks that the batch of the latest window has the gap of one before it that is lost, which the window
// was encoded without.
func TestLatestAfterHole(t *testing.T) {
	s := openInner(t, innerConfig(t))
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	fill(t, s, 2)
	s.index = s.index[1:]
	o, ok, err := s.NextOffer(s.liveStream().ID)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	b, err := wire.Decode(o.Bytes, wire.Default())
	if err != nil || len(b.Windows) != 1 || len(b.Gaps) != 1 || b.Gaps[0].Reason != usage.Corrupt {
		t.Errorf("%+v, %v; want one window and a gap before it", b, err)
	}
}

// TestTotalsOfFailedAppend checks that rows of a window that cannot be appended have the totals that are
// omitted from those that can.
func TestTotalsOfFailedAppend(t *testing.T) {
	s := openInner(t, innerConfig(t))
	window := func(n int64) *usage.Window {
		row := usage.Row{ShortID: 100, Workload: &usage.Identity{Workload: workload.Workload{Kind: workload.Path}}}
		row.Usage.Put(usage.CPU, 5, usage.Measured)
		row.Has, row.Total[usage.CPU] = row.Usage.Present, 5*n
		return &usage.Window{Boot: "boot", Start: n * 10e9, End: (n + 1) * 10e9, Offset: 1e18, Rows: []usage.Row{row}}
	}
	for n, text := range []string{"{}", "{}", "no JSON"} {
		w := window(int64(n + 1))
		err := s.Append(w, nil, nil, func(bool) []byte { return nil }, func(bool) []byte { return []byte(text) })
		if got, want := w.Rows[0].Has != 0, n != 1; got != want || (err != nil) != (n == 2) {
			t.Errorf("append %d: %v; totals are in the row: %v, want %v", n, err, got, want)
		}
	}
}

// TestEdgesOfBatches checks that the connections of all rows of a batch are sent.
func TestEdgesOfBatches(t *testing.T) {
	if most := maxRows * connection.Top; most > wire.Default().Edges {
		t.Errorf("%d rows have up to %d edges, and %d are sent", maxRows, most, wire.Default().Edges)
	}
}

// TestVolumesOfBatches checks that a batch has no more figures of volumes than are sent, so that those of a pod with very many push
// out none of another one, also after windows were merged.
func TestVolumesOfBatches(t *testing.T) {
	cfg := innerConfig(t)
	cfg.SegmentBytes = 1
	s := openInner(t, cfg)
	defer func() { _ = s.Close() }()
	limit := wire.Default().Volumes
	const windows = 7
	for i := range int64(windows) {
		w := usage.Window{Boot: "b", Start: i * 10e9, End: (i + 1) * 10e9, StartReason: usage.StartContinued}
		w.Volumes = append(w.Volumes, usage.VolumeUse{Pod: "good", Volume: "pv-1", At: w.Start, Used: 1 + i})
		for v := range limit / 3 {
			w.Volumes = append(w.Volumes, usage.VolumeUse{Pod: "evil", Volume: fmt.Sprint(v), At: w.Start + 1})
		}
		if err := s.Append(&w, nil, nil, func(bool) []byte { return nil }, nil); err != nil {
			t.Fatal(err)
		}
	}
	if done, err := s.merge(20*time.Second, 40e9); !done || err != nil { // of the first four two are left
		t.Fatal(done, err)
	}
	s.cfg.SegmentBytes = Default().SegmentBytes // which limits batches too
	var used []int64
	for {
		o, ok, err := s.NextOffer(s.liveStream().ID)
		if err != nil || !ok {
			if err != nil || !slices.Equal(used, []int64{2, 4, 5, 6, 7}) {
				t.Errorf("%v, figures %v", err, used)
			}
			return
		}
		b, err := wire.Decode(o.Bytes, wire.Default())
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Windows {
			if list := b.Windows[i].Volumes; len(list) == limit/3+1 && list[0].Pod == "good" {
				used = append(used, list[0].Used)
			}
		}
		if _, err := s.ApplyReply(o.Stream, batch.Reply{Verdict: batch.Accepted, Next: o.Number + 1}); err != nil {
			t.Fatal(err)
		}
	}
}
