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

// blockSpan is the length of backfilled blocks, and of those that the database writes itself.
const blockSpan = 2 * time.Hour

// A blockWriter writes a block of past samples outside the database.
type blockWriter struct {
	dir     string // the database's directory
	w       *tsdb.BlockWriter
	app     storage.Appender
	ctx     context.Context
	written int64
	pending int // samples since the last commit
}

func backfillDir(dir string) string { return filepath.Join(dir, "filling") }

func newBlockWriter(ctx context.Context, dir string) (*blockWriter, error) {
	if err := os.MkdirAll(backfillDir(dir), dirMode); err != nil {
		return nil, err
	}
	// A head accepts samples within half its range, and samples of several nodes come in any
	// order.
	w, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), backfillDir(dir), 2*blockSpan.Milliseconds())
	if err != nil {
		return nil, err
	}
	return &blockWriter{dir: dir, w: w, app: w.Appender(ctx), ctx: ctx}, nil
}

// add adds a sample. It ignores samples that the block has already or cannot take. It calls
// seriesLabels if ref is 0, and sets ref.
func (w *blockWriter) add(ref *storage.SeriesRef, at int64, v float64, seriesLabels func() labels.Labels) error {
	var ls labels.Labels
	if *ref == 0 {
		ls = seriesLabels()
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

// finish moves a block with samples into the database's directory; the database loads it
// within a minute.
func (w *blockWriter) finish(log *slog.Logger) error {
	if err := w.app.Commit(); err != nil || w.written == 0 {
		return errors.Join(err, w.w.Close())
	}
	id, err := w.w.Flush(w.ctx)
	if err = errors.Join(err, w.w.Close()); err != nil || id == (ulid.ULID{}) {
		return err
	}
	made := filepath.Join(backfillDir(w.dir), id.String())
	log.Debug("wrote a backfilled block", "block", id, "samples", w.written)
	if err := markOutOfOrder(made); err != nil {
		return err
	}
	return atomicfile.Move(made, filepath.Join(w.dir, id.String()))
}

// discard drops the block.
func (w *blockWriter) discard() error { return errors.Join(w.app.Rollback(), w.w.Close()) }

// markOutOfOrder marks a block as one of out-of-order samples. Otherwise the database would
// assume that memory has no samples older than the block's end, and drop them.
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

// setAsideUnreadable sets unreadable blocks aside and returns the start of the time whose
// samples may be missing, in ms since 1970: 0 if unknown, never if all blocks are readable.
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
		log.Warn("a block of the metrics is unreadable and set aside", "path", aside, "err", err,
			"hint", "no action is needed: the samples are rebuilt from the ledger; remove the directory when it is no longer needed")
		if err := os.Rename(path, aside); err != nil {
			return lost, err
		}
	}
	return lost, nil
}

// checkBlock tries to open a block and returns the time of its first sample, or 0 if its
// metadata is unreadable.
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
