package report

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// titleWidth is the displayed length of the command in characters.
const titleWidth = 60

// A line is one row of the text table.
type line struct {
	name, amount, more string
	quality            usage.Quality
	plain              bool // has no quality to show
}

// Text formats the report as a table for a terminal of 80 columns. It contains no control
// characters, whatever the command's name.
func (r *Report) Text() []byte {
	lines := r.lines()
	var wide [3]int
	for _, l := range lines {
		for i, s := range []string{l.name, l.amount, l.more} {
			wide[i] = max(wide[i], utf8.RuneCountInString(s))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", Clean(r.Name), r.outcome())
	fmt.Fprintf(&b, "  %s\n", clip(Clean(Quote(r.Command)), titleWidth))
	for _, l := range lines {
		q := l.quality.String()
		if l.plain {
			q = ""
		}
		s := fmt.Sprintf("  %s  %s  %s  %s", padRight(l.name, wide[0]), padLeft(l.amount, wide[1]), padRight(l.more, wide[2]), q)
		b.WriteString(strings.TrimRight(s, " ") + "\n")
	}
	if s := r.Survivors(); s != "" {
		fmt.Fprintf(&b, "  still running: %s\n", s)
	}
	if r.EnergySource != "" {
		fmt.Fprintf(&b, "  energy is %s: %s\n", r.energySource(), Clean(r.EnergySource))
	}
	if r.InLedgerByName != nil && !*r.InLedgerByName {
		fmt.Fprintf(&b, "  %s\n", NotInLedger)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "  note: %s\n", Clean(n))
	}
	fmt.Fprintf(&b, "  id: %s\n", r.ID)
	return []byte(b.String())
}

// outcome says how the job ended, and first that memory ran out.
func (r *Report) outcome() string {
	if n, ok := r.Get(OOMKills); ok && n > 0 {
		limit := ""
		if r.MemoryLimit > 0 {
			limit = fmt.Sprintf(" (limit %s)", unit.Bytes(float64(r.MemoryLimit)))
		}
		if r.Signal == "SIGKILL" {
			return fmt.Sprintf("killed: out of memory%s, SIGKILL (exit %d)", limit, r.ExitCode)
		}
		return fmt.Sprintf("out of memory%s: %s killed; %s", limit, processes(n), r.end())
	}
	return r.end()
}

func (r *Report) end() string {
	if r.Signal != "" {
		return fmt.Sprintf("ended by %s (exit %d)", r.Signal, r.ExitCode)
	}
	return fmt.Sprintf("exit %d", r.ExitCode)
}

// Survivors returns one line about the processes left running, or "".
func (r *Report) Survivors() string {
	if len(r.LivesOn) == 0 {
		return ""
	}
	var s []string
	for i, p := range r.LivesOn {
		if i == 5 {
			s = append(s, fmt.Sprintf("%d more", len(r.LivesOn)-i))
			break
		}
		s = append(s, fmt.Sprintf("%s (%d)", Clean(p.Name), p.PID))
	}
	after := "use from now on is not in this report"
	if r.InLedgerByName != nil && *r.InLedgerByName {
		after += "; the ledger books it to the job"
	}
	return fmt.Sprintf("%s (%s): %s", processes(int64(len(r.LivesOn))), strings.Join(s, ", "), after)
}

func processes(n int64) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

func (r *Report) lines() []line {
	wall, _ := r.Get(Wall)
	cpu, _ := r.Get(CPU)
	ls := []line{
		r.line("wall", Wall, ""),
		r.line("CPU", CPU, ratio(cpu, wall, "%.2f cores")),
		r.line("  user", CPUUser, r.cpuShare(CPUUser)),
		r.line("  system", CPUSystem, r.cpuShare(CPUSystem)),
		r.line("  throttled", CPUThrottled, ""),
		r.line("memory", MemoryAverage, "average"),
		r.line("", MemoryPeak, "peak"),
	}
	ls = append(ls, r.averageAndPeak("  anonymous", AnonAverage, AnonPeak)...)
	ls = append(ls, r.averageAndPeak("  file cache", FileAverage, FilePeak)...)
	ls = append(ls,
		r.line("disk", DiskRead, "read"),
		r.line("", DiskWritten, "written"),
		r.line("network", NetworkRx, "received"),
		r.line("", NetworkTx, "sent"),
		r.line("processes", Processes, "started"),
	)
	if n, ok := r.Get(OOMKills); ok && n > 0 {
		ls = append(ls, r.line("out of memory", OOMKills, "killed"))
	}
	ls = append(ls, r.energy()...)
	share, q := r.Share()
	ls = append(ls, line{"machine", dash(percent(share), q), fmt.Sprintf("of %s", cpus(r.CPUs)), q, false})
	return append(ls, line{"meter", unit.Seconds(time.Duration(r.Meter.CPU)), unit.Bytes(float64(r.Meter.MemoryPeak)), 0, true})
}

// energy writes what the job's activity took and its share of what the machine
// takes anyway, each with what it may be off.
func (r *Report) energy() []line {
	active := r.line("energy", Energy, "")
	if watts, q := r.Power(); q != usage.Absent {
		active.more = r.formatError(EnergyError) + ", " + unit.Watts(watts) + " on average"
	}
	if active.quality == usage.Absent {
		return []line{active}
	}
	return []line{active, r.line("  idle share", EnergyIdle, r.formatError(EnergyIdleError)+", by CPU time")}
}

// energySource returns how the source determined the energy.
func (r *Report) energySource() string {
	if r.Figures[Energy].Quality == usage.Modelled {
		return "modelled"
	}
	return "from"
}

func (r *Report) formatError(k Key) string {
	v, ok := r.Get(k)
	if !ok {
		return "± ?"
	}
	return "±" + unit.Joules(float64(v)/1e6)
}

// averageAndPeak returns one line with an average and, if present, a peak.
func (r *Report) averageAndPeak(name string, average, peak Key) []line {
	if _, ok := r.Get(average); !ok {
		return nil
	}
	l := r.line(name, average, "average")
	if v, ok := r.Get(peak); ok {
		l.more += ", peak " + unit.Bytes(float64(v))
	}
	return []line{l}
}

func (r *Report) line(name string, k Key, more string) line {
	f := r.Figures[k]
	var s string
	switch details[k].unit {
	case unit.Nanosecond:
		s = unit.Seconds(time.Duration(f.Amount))
	case unit.Microjoule:
		s = unit.Joules(float64(f.Amount) / 1e6)
	case unit.Byte:
		s = unit.Bytes(float64(f.Amount))
	default:
		s = strconv.FormatInt(f.Amount, 10)
	}
	return line{name, dash(s, f.Quality), more, f.Quality, k == Wall}
}

// cpuShare returns k as a percentage of the CPU time.
func (r *Report) cpuShare(k Key) string {
	v, ok := r.Get(k)
	cpu, has := r.Get(CPU)
	if !ok || !has || cpu <= 0 {
		return ""
	}
	return percent(float64(v) / float64(cpu))
}

func ratio(a, b int64, form string) string {
	if b <= 0 {
		return ""
	}
	return fmt.Sprintf(form, float64(a)/float64(b))
}

func percent(v float64) string { return strconv.FormatFloat(v*100, 'f', 1, 64) + " %" }

func cpus(n int) string {
	if n == 1 {
		return "1 CPU"
	}
	return fmt.Sprintf("%d CPUs", n)
}

func dash(s string, q usage.Quality) string {
	if q == usage.Absent {
		return "-"
	}
	return s
}

func padRight(s string, n int) string { return s + strings.Repeat(" ", n-utf8.RuneCountInString(s)) }
func padLeft(s string, n int) string  { return strings.Repeat(" ", n-utf8.RuneCountInString(s)) + s }

func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-3]) + "..."
}

// Clean replaces characters that are not printable.
func Clean(s string) string {
	return strings.Map(func(c rune) rune {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, s)
}
