package energy_test

import (
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// TestMissing reads one of two packages: its energy must not be taken for the total.
func TestMissing(t *testing.T) {
	c := energy.Config{Meters: []power.Meter{counter("rapl/package-0", power.Part, power.Package), counter("rapl/package-1", power.Part, power.Package)}}
	r := &rig{Meters: energy.New(c), value: make([]int64, 2), fails: []string{"", "permission denied"}}
	r.tick(0, 0)
	step := func() energy.DomainEnergy {
		r.value[0] += 60 * watt
		r.value[1] += 40 * watt
		return r.tick(second, 50).Domain[power.Package]
	}
	for range 20 {
		step()
	}
	d := step()
	if d.Energy != 120*watt || d.Quality != usage.Modelled || d.Error < 60*watt || d.Error > 61*watt {
		t.Errorf("one package shows 60 J, the other nothing: %d uJ +- %d, %v", d.Energy, d.Error, d.Quality)
	}
	if got := r.Source(power.Package); got != "rapl/package-0, and as much for rapl/package-1" {
		t.Errorf("source %q", got)
	}
	// Counting begins at its first value.
	r.fails[1] = ""
	step()
	if d := step(); d.Energy != 100*watt || d.Quality != usage.Measured || d.Error > 20*watt {
		t.Errorf("both readable: %d uJ +- %d, %v", d.Energy, d.Error, d.Quality)
	}
	// From here on its model is trained.
	r.fails[1] = "permission denied"
	if d := step(); d.Quality != usage.Modelled || d.Energy < 99*watt || d.Energy > 101*watt {
		t.Errorf("one unreadable: %d uJ +- %d, %v", d.Energy, d.Error, d.Quality)
	}
}

// TestMissingSupply reads one of two power supplies.
func TestMissingSupply(t *testing.T) {
	r := &rig{Meters: energy.New(energy.Config{Meters: []power.Meter{
		sensor("hwmon/psu-0", power.Box, power.Hwmon, 20_000), sensor("hwmon/psu-1", power.Box, power.Hwmon, 20_000)}}),
		value: []int64{100 * watt, 100 * watt}, fails: []string{"", "no number"}}
	r.tick(0, 0)
	r.tick(second, 50)
	if d := r.tick(second, 50).Domain[power.Rest]; d.Energy != 100*watt || d.Quality != usage.Modelled || d.Error < 100*watt {
		t.Errorf("%d uJ +- %d, %v; want 100 J with an error of 100 J", d.Energy, d.Error, d.Quality)
	}
	r.fails[1] = ""
	r.tick(second, 50)
	if d := r.tick(second, 50).Domain[power.Rest]; d.Energy != 200*watt || d.Quality != usage.Measured {
		t.Errorf("both readable: %d uJ, %v", d.Energy, d.Quality)
	}
}

// TestSuspended suspends the machine for hours within one tick. Energy that no meter counted is not
// substituted; energy that a meter kept counting is booked, and models ignore the tick.
func TestSuspended(t *testing.T) {
	const night, nap = 8 * 3600 * second, 300 * second
	sleep := func(r *rig, ns, load int64) *energy.Tick {
		r.at += ns + second
		return r.Tick(energy.Interval{At: r.at, Elapsed: ns + second, Suspended: ns, Load: load * 10_000, CPUs: 4}, r.read(), nil)
	}
	t.Run("counter that restarted", func(t *testing.T) {
		r := newRig(one)
		r.value[0] = 50_000 * watt
		r.tick(0, 0)
		r.run(60, true)
		r.value[0] = 0
		if d := sleep(r, night, 40).Domain[power.Package]; d.Quality != usage.Modelled || d.Energy < 89*watt || d.Energy > 91*watt || d.Idle > 51*watt {
			t.Errorf("%+v, want a second of 90 W", d)
		}
	})
	t.Run("counter that restarted in a nap", func(t *testing.T) {
		for _, late := range []bool{false, true} { // by a tick, in which it cannot be read
			r := newRig(one)
			r.value[0] = 60_000 * watt
			r.tick(0, 0)
			r.run(60, true)
			r.value[0] = 0
			if late {
				r.fails[0] = "not yet"
				sleep(r, nap, 40)
				r.fails[0], r.value[0] = "", 90*watt
				if d := r.tick(second, 40).Domain[power.Package]; d.Quality != usage.Modelled || d.Energy < 89*watt || d.Energy > 91*watt {
					t.Errorf("in the tick after it %+v, want a second of 90 W", d)
				}
			} else if d := sleep(r, nap, 40).Domain[power.Package]; d.Quality != usage.Modelled || d.Energy < 89*watt || d.Energy > 91*watt {
				t.Errorf("%+v, want a second of 90 W", d)
			}
			r.value[0] += 90 * watt
			if d := r.tick(second, 40).Domain[power.Package]; d.Quality != usage.Measured || d.Energy != 90*watt {
				t.Errorf("after it %+v, want a second of 90 W", d)
			}
		}
	})
	t.Run("counter that wrapped before a nap", func(t *testing.T) {
		r := newRig(one)
		_, used := newRig(one).run(60, true)
		r.value[0] = wrap - used - 50*watt
		r.tick(0, 0)
		r.run(60, true)
		r.value[0] = 40 * watt
		if d := sleep(r, nap, 40).Domain[power.Package]; d.Quality != usage.Measured || d.Energy != 90*watt {
			t.Errorf("%+v, want 90 J", d)
		}
	})
	t.Run("counter that went on", func(t *testing.T) {
		r := newRig(one)
		r.run(60, true)
		r.value[0] += 1500 * watt
		d := sleep(r, nap, 40).Domain[power.Package]
		if d.Quality != usage.Measured || d.Energy != 1500*watt || d.Active() > 100*watt || d.IdleError > d.Energy {
			t.Errorf("%+v, want everything, as idle", d)
		}
		r.value[0] += 90 * watt
		if d := r.tick(second, 40).Domain[power.Package]; d.Idle < 49*watt || d.Idle > 51*watt {
			t.Errorf("after it %d uJ of 90 W are idle, want 50 J", d.Idle)
		}
	})
	t.Run("sensor", func(t *testing.T) {
		r := newRig(energy.Config{Meters: []power.Meter{sensor("dcmi", power.Box, power.IPMI, 20_000)}})
		r.value[0] = 90 * watt
		r.Meters = energy.New(energy.Config{Meters: []power.Meter{sensor("dcmi", power.Box, power.IPMI, 20_000)}})
		r.tick(0, 0)
		r.tick(second, 40)
		if d := sleep(r, night, 40).Domain[power.Rest]; d.Energy != 90*watt {
			t.Errorf("%+v, want a second of 90 W", d)
		}
	})
	t.Run("curve", func(t *testing.T) {
		r := newRig(energy.Config{Curve: power.Curve{Domain: power.Rest, Points: []power.Point{{Load: 0, Power: 40 * watt}, {Load: 1e6, Power: 140 * watt}}}})
		if d := sleep(r, night, 50).Domain[power.Rest]; d.Energy != 90*watt || d.Idle != 40*watt {
			t.Errorf("%+v, want a second of 90 W, 40 of them idle", d)
		}
	})
}
