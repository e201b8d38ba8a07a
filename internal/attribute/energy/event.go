package energy

import (
	"fmt"
	"time"

	"mete.dev/mete/internal/model/power"
)

// A Reason says why a meter's reading is not used.
type Reason uint8

const (
	// OK: the reading is used.
	OK Reason = iota
	// Unreadable: the meter cannot be read.
	Unreadable
	// Stalled: the value does not change although energy is used.
	Stalled
	// WentBack: the value is less than before without a wrap.
	WentBack
	// Jumped: the value exceeds what the machine can draw.
	Jumped
	// Ambiguous: the meter was not read for so long that it may have wrapped more than once.
	Ambiguous
)

var reasonNames = [...]string{"fine", "gone", "stalled", "went back", "jumped", "ambiguous"}

func (r Reason) String() string { return reasonNames[r] }

// Hint returns advice for the operator.
func (r Reason) Hint() string {
	switch r {
	case Unreadable:
		return "run mete power to see which permission is missing; the meter is used again once it is readable"
	case Stalled:
		return "the meter is used again once it changes; if it does not, its driver or firmware hangs: reload the driver or reboot"
	case WentBack:
		return "the counter restarted and is used from there on; if this happens often, something resets it"
	case Jumped:
		return "the meter is used again once its value is plausible; if it is not, its driver or firmware is wrong"
	case Ambiguous:
		return "the counter may have wrapped more than once and is used from here on; a shorter tick prevents this"
	}
	return ""
}

// describe explains what is wrong with a reading.
func (ms *meterState) describe(r reading, now int64) string {
	unit := "uJ"
	if ms.Kind == power.Power {
		unit = "uW"
	}
	switch ms.reason {
	case Unreadable:
		return r.problem
	case Stalled:
		return fmt.Sprintf("stuck at %d %s for %v", ms.value, unit, time.Duration(max(0, r.at-ms.changedAt)).Round(time.Second/10))
	case Ambiguous:
		return fmt.Sprintf("not read for %v", time.Duration(max(0, now-ms.at)).Round(time.Second))
	}
	if !ms.seen {
		return fmt.Sprintf("reading of %d %s", r.shown, unit)
	}
	return fmt.Sprintf("reading of %d %s after %d", r.shown, unit, ms.value)
}

// An Event is the failure or recovery of a meter.
type Event struct {
	Meter  string
	Reason Reason
	Detail string // why it cannot be read, or what it showed
	From   int64  // ns of CLOCK_BOOTTIME: the last reading used
	To     int64  // the first reading used again; 0 if there is none yet
}
