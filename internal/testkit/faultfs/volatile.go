package faultfs

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

	"mete.dev/mete/internal/delivery/spool"
)

// Volatile is a [spool.FS] over the real file system that keeps data and names in memory
// until they are synced, so that a killed process loses unsynced data like a machine that
// loses power. No other process may change the files. The zero value is ready.
type Volatile struct {
	spool.OS
	mu      sync.Mutex
	names   map[string]*cachedFile // used names as programs see them; nil if removed
	pending []rename               // unsynced changes of names, in order
	created int
}

// A cachedFile is a file as programs see it.
type cachedFile struct {
	real  string // path of its synced bytes
	cache []byte
	dirty int // offset of the first unsynced byte
}

// A rename is a change of a name: a removal if to is "", a creation if from is "".
type rename struct {
	from, to string
	file     *cachedFile
}

// unsynced is the prefix of the real names of files whose names are not synced.
const unsynced = ".unsynced-"

// MkdirAll implements [spool.FS].
func (f *Volatile) MkdirAll(dir string) error {
	if err := f.OS.MkdirAll(dir); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		ours := slices.ContainsFunc(f.pending, func(r rename) bool { return r.file != nil && r.file.real == name })
		if strings.HasPrefix(e.Name(), unsynced) && !ours {
			err = errors.Join(err, os.Remove(name))
		}
	}
	return err
}

// List implements [spool.FS].
func (f *Volatile) List(dir string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	names, err := f.OS.List(dir)
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

// set maps a name to a file, or to nil if it was removed.
func (f *Volatile) set(name string, n *cachedFile) {
	if f.names == nil {
		f.names = map[string]*cachedFile{}
	}
	f.names[name] = n
}

// find returns the file with a name.
func (f *Volatile) find(name string) (*cachedFile, error) {
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
	n = &cachedFile{real: name, cache: b, dirty: len(b)}
	f.set(name, n)
	return n, nil
}

// Open implements [spool.FS].
func (f *Volatile) Open(name string) (spool.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(name)
	if err != nil {
		return nil, err
	}
	return &handle{f, n}, nil
}

// Create implements [spool.FS].
func (f *Volatile) Create(name string) (spool.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(name)
	if errors.Is(err, os.ErrNotExist) {
		f.created++
		n = &cachedFile{real: filepath.Join(filepath.Dir(name), unsynced+strconv.Itoa(f.created))}
		f.set(name, n)
		f.pending = append(f.pending, rename{to: name, file: n})
		err = nil
	}
	if err != nil {
		return nil, err
	}
	n.cache, n.dirty = nil, 0
	return &handle{f, n}, nil
}

// Rename implements [spool.FS].
func (f *Volatile) Rename(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(from)
	if err != nil {
		return err
	}
	f.set(from, nil)
	f.set(to, n)
	f.pending = append(f.pending, rename{from: from, to: to, file: n})
	return nil
}

// Remove implements [spool.FS].
func (f *Volatile) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(name); err != nil {
		return err
	}
	f.set(name, nil)
	f.pending = append(f.pending, rename{from: name})
	return nil
}

// SyncDir implements [spool.FS].
func (f *Volatile) SyncDir(dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, r := range f.pending {
		if filepath.Dir(cmp.Or(r.from, r.to)) != dir {
			continue
		}
		if err := r.do(); err != nil {
			return err
		}
		f.pending[i] = rename{from: r.from, to: r.to}
	}
	f.pending = slices.DeleteFunc(f.pending, func(r rename) bool { return filepath.Dir(cmp.Or(r.from, r.to)) == dir })
	return nil
}

// do applies the change on disk.
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

// open calls do with the file on disk, which it creates if missing.
func (n *cachedFile) open(do func(*os.File) error) error {
	f, err := os.OpenFile(n.real, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(do(f), f.Close())
}

// A handle is an open file.
type handle struct {
	fs *Volatile
	n  *cachedFile
}

func (h *handle) ReadAt(b []byte, at int64) (n int, err error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if at < int64(len(h.n.cache)) {
		n = copy(b, h.n.cache[at:])
	}
	if n < len(b) {
		err = io.EOF
	}
	return n, err
}

func (h *handle) WriteAt(b []byte, at int64) (int, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	n := h.n
	n.dirty = min(n.dirty, int(at), len(n.cache))
	if end := int(at) + len(b); end > len(n.cache) {
		n.cache = append(n.cache, make([]byte, end-len(n.cache))...)
	}
	return copy(n.cache[at:], b), nil
}

func (h *handle) Truncate(size int64) error {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if int(size) < len(h.n.cache) {
		h.n.cache, h.n.dirty = h.n.cache[:size], min(h.n.dirty, int(size))
	}
	return nil
}

func (h *handle) Size() (int64, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	return int64(len(h.n.cache)), nil
}

// Sync writes the unsynced data. If the process is killed during it, a part remains.
func (h *handle) Sync() error {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	n := h.n
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

func (h *handle) Close() error { return nil }
