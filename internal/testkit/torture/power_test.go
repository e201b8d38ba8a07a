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
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/testkit/hosttest"
)

// The disks: each program's state is on a small file system of its own, in a
// file that stands for the disk. So it can run full, and lose power.

// A store is the file system of one program.
type store struct {
	at      string // where it is mounted
	image   string // the file that it is in
	full    bool
	emptied time.Time // when it is not full any more
	forgets bool      // the program only pretended to sync
}

// storeSize is how much a file system holds.
const storeSize = 64 << 20

// newStore makes a file system and mounts it, until the test ends. The image is
// to be in memory, so that a sync costs little.
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
		// Nothing is put off to later, and root has no room of its own.
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

// tool runs a program of the system.
func tool(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// mount mounts the image so that hardly anything gets to it that nobody syncs:
// it is not written back within the time of a test, and a file that takes the
// place of another has no privilege. The loop device goes with the mount.
func (s *store) mount() error {
	return tool("mount", "-o", "loop,commit=300,noauto_da_alloc,noatime", s.image, s.at)
}

// unmount unmounts it, though somebody may still be on the way out.
func (s *store) unmount() error {
	for {
		err := syscall.Unmount(s.at, 0)
		if !errors.Is(err, syscall.EBUSY) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// cut is a loss of power while no program runs on the file system: all that is
// not in the image by now is lost, and it comes up again.
func (s *store) cut() error {
	extents, err := s.snapshot()
	if err != nil {
		return err
	}
	if err := s.unmount(); err != nil {
		return err
	}
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
	return s.empty() // the power was cut before the room that was made was synced
}

// An extent is a part of an image that was ever written.
type extent struct {
	at   int64
	data []byte
}

// snapshot reads the image as it was at one instant: twice, until both are the
// same, as the kernel may be writing to it.
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
	return nil, errors.Join(fmt.Errorf("%s: it is written to all the time", s.image), f.Close())
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

// sync brings everything to the image.
func (s *store) sync() error {
	d, err := os.Open(s.at)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

func (s *store) filler() string { return filepath.Join(s.at, "filler") }

// fill takes all the room, for so long.
func (s *store) fill(long time.Duration) error {
	f, err := os.OpenFile(s.filler(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil && !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	s.full, s.emptied = true, time.Now().Add(long)
	if err != nil {
		return nil // it is full already
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

// empty makes room again.
func (s *store) empty() error {
	s.full = false
	if err := os.Remove(s.filler()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err // it is not there where the power was cut before that was synced
	}
	return nil
}

// cut cuts the power of a program that has ended, now and then; and has what it
// only pretended to sync be so.
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

// power cuts the power of a program that has ended. What the ledger told before
// has to be there after it.
func (r *rig) power(c *child) {
	r.t.Helper()
	s := r.stores[c]
	r.faults[c.name+" power"]++
	r.must(s.cut())
	if c != r.server || r.v.postgres {
		return
	}
	// The server is read from a copy, so that what it does when it begins is its
	// own doing.
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
			r.t.Errorf("stream %s: batch %d was booked, and after a loss of power %d is wanted", stream, next-1, marks[stream])
		}
	}
}

// heard is what could be read in a life of the server.
type heard struct {
	at    time.Time
	life  int
	marks map[string]int64
}

// listen takes down what the server has booked for good, as anybody may be told
// of it by now: what could be read in this life, if the life has gone on since.
// Where it had just ended, what was read may have been written and not synced.
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
	now, err := marks("file:" + r.dsn + "?mode=ro")
	if err != nil {
		return // it is only just made, or somebody else is at it
	}
	r.heard = heard{time.Now(), r.server.lives, now}
}

// owes reports whether a server that was restored still lacks something that it
// had once. The agent must not give that up, as it would on a full disk: nobody
// else has it.
func (r *rig) owes() bool {
	for stream, next := range r.owed {
		if r.told[stream] < next {
			return true
		}
	}
	return false
}

// marks are the numbers that a ledger wants next, by stream.
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

// TestPower is of the loss of power itself: what was synced is there, what was
// not is not.
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
		t.Errorf("writing to what is full: %v", err)
	}
	if err := s.cut(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"before": "before", "synced": "synced", "not": "", "more": ""} {
		b, err := os.ReadFile(filepath.Join(s.at, name))
		if string(b) != want || err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s has %q, %v; want %q", name, b, err, want)
		}
	}
	if err := s.empty(); err != nil {
		t.Fatal(err)
	}
	write("after", true)
}
