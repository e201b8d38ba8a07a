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

// statError is by how much the CPU time of /proc/stat may be off, which is
// sampled at clock ticks, in ppm: it was seen to be up to 3 % low.
const statError = 30_000

// energyMeter meters the machine's energy while the job runs, and gives the job its
// part: by the CPU time and the memory that it and the whole machine used. The
// meters open while the job's groups are made.
type energyMeter struct {
	h          *hostfs.FS
	opened     chan struct{}
	fail       error
	power      *machine.Power
	denied     []error // meters that there are and that cannot be read
	usage      string  // root's cpuacct.usage; "" where there is none
	powerModel []byte  // what an agent of this machine learned of its power; nil is nothing
	close      func()

	known      *energy.Meters // nil until it has begun
	last       machineUse
	held       int64 // bytes over time that the job held, in byte-seconds
	cpu        int64 // ns that the job used
	job        energy.Job
	incomplete bool // a reading lacked the job's CPU time
	trouble    []string
	err        error
}

// machineUse is what the machine used since boot.
type machineUse struct {
	boot, mono int64 // ns, when
	cpu, off   int64 // ns, and by how much that may be off, in ppm
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
			// It fails only as this machine's clocks do, which reading tells too.
			_ = j.power.Meters.Run(ctx)
		}
	}()
	j.close = func() {
		select {
		case <-j.opened:
		default:
			return // it hangs in some sensor; this process is about to end
		}
		stop()
		<-ended
		if j.power != nil && j.power.Meters != nil {
			_ = j.power.Meters.Close() // of files that were only read
		}
	}
	return j
}

func (j *energyMeter) open(powercap string) {
	var cfg machine.Config
	cfg.Energy.Powercap = powercap
	if j.power, j.fail = machine.OpenPower(j.h, cfg); j.fail != nil {
		return
	}
	j.denied = j.power.Meters.OpenErrors()
	if dir, err := statedir.Default(os.Getenv, os.Geteuid()); err == nil && powercap == "" {
		if b, err := os.ReadFile(filepath.Join(dir, "agent", "power.json")); err == nil {
			j.powerModel = b
		}
	}
	ys, err := j.h.Hierarchies()
	if err != nil {
		return // then the kernel has no groups
	}
	i := slices.IndexFunc(ys, func(y hostfs.Hierarchy) bool { return !y.V2 && y.Has("cpuacct") })
	// The root of every hierarchy is its first file. Within a container the
	// mount shows a group that only looks like it.
	if i >= 0 {
		if id, err := j.h.ID(ys[i].Mount); err == nil && id == 1 {
			j.usage = ys[i].Mount + "/cpuacct.usage"
		}
	}
}

// begin takes the readings from which on the job's energy counts.
func (j *energyMeter) begin() {
	select {
	case <-j.opened:
	case <-time.After(loadTimeout):
		j.err = fmt.Errorf("the meters were not ready within %v", loadTimeout)
		return
	}
	if j.err = j.fail; j.err != nil {
		return
	}
	j.known = energy.New(energy.Config{Meters: j.power.Meters.Meters(), Curve: j.power.Curve})
	if j.powerModel != nil {
		// What is broken or of another machine is left alone: power is learned anew.
		_ = j.known.RestoreModels(j.power.Processor, j.powerModel)
	}
	j.tick(hostfs.Clocks{}, nil)
}

// tick books the time since the reading before, of which m says what the job had
// used by its end.
func (j *energyMeter) tick(at hostfs.Clocks, m *report.Measurement) {
	if j.known == nil || j.err != nil {
		return
	}
	var err error
	if at == (hostfs.Clocks{}) {
		at, err = j.h.Clocks()
	}
	now := machineUse{boot: at.Boottime, mono: at.Monotonic}
	if err == nil {
		err = j.readMachine(&now)
	}
	if err != nil {
		j.err = err
		return
	}
	shown, err := j.power.Meters.Read(nil)
	if err != nil {
		j.err = err
		return
	}
	span := energy.Interval{At: now.boot, CPUs: now.cpus}
	var cpu, memory energy.JobUse
	if m != nil {
		cpu, memory = j.useSinceLast(&now, m)
		span.Elapsed = now.boot - j.last.boot
		span.Suspended = span.Elapsed - (now.mono - j.last.mono) // CLOCK_MONOTONIC stands still then
		if whole := int64(now.cpus)*(now.mono-j.last.mono) - (now.steal - j.last.steal); whole > 0 {
			span.Load = int64(float64(min(whole, cpu.All)) / float64(whole) * power.PPM)
		}
	}
	t := j.known.Tick(span, nil, shown)
	if m != nil { // what is gone before is told of as denied
		j.noteEvents(t.Events)
		j.job.Add(t, cpu, memory)
	}
	j.last = now
}

// noteEvents keeps what happened to meters, each thing once.
func (j *energyMeter) noteEvents(events []energy.Event) {
	for _, e := range events {
		what := fmt.Sprintf("energy meter %s is not used for a time: %s, ", e.Meter, e.Reason)
		told := func(text string) bool { return strings.HasPrefix(text, what) }
		if e.To == 0 && !slices.ContainsFunc(j.trouble, told) {
			j.trouble = append(j.trouble, what+e.Detail)
		}
	}
}

// useSinceLast says what the job and the machine used since the reading before.
func (j *energyMeter) useSinceLast(now *machineUse, m *report.Measurement) (cpu, memory energy.JobUse) {
	if !m.Final.Has.Has(usage.CPU) {
		j.incomplete = true
	}
	cpu.Job = max(0, m.Final.Value[usage.CPU]-j.cpu)
	cpu.All = max(cpu.Job, now.cpu-j.last.cpu)
	cpu.AllError = int64(float64(cpu.All) / power.PPM * float64(now.off))
	held, _ := m.Memory.Integral()
	memory.Job = max(0, held-j.held)
	memory.All = max(memory.Job, int64(float64(j.last.memory+now.memory)/2*float64(now.boot-j.last.boot)/1e9))
	j.cpu, j.held = m.Final.Value[usage.CPU], held
	return cpu, memory
}

// readMachine reads what the machine used.
func (j *energyMeter) readMachine(u *machineUse) error {
	b, err := j.h.ReadFile("/proc/stat")
	if err != nil {
		return err
	}
	s, err := procfmt.Stat(b)
	if err != nil {
		return err
	}
	u.steal, u.cpus = s.Steal, s.CPUs
	u.cpu, u.off = s.User+s.Nice+s.System+s.IRQ+s.SoftIRQ, statError
	if j.usage != "" {
		if b, err = j.h.ReadFile(j.usage); err != nil {
			return err
		}
		if u.cpu, err = procfmt.Int(b); err != nil {
			return err
		}
		u.off = 0
	}
	if b, err = j.h.ReadFile("/proc/meminfo"); err != nil {
		return err
	}
	mem, err := procfmt.Meminfo(b)
	u.memory = mem.Total - mem.Free
	return err
}

// fillReport puts the job's energy into the report.
func (j *energyMeter) fillReport(r *report.Report) {
	switch {
	case j.err != nil:
		r.Notes = append(r.Notes, "energy is absent: "+firstLine(j.err.Error()))
		return
	case j.incomplete || j.job.Quality == usage.Absent:
		return
	}
	q := j.job.Quality
	r.Put(report.Energy, j.job.Active, q)
	r.Put(report.EnergyError, j.job.ActiveError, q)
	r.Put(report.EnergyIdle, j.job.Idle, q)
	r.Put(report.EnergyIdleError, j.job.IdleError, q)
	var from []string
	for d := power.Package; d < power.DomainLimit; d++ {
		if s := j.known.Source(d); s != "" {
			from = append(from, d.String()+" by "+s)
		}
	}
	if r.EnergySource = strings.Join(from, "; "); len(from) == 1 {
		_, r.EnergySource, _ = strings.Cut(r.EnergySource, " by ") // one domain is the machine
	}
	r.Notes = append(r.Notes, j.trouble...)
	if len(j.denied) > 0 {
		// One stands for all: they are refused alike.
		text := firstLine(j.denied[0].Error())
		if hint := fault.Hint(j.denied[0]); hint != "" {
			text += "; " + hint
		}
		r.Notes = append(r.Notes, "energy meter "+text)
	}
}
