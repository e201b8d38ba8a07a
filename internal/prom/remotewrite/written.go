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
	// perCluster is how many series others may have in memory at once in one cluster:
	// each takes some 2 kB there.
	perCluster = 200_000
	// remembered is how long a series is in memory after its latest sample, at most:
	// the database writes two hours when it has three.
	remembered = 3 * time.Hour
	// between is how much time is between two looks at what has left memory.
	between = time.Minute
)

// errFull is of a new series in a cluster that has as many as it may.
var errFull = errors.New("as many as there may be")

// written is which series others wrote of late, by cluster.
type written struct {
	limit int
	seed  maphash.Seed // so that nobody can make series that count as one

	mu       sync.Mutex
	clusters map[string]*writings
}

// writings are the series of one cluster, by hash: when each was written last, in s
// since 1970.
type writings struct {
	at     map[uint64]int64
	looked time.Time // when those that left memory were forgotten last
	told   bool      // that there are too many
}

func newWritten(limit int) *written {
	return &written{limit: limit, seed: maphash.MakeSeed(), clusters: map[string]*writings{}}
}

// admit says whether a series, of this key, may be written. Its error, which wraps
// errFull, says that it is a new one, and one too many.
func (w *written) admit(cluster string, key uint64, ls labels.Labels, now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.clusters[cluster]
	if c == nil {
		return nil
	}
	if _, ok := c.at[key]; !ok && len(c.at) >= w.limit {
		c.forget(now)
		if len(c.at) >= w.limit {
			return fmt.Errorf("%.100q would be a new series, and cluster %.100q has %d of others that were written within %v: %w; leave some out with write_relabel_configs",
				ls.Get(model.MetricNameLabel), cluster, len(c.at), remembered, errFull)
		}
	}
	return nil
}

// note notes that a series was written: what the database refuses is in no memory.
func (w *written) note(cluster string, key uint64, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.clusters[cluster]
	if c == nil {
		c = &writings{at: map[uint64]int64{}, looked: now}
		w.clusters[cluster] = c
	}
	c.at[key] = now.Unix()
}

// tells says whether it is to be told that a cluster has too many: once.
func (w *written) tells(cluster string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.clusters[cluster]
	if c == nil || c.told {
		return false
	}
	c.told = true
	return true
}

// key is the hash of a series.
func (w *written) key(ls labels.Labels) uint64 {
	var room [1024]byte
	return maphash.Bytes(w.seed, ls.Bytes(room[:0]))
}

// forget forgets the series that have left memory. It looks at all of them, which it
// does not for each that is one too many.
func (c *writings) forget(now time.Time) {
	if now.Sub(c.looked) < between {
		return
	}
	c.looked = now
	oldest := now.Add(-remembered).Unix()
	maps.DeleteFunc(c.at, func(_ uint64, at int64) bool { return at < oldest })
}
