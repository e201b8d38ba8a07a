package spool

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A hookFS is the real file system without syncs, which take long. A test can let calls fail, and see which files
// are open.
type hookFS struct {
	OS
	fail  func(call, name string) error // nil lets all calls pass
	calls []string
	open  int
}

// call returns the error of a call, whose name it keeps with the base of the file's name.
func (f *hookFS) call(call, name string) error {
	f.calls = append(f.calls, call+" "+filepath.Base(name))
	if f.fail == nil {
		return nil
	}
	return f.fail(call, name)
}

func (f *hookFS) List(dir string) ([]string, error) {
	if err := f.call("list", dir); err != nil {
		return nil, err
	}
	return f.OS.List(dir)
}

func (f *hookFS) Create(name string) (File, error) {
	if err := f.call("create", name); err != nil {
		return nil, err
	}
	return f.opened(f.OS.Create(name))
}

func (f *hookFS) Open(name string) (File, error) {
	if err := f.call("open", name); err != nil {
		return nil, err
	}
	return f.opened(f.OS.Open(name))
}

func (f *hookFS) opened(file File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	f.open++
	return &hookFile{file, f, file.(osFile).Name()}, nil
}

func (f *hookFS) Rename(from, to string) error {
	if err := f.call("rename", from); err != nil {
		return err
	}
	return f.OS.Rename(from, to)
}

func (f *hookFS) Remove(name string) error {
	if err := f.call("remove", name); err != nil {
		return err
	}
	return f.OS.Remove(name)
}

func (f *hookFS) SyncDir(dir string) error {
	return f.call("sync", dir)
}

type hookFile struct {
	File
	fs   *hookFS
	name string
}

func (f *hookFile) ReadAt(b []byte, at int64) (int, error) {
	if err := f.fs.call("read", f.name); err != nil {
		n, _ := f.File.ReadAt(b[:len(b)/2], at)
		return n, err
	}
	return f.File.ReadAt(b, at)
}

// WriteAt writes half of the bytes if it fails.
func (f *hookFile) WriteAt(b []byte, at int64) (int, error) {
	if err := f.fs.call("write", f.name); err != nil {
		n, _ := f.File.WriteAt(b[:len(b)/2], at)
		return n, err
	}
	return f.File.WriteAt(b, at)
}

func (f *hookFile) Sync() error {
	return f.fs.call("sync", f.name)
}

func (f *hookFile) Close() error {
	f.fs.open--
	return errors.Join(f.fs.call("close", f.name), f.File.Close())
}

// failOn lets calls fail whose name and file begin so.
func failOn(err error, calls ...string) func(call, name string) error {
	return func(call, name string) error {
		for _, c := range calls {
			if strings.HasPrefix(call+" "+filepath.Base(name), c) {
				return err
			}
		}
		return nil
	}
}

// logOn opens the segments in a directory.
func logOn(t *testing.T, fs FS, dir string, size int64) (g *segments, d damage, found []string, err error) {
	t.Helper()
	g, d, err = openSegments(fs, dir, size, func(_ location, _ byte, payload []byte) { found = append(found, string(payload)) })
	if g != nil {
		t.Cleanup(func() { _ = g.close() })
	}
	return g, d, found, err
}

var errDisk = errors.New("for a test")

// TestFailedBegin checks that a segment whose first record failed is empty if it cannot be removed: a restart
// must not find the record, which the caller writes again.
func TestFailedBegin(t *testing.T) {
	for _, failing := range [][]string{{"write"}, {"sync 0"}, {"sync log"}, {"create"}, {"sync log", "remove"}, {"write", "remove"}} {
		fs := &hookFS{}
		dir := filepath.Join(t.TempDir(), "log")
		g, _, _, err := logOn(t, fs, dir, 1)
		if err != nil {
			t.Fatal(err)
		}
		put(t, g, "one")
		open := fs.open
		fs.fail = failOn(errDisk, failing...)
		if _, err := g.append(7, []byte("two"), true); !errors.Is(err, errDisk) {
			t.Errorf("%v: %v", failing, err)
		}
		if fs.open != open || len(g.list) != 1 {
			t.Errorf("%v: %d files are open, %d before; %d segments", failing, fs.open, open, len(g.list))
		}
		b, err := os.ReadFile(g.name(2))
		if left := len(failing) > 1; (err == nil) != left || len(b) != 0 {
			t.Errorf("%v: the file has %d bytes, %v", failing, len(b), err)
		}
		if _, d, found, err := logOn(t, OS{}, dir, 1); err != nil || d != (damage{}) || !slices.Equal(found, []string{"one"}) {
			t.Errorf("%v: after a restart %q, %+v, %v", failing, found, d, err)
		}
		fs.fail = nil
		put(t, g, "two")
		if _, d, found, err := logOn(t, OS{}, dir, 1); err != nil || d != (damage{}) || !slices.Equal(found, []string{"one", "two"}) {
			t.Errorf("%v: written again %q, %+v, %v", failing, found, d, err)
		}
	}
}

// TestFailedAppend checks that a record that failed is cut off, and that the next one begins a segment, also if it
// cannot be cut off.
func TestFailedAppend(t *testing.T) {
	for _, call := range []string{"write", "sync"} {
		fs := &hookFS{}
		dir := filepath.Join(t.TempDir(), "log")
		g, _, _, err := logOn(t, fs, dir, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		put(t, g, "one")
		size := g.last().size
		fs.fail = failOn(errDisk, call)
		if _, err := g.append(7, []byte("two"), false); !errors.Is(err, errDisk) {
			t.Errorf("%s: %v", call, err)
		}
		if b := read(t, g, 1); int64(len(b)) != size || fs.open != 0 || !g.isFull() || g.last().size != size {
			t.Errorf("%s: %d bytes, %d before; %d files are open", call, len(b), size, fs.open)
		}
		fs.fail = nil
		f, err := os.OpenFile(g.name(1), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		// A part of the record that the disk wrote after all.
		if _, err := f.Write(appendRecord(nil, checksumSeed(1), 7, []byte("two"))); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		put(t, g, "three", "four")
		g, d, found, err := logOn(t, OS{}, dir, 1<<20)
		if err != nil || d != (damage{}) || !slices.Equal(found, []string{"one", "three", "four"}) || len(g.list) != 2 {
			t.Errorf("%s: after a restart %q, %+v, %v", call, found, d, err)
		}
	}
}

// TestDamage checks what counts as damage, and what as the end of an incomplete write: behind the last record of the
// last segment, or of one after which another failed to follow.
func TestDamage(t *testing.T) {
	whole := func(number, before, length uint64, payload string) []byte {
		return written([5]uint64{number, number, before, length, 0}, "\x07"+payload)
	}
	one := whole(1, 0, 0, "one")
	n := uint64(len(one))
	for _, c := range []struct {
		name   string
		files  [][]byte
		found  string
		damage damage
	}{
		{"whole", [][]byte{one, whole(2, 1, n, "two")}, "one two", damage{}},
		{"more in the last", [][]byte{one, append(whole(2, 1, n, "two"), "torn"...)}, "one two", damage{0, 4}},
		{"more in the first, which failed", [][]byte{append(slices.Clone(one), "torn"...), whole(2, 1, n, "two")}, "one two", damage{}},
		{"more in the first, as it was complete", [][]byte{append(slices.Clone(one), "torn"...), whole(2, 1, n+4, "two")}, "one two", damage{1, 0}},
		{"more in the first, of which the next does not know", [][]byte{append(slices.Clone(one), "torn!"...), written([5]uint64{2, 2, 0, 0, 0}, "\x07two")}, "one two", damage{0, 5}},
		{"more in both", [][]byte{append(slices.Clone(one), "torn!"...), append(written([5]uint64{2, 2, 0, 0, 0}, "\x07two"), "torn"...)}, "one two", damage{0, 9}},
		{"a broken record in the last", [][]byte{one, append(whole(2, 1, n, "two")[:60], "broken records"...)}, "one", damage{0, 0}},
		{"something between", [][]byte{slices.Concat(one, []byte("?"), one[headerSize:])}, "one one", damage{1, 0}},
		{"a rewritten one is longer than the next knows", [][]byte{written([5]uint64{1, 1, 0, 0, 1}, "\x07one", "\x07more"), whole(2, 1, n, "two")}, "one more two", damage{}},
	} {
		dir := t.TempDir()
		for i, b := range c.files {
			name := (&segments{dir: dir}).name(uint64(i + 1))
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, d, found, err := logOn(t, OS{}, dir, 1<<20)
		if strings.Join(found, " ") != c.found || d != c.damage || err != nil {
			t.Errorf("%s: %q, %+v, %v; want %s, %+v", c.name, found, d, err, c.found, c.damage)
		}
	}
}

// TestReplaced checks that segments that a rewritten one replaces are removed at the next start, and that an error
// of that is returned.
func TestReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	g, _, _ := logIn(t, dir, 1)
	put(t, g, "a", "b", "c", "d")
	second, third := read(t, g, 2), read(t, g, 3)
	if err := g.rewrite(g.list[:3], func(add func(byte, []byte) (location, error)) error {
		_, err := add(7, []byte("abc"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if names, err := (OS{}).List(dir); err != nil || !slices.Equal(names, []string{"0000000000000001.seg", "0000000000000004.seg"}) {
		t.Errorf("files %v, %v", names, err)
	}
	restore := func() {
		t.Helper()
		for number, b := range map[uint64][]byte{2: second, 3: third} {
			if err := os.WriteFile(g.name(number), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{g.name(2), g.name(3), filepath.Join(dir, rewriteFile)} {
		restore()
		if err := os.WriteFile(filepath.Join(dir, rewriteFile), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		fs := &hookFS{fail: failOn(errDisk, "remove "+filepath.Base(name))}
		if _, _, _, err := logOn(t, fs, dir, 1); !errors.Is(err, errDisk) || fs.open != 0 {
			t.Errorf("%s cannot be removed: %v, %d files are open", name, err, fs.open)
		}
		_, d, found, err := logOn(t, OS{}, dir, 1)
		if err != nil || !slices.Equal(found, []string{"abc", "d"}) || d != (damage{}) {
			t.Errorf("found %q, %+v, %v", found, d, err)
		}
		if names, err := (OS{}).List(dir); err != nil || len(names) != 2 {
			t.Errorf("files %v, %v", names, err)
		}
	}
}

// TestFailedRewrite checks that a rewrite that fails leaves no file, and that what it replaced stays until its own
// name is durable.
func TestFailedRewrite(t *testing.T) {
	for _, failing := range []string{"create", "write", "sync rewrite", "close rewrite", "rename"} {
		fs := &hookFS{}
		dir := filepath.Join(t.TempDir(), "log")
		g, _, _, err := logOn(t, fs, dir, 1)
		if err != nil {
			t.Fatal(err)
		}
		put(t, g, "a", "b", "c")
		open := fs.open
		fs.fail = failOn(errDisk, failing)
		err = g.rewrite(g.list[:2], func(add func(byte, []byte) (location, error)) error {
			_, err := add(7, []byte("ab"))
			return err
		})
		if !errors.Is(err, errDisk) || fs.open != open {
			t.Errorf("%s: %v, %d files are open, %d before", failing, err, fs.open, open)
		}
		if _, err := os.Stat(filepath.Join(dir, rewriteFile)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the file is left: %v", failing, err)
		}
		if len(g.list) != 3 {
			t.Errorf("%s: %d segments", failing, len(g.list))
		}
	}
	fs := &hookFS{}
	dir := filepath.Join(t.TempDir(), "log")
	g, _, _, err := logOn(t, fs, dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	put(t, g, "a", "b", "c")
	fs.fail = failOn(errDisk, "sync log")
	if err := g.rewrite(g.list[:2], func(add func(byte, []byte) (location, error)) error {
		_, err := add(7, []byte("ab"))
		return err
	}); err != nil || len(g.list) != 2 {
		t.Errorf("%v, %d segments", err, len(g.list))
	}
	if len(read(t, g, 2)) == 0 {
		t.Error("the second segment is empty")
	}
}

// TestUnreadable checks that bytes that a disk cannot read are corrupt, and that other errors are not.
func TestUnreadable(t *testing.T) {
	fs := &hookFS{}
	dir := filepath.Join(t.TempDir(), "log")
	g, _, _, err := logOn(t, fs, dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	places := put(t, g, "one", "two")
	for _, p := range places {
		for failure, corrupt := range map[error]bool{syscall.EIO: true, errDisk: false, io.EOF: true} {
			fs.fail = failOn(failure, "read")
			open := fs.open
			if b, err := g.read(p); b != nil || err == nil || errors.Is(err, errCorrupt) != corrupt || !corrupt && !errors.Is(err, failure) {
				t.Errorf("%v: %q, %v", failure, b, err)
			}
			if fs.open != open {
				t.Errorf("%v: %d files are open, %d before", failure, fs.open, open)
			}
		}
	}
	fs.fail = failOn(errDisk, "close")
	if b, err := g.read(places[0]); !errors.Is(err, errDisk) {
		t.Errorf("a file that cannot be closed: %q, %v", b, err)
	}
	fs.fail = nil
	if err := g.close(); err != nil {
		t.Fatal(err)
	}
	reads := 0
	fs.fail = func(call, name string) error {
		if call == "read" && filepath.Base(name) == "0000000000000001.seg" {
			if reads++; reads == 2 { // after the header
				return syscall.EIO
			}
		}
		return nil
	}
	_, d, found, err := logOn(t, fs, dir, 1)
	if err != nil || !slices.Equal(found, []string{"two"}) || reads != 2 {
		t.Errorf("%q, %+v, %v", found, d, err)
	}
}

// TestSyncedAtStart checks that what a killed process wrote last is synced when the log is opened.
func TestSyncedAtStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	fs := &hookFS{}
	g, _, _, err := logOn(t, fs, dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(fs.calls, "sync log") {
		t.Errorf("of an empty log: %v", fs.calls)
	}
	put(t, g, "one", "two")
	fs = &hookFS{}
	if _, _, _, err := logOn(t, fs, dir, 1); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(fs.calls, "sync log") || !slices.Contains(fs.calls, "sync 0000000000000002.seg") || fs.open != 1 {
		t.Errorf("%v, %d files are open", fs.calls, fs.open)
	}
}

// TestFilesAreClosed checks that a spool closes its files.
func TestFilesAreClosed(t *testing.T) {
	fs := &hookFS{}
	cfg := innerConfig(t)
	cfg.SegmentBytes, cfg.FS = 1, fs
	s := openInner(t, cfg)
	for range 3 {
		o := offerOne(t, s)
		if fs.open != 2 {
			t.Errorf("%d files are open, want the last of each log", fs.open)
		}
		if err := s.Reject(o.Stream, o.Number, "x"); err != nil {
			t.Fatal(err)
		}
		s.liveStream().Wanted = s.liveStream().Next
	}
	fill(t, s, 3)
	if done, err := s.merge(1<<62, maxWallTime); err != nil {
		t.Fatal(done, err)
	}
	fs.fail = failOn(errDisk, "close")
	if err := s.Close(); !errors.Is(err, errDisk) || fs.open != 0 {
		t.Errorf("%v, %d files are open", err, fs.open)
	}
}

// TestFullSegment checks that a segment is full at its size.
func TestFullSegment(t *testing.T) {
	for n, want := range map[int]bool{2: false, 3: true, 4: true} {
		g, _, _ := logIn(t, t.TempDir(), headerSize+recordHeadSize+3)
		put(t, g, strings.Repeat("x", n))
		if g.isFull() != want {
			t.Errorf("with %d bytes more than heads it is full %t", n, g.isFull())
		}
	}
}

// TestHugeFile checks that of a file that is too long for a segment only the possible part is read, and that one
// without a header is numbered by its name.
func TestHugeFile(t *testing.T) {
	g := &segments{fs: &hookFS{}, dir: t.TempDir(), size: 1000}
	for size, want := range map[int64]int64{100: 100, 1 << 40: 1000 + recordHeadSize + 64<<20} {
		f, err := g.fs.Create(g.name(5))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
			t.Fatal(err)
		}
		if seg, err := g.readHeader(5); err != nil || seg.size != want || seg.header != (header{number: 5, through: 5}) {
			t.Errorf("of %d bytes: %+v, %v", size, seg, err)
		}
	}
}

// TestScanWithoutHeader checks that records are found from the first byte on if there is no header.
func TestScanWithoutHeader(t *testing.T) {
	record := appendRecord(nil, checksumSeed(1), 7, []byte("one"))
	for lost, b := range [][]byte{record, append([]byte("?"), record...), nil} {
		found := 0
		end, corrupt := scanRecords(b, 1, func(at int64, kind byte, payload []byte) {
			if found++; at != int64(lost) || kind != 7 || string(payload) != "one" {
				t.Errorf("record %q of kind %d at %d", payload, kind, at)
			}
		})
		if end != int64(len(b)) || corrupt != lost%2 || found != min(len(b), 1) {
			t.Errorf("%q: %d records, end at %d, %d corrupt", b, found, end, corrupt)
		}
	}
}
