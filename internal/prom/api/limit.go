package api

import (
	"fmt"
	"runtime"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/unit"
)

// A Config bounds what queries may take.
type Config struct {
	// Memory is how many bytes all queries hold at once, about; 0 is 512 MiB.
	Memory   int64
	Samples  int           // that one query holds at once; 0 is as many as Memory allows
	Timeout  time.Duration // of one query, with the wait for its turn
	Parallel int           // queries at once; others wait
	Lookback time.Duration // age at which a sample is not shown any more
	// Log is a file to which each query is written; "" is none. Slow is how long one
	// takes of which the server's own log tells; 0 is never.
	Log  string
	Slow time.Duration
}

// minMemory is what queries need to be of use.
const minMemory = 64 << 20

// Default suits a server of 2 cores and 2 GB.
func Default() Config {
	return Config{Timeout: time.Minute, Parallel: 8, Lookback: 5 * time.Minute, Slow: 10 * time.Second}
}

// Validate reports what cannot work. The error wraps fault.ErrInvalid.
func (c Config) Validate() error {
	switch {
	case c.Samples < 0 || c.Timeout <= 0 || c.Parallel < 1 || c.Lookback <= 0 || c.Slow < 0:
		return fmt.Errorf("queries: time, number and look back must be positive: %w", fault.ErrInvalid)
	case c.Memory != 0 && c.Memory < minMemory:
		return fault.WithHint(fmt.Errorf("queries in %s of memory: %w", unit.Bytes(float64(c.Memory)), fault.ErrInvalid),
			"give them "+unit.Bytes(minMemory)+" or more")
	}
	return nil
}

// What things take in memory, in bytes, about, as measured over 10,000 series. A sample
// is 16, and lists have room to grow.
const (
	sampleBytes = 24
	seriesBytes = 1 << 10 // labels, and what stands around them
	pointBytes  = 28      // in the text of an answer
	hourBytes   = 100     // what says where the samples of an hour of a series are
)

// tier is what queries of one size may take.
type tier struct {
	slots   int // at once
	samples int
	series  int
	bytes   int64 // of series and where their samples are; 0 is not counted
}

// limits are what follows from a configuration. Each query is tried as a small one;
// one that needs more waits for its turn among the few large ones. So large ones
// neither take all the memory nor all the processors, and small ones go on.
type limits struct {
	Config
	small, large tier
	smallTimeout time.Duration // for which one is small
	queueTimeout time.Duration // for a turn
	answerBytes  int64         // bytes of one
	readSamples  int           // samples of all queries of one remote read
	maxValues    int           // names or values of labels in one answer
	maxWaiting   int           // queries of one reader that wait
}

func (c Config) limits() limits {
	if c.Memory == 0 {
		c.Memory = 512 << 20
	}
	l := limits{Config: c, smallTimeout: min(2*time.Second, c.Timeout), queueTimeout: c.Timeout / 2, maxValues: 100_000, maxWaiting: 256}
	l.large.slots = max(1, min(c.Parallel/4, runtime.GOMAXPROCS(0)/2))
	l.small.slots = c.Parallel
	// Three eighths are for small ones, and five for large ones, in which an answer
	// stands some two and a half times while its text is made. That one takes all it
	// may of each at once is not likely, and the watch ends those for which there is no room.
	few, much := c.Memory*3/8/int64(l.small.slots), c.Memory*5/8/int64(l.large.slots)
	l.small.samples, l.small.series, l.small.bytes = int(few*3/4/sampleBytes), int(few/seriesBytes), few
	l.large.samples, l.large.series = int(much*3/4/sampleBytes), int(much/2/seriesBytes)
	l.answerBytes = min(much/10, 256<<20)
	if c.Samples > 0 {
		l.large.samples = c.Samples
	}
	l.readSamples = max(1, l.large.samples/2) // there one takes twice as much
	l.small.samples = min(l.small.samples, l.large.samples)
	return l
}
