package energy

import "mete.dev/mete/internal/model/power"

// A Presence is what one meter shows by itself for the time between two of its
// readings. Nothing is judged: the books do that.
type Presence struct {
	Power    int64  // uW, on average
	Error    int64  // by how much that may be off, in uW
	Modelled bool   // a host that gave it says that no meter showed all of it
	Why      string // there is no power; "" where there is
}

// Present returns what m shows between two of its readings. In the error are the
// meter's class, its step, and how old its values are; of a host's share what the
// host says.
func Present(m *power.Meter, before, after power.Reading) Presence {
	switch {
	case after.Err != "":
		return Presence{Why: after.Err}
	case m.Kind == power.Power:
		return Presence{Power: after.Value, Error: share(abs(after.Value), m.ErrorPPM, power.PPM) + m.Step}
	case before.Err != "":
		return Presence{Why: before.Err}
	}
	if a, b := before.Share, after.Share; a != nil && b != nil {
		return given(a, b)
	}
	used, span := after.Value-before.Value, after.At-before.At
	if used < 0 && m.Wrap > 0 {
		used += m.Wrap
	}
	if why := unshown(used, span); why != "" {
		return Presence{Why: why}
	}
	p := Presence{Power: mean(used, span)}
	p.Error = share(p.Power, m.ErrorPPM, power.PPM) + mean(2*m.Step, span) + share(p.Power, min(m.Every, span), span)
	return p
}

// given is what a host gave from one share to another, by the host's clock.
func given(a, b *power.Share) Presence {
	used, span := b.Energy()-a.Energy(), b.At-a.At
	if a.Epoch != b.Epoch {
		return Presence{Why: "the host began to count anew"}
	}
	if why := unshown(used, span); why != "" {
		return Presence{Why: why}
	}
	return Presence{Power: mean(used, span), Error: mean(max(0, b.Error-a.Error), span), Modelled: b.Modelled > a.Modelled}
}

// unshown says why so much in so many ns is no power, or "".
func unshown(used, span int64) string {
	switch {
	case used < 0:
		return "it went back"
	case span <= 0:
		return "nothing new"
	}
	return ""
}

func abs(v int64) int64 { return max(v, -v) }
