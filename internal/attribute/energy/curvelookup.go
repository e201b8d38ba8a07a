package energy

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/power"
)

// By how much a curve of the table may be off, in ppm of what it says. The tests
// hold 323 results against them that were published of other machines, and have
// idle and full load. They say that idle is the harder one to know, so that it
// has an error of its own.
const (
	// modelErrorPPM is for a CPU that is in the table: 97 of 100 results of the
	// same CPU are inside at full load; idle it would be 87.
	modelErrorPPM = 300_000
	// familyErrorPPM is for a CPU of which the generation is in the table, or the
	// maker alone is known. Of 100 results of CPUs that were taken out of the
	// table, 87 are inside of their generation's curve at full load; large servers
	// are inside of their maker's in 96. Idle it would be 70 of either.
	familyErrorPPM = 400_000
	// unknownErrorPPM is for all else, since full load is from 1 to 10 W a
	// thread: 79 of 100 are inside at full load; idle it would be 71.
	unknownErrorPPM = 700_000
)

// idleErrorPPM is by how much each of them may be off idle, in ppm of what it
// says then: 95 of 100 of the same results are inside for the same CPU, for one of
// its generation and for a large server of its maker, and 87 for all else.
var idleErrorPPM = map[int64]int64{modelErrorPPM: 600_000, familyErrorPPM: 850_000, unknownErrorPPM: 1_400_000}

// largeServerThreads is what makes a server a large one. A CPU that names its maker
// alone is a virtual machine's, and those run on large servers.
const largeServerThreads = 96

// steps is how many points a curve of the table has: idle, and each ten percent.
const steps = 11

// LookupCurve returns the power curve of a whole machine, or of a virtual machine's
// share of one, that has a number of hardware threads of a CPU: model as
// /proc/cpuinfo names it. It says whether the CPU, or another of its generation,
// is in the table; else the curve is a generic one.
//
// The power is the median over the published results that fit best, for each
// hardware thread. So it is the share of threads of the whole machine, with its
// memory, disks, fans and power supply, in which a server of many threads is
// more frugal than a small one. Its error does not hold two things that are known
// to be wrong with it. The results are of machines tuned for them, and those of
// the field draw more when idle:
// https://energyanalysis.lbl.gov/publications/comparing-datasets-volume-servers
// And their load is the share of the highest throughput, which is near the share
// of CPU time but not the same.
func LookupCurve(model string, threads int) (curve power.Curve, known bool) {
	return lookup(curveTable, model, threads)
}

// lookup is Lookup in a table.
func lookup(table []curveRow, model string, threads int) (power.Curve, bool) {
	cpu, kin, maker := cpuName(model), generation(model), maker(model)
	of := func(name string, errorPPM int64, rows []curveRow) power.Curve {
		return curveOf(table, rows, max(1, threads), name, errorPPM)
	}
	same := rowsOf(table, func(r *curveRow) bool { return strings.EqualFold(r.cpu, cpu) })
	if len(same) > 0 {
		return of(same[0].cpu, modelErrorPPM, same), true
	}
	if kin != "" {
		akin := rowsOf(table, func(r *curveRow) bool { return generation(r.cpu) == kin })
		if len(akin) > 0 {
			return of(kin+" generation", familyErrorPPM, akin), true
		}
	}
	if maker != "" {
		large := rowsOf(table, func(r *curveRow) bool { return r.maker() == maker && r.threads >= largeServerThreads })
		return of("generic large "+maker+" server", familyErrorPPM, large), false
	}
	return of("generic server", unknownErrorPPM, table), false
}

// curveOf returns the median of some rows of a table as the curve of a machine
// with so many threads.
func curveOf(table, rows []curveRow, threads int, name string, errorPPM int64) power.Curve {
	low, high := rows[0].threads, rows[0].threads
	columns := make([][]float64, steps)
	ways := map[string][]float64{"EPYC": curveShape(table, "EPYC"), "Xeon": curveShape(table, "Xeon")}
	for i := range rows {
		low, high = min(low, rows[i].threads), max(high, rows[i].threads)
		for step, watts := range rows[i].filledWatts(ways[rows[i].maker()]) {
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
			Load:  int64(step) * power.PPM / (steps - 1),
			Power: int64(math.Round(median(column) * float64(threads) * 1e6)),
		})
	}
	return c
}

// filledWatts returns the row's watts at all steps. Where only idle and full load are
// known, shape leads from one to the other.
func (r *curveRow) filledWatts(way []float64) []float64 {
	if len(r.watts) == steps {
		return r.watts
	}
	out := make([]float64, steps)
	for step, done := range way {
		out[step] = r.watts[0] + (r.watts[1]-r.watts[0])*done
	}
	return out
}

// curveShape returns how power goes from idle, 0, to full load, 1, over the steps: the
// median of a maker's rows that have them all.
func curveShape(table []curveRow, maker string) []float64 {
	columns := make([][]float64, steps)
	for i := range table {
		r := &table[i]
		if len(r.watts) != steps || r.maker() != maker {
			continue
		}
		idle, full := r.watts[0], r.watts[steps-1]
		for step, watts := range r.watts {
			columns[step] = append(columns[step], (watts-idle)/(full-idle))
		}
	}
	way := make([]float64, steps)
	for step, column := range columns {
		way[step] = median(column)
	}
	return way
}

// maker returns the maker of the row's CPU.
func (r *curveRow) maker() string { return maker(r.cpu) }

// rowsOf returns the rows of a table that are wanted.
func rowsOf(table []curveRow, wanted func(*curveRow) bool) []curveRow {
	var out []curveRow
	for i := range table {
		if wanted(&table[i]) {
			out = append(out, table[i])
		}
	}
	return out
}

// median returns the middle of some values, of which there is at least one.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// cpuName returns what the table would call a CPU that /proc/cpuinfo names so:
// "epyc 7763" for "AMD EPYC 7763 64-Core Processor". Variants for one socket
// (EPYC 7702P) and for more memory (Xeon Platinum 8276L) have the name of what
// they are a variant of.
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

// cpuFields returns the words of a CPU's name that tell it from others, in lower
// case.
func cpuFields(model string) []string {
	name, _, _ := strings.Cut(strings.ToLower(model), "@")
	name = strings.NewReplacer("(r)", " ", "(tm)", " ").Replace(name)
	return slices.DeleteFunc(strings.Fields(name), func(word string) bool {
		switch word {
		case "intel", "amd", "cpu", "processor", "0": // "Xeon(R) CPU E5-2670 0" is the first of its line
			return true
		}
		return strings.HasSuffix(word, "-core")
	})
}

// maker returns the line of server CPUs that one is of: EPYC, Xeon, or "".
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

// codenames are what hypervisors call a generation in the name of a CPU:
// "AMD EPYC-Genoa Processor", "Intel Xeon Processor (Skylake, IBRS)".
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

// generation returns the generation of server CPUs that one is of, or "".
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
		// The first digit is the series and the fourth the generation: 7B12 is
		// a 7002, 9V74 a 9004.
		if len(number) >= 4 && digit(number[0]) && digit(number[3]) {
			return "EPYC " + number[:1] + "00" + number[3:4]
		}
	case "xeon":
		return xeonGeneration(number, append(fields[2:], ""))
	}
	return ""
}

// xeonGeneration returns the generation of a Xeon by the words of its name.
func xeonGeneration(number string, more []string) string {
	switch {
	case number == "platinum" || number == "gold" || number == "silver" || number == "bronze":
		// The second digit is the generation, until Xeon 6 began to count anew.
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
	case len(number) >= 5 && number[0] == '6' && digit(number[3]):
		switch {
		case number[1] == '3':
			return "Xeon E" // the 6300 are of its line
		case number[4] == 'p':
			return "Xeon 6 P"
		case number[4] == 'e':
			return "Xeon 6 E"
		}
	}
	return ""
}

// digit says whether a byte is a decimal digit.
func digit(b byte) bool { return b >= '0' && b <= '9' }
