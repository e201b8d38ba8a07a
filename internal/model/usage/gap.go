package usage

import "time"

// StartReason is the relation of a window to the previous one.
type StartReason uint8

const (
	// StartContinued: it begins at the end of the previous one.
	StartContinued StartReason = iota
	// StartFirst: counting began with it; it excludes earlier use.
	StartFirst
	// StartResumed: measuring was interrupted, and its checkpoint remained. Counters are complete from the
	// end of the previous window; the covered time is shorter.
	StartResumed
	// StartBooted: the machine rebooted, and the window begins at 0 of CLOCK_BOOTTIME. Counters are
	// complete from there.
	StartBooted
)

// CoversPause reports whether the window also covers time in which measuring was interrupted.
func (r StartReason) CoversPause() bool { return r == StartResumed || r == StartBooted }

// A Gap is time for which data is missing or incomplete.
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
	// Rebooted: the machine went down. The use between the last window and the machine's end was
	// lost with the kernel's counters.
	Rebooted
	// Unwatched: the agent did not run. Counters are complete. The use of groups that ended meanwhile
	// is in their parents; their memory is not known.
	Unwatched
	// Overflow: the spool was full, and windows were dropped.
	Overflow
	// Corrupt: records of the spool could not be read.
	Corrupt
	// Forgotten: the server expected batches that the agent had deleted.
	Forgotten
	// StateLost: the agent lost its state, and started from an empty one.
	StateLost
	// Refused: the server refused a batch as invalid.
	Refused
	// Killed: mete run was killed, which measured one job. The job's use from then on is not known.
	Killed
	// MeterFailed: an energy meter could not be used. A model replaces a meter in the machine; the
	// machine's own figures replace a meter outside it. Nothing else is missing.
	MeterFailed
	// Overlapped: a window that an agent closed after a pause also covered time that is booked,
	// so the server removed it. The use in the rest of its time is not known.
	Overlapped
)

var reasonNames = [...]string{"unknown", "rebooted", "unwatched", "overflow", "corrupt", "forgotten", "state-lost", "refused", "killed", "meter-failed", "overlapped"}

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
