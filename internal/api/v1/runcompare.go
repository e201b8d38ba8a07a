package v1

import (
	"encoding/json"
	"io"
	"strconv"
)

// RunsCompared are some runs side by side.
type RunsCompared struct {
	Runs    []Run           `json:"runs"`
	Figures []RunDifference `json:"figures"`
}

// A RunDifference is a figure of some runs. A value that is absent is null.
type RunDifference struct {
	Figure  string         `json:"figure"`
	Values  []*json.Number `json:"values"`
	Changes []*float64     `json:"changes"` // from the first run, as a part of its value; null if that is 0 or absent
}

// comparedFigures are the figures that are compared.
var comparedFigures = []struct {
	key string
	of  func(*Run) *json.Number
}{
	{"length_seconds", func(r *Run) *json.Number { return r.Length }}, {"cpu_seconds", func(r *Run) *json.Number { return r.CPU }},
	{"cpu_average_cores", func(r *Run) *json.Number { return r.Cores }}, {"memory_average_bytes", func(r *Run) *json.Number { return r.Memory }},
	{"memory_peak_bytes", func(r *Run) *json.Number { return r.Peak }}, {"disk_read_bytes", func(r *Run) *json.Number { return r.DiskRead }},
	{"disk_written_bytes", func(r *Run) *json.Number { return r.DiskWritten }}, {"network_rx_bytes", func(r *Run) *json.Number { return r.Received }},
	{"network_tx_bytes", func(r *Run) *json.Number { return r.Sent }}, {"processes", func(r *Run) *json.Number { return r.Processes }},
	{"energy_joules", func(r *Run) *json.Number { return r.Energy }}, {"energy_average_watts", func(r *Run) *json.Number { return r.Power }},
}

// CompareRuns compares runs with the first of them.
func CompareRuns(runs []Run) *RunsCompared {
	out := &RunsCompared{Runs: runs}
	for _, f := range comparedFigures {
		d := RunDifference{Figure: f.key}
		for i := range runs {
			v := f.of(&runs[i])
			d.Values = append(d.Values, v)
			d.Changes = append(d.Changes, changeOf(d.Values[0], v))
		}
		out.Figures = append(out.Figures, d)
	}
	return out
}

// changeOf is the change from a to b, as a part of a.
func changeOf(a, b *json.Number) *float64 {
	if a == nil || b == nil {
		return nil
	}
	x, errX := a.Float64()
	y, errY := b.Float64()
	if errX != nil || errY != nil || x == 0 {
		return nil
	}
	return new((y - x) / x)
}

// ChangeText writes the change of a figure of a run from the first one in parentheses, "" for the first
// one, and if it has none.
func (c *RunsCompared) ChangeText(figure string, run int) string {
	for i := range c.Figures {
		if d := &c.Figures[i]; d.Figure == figure && run > 0 && d.Changes[run] != nil {
			return " (" + percentText(d.Changes[run]) + ")"
		}
	}
	return ""
}

// WriteJSON implements [Document].
func (c *RunsCompared) WriteJSON(w io.Writer) error { return writeLine(w, c) }

// WriteCSV implements [Table]: a row for each figure, with the value and the change of each run.
func (c *RunsCompared) WriteCSV(w io.Writer) error {
	r := newRowWriter(w)
	r.add("figure")
	for i := range c.Runs {
		r.add(string(c.Runs[i].ID))
		r.add(string(c.Runs[i].ID) + "_change")
	}
	err := r.flush()
	for i := 0; i < len(c.Figures) && err == nil; i++ {
		d := &c.Figures[i]
		r.add(d.Figure)
		for k, v := range d.Values {
			if v != nil {
				r.text = append(r.text, *v...)
			}
			r.end()
			if change := d.Changes[k]; change != nil {
				r.text = strconv.AppendFloat(r.text, *change, 'g', 6, 64)
			}
			r.end()
		}
		err = r.flush()
	}
	if err != nil {
		return err
	}
	return r.close()
}
