package energy

import (
	"encoding/csv"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/power"
)

var number = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)

// TestCurveTableSources compares every row with its quotes.
func TestCurveTableSources(t *testing.T) {
	if !strings.HasPrefix(curveList, "https://") {
		t.Errorf("the list's address is %q", curveList)
	}
	pages := 0
	for i := range curveTable {
		r := &curveTable[i]
		checkList(t, r)
		if r.page == "" != (r.points == "") || (len(r.watts) == curveSteps) != (r.points != "") {
			t.Errorf("%s: %d points, page %q, quote %q", r.list, len(r.watts), r.page, r.points)
			continue
		}
		if r.points != "" {
			pages++
			checkPoints(t, r)
		}
		if r.maker() == "" || generation(r.cpu) == "" {
			t.Errorf("%s has no maker or generation", r.cpu)
		}
		if !slices.IsSorted(r.watts) || r.watts[0] <= 0 {
			t.Errorf("%s: power falls with load: %v", r.list, r.watts)
		}
	}
	t.Logf("%d rows, %d of them with power at %d loads", len(curveTable), pages, curveSteps)
	if pages < 10 {
		t.Errorf("%d rows with power by load, want 10 at least", pages)
	}
}

// checkList compares a row's CPU, threads, idle and full power with the quoted line of the list.
func checkList(t *testing.T, r *curveRow) {
	t.Helper()
	machine, rest, ok := strings.Cut(r.list, " ... ")
	month, threads, ok2 := strings.Cut(rest, ",")
	fields, err := csv.NewReader(strings.NewReader(machine)).Read()
	if !ok || !ok2 || err != nil || len(fields) != 9 {
		t.Errorf("%s: line %q: %v", r.cpu, r.list, err)
		return
	}
	if _, err := time.Parse("Jan-2006", month); err != nil {
		t.Errorf("%s: published: %v", r.list, err)
	}
	var v [9]float64 // score, full, idle, cores, chips, cores a chip, threads a core
	for i := 1; i < 8; i++ {
		if v[i], err = strconv.ParseFloat(fields[i], 64); err != nil {
			t.Errorf("%s: %v", r.list, err)
		}
	}
	if n := strconv.Itoa(r.threads); n != threads || v[4]*v[7] != float64(r.threads) || v[5]*v[6] != v[4] {
		t.Errorf("%s: %s threads do not agree with the line", r.list, n)
	}
	if r.watts[0] != v[3] || r.watts[len(r.watts)-1] != v[2] {
		t.Errorf("%s: %v W, the line has %v idle and %v at full load", r.list, r.watts, v[3], v[2])
	}
	words := strings.Fields(r.cpu)
	said := strings.ToLower(strings.ReplaceAll(fields[8], " ", ""))
	if last := strings.ToLower(words[len(words)-1]); !strings.Contains(said, last) {
		t.Errorf("%s: the line's CPU is %q", r.cpu, fields[8])
	}
}

// checkPoints compares a row's power by load with the quotes from its page.
func checkPoints(t *testing.T, r *curveRow) {
	t.Helper()
	if !strings.HasPrefix(r.page, home) {
		t.Errorf("%s: page %q", r.list, r.page)
	}
	var quoted []float64
	for _, s := range number.FindAllString(r.points, -1) {
		w, err := strconv.ParseFloat(s, 64)
		if err != nil {
			t.Fatal(err)
		}
		quoted = append(quoted, w)
	}
	slices.Sort(quoted) // one quote is from full load down
	if len(quoted) != curveSteps || !slices.Equal(quoted[1:], r.watts[1:]) || math.Abs(quoted[0]-r.watts[0]) >= 1 {
		t.Errorf("%s: %v W, quoted are %v", r.list, r.watts, quoted)
	}
}

func TestLookupCurve(t *testing.T) {
	const model, family, none = 300_000, 400_000, 700_000
	idleErrors := map[int64]int64{model: 600_000, family: 850_000, none: 1_400_000}
	for _, c := range []struct {
		model string
		error int64
		known bool
		from  string // part of the source
	}{
		{"AMD EPYC 7763 64-Core Processor                ", model, true, "EPYC 7763: 2 results of 128 to 256 threads, scaled to 4"},
		{"AMD EPYC 7702P 64-Core Processor", model, true, "EPYC 7702: 2"},
		{"AMD EPYC 9654 96-Core Processor", model, true, "EPYC 9654: 2"},
		{"AMD EPYC 7313 16-Core Processor", family, true, "EPYC 7003 generation"},
		{"AMD EPYC 7K62 48-Core Processor", family, true, "EPYC 7002 generation"},
		{"AMD EPYC 9V74 80-Core Processor", family, true, "EPYC 9004 generation"},
		{"AMD EPYC 4545P 16-Core Processor", family, true, "EPYC 4005 generation"},
		{"AMD EPYC-Milan Processor", family, true, "EPYC 7003 generation"},
		{"AMD EPYC-Genoa Processor", family, true, "EPYC 9004 generation"},
		{"AMD EPYC", family, false, "generic large EPYC server"},
		{"Intel(R) Xeon(R) CPU E5-2670 0 @ 2.60GHz", model, true, "Xeon E5-2670: 3 results of 32 threads"},
		{"Intel(R) Xeon(R) CPU E5-2650 v3 @ 2.30GHz", family, true, "Xeon E5 v3 generation"},
		{"Intel(R) Xeon(R) CPU           X5675  @ 3.07GHz", model, true, "Xeon X5675: 1 result "},
		{"Intel(R) Xeon(R) CPU           X5650  @ 2.67GHz", family, true, "Xeon 5600 generation"},
		{"Intel(R) Xeon(R) CPU           L5520  @ 2.27GHz", family, true, "Xeon 5500 generation"},
		{"Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz", model, true, "Xeon Platinum 8380"},
		{"Intel(R) Xeon(R) Platinum 8171M CPU @ 2.60GHz", family, true, "Xeon Scalable 1 generation"},
		{"Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz", family, true, "Xeon Scalable 2 generation"},
		{"INTEL(R) XEON(R) PLATINUM 8573C", family, true, "Xeon Scalable 5 generation"},
		{"INTEL(R) XEON(R) PLATINUM 8592+", model, true, "Xeon Platinum 8592+: 2"},
		{"Intel(R) Xeon(R) 6787P", model, true, "Xeon 6787P: 2"},
		{"Intel(R) Xeon(R) 6987P-C", family, true, "Xeon 6 P generation"},
		{"Intel(R) Xeon(R) E-2176G CPU @ 3.70GHz", model, true, "Xeon E-2176G"},
		{"Intel Xeon Processor (Skylake, IBRS)", family, true, "Xeon Scalable 1 generation"},
		{"Intel(R) Xeon(R) CPU @ 2.20GHz", family, false, "generic large Xeon server"},
		{"Intel(R) Core(TM) i7-6700 CPU @ 3.40GHz", none, false, "generic server"},
		{"", none, false, "generic server"},
	} {
		got, known := LookupCurve(c.model, 4)
		if known != c.known || got.ErrorPPM != c.error || got.IdleErrorPPM != idleErrors[c.error] || !strings.Contains(got.Source, c.from) {
			t.Errorf("Lookup(%q) = %q, %d ppm, %v; want %q, %d ppm, %v",
				c.model, got.Source, got.ErrorPPM, known, c.from, c.error, c.known)
		}
	}
}

// TestLookupCurveMedian compares curves with numbers of the table.
func TestLookupCurveMedian(t *testing.T) {
	// The X5670 has one result of 24 threads: 64 W idle, 148 W at half load, 232 W at full load.
	c, _ := LookupCurve("Intel(R) Xeon(R) CPU           X5670  @ 2.93GHz", 12)
	for load, want := range map[int64]int64{0: 32_000_000, 500_000: 74_000_000, 1_000_000: 116_000_000} {
		if got := CurvePower(&c, load); got != want {
			t.Errorf("power at %d ppm = %d uW, want %d", load, got, want)
		}
	}
	if c.Domain != power.Rest || c.Threads != 12 {
		t.Errorf("domain %v, %d threads; want rest, 12", c.Domain, c.Threads)
	}
	// The medians of the three results of the E5-2670 are 54.1 W and 243 W.
	c, _ = LookupCurve("Intel(R) Xeon(R) CPU E5-2670 0 @ 2.60GHz", 32)
	if idle, full := CurvePower(&c, 0), CurvePower(&c, power.PPM); idle != 54_100_000 || full != 243_000_000 {
		t.Errorf("%d and %d uW, want the middle results", idle, full)
	}
}

func TestLookupCurveProperties(t *testing.T) {
	models := []string{"AMD EPYC", "", "Intel(R) Xeon(R) CPU @ 2.20GHz", "AMD EPYC-Rome Processor"}
	for i := range curveTable {
		models = append(models, curveTable[i].cpu)
	}
	rapid.Check(t, func(t *rapid.T) {
		model := rapid.OneOf(rapid.SampledFrom(models), rapid.String()).Draw(t, "model")
		threads := rapid.IntRange(-1, 4096).Draw(t, "threads")
		c, _ := LookupCurve(model, threads)
		if len(c.Points) != curveSteps || c.Points[0].Load != 0 || c.Points[curveSteps-1].Load != power.PPM || c.Threads != max(1, threads) {
			t.Fatalf("curve %+v", c)
		}
		one, _ := LookupCurve(model, 1)
		for i, p := range c.Points {
			if i > 0 && (p.Load <= c.Points[i-1].Load || p.Power < c.Points[i-1].Power) {
				t.Fatalf("point %d falls: %+v", i, c.Points)
			}
			// Twice the threads draw twice the power, except for rounding.
			if n := int64(c.Threads); p.Power <= 0 || max(p.Power-n*one.Points[i].Power, n*one.Points[i].Power-p.Power) > n {
				t.Fatalf("%d threads draw %d uW, one draws %d", n, p.Power, one.Points[i].Power)
			}
		}
	})
}

// A measured is a published result of a machine that is not in the table.
type measured struct {
	model      string
	threads    int
	full, idle float64
}

// readMeasured returns the results in testdata.
func readMeasured(t *testing.T) (out []measured) {
	t.Helper()
	text, err := os.ReadFile("testdata/specpower.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		model, list, _ := strings.Cut(strings.TrimSpace(line), ": ")
		for one := range strings.SplitSeq(list, ", ") {
			var v [4]float64
			for i, f := range strings.Fields(one) {
				if v[i], err = strconv.ParseFloat(f, 64); err != nil {
					t.Fatal(err)
				}
			}
			out = append(out, measured{model, int(v[1]), v[2], v[3]})
		}
	}
	return out
}

// inside returns the percentage of results within the error of their curve, at full load and idle.
func inside(results []measured, curve func(measured) power.Curve) (full, idle int) {
	for _, m := range results {
		c := curve(m)
		in := func(watts float64, load, errorPPM int64) int {
			said := float64(CurvePower(&c, load))
			if math.Abs(watts*1e6-said) <= said*float64(errorPPM)/power.PPM {
				return 1
			}
			return 0
		}
		full += in(m.full, power.PPM, c.ErrorPPM)
		idle += in(m.idle, 0, c.IdleErrorPPM)
	}
	n := max(1, len(results))
	return full * 100 / n, idle * 100 / n
}

// TestCurveErrors compares the stated errors with results outside the table, of other machines:
// with the same CPU, with the CPU removed from the table, and without the CPU's name.
func TestCurveErrors(t *testing.T) {
	all := readMeasured(t)
	without := func(m measured, name string) power.Curve {
		cpu := cpuName(m.model)
		rest := rowsOf(curveTable, func(r *curveRow) bool { return !strings.EqualFold(r.cpu, cpu) })
		c, _ := lookup(rest, name, m.threads)
		return c
	}
	var same, akin, large []measured
	for _, m := range all {
		c, _ := LookupCurve(m.model, m.threads)
		if c.ErrorPPM == modelErrorPPM {
			same = append(same, m)
		}
		if c := without(m, m.model); strings.Contains(c.Source, "generation") {
			akin = append(akin, m)
		}
		if m.threads >= largeServerThreads {
			large = append(large, m)
		}
	}
	for _, c := range []struct {
		what       string
		results    []measured
		curve      func(measured) power.Curve
		full, idle int // of 100
	}{
		{"same CPU", same, func(m measured) power.Curve { c, _ := LookupCurve(m.model, m.threads); return c }, 97, 95},
		{"generation", akin, func(m measured) power.Curve { return without(m, m.model) }, 87, 95},
		{"maker, large", large, func(m measured) power.Curve { return without(m, maker(m.model)) }, 96, 95},
		{"unknown", all, func(m measured) power.Curve { return without(m, "") }, 79, 87},
	} {
		full, idle := inside(c.results, c.curve)
		t.Logf("%s: of %d results %d %% are inside at full load, %d %% idle", c.what, len(c.results), full, idle)
		if full < c.full || idle < c.idle || len(c.results) < 200 {
			t.Errorf("%s: %d results, %d %% and %d %% inside; want 200, %d and %d", c.what, len(c.results), full, idle, c.full, c.idle)
		}
	}
}

// TestCurveErrorsOfLargeServers compares the generic curves with the table's own large servers over
// the whole range of loads.
func TestCurveErrorsOfLargeServers(t *testing.T) {
	for _, maker := range []string{"EPYC", "Xeon"} {
		c, known := LookupCurve(maker, 1000)
		if known {
			t.Errorf("%s: %s is known", maker, c.Source)
		}
		rows := rowsOf(curveTable, func(r *curveRow) bool { return r.maker() == maker && r.threads >= largeServerThreads })
		way := curveShape(curveTable, maker)
		var in [curveSteps]int
		for i := range rows {
			for step, watts := range rows[i].filledWatts(way) {
				said := float64(c.Points[step].Power) / 1000
				if math.Abs(watts*1e6/float64(rows[i].threads)-said) <= said*familyErrorPPM/power.PPM {
					in[step]++
				}
			}
		}
		for step, n := range in {
			if share := n * 100 / len(rows); step == 0 && share < 60 || step == 1 && share < 80 || step > 1 && share < 85 {
				t.Errorf("%s at step %d: %d of %d rows are inside", maker, step, n, len(rows))
			}
		}
		t.Logf("%s: %v of %d rows inside", maker, in, len(rows))
	}
}
