// Package walltime assigns windows to minutes of wall time: [Judge] decides which clock to
// believe, and [Cut] divides windows at minute edges.
//
// A window is stamped in CLOCK_BOOTTIME, which cannot be set, and carries the offset of the wall
// clock. Wall clocks can be wrong, by years if a machine has no battery for its clock. An amount
// in the wrong minute makes a ledger wrong, so a server compares each sender's clock with its own
// before it books.
package walltime

import (
	"fmt"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

const (
	// Tolerance is how far a clock may be off and is still believed, and how
	// far into the future anything may be stored.
	Tolerance = 2 * time.Minute
	// MaxAge is the largest age at which the clock of an earlier boot is believed.
	MaxAge = 400 * 24 * time.Hour
	// OffsetJitter is the largest change of a sender's offset that is ignored:
	// each measurement of the offset includes the transit time of a request.
	OffsetJitter = time.Second

	year = 365 * 24 * time.Hour
	// Linux takes no wall time to be set from which on, in thirty years of
	// running, it would leave an int64, and none before 1970
	// (timespec64_valid_settod): so no clock shows more than this, though its year
	// may be a wrong one. Sums and differences of the two fit into an int64.
	maxBoottime = int64(30 * year)
	maxOffset   = int64(260 * year)
	maxBootID   = 128 // bytes of a boot id
)

// Check reports what of the windows' stamps cannot be: a window that ends before
// it starts, stamps out of all bounds, windows of one boot that overlap or are
// out of order. The error wraps fault.ErrInvalid.
func Check(ws []usage.Window) error {
	ends := make(map[string]int64, 1)
	for i := range ws {
		w := &ws[i]
		switch {
		case w.Boot == "" || len(w.Boot) > maxBootID:
			return invalid(i, "has a boot id of %d bytes", len(w.Boot))
		case w.Start < 0 || w.End < w.Start || w.End > maxBoottime:
			return invalid(i, "runs from %d to %d ns", w.Start, w.End)
		case w.Offset < -maxBoottime || w.Offset > maxOffset:
			return invalid(i, "has an offset of %d ns", w.Offset)
		case w.Start < ends[w.Boot]:
			return invalid(i, "begins before the end of the previous window of its boot")
		}
		ends[w.Boot] = w.End
	}
	return nil
}

func invalid(window int, format string, a ...any) error {
	return fmt.Errorf("window %d %s: %w", window, fmt.Sprintf(format, a...), fault.ErrInvalid)
}

// Start is when w began in wall time, by added to its stamps.
func Start(w *usage.Window, by time.Duration) time.Time { return At(w, by, w.Start) }

// At is an instant of w, in ns of CLOCK_BOOTTIME, in wall time, by added to its stamps.
func At(w *usage.Window, by time.Duration, instant int64) time.Time {
	return time.Unix(0, instant+w.Offset+int64(by)).UTC()
}

// End is when w ended in wall time, by added to its stamps.
func End(w *usage.Window, by time.Duration) time.Time { return At(w, by, w.End) }
