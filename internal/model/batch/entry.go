package batch

import (
	"time"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// An Entry is one batch, cut at minute edges, ready to be booked. It is booked
// as a whole, exactly once, or not at all.
type Entry struct {
	Node     string // id of the node, a ULID; it has been enrolled
	Stream   Stream
	Number   uint64
	Previous Hash
	Hash     Hash
	Sent     []byte // the batch's bytes, kept aside where they conflict
	Boot     string // boot id of the sender
	Boottime int64  // of the sender, ns of CLOCK_BOOTTIME
	// Measured is what its windows measured: nothing of it may be booked already.
	Measured []Measured
	// Claimed is what its windows measured before what is booked was cut off.
	Claimed []Measured
	// Boots says where its windows are placed in wall time, one for each boot.
	Boots   []BootPlace
	Through time.Time // end of the last window in it, wall time; zero without windows

	Names   []Name
	Minutes []Minute
	Nodes   []NodeMinute
	Gaps    []usage.Gap
	Shifts  []Shift
	// Handovers are in the order of their windows.
	Handovers []TimedHandover
	// Volumes are in the order of their windows.
	Volumes []TimedVolume
	// Connections are in the order of quarters and workloads, one for each.
	Connections []Connections
	// Unsampled is the time of windows that the time series database did not take; zero
	// is none. It is kept with the entry, so that the samples are rebuilt.
	Unsampled Span
}

// A Span is a range of wall time, from From up to To.
type Span struct{ From, To time.Time }

// IsZero reports whether the span is not set.
func (s Span) IsZero() bool { return s.To.IsZero() }

// Union returns the smallest span that covers both.
func (s Span) Union(o Span) Span {
	switch {
	case s.IsZero():
		return o
	case o.IsZero():
		return s
	}
	if o.From.Before(s.From) {
		s.From = o.From
	}
	if o.To.After(s.To) {
		s.To = o.To
	}
	return s
}

// A TimedHandover is a handover with the wall time of its window.
type TimedHandover struct {
	From, To time.Time
	usage.Handover
}

// A TimedVolume is how much of a volume is used, with the wall time at which it was measured.
type TimedVolume struct {
	At time.Time
	usage.VolumeUse
}

// Quarter is the number of minutes that Connections are of. A workload changes its version at the edges of quarters of an hour only.
const Quarter = 15

// Connections are with whom a workload exchanged the network traffic of a quarter of an hour (UTC), or of a part of it.
type Connections struct {
	Workload workload.ShortID
	Minute   int64 // the first of the quarter, since 1970
	Sketch   *connection.Sketch
}

// A Minute is what one workload used in a minute, or in a part of it.
type Minute struct {
	Workload workload.ShortID
	Minute   int64 // since 1970, UTC
	Usage    usage.Usage
}

// A NodeMinute is what there was to use on a node in a minute, and what its
// interfaces and devices did.
type NodeMinute struct {
	Minute  int64
	Covered time.Duration // for how much of it there are windows: the node's uptime
	CPUs    int
	// Whole + Skew = the sum of all rows of the node, idle and system
	// included, once all of the minute's windows are booked.
	Whole, Skew      usage.Shares
	Violations, Lost int64
	Total            usage.Usage // see usage.Window
}

// A Shift says that windows of a node were stored at another time than their
// stamps say, as its clock was wrong.
type Shift struct {
	Boot string
	At   time.Time     // when it was found, by the server's clock
	By   time.Duration // that was added to the stamps
	From time.Time     // the first window's start, as it was stored
}

// A Result is the outcome of booking one entry.
type Result struct {
	Reply
	Err error // set if the entry could not be booked for a reason of its own
}
