package table

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/text"
)

// A figureColumn shows a figure.
type figureColumn struct {
	name    string // in flags
	title   string
	key     string    // of the figure; "" is all energy
	unit    unit.Unit // of the figure
	average bool      // over the length of the answer, instead of the amount
	peak    bool      // has no sum
	// reserved says that the figure follows from what is reserved; limited is that of the time with a limit, if it is one.
	reserved bool
	limited  string
	class    bool // of network traffic
}

// figureColumns are the columns behind the names.
func figureColumns() []figureColumn {
	return []figureColumn{
		{name: "cpu", title: "CPU TIME", key: "cpu_seconds", unit: unit.Nanosecond},
		{name: "cores", title: "CORES", key: "cpu_seconds", unit: unit.Nanosecond, average: true},
		{name: "memory", title: "MEMORY", key: "memory_byte_seconds", unit: unit.ByteSecond, average: true},
		{name: "peak", title: "PEAK", key: "memory_peak_bytes", unit: unit.Byte, peak: true},
		{name: "energy", title: "ENERGY", unit: unit.Microjoule},
		{name: "power", title: "POWER", unit: unit.Microjoule, average: true},
		{name: "read", title: "READ", key: "disk_read_bytes", unit: unit.Byte},
		{name: "written", title: "WRITTEN", key: "disk_written_bytes", unit: unit.Byte},
		{name: "received", title: "RECEIVED", key: "network_rx_bytes", unit: unit.Byte},
		{name: "sent", title: "SENT", key: "network_tx_bytes", unit: unit.Byte},
		{name: "processes", title: "PROCESSES", key: "processes", unit: unit.Count},
	}
}

// reservedColumns are the columns of what is reserved, and of what is used beside it and by few.
func reservedColumns() []figureColumn {
	of := func(name, title, key string, u unit.Unit) figureColumn {
		return figureColumn{name: name, title: title, key: key, unit: u, average: true, reserved: true}
	}
	limit := func(c figureColumn, time string) figureColumn { c.limited = time; return c }
	return []figureColumn{
		of("cpu-reserved", "CORES RESERVED", "cpu_reserved_seconds", unit.Nanosecond),
		limit(of("cpu-limit", "CORES LIMIT", "cpu_limit_seconds", unit.Nanosecond), "cpu_limited_time_seconds"),
		of("cpu-unused", "CORES UNUSED", "cpu_unused_seconds", unit.Nanosecond),
		of("memory-reserved", "MEMORY RESERVED", "memory_reserved_byte_seconds", unit.ByteSecond),
		limit(of("memory-limit", "MEMORY LIMIT", "memory_limit_byte_seconds", unit.ByteSecond), "memory_limited_time_seconds"),
		of("memory-unused", "MEMORY UNUSED", "memory_unused_byte_seconds", unit.ByteSecond),
		{name: "storage", title: "STORAGE", key: "storage_byte_seconds", unit: unit.ByteSecond, average: true},
		of("storage-reserved", "STORAGE RESERVED", "storage_reserved_byte_seconds", unit.ByteSecond),
		of("gpu-reserved", "GPUS RESERVED", "gpu_reserved_seconds", unit.Nanosecond),
	}
}

// classColumns are the columns of network traffic by class, and of what has none.
func classColumns() (cols []figureColumn) {
	for _, of := range []struct{ name, title, key string }{{"received", "FROM", "network_rx"}, {"sent", "TO", "network_tx"}} {
		add := func(class usage.NetworkClass, known bool) {
			cols = append(cols, figureColumn{name: of.name + "-" + class.String(), title: of.title + " " + strings.ToUpper(class.String()), key: of.key + "_" + class.String() + "_bytes", unit: unit.Byte, class: known})
		}
		for class := usage.ClassNode; class < usage.NetworkClassLimit; class++ {
			add(class, true)
		}
		add(usage.Unclassified, false)
	}
	return cols
}

// reservedTime is the figure of the time for which it is known what is reserved.
const reservedTime = "reserved_time_seconds"

// A usageRow is a row of the table of usage.
type usageRow struct {
	names   []string
	figures *v1.Figures
	seen    *qualityMarks           // records the marks of the row; nil if the caller does not need them
	empty   func(figureColumn) bool // reports which cells to leave empty; nil for none
	of      *v1.Usage               // of the row's period
}

// Text writes an answer as a table: a row for each group, then system and idle, then the
// sum and the capacity of the machines, then the groups of guests. It contains no control
// characters, whatever a workload is called.
func Text(a *v1.Usage, s Style) string { return UsageText(a, figureColumns(), s) }

// UsageText is Text with some columns. An answer with periods has the rows of each period.
func UsageText(a *v1.Usage, figures []figureColumn, s Style) string {
	var b strings.Builder
	b.WriteString(span(a, s) + "\n")
	if len(a.Groups) == 0 && a.RestGroups == 0 && len(a.NestedGroups) == 0 {
		if a.Nested == query.NestedOnly {
			b.WriteString("no machine was a guest of another one in this range\n")
		} else {
			b.WriteString("nothing is booked in this range\n")
		}
		b.WriteString(s.guests(a))
		b.WriteString(gaps(a))
		return b.String()
	}
	if d, ok := unvalued(a); ok {
		fmt.Fprintf(&b, "no workload in this range has a %s: grouping by it shows one group; mete usage shows jobs\n", s.text(d))
		b.WriteString(gaps(a))
		return b.String()
	}
	var seen qualityMarks
	s = s.energyIn(energies(a))
	rows := s.usageRows(a, &seen)
	if a.Every != "" {
		rows = s.periodRows(a, rows, &seen)
	}
	b.WriteString(write(slices.Values(rows), s.usageColumns(a, figures)))
	b.WriteString(notes(a))
	b.WriteString(s.guests(a))
	b.WriteString(s.legend(&seen))
	b.WriteString(gaps(a))
	return b.String()
}

// energies returns the energies of an answer, in joules, idle energy included.
func energies(a *v1.Usage) iter.Seq[float64] {
	of := func(f *v1.Figures) float64 {
		return f.Get("energy_joules").Value.Plus(f.Get("energy_idle_joules").Value).Float(unit.Microjoule)
	}
	return func(yield func(float64) bool) {
		for _, groups := range [][]v1.Group{a.Groups, a.NestedGroups} {
			for i := range groups {
				if !yield(of(&groups[i].Figures)) {
					return
				}
			}
		}
		yield(of(a.Total))
	}
}

// unvalued returns the dimension of an answer by one dimension that no workload in it has.
func unvalued(a *v1.Usage) (dimension string, ok bool) {
	if len(a.By) != 1 || a.RestGroups > 0 || v1.IsMachineDimension(a.By[0]) {
		return "", false
	}
	lacking := 0
	for _, groups := range [][]v1.Group{a.Groups, a.NestedGroups} {
		for i := range groups {
			switch {
			case groups[i].Keys[0] == "":
				lacking++
			case v1.ResidualKind(a.By, groups[i].Keys) == "":
				return "", false
			}
		}
	}
	key, _ := strings.CutPrefix(string(a.By[0]), string(query.ByLabel))
	if key != string(a.By[0]) {
		key = "label " + key
	}
	return key, lacking > 0
}

// SelfText writes what a job or pod used in all its life, with some columns.
func SelfText(self *v1.Self, figures []figureColumn, s Style) string {
	if self.Usage == nil {
		what := "job"
		if self.Kind == workload.Pod {
			what = "pod"
		}
		return "nothing is booked of this " + what + " yet: it comes with the first window of its machine\n"
	}
	a := self.AsUsage()
	return UsageText(a, WithTraffic(figures, a), s) + "complete through " + s.time(self.Through) + "\n"
}

// usageColumns are the columns of names and figures.
func (s Style) usageColumns(a *v1.Usage, figures []figureColumn) (cols []column[usageRow]) {
	if a.Every != "" {
		cols = append(cols, column[usageRow]{"UTC", false, func(r *usageRow) string {
			if r.of == a {
				return ""
			}
			return r.of.Name(a.Every)
		}})
	}
	for i, d := range a.By {
		cols = append(cols, column[usageRow]{strings.ToUpper(s.text(string(d))), false, func(r *usageRow) string { return r.names[i] }})
	}
	for _, c := range figures {
		title := c.title
		if c.key == "" && !c.average && a.Idle != power.None.String() {
			title += " (ACTIVE + IDLE)"
		}
		cols = append(cols, column[usageRow]{title, true, func(r *usageRow) string {
			if r.figures == nil || r.empty != nil && r.empty(c) {
				return ""
			}
			if r.seen != nil {
				r.seen.noteColumn(c, r.figures)
			}
			return s.cell(c, r.figures, r.of)
		}})
	}
	return cols
}

// usageRows are the rows in their order; nil is a rule.
func (s Style) usageRows(a *v1.Usage, seen *qualityMarks) []*usageRow {
	names := func(keys []string) (out []string) {
		for _, k := range keys {
			out = append(out, s.text(k))
		}
		return out
	}
	label := func(text string) []string {
		names := make([]string, len(a.By))
		names[0] = text
		return names
	}
	var rows, system, idle []*usageRow
	for i := range a.Groups {
		g := &a.Groups[i]
		row := &usageRow{names: names(g.Keys), figures: &g.Figures, seen: seen}
		switch v1.ResidualKind(a.By, g.Keys) {
		case "idle":
			// Idle has CPU time, memory and energy only; the other figures are not absent.
			row.seen, row.empty = nil, absentIn(&g.Figures)
			idle = append(idle, row)
		case "system":
			system = append(system, row)
		default:
			rows = append(rows, row)
		}
	}
	if a.RestGroups > 0 {
		rows = append(rows, &usageRow{names: label(plural(a.RestGroups, "other")), figures: orNone(a.Rest), seen: seen})
	}
	rows = slices.Concat(rows, system, idle)
	isPeak := func(c figureColumn) bool { return c.peak }
	rows = append(rows, nil, &usageRow{names: label("SUM"), figures: orNone(a.Total), seen: seen, empty: isPeak})
	if a.Whole != nil {
		isAbsent := absentIn(a.Whole)
		rows = append(rows, &usageRow{names: label("MACHINE HAD"), figures: a.Whole, seen: seen, empty: func(c figureColumn) bool { return c.peak || isAbsent(c) }})
	}
	if len(a.NestedGroups) > 0 {
		rows = append(rows, nil)
	}
	for i := range a.NestedGroups {
		g := &a.NestedGroups[i]
		row := &usageRow{names: names(g.Keys), figures: &g.Figures, seen: seen}
		row.names[0] = s.inside() + row.names[0]
		if v1.ResidualKind(a.By, g.Keys) == "idle" {
			row.empty = absentIn(&g.Figures)
		}
		rows = append(rows, row)
	}
	if a.NestedOmitted > 0 {
		rows = append(rows, &usageRow{names: label(s.inside() + plural(a.NestedOmitted, "other"))})
	}
	for _, r := range rows {
		if r != nil {
			r.of = a
		}
	}
	return rows
}

// periodRows are the rows of the groups of each period, and then the sums of the whole range, from its rows.
func (s Style) periodRows(a *v1.Usage, whole []*usageRow, seen *qualityMarks) (rows []*usageRow) {
	for i := range a.Periods {
		p := &a.Periods[i]
		of := s.usageRows(p, seen)
		groups, _ := splitRows(of)
		if len(of) > 0 && len(p.Groups)+p.RestGroups > 0 {
			rows = append(rows, groups...)
		}
	}
	_, sums := splitRows(whole)
	return append(rows, sums...)
}

// splitRows splits rows at the first rule.
func splitRows(rows []*usageRow) (groups, sums []*usageRow) {
	i := max(0, slices.Index(rows, nil))
	return rows[:i], rows[i:]
}

// orNone returns f, or figures that are all absent if f is nil.
func orNone(f *v1.Figures) *v1.Figures {
	if f == nil {
		return &v1.Figures{}
	}
	return f
}

// absentIn reports of columns whether their figure is absent.
func absentIn(f *v1.Figures) func(figureColumn) bool {
	return func(c figureColumn) bool { return c.quality(f) == usage.Absent }
}

// inside marks the names of groups of guests.
func (s Style) inside() string {
	if s.ASCII {
		return "> "
	}
	return "↳ "
}

// guests says which nodes are left out because their figures are within those of others.
func (s Style) guests(a *v1.Usage) string {
	if a.NestedNodes == 0 {
		return ""
	}
	verb, whose := "is", "its host's"
	if a.NestedNodes > 1 {
		verb, whose = "are", "their hosts'"
	}
	text := fmt.Sprintf("%s %s within %s figures", plural(a.NestedNodes, "guest machine"), verb, whose)
	switch {
	case len(a.NestedGroups) > 0:
		text = s.inside() + text + ", and in no sum"
	case a.Nested == power.None.String():
		text += "; --nested only shows what ran inside"
	}
	return text + "\n"
}

// interval writes a range of time.
func (s Style) interval(from, to time.Time) string {
	from, to = from.In(s.Zone), to.In(s.Zone)
	end := time.DateTime
	if from.Format(time.DateOnly) == to.Format(time.DateOnly) {
		end = time.TimeOnly
	}
	return fmt.Sprintf("%s to %s (%s)", from.Format(time.DateTime), to.Format(end+" MST"), length(to.Sub(from)))
}

// span writes the range of the table.
func span(a *v1.Usage, s Style) string {
	text := s.interval(a.From, a.To)
	if over := a.Over(); over > 0 && over != a.To.Sub(a.From) {
		text += ", averages over " + length(over) + " with data"
	}
	return text
}

// length writes a length of time in whole units.
func length(d time.Duration) string {
	d = d.Round(time.Second)
	s := ""
	if n := d / (24 * time.Hour); n > 0 {
		s = plural(int(n), "day")
		if d %= 24 * time.Hour; d == 0 {
			return s
		}
		s += " "
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return s + text
}

// qualityMarks are the marks of quality that a table has.
type qualityMarks struct{ apportioned, modelled, absent, unreserved, partlyLimited, classless bool }

// noteColumn notes the marks of a column's figure.
func (m *qualityMarks) noteColumn(c figureColumn, f *v1.Figures) {
	switch q := c.quality(f); {
	case q == usage.Absent && c.reserved:
		m.unreserved = true
	case q == usage.Absent && c.class:
		m.classless = true
	default:
		m.note(q)
	}
	if part, ok := c.limitedPart(f); ok && part < 1 {
		m.partlyLimited = true
	}
}

// note notes the mark of a quality.
func (m *qualityMarks) note(q usage.Quality) {
	switch q {
	case usage.Absent:
		m.absent = true
	case usage.Apportioned:
		m.apportioned = true
	case usage.Modelled:
		m.modelled = true
	}
}

// amount returns the amount that a column is about. Energy is with its idle part.
func (c figureColumn) amount(f *v1.Figures) v1.Amount {
	if part, ok := c.limitedPart(f); ok && part == 0 { // no container had one
		return v1.Amount{Quality: f.Get(c.limited).Quality}
	}
	if c.key != "" {
		return f.Get(c.key)
	}
	active, idle := f.Get("energy_joules"), f.Get("energy_idle_joules")
	return v1.Amount{Value: active.Value.Plus(idle.Value), Quality: max(active.Quality, idle.Quality)}
}

// limitedPart is for which part of the time of the containers there was a limit; false if the column is none of limits, or
// that is not known.
func (c figureColumn) limitedPart(f *v1.Figures) (part float64, ok bool) {
	if c.limited == "" {
		return 0, false
	}
	with, of := f.Get(c.limited), f.Get(reservedTime)
	if with.Quality == usage.Absent || of.Value == (unit.Sum{}) {
		return 0, false
	}
	return with.Value.Float(unit.Nanosecond) / of.Value.Float(unit.Nanosecond), true
}

// quality is the quality of the column's figure.
func (c figureColumn) quality(f *v1.Figures) usage.Quality { return c.amount(f).Quality }

// cell writes one figure with the mark of its quality.
func (s Style) cell(c figureColumn, f *v1.Figures, a *v1.Usage) string {
	amount := c.amount(f)
	over := a.OverOf(c.key)
	if amount.Quality == usage.Absent || c.average && over <= 0 {
		return s.absent()
	}
	mark, text := top.Mark(amount.Quality, s.ASCII), s.figure(c, f, amount.Value.Float(c.unit), over.Seconds())
	switch part, ok := c.limitedPart(f); {
	case ok && part == 0:
		text = "none"
	case ok && part < 1: // 100% is only the whole
		text += fmt.Sprintf(" (%.0f%%)", min(max(100*part, 1), 99))
	}
	return mark + text
}

// figure formats v, the amount of a figure in its base unit. seconds is the length of time of
// averages.
func (s Style) figure(c figureColumn, f *v1.Figures, v, seconds float64) string {
	switch {
	case c.key == "" && c.average:
		return unit.Watts(v / seconds)
	case c.key == "":
		return s.energy(f.Get("energy_joules"), f.Get("energy_idle_joules"), f.Get("energy_error_joules"), f.Get("energy_idle_error_joules"))
	case c.average && c.unit == unit.Nanosecond:
		return strconv.FormatFloat(v/seconds, 'f', 3, 64)
	case c.average:
		return unit.Bytes(v / seconds)
	case c.unit == unit.Nanosecond:
		return cpuTime(v)
	case c.unit == unit.Byte:
		return unit.Bytes(v)
	}
	return whole(int64(min(v, 1<<62)))
}

// energy writes an energy: active and, where it was divided, idle, and the error of both
// together.
func (s Style) energy(active, idle, off, idleOff v1.Amount) string {
	v := active.Value.Plus(idle.Value).Float(unit.Microjoule)
	text := s.joules(v)
	switch {
	case idle.Quality == usage.Absent:
	case active.Quality == usage.Absent:
		text = s.absent() + " + " + text
	default:
		text = s.joules(active.Value.Float(unit.Microjoule)) + " + " + s.joules(idle.Value.Float(unit.Microjoule))
	}
	if off.Quality == usage.Absent && idle.Quality == usage.Absent {
		return text
	}
	sign := " ±"
	if s.ASCII {
		sign = " +-"
	}
	both := off.Value.Plus(idleOff.Value).Float(unit.Microjoule)
	switch percent := 100 * both / v; {
	case v == 0 || percent >= 1000 || both > 0 && percent < 0.05:
		return text + sign + s.joules(both)
	case percent < 9.95:
		return text + sign + strconv.FormatFloat(percent, 'f', 1, 64) + "%"
	default:
		return text + sign + strconv.FormatFloat(percent, 'f', 0, 64) + "%"
	}
}

// cpuTime writes seconds so that they can be compared down a column.
func cpuTime(v float64) string {
	if v >= 100*3600 {
		return whole(int64(math.Round(v/3600))) + " h"
	}
	return unit.Seconds(time.Duration(v * 1e9))
}

// whole writes a number with its thousands apart.
func whole(v int64) string {
	s := strconv.FormatInt(v, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// notes says whether the parts sum to the whole, and where idle energy is.
func notes(a *v1.Usage) string {
	var b strings.Builder
	var differ []string
	divided := a.Idle != power.None.String()
	for _, f := range v1.ListFigures() {
		if whole := a.Whole.Get(f.Key); f.Resource != 0 && whole.Quality != usage.Absent && a.Total.Get(f.Key).Value != whole.Value &&
			!(divided && slices.Contains(usage.Energies[:], f.Resource)) {
			differ = append(differ, f.Resource.String())
		}
	}
	// Idle energy that was divided is of no domain: all energy is compared.
	energy := figureColumn{}
	if had := a.Whole.Get("energy_joules"); divided && had.Quality != usage.Absent && energy.amount(a.Total).Value != had.Value {
		differ = append(differ, "energy")
	}
	switch {
	case differ != nil:
		fmt.Fprintf(&b, "the sum is not what the machine had: %s\n", strings.Join(differ, ", "))
	case a.Whole != nil:
		b.WriteString("the rows add up to the machine: nothing is lost and nothing counted twice\n")
	}
	switch a.Idle {
	case power.Equal.String():
		b.WriteString("energy of idle machines is divided by the time that each workload was there\n")
	case power.Used.String():
		b.WriteString("energy of idle machines is divided by the CPU time that each workload used\n")
	}
	if !slices.ContainsFunc(a.By, func(d query.Dimension) bool { return !v1.IsMachineDimension(d) }) {
		b.WriteString("idle and system are in these rows; add another dimension to see them apart: --by " +
			text.Clean(string(a.By[0])) + ",kind\n")
	}
	return b.String()
}

// legend explains the marks that are in the table.
func (s Style) legend(seen *qualityMarks) string {
	var words []string
	if seen.apportioned {
		words = append(words, top.Mark(usage.Apportioned, s.ASCII)+" a measured total, apportioned")
	}
	if seen.modelled {
		words = append(words, top.Mark(usage.Modelled, s.ASCII)+" modelled")
	}
	if seen.absent {
		words = append(words, s.absent()+" not measured (not zero)")
	}
	if seen.unreserved {
		words = append(words, s.absent()+" under RESERVED, LIMIT and UNUSED: nothing is reserved, or it is not known")
	}
	if seen.classless {
		words = append(words, s.absent()+" under FROM and TO: no traffic of this class is known")
	}
	text := ""
	if seen.partlyLimited {
		text = "LIMIT is the sum over containers that had one: (N%) for that part of their time, none: no container had one\n"
	}
	if words == nil {
		return text
	}
	return text + strings.Join(words, "   ") + "\n"
}

func gaps(a *v1.Usage) string {
	if a.Gaps == 0 {
		return ""
	}
	return fmt.Sprintf("gaps: %d in this range, see mete gaps\n", a.Gaps)
}
