package report

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/x/text"
)

// CSV writes a header and one row for each report, with the keys of the JSON form. Absent values
// are empty fields.
func CSV(reports ...*Report) []byte {
	header := []string{"id", "name", "labels", "command", "started_at", "ended_at", "exit_code", "signal", "machine_cpus"}
	for k := range limit {
		header = append(header, k.String())
	}
	for _, d := range new(Report).derived() {
		header = append(header, d.name)
	}
	header = append(header, "energy_source", "quality", "reader", "meter_cpu_seconds", "meter_memory_peak_bytes", "notes")

	var b bytes.Buffer
	w := csv.NewWriter(&b)
	rows := [][]string{header}
	for _, r := range reports {
		rows = append(rows, text.Fields(r.row()))
	}
	if err := w.WriteAll(rows); err != nil {
		panic("report: " + err.Error()) // a buffer accepts everything
	}
	return b.Bytes()
}

func (r *Report) row() []string {
	row := []string{r.ID, r.Name, strings.Join(r.labels(), ";"), Quote(r.Command), stamp(r.Started), stamp(r.Ended),
		strconv.Itoa(r.ExitCode), r.Signal, strconv.Itoa(r.CPUs)}
	var quality []string
	for k := range limit {
		f := r.Figures[k]
		quality = append(quality, fmt.Sprintf("%s=%s", k, f.Quality))
		if f.Quality == usage.Absent {
			row = append(row, "")
			continue
		}
		row = append(row, details[k].unit.Decimal(f.Amount))
	}
	for _, d := range r.derived() {
		if d.quality == usage.Absent {
			d.text = ""
		}
		row = append(row, d.text)
		quality = append(quality, d.name+"="+d.quality.String())
	}
	return append(row, r.EnergySource, strings.Join(quality, ";"), r.Reader,
		strings.Trim(string(number(r.Meter.CPU, details[CPU].unit)), `"`), strconv.FormatInt(r.Meter.MemoryPeak, 10),
		strings.Join(r.Notes, "; "))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// Quote quotes an argument vector for a shell.
func Quote(argv []string) string {
	var s []string
	for _, a := range argv {
		if a == "" || strings.ContainsFunc(a, isSpecial) {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		s = append(s, a)
	}
	return strings.Join(s, " ")
}

func isSpecial(c rune) bool {
	return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,@%+", c)
}
