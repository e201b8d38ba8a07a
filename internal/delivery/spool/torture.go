//go:build torture

package spool

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// defaultFS is the file system where a Config names none: the real one, or one
// that forgets with the process what it did not sync, where METE_TORTURE_DROP
// is set.
func defaultFS() FS {
	if os.Getenv("METE_TORTURE_DROP") == "" {
		return osFS{}
	}
	return &forgetful{names: map[string]*inode{}}
}

// tune makes segments small and merging early, where METE_TORTURE_SEGMENT is
// their size: so what else takes hours happens in seconds.
func (c Config) tune() Config {
	if n, err := strconv.ParseInt(os.Getenv("METE_TORTURE_SEGMENT"), 10, 64); err == nil {
		c.segment = n
		c.MergeRules = []MergeRule{{time.Second, 2 * time.Second}, {6 * time.Second, 10 * time.Second}}
	}
	return c
}

// forgetful is a file system whose files and names stay in memory until they
// are synced. It takes that nobody else changes the files.
type forgetful struct {
	osFS
	mu    sync.Mutex
	names map[string]*inode // those that were touched, as programs see them; nil is gone
	todo  []rename          // changes of names that are not synced, in order
	made  int
}

// An inode is a file as programs see it.
type inode struct {
	real  string // where its bytes are on the disk
	cache []byte
	dirty int // from where on the disk has other bytes, or none
}

// A rename gives a name to a file: to is "" where it is removed, from is where
// it is made.
type rename struct {
	from, to string
	file     *inode
}

// unsynced begins the name of a file whose name is not synced.
const unsynced = ".unsynced-"

func (f *forgetful) MkdirAll(dir string) error {
	if err := f.osFS.MkdirAll(dir); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		ours := slices.ContainsFunc(f.todo, func(r rename) bool { return r.file != nil && r.file.real == name })
		if strings.HasPrefix(e.Name(), unsynced) && !ours {
			err = errors.Join(err, os.Remove(name))
		}
	}
	return err
}

func (f *forgetful) List(dir string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	names, err := f.osFS.List(dir)
	names = slices.DeleteFunc(names, func(name string) bool {
		_, touched := f.names[filepath.Join(dir, name)]
		return touched || strings.HasPrefix(name, unsynced)
	})
	for name, n := range f.names {
		if n != nil && filepath.Dir(name) == dir {
			names = append(names, filepath.Base(name))
		}
	}
	return names, err
}

// find returns the file of a name.
func (f *forgetful) find(name string) (*inode, error) {
	n, touched := f.names[name]
	switch {
	case n != nil:
		return n, nil
	case touched:
		return nil, &os.PathError{Op: "open", Path: name, Err: os.ErrNotExist}
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	n = &inode{real: name, cache: b, dirty: len(b)}
	f.names[name] = n
	return n, nil
}

func (f *forgetful) Open(name string) (File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(name)
	if err != nil {
		return nil, err
	}
	return &cached{f, n}, nil
}

func (f *forgetful) Create(name string) (File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(name)
	if errors.Is(err, os.ErrNotExist) {
		f.made++
		n = &inode{real: filepath.Join(filepath.Dir(name), unsynced+strconv.Itoa(f.made))}
		f.names[name] = n
		f.todo = append(f.todo, rename{to: name, file: n})
		err = nil
	}
	if err != nil {
		return nil, err
	}
	n.cache, n.dirty = nil, 0
	return &cached{f, n}, nil
}

func (f *forgetful) Rename(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(from)
	if err != nil {
		return err
	}
	f.names[from], f.names[to] = nil, n
	f.todo = append(f.todo, rename{from: from, to: to, file: n})
	return nil
}

func (f *forgetful) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(name); err != nil {
		return err
	}
	f.names[name] = nil
	f.todo = append(f.todo, rename{from: name})
	return nil
}

func (f *forgetful) SyncDir(dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, r := range f.todo {
		if filepath.Dir(cmp.Or(r.from, r.to)) != dir {
			continue
		}
		if err := r.do(); err != nil {
			return err
		}
		f.todo[i] = rename{from: r.from, to: r.to}
	}
	f.todo = slices.DeleteFunc(f.todo, func(r rename) bool { return filepath.Dir(cmp.Or(r.from, r.to)) == dir })
	return nil
}

// do changes the names on the disk.
func (r rename) do() error {
	switch {
	case r.to == "":
		return os.Remove(r.from)
	case r.from == "":
		if err := r.file.open(func(*os.File) error { return nil }); err != nil {
			return err
		}
		r.from = r.file.real
	}
	if err := os.Rename(r.from, r.to); err != nil {
		return err
	}
	r.file.real = r.to
	return nil
}

// open calls do with the file on the disk, which is made where there is none.
func (n *inode) open(do func(*os.File) error) error {
	f, err := os.OpenFile(n.real, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(do(f), f.Close())
}

// cached is an open file.
type cached struct {
	fs *forgetful
	n  *inode
}

func (c *cached) ReadAt(b []byte, at int64) (n int, err error) {
	c.fs.mu.Lock()
	defer c.fs.mu.Unlock()
	if at < int64(len(c.n.cache)) {
		n = copy(b, c.n.cache[at:])
	}
	if n < len(b) {
		err = io.EOF
	}
	return n, err
}

func (c *cached) WriteAt(b []byte, at int64) (int, error) {
	c.fs.mu.Lock()
	defer c.fs.mu.Unlock()
	n := c.n
	n.dirty = min(n.dirty, int(at), len(n.cache))
	if end := int(at) + len(b); end > len(n.cache) {
		n.cache = append(n.cache, make([]byte, end-len(n.cache))...)
	}
	return copy(n.cache[at:], b), nil
}

func (c *cached) Truncate(size int64) error {
	c.fs.mu.Lock()
	defer c.fs.mu.Unlock()
	if int(size) < len(c.n.cache) {
		c.n.cache, c.n.dirty = c.n.cache[:size], min(c.n.dirty, int(size))
	}
	return nil
}

func (c *cached) Size() (int64, error) {
	c.fs.mu.Lock()
	defer c.fs.mu.Unlock()
	return int64(len(c.n.cache)), nil
}

// Sync writes what the disk lacks. The process may be killed meanwhile, which
// leaves a part of it.
func (c *cached) Sync() error {
	c.fs.mu.Lock()
	defer c.fs.mu.Unlock()
	n := c.n
	return n.open(func(f *os.File) error {
		if err := f.Truncate(int64(n.dirty)); err != nil {
			return err
		}
		if _, err := f.WriteAt(n.cache[n.dirty:], int64(n.dirty)); err != nil {
			return err
		}
		n.dirty = len(n.cache)
		return nil
	})
}

func (c *cached) Close() error { return nil }
