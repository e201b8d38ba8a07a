// Package powersim plays the power meters of a machine that has none: a powercap
// tree in a directory, driven by a separate process that integrates a known power model
// over what loads really use, and writes down what each of them took.
//
// [Machine] is the rule, in numbers alone. [Run] turns it over the real CPU time
// of control groups and processes. [Start] does that in a process of its own,
// which is this program once more: so [Main] comes first in the main function
// of every program, and in the TestMain of every test, that starts one.
//
// What it shows is made up. [Config.Label] makes the tree say so, as [Demo] does.
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

// A PowerModel is the power that a load takes: Idle, and above that Core times the
// number of busy cores to the power of Bend.
type PowerModel struct {
	Idle     int64   // uW
	Core     int64   // uW of the first busy core
	Exponent float64 // 1 is linear; below 1 each core takes less than the one before; 0 stands for 1
	// Noise is how far the power above Idle strays from the model, with no load to
	// blame: its standard deviation, as a share. It changes within a second.
	Noise float64
}

// Power returns what so many busy cores take: when idle, and above that. Both in
// uW.
func (pm PowerModel) Power(cores float64) (idle, active float64) {
	bend := pm.Exponent
	if bend == 0 {
		bend = 1
	}
	return float64(pm.Idle), float64(pm.Core) * math.Pow(max(0, cores), bend)
}

// A Zone is one meter of powercap.
type Zone struct {
	ID   string // its directory: "intel-rapl:0", "intel-rapl:0:2"
	Name string // "package-0", "dram", "psys"
	// Domain is where the energy by Model belongs. 0 is nowhere: it is in another
	// zone too, as that of cores is in their package's.
	Domain power.Domain
	Model  PowerModel
	// Includes are the IDs of zones above in the list whose energy this one shows
	// too: psys that of the packages.
	Includes []string
	Start    int64 // uJ that the counter shows at first
	Range    int64 // the highest value that it shows, uJ; 0 is RAPL's usual 262 kJ
}

// usualRange is max_energy_range_uj of most packages.
const usualRange = 262143328850

// A FaultKind is what befalls a meter. The energy is used all the same.
type FaultKind uint8

const (
	Stall FaultKind = iota + 1 // it stands still, and comes back with all that was used
	Lose                       // it stands still, and goes on from there
	Fail                       // it cannot be read
	Reset                      // it starts from 0
	Jump                       // it shows By more
)

// A Fault is something wrong with one zone, for a time since the machine began. Reset
// and Jump happen once, at From.
type Fault struct {
	Zone     string // ID
	Kind     FaultKind
	From, To time.Duration
	Amount   int64 // uJ
}

// A Machine is a simulated machine: it is told what loads used, and knows what
// each took of each domain. It does no I/O.
type Machine struct {
	zones      []zone
	faults     []faultState
	noise      *rand.Rand
	noiseLevel float64 // of the model, in standard deviations
	debt       int64   // CPU ns that loads used beyond the whole, from what else there is
	began      int64
	now        Record
	rest       []float64 // of energy by load and domain, what is below a microjoule
}

// A zone is a Zone and its counter.
type zone struct {
	Zone
	holds       []int
	used        float64 // uJ since the machine began
	added       float64 // uJ by which the counter shows more than that
	frozenValue int64   // what it shows while it stands
	frozen      bool
	failing     bool
}

// faultState is a Fault and where it has come to.
type faultState struct {
	Fault
	zone  int
	begun bool
	ended bool
	at    float64 // zone.used when it began
}

// A Record is what was used since a machine began.
type Record struct {
	At     int64     // ns of CLOCK_BOOTTIME
	Idle   []int64   // uJ by domain, as power.Domain counts them
	Active [][]int64 // uJ by load and domain; the last load is all others
	CPU    []int64   // ns by load
}

// NewMachine returns a machine with so many loads, that begins at a time.
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
				return nil, fmt.Errorf("zone %s holds %q, which is not above it: %w", z.ID, id, fault.ErrInvalid)
			}
			n.holds = append(n.holds, i)
		}
		m.zones = append(m.zones, n)
	}
	for _, f := range faults {
		i := at0(f.Zone)
		if i < 0 {
			return nil, fmt.Errorf("fault of zone %q, which is not there: %w", f.Zone, fault.ErrInvalid)
		}
		m.faults = append(m.faults, faultState{Fault: f, zone: i})
	}
	return m, nil
}

// newRecord is a record of so many loads that used nothing.
func newRecord(loads int) Record {
	r := Record{Idle: make([]int64, power.DomainLimit), CPU: make([]int64, loads), Active: make([][]int64, loads)}
	for i := range r.Active {
		r.Active[i] = make([]int64, power.DomainLimit)
	}
	return r
}

// Step books the time since the step before: cpu is what each load used in it,
// in ns, and all what was used together. Loads that used more than that take it
// from the others of later steps.
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

// book adds uJ to what a load took, and keeps what is below one.
func (m *Machine) book(into []int64, load int, d power.Domain, uJ float64) {
	rest := &m.rest[load*int(power.DomainLimit)+int(d)]
	*rest += uJ
	whole := math.Floor(*rest)
	*rest -= whole
	into[d] += int64(whole)
}

// advanceNoise moves the noise on: it forgets with a time constant of 0.3 s, and has
// a standard deviation of 1.
func (m *Machine) advanceNoise(ns int64) {
	keep := math.Exp(-float64(ns) / 0.3e9)
	m.noiseLevel = keep*m.noiseLevel + math.Sqrt(1-keep*keep)*m.noise.NormFloat64()
}

// applyFault takes a fault to its time.
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

// value is where the counter is.
func (z *zone) value() int64 {
	return max(0, int64(float64(z.Start)+z.used+z.added)) % (z.Range + 1)
}

// Value returns what a zone shows, and false where it cannot be read.
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

// Record returns what was used until the latest step. It is good until the next.
func (m *Machine) Record() *Record { return &m.now }
