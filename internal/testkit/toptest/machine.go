// Package toptest generates plausible machines for tests of views.
package toptest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Start is the time of the first tick.
var Start = time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC)

// Machine returns a machine of 8 CPUs and 32 GiB at tick number step: pods with their
// containers, services, a Slurm job, a virtual machine, a job of mete run; 30 or more
// workloads whose parts sum to the whole. The same step gives the same machine.
func Machine(step int) *live.Machine {
	b := &builder{rng: rand.New(rand.NewPCG(7, uint64(step))), step: float64(step)}
	b.m = &live.Machine{
		Disk: &live.Flow{}, Network: &live.Flow{},
		Time: Start.Add(time.Duration(step) * time.Second), Host: "node-7.example", Boot: "5b1f", Reader: "bpf",
		Tick: time.Second, CPUs: 8,
		CPU:    live.CPUParts{Whole: 8, Steal: 0.02},
		Memory: live.MemoryParts{Whole: 32 << 30, Idle: 9 << 30, Available: 19 << 30},
		Self:   live.Self{CPUSecondsPerMinute: 0.21, RSSBytes: 17 << 20, TickMicroseconds: 812},
		Notes:  []string{"network of 3 groups in the host's namespace: needs cgroup v2 or BPF"},
	}
	kube := b.add("", workload.Slice, "kubepods.slice", 0, 12<<20)
	burst := b.add(kube, workload.Slice, "burstable", 0, 0)
	for i, app := range []string{"web", "search", "payments", "queue"} {
		pod := b.add(burst, workload.Pod, fmt.Sprintf("shop/%s-7d9c5b6f4-x%dkq", app, i), 0.0004, 1<<20)
		b.net(pod, 2e6/float64(i+1), 9e5/float64(i+1))
		b.add(pod, workload.Container, app, 1.1/float64(i+1), int64(900-200*i)<<20)
		b.add(pod, workload.Container, "istio-proxy", 0.06, 70<<20)
	}
	guaranteed := b.add(kube, workload.Slice, "guaranteed", 0, 0)
	pod := b.add(guaranteed, workload.Pod, "db/postgres-0", 0, 1<<20)
	b.net(pod, 4e5, 7e5)
	b.disk(b.add(pod, workload.Container, "postgres", 0.72, 6<<30), 3e6, 2.4e7)
	system := b.add("", workload.Slice, "system.slice", 0.0012, 3<<20)
	for i, s := range []string{"sshd", "containerd", "kubelet", "chronyd", "cron", "systemd-journald", "systemd-udevd"} {
		b.add(system, workload.Service, s+".service", 0.04/float64(i*i+1), int64(60-7*i)<<20)
	}
	b.add(system, workload.Service, "getty@tty1.service", 0, 1<<20)
	user := b.add(b.add("", workload.Slice, "user.slice", 0, 1<<20), workload.User, "user-1000", 0.0002, 4<<20)
	b.add(b.add(user, workload.Session, "session-3", 0, 2<<20), workload.Job, "build: make -j2", 1.3, 512<<20)
	b.m.Rows[len(b.m.Rows)-1].Quality["cpu"] = usage.Apportioned
	slurm := b.add("", workload.SlurmJob, "job 4711 (maria)", 0, 0)
	b.add(slurm, workload.SlurmStep, "4711.batch", 0.01, 8<<20)
	b.add(slurm, workload.SlurmStep, "4711.0", 0.9, 3<<30)
	b.add("", workload.VM, "win-build", 0.4, 4<<30)
	b.close()
	return b.m
}

type builder struct {
	m    *live.Machine
	rng  *rand.Rand
	step float64
}

// add appends a workload that uses about the given cores and exactly the given memory.
func (b *builder) add(parent workload.ID, kind workload.Kind, name string, cores float64, memory int64) workload.ID {
	path, depth := "/"+name, 0
	for i := range b.m.Rows {
		if p := &b.m.Rows[i]; p.ID == parent {
			path, depth = p.Path+path, p.Depth+1
		}
	}
	id := workload.NewID("node-7", kind, path)
	// A sine wave with noise, in steps of 0.1 ms so that sums stay exact enough to read.
	cpu := math.Round(cores*(1+0.5*math.Sin(b.step/9+float64(len(b.m.Rows)))+0.2*b.rng.Float64())*1e4) / 1e4
	pids := float64(1 + len(name)%7)
	psi := cpu * 0.08
	zero := 0.0
	b.m.Rows = append(b.m.Rows, live.Row{
		ID: id, Parent: parent, Kind: kind, Name: name, Path: path, Depth: depth,
		Rates: live.Rates{CPU: &cpu, Memory: &memory, PIDs: &pids, DiskRead: &zero, DiskWritten: &zero, PressureCPU: &psi,
			PressureMemory: &zero, PressureIO: &zero},
		Total: map[string]string{"cpu": strconv.FormatFloat(cpu*3600, 'f', 3, 64), "memory": strconv.FormatInt(memory*3600, 10),
			"disk_read": "1048576", "processes": "12"},
		Quality: map[string]usage.Quality{"cpu": usage.Measured, "memory": usage.Measured, "disk_read": usage.Measured,
			"processes": usage.Measured},
	})
	return id
}

func (b *builder) net(id workload.ID, rx, tx float64) {
	rx, tx = math.Round(rx*(1+0.3*b.rng.Float64())), math.Round(tx*(1+0.3*b.rng.Float64()))
	r := b.find(id)
	r.NetworkRx, r.NetworkTx = &rx, &tx
	b.m.Network.In += rx
	b.m.Network.Out += tx
}

func (b *builder) disk(id workload.ID, read, written float64) {
	read, written = math.Round(read*b.rng.Float64()), math.Round(written*b.rng.Float64())
	io := 0.23
	r := b.find(id)
	r.DiskRead, r.DiskWritten, r.PressureIO = &read, &written, &io
	b.m.Disk.In += read
	b.m.Disk.Out += written
}

func (b *builder) find(id workload.ID) *live.Row {
	for i := range b.m.Rows {
		if b.m.Rows[i].ID == id {
			return &b.m.Rows[i]
		}
	}
	panic("toptest: no such row")
}

// wattsPerCore is the power that a core in use adds, and errorPart the relative error of a
// row's power.
const (
	wattsPerCore = 6.25
	errorPart    = 0.125
)

// power sets a row's power by its cores, and the machine's idle power.
func (b *builder) power(r *live.Row, cores, idle float64) {
	watts := cores*wattsPerCore + idle
	off := watts * errorPart
	r.Power, r.PowerError = &watts, &off
	r.Quality[live.Power.String()] = usage.Apportioned
	r.Total["energy_package"] = strconv.FormatFloat(watts*3600, 'f', 6, 64)
	r.Total["energy_error"] = strconv.FormatFloat(off*3600, 'f', 6, 64)
	r.Quality["energy_package"], r.Quality["energy_error"] = usage.Apportioned, usage.Apportioned
}

// energy sets the power of all rows: a package and its memory, both with meters.
func (b *builder) energy() {
	const package0, dram = 32, 4.5 // idle W
	m := b.m
	used := m.CPU.Workloads + m.CPU.System
	for i := range m.Rows {
		r := &m.Rows[i]
		if r.Kind == workload.Idle {
			b.power(r, 0, package0+dram)
		} else {
			b.power(r, *r.CPU, 0)
		}
	}
	active := used * wattsPerCore
	m.Energy = &live.Energy{
		Watts: active + package0 + dram, Error: 3.25, Idle: package0 + dram, Quality: usage.Measured,
		Domains: []live.Domain{
			{Name: "package", Watts: active + package0, Error: 2.5, Idle: package0, Quality: usage.Measured, Source: "rapl/package-0"},
			{Name: "dram", Watts: dram, Error: 0.75, Idle: dram, Quality: usage.Measured, Source: "rapl/dram-0"},
		},
	}
}

// close adds the rows system and idle.
func (b *builder) close() {
	m := b.m
	for i := range m.Rows {
		m.CPU.Workloads += *m.Rows[i].CPU
		m.Memory.Workloads += *m.Rows[i].Memory
	}
	m.CPU.System = 0.25
	m.CPU.Idle = m.CPU.Whole - m.CPU.Workloads - m.CPU.System
	m.Memory.System = m.Memory.Whole - m.Memory.Workloads - m.Memory.Idle
	for _, r := range []struct {
		kind   workload.Kind
		cores  float64
		memory int64
	}{{workload.System, m.CPU.System, m.Memory.System}, {workload.Idle, m.CPU.Idle, m.Memory.Idle}} {
		m.Rows = append(m.Rows, live.Row{ID: workload.NewID("node-7", r.kind, r.kind.String()), Kind: r.kind, Name: r.kind.String(),
			Rates: live.Rates{CPU: &r.cores, Memory: &r.memory}, Total: map[string]string{}, Quality: map[string]usage.Quality{}})
	}
	b.energy()
}

// A Meter is a machine whose ticks the test controls.
type Meter struct {
	Tick time.Duration // interval between two machines; 0 means none
	// Err, if set, returns the error of a tick by its number.
	Err  func(step int) error
	step int
	// Simulated is the label of simulated meters.
	Simulated string
	// Closed counts the calls of Close.
	Closed int
}

// Next returns the machine of the next step after a tick, or the error of ctx.
func (m *Meter) Next(ctx context.Context) (*live.Machine, error) {
	timer := time.NewTimer(m.Tick)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
	}
	step := m.step
	m.step++
	if m.Err != nil {
		if err := m.Err(step); err != nil {
			return nil, err
		}
	}
	snapshot := Machine(step)
	snapshot.Simulated = m.Simulated
	return snapshot, nil
}

// Close counts the call.
func (m *Meter) Close() error {
	m.Closed++
	return nil
}
