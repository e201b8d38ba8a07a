// Package sources combines all sources of this machine in one sampler: the groups, processes,
// network, virtual machines and energy meters, and the totals that package totals reads.
package sources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/collect/net"
	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/collect/storage"
	"mete.dev/mete/internal/collect/totals"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Values of Config.Reader.
const (
	Auto  = "auto"  // bpf if the kernel allows it, else files
	BPF   = "bpf"   // iterators and tracepoints
	Files = "files" // files of /proc and cgroupfs
)

// Readers lists the values of Config.Reader.
var Readers = []string{Auto, BPF, Files}

// Values of Config.Scope. In a container they differ.
const (
	ScopeAuto = "auto" // the machine where its groups can be opened, else what the container sees
	ScopeOwn  = "own"  // what the container sees
)

// Values of Config.NetworkClasses.
const (
	ClassesAuto = "auto"
	ClassesOff  = "off"
)

// Values of Config.Connections.
const (
	ConnectionsAuto = "auto"
	ConnectionsOff  = "off"
)

// Scopes lists the values of Config.Scope.
var Scopes = []string{ScopeAuto, ScopeOwn}

// A Config configures a Machine.
type Config struct {
	sampler.Config
	Reader string
	// Scope is what to measure: ScopeAuto or ScopeOwn.
	Scope string
	// Slow is how often each group's slow set is read; 0 means once a window.
	Slow time.Duration
	// Node is the node id; "" means the machine's own id.
	Node string
	// NetworkClasses is whether network traffic is counted by class: ClassesAuto where the reader can, or ClassesOff; ""
	// is ClassesAuto. NetworkRules are the classes of an operator's prefixes.
	NetworkClasses string
	NetworkRules   net.Rules
	// Connections is whether network traffic is counted by peer and port: ConnectionsAuto where it is counted by class, or
	// ConnectionsOff; "" is ConnectionsOff.
	Connections string
	// Storage is how disk space is measured; the zero value does not.
	Storage storage.Config
	// Energy configures the energy meters.
	Energy energy.Config
	// Curve is the machine's power by load for times without a meter; without points it is
	// looked up by the CPU model.
	Curve power.Curve
	// Static is the idle power in uW of each domain, if an operator knows it; 0 means that
	// it is learned.
	Static [power.DomainLimit]int64
	// PowerModels is the result of Machine.PowerModels in an earlier run; nil without one.
	PowerModels []byte
	// Checkpoint is the state of the accounts of an earlier run, for attribute.Restore; nil
	// without one.
	Checkpoint [][]byte
}

// LiveConfig returns the configuration for live views: it reads the slow set at every tick
// too.
func LiveConfig(tick time.Duration, reader string, meters energy.Config) Config {
	c := Config{Config: sampler.Default(), Reader: reader, Slow: tick, Energy: meters}
	c.Tick, c.Window = tick, max(c.Window, tick)
	return c
}

// Validate returns an error wrapping fault.ErrInvalid if c cannot work.
func (c Config) Validate() error {
	if !slices.Contains(Readers, c.Reader) {
		return fault.WithHint(fmt.Errorf("reader %q: %w", c.Reader, fault.ErrInvalid), "readers are auto, bpf and files")
	}
	if c.Scope != "" && !slices.Contains(Scopes, c.Scope) {
		return fault.WithHint(fmt.Errorf("scope %q: %w", c.Scope, fault.ErrInvalid), "scopes are auto and own")
	}
	if c.NetworkClasses != "" && c.NetworkClasses != ClassesAuto && c.NetworkClasses != ClassesOff {
		return fault.WithHint(fmt.Errorf("network classes %q: %w", c.NetworkClasses, fault.ErrInvalid), "use auto or off")
	}
	if c.Connections != "" && c.Connections != ConnectionsAuto && c.Connections != ConnectionsOff {
		return fault.WithHint(fmt.Errorf("connections %q: %w", c.Connections, fault.ErrInvalid), "use auto or off")
	}
	if c.Storage != (storage.Config{}) {
		if err := c.Storage.Validate(); err != nil {
			return err
		}
	}
	return c.Config.Validate()
}

// A Machine reads this machine. Only one goroutine may use it.
type Machine struct {
	*sampler.Sampler
	Reader string // the one in use: BPF or Files

	host      *hostfs.FS
	name      string
	boot      string
	extent    usage.Extent
	partial   string // what of the machine is not seen by name; "" if all is
	table     *cgroup.Table
	kernel    *bpf.Kernel // nil without BPF
	parts     bpf.Part    // of it, that were to be loaded
	denied    error       // why auto does not use BPF; nil if it does
	sources   []sampler.Source
	network   *net.Table
	storage   *storage.Table
	guests    *guests // nil if guests cannot be read
	power     *Power
	modelsErr error  // why the power models of an earlier run were not restored
	modelsFor string // what the power models are valid for
	closers   []func() error
	notes     []string
	log       *slog.Logger

	watchID atomic.Pointer[workload.ID] // workload to break down
	watch   processWatch

	next     time.Time // time of the next tick
	tick     time.Duration
	selfCPU  time.Duration // at the previous tick
	selfAt   time.Time
	selfCost float64
}

// Open opens the sources of this machine. The caller closes it.
func Open(cfg Config, log *slog.Logger) (*Machine, error) {
	h, err := hostfs.Open("/")
	if err != nil {
		return nil, err
	}
	m, err := New(h, cfg, log)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	m.closers = slices.Insert(m.closers, 0, h.Close)
	return m, nil
}

// New opens the sources of the machine h, which the caller still owns. A captured machine
// has the files reader only. The caller closes the Machine before h.
func New(h *hostfs.FS, cfg Config, log *slog.Logger) (_ *Machine, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &Machine{tick: cfg.Tick, host: h, log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	boot, err := h.BootID()
	if err != nil {
		return nil, err
	}
	if m.name, err = h.Hostname(); err != nil {
		return nil, err
	}
	id := cfg.Node
	if id == "" {
		if id, err = h.MachineID(); err != nil {
			id = m.name // a machine without an id is identified by its name
		}
	}
	slow := cfg.Slow
	if slow == 0 {
		slow = cfg.Window
	}
	groups := cgroup.Config{Node: id, Boot: boot, Every: max(1, int(slow/cfg.Tick)), Files: descriptors()}
	var hidden error
	if cfg.Scope != ScopeOwn {
		hidden = h.ShowRoots()
	}
	if err := m.openTable(cfg, groups, log); err != nil {
		return nil, err
	}
	totals, err := totals.Open(h, cfg.Ticks(), m.table.CountsMergedRequests())
	if err != nil {
		return nil, err
	}
	m.closers = append(m.closers, totals.Close)
	m.sources = append(m.sources, m.table, totals)
	traffic := net.Default()
	traffic.Classes, traffic.NoClasses, traffic.Connections = cfg.NetworkRules, cfg.NetworkClasses == ClassesOff, cfg.Connections == ConnectionsAuto
	if err := m.openRest(traffic, groups.Every, log); err != nil {
		return nil, err
	}
	if err := m.openStorage(cfg.Storage, log); err != nil {
		return nil, err
	}
	m.boot = boot
	if err := m.openScope(hidden, log); err != nil {
		return nil, err
	}
	accounts := restore(id, cfg.Checkpoint, log)
	if err := m.openEnergy(cfg, accounts, log); err != nil {
		return nil, err
	}
	m.Sampler = sampler.NewSampler(cfg.Config, accounts, boot, Clock{h}, m.sources, log)
	m.SetMeters(m.power.Meters)
	m.selfAt, m.selfCPU = time.Now(), CPUTime()
	return m, nil
}

// restore returns the accounts of the checkpoint. If it cannot be read, the accounts
// begin from zero, so that the machine is still measured.
func restore(node string, checkpoint [][]byte, log *slog.Logger) *attribute.Accounts {
	accounts, err := attribute.Restore(node, checkpoint)
	if err != nil {
		log.Error("cannot read the checkpoint of the previous run; counting begins from zero", "err", err)
		return attribute.NewAfterLoss(node, oneLine(err))
	}
	return accounts
}

// Boot returns the id of the machine's boot.
func (m *Machine) Boot() string { return m.boot }

// Scope returns the scope of this machine's windows.
func (m *Machine) Scope() usage.Scope { return m.extent.Scope }

// Extent returns what of the kernel this machine's windows measure.
func (m *Machine) Extent() usage.Extent { return m.extent }

// Programs returns the parts of the BPF programs that are loaded, and why each other one that the configuration needs is not. If
// none is, because the kernel or the rights of this process do not allow it, denied says why; it is nil
// with [Files] as the configured reader too.
func (m *Machine) Programs() (loaded bpf.Part, failed []error, denied error) {
	if m.kernel == nil {
		return 0, nil, m.denied
	}
	loaded = m.kernel.WorkingParts()
	for p := bpf.Part(1); p <= bpf.All; p <<= 1 {
		if err := m.kernel.Err(p); err != nil && m.parts&p != 0 {
			failed = append(failed, err)
		}
	}
	return loaded, failed, nil
}

// SetDirectedClasses sets the classes of network traffic that a server gives, from the end of this window on. It is safe for
// concurrent use.
func (m *Machine) SetDirectedClasses(r net.Rules) { m.network.SetDirected(r) }

// Clock returns CLOCK_BOOTTIME and the wall time in ns. Any goroutine may call it.
func (m *Machine) Clock() (boottime, wall int64, err error) {
	boottime, _, wall, err = Clock{m.host}.Clocks()
	return boottime, wall, err
}

// openTable opens the groups with the configured reader: auto uses BPF if the kernel allows
// it.
func (m *Machine) openTable(cfg Config, groups cgroup.Config, log *slog.Logger) error {
	var denied error
	if cfg.Reader != Files {
		denied = m.openBPF(groups, partsOf(cfg), log)
		switch {
		case denied == nil:
			m.Reader = BPF
			log.Info("reader", "reader", BPF, "parts", m.kernel.WorkingParts().String())
			return nil
		case cfg.Reader == BPF:
			return fault.WithHint(denied, strings.TrimPrefix(fault.Hint(denied)+"; --reader files works without BPF", "; "))
		}
	}
	table, err := cgroup.OpenFiles(m.host, groups, log)
	if err != nil {
		return err
	}
	m.Reader, m.table = Files, table
	m.closers = append(m.closers, table.Close)
	if m.denied = denied; denied != nil {
		m.notes = append(m.notes, "reader files, as BPF cannot be used: "+oneLine(denied))
		log.Info("reader", "reader", Files, "why", denied)
	}
	return nil
}

// partsOf returns the parts of the BPF programs that a configuration needs.
func partsOf(cfg Config) bpf.Part {
	parts := bpf.Default().Parts
	switch {
	case cfg.NetworkClasses == ClassesOff:
		parts &^= bpf.Classes
	case cfg.Connections == ConnectionsAuto:
		parts |= bpf.Connections
	}
	return parts
}

func (m *Machine) openBPF(groups cgroup.Config, parts bpf.Part, log *slog.Logger) error {
	if !m.host.Live() {
		return fmt.Errorf("bpf: a captured machine: %w", fault.ErrUnsupported)
	}
	cfg := bpf.Default()
	cfg.Parts = parts
	majors, err := m.host.StackedMajors()
	if err != nil {
		return err
	}
	cfg.SkipMajors = slices.Collect(maps.Keys(majors))
	if cfg.Hierarchies, err = cgroup.FollowedByBPF(m.host); err != nil {
		return err
	}
	k, err := bpf.Open(cfg)
	if err != nil {
		return err
	}
	table, err := cgroup.OpenBPF(m.host, k, groups, log)
	if err != nil {
		return errors.Join(err, k.Close())
	}
	m.kernel, m.parts, m.table = k, parts, table
	m.closers = append(m.closers, k.Close, table.Close)
	return nil
}

// descriptors returns how many descriptors to keep for groups: 80 % of the limit.
func descriptors() int {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 256
	}
	return int(min(lim.Cur, 1<<20) * 8 / 10)
}

// Close closes everything in the reverse order of opening.
func (m *Machine) Close() error {
	var err error
	for _, c := range slices.Backward(m.closers) {
		err = errors.Join(err, c())
	}
	m.closers = nil
	return err
}

// Next waits for the next tick, takes it and returns its result.
func (m *Machine) Next(ctx context.Context) (*live.Machine, error) {
	if m.next.IsZero() { // the first snapshot only sets the start of counting
		m.next = time.Now()
		if _, err := m.Tick(); err != nil {
			return nil, err
		}
	}
	m.next = m.next.Add(m.tick)
	if late := time.Since(m.next); late > 0 {
		m.next = m.next.Add(late.Truncate(m.tick) + m.tick)
	}
	t := time.NewTimer(time.Until(m.next))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-t.C:
	}
	if _, err := m.Tick(); err != nil {
		return nil, err
	}
	l := m.Live()
	l.Breakdown = m.breakDown(ctx)
	return l, nil
}

// Live returns the result of the latest tick.
func (m *Machine) Live() *live.Machine {
	l := m.Accounts().Live()
	l.Host, l.Reader = m.name, m.Reader
	l.Simulated = m.power.Meters.Simulated()
	l.Notes = append(append([]string{}, m.notes...), m.table.Notes()...)
	l.Self = m.self()
	l.Self.TickMicroseconds = float64(m.Snapshot().Took.Nanoseconds()) / 1e3
	return l
}

// self returns the cost of this process.
func (m *Machine) self() live.Self {
	now, cpu := time.Now(), CPUTime()
	if !m.selfAt.IsZero() {
		m.selfCost = (cpu - m.selfCPU).Seconds() / now.Sub(m.selfAt).Seconds() * 60
	}
	m.selfAt, m.selfCPU = now, cpu
	return live.Self{CPUSecondsPerMinute: m.selfCost, RSSBytes: RSS(m.host)}
}

// oneLine returns an error with its hint on one line.
func oneLine(err error) string {
	text := err.Error()
	if hint := fault.Hint(err); hint != "" {
		text += "; " + hint
	}
	return strings.Join(strings.Fields(text), " ")
}

// CPUTime returns the CPU time that this process has used.
func CPUTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// RSS returns the resident memory of this process in bytes, 0 if it cannot be read.
func RSS(h *hostfs.FS) int64 {
	b, err := h.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return 0
	}
	return resident * int64(unix.Getpagesize())
}

// A Clock is the clocks of a host for a sampler.
type Clock struct{ *hostfs.FS }

// Clocks implements sampler.Clock.
func (c Clock) Clocks() (boot, mono, wall int64, err error) {
	k, err := c.FS.Clocks()
	return k.Boottime, k.Monotonic, k.Realtime, err
}
