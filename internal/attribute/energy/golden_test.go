package energy_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// compareGolden compares a text with a golden file. Numbers in it have few digits, as the last one
// depends on the processor.
func compareGolden(t *testing.T, path, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), text); d != "" {
		t.Errorf("%s (-want +got):\n%s", path, d)
	}
}

// TestModelsGolden compares what models learn from several sets of points: idle power with its
// error, the deviation from a straight line, the power at several loads, and the fitted curve.
func TestModelsGolden(t *testing.T) {
	var out strings.Builder
	spans := map[string][]float64{ // loads
		"all":    {0, .004, .008, .015, .04, .09, .13, .2, .3, .37, .5, .62, .8, .91, 1},
		"half":   {.45, .47, .49, .5, .52, .55},
		"idle":   {0, .001, .002, .003},
		"two":    {.2, .9},
		"narrow": {.5, .51},
		"high":   {.6, .7, .8, .95, 1},
	}
	for _, name := range []string{"linear", "concave", "steep", "turbo", "two steps", "wakes up"} {
		powerAt := powerModels[name]
		for _, span := range []string{"all", "half", "idle", "two", "narrow", "high"} {
			for _, points := range []int{1, 2, 3, 7, 100, 2000} {
				if points > 7 && name != "concave" && name != "wakes up" {
					continue
				}
				r := rand.New(rand.NewPCG(uint64(points), 5))
				var pm energy.PowerModel
				for i := range points {
					u := spans[span][i%len(spans[span])]
					if points > 100 {
						u = min(1, max(0, u+.01*r.NormFloat64()))
					}
					pm.Add(u, powerAt(u)*1e6*(1+.01*r.NormFloat64()))
				}
				if points == 100 {
					pm.Add(.5, 9000e6) // an outlier
				}
				static, off := pm.Static()
				fmt.Fprintf(&out, "%s, %s, %d: %.4g+-%.3g, %.3g;", name, span, points, static/1e6, off/1e6, pm.Nonlinearity())
				for _, u := range []float64{0, .0005, .03, .35, .5, .75, 1} {
					p, off := pm.Power(u)
					fmt.Fprintf(&out, " %.4g+-%.3g", p/1e6, off/1e6)
				}
				c := pm.Curve(power.Package)
				fmt.Fprintf(&out, "; %d %.4g %.4g\n", len(c.Points), float64(c.Points[5].Power)/1e6, float64(c.ErrorPPM)/1e4)
			}
		}
	}
	compareGolden(t, "testdata/models.golden", out.String())
}

// A goldenMeter is a meter of a machine of TestTicksGolden: it shows base W and rise W at full load.
type goldenMeter struct {
	power.Meter
	base, rise int64
}

// TestTicksGolden compares sums over ticks of machines with different meters, which fail in every
// way: energy, its idle part and the errors of each domain, parts of workloads, events, and what is
// saved.
func TestTicksGolden(t *testing.T) {
	rapl := func(i int) goldenMeter {
		return goldenMeter{counter(fmt.Sprint("package-", i), power.Part, power.Package), 20, 60}
	}
	dram := goldenMeter{counter("dram", power.Part, power.DRAM), 5, 4}
	gpu := goldenMeter{power.Meter{Name: "gpu", Level: power.Part, Domain: power.GPU, Kind: power.Power, From: power.NVML, Step: 1e5, Every: second / 10, ErrorPPM: 50_000}, 30, 200}
	board := goldenMeter{counter("psys", power.Board, power.Rest), 70, 130}
	box := func(i int) goldenMeter {
		return goldenMeter{sensor(fmt.Sprint("supply-", i), power.Box, power.Hwmon, 20_000), 50, 80}
	}
	dcmi := goldenMeter{sensor("dcmi", power.Box, power.IPMI, 50_000), 110, 170}
	few := rapl(0) // moves in large steps, and wraps soon
	few.Step, few.Every, few.Wrap, few.Most = 20e6, second/2, 3000e6, 400*watt
	played := rapl(0)
	played.From = power.Model
	table, _ := energy.LookupCurve("AMD EPYC 7763 64-Core Processor", 64)
	measured := power.Curve{Domain: power.Package, ErrorPPM: 50_000, Source: "calibrated", Points: []power.Point{{Load: 0, Power: 15 * watt}, {Load: 500_000, Power: 55 * watt}, {Load: 1e6, Power: 80 * watt}}}
	var out strings.Builder
	for _, m := range []struct {
		name   string
		meters []goldenMeter
		curve  power.Curve
		static int64 // W of packages and of the rest
	}{
		{"one", []goldenMeter{rapl(0)}, power.Curve{}, 0},
		{"two and memory", []goldenMeter{rapl(0), rapl(1), dram}, power.Curve{}, 0},
		{"given", []goldenMeter{rapl(0), box(0)}, power.Curve{}, 12},
		{"coarse", []goldenMeter{few}, power.Curve{}, 0},
		{"sensor", []goldenMeter{dcmi}, power.Curve{}, 0},
		{"nested", []goldenMeter{rapl(0), dram, gpu, board, box(0), box(1), dcmi}, power.Curve{}, 0},
		{"table", nil, table, 0},
		{"table, given", nil, table, 40},
		{"calibrated", []goldenMeter{gpu}, measured, 0},
		{"package with a table", []goldenMeter{rapl(0)}, table, 0},
		{"box with a table", []goldenMeter{box(0)}, table, 0},
		{"calibrated, with a meter", []goldenMeter{rapl(0)}, measured, 0},
		{"simulated", []goldenMeter{played}, power.Curve{}, 0},
	} {
		for _, trouble := range []string{"none", "gone", "stalled", "lost", "reset", "jumped", "once", "slow", "asleep", "from the start"} {
			writeTicks(&out, m.name, m.meters, energy.Config{Curve: m.curve, Static: [power.DomainLimit]int64{power.Package: m.static * watt, power.Rest: m.static * watt}}, trouble)
		}
	}
	compareGolden(t, "testdata/ticks.golden", out.String())
}

func writeTicks(out *strings.Builder, name string, meters []goldenMeter, c energy.Config, trouble string) {
	for _, m := range meters {
		c.Meters = append(c.Meters, m.Meter)
	}
	r := rand.New(rand.NewPCG(7, 8))
	m := energy.New(c)
	at, elapsed := int64(1000*second), int64(0)
	value, shown := make([]int64, len(meters)), make([]int64, len(meters))
	var sums [power.DomainLimit]energy.DomainEnergy
	var parts, offs [3][3]int64
	var events []string
	for i := range int64(90) {
		load := (i * 37) % 90 * 10_000
		if i%11 == 10 {
			load = 0
		}
		suspended := int64(0)
		broken := i >= 50 && i < 62
		switch {
		case trouble == "slow" && broken:
			elapsed = 3 * second / 2 * (1 + i%3)
		case trouble == "slow" && i > 70 && i < 75:
			elapsed = second / 20
		case trouble == "asleep" && i == 50:
			elapsed, suspended = 500*second, 499*second
		case i > 0:
			elapsed = second
		}
		at += elapsed
		running := elapsed - suspended
		var before, after []power.Reading
		for j, g := range meters {
			uW := g.base*watt + g.rise*load + r.Int64N(watt)
			if g.Kind == power.Power {
				value[j] = uW
			} else {
				value[j] += uW / 1000 * (running / 1000) / 1000
			}
			hit := broken && j%2 == 0
			problem := ""
			switch {
			case trouble == "gone" && hit, trouble == "from the start" && j == 0 && i < 20:
				problem = "gone"
			case trouble == "stalled" && hit:
			case trouble == "lost" && hit:
				value[j] = shown[j]
			case trouble == "reset" && j == 0 && i == 50 && g.Kind == power.Energy:
				value[j] = 5
				shown[j] = value[j]
			case trouble == "jumped" && j == 0 && i == 50 && g.Kind == power.Energy:
				value[j] += 200_000 * watt
				shown[j] = value[j]
			case trouble == "once" && j == 0 && i == 50:
				shown[j] = 1e16
			default:
				shown[j] = value[j]
			}
			b := power.Reading{Meter: j, At: at - 1e5, Value: shown[j], Err: problem}
			a := b
			if a.At = at + 1e5; g.Kind == power.Energy && problem == "" {
				a.Value += 9
			}
			if g.Wrap > 0 && shown[j] < 1e16 {
				b.Value, a.Value = b.Value%g.Wrap, a.Value%g.Wrap
			}
			before, after = append(before, b), append(after, a)
		}
		tick := m.Tick(energy.Interval{At: at, Elapsed: elapsed, Suspended: suspended, Load: load, CPUs: 8}, before, after)
		for d := range tick.Domain {
			a, s := &tick.Domain[d], &sums[d]
			s.Quality = max(s.Quality, a.Quality)
			s.Energy, s.Idle = s.Energy+a.Energy, s.Idle+a.Idle
			s.Error, s.IdleError, s.ActiveError = s.Error+a.Error, s.IdleError+a.IdleError, s.ActiveError+a.ActiveError
			weights := []int64{load * elapsed / 1e6 * 5, load * elapsed / 1e6 * 2, load * elapsed / 1e6}
			for rule := range parts {
				var p, o [3]int64
				a.Split(energy.Rule(rule), weights, p[:], o[:])
				for k := range p {
					parts[rule][k] += p[k]
					offs[rule][k] += o[k]
				}
			}
		}
		for _, e := range tick.Events {
			events = append(events, fmt.Sprintf("%s %v %q %d-%d", e.Meter, e.Reason, e.Detail, e.From/1e7, e.To/1e7))
		}
	}
	fmt.Fprintf(out, "%s, %s:\n", name, trouble)
	for d, s := range sums {
		if s.Quality != usage.Absent {
			fmt.Fprintf(out, "  %v %v: %s +-%s, idle %s +-%s, active +-%s; %s\n", power.Domain(d), s.Quality, digits(s.Energy), digits(s.Error),
				digits(s.Idle), digits(s.IdleError), digits(s.ActiveError), m.Source(power.Domain(d)))
		}
	}
	for l := power.Board; l < power.LevelLimit; l++ {
		if ratio, ok := m.Ratio(l); ok {
			fmt.Fprintf(out, "  %s of the %v are inside\n", digits(ratio), l)
		}
	}
	fmt.Fprint(out, "  parts")
	for rule := range parts {
		for k := range parts[rule] {
			fmt.Fprintf(out, " %s+-%s", digits(parts[rule][k]), digits(offs[rule][k]))
		}
	}
	fmt.Fprintln(out)
	for _, e := range events {
		fmt.Fprintln(out, " ", e)
	}
	for _, p := range m.Positions() {
		fmt.Fprintf(out, "  at %+v %s %s\n", p.Value, digits(p.Surplus), digits(p.PeakPower))
	}
}

// digits returns the first digits of a number.
func digits(v int64) string { return fmt.Sprintf("%.5g", float64(v)/1e3) }
