package energy

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/power"
)

// Errors of curves from the table, in ppm of their power. The tests compare them with 323 published
// results of other machines at idle and full load. Power at idle is harder to predict, so it has
// its own error.
const (
	// modelErrorPPM applies to a CPU in the table: it covers 97 of 100 results of the same CPU at
	// full load, 87 at idle.
	modelErrorPPM = 300_000
	// familyErrorPPM applies if only the CPU's generation is in the table, or only its maker is
	// known. Of 100 results of CPUs removed from the table, it covers 87 at full load with their
	// generation's curve, and 96 of large servers with their maker's. At idle it covers 70 of
	// either.
	familyErrorPPM = 400_000
	// unknownErrorPPM applies to all others, whose full load ranges from 1 to 10 W a thread: it
	// covers 79 of 100 at full load, 71 at idle.
	unknownErrorPPM = 700_000
)

// idleErrorPPM maps these errors to those at idle, in ppm of idle power: they cover 95 of 100 of
// the same results for the same CPU, its generation, and a large server of its maker, and 87 for
// all others.
var idleErrorPPM = map[int64]int64{modelErrorPPM: 600_000, familyErrorPPM: 850_000, unknownErrorPPM: 1_400_000}

// largeServerThreads is the minimum number of threads of a large server. A CPU name with only a
// maker belongs to a virtual machine, and those run on large servers.
const largeServerThreads = 96

// steps is the number of points of a curve in the table: idle and every ten percent.
const curveSteps = 11

// LookupCurve returns the power curve of a machine, or of a virtual machine's part of one, with
// some hardware threads of a CPU; model is the name in /proc/cpuinfo. known says whether the CPU or
// its generation is in the table; otherwise the curve is a generic one.
//
// The power is the median per hardware thread over the published results that fit best. It includes
// the threads' part of memory, disks, fans and power supply, which is smaller in a server of many
// threads. The error omits two known biases. The results are of tuned machines; machines in the
// field draw more at idle:
// https://energyanalysis.lbl.gov/publications/comparing-datasets-volume-servers
// And their load is a fraction of the highest throughput, which is close to the fraction of CPU
// time but not equal.
func LookupCurve(model string, threads int) (curve power.Curve, known bool) {
	return lookup(curveTable, model, threads)
}

// lookup is LookupCurve in a given table.
func lookup(table []curveRow, model string, threads int) (power.Curve, bool) {
	cpu, gen, maker := cpuName(model), generation(model), maker(model)
	of := func(name string, errorPPM int64, rows []curveRow) power.Curve {
		return curveOf(table, rows, max(1, threads), name, errorPPM)
	}
	same := rowsOf(table, func(r *curveRow) bool { return strings.EqualFold(r.cpu, cpu) })
	if len(same) > 0 {
		return of(same[0].cpu, modelErrorPPM, same), true
	}
	if gen != "" {
		sameGen := rowsOf(table, func(r *curveRow) bool { return generation(r.cpu) == gen })
		if len(sameGen) > 0 {
			return of(gen+" generation", familyErrorPPM, sameGen), true
		}
	}
	if maker != "" {
		large := rowsOf(table, func(r *curveRow) bool { return r.maker() == maker && r.threads >= largeServerThreads })
		return of("generic large "+maker+" server", familyErrorPPM, large), false
	}
	return of("generic server", unknownErrorPPM, table), false
}

// curveOf returns the median of rows as the curve of a machine with some threads.
func curveOf(table, rows []curveRow, threads int, name string, errorPPM int64) power.Curve {
	low, high := rows[0].threads, rows[0].threads
	columns := make([][]float64, curveSteps)
	shapes := map[string][]float64{"EPYC": curveShape(table, "EPYC"), "Xeon": curveShape(table, "Xeon")}
	for i := range rows {
		low, high = min(low, rows[i].threads), max(high, rows[i].threads)
		for step, watts := range rows[i].filledWatts(shapes[rows[i].maker()]) {
			columns[step] = append(columns[step], watts/float64(rows[i].threads))
		}
	}
	measured := fmt.Sprintf("%d", low)
	if high > low {
		measured = fmt.Sprintf("%d to %d", low, high)
	}
	results := "result"
	if len(rows) > 1 {
		results = "results"
	}
	c := power.Curve{
		Domain:   power.Rest,
		Threads:  threads,
		ErrorPPM: errorPPM, IdleErrorPPM: idleErrorPPM[errorPPM],
		Source: fmt.Sprintf("SPECpower_ssj2008, %s: %d %s of %s threads, scaled to %d",
			name, len(rows), results, measured, threads),
	}
	for step, column := range columns {
		c.Points = append(c.Points, power.Point{
			Load:  int64(step) * power.PPM / (curveSteps - 1),
			Power: int64(math.Round(median(column) * float64(threads) * 1e6)),
		})
	}
	return c
}

// filledWatts returns the row's watts at all steps. A row with only idle and full load is
// interpolated by shape.
func (r *curveRow) filledWatts(shape []float64) []float64 {
	if len(r.watts) == curveSteps {
		return r.watts
	}
	out := make([]float64, curveSteps)
	for step, done := range shape {
		out[step] = r.watts[0] + (r.watts[1]-r.watts[0])*done
	}
	return out
}

// curveShape returns how power rises from idle (0) to full load (1) over the steps: the median of a
// maker's complete rows.
func curveShape(table []curveRow, maker string) []float64 {
	columns := make([][]float64, curveSteps)
	for i := range table {
		r := &table[i]
		if len(r.watts) != curveSteps || r.maker() != maker {
			continue
		}
		idle, full := r.watts[0], r.watts[curveSteps-1]
		for step, watts := range r.watts {
			columns[step] = append(columns[step], (watts-idle)/(full-idle))
		}
	}
	shape := make([]float64, curveSteps)
	for step, column := range columns {
		shape[step] = median(column)
	}
	return shape
}

func (r *curveRow) maker() string { return maker(r.cpu) }

func rowsOf(table []curveRow, wanted func(*curveRow) bool) []curveRow {
	var out []curveRow
	for i := range table {
		if wanted(&table[i]) {
			out = append(out, table[i])
		}
	}
	return out
}

// median returns the median of one or more values.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// cpuName returns the table's name for a CPU in /proc/cpuinfo: "epyc 7763" for "AMD EPYC 7763
// 64-Core Processor". Variants for one socket (EPYC 7702P) and for more memory (Xeon Platinum
// 8276L) map to their base model.
func cpuName(model string) string {
	fields := cpuFields(model)
	if n := len(fields); n > 1 {
		switch fields[n-2] {
		case "epyc":
			fields[n-1] = strings.TrimSuffix(fields[n-1], "p")
		case "platinum", "gold":
			fields[n-1] = strings.TrimRight(fields[n-1], "lm")
		}
	}
	return strings.Join(fields, " ")
}

// cpuFields returns the distinguishing words of a CPU name in lower case.
func cpuFields(model string) []string {
	name, _, _ := strings.Cut(strings.ToLower(model), "@")
	name = strings.NewReplacer("(r)", " ", "(tm)", " ").Replace(name)
	return slices.DeleteFunc(strings.Fields(name), func(word string) bool {
		switch word {
		case "intel", "amd", "cpu", "processor", "0": // "Xeon(R) CPU E5-2670 0" is version 0
			return true
		}
		return strings.HasSuffix(word, "-core")
	})
}

// maker returns the product line of a server CPU: EPYC, Xeon, or "".
func maker(model string) string {
	lower := strings.ToLower(model)
	switch {
	case strings.Contains(lower, "epyc"):
		return "EPYC"
	case strings.Contains(lower, "xeon"):
		return "Xeon"
	}
	return ""
}

// codenames map the names that hypervisors give a CPU to its generation: "AMD EPYC-Genoa
// Processor", "Intel Xeon Processor (Skylake, IBRS)".
var codenames = []struct{ name, generation string }{
	{"naples", "EPYC 7001"}, {"rome", "EPYC 7002"}, {"milan", "EPYC 7003"},
	{"genoa", "EPYC 9004"}, {"siena", "EPYC 8004"}, {"turin", "EPYC 9005"},
	{"nehalem", "Xeon 5500"}, {"westmere", "Xeon 5600"},
	{"sandybridge", "Xeon E5 v1"}, {"ivybridge", "Xeon E5 v2"},
	{"haswell", "Xeon E5 v3"}, {"broadwell", "Xeon E5 v4"},
	{"skylake", "Xeon Scalable 1"}, {"cascadelake", "Xeon Scalable 2"},
	{"icelake", "Xeon Scalable 3"}, {"sapphirerapids", "Xeon Scalable 4"},
	{"emeraldrapids", "Xeon Scalable 5"}, {"graniterapids", "Xeon 6 P"}, {"sierraforest", "Xeon 6 E"},
}

// generation returns the generation of a server CPU, or "".
func generation(model string) string {
	squeezed := strings.ReplaceAll(strings.ToLower(model), " ", "")
	for _, c := range codenames {
		if strings.Contains(squeezed, c.name) {
			return c.generation
		}
	}
	fields := cpuFields(model)
	if len(fields) < 2 {
		return ""
	}
	number := fields[1]
	switch fields[0] {
	case "epyc":
		// The first digit is the series and the fourth the generation: 7B12 is a 7002, 9V74 a 9004.
		if len(number) >= 4 && isDigit(number[0]) && isDigit(number[3]) {
			return "EPYC " + number[:1] + "00" + number[3:4]
		}
	case "xeon":
		return xeonGeneration(number, append(fields[2:], ""))
	}
	return ""
}

// xeonGeneration returns the generation of a Xeon from the words of its name.
func xeonGeneration(number string, more []string) string {
	switch {
	case number == "platinum" || number == "gold" || number == "silver" || number == "bronze":
		// The second digit is the generation, up to Xeon Scalable 5.
		if n := more[0]; len(n) >= 4 && n[1] >= '1' && n[1] <= '5' {
			return "Xeon Scalable " + n[1:2]
		}
	case strings.HasPrefix(number, "e5-") || strings.HasPrefix(number, "e7-"):
		if strings.HasPrefix(more[0], "v") {
			return "Xeon E5 " + more[0]
		}
		return "Xeon E5 v1"
	case strings.HasPrefix(number, "e3-") || strings.HasPrefix(number, "e-"):
		return "Xeon E"
	case strings.HasPrefix(number, "d-"):
		return "Xeon D"
	case len(number) >= 5 && strings.ContainsRune("xel", rune(number[0])) && (number[1:3] == "55" || number[1:3] == "56"):
		return "Xeon " + number[1:3] + "00"
	case len(number) >= 5 && number[0] == '6' && isDigit(number[3]):
		switch {
		case number[1] == '3':
			return "Xeon E" // the 6300 series belongs to Xeon E
		case number[4] == 'p':
			return "Xeon 6 P"
		case number[4] == 'e':
			return "Xeon 6 E"
		}
	}
	return ""
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }
