// Package perprocess divides the CPU time of a workload among its processes so that the lines
// sum to the workload's own counter, to the nanosecond.
//
// A workload's counter and those of its processes are read one after another, so over a
// span the processes may show slightly more or less than the workload. An Account keeps
// what it still owes to each process for that reason, and pays it when the workload's
// counter has caught up.
package perprocess

import "math/bits"

// An ID identifies a process uniquely: a reused PID has another start time.
type ID struct {
	PID   int32
	Start int64 // in the unit of its reader: ns of CLOCK_BOOTTIME
}

// Exited is the line of what no living process of the workload used in the span: children
// that ended.
var Exited = ID{}

// A Process is a living process of the workload.
type Process struct {
	ID ID
	// CPU is the time in ns that it used since it started.
	CPU int64
	// Entered is its CPU when it entered the workload: 0 for a process started there. That
	// part does not belong to the workload. For a process that was missed by a call,
	// Entered is its CPU on its return; otherwise it would be given the same time twice.
	Entered int64
}

// A Line is what a process, or Exited, used in a span.
type Line struct {
	ID  ID
	CPU int64 // ns
}

// MaxSkew is the most CPU time, in ns, that is owed to a process. Two readings a moment
// apart cannot differ by more, even with many threads: then the process ran elsewhere, and
// the rest does not belong to this workload.
const MaxSkew = 1_000_000_000

// An Account breaks down consecutive spans of one workload. Only one goroutine may use it.
type Account struct {
	booked  map[ID]int64 // CPU of each living process up to which it is settled
	next    map[ID]int64
	pending []int64
	// Discarded is the CPU time in ns that processes showed beyond MaxSkew above their
	// workload: it was given to no line.
	Discarded int64
}

// New opens an account at the present state of the processes.
func New(now []Process) *Account {
	a := &Account{booked: make(map[ID]int64, len(now)), next: make(map[ID]int64)}
	for _, p := range now {
		a.booked[p.ID] = p.CPU
	}
	return a
}

// Split divides total, the CPU ns that the workload used since the last call, and returns a
// line for each process in the given order, then Exited.
//
// The lines sum to total and none is negative. If the processes show more than total, each
// gets its proportion and the rest stays owed; if they show less, Exited gets the
// difference. Split panics if total is negative.
func (a *Account) Split(total int64, live []Process) []Line {
	if total < 0 {
		panic("breakdown: total is negative")
	}
	sum := a.computePending(live)
	lines := make([]Line, 0, len(live)+1)
	given, before, prefix := int64(0), uint64(0), uint64(0)
	for i, p := range live {
		line := a.pending[i]
		if sum > uint64(total) {
			// The difference of two rounded prefixes: the lines sum to total, and none
			// exceeds its pending amount.
			prefix += uint64(a.pending[i])
			upto := mulDiv(uint64(total), prefix, sum)
			line, before = int64(upto-before), upto
		}
		given += line
		lines = append(lines, Line{p.ID, line})
		a.record(p, line)
	}
	a.booked, a.next = a.next, a.booked
	clear(a.next)
	return append(lines, Line{Exited, total - given})
}

// computePending computes what each process used and was not given yet, and the sum.
func (a *Account) computePending(live []Process) (sum uint64) {
	a.pending = a.pending[:0]
	for _, p := range live {
		w := max(0, p.CPU-a.givenUntil(p))
		a.pending = append(a.pending, w)
		var carry uint64
		if sum, carry = bits.Add64(sum, uint64(w), 0); carry != 0 {
			panic("breakdown: amount overflows")
		}
	}
	return sum
}

// givenUntil returns the CPU time of p that is settled.
func (a *Account) givenUntil(p Process) int64 {
	b, ok := a.booked[p.ID]
	if !ok {
		return p.Entered
	}
	return max(b, p.Entered)
}

// record books line to p.
func (a *Account) record(p Process, line int64) {
	b := a.givenUntil(p) + line
	if over := p.CPU - b - MaxSkew; over > 0 {
		a.Discarded += over
		b += over
	}
	a.next[p.ID] = b
}

// mulDiv returns floor(total x part / whole), for part <= whole.
func mulDiv(total, part, whole uint64) uint64 {
	hi, lo := bits.Mul64(total, part)
	q, _ := bits.Div64(hi, lo, whole)
	return q
}
