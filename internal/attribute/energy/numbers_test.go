package energy

import (
	"math"
	"testing"

	"mete.dev/mete/internal/model/power"
)

// TestNumbers checks small functions at the limits of their arguments.
func TestNumbers(t *testing.T) {
	const most = math.MaxInt64
	for _, c := range []struct {
		name      string
		got, want int64
	}{
		{"MulDiv by 0", MulDiv(5, 5, 0), 0},
		{"MulDiv", MulDiv(7, 3, 2), 10},
		{"MulDiv beyond 64 bits", MulDiv(most, most, most-1), most},
		{"MulDiv, large", MulDiv(most, most, most), most},
		{"MulDiv up to 64 bits", MulDiv(most, 2, 1), most},
		{"MulDiv, saturated", MulDiv(1<<62, 4, 1), most},
		{"MulDiv, half", MulDiv(most, most-1, most), most - 1},
		{"AddSaturated", AddSaturated(3, 4), 7},
		{"AddSaturated, most", AddSaturated(most-4, 4), most},
		{"AddSaturated, more", AddSaturated(most-4, 5), most},
		{"energyOver", energyOver(3, second*2), 6},
		{"energyOver no power", energyOver(-5, second), 0},
		{"energyOver 0 power", energyOver(0, second), 0},
		{"energyOver no time", energyOver(second, 0), 0},
		{"energyOver negative time", energyOver(second, -7), 0},
		{"meanPower", meanPower(6, second*2), 3},
		{"meanPower, 1 ns", meanPower(6, 1), 6 * second},
		{"meanPower, no time", meanPower(6, 0), 6 * second},
		{"roundToInt up", roundToInt(.5), 1},
		{"roundToInt down", roundToInt(.49), 0},
		{"roundToInt 0", roundToInt(0), 0},
		{"roundToInt negative", roundToInt(-3), 0},
		{"roundToInt NaN", roundToInt(math.NaN()), 0},
		{"roundToInt too large", roundToInt(1e19), most},
		{"rootSumSquare", rootSumSquare(3, 4), 5},
		{"rootSumSquare, up", rootSumSquare(1, 1), 2},
		{"rootSumSquare of none", rootSumSquare(), 0},
		{"distance", distance(3, 8), 5},
		{"distance back", distance(8, 3), 5},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", c.name, c.got, c.want)
		}
	}
	for ppm, want := range map[int64]float64{-5: 0, 0: 0, 1: 1e-6, 250_000: .25, 1_000_000: 1, 1_000_001: 1} {
		if got := fraction(ppm); got != want {
			t.Errorf("%d ppm are %v, want %v", ppm, got, want)
		}
	}
	if out := make([]int64, 3); !Divide(7, []int64{0, 1, 0}, out) || out[1] != 7 {
		t.Errorf("7 uJ by one weight of 1 are %v", out)
	}
	// Weights that sum to more than 64 bits are shifted.
	out := make([]int64, 5)
	if !Divide(10, []int64{most, most, most, most, most}, out) || out[0] != 2 || out[4] != 2 {
		t.Errorf("10 uJ by equal weights are %v", out)
	}
}

// TestRiseError checks the error of a curve's rise by hand: it falls from that at idle to that at full
// load, up to 40 % of load.
func TestRiseError(t *testing.T) {
	for _, c := range []struct{ full, idle, load, want int64 }{
		{300_000, 600_000, 0, 600_000},
		{300_000, 600_000, -9, 600_000},
		{300_000, 600_000, 100_000, 525_000},
		{300_000, 600_000, 399_999, 300_000},
		{300_000, 600_000, 400_000, 300_000},
		{300_000, 600_000, 1_000_000, 300_000},
		{0, 4e12, 200_000, 2e12},
		{5, 5, 0, 5},
		{5, 0, 0, 5},
	} {
		curve := power.Curve{ErrorPPM: c.full, IdleErrorPPM: c.idle}
		if got := riseError(&curve, c.load); got != c.want {
			t.Errorf("%d ppm, %d at idle: at a load of %d it is %d, want %d", c.full, c.idle, c.load, got, c.want)
		}
	}
}

// TestDivisionError checks how much the load that a workload met may deviate, by hand: the square
// root of the variance of the load, relative to it, but no more than from the mean load to all CPUs or
// to its own.
func TestDivisionError(t *testing.T) {
	for _, c := range []struct {
		elapsed int64
		cpus    int
		used    []int64 // ms
		want    float64
	}{
		{second, 4, nil, 0},
		{second, 4, []int64{0, 0}, 0},
		{second, 4, []int64{1000}, 1},                 // bursts of 2 CPUs in half of the time
		{second, 4, []int64{500}, 1},                  // of one CPU
		{second, 4, []int64{250}, math.Sqrt(3)},       // of one CPU in a quarter
		{second, 4, []int64{3000}, math.Sqrt(3) / 3},  // of all four CPUs
		{second, 4, []int64{4000}, 0},                 // always on all
		{second, 4, []int64{5000}, 0},                 // on more than there are
		{second, 4, []int64{500, 500}, math.Sqrt(.5)}, // variances add up
		{2 * second, 4, []int64{1000}, 1},
		{second, 4, []int64{1}, math.Log(4000)}, // up to all CPUs
		{second, 1, []int64{600, 600}, math.Log(1.2)},
		{0, 4, []int64{0}, 0},
	} {
		d := divisionError{elapsed: c.elapsed, cpus: c.cpus}
		weights := make([]int64, len(c.used))
		for i, ms := range c.used {
			weights[i] = ms * 1e6
		}
		if got := d.loadSpread(weights); !(math.Abs(got-c.want) <= 1e-9) {
			t.Errorf("%v ms in %d s on %d CPUs: %v, want %v", c.used, c.elapsed/second, c.cpus, got, c.want)
		}
	}
	if got := (&divisionError{elapsed: 0, cpus: 4}).loadSpread([]int64{3}); got != math.Sqrt(3)/3 {
		t.Errorf("3 ns in no time: %v, want as in 1 ns", got)
	}
	d := divisionError{elapsed: second, cpus: 4, nonlinearity: .3, noise: .2}
	weights := []int64{second}
	for by, want := range map[Rule]int64{ByTraffic: 330_000, ByResident: 500_000, ByCPU: 466_690} { // 1.65 x .2, and 1.1 x .3
		if got := d.relativePPM(by, weights); got != want {
			t.Errorf("by rule %d: %d ppm, want %d", by, got, want)
		}
	}
	d.noise = .4
	if got := d.relativePPM(ByResident, weights); got != 660_000 {
		t.Errorf("of much noise: %d ppm, want 660000", got)
	}
}

// TestMedian checks medians of few values.
func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{7}, 7}, {[]float64{9, 2}, 5.5}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 9, 1, 2}, 3}, {[]float64{4, 9, 1, 2, 3}, 3}} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.want)
		}
	}
}

// TestFilledWatts checks that rows of the table with two measurements are completed between these:
// in the shape of its maker's other rows, which rises from 0 to 1.
func TestFilledWatts(t *testing.T) {
	for _, maker := range []string{"EPYC", "Xeon"} {
		shape := curveShape(curveTable, maker)
		if shape[0] != 0 || shape[curveSteps-1] != 1 {
			t.Errorf("%s: the shape is %v", maker, shape)
		}
		for i := range curveTable {
			r := &curveTable[i]
			got := r.filledWatts(shape)
			if len(got) != 11 || got[0] != r.watts[0] || math.Abs(got[10]-r.watts[len(r.watts)-1]) > 1e-9 {
				t.Errorf("%s: %v of %v", r.cpu, got, r.watts)
			}
		}
	}
	half := (&curveRow{watts: []float64{10, 30}}).filledWatts([]float64{0, .2, .3, .4, .5, .6, .7, .8, .9, .95, 1})
	if half[1] != 14 || half[5] != 22 {
		t.Errorf("10 to 30 W: %v", half)
	}
}

// TestGeneration checks names of CPUs that the table may lack.
func TestGeneration(t *testing.T) {
	for model, want := range map[string]string{
		"AMD EPYC 7B12": "EPYC 7002", "AMD EPYC 7A1": "", "AMD EPYC X763": "", "AMD EPYC 776X": "", "AMD EPYC": "", "AMD EPYC 4": "",
		"AMD Ryzen 9 7950X": "", "Intel(R) Xeon(R) Platinum 8160": "Xeon Scalable 1", "Intel(R) Xeon(R) Gold 6548": "Xeon Scalable 5",
		"Intel(R) Xeon(R) Silver 4614": "", "Intel(R) Xeon(R) Bronze 3006": "", "Intel(R) Xeon(R) Gold 610": "", "Intel(R) Xeon(R) Gold": "",
		"Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz": "Xeon E5 v4", "Intel(R) Xeon(R) CPU E7-8890 0 @ 2.60GHz": "Xeon E5 v1",
		"Intel(R) Xeon(R) CPU E3-1230 V2": "Xeon E", "Intel(R) Xeon(R) E-2288G CPU": "Xeon E", "Intel(R) Xeon(R) D-1541": "Xeon D",
		"Intel(R) Xeon(R) CPU X5570": "Xeon 5500", "Intel(R) Xeon(R) CPU L5640": "Xeon 5600", "Intel(R) Xeon(R) CPU E5520": "Xeon 5500",
		"Intel(R) Xeon(R) CPU X5470": "", "Intel(R) Xeon(R) CPU W5590": "", "Intel(R) Xeon(R) CPU X557": "",
		"Intel(R) Xeon(R) 6369P": "Xeon E", "Intel(R) Xeon(R) 6980P": "Xeon 6 P", "Intel(R) Xeon(R) 6780E": "Xeon 6 E",
		"Intel(R) Xeon(R) 6780X": "", "Intel(R) Xeon(R) 6780": "", "Intel(R) Xeon(R) 678EP": "", "Intel(R) Xeon(R) 7780P": "",
		"Intel Xeon Processor (SapphireRapids)": "Xeon Scalable 4",
	} {
		if got := generation(model); got != want {
			t.Errorf("%q is of generation %q, want %q", model, got, want)
		}
	}
	for model, want := range map[string]string{
		"AMD EPYC 7702P 64-Core Processor": "epyc 7702", "AMD EPYC": "epyc", "P": "p", "Xeon P": "xeon p",
		"Intel(R) Xeon(R) Platinum 8276L CPU @ 2.20GHz": "xeon platinum 8276", "Intel(R) Xeon(R) Gold 6240M": "xeon gold 6240", "Intel(R) Xeon(R) Silver 4210M": "xeon silver 4210m",
	} {
		if got := cpuName(model); got != want {
			t.Errorf("%q is %q in the table, want %q", model, got, want)
		}
	}
}

// TestLookupLarge checks that for a CPU of which only the maker is known the servers of 96 threads and
// more count.
func TestLookupLarge(t *testing.T) {
	of := func(threads int, watts float64) curveRow {
		r := curveRow{cpu: "Xeon Z", threads: threads}
		for range curveSteps {
			r.watts = append(r.watts, watts*float64(threads))
		}
		return r
	}
	for _, c := range []struct {
		rows []curveRow
		want float64
	}{
		{[]curveRow{of(95, 1), of(96, 2), of(97, 4)}, 3},
		{[]curveRow{of(95, 1), of(96, 2)}, 2},
	} {
		other := of(128, 9)
		other.cpu = "EPYC Z"
		for _, model := range []string{"Intel Xeon", "Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz"} { // of a generation that has no row
			curve, known := lookup(append(c.rows, other), model, 1)
			if known || curve.Points[0].Power != int64(c.want*1e6) {
				t.Errorf("%s: %d uW, known %v; want %v W", model, curve.Points[0].Power, known, c.want)
			}
		}
	}
}
