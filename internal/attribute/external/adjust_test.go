package external_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// machine is random rows of a machine, idle last where it is there.
func machine(t *rapid.T) (rows []external.Row) {
	amount := rapid.Int64Range(0, 1<<40)
	quality := map[usage.Resource]usage.Quality{}
	for _, r := range usage.Energies {
		quality[r] = rapid.SampledFrom([]usage.Quality{usage.Absent, usage.Apportioned, usage.Modelled}).Draw(t, r.String())
	}
	kinds := rapid.SliceOfN(rapid.SampledFrom([]workload.Kind{workload.Service, workload.VM, workload.Path}), 0, 5).Draw(t, "kinds")
	kinds = append(kinds, []workload.Kind{workload.System, workload.Idle}[:rapid.IntRange(0, 2).Draw(t, "own")]...)
	for i, k := range kinds {
		r := external.Row{Key: int64(i + 1), Kind: k}
		if rapid.Bool().Draw(t, "cpu") {
			r.Usage.Put(usage.CPU, amount.Draw(t, "ns"), usage.Measured)
		}
		sum := int64(0)
		for _, res := range usage.Energies {
			if quality[res] != usage.Absent {
				v := amount.Draw(t, "uJ")
				r.Usage.Put(res, v, quality[res])
				sum += v
			}
		}
		if r.Usage.Present != 0 {
			r.Usage.Put(usage.EnergyError, rapid.Int64Range(0, sum).Draw(t, "error"), usage.Apportioned)
		}
		switch k {
		case workload.Idle:
			r.Usage.Put(usage.EnergyIdle, sum, usage.Apportioned)
		case workload.VM:
			r.Usage.Put(usage.EnergyIdle, rapid.Int64Range(0, sum).Draw(t, "idle"), usage.Apportioned)
		}
		rows = append(rows, r)
	}
	return rows
}

func energyOf(rows []external.Row) (sum int64) {
	for i := range rows {
		for _, r := range usage.Energies {
			v, _ := rows[i].Usage.Get(r)
			sum += v
		}
	}
	return sum
}

// TestAdjustSums checks that the rows sum to the meter's energy, or to the measured energy if that
// is more. Measured energy stays, nothing else changes, and no error is lost.
func TestAdjustSums(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := machine(t)
		before := slices.Clone(rows)
		e := rapid.Int64Range(0, 1<<44).Draw(t, "meter")
		off := rapid.Int64Range(0, e).Draw(t, "error")
		covered := time.Duration(rapid.Int64Range(-1, int64(2*time.Minute)).Draw(t, "covered"))
		rows, out := external.Adjust(rows, covered, e, off)
		if out.Inside != energyOf(before) {
			t.Fatalf("%d uJ inside, want %d", out.Inside, energyOf(before))
		}
		if sum := energyOf(rows); sum != max(e, out.Measured) {
			t.Fatalf("rows sum to %d uJ, meter %d, measured %d", sum, e, out.Measured)
		}
		var changed int64
		for d := power.Package; d < power.DomainLimit; d++ {
			changed += out.Changed[d]
		}
		if changed != energyOf(rows)-energyOf(before) {
			t.Fatalf("the energy changed by %d uJ, and Changed sums to %d", energyOf(rows)-energyOf(before), changed)
		}
		var errs, measured int64
		for i := range rows {
			u := &rows[i].Usage
			all := energyOf(rows[i : i+1])
			idle, has := u.Get(usage.EnergyIdle)
			if idle > all || rows[i].Kind == workload.Idle && (!has || idle != all) {
				t.Fatalf("row %d: %d of %d uJ are idle", i, idle, all)
			}
			v, _ := u.Get(usage.EnergyError)
			errs += v
			u.Present.Each(func(r usage.Resource) {
				if u.Amount[r] < 0 || u.Quality.Get(r) == usage.Absent || r >= usage.EnergyPackage && u.Quality.Get(r) == usage.Modelled {
					t.Fatalf("row %d: %s is %d, %s", i, r, u.Amount[r], u.Quality.Get(r))
				}
			})
			if i >= len(before) {
				continue
			}
			old := &before[i].Usage
			for _, r := range usage.Energies {
				v, ok := old.Get(r)
				if ok && old.Quality.Get(r) != usage.Modelled {
					measured += v
					if now, _ := u.Get(r); now < v || r != usage.EnergyRest && now != v {
						t.Fatalf("row %d: %s was measured to be %d and is %d", i, r, v, now)
					}
				}
			}
			if a, b := old.Amount[usage.CPU], u.Amount[usage.CPU]; a != b {
				t.Fatalf("row %d: CPU time was %d and is %d", i, a, b)
			}
			if !old.Present.Has(usage.CPU) && rows[i].Kind != workload.Idle && old.Quality.Get(usage.EnergyRest) != usage.Apportioned && u.Present.Has(usage.EnergyRest) && u.Amount[usage.EnergyRest] == 0 {
				t.Fatalf("row %d: of unknown CPU time, and its energy of the rest is 0, not absent", i)
			}
		}
		if measured != out.Measured {
			t.Fatalf("%d uJ were measured, and Measured is %d", measured, out.Measured)
		}
		if e > out.Measured && errs < off {
			t.Fatalf("rows are off by %d uJ together, and the meter by %d", errs, off)
		}
	})
}

// row is a row of some CPU time, energy of one domain and its error.
func row(kind workload.Kind, cpu int64, r usage.Resource, e, off int64, q usage.Quality) external.Row {
	v := external.Row{Key: 1, Kind: kind}
	v.Usage.Put(usage.CPU, cpu, usage.Measured)
	v.Usage.Put(r, e, q)
	v.Usage.Put(usage.EnergyError, off, q)
	if kind == workload.Idle {
		v.Usage.Put(usage.EnergyIdle, e, q)
	}
	return v
}

func TestAdjust(t *testing.T) {
	vm := row(workload.VM, 10e9, usage.EnergyPackage, 200, 10, usage.Apportioned)
	vm.Usage.Put(usage.EnergyIdle, 100, usage.Apportioned)
	const pkg, rest = usage.EnergyPackage, usage.EnergyRest
	type rows = []external.Row
	for name, c := range map[string]struct {
		rows    rows
		covered time.Duration
		e, off  int64
		rest    []int64 // of each row after
		errors  []int64
	}{
		// Half was idle inside, so half of what is above is.
		"above what was measured": {rows{row(workload.Service, 30e9, pkg, 300, 15, usage.Apportioned), row(workload.System, 10e9, pkg, 100, 5, usage.Apportioned), row(workload.Idle, 80e9, pkg, 400, 20, usage.Apportioned)},
			time.Minute, 1200, 12, []int64{150, 50, 200}, []int64{15 + 19, 5 + 7, 20 + 26}},
		"less than was measured": {rows{row(workload.Service, 30e9, pkg, 300, 15, usage.Apportioned), row(workload.Idle, 80e9, pkg, 400, 20, usage.Apportioned)},
			time.Minute, 600, 6, []int64{0, 0}, []int64{15, 20}},
		// The model was off by half; half of the energy it took for idle, so the border may be off by an eighth.
		"a model": {rows{row(workload.Service, 30e9, rest, 400, 200, usage.Modelled), row(workload.Idle, 80e9, rest, 400, 200, usage.Modelled)},
			time.Minute, 400, 8, []int64{200, 200}, []int64{4 + 50, 4 + 50}},
		"half a minute": {rows{row(workload.Service, 30e9, pkg, 300, 0, usage.Apportioned), row(workload.Idle, 80e9, pkg, 100, 0, usage.Apportioned)},
			30 * time.Second, 1200, 12, []int64{150, 50 + 600}, []int64{2, 10}},
		"no row":       {nil, 0, 1000, 10, []int64{1000}, []int64{10}},
		"no time":      {rows{row(workload.Service, 30e9, pkg, 1, 0, usage.Apportioned), row(workload.Idle, 80e9, pkg, 0, 0, usage.Apportioned)}, -1, 1e12, 0, []int64{0, 1e12 - 1}, []int64{0, 0}},
		"idle first":   {rows{row(workload.Idle, 80e9, pkg, 300, 0, usage.Apportioned), row(workload.Service, 30e9, pkg, 100, 0, usage.Apportioned)}, time.Minute, 800, 0, []int64{300, 100}, []int64{0, 0}},
		"no CPU time":  {rows{row(workload.Service, 0, pkg, 300, 0, usage.Apportioned)}, time.Minute, 1000, 0, []int64{0, 700}, []int64{0, 0}},
		"no energy":    {rows{{Key: 1, Kind: workload.Service, Usage: cpuOnly(1e9)}}, time.Minute, 1000, 10, []int64{0, 1000}, []int64{0, 10}},
		"1 uJ":         {rows{row(workload.Service, 30e9, pkg, 1, 0, usage.Apportioned)}, time.Minute, 101, 0, []int64{100, 0}, []int64{0, 0}},
		"only a guest": {rows{vm}, time.Minute, 10_200, 0, []int64{10_000, 0}, []int64{20, 0}},
		"with a guest": {rows{vm, row(workload.Idle, 50e9, pkg, 300, 0, usage.Apportioned)}, time.Minute, 1000, 0, []int64{100 + 100, 300}, []int64{10 + 4, 6}},
	} {
		got, _ := external.Adjust(c.rows, c.covered, c.e, c.off)
		var rests, errs []int64
		for i := range got {
			rests, errs = append(rests, got[i].Usage.Amount[rest]), append(errs, got[i].Usage.Amount[usage.EnergyError])
		}
		if diff := cmp.Diff(c.rest, rests); diff != "" {
			t.Errorf("%s: rest (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(c.errors, errs); diff != "" {
			t.Errorf("%s: errors (-want +got):\n%s", name, diff)
		}
	}
}

// TestAdjustIdleOfRows checks that the idle part of a guest and of the row idle grow with their
// energy, and that other rows get none.
func TestAdjustIdleOfRows(t *testing.T) {
	vm := row(workload.VM, 10e9, usage.EnergyPackage, 200, 0, usage.Apportioned)
	vm.Usage.Put(usage.EnergyIdle, 100, usage.Apportioned)
	got, _ := external.Adjust([]external.Row{
		vm, row(workload.Service, 10e9, usage.EnergyPackage, 100, 0, usage.Apportioned), row(workload.Idle, 0, usage.EnergyPackage, 300, 0, usage.Apportioned),
	}, time.Minute, 1200, 0)
	for i, want := range []int64{200, 0, 600} {
		v, has := got[i].Usage.Get(usage.EnergyIdle)
		if v != want || has != (want > 0) {
			t.Errorf("%v: %d uJ are idle (present: %t), want %d", got[i].Kind, v, has, want)
		}
	}
}

func cpuOnly(ns int64) (u usage.Usage) {
	u.Put(usage.CPU, ns, usage.Measured)
	return u
}

// TestGroupMinuteDivides checks that the energy of several meters is divided among the machines
// that they feed, without a remainder.
func TestGroupMinuteDivides(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d"}
		rows := map[string][]external.Row{}
		for _, n := range names {
			rows[n] = machine(t)
		}
		b := external.GroupMinute{Minute: base}
		var e, off int64
		for range rapid.IntRange(1, 4).Draw(t, "meters") {
			c := external.MeterEnergy{Nodes: rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, 4, rapid.ID).Draw(t, "nodes"),
				Energy: rapid.Int64Range(0, 1<<50).Draw(t, "uJ"), Error: rapid.Int64Range(0, 1<<40).Draw(t, "off")}
			e, off = e+c.Energy, off+c.Error
			b.Meters = append(b.Meters, c)
		}
		for _, p := range b.Divide(rows) {
			e, off = e-p.Energy, off-p.Error
		}
		if e != 0 || off != 0 {
			t.Fatalf("%d uJ and an error of %d were not divided", e, off)
		}
	})
}

func TestGroupMinuteDivide(t *testing.T) {
	rows := map[string][]external.Row{
		"a": {row(workload.Service, 1e9, usage.EnergyPackage, 300, 0, usage.Measured), row(workload.Idle, 9e9, usage.EnergyPackage, 100, 0, usage.Measured)},
		"b": {row(workload.Service, 8e9, usage.EnergyPackage, 100, 0, usage.Measured)},
		"c": {{Kind: workload.Service, Usage: cpuOnly(30)}, {Kind: workload.Idle, Usage: cpuOnly(1000)}},
		"d": {{Kind: workload.Service, Usage: cpuOnly(10)}},
	}
	b := external.GroupMinute{Meters: []external.MeterEnergy{
		{Nodes: []string{"a", "b"}, Energy: 1000, Error: 10}, {Nodes: []string{"c", "d"}, Energy: 1000},
		{Nodes: []string{"e", "f"}, Energy: 1000}, {Nodes: []string{"a", "g"}, Energy: 7},
	}}
	want := map[string]external.NodeEnergy{"a": {807, 8}, "b": {200, 2}, "c": {750, 0}, "d": {250, 0}, "e": {500, 0}, "f": {500, 0}, "g": {}}
	if diff := cmp.Diff(want, b.Divide(rows)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestIsComplete(t *testing.T) {
	end := time.Unix(0, external.MinuteStart(base+1))
	for name, c := range map[string]struct {
		n    external.Node
		now  time.Duration // after the minute
		want bool
	}{
		"all of it":         {external.Node{Covered: time.Minute - 100*time.Millisecond, BookedUntil: end, Streams: 2}, time.Second, true},
		"almost all of it":  {external.Node{Covered: time.Minute - 100*time.Millisecond - 1, BookedUntil: end, Streams: 2}, time.Second, false},
		"a part":            {external.Node{Covered: 50 * time.Second, BookedUntil: end, Streams: 1}, time.Second, false},
		"a part, then on":   {external.Node{Covered: 50 * time.Second, BookedUntil: end.Add(2 * time.Minute), Streams: 1}, 2 * time.Minute, true},
		"a bit, then on":    {external.Node{Covered: 1, BookedUntil: end.Add(2 * time.Minute), Streams: 1}, 2 * time.Minute, true},
		"a backlog drains":  {external.Node{Covered: 50 * time.Second, BookedUntil: end.Add(2 * time.Minute), Streams: 2}, 2 * time.Minute, false},
		"nothing":           {external.Node{BookedUntil: end.Add(time.Hour), Streams: 1}, time.Hour, false},
		"nothing, at last":  {external.Node{}, 26 * time.Hour, false},
		"nothing, too late": {external.Node{}, 26*time.Hour + 1, true},
	} {
		if got := c.n.IsComplete(base, 26*time.Hour, end.Add(c.now)); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestGroupMinuteNodes checks that each machine is named once, however many meters feed it.
func TestGroupMinuteNodes(t *testing.T) {
	b := external.GroupMinute{Meters: []external.MeterEnergy{{Nodes: []string{"b", "a"}}, {Nodes: []string{"a"}}, {}, {Nodes: []string{"c", "b"}}}}
	if got, want := b.Nodes(), []string{"b", "a", "c"}; !slices.Equal(got, want) {
		t.Errorf("the machines are %q, want %q", got, want)
	}
}
