package attribute

import (
	"slices"
	"time"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/usage"
)

// A meterFailure is a time in which a model replaced an energy meter.
type meterFailure struct {
	meter    string
	reason   energy.Reason
	from, to int64 // in the open window, ns of CLOCK_BOOTTIME
	ongoing  bool  // it goes on
}

// recordMeterEvents records events of energy meters. A meter that fails repeatedly for one reason
// has one gap per window.
func (acc *Accounts) recordMeterEvents(events []energy.Event) {
	for _, e := range events {
		i := slices.IndexFunc(acc.meterFailures, func(t meterFailure) bool { return t.meter == e.Meter && t.reason == e.Reason })
		if i < 0 {
			i = len(acc.meterFailures)
			acc.meterFailures = append(acc.meterFailures, meterFailure{meter: e.Meter, reason: e.Reason, from: max(e.From, acc.start)})
		}
		acc.meterFailures[i].to, acc.meterFailures[i].ongoing = e.To, e.To == 0
	}
}

// addMeterGaps adds the times without energy meters to the window's gaps.
func (acc *Accounts) addMeterGaps() {
	wall := func(at int64) time.Time { return time.Unix(0, at+acc.offset).UTC() }
	for i := range acc.meterFailures {
		t := &acc.meterFailures[i]
		if t.ongoing {
			t.to = acc.at
		}
		if t.to > t.from {
			acc.gaps = append(acc.gaps, usage.Gap{From: wall(t.from), To: wall(t.to), Reason: usage.MeterFailed,
				Detail: "meter " + t.meter + ": " + t.reason.String()})
		}
		t.from = acc.at
	}
	acc.meterFailures = slices.DeleteFunc(acc.meterFailures, func(t meterFailure) bool { return !t.ongoing })
}
