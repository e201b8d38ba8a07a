package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// format is the version of the JSON form; readers refuse higher ones.
const format = 1

// head and tail are the parts of the JSON form around the figures.
type head struct {
	Format   int               `json:"format"`
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Labels   map[string]string `json:"labels"`
	Command  []string          `json:"command"`
	Started  time.Time         `json:"started_at"`
	Ended    time.Time         `json:"ended_at"`
	ExitCode *int              `json:"exit_code"`
	Signal   string            `json:"signal,omitempty"`
	CPUs     int               `json:"machine_cpus"`
	Limit    int64             `json:"memory_limit_bytes,omitempty"` // of --memory
}

type tail struct {
	Quality map[string]usage.Quality `json:"quality"`
	Source  string                   `json:"energy_source"`
	Reader  string                   `json:"reader"`
	Group   string                   `json:"group"`
	Notes   []string                 `json:"notes"`
	LivesOn []Process                `json:"lives_on"`
	ByName  *bool                    `json:"in_ledger_by_name,omitempty"`
	Meter   meterJSON                `json:"meter"`
}

type meterJSON struct {
	CPU        json.RawMessage `json:"cpu_seconds"`
	MemoryPeak json.RawMessage `json:"memory_peak_bytes"`
}

// JSON returns the report as one indented object with a final newline. Amounts are decimals in base
// units; absent ones are null; integers above 2^53, which many readers would round, are strings.
func (r *Report) JSON() []byte {
	h := head{format, r.ID, r.Name, r.Labels, r.Command, r.Started.UTC(), r.Ended.UTC(), &r.ExitCode, r.Signal, r.CPUs, r.MemoryLimit}
	if h.Labels == nil {
		h.Labels = map[string]string{}
	}
	t := tail{
		Quality: map[string]usage.Quality{}, Source: r.EnergySource, Reader: r.Reader, Group: r.Group,
		Notes: append([]string{}, r.Notes...), LivesOn: append([]Process{}, r.LivesOn...), ByName: r.InLedgerByName,
		Meter: meterJSON{number(r.Meter.CPU, unit.Nanosecond), number(r.Meter.MemoryPeak, unit.Byte)},
	}
	var mid bytes.Buffer
	for k, f := range r.Figures {
		name := details[k].name
		t.Quality[name] = f.Quality
		fmt.Fprintf(&mid, "%q:%s,", name, figure(f, details[k].unit))
	}
	for _, d := range r.derived() {
		t.Quality[d.name] = d.quality
		s := "null"
		if d.quality != usage.Absent {
			s = d.text
		}
		fmt.Fprintf(&mid, "%q:%s,", d.name, s)
	}

	hb, tb := marshal(h), marshal(t)
	whole := slices.Concat(hb[:len(hb)-1], []byte(","), mid.Bytes(), tb[1:])
	var out bytes.Buffer
	if err := json.Indent(&out, whole, "", "  "); err != nil {
		panic("report: " + err.Error()) // composed of valid parts
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// A derived figure is computed from others: it is written but not parsed.
type derived struct {
	name, text string
	quality    usage.Quality
}

func (r *Report) derived() []derived {
	share, qs := r.Share()
	watts, qw := r.Power()
	return []derived{{"machine_share", strconv.FormatFloat(share, 'f', 6, 64), qs},
		{"energy_average_watts", strconv.FormatFloat(watts, 'f', 6, 64), qw}}
}

// marshal encodes without escaping <, > and &, which are common in commands.
func marshal(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("report: " + err.Error()) // only plain structs
	}
	return bytes.TrimSpace(b.Bytes())
}

func figure(f Figure, u unit.Unit) json.RawMessage {
	if f.Quality == usage.Absent {
		return json.RawMessage("null")
	}
	return number(f.Amount, u)
}

func number(amount int64, u unit.Unit) json.RawMessage {
	s := u.Decimal(amount)
	if !strings.Contains(s, ".") && (amount > 1<<53 || amount < -1<<53) && u.Digits() == 0 {
		s = strconv.Quote(s)
	}
	return json.RawMessage(s)
}

// Parse decodes the JSON form. Unknown keys are ignored; missing figures are absent. Errors wrap
// fault.ErrInvalid.
func Parse(b []byte) (*Report, error) {
	var h head
	var t tail
	var m map[string]json.RawMessage
	for _, v := range []any{&m, &h, &t} {
		if err := json.Unmarshal(b, v); err != nil {
			return nil, fmt.Errorf("%w report: %w", fault.ErrInvalid, err)
		}
	}
	switch {
	case h.Format < 1 || h.Format > format:
		return nil, fmt.Errorf("%w report: format %d, supported are formats up to %d", fault.ErrInvalid, h.Format, format)
	case !ValidID(h.ID):
		return nil, fmt.Errorf("%w report: id %q", fault.ErrInvalid, h.ID)
	case h.ExitCode == nil:
		return nil, fmt.Errorf("%w report: exit_code is missing", fault.ErrInvalid)
	}
	r := &Report{
		ID: h.ID, Name: h.Name, Labels: h.Labels, Command: h.Command, Started: h.Started.UTC(), Ended: h.Ended.UTC(),
		ExitCode: *h.ExitCode, Signal: h.Signal, CPUs: h.CPUs, MemoryLimit: max(h.Limit, 0),
		EnergySource: t.Source, Reader: t.Reader, Group: t.Group, Notes: t.Notes, LivesOn: t.LivesOn, InLedgerByName: t.ByName,
	}
	for k := range r.Figures {
		name, u := details[k].name, details[k].unit
		q := t.Quality[name]
		v, ok := m[name]
		if !ok || string(v) == "null" || q == usage.Absent {
			continue
		}
		amount, err := parseNumber(v, u)
		if err != nil {
			return nil, fmt.Errorf("%w report: %s: %w", fault.ErrInvalid, name, err)
		}
		r.Figures[k] = Figure{amount, q}
	}
	var err error
	if r.Meter.CPU, err = parseNumber(t.Meter.CPU, unit.Nanosecond); err != nil {
		return nil, fmt.Errorf("%w report: meter: cpu_seconds: %w", fault.ErrInvalid, err)
	}
	if r.Meter.MemoryPeak, err = parseNumber(t.Meter.MemoryPeak, unit.Byte); err != nil {
		return nil, fmt.Errorf("%w report: meter: memory_peak_bytes: %w", fault.ErrInvalid, err)
	}
	return r, nil
}

// parseNumber converts a decimal in the base unit to the fine unit. Numbers written by mete are
// exact; exponents of other writers have the precision of a float64.
func parseNumber(raw json.RawMessage, u unit.Unit) (int64, error) {
	s := strings.Trim(string(raw), `"`)
	digits := u.Digits()
	if strings.ContainsAny(s, "eE") {
		f, err := strconv.ParseFloat(s, 64)
		f = math.Round(f * math.Pow10(digits))
		if err != nil || math.IsNaN(f) || math.Abs(f) >= 1<<63 {
			return 0, fmt.Errorf("%q is not an amount", s)
		}
		return int64(f), nil
	}
	whole, frac, _ := strings.Cut(s, ".")
	if len(frac) > digits && strings.Trim(frac[digits:], "0123456789") == "" {
		frac = frac[:digits]
	}
	if strings.ContainsAny(frac, "+-") {
		return 0, fmt.Errorf("%q is not an amount", s)
	}
	frac += strings.Repeat("0", max(0, digits-len(frac)))
	v, err := strconv.ParseInt(whole+frac, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not an amount", s)
	}
	return v, nil
}

// labels returns labels as k=v in order of their keys.
func (r *Report) labels() []string {
	var s []string
	for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
		s = append(s, k+"="+r.Labels[k])
	}
	return s
}
