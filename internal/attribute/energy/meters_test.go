package energy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"pgregory.net/rapid"
)

const (
	second = int64(1e9)
	watt   = int64(1e6)
	wrap   = 262_143_328_850
)

func counter(name string, l power.Level, d power.Domain) power.Meter {
	return power.Meter{Name: name, Level: l, Domain: d, Kind: power.Energy, From: power.Powercap, Wrap: wrap, Step: 61, Every: 1e6, ErrorPPM: 50_000}
}

func sensor(name string, l power.Level, from power.Origin, class int64) power.Meter {
	return power.Meter{Name: name, Level: l, Domain: power.Rest, Kind: power.Power, From: from, Step: watt, Every: second, ErrorPPM: class}
}

// A rig is a set of meters with their values.
type rig struct {
	*energy.Meters
	at    int64
	value []int64
	fails []string
	log   []string
}

func newRig(c energy.Config) *rig {
	r := &rig{Meters: energy.New(c), value: make([]int64, len(c.Meters)), fails: make([]string, len(c.Meters))}
	r.tick(0, 0)
	return r
}

func (r *rig) read() (rs []power.Reading) {
	for i, v := range r.value {
		rs = append(rs, power.Reading{Meter: i, At: r.at, Value: v, Err: r.fails[i]})
	}
	return rs
}

// tick advances by ns at a load in percent.
func (r *rig) tick(ns, load int64) *energy.Tick {
	r.at += ns
	t := r.Tick(energy.Interval{At: r.at, Elapsed: ns, Load: load * 10_000, CPUs: 4}, r.read(), nil)
	for _, e := range t.Events {
		line := fmt.Sprintf("%s %v from %d", e.Meter, e.Reason, e.From/second)
		if e.To != 0 {
			line += fmt.Sprintf(" to %d", e.To/second)
		}
		r.log = append(r.log, line)
	}
	return t
}

// run advances by seconds in which the first meter, a counter, gains 50 W plus 1 W per percent of a
// varying load. The counter's value moves only if moves is set. It returns what was booked and what
// was used.
func (r *rig) run(seconds int, moves bool) (booked, gained int64) {
	for range seconds {
		load := (r.at / second * 37) % 90
		used := (50 + load) * watt
		gained += used
		if moves {
			r.value[0] += used
		}
		booked += r.tick(second, load).Domain[power.Package].Energy
	}
	return booked, gained
}

func (r *rig) wantLog(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(r.log, want) {
		t.Errorf("events:\n%s\nwant\n%s", strings.Join(r.log, "\n"), strings.Join(want, "\n"))
	}
}

var one = energy.Config{Meters: []power.Meter{counter("rapl/package-0", power.Part, power.Package)}}

// TestOutages breaks a counter in each way and lets it recover.
func TestOutages(t *testing.T) {
	near := func(t *testing.T, what string, got, want, within int64) {
		t.Helper()
		if got < want-within || got > want+within {
			t.Errorf("%s: %d uJ booked, want %d +- %d", what, got, want, within)
		}
	}
	for _, tc := range []struct {
		name   string
		fail   func(r *rig)          // before an outage of 10 seconds
		end    func(r *rig, u int64) // after it; u is what was used meanwhile
		moves  bool                  // the counter continues
		exact  bool                  // everything is booked in the end
		events []string
	}{
		{name: "stall that recovers", fail: func(*rig) {}, end: func(r *rig, u int64) { r.value[0] += u }, exact: true,
			events: []string{"rapl/package-0 stalled from 60", "rapl/package-0 stalled from 60 to 71"}},
		{name: "stall that loses", fail: func(*rig) {}, end: func(*rig, int64) {},
			events: []string{"rapl/package-0 stalled from 60", "rapl/package-0 stalled from 60 to 71"}},
		{name: "gone", fail: func(r *rig) { r.fails[0] = "permission denied" }, end: func(r *rig, u int64) { r.fails[0] = "" }, moves: true, exact: true,
			events: []string{"rapl/package-0 gone from 60", "rapl/package-0 gone from 60 to 71"}},
		{name: "reset", fail: func(r *rig) { r.value[0] = 0 }, end: func(*rig, int64) {}, moves: true,
			events: []string{"rapl/package-0 went back from 60", "rapl/package-0 went back from 60 to 62"}},
		{name: "jump", fail: func(r *rig) { r.value[0] += 200_000 * watt }, end: func(*rig, int64) {}, moves: true,
			events: []string{"rapl/package-0 jumped from 60", "rapl/package-0 jumped from 60 to 62"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(one)
			r.value[0] = 10_000 * watt
			r.tick(0, 0)
			r.run(60, true)
			r.log = nil
			tc.fail(r)
			out, used := r.run(10, tc.moves)
			near(t, "while out", out, used, used/50)
			tc.end(r, used)
			after, more := r.run(20, true)
			within := used / 25
			if tc.exact {
				within = 1
			}
			near(t, "in all", out+after, used+more, within)
			r.wantLog(t, tc.events...)
		})
	}
}

// TestGlitch shows one absurd value: no energy is lost.
func TestGlitch(t *testing.T) {
	for _, value := range []int64{0, -5, wrap - 1, wrap * 5} {
		r := newRig(one)
		r.value[0] = 100_000 * watt
		r.tick(0, 0)
		booked, used := r.run(30, true)
		was := r.value[0]
		r.value[0] = value
		b, u := r.run(1, false)
		booked, used = booked+b, used+u
		r.value[0] = was + u
		b, u = r.run(10, true)
		if booked+b != used+u {
			t.Errorf("after a value of %d: %d uJ booked of %d", value, booked+b, used+u)
		}
	}
}

// TestAmbiguous pauses for so long that the counter may have wrapped twice.
func TestAmbiguous(t *testing.T) {
	r := newRig(one)
	r.run(60, true)
	r.fails[0] = "away"
	out, used := r.run(1000, true)
	r.value[0] %= wrap
	r.fails[0] = ""
	b, u := r.run(10, true)
	if off := out + b - used - u; off > used/50 || off < -used/50 {
		t.Errorf("%d uJ booked of %d", out+b, used+u)
	}
	r.wantLog(t, "rapl/package-0 gone from 60", "rapl/package-0 gone from 60 to 1061", "rapl/package-0 ambiguous from 60", "rapl/package-0 ambiguous from 60 to 1062")
}

// TestModelledSaysSo checks quality and source during an outage.
func TestModelledSaysSo(t *testing.T) {
	r := newRig(one)
	r.run(60, true)
	d := r.tick(0, 50).Domain[power.Package]
	r.value[0] += 100 * watt
	d = r.tick(second, 50).Domain[power.Package]
	if d.Quality != usage.Measured || r.Source(power.Package) != "rapl/package-0" {
		t.Errorf("%v, by %q", d.Quality, r.Source(power.Package))
	}
	r.fails[0] = "gone"
	e := r.tick(second, 50).Domain[power.Package]
	if e.Quality != usage.Modelled || e.Error < d.Error || r.Source(power.Package) != "what was learned of rapl/package-0" {
		t.Errorf("%v, +- %d uJ (measured: %d), by %q", e.Quality, e.Error, d.Error, r.Source(power.Package))
	}
}

// TestIdle checks that what an idle machine draws is idle energy, and everything if no CPU is used.
func TestIdle(t *testing.T) {
	r := newRig(one)
	r.run(60, true)
	r.value[0] += 90 * watt
	d := r.tick(second, 40).Domain[power.Package]
	if d.Idle < 49*watt || d.Idle > 51*watt || d.ActiveError > 4*watt || d.IdleError > 4*watt {
		t.Errorf("idle %d, +- %d, active +- %d", d.Idle, d.IdleError, d.ActiveError)
	}
	r.value[0] += 52 * watt
	if d := r.tick(second, 0).Domain[power.Package]; d.Idle != d.Energy {
		t.Errorf("without load %d of %d is idle", d.Idle, d.Energy)
	}
	r = newRig(one)
	r.value[0] += 9 * watt
	if d := r.tick(second/20, 40).Domain[power.Package]; d.Idle != d.Energy/2 || d.ActiveError < d.Active() {
		t.Errorf("untrained: %d +- %d of %d is idle", d.Idle, d.IdleError, d.Energy)
	}
	given := one
	given.Static[power.Package] = 30 * watt
	r = newRig(given)
	r.value[0] += 90 * watt
	if d := r.tick(second, 40).Domain[power.Package]; d.Idle != 30*watt {
		t.Errorf("with 30 W configured, %d uJ are idle", d.Idle)
	}
}

// TestSensor checks that sampled power is integrated by the trapezoid.
func TestSensor(t *testing.T) {
	r := newRig(energy.Config{Meters: []power.Meter{sensor("hwmon/power1", power.Box, power.Hwmon, 20_000)}})
	r.value[0] = 100 * watt
	r.tick(second, 10)
	r.value[0] = 140 * watt
	d := r.tick(2*second, 50).Domain[power.Rest]
	if d.Energy != 2*120*watt || d.Error < 2*20*watt || d.Quality != usage.Measured {
		t.Errorf("%d uJ +- %d, %v", d.Energy, d.Error, d.Quality)
	}
	r.value[0] = 900_000 * watt
	if d := r.tick(second, 50).Domain[power.Rest]; d.Quality != usage.Modelled || d.Energy > 200*watt {
		t.Errorf("after 900 kW: %d uJ, %v", d.Energy, d.Quality)
	}
	for i := range int64(120) {
		load := i * 7 % 100
		r.value[0] = (100 + load) * watt
		r.tick(second, load)
	}
	r.log = nil
	r.value[0] = 100 * watt
	r.tick(second, 0)
	for range 20 {
		d = r.tick(second, 90).Domain[power.Rest]
	}
	if d.Quality != usage.Modelled || d.Energy < 180*watt || d.Energy > 200*watt {
		t.Errorf("stalled sensor: %d uJ, %v", d.Energy, d.Quality)
	}
	if len(r.log) != 1 || !strings.Contains(r.log[0], "stalled") {
		t.Errorf("events %v", r.log)
	}
}

// TestLargeBox checks that 10 kW of eight accelerators are accepted.
func TestLargeBox(t *testing.T) {
	r := newRig(energy.Config{Meters: []power.Meter{sensor("dcmi", power.Box, power.IPMI, 20_000)}})
	r.value[0] = 10_000 * watt
	r.tick(second, 10)
	if d := r.tick(second, 50).Domain[power.Rest]; d.Energy != 10_000*watt || len(r.log) > 0 {
		t.Errorf("%d uJ booked, events %v", d.Energy, r.log)
	}
}

// TestSkew checks that the midpoint of the readings before and after a snapshot counts.
func TestSkew(t *testing.T) {
	m := energy.New(one)
	read := func(at, v int64) []power.Reading { return []power.Reading{{At: at, Value: v}} }
	m.Tick(energy.Interval{At: second}, read(second, 1000), read(second+1000, 3000))
	d := m.Tick(energy.Interval{At: 2 * second, Elapsed: second, Load: 1e5, CPUs: 1}, read(2*second, watt), read(2*second+1000, watt+8000)).Domain[power.Package]
	if d.Energy != watt+4000-2000 || d.Error < 5000 {
		t.Errorf("%d uJ +- %d", d.Energy, d.Error)
	}
	// The counter wraps in between.
	d = m.Tick(energy.Interval{At: 3 * second, Elapsed: second, Load: 1e5, CPUs: 1}, read(3*second, 2*watt), read(3*second+1000, 5)).Domain[power.Package]
	if d.Energy != 2*watt-watt-4000 {
		t.Errorf("over a wrap %d uJ", d.Energy)
	}
	// The counter jumps in between: the message has the shown value, not the midpoint.
	told := m.Tick(energy.Interval{At: 4 * second, Elapsed: second, Load: 1e5, CPUs: 1}, read(4*second, 3*watt), read(4*second+1000, 200_000*watt)).Events
	if len(told) != 1 || told[0].Reason != energy.Jumped || !strings.Contains(told[0].Detail, "reading of 200000000000 uJ") {
		t.Errorf("events of the jump: %+v", told)
	}
}

// TestWithoutMeter checks that the curve is used until a meter works.
func TestWithoutMeter(t *testing.T) {
	c := one
	c.Curve = power.Curve{Domain: power.Rest, Points: []power.Point{{Load: 0, Power: 40 * watt}, {Load: 1e6, Power: 140 * watt}}, ErrorPPM: 400_000, Source: "a table"}
	r := &rig{Meters: energy.New(c), value: make([]int64, 1), fails: []string{"permission denied"}}
	r.tick(0, 0)
	tick := r.tick(second, 50)
	d := tick.Domain[power.Rest]
	if d.Energy != 90*watt || d.Idle != 40*watt || d.Error != 36*watt || d.ActiveError != 20*watt || d.Quality != usage.Modelled || r.Source(power.Rest) != "a table" {
		t.Errorf("%+v, by %q", d, r.Source(power.Rest))
	}
	if tick.Domain[power.Package].Quality != usage.Absent || r.Source(power.Package) != "" {
		t.Errorf("package: %+v", tick.Domain[power.Package])
	}
	r.fails[0] = ""
	r.tick(second, 50)
	r.value[0] += 70 * watt
	tick = r.tick(second, 50)
	if tick.Domain[power.Rest].Quality != usage.Absent || tick.Domain[power.Package].Energy != 70*watt {
		t.Errorf("with a meter: %+v", tick.Domain)
	}
	r.wantLog(t, "rapl/package-0 gone from 0", "rapl/package-0 gone from 0 to 2")
	c = energy.Config{Curve: power.Curve{Domain: power.Package, Points: []power.Point{{Power: 9 * watt}}}}
	if d := newRig(c).tick(second, 50).Domain[power.Package]; d.Energy != 9*watt || d.Idle != 9*watt {
		t.Errorf("by a curve of one point: %+v", d)
	}
	if d := newRig(energy.Config{}).tick(second, 50).Domain[power.Rest]; d.Quality != usage.Absent {
		t.Errorf("without meter and curve: %+v", d)
	}
}

// TestAssignDomains nests box > board > parts.
func TestAssignDomains(t *testing.T) {
	c := energy.Config{Meters: []power.Meter{
		counter("rapl/package-0", power.Part, power.Package), counter("rapl/package-1", power.Part, power.Package),
		counter("rapl/dram-0", power.Part, power.DRAM), counter("rapl/psys", power.Board, power.Rest),
		sensor("hwmon/psu-0", power.Box, power.Hwmon, 20_000), sensor("hwmon/psu-1", power.Box, power.Hwmon, 20_000), sensor("dcmi", power.Box, power.IPMI, 50_000)}}
	r := &rig{Meters: energy.New(c), value: []int64{0, 0, 0, 0, 60 * watt, 70 * watt, 500 * watt}, fails: make([]string, 7)}
	r.tick(0, 0)
	step := func(watts ...int64) [power.DomainLimit]energy.DomainEnergy {
		for i, w := range watts {
			if c.Meters[i].Kind == power.Energy {
				r.value[i] += w * watt
			} else {
				r.value[i] = w * watt
			}
		}
		return r.tick(second, 30).Domain
	}
	want := func(what string, d [power.DomainLimit]energy.DomainEnergy, watts ...int64) {
		t.Helper()
		for i, w := range watts {
			if got := d[i+1].Energy; got != w*watt {
				t.Errorf("%s: %v %d uJ, want %d W", what, power.Domain(i+1), got, w)
			}
		}
	}
	step(40, 30, 10, 100, 60, 70, 500)
	want("two supplies add up", step(40, 30, 10, 100, 60, 70, 500), 70, 10, 0, 50)
	if got := r.Source(power.Rest); got != "rapl/psys + hwmon/psu-0 + hwmon/psu-1 + dcmi less rapl/package-0 + rapl/package-1 + rapl/dram-0" {
		t.Errorf("rest is %q", got)
	}
	if got, ok := r.Ratio(power.Board); !ok || got != 800_000 {
		t.Errorf("80 of 100 W are %d ppm of the board", got)
	}
	if got, ok := r.Ratio(power.Box); !ok || got < 700_000 || got > 800_000 {
		t.Errorf("100 of 130 W are %d ppm of the box", got)
	}
	want("parts show more", step(100, 50, 10, 100, 60, 70, 500), 150, 10, 0, 0)
	want("and what was too much is taken back", step(40, 30, 10, 100, 60, 70, 500), 70, 10, 0, 20)
	want("once", step(40, 30, 10, 100, 60, 70, 500), 70, 10, 0, 50)
	r.fails[4], r.fails[5] = "gone", "gone"
	want("the best that can be read counts", step(40, 30, 10, 100, 60, 70, 500), 70, 10, 0, 420)
}

// TestConserved runs a machine of two packages, memory and a board through outages: package 0 and
// memory become unreadable, package 1 stalls. Bookings are never negative, and in the end each
// counter's energy is in its domain.
func TestConserved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := energy.Config{Meters: []power.Meter{
			counter("rapl/package-0", power.Part, power.Package), counter("rapl/package-1", power.Part, power.Package),
			counter("rapl/dram-0", power.Part, power.DRAM), counter("rapl/psys", power.Board, power.Rest)}}
		r := newRig(c)
		gained := make([]int64, 4)
		var start []int64
		for i := range r.value {
			r.value[i] = rapid.Int64Range(0, wrap-1).Draw(t, "start")
		}
		start = slices.Clone(r.value)
		r.Meters = energy.New(c)
		r.tick(0, 0)
		booked := [power.DomainLimit]int64{}
		step := func(ns int64, trouble bool) {
			load := rapid.Int64Range(0, 100).Draw(t, "load")
			for i, base := range []int64{20, 30, 5, 90} {
				uW := (base + base*load/100) * watt
				gained[i] += uW / 1000 * (ns / 1000) / 1000
				r.fails[i] = ""
				stalled := false
				if trouble && rapid.IntRange(0, 4).Draw(t, "trouble") == 0 {
					if i%2 == 0 {
						r.fails[i] = "gone"
					} else {
						stalled = true
					}
				}
				if !stalled {
					r.value[i] = (start[i] + gained[i]) % wrap
				}
			}
			weights := []int64{load * ns, r.at % ns, 0, 7}
			tick := r.tick(ns, load)
			for d, a := range tick.Domain {
				if a.Energy < 0 || a.Idle < 0 || a.Idle > a.Energy || a.Error < 0 || a.ActiveError < 0 || a.IdleError < 0 {
					t.Fatalf("%v: %+v", power.Domain(d), a)
				}
				booked[d] += a.Energy
				shares, errors := make([]int64, len(weights)), make([]int64, len(weights))
				if left := a.Split(energy.ByCPU, weights, shares, errors); left+sum(shares)+a.Idle != a.Energy {
					t.Fatalf("%d + %v + %d is not %d", left, shares, a.Idle, a.Energy)
				}
				if slices.Min(errors) < 0 {
					t.Fatalf("errors %v", errors)
				}
			}
		}
		for range 10 {
			step(second, false)
		}
		outages := rapid.Bool().Draw(t, "outages")
		for range rapid.IntRange(0, 20).Draw(t, "ticks") {
			step(rapid.Int64Range(200, 3000).Draw(t, "ms")*1e6, outages)
		}
		for range 15 {
			step(second, false)
		}
		if got, want := booked[power.Package], gained[0]+gained[1]; got != want {
			t.Errorf("package: %d uJ booked of %d", got, want)
		}
		if got := booked[power.DRAM]; got != gained[2] {
			t.Errorf("dram: %d uJ booked of %d", got, gained[2])
		}
		if all := sum(booked[:]); !outages && all != gained[3] {
			t.Errorf("all: %d uJ booked of %d that the board shows", all, gained[3])
		}
	})
}

// TestSlowOuterMeter has an outer counter that moves every few ticks: in the others its parts show
// more than it does, which counts for the energy that it shows next.
func TestSlowOuterMeter(t *testing.T) {
	const every = 5
	r := newRig(energy.Config{Meters: []power.Meter{counter("rapl/package-0", power.Part, power.Package), counter("board", power.Board, power.Rest)}})
	var booked, shown int64
	for i := range 20 * every {
		r.value[0] += 60 * watt
		if i%every == every-1 {
			r.value[1] += every * 100 * watt
			shown += every * 100 * watt
		}
		tick := r.tick(second, 50)
		booked += tick.Domain[power.Package].Energy + tick.Domain[power.Rest].Energy
	}
	if first := every * 60 * watt; booked < shown || booked > shown+first {
		t.Errorf("booked %d J, the outer meter shows %d", booked/watt, shown/watt)
	}
}
