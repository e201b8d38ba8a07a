package origin

import (
	"time"

	"mete.dev/mete/internal/host"
	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/report"
)

// A series makes windows of what a job's counters show, such that their sum is
// what the last reading shows. It is a pure value.
type series struct {
	boot    string
	began   int64 // ns of CLOCK_BOOTTIME
	closed  int64 // when the last window did, or began
	booked  [meter.Limit]int64
	covered time.Duration // booked
}

// The first window of a job closes after a second, so that little is lost of a
// short one whose mete run is killed, and each later one when the job's age has
// doubled, until they are as long as the windows of an agent.
const firstWindow = time.Second

// due reports whether a window is to be closed now, where they last so long.
func (s *series) due(at host.Clocks, window time.Duration) bool {
	age := time.Duration(s.closed - s.began)
	return time.Duration(at.Boottime-s.closed) >= min(window, max(firstWindow, age))
}

// figure is a cumulative figure of a job.
type figure struct {
	res     meter.Resource
	amount  int64
	quality meter.Quality
}

// counters are those that a reading may show of a job; CPU goes before its parts.
var counters = []meter.Resource{
	meter.CPU, meter.CPUUser, meter.CPUSystem, meter.CPUThrottled, meter.DiskRead, meter.DiskWritten,
	meter.NetworkRx, meter.NetworkTx, meter.Processes, meter.OOMKills,
}

// figures are what a job used since it began.
func figures(m *report.Measured) (list []figure, covered time.Duration) {
	quality := func(of meter.Set, r meter.Resource) meter.Quality {
		if of.Has(r) {
			return meter.Apportioned
		}
		return meter.Measured
	}
	for _, r := range counters {
		if m.Final.Has.Has(r) {
			list = append(list, figure{r, m.Final.Value[r], quality(m.Final.Apportioned, r)})
		}
	}
	for _, l := range []struct {
		level    *report.Level
		integral meter.Resource
		peak     meter.Resource // 0 is none
	}{
		{&m.Memory, meter.Memory, meter.MemoryPeak}, {&m.Anon, meter.MemoryAnon, 0}, {&m.File, meter.MemoryFile, 0},
		{&m.PIDs, meter.PIDs, meter.PIDsPeak},
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
	for _, r := range []meter.Resource{meter.MemoryPeak, meter.PIDsPeak} {
		if m.Final.Has.Has(r) {
			list = append(list, figure{r, m.Final.Value[r], quality(m.Final.Apportioned, r)})
		}
	}
	return list, covered
}

// close closes a window: its row is what was used since the one before.
//
// What is booked stays booked. A figure that falls, as one may that is divided by
// a rule, is booked no more until it is above what it was, and user and system
// time share what CPU time was booked.
func (s *series) close(at host.Clocks, m *report.Measured) meter.Window {
	w := meter.Window{Boot: s.boot, Start: s.closed, End: max(at.Boottime, s.closed+1), Offset: at.Realtime - at.Boottime}
	list, covered := figures(m)
	var row meter.Row
	var unshared int64 // CPU time that is booked, but as neither user's nor system's
	for _, f := range list {
		inc := max(0, f.amount-s.booked[f.res])
		switch f.res {
		case meter.CPUUser:
			unshared = s.booked[meter.CPU] - s.booked[meter.CPUUser] - s.booked[meter.CPUSystem]
			inc = min(inc, unshared)
			unshared -= inc
		case meter.CPUSystem:
			inc = unshared
		}
		if f.res.Detail().Kind == meter.Peak {
			inc = f.amount
		} else {
			s.booked[f.res] += inc
			row.Total[f.res] = s.booked[f.res]
		}
		row.Usage.Put(f.res, inc, f.quality)
	}
	row.Usage.Covered = min(max(0, covered-s.covered), w.Length())
	s.covered = max(s.covered, covered)
	// There is no whole that is known: the machine is not what is measured.
	for i, r := range meter.Wholes {
		if v, ok := row.Usage.Get(r); ok {
			w.Balance.Workloads[i], w.Balance.Skew[i] = v, v
		}
	}
	w.Rows = []meter.Row{row}
	s.closed = w.End
	return w
}

// settle makes the report say what was booked.
func (s *series) settle(m *report.Measured) {
	for _, r := range counters {
		if m.Final.Has.Has(r) {
			m.Final.Put(r, s.booked[r])
		}
	}
}
