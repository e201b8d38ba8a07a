package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/collect/vm"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/x/sleep"

	meters "mete.dev/mete/internal/collect/energy"
)

// readInterval is the time between the two readings.
const readInterval = 500 * time.Millisecond

// facts are what the agent's code says of this machine.
type facts struct {
	err      error // why it cannot be measured; then only power may be set
	reader   string
	wanted   string // the configured reader
	loaded   bpf.Part
	refused  []error // by the kernel, of single parts
	denied   error   // why BPF is not used
	partial  string
	live     *live.Machine // of two readings
	storage  storage       // disk space
	guests   []*vm.VM
	power    *sources.Power
	errors   []error // of meters
	share    meters.HostShare
	isGuest  bool // this machine asks a host for a share
	powerErr error
}

// measure opens the machine as the agent does, with the settings of the agent, and reads it twice. A
// driver that does not answer is left to the end of the process.
func (d *doctor) measure(ctx context.Context) facts {
	cfg := d.agent
	if err := errors.Join(d.programs[2].err, cfg.Prepare()); err != nil {
		return facts{err: fmt.Errorf("settings of mete-agent: %w", err)}
	}
	answer := make(chan facts, 1)
	go func() { answer <- read(ctx, cfg.Machine) }()
	select {
	case m := <-answer:
		if m.err == nil || ctx.Err() == nil {
			return m
		}
	case <-ctx.Done():
	}
	return facts{err: errTimeout}
}

// storage says of how many containers and pods the disk space can be measured, with notes about the others.
type storage struct {
	found, all int
	notes      []string
}

func read(ctx context.Context, cfg sources.Config) (f facts) {
	cfg.Tick, cfg.Window, cfg.Slow = readInterval, time.Hour, readInterval
	f.wanted = cfg.Reader
	m, err := sources.Open(cfg, quiet)
	if err != nil {
		f.err = err
		f.readPower(cfg)
		return f
	}
	defer func() { f.err = errors.Join(f.err, m.Close()) }()
	f.reader, f.partial = m.Reader, m.Partial()
	f.loaded, f.refused, f.denied = m.Programs()
	f.power = m.Power()
	f.errors = f.power.OpenErrors
	if _, f.err = m.Tick(); f.err != nil {
		return f
	}
	if f.err = sleep.For(ctx, readInterval); f.err != nil {
		return f
	}
	if _, f.err = m.Tick(); f.err != nil {
		return f
	}
	f.live, f.guests = m.Live(), m.Guests()
	f.storage.found, f.storage.all, f.storage.notes = m.StorageNotes()
	f.share, f.isGuest = f.power.Meters.HostShare()
	return f
}

// readPower reads the meters of a machine that cannot be read as a whole.
func (f *facts) readPower(cfg sources.Config) {
	h, err := hostfs.Open("/")
	if err != nil {
		f.powerErr = err
		return
	}
	defer func() { _ = h.Close() }() // it was only read
	p, err := sources.OpenPower(h, cfg)
	if err != nil {
		f.powerErr = err
		return
	}
	f.power, f.errors = p, p.OpenErrors
	f.share, f.isGuest = p.Meters.HostShare()
	f.powerErr = p.Meters.Close()
}

// readerCheck says which reader the agent uses.
func readerCheck(m *facts) Check {
	const files = "groups that end between two readings are booked to their parents; processes started, and on most machines disk and network of workloads, are absent"
	switch {
	case errors.Is(m.err, errTimeout):
		return of("reader", Limited, "%s", m.err).figures("those of this moment are not known").
			do("mete doctor --timeout 1m; accelerators, a management controller or a busy machine may need the time")
	case m.err != nil && m.reader == "":
		return failed("reader", m.err).figures("none: the agent cannot measure this machine")
	case m.err != nil:
		return failed("reader", m.err).figures("those of this reading are not known")
	case m.reader == sources.BPF && len(m.refused) == 0:
		return of("reader", OK, "bpf; programs loaded: %s", m.loaded)
	case m.reader == sources.BPF:
		var why []string
		for _, err := range m.refused {
			why = append(why, err.Error())
		}
		return of("reader", Limited, "bpf; programs loaded: %s; refused: %s", m.loaded, strings.Join(why, "; ")).
			figures("what the refused parts count is absent, or read by files").do(fault.Hint(errors.Join(m.refused...)))
	case m.denied == nil:
		return of("reader", Limited, "files, as the settings say (reader: %s)", m.wanted).figures(files).do("leave the setting reader at auto to use BPF")
	case errors.Is(m.denied, fault.ErrDenied):
		return of("reader", Limited, "files, as BPF cannot be used: %s", m.denied).figures(files).
			do("run the agent as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, as mete-agent.service does; sudo mete doctor shows what root gets")
	}
	return of("reader", Limited, "files, as BPF cannot be used: %s", m.denied).figures(files).
		do("use Linux 6.1 or newer with CONFIG_DEBUG_INFO_BTF")
}

// scopeCheck says whether the agent sees the whole machine.
func scopeCheck(m *facts) (Check, bool) {
	switch {
	case m.reader == "":
		return Check{}, false
	case m.partial != "":
		return of("scope", Limited, "%s", m.partial).figures("use outside of these groups is booked to system, apportioned").
			do("give the container CAP_DAC_READ_SEARCH, or mount the machine's /sys/fs/cgroup into it: docs/guide/container.md"), true
	}
	return of("scope", OK, "all control groups of the machine"), true
}

// energyChecks says which meters the agent reads, and what stands in without one.
func energyChecks(m *facts, uid int) (out []Check) {
	if m.power == nil {
		if m.powerErr != nil {
			return []Check{failed("meters", m.powerErr)}
		}
		return []Check{of("meters", Missing, "they were not read: see reader")}
	}
	names := 0
	for _, d := range m.power.Meters.Meters() {
		if d.From == power.Host && !m.share.Seen {
			continue // a host may start to send shares at any time
		}
		names++
		out = append(out, of("meter "+d.Name, OK, "%s, %s of the %s, may be off by %s", d.From, d.Kind, d.Level, percent(d.ErrorPPM)).
			figures("energy of the machine measured, of workloads apportioned"))
	}
	for _, err := range m.errors {
		c := of("meter", Limited, "%s", err).figures("the energy that it would show is modelled").do(fault.Hint(err))
		if errors.Is(err, fault.ErrDenied) && uid != 0 {
			c.Do += "; root reads it: sudo mete doctor"
		}
		out = append(out, c)
	}
	if names == 0 {
		c := m.power.Curve
		do := "modprobe intel_rapl_msr; a server's management controller: the setting ipmi: /dev/ipmi0"
		if m.isGuest {
			do = "an agent on the host gives this machine its energy: see virtual"
		}
		out = append(out, of("meters", Missing, "no meter that can be read; the model is %s, ±%s, ±%s when idle", c.Source,
			percent(c.ErrorPPM), percent(max(c.ErrorPPM, c.IdleErrorPPM))).
			figures("energy is "+usage.Modelled.String()).
			do(do+"; or fit a curve on an equal machine that has a meter: mete power calibrate -o FILE"))
	}
	return out
}

func percent(ppm int64) string {
	if ppm == 0 {
		return "what it says"
	}
	return fmt.Sprintf("%.3g %%", float64(ppm)*100/power.PPM)
}

// virtualChecks is about the host of this machine, and about its guests.
func virtualChecks(m *facts) (out []Check) {
	switch s := &m.share; {
	case m.power == nil:
	case !m.isGuest:
		out = append(out, of("host", OK, "this is not a virtual machine, or the settings host_vsock and host_shares are off"))
	case s.From != "":
		out = append(out, of("host", OK, "it gives this virtual machine its energy by %s", s.From).figures("energy of this machine is a part of its host's"))
	case s.Refused != "":
		out = append(out, of("host", Limited, "its share of energy is refused: %s", s.Refused).figures("energy is modelled"))
	default:
		out = append(out, of("host", Missing, "this is a virtual machine, and its host gives it no energy: %s", s.Err).figures("energy is modelled, not a part of the host's").
			do("run mete-agent or mete up on the host, and give this machine a vsock device (QEMU: -device vhost-vsock-pci,guest-cid=N): docs/guide/energy.md"))
	}
	for _, v := range m.guests {
		name := v.Name
		if name == "" {
			name = fmt.Sprintf("PID %d", v.PID)
		}
		if v.RejectReason == "" {
			out = append(out, of("guest "+name, OK, "has a share of this machine's energy"))
			continue
		}
		out = append(out, of("guest "+name, Limited, "no share of energy of its own: %s", v.RejectReason).figures("its energy is booked with that of the workload that holds it"))
	}
	return out
}

// A figure is a line of the group figures.
type figure struct {
	name string
	of   []usage.Resource // any of them
	note string           // beginning of the notes about it
	best usage.Quality    // that it can have
	why  string           // why workloads have it worse, where no note says it
}

// shownFigures are the figures of workloads, in the order of the report.
var shownFigures = []figure{
	{"cpu", []usage.Resource{usage.CPU}, "", usage.Measured, "apportioned where a group has no counter of CPU time: its processes have"},
	{"memory", []usage.Resource{usage.Memory}, "", usage.Measured, "absent where the memory hierarchy does not have the group"},
	{"disk", []usage.Resource{usage.DiskRead}, "disk:", usage.Measured, "absent where no hierarchy that counts disk I/O has the group"},
	{"network", []usage.Resource{usage.NetworkRx}, "network", usage.Measured, "absent where the group has no process, or neither a network namespace nor a group of version 2 of its own"},
	{"processes", []usage.Resource{usage.Processes}, "processes started:", usage.Measured, "absent where the hierarchy for CPU time does not have the group"},
	{"pressure", []usage.Resource{usage.PressureCPU}, "", usage.Measured, "absent where version 2 does not have the group"},
	{"energy", usage.Energies[:], "", usage.Apportioned, "modelled where no meter shows it: see energy"},
}

// figureChecks says of which quality the figures of workloads are in the latest reading, with the notes
// that the agent writes at its start.
func figureChecks(m *facts) (out []Check) {
	if m.live == nil {
		return []Check{of("reading", Missing, "this machine was not read: see reader")}
	}
	said := map[string]bool{}
	for _, f := range shownFigures {
		c := f.check(m.live)
		var notes []string
		for _, n := range m.live.Notes {
			if f.note != "" && strings.HasPrefix(n, f.note) {
				said[n], notes = true, append(notes, n)
				c.Figures, c.State = strings.Join(notes, "; "), max(c.State, Limited)
			}
		}
		out = append(out, c)
	}
	out = append(out, storageCheck(&m.storage))
	for _, n := range m.live.Notes {
		if !said[n] && !strings.HasPrefix(n, "disk space:") && !strings.HasPrefix(n, "reader ") && (m.partial == "" || !strings.HasPrefix(n, m.partial)) {
			out = append(out, of("note", Limited, "%s", n))
		}
	}
	parts := m.live.CPU
	out = append(out, of("system", OK, "%.2f of %.2f CPUs used belong to no workload, and %s of memory", parts.System, parts.Whole-parts.Idle, unit.Bytes(float64(m.live.Memory.System))))
	return out
}

// storageCheck says whether the directories of containers and pods are found; walks take longer than two readings.
func storageCheck(s *storage) Check {
	const name = "disk space"
	why := strings.Join(s.notes, "; ")
	switch {
	case s.all == 0 && why != "":
		return of(name, Missing, "%s", why).figures("used disk space of containers and pods is absent").do("the setting storage: auto, and Linux 5.12 or newer")
	case s.all == 0:
		return of(name, OK, "no container or pod to look at")
	case s.found == s.all:
		return of(name, OK, "the directories of all %d containers and pods are found", s.all)
	}
	state := Limited
	if s.found == 0 {
		state = Missing
	}
	return of(name, state, "the directories of %d of %d containers and pods are found", s.found, s.all).figures("absent of the others: " + why).
		do("run the agent as root, or with CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE; the setting kubelet_dir is that of the kubelet: docs/guide/storage.md")
}

// check counts the workloads that have the figure, by quality.
func (f *figure) check(m *live.Machine) Check {
	var count [4]int
	rows := 0
	for i := range m.Rows {
		r := &m.Rows[i]
		if r.Ended || r.Kind == workload.Idle || r.Kind == workload.System {
			continue
		}
		rows++
		worst := usage.Absent
		for _, res := range f.of {
			worst = max(worst, r.Quality[res.String()])
		}
		count[worst]++
	}
	if rows == 0 {
		return of(f.name, OK, "no workload to look at")
	}
	var words []string
	for _, q := range []usage.Quality{usage.Measured, usage.Apportioned, usage.Modelled, usage.Absent} {
		if n := count[q]; n > 0 {
			words = append(words, fmt.Sprintf("%s in %d", q, n))
		}
	}
	state := OK
	switch {
	case count[usage.Absent] == rows:
		state = Missing
	case count[usage.Absent] > 0 || worse(&count, f.best):
		state = Limited
	}
	c := of(f.name, state, "%s of %s", strings.Join(words, ", "), plural(rows, "workload"))
	if state != OK {
		c = c.figures(f.why)
	}
	return c
}

// worse reports whether workloads have a worse quality than the best one.
func worse(count *[4]int, best usage.Quality) bool {
	for q := best + 1; int(q) < len(count); q++ {
		if count[q] > 0 {
			return true
		}
	}
	return false
}

// plural writes a number and a noun.
func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
