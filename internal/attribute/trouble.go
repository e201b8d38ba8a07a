package attribute

import (
	"slices"
	"time"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/usage"
)

// A trouble is an energy meter that a model stood in for.
type trouble struct {
	meter    string
	reason   energy.Reason
	from, to int64 // in the open window, ns of CLOCK_BOOTTIME
	on       bool  // it goes on
}

// befall takes what happened to energy meters in a tick. Of a meter that fails for
// one reason again and again a window has one gap.
func (b *Books) befall(events []energy.Event) {
	for _, e := range events {
		i := slices.IndexFunc(b.troubles, func(t trouble) bool { return t.meter == e.Meter && t.reason == e.Reason })
		if i < 0 {
			i = len(b.troubles)
			b.troubles = append(b.troubles, trouble{meter: e.Meter, reason: e.Reason, from: max(e.From, b.start)})
		}
		b.troubles[i].to, b.troubles[i].on = e.To, e.To == 0
	}
}

// failed adds to the window's gaps the time in which energy meters were not used.
func (b *Books) failed() {
	wall := func(at int64) time.Time { return time.Unix(0, at+b.offset).UTC() }
	for i := range b.troubles {
		t := &b.troubles[i]
		if t.on {
			t.to = b.at
		}
		if t.to > t.from {
			b.gaps = append(b.gaps, usage.Gap{From: wall(t.from), To: wall(t.to), Reason: usage.MeterFailed,
				Detail: "meter " + t.meter + ": " + t.reason.String()})
		}
		t.from = b.at
	}
	b.troubles = slices.DeleteFunc(b.troubles, func(t trouble) bool { return !t.on })
}
