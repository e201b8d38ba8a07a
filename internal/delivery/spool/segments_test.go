package spool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// logIn opens the segments in a directory on disk and returns their payloads.
func logIn(t *testing.T, dir string, size int64) (*segments, damage, []string) {
	t.Helper()
	var found []string
	g, d, err := openSegments(&hookFS{}, dir, size, func(p location, _ byte, payload []byte) {
		found = append(found, string(payload))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.close() })
	return g, d, found
}

func put(t *testing.T, g *segments, payloads ...string) (places []location) {
	t.Helper()
	for _, s := range payloads {
		p, err := g.append(7, []byte(s), g.isFull())
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, p)
	}
	return places
}

func TestSegmentsReopen(t *testing.T) {
	dir := t.TempDir()
	g, _, _ := logIn(t, dir, 100)
	want := []string{"", "a", string(bytes.Repeat([]byte("long"), 100)), "b", "c"}
	places := put(t, g, want...)
	if len(g.list) != 2 {
		t.Errorf("%d segments, want 2", len(g.list))
	}
	for i, p := range places {
		if b, err := g.read(p); err != nil || string(b) != want[i] {
			t.Errorf("record %d: %q, %v", i, b, err)
		}
	}
	g, d, found := logIn(t, dir, 100)
	if !slices.Equal(found, want) || d != (damage{}) {
		t.Errorf("found %q, %+v", found, d)
	}
	put(t, g, "d")
	if _, _, found = logIn(t, dir, 100); !slices.Equal(found, append(want, "d")) {
		t.Errorf("found %q", found)
	}
}

// A log cut at any byte has all records before the cut, and appends follow them.
func TestSegmentsTornTail(t *testing.T) {
	from := t.TempDir()
	g, _, _ := logIn(t, from, 1<<20)
	places := put(t, g, "one", "two", "three")
	whole, err := os.ReadFile(g.name(1))
	if err != nil {
		t.Fatal(err)
	}
	for cut := range whole {
		dir := t.TempDir()
		name := filepath.Join(dir, filepath.Base(g.name(1)))
		if err := os.WriteFile(name, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		var want []string
		for i, p := range places {
			if p.offset+recordHeadSize+int64(p.size) <= int64(cut) {
				want = append(want, []string{"one", "two", "three"}[i])
			}
		}
		g, d, found := logIn(t, dir, 1<<20)
		if !slices.Equal(found, want) || d.corrupt != 0 {
			t.Fatalf("cut at %d bytes: %q, %+v; want %q", cut, found, d, want)
		}
		put(t, g, "next")
		if _, d, found := logIn(t, dir, 1<<20); !slices.Equal(found, append(want, "next")) || d != (damage{}) {
			t.Fatalf("cut at %d bytes, after an append: %q, %+v", cut, found, d)
		}
	}
}

// A flipped bit loses at most one record.
func TestSegmentsCorruption(t *testing.T) {
	from := t.TempDir()
	g, _, _ := logIn(t, from, 1<<20)
	all := []string{"one", "two", "three"}
	put(t, g, all...)
	whole, err := os.ReadFile(g.name(1))
	if err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * len(whole) {
		b := slices.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		var found []string
		end, corrupt := scanRecords(b, 1, func(_ int64, _ byte, payload []byte) { found = append(found, string(payload)) })
		lost := len(all) - len(found)
		if bit < 8*headerSize && lost > 0 || lost > 1 {
			t.Fatalf("bit %d: %q", bit, found)
		}
		if torn := end < int64(len(b)); (corrupt == 1) == torn {
			t.Fatalf("bit %d: %d corrupt, ends at %d of %d", bit, corrupt, end, len(b))
		}
	}
}

func TestSegmentsRewrite(t *testing.T) {
	dir := t.TempDir()
	g, _, _ := logIn(t, dir, 1)
	put(t, g, "a", "b", "c", "d")
	failed := errors.New("for a test")
	if err := g.rewrite(g.list[:2], func(func(byte, []byte) (location, error)) error { return failed }); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	old, err := os.ReadFile(g.name(2))
	if err != nil {
		t.Fatal(err)
	}
	var p location
	err = g.rewrite(g.list[:2], func(add func(byte, []byte) (location, error)) (err error) {
		p, err = add(7, []byte("ab"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := g.read(p); err != nil || string(b) != "ab" {
		t.Errorf("%q, %v", b, err)
	}
	// Simulate a crash before the removal of the second segment.
	if err := os.WriteFile(g.name(2), old, 0o600); err != nil {
		t.Fatal(err)
	}
	g, d, found := logIn(t, dir, 1)
	if want := []string{"ab", "c", "d"}; !slices.Equal(found, want) || d != (damage{}) {
		t.Errorf("found %q, %+v; want %q", found, d, want)
	}
	put(t, g, "e")
	if g.last().number != 5 {
		t.Errorf("the next segment is %d, want 5", g.last().number)
	}
}

func FuzzScan(f *testing.F) {
	whole := header{number: 1, through: 1}.append(nil)
	for _, s := range []string{"one", "", "three"} {
		whole = appendRecord(whole, checksumSeed(1), kindWindow, []byte(s))
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-2])
	f.Add(whole[20:])
	f.Fuzz(func(t *testing.T, b []byte) {
		at, count := int64(-1), 0
		again := header{number: 1, through: 1}.append(nil)
		end, corrupt := scanRecords(b, 1, func(p int64, kind byte, payload []byte) {
			if p <= at || p+recordHeadSize+int64(len(payload)) > int64(len(b)) {
				t.Fatalf("record at %d of %d bytes, after %d", p, len(payload), at)
			}
			at = p
			count++
			again = appendRecord(again, checksumSeed(1), kind, payload)
		})
		if end > int64(len(b)) || corrupt > count {
			t.Fatalf("ends at %d of %d; %d records, %d corrupt", end, len(b), count, corrupt)
		}
		// Valid records stay valid when they are written again.
		n := 0
		if end, corrupt := scanRecords(again, 1, func(int64, byte, []byte) { n++ }); n != count || corrupt != 0 || end != int64(len(again)) {
			t.Fatalf("%d records became %d, %d corrupt", count, n, corrupt)
		}
	})
}

func TestOmitDerivable(t *testing.T) {
	known := totals{}
	for window := uint64(1); window < 100; window++ {
		whole, rows := rowsOf(window), rowsOf(window)
		known.omitDerivable(nil, rows, window)
		for i, row := range rows {
			if row.Has != 0 && row.Total != whole[i].Total {
				t.Errorf("window %d: row %d: total changed", window, i)
			}
			first := window == 1
			due := (window+uint64(row.ShortID))%totalInterval == 0
			jumped := i == 1 && window == 50
			if carries := row.Has != 0; carries != (first || due || jumped) {
				t.Errorf("window %d: row %d: carries its total: %v", window, i, carries)
			}
		}
	}
}

// rowsOf returns two rows whose totals follow from the previous window, except for a jump at
// window 50.
func rowsOf(window uint64) []usage.Row {
	rows := make([]usage.Row, 2)
	for i := range rows {
		rows[i].ShortID = workload.ShortID(i)
		rows[i].Has = usage.SetOf(usage.CPU)
		rows[i].Usage.Put(usage.CPU, 3, usage.Measured)
		rows[i].Total[usage.CPU] = int64(3 * window)
	}
	if window >= 50 {
		rows[1].Total[usage.CPU] += 1000
	}
	return rows
}

func ExampleConfig_Validate() {
	cfg := Default()
	cfg.MaxBytes = 1
	fmt.Println(cfg.Validate())
	// Output:
	// spool: no directory
	// cap of 1 bytes: less than 1048576: invalid
}
