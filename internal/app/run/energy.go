package run

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/collect/machine"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/x/statedir"
)

// statError is the error of the CPU time of /proc/stat in ppm. The kernel samples it at clock
// ticks: up to 3 % too low was observed.
const statError = 30_000

// energyMeter measures the machine's energy while the job runs and computes the job's share: by the
// CPU time and memory that it and the whole machine used. It opens the meters while mete creates
// the job's groups.
type energyMeter struct {
	h          *hostfs.FS
	opened     chan struct{}
	fail       error
	power      *machine.Power
	denied     []error // meters that exist but cannot be read
	usage      string  // cpuacct.usage of the root; "" if there is none
	powerModel []byte  // what this machine's agent learned of its power; nil is none
	close      func()

	known      *energy.Meters // nil before begin
	last       machineUse
	held       int64 // memory of the job over time, in byte-seconds
	cpu        int64 // ns, of the job
	job        energy.Job
	incomplete bool // a reading lacked the job's CPU time
	trouble    []string
	err        error
}

// machineUse is the machine's use since boot.
type machineUse struct {
	boot, mono int64 // ns, of the reading
	cpu, off   int64 // ns, and its error in ppm
	steal      int64 // ns
	cpus       int
	memory     int64 // bytes, now
}

func openEnergyMeter(h *hostfs.FS, powercap string) *energyMeter {
	j := &energyMeter{h: h, opened: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		j.open(powercap)
		close(j.opened)
		if j.fail == nil {
			// It fails only if the clocks fail, which reading reports too.
			_ = j.power.Meters.Run(ctx)
		}
	}()
	j.close = func() {
		select {
		case <-j.opened:
		default:
			return // a sensor hangs; this process is about to end
		}
		stop()
		<-ended
		if j.power != nil && j.power.Meters != nil {
			_ = j.power.Meters.Close() // read only
		}
	}
	return j
}

func (e *energyMeter) open(powercap string) {
	var cfg machine.Config
	cfg.Energy.Powercap = powercap
	if e.power, e.fail = machine.OpenPower(e.h, cfg); e.fail != nil {
		return
	}
	e.denied = e.power.Meters.OpenErrors()
	if dir, err := statedir.Default(os.Getenv, os.Geteuid()); err == nil && powercap == "" {
		if b, err := os.ReadFile(filepath.Join(dir, "agent", "power.json")); err == nil {
			e.powerModel = b
		}
	}
	ys, err := e.h.Hierarchies()
	if err != nil {
		return // the kernel has no groups
	}
	i := slices.IndexFunc(ys, func(y hostfs.Hierarchy) bool { return !y.V2 && y.Has("cpuacct") })
	// The first file of every hierarchy is its root. In a container the mount shows a subgroup that
	// looks like it.
	if i >= 0 {
		if id, err := e.h.ID(ys[i].Mount); err == nil && id == 1 {
			e.usage = ys[i].Mount + "/cpuacct.usage"
		}
	}
}

// begin takes the first readings; the job's energy counts from here.
func (e *energyMeter) begin() {
	select {
	case <-e.opened:
	case <-time.After(loadTimeout):
		e.err = fmt.Errorf("the meters were not ready within %v", loadTimeout)
		return
	}
	if e.err = e.fail; e.err != nil {
		return
	}
	e.known = energy.New(energy.Config{Meters: e.power.Meters.Meters(), Curve: e.power.Curve})
	if e.powerModel != nil {
		// Ignore a broken model, or one of another machine: it is learned again.
		_ = e.known.RestoreModels(e.power.Processor, e.powerModel)
	}
	e.tick(hostfs.Clocks{}, nil)
}

// tick books the time since the previous reading; m is the job's use until its end.
func (e *energyMeter) tick(at hostfs.Clocks, m *report.Measurement) {
	if e.known == nil || e.err != nil {
		return
	}
	var err error
	if at == (hostfs.Clocks{}) {
		at, err = e.h.Clocks()
	}
	now := machineUse{boot: at.Boottime, mono: at.Monotonic}
	if err == nil {
		err = e.readMachine(&now)
	}
	if err != nil {
		e.err = err
		return
	}
	shown, err := e.power.Meters.Read(nil)
	if err != nil {
		e.err = err
		return
	}
	span := energy.Interval{At: now.boot, CPUs: now.cpus}
	var cpu, memory energy.JobUse
	if m != nil {
		cpu, memory = e.useSinceLast(&now, m)
		span.Elapsed = now.boot - e.last.boot
		span.Suspended = span.Elapsed - (now.mono - e.last.mono) // CLOCK_MONOTONIC stops during suspend
		if whole := int64(now.cpus)*(now.mono-e.last.mono) - (now.steal - e.last.steal); whole > 0 {
			span.Load = int64(float64(min(whole, cpu.All)) / float64(whole) * power.PPM)
		}
	}
	t := e.known.Tick(span, nil, shown)
	if m != nil { // earlier events are reported as denied
		e.noteEvents(t.Events)
		e.job.Add(t, cpu, memory)
	}
	e.last = now
}

// noteEvents records each event of meters once.
func (e *energyMeter) noteEvents(events []energy.Event) {
	for _, event := range events {
		what := fmt.Sprintf("energy meter %s temporarily not used: %s, ", event.Meter, event.Reason)
		told := func(text string) bool { return strings.HasPrefix(text, what) }
		if event.To == 0 && !slices.ContainsFunc(e.trouble, told) {
			e.trouble = append(e.trouble, what+event.Detail)
		}
	}
}

// useSinceLast returns the use of the job and the machine since the previous reading.
func (e *energyMeter) useSinceLast(now *machineUse, m *report.Measurement) (cpu, memory energy.JobUse) {
	if !m.Final.Has.Has(usage.CPU) {
		e.incomplete = true
	}
	cpu.Job = max(0, m.Final.Value[usage.CPU]-e.cpu)
	cpu.All = max(cpu.Job, now.cpu-e.last.cpu)
	cpu.AllError = int64(float64(cpu.All) / power.PPM * float64(now.off))
	held, _ := m.Memory.Integral()
	memory.Job = max(0, held-e.held)
	memory.All = max(memory.Job, int64(float64(e.last.memory+now.memory)/2*float64(now.boot-e.last.boot)/1e9))
	e.cpu, e.held = m.Final.Value[usage.CPU], held
	return cpu, memory
}

// readMachine reads the machine's use.
func (e *energyMeter) readMachine(u *machineUse) error {
	b, err := e.h.ReadFile("/proc/stat")
	if err != nil {
		return err
	}
	s, err := procfmt.Stat(b)
	if err != nil {
		return err
	}
	u.steal, u.cpus = s.Steal, s.CPUs
	u.cpu, u.off = s.User+s.Nice+s.System+s.IRQ+s.SoftIRQ, statError
	if e.usage != "" {
		if b, err = e.h.ReadFile(e.usage); err != nil {
			return err
		}
		if u.cpu, err = procfmt.Int(b); err != nil {
			return err
		}
		u.off = 0
	}
	if b, err = e.h.ReadFile("/proc/meminfo"); err != nil {
		return err
	}
	mem, err := procfmt.Meminfo(b)
	u.memory = mem.Total - mem.Free
	return err
}

// fillReport writes the job's energy into the report.
func (e *energyMeter) fillReport(r *report.Report) {
	switch {
	case e.err != nil:
		r.Notes = append(r.Notes, "energy is absent: "+firstLine(e.err.Error()))
		return
	case e.incomplete || e.job.Quality == usage.Absent:
		return
	}
	q := e.job.Quality
	r.Put(report.Energy, e.job.Active, q)
	r.Put(report.EnergyError, e.job.ActiveError, q)
	r.Put(report.EnergyIdle, e.job.Idle, q)
	r.Put(report.EnergyIdleError, e.job.IdleError, q)
	var from []string
	for d := power.Package; d < power.DomainLimit; d++ {
		if s := e.known.Source(d); s != "" {
			from = append(from, d.String()+" by "+s)
		}
	}
	if r.EnergySource = strings.Join(from, "; "); len(from) == 1 {
		_, r.EnergySource, _ = strings.Cut(r.EnergySource, " by ") // one domain: no need to name it
	}
	r.Notes = append(r.Notes, e.trouble...)
	if len(e.denied) > 0 {
		// Report one: all have the same reason.
		text := firstLine(e.denied[0].Error())
		if hint := fault.Hint(e.denied[0]); hint != "" {
			text += "; " + hint
		}
		r.Notes = append(r.Notes, "energy meter "+text)
	}
}
