// Package faultfs provides file systems for tests that fail as real ones do: they lose
// unsynced data, run full and fail to sync.
package faultfs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/model/fault"
)

// An FS is a [spool.FS] in memory. All directories exist.
type FS struct {
	mu            sync.Mutex
	names         map[string]*inode // as programs see them
	disk          map[string]*inode // as they are after a crash
	unsyncedNames []change          // unsynced changes of names
	crashes       int               // crashes so far; files opened before a crash fail
	locks         map[string]bool
	pick          func(n int) int
	room          int64 // limit of the bytes of all files; < 0 means none
	failingSyncs  int   // number of next syncs that fail
	failingNames  int   // number of next changes of names that fail
}

// An inode is a file's content: as programs see it, and as it is after a crash.
type inode struct {
	cache, disk []byte
	dirty       bool
}

// A change is a change of a directory: a rename, a creation (from is "") or a removal (to is
// "").
type change struct {
	from, to string
	file     *inode
}

// New returns an empty file system. pick returns a number in [0, n), which decides what a
// crash preserves.
func New(pick func(n int) int) *FS {
	return &FS{names: map[string]*inode{}, disk: map[string]*inode{}, locks: map[string]bool{}, pick: pick, room: -1}
}

// SetFree sets the free space in bytes; a negative number means no limit.
func (f *FS) SetFree(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.room = -1; n >= 0 {
		f.room = f.used() + n
	}
}

// FailSyncs makes the next n syncs of files fail. A failed sync makes only a part of the data
// durable, and no later sync repairs that, as on Linux.
func (f *FS) FailSyncs(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failingSyncs = n
}

// FailNames makes the next n calls fail that create, rename or remove a file or sync a
// directory.
func (f *FS) FailNames(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failingNames = n
}

// Crash invalidates all open files and loses unsynced data: of the changes of names and of
// the data appended to each file only a random prefix remains, which may end in garbage.
func (f *FS) Crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashes++
	clear(f.locks)
	for _, c := range f.unsyncedNames[:f.pick(len(f.unsyncedNames)+1)] {
		c.apply(f.disk)
	}
	f.unsyncedNames = nil
	f.names = map[string]*inode{}
	for name, n := range f.disk {
		n.disk = f.survivingContent(n)
		n.cache, n.dirty = slices.Clone(n.disk), false
		f.names[name] = n
	}
	f.room, f.failingSyncs, f.failingNames = -1, 0, 0
}

// survivingContent returns the content of a file after a crash.
func (f *FS) survivingContent(n *inode) []byte {
	if !n.dirty {
		return n.disk
	}
	// The unchanged prefix remains.
	same := 0
	if bytes.HasPrefix(n.cache, n.disk) {
		same = len(n.disk)
	}
	for same < min(len(n.cache), len(n.disk)) && n.cache[same] == n.disk[same] {
		same++
	}
	if same < len(n.disk) && f.pick(2) == 0 {
		return n.disk // unsynced truncation or overwrite
	}
	more := f.pick(len(n.cache) - same + 1)
	b := slices.Clone(n.cache[:same+more])
	if more > 0 && f.pick(4) == 0 {
		// The new length was written, but not all of the data.
		clear(b[len(b)-1-f.pick(more):])
	}
	return b
}

// FlipBit flips one bit of a file, in memory and on disk.
func (f *FS) FlipBit(name string, bit int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.names[name]
	for _, b := range [][]byte{n.cache, n.disk} {
		if i := bit / 8; i < int64(len(b)) {
			b[i] ^= 1 << (bit % 8)
		}
	}
}

// Read returns the content of a file as programs see it, or nil if it does not exist.
func (f *FS) Read(name string) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.names[name]; n != nil {
		return slices.Clone(n.cache)
	}
	return nil
}

// Bytes returns the size of a file or of all files below a directory.
func (f *FS) Bytes(path string) (sum int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, n := range f.names {
		if name == path || strings.HasPrefix(name, path+"/") {
			sum += int64(len(n.cache))
		}
	}
	return sum
}

func (c change) apply(names map[string]*inode) {
	file := c.file
	if c.from != "" {
		file = names[c.from]
		delete(names, c.from)
	}
	if c.to != "" && file != nil {
		names[c.to] = file
	}
}

func (f *FS) used() (sum int64) {
	for _, n := range f.names {
		sum += int64(len(n.cache))
	}
	return sum
}

// change applies a change to the names that programs see.
func (f *FS) change(c change) error {
	if f.failingNames > 0 {
		f.failingNames--
		return fmt.Errorf("%s%s: %w", c.from, c.to, syscall.EIO)
	}
	if c.from != "" && f.names[c.from] == nil {
		return fmt.Errorf("%s: %w", c.from, os.ErrNotExist)
	}
	c.apply(f.names)
	f.unsyncedNames = append(f.unsyncedNames, c)
	return nil
}

// MkdirAll implements [spool.FS].
func (f *FS) MkdirAll(string) error { return nil }

// Lock implements [spool.FS].
func (f *FS) Lock(name string) (io.Closer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.locks[name] {
		return nil, fmt.Errorf("%s: %w", name, fault.ErrConflict)
	}
	f.locks[name] = true
	return &lock{f, name, f.crashes}, nil
}

type lock struct {
	fs      *FS
	name    string
	crashes int
}

func (l *lock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	if l.crashes == l.fs.crashes {
		delete(l.fs.locks, l.name)
	}
	return nil
}

// List implements [spool.FS].
func (f *FS) List(dir string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for name := range f.names {
		if filepath.Dir(name) == dir {
			names = append(names, filepath.Base(name))
		}
	}
	slices.Sort(names)
	return names, nil
}

// Create implements [spool.FS].
func (f *FS) Create(name string) (spool.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.names[name]; n != nil {
		n.cache, n.dirty = nil, true
		return &file{fs: f, n: n, crashes: f.crashes}, nil
	}
	n := &inode{}
	if err := f.change(change{to: name, file: n}); err != nil {
		return nil, err
	}
	return &file{fs: f, n: n, crashes: f.crashes}, nil
}

// Open implements [spool.FS].
func (f *FS) Open(name string) (spool.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.names[name]
	if n == nil {
		return nil, fmt.Errorf("%s: %w", name, os.ErrNotExist)
	}
	return &file{fs: f, n: n, crashes: f.crashes}, nil
}

// Rename implements [spool.FS].
func (f *FS) Rename(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.change(change{from: from, to: to})
}

// Remove implements [spool.FS].
func (f *FS) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.change(change{from: name})
}

// SyncDir implements [spool.FS].
func (f *FS) SyncDir(dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failingNames > 0 {
		f.failingNames--
		return fmt.Errorf("%s: sync: %w", dir, syscall.EIO)
	}
	var rest []change
	for _, c := range f.unsyncedNames {
		if filepath.Dir(c.from+c.to) == dir || c.from != "" && filepath.Dir(c.from) == dir {
			c.apply(f.disk)
		} else {
			rest = append(rest, c)
		}
	}
	f.unsyncedNames = rest
	return nil
}

type file struct {
	fs      *FS
	n       *inode
	crashes int
	closed  bool
}

// do calls op unless the file was closed, or was opened before a crash.
func (f *file) do(op func() error) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.closed || f.crashes != f.fs.crashes {
		return os.ErrClosed
	}
	return op()
}

func (f *file) ReadAt(b []byte, at int64) (n int, err error) {
	err = f.do(func() error {
		if at < int64(len(f.n.cache)) {
			n = copy(b, f.n.cache[at:])
		}
		if n < len(b) {
			return io.EOF
		}
		return nil
	})
	return n, err
}

func (f *file) WriteAt(b []byte, at int64) (n int, err error) {
	err = f.do(func() error {
		f.n.dirty = true
		n = len(b)
		if f.fs.room >= 0 {
			grown := max(at+int64(len(b))-int64(len(f.n.cache)), 0)
			n -= int(min(max(f.fs.used()+grown-f.fs.room, 0), int64(n)))
		}
		if end := at + int64(n); end > int64(len(f.n.cache)) {
			f.n.cache = append(f.n.cache, make([]byte, end-int64(len(f.n.cache)))...)
		}
		copy(f.n.cache[at:], b[:n])
		if n < len(b) {
			return syscall.ENOSPC
		}
		return nil
	})
	return n, err
}

func (f *file) Size() (n int64, err error) {
	err = f.do(func() error { n = int64(len(f.n.cache)); return nil })
	return n, err
}

func (f *file) Truncate(size int64) error {
	return f.do(func() error {
		f.n.cache, f.n.dirty = f.n.cache[:min(size, int64(len(f.n.cache)))], true
		return nil
	})
}

func (f *file) Sync() error {
	return f.do(func() error {
		if f.fs.failingSyncs > 0 {
			f.fs.failingSyncs--
			f.n.disk, f.n.dirty = f.fs.survivingContent(f.n), false
			return syscall.EIO
		}
		if f.n.dirty {
			f.n.disk, f.n.dirty = slices.Clone(f.n.cache), false
		}
		return nil
	})
}

func (f *file) Close() error {
	return f.do(func() error { f.closed = true; return nil })
}
