package atomicfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"mete.dev/mete/internal/model/fault"
)

// Copy makes a new directory, or a new file, with what another one has in it. The
// owner alone may read and write it, and what is there is never written over. Of
// links it takes the files that they lead to. What is neither a file nor a directory
// is left out, and so is what [Replace] is just writing.
func Copy(ctx context.Context, from, to string) error {
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if path != from && (errors.Is(err, fs.ErrNotExist) || strings.HasPrefix(filepath.Base(path), tempPrefix)) {
			return nil // it has another name by now
		}
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		into := filepath.Join(to, rest)
		if e.IsDir() {
			return os.Mkdir(into, 0o700)
		}
		switch i, err := os.Stat(path); {
		case errors.Is(err, fs.ErrNotExist) && path != from:
			return nil
		case err != nil:
			return err
		case !i.Mode().IsRegular():
			return nil
		}
		return copyFile(ctx, path, into)
	})
}

func copyFile(ctx context.Context, from, to string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	if _, err := io.Copy(dst, reader{ctx, src}); err != nil {
		return err
	}
	return dst.Sync()
}

// A reader ends with a context.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}

// Move gives a new directory, whose files are on the disk, its name, so that it
// stays when the power fails after Move has returned. A name that something has
// already is fault.ErrConflict.
func Move(from, to string) error {
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fmt.Errorf("%s exists already: %w", to, fault.ErrConflict)
		}
		return err
	}
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		return syncDir(path)
	})
	if err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
