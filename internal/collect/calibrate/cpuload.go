package calibrate

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// period is the time in which each thread is busy once and rests once: short, so
// that a meter sees the mean of both.
const period = 10 * time.Millisecond

// A cpuLoad keeps every CPU busy for the same share of its time: a thread for
// each, bound to it.
type cpuLoad struct {
	share   atomic.Uint64 // bits of a float64
	stopped atomic.Bool
	done    sync.WaitGroup
}

// newCPULoad returns one that does nothing yet.
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

// runThread is one thread of it. They begin apart from each other, so that they are
// not all busy at the same time.
func (l *cpuLoad) runThread(cpu int, apart time.Duration) {
	defer l.done.Done()
	// The thread is not unlocked, so that it ends with the goroutine: no other
	// gets one that is bound.
	runtime.LockOSThread()
	var own unix.CPUSet
	own.Set(cpu)
	// A thread that cannot be bound is as good where the kernel spreads them.
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

// close ends it.
func (l *cpuLoad) close() {
	l.stopped.Store(true)
	l.done.Wait()
}
