package energy_test

import (
	"errors"
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
