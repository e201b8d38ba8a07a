package energy

// A Reason says why what a meter shows is not used.
type Reason uint8

const (
	// Fine: it is used.
	Fine Reason = iota
	// Gone: it cannot be read.
	Gone
	// Stalled: it does not move although energy is used.
	Stalled
	// Back: it shows less than before, and that is no wrap.
	Back
	// Jumped: it shows more than the machine can possibly draw.
	Jumped
	// Ambiguous: it was not read for so long that it may have wrapped more
	// than once.
	Ambiguous
)

var reasonNames = [...]string{"fine", "gone", "stalled", "went back", "jumped", "ambiguous"}

// String returns the word that people see.
func (r Reason) String() string { return reasonNames[r] }

// An Event is a meter that is no longer used, or used again.
type Event struct {
	Meter  string
	Reason Reason
	Detail string // why it cannot be read, where it is Gone
	From   int64  // ns of CLOCK_BOOTTIME: the last reading that was used
	To     int64  // the first one that is used again; 0 where there is none yet
}
