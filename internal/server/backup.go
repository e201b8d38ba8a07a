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

// backupPaths are the entries of a state directory that a backup copies beside the ledger
// and the metrics.
var backupPaths = []string{"authority", "upstream", "alerts.json", "silences.json"}

// Backup copies the data of the running server to dir, which is then a valid state
// directory. dir must be an absolute path outside the state directory whose parent exists.
// If dir exists or another backup is running, the error wraps fault.ErrConflict. A failed
// or canceled backup leaves nothing behind; [Server.Close] cancels it.
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
		return b, fault.WithHint(fmt.Errorf("another backup is running: %w", fault.ErrConflict), "try again when it has finished")
	}
	defer s.backupMu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()

	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fault.WithHint(fmt.Errorf("%s exists already: %w", dir, fault.ErrConflict), "name a directory that does not exist")
		}
		return b, explainWriteError(err)
	}
	began := time.Now()
	// Everything is copied to a temporary directory, which is renamed at the end: dir either has the
	// whole backup or does not exist.
	part, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".part-*")
	if errors.Is(err, fs.ErrNotExist) {
		return b, fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrNotFound), "create its parent directory first")
	}
	if err != nil {
		return b, explainWriteError(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(explainWriteError(err), os.RemoveAll(part))
		}
	}()
	// The ledger comes last, because the server fills in missing metrics from the ledger.
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
	// PostgreSQL has its own backup tools: then the backup has everything else.
	inPostgres := errors.Is(err, fault.ErrUnsupported)
	if err != nil && !inPostgres {
		return b, err
	}
	ledger, err := diskSize(filepath.Join(part, "ledger.db"))
	if err != nil {
		return b, err
	}
	if !inPostgres {
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
	s.log.Info("backup finished", "path", dir, "ledger_bytes", ledger, "metrics_bytes", b.Metrics, "took", took.Round(time.Millisecond))
	return b, nil
}

// explainWriteError adds kind and hint to an error of writing to the backup's directory.
func explainWriteError(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		// A file system without hard links refuses those of the metrics' files with EPERM.
		return fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrDenied), "name a directory to which the server's user can write, on a file system with hard links")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrUnavailable), "make room, or name a directory on another file system")
	}
	return err
}

// diskSize returns the bytes of a file or of all files below a directory; 0 if path does not
// exist.
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
