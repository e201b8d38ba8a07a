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
	// maxClusterSeries limits the remote-write series of one cluster in memory, where each
	// takes about 2 kB.
	maxClusterSeries = 200_000
	// seriesLifetime is the longest time that a series stays in memory after its latest
	// sample: the database writes a block of two hours when it has three.
	seriesLifetime = 3 * time.Hour
	// forgetInterval is the shortest time between two searches for expired series.
	forgetInterval = time.Minute
)

// errFull reports a new series in a cluster that has reached its limit.
var errFull = errors.New("limit of series reached")

// seriesTracker tracks recently written series by cluster.
type seriesTracker struct {
	limit int
	seed  maphash.Seed // prevents deliberate collisions

	mu       sync.Mutex
	clusters map[string]*clusterSeries
}

// clusterSeries holds the series of one cluster.
type clusterSeries struct {
	lastWritten map[uint64]int64 // by hash of the series, seconds since 1970
	forgotten   time.Time        // time of the last search for expired series
	warned      bool             // the limit was logged
}

func newSeriesTracker(limit int) *seriesTracker {
	return &seriesTracker{limit: limit, seed: maphash.MakeSeed(), clusters: map[string]*clusterSeries{}}
}

// admit returns an error that wraps errFull if the series is new and its cluster has reached
// the limit.
func (t *seriesTracker) admit(cluster string, key uint64, ls labels.Labels, now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.clusters[cluster]
	if c == nil {
		return nil
	}
	if _, ok := c.lastWritten[key]; !ok && len(c.lastWritten) >= t.limit {
		c.forget(now)
		if len(c.lastWritten) >= t.limit {
			return fmt.Errorf("new series %.100q: cluster %.100q has %d remote-write series of the last %v: %w; drop some with write_relabel_configs",
				ls.Get(model.MetricNameLabel), cluster, len(c.lastWritten), seriesLifetime, errFull)
		}
	}
	return nil
}

// note records that the database accepted a sample of a series.
func (t *seriesTracker) note(cluster string, key uint64, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.clusters[cluster]
	if c == nil {
		c = &clusterSeries{lastWritten: map[uint64]int64{}, forgotten: now}
		t.clusters[cluster] = c
	}
	c.lastWritten[key] = now.Unix()
}

// warnOnce reports whether the limit of a cluster still has to be logged, and returns true
// only once.
func (t *seriesTracker) warnOnce(cluster string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.clusters[cluster]
	if c == nil || c.warned {
		return false
	}
	c.warned = true
	return true
}

// key returns the hash of a series.
func (t *seriesTracker) key(ls labels.Labels) uint64 {
	var room [1024]byte
	return maphash.Bytes(t.seed, ls.Bytes(room[:0]))
}

// forget removes expired series. It scans all series, and therefore at most once per
// forgetInterval.
func (c *clusterSeries) forget(now time.Time) {
	if now.Sub(c.forgotten) < forgetInterval {
		return
	}
	c.forgotten = now
	oldest := now.Add(-seriesLifetime).Unix()
	maps.DeleteFunc(c.lastWritten, func(_ uint64, at int64) bool { return at < oldest })
}
