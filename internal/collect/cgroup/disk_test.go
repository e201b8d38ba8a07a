package cgroup_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// blkioMount is the hierarchy that counts disk I/O by group.
const blkioMount = "/sys/fs/cgroup/blkio"

// writeDirect writes to a file with direct I/O, so that the write reaches the disk at once
// on behalf of this process's group.
func writeDirect(file string, size int) error {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS) // mmap aligns the buffer
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|syscall.O_DIRECT, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		return err
	}
	return f.Close()
}

// The disk I/O of a group counts for itself, even if it lives between two ticks and leaves
// the blkio hierarchy first. The file system may write slightly more on behalf of a
// process, and the kernel reads its program file.
func TestDiskOfShortLives(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1", "memcg1", "bpf")
	const size = 2 << 20
	file, err := os.CreateTemp(".", "mete-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(file.Name()); err != nil {
			t.Error(err)
		}
	})
	_, err = file.Write(make([]byte, size))
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(file.Name(), &st); err != nil {
		t.Fatal(err)
	}
	if unix.Major(st.Dev) == 0 {
		t.Skipf("%s is not on a disk", file.Name())
	}
	p := top(t)
	t.Cleanup(func() { removeAll(t, blkioMount+p) })
	mkdir(t, blkioMount+p)
	s := openFixture(t, "bpf", config(), bpf.Default())
	path, err := filepath.Abs(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	dirs := func(g string) []string { return append(in(g), blkioMount+g) }
	live := func(g string, tick func()) {
		mkdir(t, dirs(g)...)
		l := newLoad(t, dirs(g)...)
		l.do(fmt.Sprintf("write %d %s", size, path))
		tick()
		l.do(fmt.Sprintf("write %d %s", size, path))
		l.end()
		rmdir(t, blkioMount+g)
		rmdir(t, in(g)...)
		s.tick()
	}
	live(p+"/short", func() {})
	live(p+"/long", s.tick)
	for _, g := range []string{p + "/short", p + "/long"} {
		if u := s.used[g]; u.Amount[usage.DiskWritten] < 2*size || u.Amount[usage.DiskWritten] >= 3*size || u.Amount[usage.DiskRead] >= size || !u.Present.Has(usage.DiskRead) {
			t.Errorf("%s: booked %d bytes written and %d read (%v), want %d and none", g,
				u.Amount[usage.DiskWritten], u.Amount[usage.DiskRead], u.Present.Has(usage.DiskRead), 2*size)
		}
	}
}
