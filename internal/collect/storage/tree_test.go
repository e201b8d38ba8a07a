package storage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit/hosttest"
)

// diskDir is a directory on a disk.
func diskDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := onDisk(openDir(t, dir)); err != nil {
		t.Skipf("needs a disk at %s: %v", dir, err)
	}
	return dir
}

// openDir opens a directory for the test.
func openDir(t *testing.T, dir string) int {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// write writes a file of random bytes.
func write(t *testing.T, p string, bytes int) {
	t.Helper()
	b := make([]byte, bytes)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	must(t, os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, b, 0o644))
}

// du is what du(1) says of a directory, in bytes: on one file system, in blocks, each inode once.
func du(t *testing.T, dir string) int64 {
	t.Helper()
	unix.Sync() // blocks are allocated as files are written back
	out, err := exec.Command("du", "-sx", "--block-size=1", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(string(out), "\t")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// measure walks a directory in steps of n files, and calls between after each.
func measure(t *testing.T, dir string, n int, between func(step int)) (bytes int64, err error) {
	t.Helper()
	tr, err := newTree(openDir(t, dir), false)
	if err != nil {
		t.Fatal(err)
	}
	tr.maxLinks = 20
	defer func() { must(t, tr.close()) }()
	buf := make([]byte, 512)
	for step := 0; ; step++ {
		_, done, err := tr.step(n, buf)
		if err != nil {
			return 0, err
		}
		if done {
			return tr.bytes, nil
		}
		between(step)
	}
}

// TestTree compares walks of any step with du(1).
func TestTree(t *testing.T) {
	dir := diskDir(t)
	write(t, filepath.Join(dir, "top"), 5000)
	for i := range 300 {
		write(t, filepath.Join(dir, fmt.Sprint("d", i%7), fmt.Sprint("e", i%5), strings.Repeat("n", i%200)+fmt.Sprint(i)), i*100)
	}
	must(t, os.MkdirAll(filepath.Join(dir, "empty", "empty"), 0o755))
	other := diskDir(t)
	write(t, filepath.Join(other, "large"), 3<<20)
	must(t, os.Symlink(filepath.Join(other, "large"), filepath.Join(dir, "link")), os.Symlink(other, filepath.Join(dir, "d1", "linked")),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	must(t, os.Link(filepath.Join(dir, "top"), filepath.Join(dir, "d0", "again")), os.Link(filepath.Join(dir, "top"), filepath.Join(dir, "d2", "again")))
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	must(t, sparse.Truncate(1<<40), sparse.Close())
	want := du(t, dir)
	for _, n := range []int{1, 2, 7, 1 << 20} {
		if got, err := measure(t, dir, n, func(int) {}); err != nil || got != want {
			t.Errorf("in steps of %d: %d bytes, %v, want %d", n, got, err, want)
		}
	}
	if want < 4<<20 || want > 8<<20 {
		t.Errorf("%d bytes: the test covers little", want)
	}
}

// TestManyLinks checks that inodes with several names count once, and beyond those that are remembered too where all names are in the
// tree.
func TestManyLinks(t *testing.T) {
	dir := diskDir(t)
	for i := range 50 {
		p := filepath.Join(dir, fmt.Sprint(i))
		write(t, p, 5000)
		must(t, os.Mkdir(p+".d", 0o755), os.Link(p, filepath.Join(p+".d", "other")))
	}
	want := du(t, dir)
	if got, err := measure(t, dir, 100, func(int) {}); err != nil || got != want {
		t.Errorf("%d bytes, %v, want %d", got, err, want)
	}
}

// TestDeepTree walks more directories below each other than a path can name, and refuses more than maxDepth.
func TestDeepTree(t *testing.T) {
	dir := diskDir(t)
	at := openDir(t, dir)
	for range maxDepth - 1 {
		must(t, unix.Mkdirat(at, "deep", 0o755))
		next, err := unix.Openat(at, "deep", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err, unix.Close(at))
		at = next
	}
	if got, err := measure(t, dir, 100, func(int) {}); err != nil || got != du(t, dir) {
		t.Errorf("%d bytes, %v, want %d", got, err, du(t, dir))
	}
	must(t, unix.Mkdirat(at, "deep", 0o755), unix.Close(at))
	if got, err := measure(t, dir, 100, func(int) {}); !errors.Is(err, errDeep) {
		t.Errorf("one more directory: %d bytes, %v", got, err)
	}
	if out, err := exec.Command("rm", "-r", filepath.Join(dir, "deep")).CombinedOutput(); err != nil { // it can be too deep for os.RemoveAll
		t.Fatalf("%v: %s", err, out)
	}
}

// TestMovedTree moves and removes the directory that is read: the walk ends, or goes on without it, and never leaves the tree.
func TestMovedTree(t *testing.T) {
	dir, other := diskDir(t), diskDir(t)
	write(t, filepath.Join(other, "large"), 3<<20)
	for i := range 50 {
		write(t, filepath.Join(dir, "a", "b", fmt.Sprint(i)), 100)
	}
	_, err := measure(t, dir, 10, func(step int) {
		if step == 0 {
			must(t, os.Rename(filepath.Join(dir, "a", "b"), filepath.Join(other, "b")))
		}
	})
	if !errors.Is(err, errMoved) {
		t.Errorf("after a move: %v", err)
	}
	must(t, os.Rename(filepath.Join(other, "b"), filepath.Join(dir, "a", "b")))
	got, err := measure(t, dir, 10, func(step int) {
		if step == 0 {
			must(t, os.RemoveAll(filepath.Join(dir, "a", "b")))
		}
	})
	if err != nil || got > 1<<20 {
		t.Errorf("after a removal: %d bytes, %v", got, err)
	}
}

// inMounts runs a function in a mount namespace of its own.
func inMounts(t *testing.T, run func()) {
	t.Helper()
	hosttest.Need(t, "root")
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		if err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
			t.Error(err)
			return
		}
		run()
	}()
	<-done
}

// TestTreeOfMounts checks that what is mounted in a tree, also on a file, does not count.
func TestTreeOfMounts(t *testing.T) {
	dir, other := diskDir(t), diskDir(t)
	write(t, filepath.Join(other, "large"), 3<<20)
	write(t, filepath.Join(dir, "own"), 5000)
	write(t, filepath.Join(dir, "file"), 1)
	must(t, os.Mkdir(filepath.Join(dir, "memory"), 0o755), os.Mkdir(filepath.Join(dir, "bind"), 0o755))
	want := du(t, dir) - 4096*3 // of the file and of the directories, whose own blocks are hidden
	inMounts(t, func() {
		err := errors.Join(unix.Mount("tmpfs", filepath.Join(dir, "memory"), "tmpfs", 0, ""), unix.Mount(other, filepath.Join(dir, "bind"), "", unix.MS_BIND, ""),
			unix.Mount(filepath.Join(other, "large"), filepath.Join(dir, "file"), "", unix.MS_BIND, ""))
		if err != nil {
			t.Error(err)
			return
		}
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		tr, err := newTree(fd, false)
		if err != nil {
			t.Error(err)
			return
		}
		_, done, err := tr.step(1000, make([]byte, 4096))
		if err := errors.Join(err, tr.close()); err != nil || !done || tr.bytes != want {
			t.Errorf("%d bytes, %v, %v, want %d", tr.bytes, done, err, want)
		}
	})
}

// TestLogsOfTree checks that of a directory of logs the logs count, and nothing below it.
func TestLogsOfTree(t *testing.T) {
	dir := diskDir(t)
	for name, bytes := range map[string]int{"0.log": 5000, "0.log.20261130-174500": 9000, "0.log.20261130-174400.gz": 3000, "id-json.log": 100, "config.v2.json": 50000, "a.log/x.log": 90000} {
		write(t, filepath.Join(dir, name), bytes)
	}
	unix.Sync()
	tr, err := newTree(openDir(t, dir), true)
	if err != nil {
		t.Fatal(err)
	}
	_, done, err := tr.step(1000, make([]byte, 4096))
	if err := errors.Join(err, tr.close()); err != nil || !done || tr.bytes != 8192+12288+4096+4096 {
		t.Errorf("%d bytes, %v, %v", tr.bytes, done, err)
	}
}

// TestBadEntries checks entries of a directory that are cut off.
func TestBadEntries(t *testing.T) {
	for _, b := range [][]byte{make([]byte, 10), make([]byte, 24), append(make([]byte, 16), 255, 0, 0, 'a', 0)} {
		tr := &tree{path: []place{{}}}
		if _, err := tr.read(b); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%v: %v", b, err)
		}
	}
}
