package tsdb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// bytesOfChunk is about the most that a series writes to the disk when its chunk is finished: 120 samples of 2 to 4
// bytes, and their frame.
const bytesOfChunk = 512

// A space keeps free space for the database. Prometheus's database writes finished chunks once a minute, and ends the
// process if it cannot. So the store takes no samples while the disk has less space than the chunks of all series may
// need, and it holds as much in a file that it removes then, for what is finished already. The ledger has what is not
// taken: its samples are rebuilt when there is space.
type space struct {
	mu   sync.Mutex
	full bool
	stop chan struct{} // closed to end watchSpace
	done chan struct{}
}

// reservePath returns the path of the file that holds space.
func (s *Store) reservePath() string { return filepath.Join(s.cfg.Dir, "reserve") }

// watchSpace checks the space until the store is closed: another program may fill the disk between two batches.
func (s *Store) watchSpace() {
	defer close(s.space.done)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-s.space.stop:
			return
		case <-tick.C:
			_ = s.checkSpace()
		}
	}
}

// checkSpace returns an error that wraps fault.ErrUnavailable if the disk has too little space for samples. It logs when
// that begins and ends.
func (s *Store) checkSpace() error {
	s.space.mu.Lock() // also while the free space is read: a value from before another check would undo this one
	defer s.space.mu.Unlock()
	free, need, ok := s.freeSpace()
	if !ok {
		return nil
	}
	switch {
	case free < need && !s.space.full:
		s.space.full = true
		s.log.Warn("the disk is full: metrics are not stored until there is space; the ledger keeps the usage, from which they are rebuilt",
			"free_MiB", free>>20, "needed_MiB", need>>20, "hint", "free space on the file system of "+s.cfg.Dir)
		if err := os.Remove(s.reservePath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("cannot release the space kept for metrics", "err", err)
		}
	case s.space.full && free > 3*need: // with the file there is more than twice the need
		s.space.full = false
		s.log.Info("the disk has space again: metrics are stored")
		s.reserve(need)
	}
	if s.space.full {
		return fmt.Errorf("metrics: %d MiB of disk are free, %d MiB are needed: %w", free>>20, 3*need>>20, fault.ErrUnavailable)
	}
	return nil
}

// openSpace makes the file that holds space, if it would leave enough, and begins to watch the space.
func (s *Store) openSpace() {
	s.space.stop, s.space.done = make(chan struct{}), make(chan struct{})
	_, err := os.Lstat(s.reservePath())
	if free, need, ok := s.freeSpace(); ok && free > 2*need && errors.Is(err, fs.ErrNotExist) {
		s.reserve(need)
	}
	go s.watchSpace()
}

// freeSpace returns how many bytes of the disk are free, and how many the database needs; neither is known if the file
// system does not say so.
func (s *Store) freeSpace() (free, need int64, ok bool) {
	var st unix.Statfs_t
	if s.cfg.Reserve == 0 || unix.Statfs(s.cfg.Dir, &st) != nil {
		return 0, 0, false
	}
	return int64(st.Bavail) * st.Bsize, s.cfg.Reserve + bytesOfChunk*int64(s.db.Head().NumSeries()), true
}

// checkLastSpace is checkSpace for the states of nodes and for what rules record: they are few, and alerts need them. They
// are taken until the released space is nearly full.
func (s *Store) checkLastSpace() error {
	free, _, ok := s.freeSpace()
	if last := s.cfg.Reserve / 4; ok && free < last {
		return fmt.Errorf("metrics: %d KiB of disk are free, %d KiB are needed: %w", free>>10, last>>10, fault.ErrUnavailable)
	}
	return nil
}

// Samples takes samples of others, such as remote write. While the disk is full, its appenders return errors that wrap
// fault.ErrUnavailable.
func (s *Store) Samples() storage.Appendable { return checkedAppendable{s.db, s.checkSpace} }

// Records is Samples for what rules record, which may use the last space.
func (s *Store) Records() storage.Appendable { return checkedAppendable{s.db, s.checkLastSpace} }

type checkedAppendable struct {
	storage.Appendable
	check func() error
}

func (a checkedAppendable) Appender(ctx context.Context) storage.Appender {
	next := a.Appendable.Appender(ctx)
	if err := a.check(); err != nil {
		return refusingAppender{next, err}
	}
	return next
}

// A refusingAppender appends nothing.
type refusingAppender struct {
	storage.Appender
	err error
}

func (a refusingAppender) Append(storage.SeriesRef, labels.Labels, int64, float64) (storage.SeriesRef, error) {
	return 0, a.err
}

func (a refusingAppender) AppendHistogram(storage.SeriesRef, labels.Labels, int64, *histogram.Histogram, *histogram.FloatHistogram) (storage.SeriesRef, error) {
	return 0, a.err
}

func (a refusingAppender) Commit() error { return errors.Join(a.err, a.Rollback()) }

// reserve creates the file that holds space. On a disk that cannot hold it, or a file system that cannot allocate,
// there is none.
func (s *Store) reserve(size int64) {
	f, err := os.OpenFile(s.reservePath(), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	if err := errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, size), f.Close()); err != nil {
		_ = os.Remove(s.reservePath())
	}
}

// closeDB closes the database. The samples that it cannot write to a full disk are in its log.
func (s *Store) closeDB() (err error) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case runtime.Error:
			panic(e)
		case error:
			err = fmt.Errorf("metrics: close: %w", e)
		default:
			panic(e)
		}
	}()
	return s.db.Close()
}
