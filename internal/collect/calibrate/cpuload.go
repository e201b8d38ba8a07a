package calibrate

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// period is the length of a busy phase plus an idle phase of each thread: short, so that a
// meter sees the mean of both.
const period = 10 * time.Millisecond

// A cpuLoad keeps every CPU busy for the same share of its time, with one thread pinned to
// each.
type cpuLoad struct {
	share   atomic.Uint64 // bits of a float64
	stopped atomic.Bool
	done    sync.WaitGroup
}

// newCPULoad returns an idle cpuLoad.
func newCPULoad(threads int) *cpuLoad {
	l := &cpuLoad{}
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		may.Zero()
	}
	cpu := -1
	for i := range threads {
		for cpu++; cpu < 64*len(may) && !may.IsSet(cpu); cpu++ {
		}
		l.done.Add(1)
		go l.runThread(cpu, period*time.Duration(i)/time.Duration(threads))
	}
	return l
}

// runThread is one thread of the load. Threads start with different delays, so that they
// are not all busy at the same time.
func (l *cpuLoad) runThread(cpu int, apart time.Duration) {
	defer l.done.Done()
	// The thread stays locked, so that it ends with the goroutine and no other goroutine
	// gets a pinned thread.
	runtime.LockOSThread()
	var own unix.CPUSet
	own.Set(cpu)
	// If a thread cannot be pinned, the scheduler spreads the threads.
	_ = unix.SchedSetaffinity(0, &own)
	time.Sleep(apart)
	for !l.stopped.Load() {
		begin := time.Now()
		busy := time.Duration(math.Float64frombits(l.share.Load()) * float64(period))
		for time.Since(begin) < busy {
		}
		time.Sleep(period - time.Since(begin))
	}
}

// setShare sets the share, 0 to 1.
func (l *cpuLoad) setShare(share float64) { l.share.Store(math.Float64bits(share)) }

// close ends the load.
func (l *cpuLoad) close() {
	l.stopped.Store(true)
	l.done.Wait()
}
