package energy

import "mete.dev/mete/internal/model/power"

// A MeterPower is the power of one meter between two readings, without validation.
type MeterPower struct {
	Power    int64  // uW, on average
	Error    int64  // uW
	Modelled bool   // the host reports that a part was modelled
	Reason   string // why there is no power, or ""
}

// PowerBetween returns the power of m between two readings. The error includes the meter's class,
// its step and the age of its values, or the error of a host's share.
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

// powerOfShares returns the power between two shares by the host's clock.
func powerOfShares(a, b *power.Share) MeterPower {
	used, span := b.Energy()-a.Energy(), b.At-a.At
	if a.Epoch != b.Epoch {
		return MeterPower{Reason: "the host restarted its count"}
	}
	if why := gainProblem(used, span); why != "" {
		return MeterPower{Reason: why}
	}
	return MeterPower{Power: meanPower(used, span), Error: meanPower(max(0, b.Error-a.Error), span), Modelled: b.Modelled > a.Modelled}
}

// gainProblem explains why a gain in ns gives no power, or returns "".
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
