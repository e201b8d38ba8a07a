package torture

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// The disks: each program's state is on its own small file system in an image file, so that
// it can run full and lose power.

// A store is the file system of one program.
type store struct {
	at      string // mount point
	image   string // image file
	full    bool
	emptied time.Time // time at which to free the room
	forgets bool      // the program's syncs are fake
}

// storeSize is the size of a file system in bytes.
const storeSize = 64 << 20

// newStore creates a file system and mounts it until the test ends. The image should be in
// memory to make syncs cheap.
func newStore(t *testing.T, at, image string) *store {
	t.Helper()
	s := &store{at: at, image: image}
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(image)
	if err == nil {
		err = errors.Join(f.Truncate(storeSize), f.Close())
	}
	if err == nil {
		// No lazy initialization, and no blocks reserved for root.
		err = tool("mkfs.ext4", "-q", "-F", "-m", "0", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
	}
	if err == nil {
		err = s.mount()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if *keep != "" {
			_ = exec.Command("cp", "-a", at, at+"-kept").Run()
		}
		if err := s.unmount(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// tool runs a system program.
func tool(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// mount mounts the image so that little unsynced data reaches it: no writeback within a test,
// and no implicit sync on rename. Unmounting removes the loop device.
func (s *store) mount() error {
	return tool("mount", "-o", "loop,commit=300,noauto_da_alloc,noatime", s.image, s.at)
}

func (s *store) unmount() error { return unmount(s.at) }

// unmount unmounts a file system. It retries while an exiting process or an ending loop device still
// uses it.
func unmount(at string) error {
	for {
		err := syscall.Unmount(at, 0)
		if !errors.Is(err, syscall.EBUSY) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// hasLoop reports whether a loop device uses an image. This can be so after an unmount: while a mount
// namespace that another process created has a copy of the mount, the file system and its cached data remain,
// and the next mount of the image would be of that file system.
func hasLoop(image string) bool {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // the pattern is valid
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err == nil && strings.TrimSuffix(string(b), "\n") == image { // the file is missing if the device has no image
			return true
		}
	}
	return false
}

// cut simulates a loss of power while no program uses the file system: it discards all data
// that is not in the image, and mounts the image again.
func (s *store) cut(t *testing.T) error {
	t.Helper()
	extents, err := s.snapshot()
	if err != nil {
		return err
	}
	if err := s.unmount(); err != nil {
		return err
	}
	testkit.Eventually(t, "no loop device uses the image", func() bool { return !hasLoop(s.image) })
	f, err := os.Create(s.image)
	if err == nil {
		err = f.Truncate(storeSize)
	}
	for _, e := range extents {
		if err == nil {
			_, err = f.WriteAt(e.data, e.at)
		}
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := s.mount(); err != nil || s.full {
		return err
	}
	return s.empty() // the removal of the filler was not synced
}

// An extent is a written part of an image.
type extent struct {
	at   int64
	data []byte
}

// snapshot reads a consistent image: it repeats reading until two reads agree, because the
// kernel may be writing.
func (s *store) snapshot() ([]extent, error) {
	f, err := os.Open(s.image)
	if err != nil {
		return nil, err
	}
	first, err := readExtents(f)
	for range 20 {
		second, err2 := readExtents(f)
		if err = errors.Join(err, err2); err != nil || reflect.DeepEqual(first, second) {
			return first, errors.Join(err, f.Close())
		}
		first = second
	}
	return nil, errors.Join(fmt.Errorf("%s: changes between all reads", s.image), f.Close())
}

func readExtents(f *os.File) (all []extent, err error) {
	for end := int64(0); ; {
		at, err := unix.Seek(int(f.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, syscall.ENXIO) {
			return all, nil // the rest is a hole
		}
		if err == nil {
			end, err = unix.Seek(int(f.Fd()), at, unix.SEEK_HOLE)
		}
		if err != nil {
			return nil, err
		}
		e := extent{at, make([]byte, end-at)}
		if _, err := f.ReadAt(e.data, at); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
}

// sync writes all data to the image.
func (s *store) sync() error {
	d, err := os.Open(s.at)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

func (s *store) filler() string { return filepath.Join(s.at, "filler") }

// fill takes all free space for a duration.
func (s *store) fill(long time.Duration) error {
	f, err := os.OpenFile(s.filler(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil && !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	s.full, s.emptied = true, time.Now().Add(long)
	if err != nil {
		return nil // already full
	}
	at := int64(0)
	for _, step := range []int64{1 << 20, 4 << 10} {
		for err = nil; err == nil; at += step {
			if err = syscall.Fallocate(int(f.Fd()), 0, at, step); err != nil {
				break
			}
		}
		if !errors.Is(err, syscall.ENOSPC) {
			break
		}
		err = nil
	}
	return errors.Join(err, f.Close())
}

// empty frees the space that fill took.
func (s *store) empty() error {
	s.full = false
	if err := os.Remove(s.filler()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err // the filler is missing if power was cut before it was synced
	}
	return nil
}

// cut cuts the power of an ended program at random. If the program's syncs were fake, cut
// syncs instead.
func (r *rig) cut(c *child) {
	r.t.Helper()
	s := r.stores[c]
	if s == nil {
		return
	}
	forgot := s.forgets
	if s.forgets = false; forgot {
		r.must(s.sync())
		return
	}
	if r.calm || c.lives == 0 || r.rnd.IntN(3) > 0 {
		return
	}
	r.power(c)
}

// power cuts the power of an ended program, and checks that the ledger still has all batches
// that it had committed.
func (r *rig) power(c *child) {
	r.t.Helper()
	s := r.stores[c]
	r.faults[c.name+" power"]++
	r.must(s.cut(r.t))
	if c != r.server || r.v.postgres {
		return
	}
	// Read a copy, so that the recovery is left to the server.
	dir, err := os.MkdirTemp(r.ram(), "marks-")
	r.must(err)
	r.must(tool("cp", "-a", r.state(), dir))
	marks, err := marks(filepath.Join(dir, filepath.Base(r.state()), "ledger.db"))
	if err != nil {
		r.t.Errorf("the ledger after a loss of power: %v", err)
	}
	r.must(os.RemoveAll(dir))
	for stream, next := range r.told {
		if marks[stream] < next {
			r.t.Errorf("stream %s: batch %d was booked, but after a loss of power next is %d", stream, next-1, marks[stream])
		}
	}
}

// heard are the marks that were read during a life of the server.
type heard struct {
	at    time.Time
	life  int
	marks map[string]int64
}

// listen records the batches that the server has durably booked: those read earlier in this
// life. If the life ends right after a read, the data may be written but not synced.
func (r *rig) listen() {
	if !r.server.up || r.v.postgres || time.Since(r.heard.at) < 100*time.Millisecond {
		return
	}
	select {
	case <-r.server.done:
		return
	default:
	}
	if r.heard.life == r.server.lives {
		maps.Copy(r.told, r.heard.marks)
	}
	now, err := marks(r.readOnly())
	if err != nil {
		return // not created yet, or locked
	}
	r.heard = heard{time.Now(), r.server.lives, now}
}

// owes reports whether a restored server still lacks batches that it once had. Meanwhile the
// agent's disk must not run full, because the agent would delete the only copies.
func (r *rig) owes() bool {
	for stream, next := range r.owed {
		if r.told[stream] < next {
			return true
		}
	}
	return false
}

// marks returns the next batch number of each stream in a ledger.
func marks(dsn string) (map[string]int64, error) {
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	marks := map[string]int64{}
	rows, err := db.Query("SELECT hex(id), next FROM stream")
	for err == nil && rows.Next() {
		var id string
		var next int64
		if err = rows.Scan(&id, &next); err == nil {
			marks[id] = next
		}
	}
	if rows != nil {
		err = errors.Join(err, rows.Err(), rows.Close())
	}
	return marks, errors.Join(err, db.Close())
}

// TestPower checks the simulated loss of power: synced data remains, unsynced data is lost.
func TestPower(t *testing.T) {
	hosttest.Need(t, "root", "loop")
	dir := t.TempDir()
	s := newStore(t, filepath.Join(dir, "at"), filepath.Join(dir, "image"))
	write := func(name string, sync bool) {
		f, err := os.Create(filepath.Join(s.at, name))
		if err == nil {
			_, err = f.WriteString(name)
		}
		if err == nil && sync {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	write("before", false)
	if err := s.sync(); err != nil {
		t.Fatal(err)
	}
	write("synced", true)
	write("not", false)
	if err := s.fill(0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.at, "more"), make([]byte, 8<<10), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write to a full file system: %v", err)
	}
	// As other tests may at any time, copy the mount to a mount namespace.
	other := exec.Command("sleep", "0.2")
	other.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Wait() }()
	if err := s.cut(t); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"before": "before", "synced": "synced", "not": "", "more": ""} {
		b, err := os.ReadFile(filepath.Join(s.at, name))
		if string(b) != want || err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %q, %v; want %q", name, b, err, want)
		}
	}
	if err := s.empty(); err != nil {
		t.Fatal(err)
	}
	write("after", true)
}
