package power

import (
	"encoding/json"
	"time"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/collect/vm"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A listing is the output of mete power, and its JSON. Missing values are null, with the reason
// beside them.
type listing struct {
	Time      time.Time      `json:"time"`
	Over      float64        `json:"over_seconds"` // between the two readings
	Processor string         `json:"processor"`
	Meters    []meterListing `json:"meters"`
	Refused   []refusal      `json:"refused"`
	// Machine is the machine's power as mete books it; nil is absent.
	Machine *live.Energy `json:"machine"`
	Curve   curve        `json:"curve"`
	VMs     []guest      `json:"virtual_machines"`
	// VMsWhy is why virtual machines are not listed; "" if they are.
	VMsWhy string `json:"virtual_machines_why,omitempty"`
}

// A meterListing is a meter and its reading.
type meterListing struct {
	Name    string        `json:"name"`
	From    string        `json:"from"`
	Level   string        `json:"level"`
	Domain  string        `json:"domain"`
	Shows   string        `json:"shows"` // energy or power
	Class   float64       `json:"class_percent"`
	Watts   *float64      `json:"watts"`
	Error   *float64      `json:"error_watts"`
	Quality usage.Quality `json:"quality"`
	Why     string        `json:"why,omitempty"` // why the value is absent
}

// A refusal is a meter that cannot be read.
type refusal struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
}

// A curve is power by load, modelled.
type curve struct {
	Of      string        `json:"of"` // the domain of the power
	Source  string        `json:"source"`
	Class   float64       `json:"class_percent"`
	Idle    float64       `json:"class_idle_percent"`
	Quality usage.Quality `json:"quality"`
	Points  []point       `json:"points"`
}

type point struct {
	Load  int64   `json:"load_percent"`
	Watts float64 `json:"watts"`
}

// A guest is a virtual machine. CPU times are in CPUs of this machine.
type guest struct {
	Name     string         `json:"name"`
	UUID     *string        `json:"uuid"`
	PID      int32          `json:"pid"`
	VCPUs    int            `json:"vcpus"`
	MaxVCPUs int            `json:"max_vcpus"`
	CID      *uint32        `json:"cid"`
	Group    string         `json:"group"`
	Workload *guestWorkload `json:"workload"`
	// Energy reports whether it gets its own share of the machine's energy; EnergyWhy is why not.
	Energy    bool   `json:"has_share_of_energy"`
	EnergyWhy string `json:"share_of_energy_why,omitempty"`

	CPU      *float64           `json:"cpu_cores"`
	CPUWhy   string             `json:"cpu_why,omitempty"`
	Roles    map[string]float64 `json:"cpu_cores_by_role"` // vcpu, vhost, io, emulator
	Steal    *float64           `json:"steal_cores"`
	StealWhy string             `json:"steal_why,omitempty"`
	Exits    *float64           `json:"exits_per_second"`
	// Counted holds all counters of KVM per second, by QEMU's names; counters in _ns are converted
	// to seconds.
	Counted   map[string]float64       `json:"exits_by_name"`
	ExitsWhy  string                   `json:"exits_why,omitempty"`
	ExitsHint string                   `json:"exits_hint,omitempty"`
	Quality   map[string]usage.Quality `json:"quality"`
}

type guestWorkload struct {
	ID   workload.ID   `json:"id"`
	Kind workload.Kind `json:"kind"`
	Name string        `json:"name"`
	Path string        `json:"path"`
}

// meters returns the lines of meters with two readings of each.
func meters(list []power.Meter, before, after []power.Reading) []meterListing {
	out := []meterListing{}
	for i := range list {
		m := &list[i]
		s := meterListing{Name: m.Name, From: m.From.String(), Level: m.Level.String(), Domain: m.Domain.String(), Shows: m.Kind.String(), Class: float64(m.ErrorPPM) * 100 / power.PPM}
		p := energy.PowerBetween(m, reading(before, i), reading(after, i))
		if s.Why = p.Reason; s.Why == "" {
			w, e := watts(p.Power), watts(p.Error)
			s.Watts, s.Error, s.Quality = &w, &e, usage.Measured
			if p.Modelled || m.From == power.Model {
				s.Quality = usage.Modelled
			}
		}
		out = append(out, s)
	}
	return out
}

func reading(rs []power.Reading, i int) power.Reading {
	for _, r := range rs {
		if r.Meter == i {
			return r
		}
	}
	return power.Reading{Meter: i, Err: "it was not read"}
}

func refusals(errs []error) []refusal {
	out := []refusal{}
	for _, err := range errs {
		out = append(out, refusal{err.Error(), fault.Hint(err)})
	}
	return out
}

// loads are the loads in percent at which a curve is shown.
var loads = []int64{0, 25, 50, 75, 100}

func curveOf(c *power.Curve) curve {
	out := curve{Of: "the whole machine", Source: c.Source, Class: float64(c.ErrorPPM) * 100 / power.PPM,
		Idle: float64(max(c.ErrorPPM, c.IdleErrorPPM)) * 100 / power.PPM, Quality: usage.Modelled}
	if c.Domain == power.Package {
		out.Of = "its CPU packages"
	}
	for _, l := range loads {
		out.Points = append(out.Points, point{l, watts(energy.CurvePower(c, l*power.PPM/100))})
	}
	return out
}

// An observation is one of two readings of a virtual machine.
type observation struct {
	times    vm.Times
	timesErr error
	exits    vm.Exits
	exitsErr error
	exitsAt  time.Time
}

// guestOf returns the line of a virtual machine with two readings.
func guestOf(v *vm.VM, a, b *observation) guest {
	g := guest{Name: v.Name, PID: v.PID, VCPUs: v.VCPUs, MaxVCPUs: v.MaxVCPUs, Group: v.Group,
		Energy: v.RejectReason == "", EnergyWhy: v.RejectReason, Quality: map[string]usage.Quality{}}
	if v.UUID != "" {
		g.UUID = &v.UUID
	}
	if v.CID != 0 {
		g.CID = &v.CID
	}
	if w := v.Workload; w.ID != "" {
		g.Workload = &guestWorkload{w.ID, w.Kind, w.Name, w.Path}
	}
	g.setCPUTime(a, b)
	g.setExits(a, b)
	for key, have := range map[string]bool{"cpu": g.CPU != nil, "steal": g.Steal != nil, "exits": g.Exits != nil} {
		if have {
			g.Quality[key] = usage.Measured
		} else {
			g.Quality[key] = usage.Absent
		}
	}
	return g
}

// unnamed is why the roles of threads are unknown.
const unnamed = "its threads have no names: start it with -name NAME,debug-threads=on"

func (g *guest) setCPUTime(a, b *observation) {
	for _, err := range []error{a.timesErr, b.timesErr} {
		if err != nil {
			g.CPUWhy, g.StealWhy = err.Error(), err.Error()
			return
		}
	}
	r, ok := b.times.Since(a.times)
	if !ok {
		g.CPUWhy, g.StealWhy = "no time passed", "no time passed"
		return
	}
	g.CPU = &r.CPU
	if r.Named {
		g.Roles = map[string]float64{}
		for role, rate := range r.Role {
			g.Roles[vm.Role(role).String()] = rate
		}
	}
	if g.Steal = &r.Wait; !r.HasWait {
		g.Steal, g.StealWhy = nil, unnamed
	}
}

func (g *guest) setExits(a, b *observation) {
	for _, err := range []error{a.exitsErr, b.exitsErr} {
		if err != nil {
			g.ExitsWhy, g.ExitsHint = err.Error(), fault.Hint(err)
			return
		}
	}
	r, why := b.exits.Since(a.exits, b.exitsAt.Sub(a.exitsAt))
	if why != "" {
		g.ExitsWhy = why
		return
	}
	all := r["exits"]
	g.Exits, g.Counted = &all, r
}

// encode is the listing's JSON.
func (l *listing) encode() ([]byte, error) {
	b, err := json.MarshalIndent(l, "", "  ")
	return append(b, '\n'), err
}
