// Package split divides the CPU time of a workload among its processes so
// that the lines sum to the workload's own counter, to the nanosecond.
//
// A workload's counter and those of its processes are read one after another,
// so over a span the processes can show a little more than the workload does,
// or a little less. An Account keeps what each process was not yet given for
// that reason, and gives it when the workload's counter has caught up.
package split

import "math/bits"

// An ID names a process for ever: a PID that is used again comes with another
// start time.
type ID struct {
	PID   int32
	Start int64 // as its reader has it: ns of CLOCK_BOOTTIME
}

// Exited is the line that holds what no living process of the workload used in
// the span: children that are gone.
var Exited = ID{}

// A Process is a living process of the workload.
type Process struct {
	ID ID
	// CPU is the time that it used since it started, ns.
	CPU int64
	// Entered is what CPU was when the process came into the workload: 0 for
	// one that was started there. That part is none of the workload's. One that
	// was out of sight for a call comes back with what CPU was on its return,
	// or it would be given again what it had.
	Entered int64
}

// A Line is what a process, or Exited, used in a span.
type Line struct {
	ID  ID
	CPU int64 // ns
}

// MaxSkew is the most CPU time, in ns, that is owed to a process. More than
// this cannot come of two readings a moment apart, even with many threads: then
// the process ran elsewhere, and the rest is not of this workload.
const MaxSkew = 1_000_000_000

// An Account breaks down the spans of one workload, one after another. Its
// owner is one goroutine.
type Account struct {
	booked  map[ID]int64 // CPU of each living process up to which it was given
	next    map[ID]int64
	pending []int64
	// Discarded is the CPU time in ns that processes showed beyond MaxSkew above
	// what their workload had: it was given to no line.
	Discarded int64
}

// New opens an account on what the processes show now: all of it is past.
func New(now []Process) *Account {
	a := &Account{booked: make(map[ID]int64, len(now)), next: make(map[ID]int64)}
	for _, p := range now {
		a.booked[p.ID] = p.CPU
	}
	return a
}

// Split divides total, the CPU ns that the workload used since the call before,
// and returns a line for each process in the order given, then Exited.
//
// The lines sum to total and none is negative. Where the processes show more
// than total, each gets its share of it and the rest stays owed; where they show
// less, Exited has used it. Split panics if total is negative.
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
			// The difference of two rounded prefixes: the lines sum to total,
			// and none is above what its process wants.
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

// computePending works out what each process used and was not given yet, and the sum.
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

// givenUntil returns the CPU time of p up to which nothing is to be given any more.
func (a *Account) givenUntil(p Process) int64 {
	b, ok := a.booked[p.ID]
	if !ok {
		return p.Entered
	}
	return max(b, p.Entered)
}

// record notes that p got line.
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
