package spool_test

import (
	"bytes"
	"errors"
	"io"
	"os"
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

// errFault is an error that no code of the spool knows.
var errFault = errors.New("fault of the n-th call")

// A faultyFS fails one of its calls, counted from 1.
type faultyFS struct {
	spool.FS
	calls, fails int
	failed       string // the name of the call that failed
}

func (f *faultyFS) fault(call string) error {
	if f.calls++; f.calls == f.fails {
		f.failed = call
		return errFault
	}
	return nil
}

func (f *faultyFS) MkdirAll(dir string) error {
	return errors.Join(f.fault("make "+dir), f.FS.MkdirAll(dir))
}

func (f *faultyFS) Lock(name string) (io.Closer, error) {
	if err := f.fault("lock " + name); err != nil {
		return nil, err
	}
	return f.FS.Lock(name)
}

func (f *faultyFS) List(dir string) ([]string, error) {
	if err := f.fault("list " + dir); err != nil {
		return nil, err
	}
	return f.FS.List(dir)
}

func (f *faultyFS) Create(name string) (spool.File, error) {
	if err := f.fault("create " + name); err != nil {
		return nil, err
	}
	return f.open(f.FS.Create(name))
}

func (f *faultyFS) Open(name string) (spool.File, error) {
	if err := f.fault("open " + name); err != nil {
		return nil, err
	}
	return f.open(f.FS.Open(name))
}

func (f *faultyFS) open(file spool.File, err error) (spool.File, error) {
	if err != nil {
		return nil, err
	}
	return &faultyFile{file, f}, nil
}

func (f *faultyFS) Rename(from, to string) error {
	if err := f.fault("rename " + from); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

func (f *faultyFS) Remove(name string) error {
	if err := f.fault("remove " + name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f *faultyFS) SyncDir(dir string) error {
	if err := f.fault("sync " + dir); err != nil {
		return err
	}
	return f.FS.SyncDir(dir)
}

type faultyFile struct {
	spool.File
	fs *faultyFS
}

func (f *faultyFile) ReadAt(b []byte, at int64) (int, error) {
	if err := f.fs.fault("read"); err != nil {
		return 0, err
	}
	return f.File.ReadAt(b, at)
}

func (f *faultyFile) WriteAt(b []byte, at int64) (int, error) {
	if err := f.fs.fault("write"); err != nil {
		return 0, err
	}
	return f.File.WriteAt(b, at)
}

func (f *faultyFile) Size() (int64, error) {
	if err := f.fs.fault("size"); err != nil {
		return 0, err
	}
	return f.File.Size()
}

func (f *faultyFile) Truncate(size int64) error {
	if err := f.fs.fault("truncate"); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *faultyFile) Sync() error {
	if err := f.fs.fault("sync"); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultyFile) Close() error { return errors.Join(f.fs.fault("close"), f.File.Close()) }

// left returns a file system with a spool of several segments, a torn record at their end, and
// what interrupted rewrites and new segments leave.
func left(t *testing.T, v *server) (*faultfs.FS, *agent) {
	t.Helper()
	fs := faultfs.New(func(int) int { return 0 })
	cfg := config(fs)
	cfg.SegmentBytes = 1 << 10
	s := openSpool(t, cfg)
	a := &agent{}
	for i := range 12 {
		appendTicks(t, s, a, 1)
		if i == 5 {
			drain(t, s, v)
		}
	}
	if _, ok, err := s.NextOffer(live(s)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	shut(t, s)
	for _, dir := range []string{"spool/windows/", "spool/batches/"} {
		names, err := fs.List(dir[:len(dir)-1])
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		last := dir + names[len(names)-1]
		fill(t, fs, last, append(fs.Read(last), "torn"...))
		fill(t, fs, dir+"rewrite.tmp", []byte("half of a segment"))
		fill(t, fs, dir+"00000000000000ff.seg", nil)
	}
	return fs, a
}

// TestOpenFaults fails each call of the file system while a spool opens, one at a time: the
// spool does not open, says why, and opens with all of its content afterwards.
func TestOpenFaults(t *testing.T) {
	for n := 1; ; n++ {
		v := newServer()
		fs, a := left(t, v)
		faulty := &faultyFS{FS: fs, fails: n}
		cfg := config(faulty)
		cfg.SegmentBytes = 1 << 10
		s, err := spool.Open(cfg, quiet())
		faulty.fails = 0
		if faulty.failed == "" {
			if n < 40 {
				t.Errorf("only %d calls", n)
			}
			if err != nil {
				t.Fatal(err)
			}
			shut(t, s)
			return
		}
		if !errors.Is(err, errFault) {
			t.Errorf("call %d, %s: %v", n, faulty.failed, err)
		}
		if err == nil {
			shut(t, s)
		}
		s = openSpool(t, cfg)
		appendTicks(t, s, a, 1)
		drain(t, s, v)
		if alone := v.check(t, a.now); alone != 0 {
			t.Errorf("call %d, %s: gaps %v", n, faulty.failed, v.gaps)
		}
		shut(t, s)
	}
}

// TestMergeFaults fails each call of the file system while a spool merges windows, one at a
// time: the error is returned, and no time is lost or sent twice, now and after a restart.
func TestMergeFaults(t *testing.T) {
	for n := 1; ; n++ {
		faulty := &faultyFS{FS: faultfs.New(func(int) int { return 0 })}
		cfg := config(faulty)
		cfg.SegmentBytes = 2 << 10
		s := openSpool(t, cfg)
		a, v := &agent{}, newServer()
		for range 60 {
			appendTicks(t, s, a, 1)
		}
		before := s.Stats().Windows
		faulty.calls, faulty.fails = 0, n
		now := time.Unix(0, started+a.now).Add(3 * time.Hour)
		err := s.Maintain(now)
		faulty.fails = 0
		done := faulty.failed == ""
		// Nothing depends on the removal of what was replaced: the next start does it.
		tolerated := done || strings.HasPrefix(faulty.failed, "remove ") || faulty.failed == "sync spool/windows"
		if !tolerated && !errors.Is(err, errFault) {
			t.Errorf("call %d, %s: %v", n, faulty.failed, err)
		}
		if done && (err != nil || n < 10) {
			t.Errorf("%d calls: %v", n-1, err)
		}
		if err := s.Maintain(now); err != nil {
			t.Errorf("call %d, %s, then again: %v", n, faulty.failed, err)
		}
		if after := s.Stats().Windows; after >= before/2 {
			t.Errorf("call %d, %s: %d windows became %d", n, faulty.failed, before, after)
		}
		appendTicks(t, s, a, 1)
		shut(t, s)
		s = openSpool(t, cfg)
		drain(t, s, v)
		if alone := v.check(t, a.now); alone != 0 {
			t.Errorf("call %d, %s: gaps %v", n, faulty.failed, v.gaps)
		}
		shut(t, s)
		if done {
			return
		}
	}
}

// TestClosed checks that a closed spool refuses everything.
func TestClosed(t *testing.T) {
	s := openSpool(t, onDisk(t))
	a := &agent{}
	appendTicks(t, s, a, 1)
	id := live(s)
	o, _, err := s.NextOffer(id)
	if err != nil {
		t.Fatal(err)
	}
	shut(t, s)
	for name, call := range map[string]func() error{
		"Append":       func() error { return a.window(s, 1, nil) },
		"NextOffer":    func() error { _, _, err := s.NextOffer(id); return err },
		"ApplyReply":   func() error { _, err := s.ApplyReply(id, batch.Reply{Verdict: batch.Accepted, Next: 2}); return err },
		"Reject":       func() error { return s.Reject(id, o.Number, "x") },
		"SplitBacklog": func() error { _, err := s.SplitBacklog(time.Now().Add(time.Hour)); return err },
		"Maintain":     func() error { return s.Maintain(time.Now()) },
	} {
		if err := call(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if all, parts := s.Streams(), s.Checkpoint(); len(all)+len(parts) > 0 {
		t.Errorf("streams %v, checkpoint %q", all, parts)
	}
}

// TestWaitingBytes checks how many bytes wait for a server: windows, then their batch until it is
// acknowledged.
func TestWaitingBytes(t *testing.T) {
	fs := faultfs.New(func(int) int { return 0 })
	cfg := config(fs)
	cfg.SegmentBytes = 1
	s := openSpool(t, cfg)
	defer shut(t, s)
	a := &agent{}
	empty := s.Stats().Waiting
	appendTicks(t, s, a, 1, 1, 1)
	if st := s.Stats(); st.Waiting <= empty || st.Waiting > st.Bytes || st.Windows != 3 || st.Batches != 0 {
		t.Errorf("with three windows: %+v", st)
	}
	o, _, err := s.NextOffer(live(s))
	if err != nil {
		t.Fatal(err)
	}
	offered := s.Stats()
	if inLog := fs.Bytes("spool/windows"); offered.Waiting < inLog+int64(len(o.Bytes)) || offered.Batches != 1 {
		t.Errorf("with a batch of %d bytes beside %d of windows: %+v", len(o.Bytes), inLog, offered)
	}
	if all := fs.Bytes("spool"); offered.Bytes != all {
		t.Errorf("%d bytes are counted, and there are %d", offered.Bytes, all)
	}
	if _, err := s.ApplyReply(o.Stream, batch.Reply{Verdict: batch.Accepted, Next: 2}); err != nil {
		t.Fatal(err)
	}
	if err := s.Maintain(time.Now()); err != nil {
		t.Fatal(err)
	}
	windows, all := fs.Bytes("spool/windows"), fs.Bytes("spool")
	if st := s.Stats(); st.Waiting != windows || st.Bytes != all || st.Batches != 1 {
		t.Errorf("when it is acknowledged: %+v, windows of %d bytes, %d in all", st, windows, all)
	}
}

// TestMergeAlone checks that one segment is merged too.
func TestMergeAlone(t *testing.T) {
	fs := faultfs.New(func(int) int { return 0 })
	cfg := config(fs)
	cfg.SegmentBytes = 8 << 10
	s := openSpool(t, cfg)
	defer shut(t, s)
	a, v := &agent{}, newServer()
	segments := func() int {
		names, err := fs.List("spool/windows")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	for segments() < 2 {
		appendTicks(t, s, a, 1)
	}
	before := s.Stats().Windows
	if err := s.Maintain(time.Unix(0, started+a.now).Add(3 * time.Hour)); err != nil {
		t.Fatal(err)
	}
	if after := s.Stats().Windows; after >= before/2 || segments() != 2 {
		t.Errorf("%d windows became %d, in %d segments", before, after, segments())
	}
	drain(t, s, v)
	if alone := v.check(t, a.now); alone != 0 {
		t.Errorf("gaps: %v", v.gaps)
	}
}

// TestUnsent checks the time of what no server has: windows, a batch that is not acknowledged, and
// nothing.
func TestUnsent(t *testing.T) {
	s := openSpool(t, onDisk(t))
	defer shut(t, s)
	want := func(what string, from, to, last time.Time) {
		t.Helper()
		if f, u, l := s.Unsent(); !f.Equal(from) || !u.Equal(to) || !l.Equal(last) {
			t.Errorf("%s: from %v to %v, last %v; want %v, %v, %v", what, f, u, l, from, to, last)
		}
	}
	at := func(ticks int64) time.Time { return time.Unix(0, started+ticks*tick) }
	want("nothing", time.Time{}, time.Time{}, time.Unix(0, 0))
	a := &agent{}
	appendTicks(t, s, a, 1, 1)
	want("two windows", at(0), at(2), at(2))
	o, _, err := s.NextOffer(live(s))
	if err != nil {
		t.Fatal(err)
	}
	want("their batch", at(0), at(2), at(2))
	appendTicks(t, s, a, 3)
	want("a batch and a window", at(0), at(5), at(5))
	if _, err := s.ApplyReply(o.Stream, batch.Reply{Verdict: batch.Accepted, Next: 2}); err != nil {
		t.Fatal(err)
	}
	if err := s.Maintain(time.Now()); err != nil { // which writes the acknowledgment
		t.Fatal(err)
	}
	want("a window", at(2), at(5), at(5))
	drain(t, s, newServerFrom(o, t))
	if err := s.Maintain(time.Now()); err != nil {
		t.Fatal(err)
	}
	want("nothing more", time.Time{}, time.Time{}, at(5))
}

// newServerFrom returns a server that has one batch.
func newServerFrom(o spool.Offer, t *testing.T) *server {
	v := newServer()
	v.offer(t, o)
	return v
}

// TestOpenInvalid checks that a spool of an invalid configuration does not open.
func TestOpenInvalid(t *testing.T) {
	cfg := onDisk(t)
	cfg.MaxBytes = 1
	if s, err := spool.Open(cfg, quiet()); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := os.Stat(cfg.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
}

// TestValidate checks the smallest and the largest values of each setting.
func TestValidate(t *testing.T) {
	sent := wire.Default().Sent
	for _, c := range []struct {
		name string
		set  func(*spool.Config)
		ok   bool
	}{
		{"default", func(*spool.Config) {}, true},
		{"no directory", func(c *spool.Config) { c.Dir = "" }, false},
		{"least bytes", func(c *spool.Config) { c.MaxBytes = 1 << 20 }, true},
		{"too few bytes", func(c *spool.Config) { c.MaxBytes = 1<<20 - 1 }, false},
		{"no retention", func(c *spool.Config) { c.Retention = 0 }, true},
		{"negative retention", func(c *spool.Config) { c.Retention = -1 }, false},
		{"least batch", func(c *spool.Config) { c.BatchBytes = 1 << 10 }, true},
		{"too small a batch", func(c *spool.Config) { c.BatchBytes = 1<<10 - 1 }, false},
		{"largest batch", func(c *spool.Config) { c.BatchBytes = sent / 2 }, true},
		{"too large a batch", func(c *spool.Config) { c.BatchBytes = sent/2 + 1 }, false},
		{"least segment", func(c *spool.Config) { c.SegmentBytes = 1 }, true},
		{"negative segment", func(c *spool.Config) { c.SegmentBytes = -1 }, false},
		{"one rule", func(c *spool.Config) { c.MergeRules = []spool.MergeRule{{0, 1}} }, true},
		{"no span", func(c *spool.Config) { c.MergeRules = []spool.MergeRule{{0, 0}} }, false},
		{"negative age", func(c *spool.Config) { c.MergeRules = []spool.MergeRule{{-1, 1}} }, false},
		{"equal ages", func(c *spool.Config) { c.MergeRules = []spool.MergeRule{{1, 1}, {1, 2}} }, false},
		{"three rules", func(c *spool.Config) { c.MergeRules = []spool.MergeRule{{1, 1}, {2, 2}, {3, 3}} }, true},
		{"the third age is the second", func(c *spool.Config) { c.MergeRules = []spool.MergeRule{{1, 1}, {2, 2}, {2, 3}} }, false},
		{"the third span is the second", func(c *spool.Config) { c.MergeRules = []spool.MergeRule{{1, 1}, {2, 2}, {3, 2}} }, false},
		{"equal spans", func(c *spool.Config) { c.MergeRules = []spool.MergeRule{{1, 1}, {2, 1}} }, false},
	} {
		cfg := spool.Default()
		cfg.Dir = "x"
		c.set(&cfg)
		if err := cfg.Validate(); (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// conflicted returns a spool with two batches and a window, whose first batch a server refused
// because it has another one under that number.
func conflicted(t *testing.T, fs spool.FS) (*spool.Spool, *agent) {
	t.Helper()
	s := openSpool(t, config(fs))
	a := &agent{}
	appendTicks(t, s, a, 1)
	o, _, err := s.NextOffer(live(s))
	if err != nil {
		t.Fatal(err)
	}
	appendTicks(t, s, a, 1)
	if _, err := s.ApplyReply(o.Stream, batch.Reply{Verdict: batch.Conflict, Next: 1}); err != nil {
		t.Fatal(err)
	}
	return s, a
}

// TestConflictTotals checks that the first rows of the stream that follows an abandoned one have
// their totals.
func TestConflictTotals(t *testing.T) {
	s, a := conflicted(t, faultfs.New(func(int) int { return 0 }))
	defer shut(t, s)
	appendTicks(t, s, a, 1)
	var last usage.Window
	for {
		o, ok, err := s.NextOffer(live(s))
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		b, err := wire.Decode(o.Bytes, wire.Default())
		if err != nil {
			t.Fatal(err)
		}
		last = b.Windows[len(b.Windows)-1]
		if _, err := s.ApplyReply(o.Stream, batch.Reply{Verdict: batch.Accepted, Next: o.Number + 1}); err != nil {
			t.Fatal(err)
		}
	}
	if len(last.Rows) == 0 || last.End != a.now {
		t.Fatalf("the last window is %+v", last)
	}
	for _, row := range last.Rows {
		if row.Has == 0 {
			t.Errorf("row %v has no total", row.ShortID)
		}
	}
}

// TestOfferFaults fails each call of the file system while a stream offers a batch that it took
// over from an abandoned one, one at a time: the error is returned, and nothing is lost.
func TestOfferFaults(t *testing.T) {
	for n := 1; ; n++ {
		faulty := &faultyFS{FS: faultfs.New(func(int) int { return 0 })}
		s, a := conflicted(t, faulty)
		faulty.calls, faulty.fails = 0, n
		_, ok, err := s.NextOffer(live(s))
		faulty.fails = 0
		done := faulty.failed == ""
		if !done && (ok || !errors.Is(err, errFault)) || done && (!ok || err != nil || n < 3) {
			t.Errorf("call %d, %s: %t, %v", n, faulty.failed, ok, err)
		}
		v := newServer()
		drain(t, s, v)
		if alone := v.check(t, a.now); alone != 0 {
			t.Errorf("call %d, %s: gaps %v", n, faulty.failed, v.gaps)
		}
		shut(t, s)
		if done {
			return
		}
	}
}

// TestLostBatchRecord checks that windows are not sent again that were in a batch whose record is
// lost, as a later window shows: the server has them.
func TestLostBatchRecord(t *testing.T) {
	const log = "spool/batches/0000000000000001.seg"
	fs := faultfs.New(func(int) int { return 0 })
	s := openSpool(t, config(fs))
	a, v := &agent{}, newServer()
	appendTicks(t, s, a, 1)
	before := fs.Read(log)
	if sent, err := exchange(t, s, v, live(s), true); !sent || err != nil {
		t.Fatal(sent, err)
	}
	appendTicks(t, s, a, 1)
	if bytes.Equal(before, fs.Read(log)) {
		t.Fatal("the batch has no record")
	}
	shut(t, s)
	fill(t, fs, log, before)
	s = openSpool(t, config(fs))
	defer shut(t, s)
	drain(t, s, v)
	if alone := v.check(t, a.now); alone != 0 || len(v.taken) != 2 {
		t.Errorf("windows %d, gaps: %v", len(v.taken), v.gaps)
	}
}
