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

// slice is the span of a block that the past is filled with: as of those that the
// database writes itself.
const slice = 2 * time.Hour

// A writer makes a block of samples of the past, beside the database.
type writer struct {
	dir string // of the database
	w   *tsdb.BlockWriter
	app storage.Appender
	ctx context.Context
	put int64
	n   int // since the last commit
}

func fillDir(dir string) string { return filepath.Join(dir, "filling") }

func newWriter(ctx context.Context, dir string) (*writer, error) {
	if err := os.MkdirAll(fillDir(dir), 0o700); err != nil {
		return nil, err
	}
	// A head takes samples of half its range: those of several nodes come in any
	// order.
	w, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), fillDir(dir), 2*slice.Milliseconds())
	if err != nil {
		return nil, err
	}
	return &writer{dir: dir, w: w, app: w.Appender(ctx), ctx: ctx}, nil
}

// add adds a sample. One of an instant of which there is one is not taken.
func (w *writer) add(ref *storage.SeriesRef, at int64, v float64, of func() labels.Labels) error {
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
	w.put++
	if w.n++; w.n < 50_000 {
		return nil
	}
	w.n = 0
	err = w.app.Commit()
	w.app = w.w.Appender(w.ctx)
	return err
}

// finish puts the block into the database, where it has samples; the database finds
// it within a minute.
func (w *writer) finish(log *slog.Logger) error {
	if err := w.app.Commit(); err != nil || w.put == 0 {
		return errors.Join(err, w.w.Close())
	}
	id, err := w.w.Flush(w.ctx)
	if err = errors.Join(err, w.w.Close()); err != nil || id == (ulid.ULID{}) {
		return err
	}
	made := filepath.Join(fillDir(w.dir), id.String())
	if err := apart(made); err != nil {
		return err
	}
	log.Debug("a block of the past was filled in", "block", id, "samples", w.put)
	if err := os.Rename(made, filepath.Join(w.dir, id.String())); err != nil {
		return err
	}
	d, err := os.Open(w.dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// drop forgets the block.
func (w *writer) drop() error { return errors.Join(w.app.Rollback(), w.w.Close()) }

// apart says in a block that its samples came late. Else the database would take
// it that nothing older than the block's end is in memory any more, and drop it.
func apart(block string) error {
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

// mend sets aside the blocks that cannot be read, and returns since when there may
// be samples missing for it: in ms since 1970, 0 where nobody knows, never where
// all can be read.
func mend(dir string, log *slog.Logger) (lost int64, err error) {
	lost = never
	if err := errors.Join(os.RemoveAll(fillDir(dir)), os.RemoveAll(copyDir(dir))); err != nil {
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
		from, err := readable(path)
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

// readable tries to open a block, and returns when its samples begin, 0 where it
// does not say.
func readable(path string) (from int64, err error) {
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
