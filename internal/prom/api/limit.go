package api

import (
	"fmt"
	"runtime"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/unit"
)

// A Config limits the resources of queries.
type Config struct {
	// Memory is the approximate limit of memory for all queries together, in bytes; 0 is 512 MiB.
	Memory   int64
	Samples  int           // limit of samples in memory for one query; 0 derives it from Memory
	Timeout  time.Duration // of one query, including the wait for its turn
	Parallel int           // queries that run at once; others wait
	Lookback time.Duration // age at which a sample becomes stale
	// Log is the path of the query log; "" is none. Queries that take at least Slow are
	// written to the server's log; 0 is never.
	Log  string
	Slow time.Duration
}

// minMemory is the smallest useful Config.Memory.
const minMemory = 64 << 20

// Default suits a server of 2 cores and 2 GB.
func Default() Config {
	return Config{Timeout: time.Minute, Parallel: 8, Lookback: 5 * time.Minute, Slow: 10 * time.Second}
}

// Validate reports the first invalid field. The error wraps fault.ErrInvalid.
func (c Config) Validate() error {
	switch {
	case c.Samples < 0 || c.Timeout <= 0 || c.Parallel < 1 || c.Lookback <= 0 || c.Slow < 0:
		return fmt.Errorf("queries: timeout, parallel queries and lookback must be positive, samples and slow not negative: %w", fault.ErrInvalid)
	case c.Memory != 0 && c.Memory < minMemory:
		return fault.WithHint(fmt.Errorf("query memory %s: %w", unit.Bytes(float64(c.Memory)), fault.ErrInvalid),
			"set it to "+unit.Bytes(minMemory)+" or more")
	}
	return nil
}

// Approximate memory in bytes, measured over 10,000 series. A sample takes 16 bytes, and
// slices have spare capacity.
const (
	sampleBytes = 24
	seriesBytes = 1 << 10 // labels and the structures around them
	pointBytes  = 28      // in the JSON of an answer
	hourBytes   = 100     // chunk references of one hour of a series
	valueBytes  = 32      // around a label name or value
	// longValueBytes is the length of the longest label values that remote write takes.
	longValueBytes = 4 << 10
)

// tier is the limits of queries of one size.
type tier struct {
	slots   int // queries at once
	samples int
	series  int
	bytes   int64 // of series and chunk references; 0 is not counted
	labels  int64 // bytes of the labels of all series; 0 is not counted
}

// limits are derived from a Config. Each query is first tried as a small one; one that
// needs more waits for a turn as a large one. Large queries therefore take neither all
// memory nor all processors, and small ones continue.
type limits struct {
	Config
	small, large tier
	smallTimeout time.Duration // run time after which a query is large
	queueTimeout time.Duration // wait for a turn
	answerBytes  int64         // of one answer
	readSamples  int           // samples of all queries of one remote read
	maxValues    int           // label names or values in one answer
	smallValues  int           // label names or values in one answer of a small query
	maxWaiting   int           // waiting queries of one reader
}

func (c Config) limits() limits {
	if c.Memory == 0 {
		c.Memory = 512 << 20
	}
	l := limits{Config: c, smallTimeout: min(2*time.Second, c.Timeout), queueTimeout: c.Timeout / 2, maxValues: 100_000, maxWaiting: 256}
	l.large.slots = max(1, min(c.Parallel/4, runtime.GOMAXPROCS(0)/2))
	l.small.slots = c.Parallel
	// Three eighths are for small queries and five for large ones, which hold an answer about
	// two and a half times while it is encoded. A query rarely reaches all limits at once;
	// the memory watch cancels queries for which there is no room.
	few, much := c.Memory*3/8/int64(l.small.slots), c.Memory*5/8/int64(l.large.slots)
	l.small.samples, l.small.series, l.small.bytes = int(few*3/4/sampleBytes), int(few/seriesBytes), few
	l.large.samples, l.large.series = int(much*3/4/sampleBytes), int(much/2/seriesBytes)
	l.large.labels = much / 4
	l.smallValues = min(l.maxValues, int(few/longValueBytes))
	l.answerBytes = min(much/10, 256<<20)
	if c.Samples > 0 {
		l.large.samples = c.Samples
	}
	l.readSamples = max(1, l.large.samples/2) // a remote read takes twice as much per sample
	l.small.samples = min(l.small.samples, l.large.samples)
	return l
}
