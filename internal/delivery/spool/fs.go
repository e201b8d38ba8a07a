package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"mete.dev/mete/internal/model/fault"
)

// An FS is the file system of a spool: the real one, or a test's that injects failures and
// crashes. Names are paths. A file's bytes are durable after File.Sync, its name after
// SyncDir.
type FS interface {
	// MkdirAll creates a directory and its parents with access for their owner only.
	MkdirAll(dir string) error
	// Lock takes a lock file until it is closed or the process ends. The error wraps
	// fault.ErrConflict if another process has it.
	Lock(name string) (io.Closer, error)
	List(dir string) ([]string, error)
	// Create creates or truncates a file with access for its owner only.
	Create(name string) (File, error)
	Open(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	SyncDir(dir string) error
}

// A File is an open file of an FS.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	Truncate(size int64) error
	Sync() error
}

// OS is the file system of the operating system.
type OS struct{}

// MkdirAll implements [FS].
func (d OS) MkdirAll(dir string) error {
	_, err := os.Stat(dir)
	missing := errors.Is(err, os.ErrNotExist)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if missing {
		return d.SyncDir(filepath.Dir(dir))
	}
	return os.Chmod(dir, 0o700)
}

// Lock implements [FS].
func (OS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	// The kernel releases the lock when the process ends.
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("in use by another process: %w", fault.ErrConflict)
	}
	return nil, errors.Join(fmt.Errorf("%s: lock: %w", name, err), f.Close())
}

// List implements [FS]. It returns regular files only.
func (OS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// Create implements [FS].
func (OS) Create(name string) (File, error) {
	return openFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
}

// Open implements [FS].
func (OS) Open(name string) (File, error) { return openFile(name, os.O_RDWR) }

func openFile(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Rename implements [FS].
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements [FS].
func (OS) Remove(name string) error { return os.Remove(name) }

// SyncDir implements [FS].
func (OS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
