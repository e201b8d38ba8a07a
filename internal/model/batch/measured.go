package batch

import (
	"fmt"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Measured is a time of one kernel that windows measured, or that is booked.
type Measured struct {
	Boot string
	usage.Extent
	// Workload is the standalone job whose windows they are. It is 0 where windows have rows of several
	// workloads, as those of an agent.
	Workload workload.ShortID
	// From and To are ns of CLOCK_BOOTTIME.
	From, To int64
	// Resumed reports that its first window also covers time in which its meter was away.
	Resumed bool
	// Offset is what is added to its stamps for wall time, ns.
	Offset int64
}

// Overlaps reports whether some time is in both: of the same kernel and scope.
func (m Measured) Overlaps(o Measured) bool {
	return m.Boot == o.Boot && m.Scope == o.Scope && m.From < o.To && o.From < m.To
}

// MeasuredBy lists what windows measured, in their order. Adjacent windows are one. Windows
// without a scope or without a length are left out, since nothing can overlap with them. by is added to
// the stamps of each.
func MeasuredBy(ws []usage.Window, by []time.Duration) (list []Measured) {
	for i := range ws {
		w := &ws[i]
		if w.Scope == "" || w.End <= w.Start {
			continue
		}
		resumed := w.StartReason.CoversPause()
		m := Measured{Boot: w.Boot, Extent: w.Extent, From: w.Start, To: w.End, Resumed: resumed, Offset: w.Offset + int64(by[i])}
		if len(w.Rows) == 1 {
			m.Workload = w.Rows[0].ShortID
		}
		if n := len(list); n > 0 && !resumed && list[n-1].Boot == m.Boot && list[n-1].Extent == m.Extent && list[n-1].Workload == m.Workload && list[n-1].To == m.From {
			list[n-1].To, list[n-1].Offset = m.To, m.Offset
			continue
		}
		list = append(list, m)
	}
	return list
}

// RivalTimeout is the time after its last batch for which a node that measures a kernel
// keeps others from booking the same time.
const RivalTimeout = 5 * time.Minute

// A RivalError refuses a batch for now: another node measures the same kernel.
// It is fault.ErrUnavailable, with the time after which the sender tries again.
func RivalError(node string) error {
	return &fault.RetryError{
		Err:   fault.WithHint(fmt.Errorf("node %s measures this machine already: %w", node, fault.ErrUnavailable), "stop one of the two agents; this one takes over when the other has been silent for five minutes"),
		After: time.Minute,
	}
}
