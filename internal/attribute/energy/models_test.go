package energy_test

import (
	"errors"
	"strings"
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// TestSavedModels checks that a saved model substitutes for its meter after a restart that does not
// find the meter.
func TestSavedModels(t *testing.T) {
	r := newRig(one)
	r.run(60, true)
	kept := r.EncodeModels("EPYC x 64")
	if len(kept) > 3000 {
		t.Errorf("%d bytes for one meter", len(kept))
	}
	for _, c := range []energy.Config{one, {}} {
		r := &rig{Meters: energy.New(c), value: make([]int64, len(c.Meters)), fails: make([]string, len(c.Meters))}
		for i := range r.fails {
			r.fails[i] = "module not loaded"
		}
		if err := r.RestoreModels("EPYC x 64", kept); err != nil {
			t.Fatal(err)
		}
		r.tick(0, 0)
		d := r.tick(second, 40).Domain[power.Package]
		if off := d.Energy - 90*watt; off > watt || off < -watt || d.Quality != usage.Modelled || d.Idle < 49*watt || d.Idle > 51*watt {
			t.Errorf("with %d meters: %+v", len(c.Meters), d)
		}
		if again := r.EncodeModels("EPYC x 64"); string(again) != string(kept) {
			t.Errorf("encoded again it is\n%s\nnot\n%s", again, kept)
		}
	}
	if err := energy.New(one).RestoreModels("Xeon x 8", kept); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("models of another machine are accepted: %v", err)
	}
	for _, bad := range []string{"", "{}", `{"version":1,"meters":3}`, `{"version":1} {}`, `{"version":1,"meters":[{}]}`, `{"version":1,"domains":[[[25,1,1,1,1]]]}`,
		`{"version":1,"domains":[[[24,601,1,1,1]]]}`, `{"version":1,"domains":[[[24,1,1000001,1,1]]]}`, `{"version":1,"domains":[[[24,0,1,1,1]]]}`, `{"version":1,"domains":[[[0,1,1,-1,1]]]}`} {
		if err := energy.New(one).RestoreModels("", []byte(bad)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := energy.New(one).RestoreModels("", []byte(`{"version":1,"domains":[[[0,1,0,0,0],[24,600,1000000,1,1]]]}`)); err != nil {
		t.Errorf("the smallest and the largest values: %v", err)
	}
}

// TestMissingMeterForgotten checks how long the model of a meter that is not configured any more
// substitutes for it: a day of ticks, over restarts, and not at all beside a new meter of its kind.
func TestMissingMeterForgotten(t *testing.T) {
	meter := func(name string) power.Meter { return counter(name, power.Part, power.GPU) }
	learn := func(names ...string) []byte {
		var c energy.Config
		for _, name := range names {
			c.Meters = append(c.Meters, meter(name))
		}
		r := newRig(c)
		for range 60 {
			for i := range r.value {
				r.value[i] += 90 * watt
			}
			r.tick(second, 50)
		}
		return r.EncodeModels("")
	}
	restore := func(saved []byte, meters ...power.Meter) *rig {
		t.Helper()
		r := &rig{Meters: energy.New(energy.Config{Meters: meters}), value: make([]int64, len(meters)), fails: make([]string, len(meters))}
		if err := r.RestoreModels("", saved); err != nil {
			t.Fatal(err)
		}
		r.tick(0, 0)
		return r
	}
	for name, c := range map[string]struct {
		saved  []byte
		meters []power.Meter
		want   int64 // W, of meters that show 10 W each
	}{
		"replaced":                      {learn("gpu/A"), []power.Meter{meter("gpu/B")}, 10},
		"all replaced":                  {learn("gpu/A", "gpu/B"), []power.Meter{meter("gpu/C"), meter("gpu/D")}, 20},
		"one of two is missing":         {learn("gpu/A", "gpu/B"), []power.Meter{meter("gpu/B")}, 100},
		"beside one of another domain":  {learn("gpu/A"), []power.Meter{counter("rapl/package-0", power.Part, power.Package)}, 100},
		"beside one of another kind":    {learn("gpu/A"), []power.Meter{{Name: "b", Level: power.Part, Domain: power.GPU, Kind: power.Energy, From: power.Model}}, 100},
		"beside one of another level":   {learn("gpu/A"), []power.Meter{counter("board", power.Board, power.GPU)}, 90},
		"configured again with another": {learn("gpu/A"), []power.Meter{meter("gpu/A"), meter("gpu/B")}, 20},
	} {
		r := restore(c.saved, c.meters...)
		for i := range r.value {
			r.value[i] += 10 * watt
		}
		got, tick := int64(0), r.tick(second, 50)
		for _, d := range tick.Domain {
			got += d.Energy
		}
		if off := got - c.want*watt; off < -watt || off > watt {
			t.Errorf("%s: %d uJ booked, want %d J", name, got, c.want)
		}
	}
	saved := learn("gpu/A")
	for _, minutes := range []int64{0, 60, 1380} { // 24 hours
		r := restore(saved)
		for range minutes {
			if d := r.tick(60*second, 50).Domain[power.GPU]; d.Energy < 5300*watt || d.Energy > 5500*watt {
				t.Fatalf("a missing meter of 90 W is booked with %d uJ in a minute", d.Energy)
			}
		}
		saved = r.EncodeModels("")
	}
	r := restore(saved)
	if d := r.tick(30*24*3600*second, 50).Domain[power.GPU]; d.Energy != 0 {
		t.Errorf("%d uJ after a day without the meter", d.Energy)
	}
	r.wantLog(t, "gpu/A gone from 0", "gpu/A gone from 0 to 2592000")
	if again := string(r.EncodeModels("")); strings.Contains(again, "gpu/A") {
		t.Errorf("it is saved again: %s", again)
	}
	r = restore(learn("gpu/A"))
	if d := r.tick(30*24*3600*second, 50).Domain[power.GPU]; d.Energy == 0 {
		t.Error("the time in which the agent was away counts as without the meter")
	}
	for _, bad := range []string{"-1", "1441"} {
		b := strings.Replace(string(learn("gpu/A")), `"highest_uw"`, `"absent_minutes":`+bad+`,"highest_uw"`, 1)
		if err := energy.New(one).RestoreModels("", []byte(b)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("absent for %s minutes: %v", bad, err)
		}
	}
}

// TestResume checks that energy counted during a pause is booked after it.
func TestResume(t *testing.T) {
	r := newRig(one)
	booked, used := r.run(30, true)
	again := &rig{Meters: energy.New(one), at: r.at, value: r.value, fails: r.fails}
	again.Resume(append(r.Positions(), energy.Position{Meter: "unknown"}, energy.Position{Meter: "rapl/package-0", At: -1}))
	again.value[0] += 700 * watt
	d := again.tick(10*second, 20).Domain[power.Package]
	if d.Energy != 700*watt || d.Quality != usage.Measured {
		t.Errorf("after the restart: %+v", d)
	}
	if booked != used {
		t.Errorf("before it: %d uJ of %d", booked, used)
	}
}

// TestResumeInOutage checks that a restart in an outage changes nothing: a counter that stood still shows
// all energy from then on, and one that went on shows that of the outage too.
func TestResumeInOutage(t *testing.T) {
	for _, went := range []bool{false, true} {
		var booked [2]int64
		var used int64
		for i, restart := range []bool{false, true} {
			r := newRig(one)
			r.run(60, true)
			r.fails[0] = "permission denied"
			booked[i], used = r.run(10, went)
			if restart {
				again := &rig{Meters: energy.New(one), at: r.at, value: r.value, fails: r.fails}
				if err := again.RestoreModels("", r.EncodeModels("")); err != nil {
					t.Fatal(err)
				}
				again.Resume(r.Positions())
				r = again
			}
			r.fails[0] = ""
			more, gained := r.run(20, true)
			booked[i], used = booked[i]+more, used+gained
		}
		if off := booked[1] - booked[0]; off > watt || off < -watt || booked[0] < used-20*watt || booked[0] > used+20*watt {
			t.Errorf("went on %v: booked %d uJ without a restart and %d with, used %d", went, booked[0], booked[1], used)
		}
	}
}

func FuzzRestore(f *testing.F) {
	r := newRig(one)
	r.run(20, true)
	f.Add(r.EncodeModels(""))
	f.Add([]byte(`{"version":1,"machine":"","meters":[],"domains":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := energy.New(one)
		if m.RestoreModels("", b) != nil {
			return
		}
		for i := range int64(3) {
			tick := m.Tick(energy.Interval{At: i * second, Elapsed: i * second, Load: 300_000, CPUs: 2}, nil, nil)
			for _, a := range tick.Domain {
				if a.Energy < 0 || a.Idle < 0 || a.Idle > a.Energy || a.ActiveError < 0 || a.IdleError < 0 || a.Error < 0 {
					t.Errorf("%+v", a)
				}
			}
		}
	})
}
