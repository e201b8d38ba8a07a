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

// Copy copies the file or directory from to the new path to. Copies can be read and written
// by their owner alone; an existing file is never overwritten. Copy follows symbolic links
// to files and skips everything that is neither a regular file nor a directory, and the
// temporary files of [Replace].
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
			return nil // removed or renamed meanwhile
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
	if _, err := io.Copy(dst, ctxReader{ctx, src}); err != nil {
		return err
	}
	return dst.Sync()
}

// ctxReader fails once its context has ended.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r ctxReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}

// Move renames the directory from, whose files have been synced, to the new name to. The
// rename is durable once Move has returned. The error is fault.ErrConflict if to exists.
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
