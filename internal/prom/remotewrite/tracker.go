package remotewrite

import (
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

const (
	// maxClusterSeries is how many series others may have in memory at once in one cluster:
	// each takes some 2 kB there.
	maxClusterSeries = 200_000
	// seriesLifetime is how long a series is in memory after its latest sample, at most:
	// the database writes two hours when it has three.
	seriesLifetime = 3 * time.Hour
	// forgetInterval is how much time is between two looks at what has left memory.
	forgetInterval = time.Minute
)

// errFull is of a new series in a cluster that has as many as it may.
var errFull = errors.New("as many as there may be")

// seriesTracker is which series others wrote of late, by cluster.
type seriesTracker struct {
	limit int
	seed  maphash.Seed // so that nobody can make series that count as one

	mu       sync.Mutex
	clusters map[string]*clusterSeries
}

// clusterSeries are the series of one cluster, by hash: when each was written last, in s
// since 1970.
type clusterSeries struct {
	lastWritten map[uint64]int64
	forgotten   time.Time // when those that left memory were forgotten last
	warned      bool      // that there are too many
}

func newSeriesTracker(limit int) *seriesTracker {
	return &seriesTracker{limit: limit, seed: maphash.MakeSeed(), clusters: map[string]*clusterSeries{}}
}

// admit says whether a series, of this key, may be written. Its error, which wraps
// errFull, says that it is a new one, and one too many.
func (w *seriesTracker) admit(cluster string, key uint64, ls labels.Labels, now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.clusters[cluster]
	if c == nil {
		return nil
	}
	if _, ok := c.lastWritten[key]; !ok && len(c.lastWritten) >= w.limit {
		c.forget(now)
		if len(c.lastWritten) >= w.limit {
			return fmt.Errorf("%.100q would be a new series, and cluster %.100q has %d of others that were written within %v: %w; leave some out with write_relabel_configs",
				ls.Get(model.MetricNameLabel), cluster, len(c.lastWritten), seriesLifetime, errFull)
		}
	}
	return nil
}

// note notes that a series was written: what the database refuses is in no memory.
func (w *seriesTracker) note(cluster string, key uint64, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.clusters[cluster]
	if c == nil {
		c = &clusterSeries{lastWritten: map[uint64]int64{}, forgotten: now}
		w.clusters[cluster] = c
	}
	c.lastWritten[key] = now.Unix()
}

// warnOnce says whether it is to be told that a cluster has too many: once.
func (w *seriesTracker) warnOnce(cluster string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.clusters[cluster]
	if c == nil || c.warned {
		return false
	}
	c.warned = true
	return true
}

// key is the hash of a series.
func (w *seriesTracker) key(ls labels.Labels) uint64 {
	var room [1024]byte
	return maphash.Bytes(w.seed, ls.Bytes(room[:0]))
}

// forget forgets the series that have left memory. It looks at all of them, which it
// does not for each that is one too many.
func (c *clusterSeries) forget(now time.Time) {
	if now.Sub(c.forgotten) < forgetInterval {
		return
	}
	c.forgotten = now
	oldest := now.Add(-seriesLifetime).Unix()
	maps.DeleteFunc(c.lastWritten, func(_ uint64, at int64) bool { return at < oldest })
}
