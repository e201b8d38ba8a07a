package attribute_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestFailedMeter checks that the time without a meter is a gap in each window that it overlaps,
// and that gaps of consecutive windows are adjacent, so that a ledger joins them.
func TestFailedMeter(t *testing.T) {
	t.Parallel()
	accounts := attribute.New("node")
	accounts.SetMeters(energy.New(energy.Config{Meters: []power.Meter{{Name: "rapl/package-0", Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Powercap}}}))
	const offset = 1_000_000 * second
	tick := func(sec int64, why string) {
		root := &usage.Group{Slot: 0, Parent: usage.NoSlot, Life: workload.Life{ID: 1}}
		root.Put(usage.CPU, sec*second)
		r := power.Reading{At: sec * second, Value: sec * 50_000_000, Err: why}
		accounts.Tick(&usage.Snapshot{Boot: "b", At: sec * second, Mono: sec * second, Offset: offset, Node: usage.Node{CPUs: 2, MemTotal: 1 << 30, MemFree: 1 << 29},
			Groups: []*usage.Group{root}, Before: []power.Reading{r}, After: []power.Reading{r}})
	}
	at := func(sec int64) time.Time { return time.Unix(0, sec*second+offset).UTC() }
	gap := func(from, to int64) usage.Gap {
		return usage.Gap{From: at(from), To: at(to), Reason: usage.MeterFailed, Detail: "meter rapl/package-0: gone"}
	}
	const gone = "permission denied"
	sec := int64(0)
	for i, c := range []struct {
		ticks []string
		want  []usage.Gap
	}{
		{[]string{"", "", "", ""}, nil},
		{[]string{"", gone, gone}, []usage.Gap{gap(5, 7)}},
		{[]string{gone, gone}, []usage.Gap{gap(7, 9)}},
		{nil, nil}, // a window without a tick
		{[]string{gone, "", ""}, []usage.Gap{gap(9, 11)}},
		{[]string{"", ""}, nil},
		{[]string{gone, "", gone, "", ""}, []usage.Gap{gap(14, 18)}}, // one per window
		{[]string{""}, nil},
	} {
		for _, why := range c.ticks {
			sec++
			tick(sec, why)
		}
		var w usage.Window
		accounts.CloseWindow(&w)
		if d := cmp.Diff(c.want, w.Gaps); d != "" {
			t.Errorf("window %d, to %d s (-want +got):\n%s", i, sec, d)
		}
	}
}
