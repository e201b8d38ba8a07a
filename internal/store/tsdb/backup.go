package tsdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/prometheus/tsdb"

	"mete.dev/mete/internal/x/atomicfile"
)

// Backup copies the database into the new directory dir. On the same file system it
// hard-links blocks, which takes no additional space. Appends continue meanwhile, and the
// copy has only some of their samples: a store that opens it with a ledger copied later
// rebuilds the missing ones, as after a crash. After an error the caller removes dir.
func (s *Store) Backup(ctx context.Context, dir string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("metrics: back up to %s: %w", dir, err)
		}
	}()
	if err := os.Mkdir(dir, dirMode); err != nil {
		return err
	}
	err = s.checkLink(dir)
	if !errors.Is(err, syscall.EXDEV) {
		if err == nil {
			err = s.backup(ctx, dir)
		}
		return err
	}
	near := copyDir(s.cfg.Dir)
	defer func() { err = errors.Join(err, os.RemoveAll(near)) }()
	if err := errors.Join(os.RemoveAll(near), os.Mkdir(near, dirMode), s.backup(ctx, near)); err != nil {
		return err
	}
	return errors.Join(os.Remove(dir), atomicfile.Copy(ctx, near, dir))
}

// copyDir returns the temporary directory of a backup to another file system.
func copyDir(dir string) string { return filepath.Join(dir, "copying") }

// checkLink tries to hard-link a file of the database into a directory.
func (s *Store) checkLink(dir string) (err error) {
	f, err := os.CreateTemp(s.cfg.Dir, ".new-link-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	to := filepath.Join(dir, "link")
	if err := os.Link(f.Name(), to); err != nil {
		return err
	}
	return os.Remove(to)
}

func (s *Store) backup(ctx context.Context, dir string) error {
	since := s.oldestDoubt()
	// Copy the head before the blocks, because the database may compact the head to a block
	// at any time; samples in both are equal. The head has no out-of-order samples.
	if err := s.writeHead(ctx, dir); err != nil {
		return err
	}
	if err := s.db.CompactOOOHead(ctx); err != nil {
		return err
	}
	if err := s.db.Snapshot(dir, false); err != nil {
		return err
	}
	return writeMissing(dir, since)
}

// oldestDoubt returns the instant since which the copy may lack samples that the ledger can
// supply: those of batches that come late while it is made, and those that are missing now.
func (s *Store) oldestDoubt() time.Time {
	since := time.Now().Add(-s.cfg.OutOfOrderWindow)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.unsampled {
		if u.From.Before(since) {
			since = u.From
		}
	}
	return since
}

// writeHead writes the head as blocks within slices: see [backfill.write].
func (s *Store) writeHead(ctx context.Context, dir string) error {
	head, width := s.db.Head(), blockSpan.Milliseconds()
	c, err := tsdb.NewLeveledCompactor(ctx, nil, slog.New(slog.DiscardHandler), []int64{width}, nil, nil)
	if err != nil {
		return err
	}
	last := head.MaxTime()
	for from := head.MinTime(); from <= last; {
		to := min((from/width+1)*width, last+1)
		made, err := c.Write(dir, tsdb.NewRangeHead(head, from, to-1), from, to, nil)
		for _, id := range made {
			err = errors.Join(err, markOutOfOrder(filepath.Join(dir, id.String())))
		}
		if err != nil {
			return err
		}
		from = to
	}
	return nil
}
