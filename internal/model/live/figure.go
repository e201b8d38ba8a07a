package live

import (
	"strconv"
	"time"

	"mete.dev/mete/internal/model/usage"
)

// A Field is one of the figures of a workload.
type Field uint8

const (
	CPU            Field = iota // cores
	Memory                      // bytes
	DiskRead                    // bytes per second
	DiskWritten                 // bytes per second
	NetworkRx                   // bytes per second
	NetworkTx                   // bytes per second
	PIDs                        // tasks
	Power                       // watts
	PowerError                  // watts by which Power may be off, either way
	PressureCPU                 // share of the time, 0 to 1
	PressureMemory              // share of the time, 0 to 1
	PressureIO                  // share of the time, 0 to 1

	// FieldLimit is one more than the highest field.
	FieldLimit
)

// resources are those that a figure is the amount of. Power is the sum of several.
var resources = [FieldLimit]usage.Resource{
	CPU: usage.CPU, Memory: usage.Memory, DiskRead: usage.DiskRead, DiskWritten: usage.DiskWritten,
	NetworkRx: usage.NetworkRx, NetworkTx: usage.NetworkTx, PIDs: usage.PIDs, PowerError: usage.EnergyError,
	PressureCPU: usage.PressureCPU, PressureMemory: usage.PressureMemory, PressureIO: usage.PressureIO,
}

// String returns the key of the field's quality in JSON: the name of its resource, or power.
func (f Field) String() string {
	if f == Power {
		return "power"
	}
	return resources[f].String()
}

// Adds reports whether the field of several workloads has a sum: pressure has none.
func (f Field) Adds() bool { return f < PressureCPU }

// A Figure is an amount and its quality. If the quality is [usage.Absent], Value has no meaning.
type Figure struct {
	Value   float64
	Quality usage.Quality
}

// Plus returns the sum. An absent figure adds nothing, and the worse quality wins.
func (a Figure) Plus(b Figure) Figure {
	switch {
	case b.Quality == usage.Absent:
		return a
	case a.Quality == usage.Absent:
		return b
	}
	return Figure{a.Value + b.Value, max(a.Quality, b.Quality)}
}

// Figures are the figures of one workload, or of several together.
type Figures [FieldLimit]Figure

// Plus returns the sum of the fields that add. Of the others it has those of a.
func (a Figures) Plus(b *Figures) Figures {
	for f := range FieldLimit {
		if f.Adds() {
			a[f] = a[f].Plus(b[f])
		}
	}
	return a
}

// Disk returns the bytes read and written together.
func (a *Figures) Disk() Figure { return a[DiskRead].Plus(a[DiskWritten]) }

// Network returns the bytes received and sent together.
func (a *Figures) Network() Figure { return a[NetworkRx].Plus(a[NetworkTx]) }

// FiguresOf returns the amounts of a row of a window in base units: CPU seconds, byte-seconds of
// memory, bytes, joules. [Figures.Rates] makes rates of them.
func FiguresOf(u *usage.Usage) (out Figures) {
	figure := func(r usage.Resource) Figure {
		amount, ok := u.Get(r)
		if !ok {
			return Figure{}
		}
		return Figure{r.Detail().Unit.Float(amount), u.Quality.Get(r)}
	}
	for f, r := range resources {
		if r != 0 {
			out[f] = figure(r)
		}
	}
	for _, r := range usage.Energies {
		out[Power] = out[Power].Plus(figure(r))
	}
	return out
}

// Rates returns the rates of a row of a window of that length, of which a has the amounts, and
// the quality of each that is present, by [Field.String]. Memory is in whole bytes; the others
// have six significant digits, as a rate is no more exact than its window.
func (a *Figures) Rates(length time.Duration) (out Rates, quality map[string]usage.Quality) {
	quality = map[string]usage.Quality{}
	if length <= 0 {
		return out, quality
	}
	fields, values := out.fields(), new([FieldLimit]float64)
	for f := range FieldLimit {
		q, v := a[f].Quality, a[f].Value/length.Seconds()
		switch {
		case q == usage.Absent:
			continue
		case f == Memory:
			level := int64(v)
			out.Memory = &level
		case f == PowerError && a[Power].Quality == usage.Absent:
			continue
		default:
			values[f] = Round(v)
			*fields[f] = &values[f]
		}
		if f != PowerError { // it has that of Power
			quality[f.String()] = q
		}
	}
	return out, quality
}

// Figures returns the figures of a row. Those of which its Quality says nothing are measured.
func (r *Row) Figures() (out Figures) {
	put := func(f Field, v float64, key Field) {
		out[f] = Figure{v, max(usage.Measured, r.Quality[key.String()])}
	}
	for f, v := range r.Rates.fields() {
		switch f := Field(f); {
		case v == nil || *v == nil:
		case f == PowerError:
			put(f, **v, Power)
		default:
			put(f, **v, f)
		}
	}
	if r.Memory != nil {
		put(Memory, float64(*r.Memory), Memory)
	}
	return out
}

// fields are where r has its figures. Memory is an integer, and not among them.
func (r *Rates) fields() [FieldLimit]**float64 {
	return [FieldLimit]**float64{
		CPU: &r.CPU, DiskRead: &r.DiskRead, DiskWritten: &r.DiskWritten, NetworkRx: &r.NetworkRx, NetworkTx: &r.NetworkTx, PIDs: &r.PIDs,
		Power: &r.Power, PowerError: &r.PowerError, PressureCPU: &r.PressureCPU, PressureMemory: &r.PressureMemory, PressureIO: &r.PressureIO,
	}
}

// Round keeps six significant digits of v.
func Round(v float64) float64 {
	w, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 6, 64), 64)
	if err != nil {
		return v
	}
	return w
}
