package energy

import (
	"fmt"
	"time"

	"mete.dev/mete/internal/model/power"
)

// A Reason says why what a meter shows is not used.
type Reason uint8

const (
	// OK: it is used.
	OK Reason = iota
	// Unreadable: it cannot be read.
	Unreadable
	// Stalled: it does not move although energy is used.
	Stalled
	// WentBack: it shows less than before, and that is no wrap.
	WentBack
	// Jumped: it shows more than the machine can possibly draw.
	Jumped
	// Ambiguous: it was not read for so long that it may have wrapped more
	// than once.
	Ambiguous
)

var reasonNames = [...]string{"fine", "gone", "stalled", "went back", "jumped", "ambiguous"}

// String returns the word that people see.
func (r Reason) String() string { return reasonNames[r] }

// Hint says what a person can do about it.
func (r Reason) Hint() string {
	switch r {
	case Unreadable:
		return "mete power says what is refused and what to grant; it is read again as soon as it can be"
	case Stalled:
		return "it is used again once it moves; if it does not, its driver or firmware hangs: reload that, or restart the machine"
	case WentBack:
		return "it began anew, and is used from there on; if that comes often, something resets it"
	case Jumped:
		return "it is used again once it shows what a machine can draw; if it does not, its driver or firmware is wrong"
	case Ambiguous:
		return "it may have wrapped more than once meanwhile, and is used from here on; a shorter tick prevents that"
	}
	return ""
}

// describe says what is wrong with a reading.
func (ms *meterState) describe(r reading, now int64) string {
	unit := "uJ"
	if ms.Kind == power.Power {
		unit = "uW"
	}
	switch ms.reason {
	case Unreadable:
		return r.problem
	case Stalled:
		return fmt.Sprintf("it stands at %d %s for %v", ms.value, unit, time.Duration(max(0, r.at-ms.changedAt)).Round(time.Second/10))
	case Ambiguous:
		return fmt.Sprintf("it was not read for %v", time.Duration(max(0, now-ms.at)).Round(time.Second))
	}
	if !ms.seen {
		return fmt.Sprintf("it shows %d %s", r.shown, unit)
	}
	return fmt.Sprintf("it shows %d %s after %d", r.shown, unit, ms.value)
}

// An Event is a meter that is no longer used, or used again.
type Event struct {
	Meter  string
	Reason Reason
	Detail string // why it cannot be read, or what it showed instead
	From   int64  // ns of CLOCK_BOOTTIME: the last reading that was used
	To     int64  // the first one that is used again; 0 where there is none yet
}
