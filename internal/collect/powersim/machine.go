// Package powersim simulates the power meters of a machine that has none: a powercap tree
// in a directory, driven by a separate process that applies a power model to the real CPU
// time of loads, and records what each of them used.
//
// [Machine] is the simulation without I/O. [Run] drives it with the CPU time of control
// groups and processes. [Start] does that in a process of its own, which executes this
// program again: so every program and TestMain that calls Start must call [Main] first in
// main.
//
// [Config.Label] marks the tree as simulated, as [Demo] does.
package powersim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

// A PowerModel is the power of a load: Idle, plus Core times the number of busy cores
// raised to Exponent.
type PowerModel struct {
	Idle     int64   // uW
	Core     int64   // uW of the first busy core
	Exponent float64 // 1 is linear; below 1 each further core takes less; 0 means 1
	// Noise is the relative standard deviation of the power above Idle from the model,
	// independent of any load. It changes within a second.
	Noise float64
}

// Power returns the idle power and the power above it with the given number of busy cores,
// both in uW.
func (pm PowerModel) Power(cores float64) (idle, active float64) {
	exponent := pm.Exponent
	if exponent == 0 {
		exponent = 1
	}
	return float64(pm.Idle), float64(pm.Core) * math.Pow(max(0, cores), exponent)
}

// A Zone is one meter of powercap.
type Zone struct {
	ID   string // its directory: "intel-rapl:0", "intel-rapl:0:2"
	Name string // "package-0", "dram", "psys"
	// Domain is where the energy by Model belongs. 0 means that another zone includes it,
	// as a package includes its cores.
	Domain power.Domain
	Model  PowerModel
	// Includes are the IDs of earlier zones whose energy this zone includes: psys includes
	// the packages.
	Includes []string
	Start    int64 // initial uJ of the counter
	Range    int64 // highest value, uJ; 0 means RAPL's usual 262 kJ
}

// usualRange is max_energy_range_uj of most packages.
const usualRange = 262143328850

// A FaultKind is a fault of a meter. Energy is used regardless.
type FaultKind uint8

const (
	Stall FaultKind = iota + 1 // it stands still, then shows everything used
	Lose                       // it stands still, then continues from there
	Fail                       // it cannot be read
	Reset                      // it restarts from 0
	Jump                       // it jumps by Amount
)

// A Fault is a fault of one zone, at times since the machine began. Reset and Jump happen
// once, at From.
type Fault struct {
	Zone     string // ID
	Kind     FaultKind
	From, To time.Duration
	Amount   int64 // uJ
}

// A Machine is a simulated machine: it takes the CPU time of loads and computes the energy
// of each in each domain. It does no I/O.
type Machine struct {
	zones      []zone
	faults     []faultState
	noise      *rand.Rand
	noiseLevel float64 // in standard deviations
	debt       int64   // CPU ns that loads used beyond the total, to subtract from the others
	began      int64
	now        Record
	rest       []float64 // of energy by load and domain: fractions of a microjoule
}

// A zone is a Zone and its counter.
type zone struct {
	Zone
	holds       []int
	used        float64 // uJ since the machine began
	added       float64 // uJ by which the counter is ahead of used
	frozenValue int64   // the counter while it is frozen
	frozen      bool
	failing     bool
}

// faultState is a Fault and its progress.
type faultState struct {
	Fault
	zone  int
	begun bool
	ended bool
	at    float64 // zone.used when it began
}

// A Record is the cumulative use since a machine began.
type Record struct {
	At     int64     // ns of CLOCK_BOOTTIME
	Idle   []int64   // uJ by domain, as power.Domain counts them
	Active [][]int64 // uJ by load and domain; the last load is everything else
	CPU    []int64   // ns by load
}

// NewMachine returns a machine with the given number of loads that begins at the time at.
func NewMachine(zones []Zone, faults []Fault, loads int, seed uint64, at int64) (*Machine, error) {
	m := &Machine{noise: rand.New(rand.NewPCG(seed, 1)), began: at, now: newRecord(loads + 1)}
	m.now.At = at
	m.rest = make([]float64, (loads+2)*int(power.DomainLimit))
	at0 := func(id string) int { return slices.IndexFunc(m.zones, func(z zone) bool { return z.ID == id }) }
	for _, z := range zones {
		if z.ID == "" || at0(z.ID) >= 0 || z.Domain >= power.DomainLimit || z.Model.Exponent < 0 {
			return nil, fmt.Errorf("zone %q: %w", z.ID, fault.ErrInvalid)
		}
		if z.Range <= 0 {
			z.Range = usualRange
		}
		n := zone{Zone: z}
		for _, id := range z.Includes {
			i := at0(id)
			if i < 0 {
				return nil, fmt.Errorf("zone %s includes %q, which is not an earlier zone: %w", z.ID, id, fault.ErrInvalid)
			}
			n.holds = append(n.holds, i)
		}
		m.zones = append(m.zones, n)
	}
	for _, f := range faults {
		i := at0(f.Zone)
		if i < 0 {
			return nil, fmt.Errorf("fault of unknown zone %q: %w", f.Zone, fault.ErrInvalid)
		}
		m.faults = append(m.faults, faultState{Fault: f, zone: i})
	}
	return m, nil
}

// newRecord returns a zero record for the given number of loads.
func newRecord(loads int) Record {
	r := Record{Idle: make([]int64, power.DomainLimit), CPU: make([]int64, loads), Active: make([][]int64, loads)}
	for i := range r.Active {
		r.Active[i] = make([]int64, power.DomainLimit)
	}
	return r
}

// Step books the time since the previous step. cpu is what each load used in it, in ns, all
// the total. The use of loads beyond the total is subtracted from the others in later steps.
func (m *Machine) Step(at int64, cpu []int64, all int64) {
	ns := at - m.now.At
	if ns <= 0 {
		return
	}
	sum := int64(0)
	for i, c := range cpu {
		m.now.CPU[i] += c
		sum += c
	}
	m.debt += all - sum
	others := max(0, m.debt)
	m.debt -= others
	m.now.CPU[len(cpu)] += others
	sum += others
	m.advanceNoise(ns)
	m.now.At = at
	gained := make([]float64, len(m.zones))
	for i := range m.zones {
		z := &m.zones[i]
		idle, active := z.Model.Power(float64(sum) / float64(ns))
		active *= max(0, 1+z.Model.Noise*m.noiseLevel)
		idle, active = idle*float64(ns)/1e9, active*float64(ns)/1e9
		gained[i] = idle + active
		for _, h := range z.holds {
			gained[i] += gained[h]
		}
		z.used += gained[i]
		if z.Domain == 0 {
			continue
		}
		m.book(m.now.Idle, len(cpu)+1, z.Domain, idle)
		for l := range m.now.Active {
			used := others
			if l < len(cpu) {
				used = cpu[l]
			}
			if used > 0 {
				m.book(m.now.Active[l], l, z.Domain, active*float64(used)/float64(sum))
			}
		}
	}
	for i := range m.faults {
		m.applyFault(&m.faults[i], time.Duration(at-m.began))
	}
}

// book adds uJ to a load's energy and keeps the fraction.
func (m *Machine) book(into []int64, load int, d power.Domain, uJ float64) {
	rest := &m.rest[load*int(power.DomainLimit)+int(d)]
	*rest += uJ
	whole := math.Floor(*rest)
	*rest -= whole
	into[d] += int64(whole)
}

// advanceNoise advances the noise, which has a time constant of 0.3 s and a standard
// deviation of 1.
func (m *Machine) advanceNoise(ns int64) {
	keep := math.Exp(-float64(ns) / 0.3e9)
	m.noiseLevel = keep*m.noiseLevel + math.Sqrt(1-keep*keep)*m.noise.NormFloat64()
}

// applyFault starts or ends a fault at its time.
func (m *Machine) applyFault(f *faultState, now time.Duration) {
	z := &m.zones[f.zone]
	if now >= f.From && !f.begun {
		f.begun, f.at = true, z.used
		switch f.Kind {
		case Stall, Lose:
			z.frozenValue, z.frozen = z.value(), true
		case Fail:
			z.failing = true
		case Reset:
			z.added = -z.used - float64(z.Start)
		case Jump:
			z.added += float64(f.Amount)
		}
	}
	if now >= f.To && f.begun && !f.ended {
		f.ended = true
		switch f.Kind {
		case Stall:
			z.frozen = false
		case Lose:
			z.frozen = false
			z.added -= z.used - f.at
		case Fail:
			z.failing = false
		}
	}
}

// value returns the state of the counter.
func (z *zone) value() int64 {
	return max(0, int64(float64(z.Start)+z.used+z.added)) % (z.Range + 1)
}

// Value returns a zone's counter, and false if it cannot be read.
func (m *Machine) Value(zone int) (int64, bool) {
	z := &m.zones[zone]
	switch {
	case z.failing:
		return 0, false
	case z.frozen:
		return z.frozenValue, true
	}
	return z.value(), true
}

// Record returns the use until the latest step. It is valid until the next.
func (m *Machine) Record() *Record { return &m.now }
