package attribute_test

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// TestDormancyChangesNothing checks that dormant accounts are booked and saved like others.
func TestDormancyChangesNothing(t *testing.T) {
	slept := 0
	rapid.Check(t, func(t *rapid.T) {
		f := &forest{t: t, used: map[string]int64{}, blurry: map[string]bool{}}
		f.use(f.add(nil, 0, false), 1e12)
		for range rapid.IntRange(2, 8).Draw(t, "groups") {
			g := f.add(f.groups[rapid.IntRange(0, len(f.groups)-1).Draw(t, "parent")], 0, false)
			f.use(g, rapid.Int64Range(0, 1e12).Draw(t, "past"))
			g.mem = rapid.Int64Range(0, 1<<20).Draw(t, "mem")
		}
		lively, drowsy := attribute.New("n"), attribute.New("n")
		for _, acc := range []*attribute.Accounts{lively, drowsy} {
			acc.SetInterval(1e9)
			acc.SetMeters(energy.New(energy.Config{Static: [power.DomainLimit]int64{power.DRAM: watt},
				Meters: []power.Meter{{Name: "dram", Level: power.Part, Domain: power.DRAM, Kind: power.Energy, Wrap: 1 << 60}}}))
		}
		var want, got usage.Window
		for range rapid.IntRange(1, 25).Draw(t, "ticks") {
			f.step()
			snap := f.snapshot()
			f.now += rapid.SampledFrom([]int64{-1e6, 0, 0, 0, 1e6, 10e9}).Draw(t, "late")
			snap.At, snap.Mono = f.now, f.now
			if snap.Before = nil; rapid.IntRange(0, 5).Draw(t, "meter fails") > 0 {
				snap.Before = []power.Reading{{At: f.now, Value: f.now / 1000 * 3}}
			}
			lively.DisableDormancy()
			a, b := lively.Tick(snap), drowsy.Tick(snap)
			if a != b {
				t.Fatalf("balance of the tick to %d, without and with dormancy:\n%s", f.now, cmp.Diff(a, b))
			}
			if n := lively.DormantAccounts(); n > 0 {
				t.Fatalf("%d accounts are dormant although dormancy is disabled", n)
			}
			slept += drowsy.DormantAccounts()
			if rapid.Bool().Draw(t, "window ends") {
				lively.CloseWindow(&want)
				drowsy.CloseWindow(&got)
				if !reflect.DeepEqual(want, got) { // cmp.Diff takes much longer
					t.Fatalf("window to %d, without and with dormancy:\n%s", f.now, cmp.Diff(want, got))
				}
			}
			full := rapid.Bool().Draw(t, "full")
			if !bytes.Equal(lively.Checkpoint(nil, full), drowsy.Checkpoint(nil, full)) {
				t.Fatalf("checkpoints at %d, without and with dormancy, differ", f.now)
			}
			if rapid.Bool().Draw(t, "saved") {
				lively.MarkSaved()
				drowsy.MarkSaved()
			}
		}
	})
	if slept < 100 {
		t.Errorf("%d accounts were dormant in a tick, too few for this test", slept)
	}
	t.Logf("%d accounts were dormant in a tick", slept)
}
