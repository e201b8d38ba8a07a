package usage

import "time"

// StartReason says how a window relates to the one before.
type StartReason uint8

const (
	// StartContinued: it begins where the one before ended.
	StartContinued StartReason = iota
	// StartFirst: counting began with it; the past is not in it.
	StartFirst
	// StartResumed: the meter was away and its checkpoint was there. Counters are
	// complete from the end of the window before; what is covered is less.
	StartResumed
	// StartBooted: the machine started anew, and the window begins with it, at 0 of
	// CLOCK_BOOTTIME. Counters are complete from there.
	StartBooted
)

// A Gap is time of which nothing, or not all, is known.
type Gap struct {
	From   time.Time `json:"from"` // wall time
	To     time.Time `json:"to"`
	Reason Reason    `json:"reason"`
	Detail string    `json:"detail,omitempty"` // for people
}

// Reason says why there is a gap.
type Reason uint8

// The reasons. Their words are stored: they are never changed.
const (
	UnknownReason Reason = iota
	// Rebooted: the machine went down, and what was used between the last
	// window and its end died with the kernel's counters.
	Rebooted
	// Unwatched: the meter was away. Counters are complete; what was used by
	// groups that ended meanwhile is in their parents, and their memory is not
	// known.
	Unwatched
	// Overflow: the spool was full, and windows were dropped.
	Overflow
	// Corrupt: records of the spool could not be read.
	Corrupt
	// Forgotten: the server wanted batches that the agent keeps no more.
	Forgotten
	// StateLost: the agent lost its state, and began anew.
	StateLost
	// Refused: the server refused a batch as invalid.
	Refused
	// Killed: the meter of one job was killed, and what the job used from then on
	// is not known.
	Killed
	// MeterFailed: a meter of energy could not be used. Of one in the machine a model
	// stands in; of one outside, what the machine itself saw. Nothing else is missing.
	MeterFailed
)

var reasonNames = [...]string{"unknown", "rebooted", "unwatched", "overflow", "corrupt", "forgotten", "state-lost", "refused", "killed", "meter-failed"}

// String returns the word that people, JSON and SQL see.
func (r Reason) String() string { return reasonNames[min(int(r), len(reasonNames)-1)] }

// ParseReason reads what String wrote; other words are UnknownReason.
func ParseReason(s string) Reason {
	for i, n := range reasonNames {
		if n == s {
			return Reason(i)
		}
	}
	return UnknownReason
}

// MarshalText implements encoding.TextMarshaler.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Reason) UnmarshalText(b []byte) error {
	*r = ParseReason(string(b))
	return nil
}
