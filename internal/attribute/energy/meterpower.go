package energy

import "mete.dev/mete/internal/model/power"

// A MeterPower is what one meter shows by itself for the time between two of its
// readings. Nothing is judged: the accounts do that.
type MeterPower struct {
	Power    int64  // uW, on average
	Error    int64  // by how much that may be off, in uW
	Modelled bool   // a host that gave it says that no meter showed all of it
	Reason   string // there is no power; "" where there is
}

// PowerBetween returns what m shows between two of its readings. In the error are the
// meter's class, its step, and how old its values are; of a host's share what the
// host says.
func PowerBetween(m *power.Meter, before, after power.Reading) MeterPower {
	switch {
	case after.Err != "":
		return MeterPower{Reason: after.Err}
	case m.Kind == power.Power:
		return MeterPower{Power: after.Value, Error: MulDiv(abs(after.Value), m.ErrorPPM, power.PPM) + m.Step}
	case before.Err != "":
		return MeterPower{Reason: before.Err}
	}
	if a, b := before.Share, after.Share; a != nil && b != nil {
		return powerOfShares(a, b)
	}
	used, span := after.Value-before.Value, after.At-before.At
	if used < 0 && m.Wrap > 0 {
		used += m.Wrap
	}
	if why := gainProblem(used, span); why != "" {
		return MeterPower{Reason: why}
	}
	p := MeterPower{Power: meanPower(used, span)}
	p.Error = MulDiv(p.Power, m.ErrorPPM, power.PPM) + meanPower(2*m.Step, span) + MulDiv(p.Power, min(m.Every, span), span)
	return p
}

// powerOfShares is what a host gave from one share to another, by the host's clock.
func powerOfShares(a, b *power.Share) MeterPower {
	used, span := b.Energy()-a.Energy(), b.At-a.At
	if a.Epoch != b.Epoch {
		return MeterPower{Reason: "the host began to count anew"}
	}
	if why := gainProblem(used, span); why != "" {
		return MeterPower{Reason: why}
	}
	return MeterPower{Power: meanPower(used, span), Error: meanPower(max(0, b.Error-a.Error), span), Modelled: b.Modelled > a.Modelled}
}

// gainProblem says why so much in so many ns is no power, or "".
func gainProblem(used, span int64) string {
	switch {
	case used < 0:
		return "it went back"
	case span <= 0:
		return "nothing new"
	}
	return ""
}

func abs(v int64) int64 { return max(v, -v) }
