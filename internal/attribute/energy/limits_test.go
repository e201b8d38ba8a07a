package energy_test

import (
	"slices"
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"pgregory.net/rapid"
)

// TestImpossiblePower feeds impossible readings and ticks: a century long, without time or with
// negative time, without CPUs, with more than full load. No booking may be negative or exceed the
// total, and divided energy must sum to it.
func TestImpossiblePower(t *testing.T) {
	number := rapid.Custom(func(t *rapid.T) int64 {
		v := rapid.Int64Range(0, 1<<62).Draw(t, "v") >> rapid.IntRange(0, 62).Draw(t, "bits")
		if rapid.IntRange(0, 9).Draw(t, "sign") == 0 {
			return -v
		}
		return v
	})
	amount := rapid.Custom(func(t *rapid.T) int64 { return max(0, number.Draw(t, "amount")) })
	rapid.Check(t, func(t *rapid.T) {
		c := energy.Config{Meters: []power.Meter{
			counter("rapl/package-0", power.Part, power.Package), counter("rapl/package-1", power.Part, power.Package),
			counter("rapl/dram-0", power.Part, power.DRAM), sensor("psys", power.Board, power.Hwmon, 20_000), sensor("dcmi", power.Box, power.IPMI, 1e6)}}
		for i := range c.Meters {
			m := &c.Meters[i]
			m.Wrap, m.Step, m.Every, m.ErrorPPM = amount.Draw(t, "wrap"), amount.Draw(t, "step"), amount.Draw(t, "every"), amount.Draw(t, "class")
			m.Most = amount.Draw(t, "most")
		}
		if rapid.Bool().Draw(t, "curve") {
			c.Curve = power.Curve{Domain: power.Rest, ErrorPPM: amount.Draw(t, "error"), IdleErrorPPM: amount.Draw(t, "idle error"),
				Points: []power.Point{{Load: 0, Power: amount.Draw(t, "idle")}, {Load: 1e6, Power: amount.Draw(t, "full")}}}
		}
		c.Static[power.Package] = amount.Draw(t, "static")
		m := energy.New(c)
		value := make([]int64, len(c.Meters))
		for range rapid.IntRange(1, 12).Draw(t, "ticks") {
			iv := energy.Interval{At: number.Draw(t, "at"), Elapsed: number.Draw(t, "elapsed"), Suspended: number.Draw(t, "asleep"),
				Load: number.Draw(t, "load"), CPUs: int(number.Draw(t, "cpus"))}
			if rapid.Bool().Draw(t, "usual") {
				iv.Elapsed, iv.Suspended, iv.Load, iv.CPUs = second, 0, iv.Load%1e6, 4
			}
			var rs []power.Reading
			for i := range value {
				r := power.Reading{Meter: i, At: iv.At}
				switch rapid.IntRange(0, 4).Draw(t, "reading") {
				case 0:
					value[i] = number.Draw(t, "value")
				case 1:
					r.Err = "no number"
				case 2:
					continue
				default:
					value[i] += 50 * watt
				}
				r.Value = value[i]
				rs = append(rs, r)
			}
			weights := rapid.SliceOfN(amount, 0, 5).Draw(t, "weights")
			parts, errors := make([]int64, len(weights)), make([]int64, len(weights))
			for d, a := range m.Tick(iv, rs, rs).Domain {
				if a.Energy < 0 || a.Idle < 0 || a.Idle > a.Energy || min(a.Error, a.IdleError, a.ActiveError) < 0 {
					t.Fatalf("%v: %+v", power.Domain(d), a)
				}
				for _, by := range []energy.Rule{energy.ByCPU, energy.ByTraffic, energy.ByResident} {
					left := a.Split(by, weights, parts, errors)
					if left+sum(parts)+a.Idle != a.Energy || len(parts) > 0 && min(slices.Min(parts), slices.Min(errors)) < 0 {
						t.Fatalf("%v by rule %d among %v: %v +- %v, %d left", a, by, weights, parts, errors, left)
					}
				}
			}
		}
	})
}
