package tsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

	"mete.dev/mete/internal/x/atomicfile"
)

// blockSpan is the span of a block that the past is filled with: as of those that the
// database writes itself.
const blockSpan = 2 * time.Hour

// A blockWriter makes a block of samples of the past, beside the database.
type blockWriter struct {
	dir     string // of the database
	w       *tsdb.BlockWriter
	app     storage.Appender
	ctx     context.Context
	written int64
	pending int // since the last commit
}

func backfillDir(dir string) string { return filepath.Join(dir, "filling") }

func newBlockWriter(ctx context.Context, dir string) (*blockWriter, error) {
	if err := os.MkdirAll(backfillDir(dir), 0o700); err != nil {
		return nil, err
	}
	// A head takes samples of half its range: those of several nodes come in any
	// order.
	w, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), backfillDir(dir), 2*blockSpan.Milliseconds())
	if err != nil {
		return nil, err
	}
	return &blockWriter{dir: dir, w: w, app: w.Appender(ctx), ctx: ctx}, nil
}

// add adds a sample. One of an instant of which there is one is not taken.
func (w *blockWriter) add(ref *storage.SeriesRef, at int64, v float64, of func() labels.Labels) error {
	var ls labels.Labels
	if *ref == 0 {
		ls = of()
	}
	got, err := w.app.Append(*ref, ls, at, v)
	switch {
	case errors.Is(err, storage.ErrDuplicateSampleForTimestamp), errors.Is(err, storage.ErrOutOfOrderSample), errors.Is(err, storage.ErrOutOfBounds):
		return nil
	case err != nil:
		return fmt.Errorf("metrics: %w", err)
	}
	*ref = got
	w.written++
	if w.pending++; w.pending < 50_000 {
		return nil
	}
	w.pending = 0
	err = w.app.Commit()
	w.app = w.w.Appender(w.ctx)
	return err
}

// finish puts the block into the database, where it has samples; the database finds
// it within a minute.
func (w *blockWriter) finish(log *slog.Logger) error {
	if err := w.app.Commit(); err != nil || w.written == 0 {
		return errors.Join(err, w.w.Close())
	}
	id, err := w.w.Flush(w.ctx)
	if err = errors.Join(err, w.w.Close()); err != nil || id == (ulid.ULID{}) {
		return err
	}
	made := filepath.Join(backfillDir(w.dir), id.String())
	if err := markOutOfOrder(made); err != nil {
		return err
	}
	log.Debug("a block of the past was filled in", "block", id, "samples", w.written)
	if err := os.Rename(made, filepath.Join(w.dir, id.String())); err != nil {
		return err
	}
	d, err := os.Open(w.dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// discard forgets the block.
func (w *blockWriter) discard() error { return errors.Join(w.app.Rollback(), w.w.Close()) }

// markOutOfOrder says in a block that its samples came late. Else the database would take
// it that nothing older than the block's end is in memory any more, and drop it.
func markOutOfOrder(block string) error {
	path := filepath.Join(block, "meta.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var m tsdb.BlockMeta
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	m.Compaction.SetOutOfOrder()
	if b, err = json.Marshal(&m); err != nil {
		return err
	}
	return atomicfile.Replace(path, b)
}

// setAsideUnreadable sets aside the blocks that cannot be read, and returns since when there may
// be samples missing for it: in ms since 1970, 0 where nobody knows, never where
// all can be read.
func setAsideUnreadable(dir string, log *slog.Logger) (lost int64, err error) {
	lost = never
	if err := errors.Join(os.RemoveAll(backfillDir(dir)), os.RemoveAll(copyDir(dir))); err != nil {
		return lost, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return lost, err
	}
	for _, e := range entries {
		if _, err := ulid.ParseStrict(e.Name()); err != nil || !e.IsDir() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		from, err := checkBlock(path)
		if err == nil || errors.Is(err, fs.ErrPermission) {
			continue
		}
		lost = min(lost, from)
		aside := dir + ".broken-" + e.Name()
		log.Warn("a block of the metrics cannot be read and is set aside", "path", aside, "err", err,
			"hint", "nothing has to be done: what the ledger has of it is filled in again; remove the directory when nobody wants to look at it")
		if err := os.Rename(path, aside); err != nil {
			return lost, err
		}
	}
	return lost, nil
}

// checkBlock tries to open a block, and returns when its samples begin, 0 where it
// does not say.
func checkBlock(path string) (from int64, err error) {
	var m tsdb.BlockMeta
	if b, err := os.ReadFile(filepath.Join(path, "meta.json")); err == nil && json.Unmarshal(b, &m) == nil {
		from = max(m.MinTime, 0)
	}
	b, err := tsdb.OpenBlock(slog.New(slog.DiscardHandler), path, nil, nil)
	if err != nil {
		return from, err
	}
	return from, b.Close()
}
