package spool

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// checksum is CRC-32C.
func checksum(b ...[]byte) []byte {
	sum := crc32.Checksum(slices.Concat(b...), crc32.MakeTable(crc32.Castagnoli))
	return binary.LittleEndian.AppendUint32(nil, sum)
}

// written returns a segment as docs/formats/spool.md describes it, without this package's code.
func written(numbers [5]uint64, records ...string) []byte {
	b := []byte("mtsp\x01\x00\x00\x00")
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	b = append(b, checksum(b)...)
	number := binary.LittleEndian.AppendUint64(nil, numbers[0])
	for _, r := range records {
		kind, payload := r[:1], []byte(r[1:])
		head := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
		head = slices.Concat(head, []byte(kind), checksum(payload))
		b = slices.Concat(b, head, checksum(number, head), payload)
	}
	return b
}

// TestSegmentFormat checks each byte of the segments of a log.
func TestSegmentFormat(t *testing.T) {
	dir := t.TempDir()
	g, _, _ := logIn(t, dir, 70)
	put(t, g, "one", "two", "", "four") // the first two fill a segment
	first := written([5]uint64{1, 1, 0, 0, 0}, "\x07one", "\x07two")
	for name, want := range map[string][]byte{
		"0000000000000001.seg": first,
		"0000000000000002.seg": written([5]uint64{2, 2, 1, uint64(len(first)), 0}, "\x07", "\x07four"),
	} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != string(want) {
			t.Errorf("%s is %q, want %q, %v", name, got, want, err)
		}
	}
	if err := g.rewrite(g.list[:1], func(add func(byte, []byte) (location, error)) error {
		_, err := add(7, []byte("both"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, g, 1), written([5]uint64{1, 1, 0, 0, 1}, "\x07both"); string(got) != string(want) {
		t.Errorf("rewritten it is %q, want %q", got, want)
	}
}

func read(t *testing.T, g *segments, number uint64) []byte {
	t.Helper()
	b, err := os.ReadFile(g.name(number))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestHeaders checks which headers are valid, with a right checksum: that of the segment itself, which
// replaces only later ones, and follows an earlier one.
func TestHeaders(t *testing.T) {
	sound := written([5]uint64{7, 9, 6, 100, 2})
	if h, ok := parseHeader(sound, 7); !ok || h != (header{7, 9, 6, 100, 2}) {
		t.Errorf("%+v, %t", h, ok)
	}
	for name, b := range map[string][]byte{
		"another number":       written([5]uint64{8, 9, 6, 0, 0}),
		"replaces earlier":     written([5]uint64{7, 6, 5, 0, 0}),
		"follows itself":       written([5]uint64{7, 7, 7, 0, 0}),
		"cut":                  sound[:len(sound)-1],
		"another magic":        append([]byte("mtsq"), sound[4:]...),
		"another version":      append([]byte("mtsp\x02"), sound[5:]...),
		"another checksum":     append(slices.Clone(sound[:len(sound)-1]), sound[len(sound)-1]+1),
		"another, of a number": append(append(slices.Clone(sound[:9]), 1), sound[10:]...),
	} {
		if h, ok := parseHeader(b, 7); ok {
			t.Errorf("%s: %+v", name, h)
		}
	}
	if _, ok := parseHeader(written([5]uint64{7, 7, 6, 0, 0}), 7); !ok {
		t.Error("a segment that replaces none is not valid")
	}
}

// TestRecordKinds checks the kinds of the records in both logs, and their payloads.
func TestRecordKinds(t *testing.T) {
	s := opened(t, &hookFS{})
	if err := s.Begin(nil, []byte("whole")); err != nil {
		t.Fatal(err)
	}
	w := &usage.Window{Boot: "b", End: 1}
	if err := s.Append(w, nil, nil, func(bool) []byte { return []byte("checkpoint") }, nil); err != nil {
		t.Fatal(err)
	}
	kinds := func(g *segments) (all []byte) {
		scanRecords(read(t, g, 1), 1, func(_ int64, kind byte, payload []byte) {
			all = append(all, kind)
			n := binary.LittleEndian.Uint32(payload)
			if head := payload[4 : 4+n]; head[0] != '{' || head[n-1] != '}' {
				t.Errorf("a head is %q", head)
			}
		})
		return all
	}
	if got := kinds(s.windows); !slices.Equal(got, []byte{3, 1}) {
		t.Errorf("the log of windows has records %v, want a note and a window: 3, 1", got)
	}
	if got := kinds(s.batches); !slices.Equal(got, []byte{2}) {
		t.Errorf("the log of batches has records %v, want a state: 2", got)
	}
}

// failing is a file whose writes fail.
type failing struct{ File }

var errWrite = errors.New("a write fails")

func (failing) WriteAt([]byte, int64) (int, error) { return 0, errWrite }
func (failing) Truncate(int64) error               { return nil }
func (failing) Sync() error                        { return nil }
func (failing) Close() error                       { return nil }

// TestLongestRecord checks that a payload of 64 MiB is written, and no longer one.
func TestLongestRecord(t *testing.T) {
	payload := make([]byte, 64<<20+1)
	for n, ok := range map[int]bool{64 << 20: true, 64<<20 + 1: false} {
		g := &segments{file: failing{}, list: []*segment{{header: header{number: 1}}}}
		if _, err := g.append(1, payload[:n], false); errors.Is(err, errWrite) != ok || err == nil {
			t.Errorf("a payload of %d bytes: %v", n, err)
		}
	}
	head := binary.LittleEndian.AppendUint32(nil, 64<<20+1)
	b := append(slices.Concat(head, []byte{1}, checksum(payload)), checksum(binary.LittleEndian.AppendUint64(nil, 1), head, []byte{1}, checksum(payload))...)
	if _, _, ok := parseRecord(append(b, payload...), checksumSeed(1)); ok {
		t.Error("a record with a longer payload is valid")
	}
	if _, got, ok := parseRecord(appendRecord(nil, checksumSeed(1), 1, payload[1:]), checksumSeed(1)); !ok || len(got) != 64<<20 {
		t.Errorf("the longest record has %d bytes, valid %t", len(got), ok)
	}
}

// TestRead checks that a record that was changed, or whose place has another one, is corrupt, and that
// a segment that is gone is another error.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	g, _, _ := logIn(t, dir, 1)
	places := put(t, g, "one", "two", "three")
	for i, p := range places {
		if _, err := g.read(location{p.seg, p.offset, p.size + 1}); !errors.Is(err, errCorrupt) {
			t.Errorf("record %d, taken for a longer one: %v", i, err)
		}
		if _, err := g.read(location{p.seg, p.offset + 1, p.size}); !errors.Is(err, errCorrupt) {
			t.Errorf("record %d, at another place: %v", i, err)
		}
	}
	if err := os.Remove(g.name(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := g.read(places[0]); !errors.Is(err, os.ErrNotExist) || errors.Is(err, errCorrupt) {
		t.Errorf("a segment that is gone: %v", err)
	}
}

// TestForeignFiles checks that only segments are read and removed in the directory of a log.
func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	g, _, _ := logIn(t, dir, 1)
	put(t, g, "a", "b")
	if err := g.close(); err != nil {
		t.Fatal(err)
	}
	foreign := []string{"0000000000000000.seg", "0000000000000003.segment", "000000000000003.seg", "00000000000000A3.seg", "3.seg", "README"}
	for _, name := range foreign {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("foreign"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "0000000000000009.seg"), 0o700); err != nil {
		t.Fatal(err)
	}
	g, d, found := logIn(t, dir, 1)
	if !slices.Equal(found, []string{"a", "b"}) || d != (damage{}) || g.last().number != 2 {
		t.Errorf("found %q, %+v, last %d", found, d, g.last().number)
	}
	put(t, g, "c")
	for _, name := range foreign {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != "foreign" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// TestOS checks that each call of the file system returns its error, and what access it gives.
func TestOS(t *testing.T) {
	dir := t.TempDir()
	file, missing := filepath.Join(dir, "file"), filepath.Join(dir, "missing")
	f, err := OS{}.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("content"), 0); err != nil {
		t.Fatal(err)
	}
	if n, err := f.Size(); n != 7 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := f.Size(); n != 0 || !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed file has %d bytes, %v", n, err)
	}
	within := filepath.Join(missing, "x")
	for name, call := range map[string]func() (any, error){
		"MkdirAll": func() (any, error) { return nil, OS{}.MkdirAll(filepath.Join(file, "x")) },
		"Lock":     func() (any, error) { f, err := OS{}.Lock(within); return f, err },
		"List":     func() (any, error) { _, err := OS{}.List(missing); return nil, err },
		"Create":   func() (any, error) { f, err := OS{}.Create(within); return f, err },
		"Open":     func() (any, error) { f, err := OS{}.Open(missing); return f, err },
		"Rename":   func() (any, error) { return nil, OS{}.Rename(missing, file) },
		"Remove":   func() (any, error) { return nil, OS{}.Remove(missing) },
		"SyncDir":  func() (any, error) { return nil, OS{}.SyncDir(missing) },
	} {
		if got, err := call(); got != nil || !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	deep := filepath.Join(dir, "a", "b")
	for range 2 { // made, and there
		for _, d := range []string{deep, dir} {
			if err := (OS{}).MkdirAll(d); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s has mode %v, %v", d, info.Mode(), err)
			}
		}
	}
	if names, err := (OS{}).List(dir); err != nil || !slices.Equal(names, []string{"file"}) {
		t.Errorf("files %v, %v", names, err)
	}
}

// opened returns a spool in a directory of its own.
func opened(t *testing.T, fs FS) *Spool {
	t.Helper()
	cfg := Default()
	cfg.Dir, cfg.FS = filepath.Join(t.TempDir(), "spool"), fs
	s, err := Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestBatchLimits checks how many windows, rows, names and bytes a batch has at most.
func TestBatchLimits(t *testing.T) {
	add := func(s *Spool, n, rows, names int) {
		t.Helper()
		for range n {
			w := &usage.Window{Boot: "b", Start: int64(s.lastWindow), End: int64(s.lastWindow) + 1, Rows: make([]usage.Row, rows)}
			for i := range w.Rows {
				w.Rows[i].ShortID = workload.ShortID(i + 1)
			}
			list := make([]batch.Name, names)
			for i := range list {
				list[i] = batch.Name{ID: workload.IDFromBytes([16]byte{byte(i), byte(i >> 8), byte(s.lastWindow)}), Kind: workload.Path}
			}
			if err := s.Append(w, list, nil, func(bool) []byte { return nil }, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	sizes := func(s *Spool) (all []int) {
		t.Helper()
		id := s.liveStream().ID
		for {
			o, ok, err := s.NextOffer(id)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				return all
			}
			b, err := wire.Decode(o.Bytes, wire.Default())
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, len(b.Windows))
			if _, err := s.ApplyReply(id, batch.Reply{Verdict: batch.Accepted, Next: o.Number + 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name           string
		n, rows, names int
		want           []int
	}{
		{"windows", 361, 1, 0, []int{360, 1}},
		{"rows", 3, 5000, 0, []int{2, 1}},
		{"more rows", 2, 5001, 0, []int{1, 1}},
		{"more rows than fit", 2, 10_001, 0, []int{1, 1}},
		{"names", 3, 1, 2500, []int{2, 1}},
		{"more names", 2, 1, 2501, []int{1, 1}},
	} {
		s := opened(t, &hookFS{})
		add(s, c.n, c.rows, c.names)
		if got := sizes(s); !slices.Equal(got, c.want) {
			t.Errorf("%s: batches of %v windows, want %v", c.name, got, c.want)
		}
	}
	for more, want := range map[int][]int{0: {2, 1}, -1: {1, 2}, 1: {2, 1}} {
		s := opened(t, &hookFS{})
		add(s, 3, 1, 0)
		s.cfg.BatchBytes = s.index[0].Wire + s.index[1].Wire + more
		if more < 0 { // the other two have to fit
			s.index[2].Wire = s.index[0].Wire - 1
		}
		if got := sizes(s); !slices.Equal(got, want) {
			t.Errorf("%d bytes more than two windows: batches of %v windows, want %v", more, got, want)
		}
	}
}

// TestSizes checks the sizes that follow from the cap, and the defaults that docs/formats/spool.md has.
func TestSizes(t *testing.T) {
	for _, c := range []struct {
		most, segment, size int64
		batch               int
	}{
		{512 << 20, 0, 4 << 20, 1 << 20}, {64 << 20, 0, 4 << 20, 1 << 20}, {64<<20 - 16, 0, 4<<20 - 1, 1 << 20}, {16 << 20, 0, 1 << 20, 1 << 20},
		{15 << 20, 0, 15 << 16, 15 << 16}, {1 << 20, 0, 64 << 10, 64 << 10}, {1<<20 + 32, 0, 64<<10 + 2, 64<<10 + 2}, {512 << 20, 1, 1, 1},
	} {
		cfg := Default()
		cfg.MaxBytes, cfg.SegmentBytes = c.most, c.segment
		if cfg.segmentSize() != c.size || cfg.batchSize() != c.batch {
			t.Errorf("cap of %d bytes: segments of %d, batches of %d; want %d, %d", c.most, cfg.segmentSize(), cfg.batchSize(), c.size, c.batch)
		}
	}
	d := Default()
	rules := []MergeRule{{2 * time.Hour, 5 * time.Minute}, {26 * time.Hour, time.Hour}}
	if d.MaxBytes != 512<<20 || d.Retention != 24*time.Hour || d.BatchBytes != 1<<20 || !slices.Equal(d.MergeRules, rules) {
		t.Errorf("default %+v", d)
	}
}

// TestExtent checks the time of a batch and of its gap.
func TestExtent(t *testing.T) {
	gap := func(from, to int64) usage.Gap { return usage.Gap{From: wallTime(from), To: wallTime(to)} }
	ws := []usage.Window{{Start: 10, End: 20, Offset: 100}, {Start: 20, End: 30, Offset: 105}}
	for _, c := range []struct {
		name       string
		windows    []usage.Window
		gaps       []usage.Gap
		want       extent
		start, end int64
	}{
		{"windows", ws, nil, extent{Start: 110, Through: 135}, 110, 135},
		{"gaps within", ws, []usage.Gap{gap(110, 120), gap(115, 135)}, extent{Start: 110, Through: 135}, 110, 135},
		{"a gap before", ws, []usage.Gap{gap(120, 125), gap(109, 110)}, extent{Start: 110, Through: 135, Gap: 109}, 109, 135},
		{"a gap after", ws, []usage.Gap{gap(135, 136), gap(120, 125)}, extent{Start: 110, Through: 135, Until: 136}, 110, 136},
		{"gaps on both sides", ws, []usage.Gap{gap(1, 2), gap(50, 400)}, extent{Start: 110, Through: 135, Gap: 1, Until: 400}, 1, 400},
		{"only gaps", nil, []usage.Gap{gap(60, 65), gap(40, 90)}, extent{Start: 77, Through: 77, Gap: 40, Until: 90}, 40, 90},
		{"nothing", nil, nil, extent{Start: 77, Through: 77}, 77, 77},
	} {
		got := extentOf(&batch.Batch{Windows: c.windows, Gaps: c.gaps}, 77)
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		if g := got.gap(usage.Refused, "why"); g != newGap(c.start, c.end, usage.Refused, "why") {
			t.Errorf("%s: lost, it is the gap %v", c.name, g)
		}
	}
}

// TestAddGap checks which gaps become one: of the same reason and detail, and not more than a minute
// apart.
func TestAddGap(t *testing.T) {
	const m = int64(time.Minute)
	of := func(from, to int64) usage.Gap { return newGap(from, to, usage.Corrupt, "") }
	for _, c := range []struct {
		name string
		add  usage.Gap
		want []usage.Gap
	}{
		{"within", of(12*m, 15*m), []usage.Gap{of(10*m, 20*m)}},
		{"a minute after", of(21*m, 25*m), []usage.Gap{of(10*m, 25*m)}},
		{"more after", of(21*m+1, 25*m), []usage.Gap{of(10*m, 20*m), of(21*m+1, 25*m)}},
		{"a minute before", of(5*m, 9*m), []usage.Gap{of(5*m, 20*m)}},
		{"more before", of(5*m, 9*m-1), []usage.Gap{of(10*m, 20*m), of(5*m, 9*m-1)}},
		{"around", of(5*m, 25*m), []usage.Gap{of(5*m, 25*m)}},
		{"the other way round", of(25*m, 5*m), []usage.Gap{of(5*m, 25*m)}},
		{"of another reason", newGap(12*m, 15*m, usage.Overflow, ""), []usage.Gap{of(10*m, 20*m), newGap(12*m, 15*m, usage.Overflow, "")}},
		{"of another detail", newGap(12*m, 15*m, usage.Corrupt, "x"), []usage.Gap{of(10*m, 20*m), newGap(12*m, 15*m, usage.Corrupt, "x")}},
	} {
		if got := addGap([]usage.Gap{of(10*m, 20*m)}, c.add); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestHead checks where a window begins with its gaps.
func TestHead(t *testing.T) {
	for _, c := range []struct {
		gaps []int64
		want int64
	}{{nil, 110}, {[]int64{110}, 110}, {[]int64{150}, 110}, {[]int64{109}, 109}, {[]int64{50, 60}, 50}, {[]int64{60, 50}, 50}, {[]int64{60, 200}, 60}} {
		b := &batch.Batch{Windows: []usage.Window{{Start: 10, End: 20, Offset: 100}}}
		for _, from := range c.gaps {
			b.Gaps = append(b.Gaps, newGap(from, from+5, usage.Unwatched, ""))
		}
		h := headOf(b, 3, 4, make([]byte, 7))
		if h.startWithGaps() != c.want || (h.Gap != 0) != (c.want < 110) || h.First != 3 || h.Last != 4 || h.Wire != 7 {
			t.Errorf("gaps from %v on: %+v begins at %d, want %d", c.gaps, h, h.startWithGaps(), c.want)
		}
	}
}

// TestEarliest checks the earlier of two times, of which 0 is none.
func TestEarliest(t *testing.T) {
	for _, c := range [][3]int64{{0, 0, 0}, {0, 5, 5}, {5, 0, 5}, {4, 5, 4}, {5, 4, 4}, {5, 5, 5}, {-1, 5, -1}, {5, -1, -1}} {
		if got := earliest(c[0], c[1]); got != c[2] {
			t.Errorf("the earlier of %d and %d is %d", c[0], c[1], got)
		}
	}
}

// TestOffered checks that an offer states the format that its batch was stored with.
func TestOffered(t *testing.T) {
	f := wire.Format{Layout: 2, Resource: 40}
	if got := newOffer(&batchHead{Format: &f}, nil).Format; got != f {
		t.Errorf("format %v, want %v", got, f)
	}
	if got := newOffer(&batchHead{}, nil).Format; got != wire.BaseFormat() {
		t.Errorf("format %v, want %v", got, wire.BaseFormat())
	}
}

// TestTotalsForgotten checks that the totals of a workload that ended are known no more, and those of
// one without a row for 12 times 30 windows.
func TestTotalsForgotten(t *testing.T) {
	known := totals{}
	row := func(window uint64, ended bool) bool {
		r := usage.Row{ShortID: 1, Has: usage.SetOf(usage.CPU), Ended: ended}
		r.Usage.Put(usage.CPU, 3, usage.Measured)
		r.Total[usage.CPU] = int64(3 * window)
		rows := []usage.Row{r}
		known.omitDerivable(nil, rows, window)
		return rows[0].Has == 0
	}
	if row(1, false) || !row(2, false) || row(3, true) || row(4, false) || !row(5, false) {
		t.Error("the last row of a life lacks its total, or one follows it")
	}
	for window, kept := range map[uint64]bool{360: true, 390: false} {
		known = totals{}
		row(0, false)
		known.omitDerivable(nil, nil, window-1)
		known.omitDerivable(nil, nil, window)
		if _, ok := known[1]; ok != kept {
			t.Errorf("known in window %d after a row in window 0: %t", window, ok)
		}
	}
}

// TestUnreadableNotes checks that notes after one that is unreadable are not used.
func TestUnreadableNotes(t *testing.T) {
	s := opened(t, &hookFS{})
	if err := s.Begin([]byte(`"first"`), []byte("whole")); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`"second"`, `"third"`} {
		if err := s.AppendNote([]byte(text), func() []byte { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(s.windows.name(1), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("?"), s.notes[1].offset+recordHeadSize); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := s.Texts(); len(got) != 1 || string(got[0]) != `"first"` {
		t.Errorf("notes %q", got)
	}
	if got := s.Checkpoint(); len(got) != 1 || string(got[0]) != "whole" {
		t.Errorf("checkpoint %q", got)
	}
}

// TestNoteLimit checks that notes make a segment no longer than its size and 16 MiB.
func TestNoteLimit(t *testing.T) {
	s := opened(t, &hookFS{})
	if err := s.Begin(nil, []byte("whole")); err != nil {
		t.Fatal(err)
	}
	note := func(n int64) error { return s.AppendNote(nil, func() []byte { return make([]byte, n) }) }
	before := s.windows.last().size
	if err := note(0); err != nil {
		t.Fatal(err)
	}
	empty := s.windows.last().size - before
	room := s.windows.size + 16<<20 - s.windows.last().size
	if err := note(room - empty); err != nil {
		t.Fatal(err)
	}
	if err := note(0); err != nil {
		t.Errorf("a note after exactly 16 MiB: %v", err)
	}
	if err := note(0); !errors.Is(err, errNoBase) {
		t.Errorf("a note after more: %v", err)
	}
}

// TestInvalidText checks that a text that is not JSON is not written.
func TestInvalidText(t *testing.T) {
	s := opened(t, &hookFS{})
	if err := s.Begin([]byte("{"), nil); err == nil || len(s.notes) > 0 || s.windows.last() != nil {
		t.Errorf("%v, notes %v", err, s.notes)
	}
	if err := s.Begin(nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.AppendNote([]byte("{"), func() []byte { return nil }); err == nil || len(s.notes) != 1 {
		t.Errorf("%v, notes %v", err, s.notes)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Begin(nil, nil); !errors.Is(err, os.ErrClosed) || s.Texts() != nil {
		t.Errorf("closed: %v, notes %q", err, s.Texts())
	}
}

// TestInherited checks that batches of an abandoned stream that are lost or unreadable become gaps of the
// stream that inherited them.
func TestInherited(t *testing.T) {
	s := opened(t, &hookFS{})
	stored := func(number uint64, body string) inheritedBatch {
		t.Helper()
		k := storedBatch{batchHead: batchHead{Stream: batch.Stream{1}, Number: number, extent: extent{Start: int64(number) * 1e15, Through: int64(number)*1e15 + 5}}}
		payload := pack(stateHead{}, []byte(body))
		var err error
		if k.location, err = s.batches.append(kindState, payload, false); err != nil {
			t.Fatal(err)
		}
		s.addStored(k)
		return inheritedBatch{k.Stream, number, k.extent}
	}
	sent, err := wire.Encode(nil, &batch.Batch{Stream: batch.Stream{1}, Number: 5, Names: []batch.Name{{ID: workload.NewID("n", workload.Path, "p"), Kind: workload.Path}}, Windows: []usage.Window{{Boot: "b", End: 5}}, Gaps: []usage.Gap{{Reason: usage.Overflow}}})
	if err != nil {
		t.Fatal(err)
	}
	lost := inheritedBatch{batch.Stream{1}, 2, extent{Start: 2e15, Through: 2e15 + 5}}
	broken, rotten, whole := stored(3, "no batch"), stored(4, "rotten"), stored(5, string(sent))
	k, _ := s.findBatch(rotten.Stream, 4)
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
	st := &stream{ID: batch.Stream{2}, Inherited: []inheritedBatch{lost, broken, rotten, whole}}
	var b batch.Batch
	if ok, err := s.addInherited(st, &b); !ok || err != nil || len(st.Inherited) != 0 || len(b.Windows) != 1 || len(b.Names) != 1 || len(b.Gaps) != 1 {
		t.Errorf("%t, %v, left %v, batch %+v", ok, err, st.Inherited, b)
	}
	want := []usage.Gap{lost.gap(usage.Corrupt, ""), broken.gap(usage.Corrupt, ""), rotten.gap(usage.Corrupt, "")}
	if !slices.Equal(st.Gaps, want) || s.stats.Corrupt != 2 {
		t.Errorf("gaps %v, want %v; %d corrupt records", st.Gaps, want, s.stats.Corrupt)
	}
	if ok, err := s.addInherited(st, &b); ok || err != nil {
		t.Errorf("of none: %t, %v", ok, err)
	}
}

// TestFindLoss checks which batches a server has to do without, and the time of their gap. Batches 1 to
// 9 were made, of which the spool has some; they end at 10, 20 and so on.
func TestFindLoss(t *testing.T) {
	id := batch.Stream{1}
	at := func(number uint64) extent { return extent{Start: int64(10*number) - 10, Through: int64(10 * number)} }
	missing := func(number uint64) missingBatch {
		return missingBatch{number, newGap(int64(10*number)-15, int64(10*number)+3, usage.Refused, "why")}
	}
	for _, c := range []struct {
		name     string
		has      []uint64
		wanted   uint64
		doubt    uint64
		missing  []uint64
		history  []historyEntry
		from, to uint64 // 0 if nothing is lost
		gap      usage.Gap
	}{
		{"none", []uint64{3, 4, 5}, 3, 0, nil, nil, 0, 0, usage.Gap{}},
		{"the first ones", []uint64{3, 4}, 1, 0, nil, nil, 1, 2, newGap(2, 20, usage.Corrupt, "")},
		{"some between", []uint64{3, 7}, 4, 0, nil, nil, 4, 6, newGap(30, 60, usage.Corrupt, "")},
		{"the last ones", []uint64{3}, 4, 0, nil, nil, 4, 9, newGap(30, 90, usage.Corrupt, "")},
		{"all", nil, 1, 0, nil, nil, 1, 9, newGap(2, 90, usage.Corrupt, "")},
		{"none is left to make", []uint64{9}, 10, 0, nil, nil, 0, 0, usage.Gap{}},
		{"after one that the spool remembers", nil, 5, 0, nil, []historyEntry{{1, 10}, {4, 41}, {5, 50}}, 5, 9, newGap(41, 90, usage.Corrupt, "")},
		{"given up", []uint64{3, 5}, 4, 0, []uint64{4}, nil, 4, 4, newGap(25, 43, usage.Refused, "why")},
		{"some given up", []uint64{3, 7}, 4, 0, []uint64{5}, nil, 4, 6, newGap(30, 60, usage.Refused, "why")},
		{"all of some given up", []uint64{3, 6}, 4, 0, []uint64{4, 5}, nil, 4, 5, newGap(25, 53, usage.Refused, "why")},
		{"others given up", []uint64{3, 5}, 4, 0, []uint64{3, 5}, nil, 4, 4, newGap(30, 40, usage.Corrupt, "")},
		{"in doubt", []uint64{3, 5, 6, 7}, 4, 7, nil, nil, 4, 6, newGap(30, 60, usage.Corrupt, "")},
		{"in doubt, and there", []uint64{3, 5, 6, 7}, 5, 7, nil, nil, 0, 0, usage.Gap{}},
		{"after the doubt", []uint64{3, 5, 6, 7}, 4, 5, nil, nil, 4, 4, newGap(30, 40, usage.Corrupt, "")},
		{"two of three given up", []uint64{3, 7}, 4, 0, []uint64{5, 6}, nil, 4, 6, newGap(30, 63, usage.Refused, "why")},
		{"the next is of another stream", []uint64{3, 10}, 4, 0, nil, nil, 4, 9, newGap(30, 90, usage.Corrupt, "")},
		{"all in doubt", []uint64{3, 5}, 4, 10, nil, nil, 4, 9, newGap(30, 90, usage.Corrupt, "")},
	} {
		s := &Spool{stored: map[batch.Stream][]storedBatch{}}
		st := &stream{ID: id, Next: 10, Wanted: c.wanted, UncertainBefore: c.doubt, FirstStart: 2, Through: 90, History: c.history, Last: batch.Hash{99}}
		for _, n := range c.missing {
			st.Missing = append(st.Missing, missing(n))
		}
		for _, n := range c.has {
			s.addStored(storedBatch{batchHead: batchHead{Stream: id, Number: n, Previous: batch.Hash{byte(n - 1)}, extent: at(n)}})
		}
		l := s.findLoss(st, usage.Corrupt)
		if c.to == 0 {
			if l != nil {
				t.Errorf("%s: %+v", c.name, l)
			}
			continue
		}
		hash := batch.Hash{byte(c.to)}
		if c.to == 9 {
			hash = batch.Hash{99}
		}
		if l == nil || l.Stream != id || l.From != c.from || l.To != c.to || l.Hash != hash {
			t.Errorf("%s: %+v, want %d to %d", c.name, l, c.from, c.to)
			continue
		}
		got, want := l.Gap, c.gap
		if c.name == "some given up" { // which of the two says why is open
			want = newGap(30, 60, got.Reason, got.Detail)
		}
		if got != want {
			t.Errorf("%s: gap %v, want %v", c.name, got, want)
		}
	}
}

// TestAbandon checks what the successor of an abandoned stream inherits: batches from the wanted one on,
// gaps for those that the spool does not have, or that may have been sent in another stream.
func TestAbandon(t *testing.T) {
	id := batch.Stream{1}
	for _, c := range []struct {
		name   string
		has    []uint64
		wanted uint64
		doubt  uint64
		want   []uint64 // inherited
		gaps   []usage.Gap
		last   byte // of the hash of the last batch that stays
	}{
		{"all", []uint64{1, 2, 3}, 1, 0, []uint64{1, 2, 3}, nil, 0},
		{"from the second", []uint64{1, 2, 3}, 2, 0, []uint64{2, 3}, nil, 1},
		{"the first is lost", []uint64{2, 3}, 1, 0, []uint64{2, 3}, []usage.Gap{newGap(2, 10, usage.Forgotten, "")}, 99},
		{"one between is lost", []uint64{1, 3}, 1, 0, []uint64{1, 3}, []usage.Gap{newGap(10, 20, usage.Forgotten, "")}, 0},
		{"the last is lost", []uint64{1, 2}, 2, 0, []uint64{2}, []usage.Gap{newGap(20, 30, usage.Forgotten, "")}, 1},
		{"all are lost", nil, 2, 0, nil, []usage.Gap{newGap(2, 30, usage.Forgotten, "")}, 99},
		{"in doubt", []uint64{1, 2, 3}, 1, 3, []uint64{3}, []usage.Gap{newGap(0, 20, usage.Corrupt, "")}, 0},
		{"none", []uint64{1, 2, 3}, 4, 0, nil, nil, 99},
		{"the last is lost, the next is of another stream", []uint64{1, 2, 4}, 1, 0, []uint64{1, 2}, []usage.Gap{newGap(20, 30, usage.Forgotten, "")}, 0},
		{"one between was refused", []uint64{1, 3}, 1, 0, []uint64{1, 3}, []usage.Gap{newGap(12, 18, usage.Refused, "")}, 0},
	} {
		s := opened(t, &hookFS{})
		own := usage.Gap{From: wallTime(5e15), To: wallTime(6e15), Reason: usage.Overflow}
		st := &stream{ID: id, From: 1, Batched: 3, Live: true, Next: 4, Wanted: c.wanted, UncertainBefore: c.doubt, FirstStart: 2, Through: 30, Last: batch.Hash{99}, Gaps: []usage.Gap{own}}
		st.Inherited = []inheritedBatch{{batch.Stream{7}, 5, extent{}}}
		st.Missing = []missingBatch{{9, own}}
		if strings.Contains(c.name, "refused") {
			st.Missing = []missingBatch{{2, c.gaps[0]}}
		}
		for _, n := range c.has {
			s.addStored(storedBatch{batchHead: batchHead{Stream: id, Number: n, Previous: batch.Hash{byte(n - 1)}, extent: extent{Start: int64(10*n) - 10, Through: int64(10 * n)}}})
		}
		s.streams = []*stream{st}
		s.totals[1] = lastTotal{}
		if err := s.abandon(st); err != nil {
			t.Fatal(err)
		}
		old, next := s.findStream(id), s.liveStream()
		// A stream without batches is gone.
		if kept := slices.ContainsFunc(c.has, func(n uint64) bool { return n < c.wanted }); kept != (old != nil) {
			t.Errorf("%s: the old stream is kept %t", c.name, !kept)
		}
		if old != nil && (old.Live || old.To != 3 || old.Next != c.wanted || old.Last != batch.Hash{c.last} || len(old.Gaps)+len(old.Inherited)+len(old.Missing) > 0) {
			t.Errorf("%s: the old stream is %+v", c.name, old)
		}
		var got []uint64
		for _, i := range next.Inherited {
			got = append(got, i.Number)
		}
		if want := append(slices.Clone(c.want), 5); !slices.Equal(got, want) || next.Inherited[len(got)-1].Stream != (batch.Stream{7}) {
			t.Errorf("%s: it inherits %v, want %v", c.name, got, want)
		}
		if want := append([]usage.Gap{own}, c.gaps...); !slices.Equal(next.Gaps, want) {
			t.Errorf("%s: gaps %v, want %v", c.name, next.Gaps, want)
		}
		if !next.Live || next.From != 4 || next.Batched != 3 || next.Through != 30 || len(s.totals) != 0 {
			t.Errorf("%s: the new stream is %+v, %d totals are known", c.name, next, len(s.totals))
		}
	}
}

// TestLongDetail checks how much of a server's text is kept.
func TestLongDetail(t *testing.T) {
	for n, want := range map[int]int{499: 499, 500: 500, 501: 500} {
		s := opened(t, &hookFS{})
		if err := s.Append(&usage.Window{Boot: "b", End: 1}, nil, nil, func(bool) []byte { return nil }, nil); err != nil {
			t.Fatal(err)
		}
		o, _, err := s.NextOffer(s.liveStream().ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Reject(o.Stream, o.Number, strings.Repeat("x", n)); err != nil {
			t.Fatal(err)
		}
		if h := s.liveStream().History; !slices.Equal(h, []historyEntry{{1, 1}}) {
			t.Errorf("the spool remembers %v of the first batch", h)
		}
		if got := len(s.liveStream().Missing[0].Gap.Detail); got != want {
			t.Errorf("of %d bytes %d are kept, want %d", n, got, want)
		}
	}
}
