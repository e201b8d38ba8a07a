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

	"mete.dev/mete/internal/model/unit"
)

const (
	// maxClusterSeries limits the remote-write series of one cluster in memory, where each
	// takes about 2 kB; maxClusterBytes limits the bytes of their labels.
	maxClusterSeries = 200_000
	maxClusterBytes  = 256 << 20
	// seriesLifetime is the longest time that a series stays in memory after its latest
	// sample: the database writes a block of two hours when it has three.
	seriesLifetime = 3 * time.Hour
	// forgetInterval is the shortest time between two searches for expired series.
	forgetInterval = time.Minute
)

// errFull reports a new series in a cluster that has reached a limit.
var errFull = errors.New("limit of series reached")

// seriesTracker tracks recently written series by cluster.
type seriesTracker struct {
	maxSeries int
	maxBytes  int64
	seed      maphash.Seed // prevents deliberate collisions

	mu       sync.Mutex
	clusters map[string]*clusterSeries
}

// clusterSeries holds the series of one cluster.
type clusterSeries struct {
	series    map[uint64]trackedSeries // by hash of the series
	bytes     int64                    // of the labels of all series
	forgotten time.Time                // time of the last search for expired series
	warned    bool                     // the limit was logged
}

// A trackedSeries is a series in memory.
type trackedSeries struct {
	written int64 // time of the latest sample's arrival, seconds since 1970
	bytes   int64 // of the labels
}

func newSeriesTracker(maxSeries int, maxBytes int64) *seriesTracker {
	return &seriesTracker{maxSeries: maxSeries, maxBytes: maxBytes, seed: maphash.MakeSeed(), clusters: map[string]*clusterSeries{}}
}

// admit records that a sample of a series arrived. It returns an error that wraps errFull if
// the series is new and its cluster has reached a limit. A series counts even if the database
// refuses the sample: it is in memory before the database looks at the time of the sample.
func (t *seriesTracker) admit(cluster string, ls labels.Labels, now time.Time) error {
	key, bytes := t.key(ls), labelBytes(ls)
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.clusters[cluster]
	if c == nil {
		c = &clusterSeries{series: map[uint64]trackedSeries{}, forgotten: now}
		t.clusters[cluster] = c
	}
	if _, ok := c.series[key]; !ok {
		full := func() bool { return len(c.series) >= t.maxSeries || c.bytes+bytes > t.maxBytes }
		if full() {
			c.forget(now)
		}
		if full() {
			return fmt.Errorf("new series %.100q: cluster %.100q has %d remote-write series of the last %v with %s of labels, at most %d with %s are taken: %w; drop some with write_relabel_configs",
				ls.Get(model.MetricNameLabel), cluster, len(c.series), seriesLifetime, unit.Bytes(float64(c.bytes)), t.maxSeries, unit.Bytes(float64(t.maxBytes)), errFull)
		}
		c.bytes += bytes
	}
	c.series[key] = trackedSeries{now.Unix(), bytes}
	return nil
}

// labelBytes returns the bytes of all names and values of labels.
func labelBytes(ls labels.Labels) (n int64) {
	ls.Range(func(l labels.Label) { n += int64(len(l.Name) + len(l.Value)) })
	return n
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
	maps.DeleteFunc(c.series, func(_ uint64, one trackedSeries) bool {
		if one.written >= oldest {
			return false
		}
		c.bytes -= one.bytes
		return true
	})
}
