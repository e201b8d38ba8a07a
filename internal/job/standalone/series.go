package standalone

import (
	"time"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/usage"
)

// A series cuts a job's cumulative figures into windows whose sum is the last reading. It does no
// I/O.
type series struct {
	boot    string
	extent  usage.Extent
	began   int64 // ns of CLOCK_BOOTTIME
	closed  int64 // end of the last window, or the beginning
	booked  [usage.Limit]int64
	covered time.Duration // booked
}

// The first window closes after a second, so that little is lost of a short job whose mete run is
// killed, and each later one when the job's age has doubled, up to the length of an agent's
// windows.
const firstWindow = time.Second

// isDue reports whether a window is to be closed now; window is the maximum length.
func (s *series) isDue(at hostfs.Clocks, window time.Duration) bool {
	age := time.Duration(s.closed - s.began)
	return time.Duration(at.Boottime-s.closed) >= min(window, max(firstWindow, age))
}

// figure is a cumulative figure of a job.
type figure struct {
	res     usage.Resource
	amount  int64
	quality usage.Quality
}

// counters are the counters of a job; CPU precedes its parts.
var counters = []usage.Resource{
	usage.CPU, usage.CPUUser, usage.CPUSystem, usage.CPUThrottled, usage.DiskRead, usage.DiskWritten,
	usage.NetworkRx, usage.NetworkTx, usage.Processes, usage.OOMKills,
}

// figures returns what a job used since it began.
func figures(m *report.Measurement) (list []figure, covered time.Duration) {
	quality := func(of usage.Set, r usage.Resource) usage.Quality {
		if of.Has(r) {
			return usage.Apportioned
		}
		return usage.Measured
	}
	for _, r := range counters {
		if m.Final.Has.Has(r) {
			list = append(list, figure{r, m.Final.Value[r], quality(m.Final.Apportioned, r)})
		}
	}
	for _, l := range []struct {
		level    *report.Gauge
		integral usage.Resource
		peak     usage.Resource // 0 is none
	}{
		{&m.Memory, usage.Memory, usage.MemoryPeak}, {&m.Anon, usage.MemoryAnon, 0}, {&m.File, usage.MemoryFile, 0},
		{&m.PIDs, usage.PIDs, usage.PIDsPeak},
	} {
		if !l.level.Seen() {
			continue
		}
		sum, span := l.level.Integral()
		covered = max(covered, span)
		list = append(list, figure{l.integral, sum, quality(m.Apportioned, l.integral)})
		if v, _ := l.level.Peak(); l.peak != 0 && !m.Final.Has.Has(l.peak) && v > 0 {
			list = append(list, figure{l.peak, v, quality(m.Apportioned, l.integral)})
		}
	}
	for _, r := range []usage.Resource{usage.MemoryPeak, usage.PIDsPeak} {
		if m.Final.Has.Has(r) {
			list = append(list, figure{r, m.Final.Value[r], quality(m.Final.Apportioned, r)})
		}
	}
	return list, covered
}

// close closes a window: its row is what was used since the previous one.
//
// Booked amounts stay booked. An apportioned figure may fall; it is booked again once it exceeds
// its former value. User and system time divide the booked CPU time.
func (s *series) close(at hostfs.Clocks, m *report.Measurement) usage.Window {
	w := usage.Window{Boot: s.boot, Extent: s.extent, Start: s.closed, End: max(at.Boottime, s.closed+1), Offset: at.Realtime - at.Boottime}
	list, covered := figures(m)
	var row usage.Row
	var unshared int64 // booked CPU time that is neither user nor system time yet
	for _, f := range list {
		inc := max(0, f.amount-s.booked[f.res])
		switch f.res {
		case usage.CPUUser:
			unshared = s.booked[usage.CPU] - s.booked[usage.CPUUser] - s.booked[usage.CPUSystem]
			inc = min(inc, unshared)
			unshared -= inc
		case usage.CPUSystem:
			inc = unshared
		}
		if f.res.Detail().Kind == usage.Peak {
			inc = f.amount
		} else {
			s.booked[f.res] += inc
			row.Total[f.res] = s.booked[f.res]
			row.Has |= usage.SetOf(f.res)
		}
		row.Usage.Put(f.res, inc, f.quality)
	}
	row.Usage.Covered = min(max(0, covered-s.covered), w.Length())
	s.covered = max(s.covered, covered)
	// The whole is unknown: the machine is not measured.
	for i, r := range usage.Wholes {
		if v, ok := row.Usage.Get(r); ok {
			w.Balance.Workloads[i], w.Balance.Skew[i] = v, v
		}
	}
	w.Rows = []usage.Row{row}
	s.closed = w.End
	return w
}

// correctReport sets the report's counters to what was booked.
func (s *series) correctReport(m *report.Measurement) {
	for _, r := range counters {
		if m.Final.Has.Has(r) {
			m.Final.Put(r, s.booked[r])
		}
	}
}
