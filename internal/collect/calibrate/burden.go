package calibrate

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// turn is the time in which each thread is busy once and rests once: short, so
// that a meter sees the mean of both.
const turn = 10 * time.Millisecond

// A burden keeps every CPU busy for the same share of its time: a thread for
// each, bound to it.
type burden struct {
	share atomic.Uint64 // bits of a float64
	stop  atomic.Bool
	done  sync.WaitGroup
}

// newBurden returns one that does nothing yet.
func newBurden(threads int) *burden {
	b := &burden{}
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		may.Zero()
	}
	cpu := -1
	for i := range threads {
		for cpu++; cpu < 64*len(may) && !may.IsSet(cpu); cpu++ {
		}
		b.done.Add(1)
		go b.carry(cpu, turn*time.Duration(i)/time.Duration(threads))
	}
	return b
}

// carry is one thread of it. They begin apart from each other, so that they are
// not all busy at the same time.
func (b *burden) carry(cpu int, apart time.Duration) {
	defer b.done.Done()
	// The thread is not unlocked, so that it ends with the goroutine: no other
	// gets one that is bound.
	runtime.LockOSThread()
	var own unix.CPUSet
	own.Set(cpu)
	// A thread that cannot be bound is as good where the kernel spreads them.
	_ = unix.SchedSetaffinity(0, &own)
	time.Sleep(apart)
	for !b.stop.Load() {
		begin := time.Now()
		busy := time.Duration(math.Float64frombits(b.share.Load()) * float64(turn))
		for time.Since(begin) < busy {
		}
		time.Sleep(turn - time.Since(begin))
	}
}

// set sets the share, 0 to 1.
func (b *burden) set(share float64) { b.share.Store(math.Float64bits(share)) }

// end ends it.
func (b *burden) end() {
	b.stop.Store(true)
	b.done.Wait()
}
