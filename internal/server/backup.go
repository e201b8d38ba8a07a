package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/x/atomicfile"
)

// backupPaths are the names in a state directory, beside the ledger and the metrics, that
// a copy has too.
var backupPaths = []string{"authority", "upstream", "alerts.json"}

// Backup copies what the server keeps into a new directory, which is a state
// directory of a server then. The server goes on meanwhile. dir is absolute, outside
// the state directory, and its parent exists. One that exists already, and a second
// Backup at the same time, is fault.ErrConflict. What was begun is removed where it
// fails, and where the server is closed.
func (s *Server) Backup(ctx context.Context, dir string) (b v1.Backup, err error) {
	if !filepath.IsAbs(dir) {
		return b, fmt.Errorf("directory %q is not absolute: %w", dir, fault.ErrInvalid)
	}
	state, err := filepath.Abs(s.cfg.State)
	if err != nil {
		return b, err
	}
	if rest, err := filepath.Rel(state, dir); err == nil && filepath.IsLocal(rest) {
		return b, fault.WithHint(fmt.Errorf("%s is in the state directory %s: %w", dir, s.cfg.State, fault.ErrInvalid), "name a directory beside it")
	}
	if !s.backupMu.TryLock() {
		return b, fault.WithHint(fmt.Errorf("a backup is being made already: %w", fault.ErrConflict), "try again when that is done")
	}
	defer s.backupMu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()

	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fault.WithHint(fmt.Errorf("%s exists already: %w", dir, fault.ErrConflict), "name a directory that is not there yet")
		}
		return b, explainWriteError(err)
	}
	began := time.Now()
	part, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".part-*")
	if errors.Is(err, fs.ErrNotExist) {
		return b, fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrNotFound), "make the directory above it first")
	}
	if err != nil {
		return b, explainWriteError(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(explainWriteError(err), os.RemoveAll(part))
		}
	}()
	// The ledger comes last: what it has beyond the metrics is filled in from it.
	if err := s.Metrics.Backup(ctx, filepath.Join(part, "metrics")); err != nil {
		return b, err
	}
	for _, name := range backupPaths {
		from := filepath.Join(s.cfg.State, name)
		if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := atomicfile.Copy(ctx, from, filepath.Join(part, name)); err != nil {
			return b, err
		}
	}
	if err := ca.Check(filepath.Join(part, "authority")); err != nil {
		return b, err
	}
	err = s.Ledger.Backup(ctx, filepath.Join(part, "ledger.db"))
	external := errors.Is(err, fault.ErrUnsupported)
	if err != nil && !external {
		return b, err
	}
	ledger, err := diskSize(filepath.Join(part, "ledger.db"))
	if err != nil {
		return b, err
	}
	if !external {
		b.Ledger = &ledger
	}
	if b.Metrics, err = diskSize(filepath.Join(part, "metrics")); err != nil {
		return b, err
	}
	if err := atomicfile.Move(part, dir); err != nil {
		return b, err
	}
	took := time.Since(began)
	b.Dir, b.Seconds = dir, took.Seconds()
	s.log.Info("a backup was made", "path", dir, "ledger_bytes", ledger, "metrics_bytes", b.Metrics, "took", took.Round(time.Millisecond))
	return b, nil
}

// explainWriteError says what to do about a place that nothing can be written in.
func explainWriteError(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrDenied), "it is written by the server, with its rights: name a directory where that one may write, on a file system that has links")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrUnavailable), "make room, or name a directory on another file system")
	}
	return err
}

// diskSize is how many bytes a file, or the files of a directory, have; 0 where there
// is none.
func diskSize(path string) (n int64, err error) {
	err = filepath.WalkDir(path, func(at string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		i, err := e.Info()
		if err == nil {
			n += i.Size()
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return n, err
}
