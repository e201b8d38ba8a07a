// Package energy reads the meters inside a machine: RAPL by the kernel's
// powercap files, the sensors of hwmon, and the management controller by DCMI; in
// a virtual machine, what its host gives it. Accelerators are read by collect/gpu.
//
// [Source.Read] belongs before and after a snapshot. It reads the meters that
// count energy. Those that show present power may take many milliseconds to
// answer, so [Source.Run] asks them at its own pace, and Read hands over what
// they showed last.
//
// Nothing is judged here. A meter that cannot be read gives a reading that says
// why, and the rest live. Where two interfaces show the same counter, one of
// them is opened.
package energy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"mete.dev/mete/internal/collect/gpu"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

// A Config says what to open.
type Config struct {
	// Powercap is a directory of this process to read in place of the machine's
	// /sys/class/powercap and hwmon, such as a simulated one; "" is the
	// machine's own.
	Powercap string
	// Every is the time between two updates of the counters in Powercap; 0 is
	// RAPL's millisecond.
	Every time.Duration
	// ErrorPPM is by how much the counters in Powercap may be off; 0 is RAPL's
	// class. A simulated counter is exact.
	ErrorPPM int64
	// IPMI is the device of the management controller, such as /dev/ipmi0, which
	// takes some 10 ms to answer when it is opened, at most two seconds. "" leaves
	// it alone.
	IPMI string
	// NVML says whether to read the accelerators of NVIDIA: gpu.Auto, gpu.On, gpu.Off,
	// or the path of mete-nvml; "" leaves them alone.
	NVML string
	// Sample is the time between two looks at meters that show present power; 0
	// is a second, as sensors and controllers have nothing newer to show.
	Sample time.Duration
	// Shares is the directory in which the host puts what it gives this machine,
	// where it is a virtual one; "" is none.
	Shares string
	// VSock says to ask the host for that by AF_VSOCK too.
	VSock bool
	// Dial connects to the host in place of AF_VSOCK; nil is that.
	Dial func(context.Context) (net.Conn, error)
}

// Validate reports what is wrong with c.
func (c Config) Validate() error {
	if c.Sample != 0 && (c.Sample < 10*time.Millisecond || c.Sample > time.Minute) {
		return fmt.Errorf("power samples each %v: not between 10ms and a minute: %w", c.Sample, fault.ErrInvalid)
	}
	if err := gpu.Validate(c.NVML); err != nil {
		return err
	}
	return nil
}

// A Source reads the meters of one machine. Read and Run may be called at the
// same time, each by one goroutine.
type Source struct {
	host    *hostfs.FS // has the clock
	sample  time.Duration
	meters  []power.Meter
	closers []func() error
	// openErrors says what there is that Open made no meter of.
	openErrors []error
	simulated  string // what the meters are called where they are; else ""

	counters  []*fileMeter // Energy meters: the first of meters
	sensors   []*fileMeter // Power meters in files: the next ones
	dcmi      *dcmi        // the next one; nil where there is none
	hostMeter *hostMeter   // the next one; nil where this is no virtual machine
	gpus      *gpu.Reader
	gpu       int // index of its first meter: they are the last ones

	mu     sync.Mutex
	latest []power.Reading // of levels and dcmi
}

// Open opens the meters that the machine has; none at all is no error. What is
// there but cannot be read is told by [Source.OpenErrors]. Meters of power are asked
// for a first value. The caller closes it.
func Open(h *hostfs.FS, cfg Config) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Sample == 0 {
		cfg.Sample = time.Second
	}
	s := &Source{host: h, sample: cfg.Sample}
	files, err := s.findFiles(cfg)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	for _, g := range files {
		if g.meter.Kind == power.Energy {
			s.counters = append(s.counters, g)
		} else {
			s.sensors = append(s.sensors, g)
		}
	}
	now, err := h.Boottime()
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	for _, list := range [][]*fileMeter{s.counters, s.sensors} {
		for _, g := range list {
			g.index = len(s.meters)
			s.meters = append(s.meters, g.meter)
			g.open(now)
		}
	}
	if cfg.IPMI != "" && h.Live() {
		s.openDCMI(cfg.IPMI)
	}
	for i := range s.meters {
		if m := &s.meters[i]; m.Kind == power.Power {
			m.Every += s.sample.Nanoseconds() // a value grows old here too
		}
	}
	s.latest = make([]power.Reading, len(s.meters)-len(s.counters))
	if s.hostMeter = openHostMeter(h, cfg); s.hostMeter != nil {
		s.hostMeter.readFirst()
		s.hostMeter.index = len(s.meters)
		s.meters = append(s.meters, s.hostMeter.meter())
	}
	s.openGPUs(cfg.NVML)
	if err := s.sampleSensors(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// findFiles finds the meters that are files: the machine's, or those of a directory.
func (s *Source) findFiles(cfg Config) ([]*fileMeter, error) {
	if cfg.Powercap != "" {
		h, err := hostfs.Open("/")
		if err != nil {
			return nil, err
		}
		s.closers = append(s.closers, h.Close)
		zones, refused, err := powercap(h, cfg.Powercap)
		switch {
		case err != nil:
			err = fault.WithHint(fmt.Errorf("powercap: %w", err), layoutHint)
		case len(zones)+len(refused) == 0:
			refused = append(refused, fault.WithHint(fmt.Errorf("powercap: no counter in %s: %w", cfg.Powercap, fault.ErrUnsupported), layoutHint))
		}
		s.simulated = simulated(h, cfg.Powercap, zones)
		for _, m := range zones {
			if cfg.Every > 0 {
				m.meter.Every = cfg.Every.Nanoseconds()
			}
			if cfg.ErrorPPM > 0 {
				m.meter.ErrorPPM = cfg.ErrorPPM
			}
		}
		s.openErrors = refused
		return deduplicate(zones, nil), err
	}
	zones, refused, err := powercap(s.host, powercapDir)
	s.openErrors = refused
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return nil, err
	}
	sensors, err := hwmon(s.host)
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return nil, err
	}
	return deduplicate(zones, sensors), nil
}

// layoutHint is what a directory of counters has in it.
const layoutHint = "it takes a directory that is like /sys/class/powercap: with intel-rapl:0/name (package-0) and intel-rapl:0/energy_uj in it"

// openDCMI opens the management controller, and keeps it where it answers.
func (s *Source) openDCMI(device string) {
	b, err := openIPMI(s.host.Path(device))
	if errors.Is(err, fault.ErrNotFound) {
		return
	}
	if err == nil {
		s.closers = append(s.closers, b.Close)
		s.dcmi = &dcmi{index: len(s.meters), path: device, bmc: b}
		_, err = s.dcmi.read()
	}
	switch {
	case err == nil || s.dcmi != nil && errors.Is(err, fault.ErrUnavailable):
		s.meters = append(s.meters, s.dcmi.meter())
	default:
		s.dcmi = nil
	}
	if errors.Is(err, fault.ErrDenied) {
		err = fault.WithHint(err, "run as root, or let this user read and write "+device)
	}
	if err != nil {
		s.openErrors = append(s.openErrors, fmt.Errorf("%s: %w", dcmiName, err))
	}
}

// Meters lists what is read. Readings name their meter by its place here. The
// list stays as it is, and callers leave it so.
func (s *Source) Meters() []power.Meter { return s.meters }

// OpenErrors says of each meter that is there and that Open could not open why,
// with a hint at what to grant. Each but the management controller is tried
// again every ten seconds. It is for the time before the first Read and Run.
func (s *Source) OpenErrors() []error {
	errs := slices.Clone(s.openErrors)
	for _, list := range [][]*fileMeter{s.counters, s.sensors} {
		for _, m := range list {
			if m.reason == nil {
				continue
			}
			err := fmt.Errorf("%s: %w", m.meter.Name, m.reason)
			if errors.Is(err, fault.ErrDenied) {
				err = fault.WithHint(err, grantHint)
			}
			errs = append(errs, err)
		}
	}
	return errs
}

// grantHint is what lets one read energy counters. They are for root alone since
// one can learn secrets from them (CVE-2020-8694, CVE-2020-12912).
const grantHint = "energy counters are readable by root alone: run as root, or grant CAP_DAC_READ_SEARCH (in a systemd unit: AmbientCapabilities=CAP_DAC_READ_SEARCH)"

// Read appends to into a reading of each meter, in their order. It allocates
// nothing where into has the room and the meters answer as they did before.
//
// What a Power meter showed last is given as of now: how old that can be is the
// meter's Every. Where it is older, as Run does not run or the meter does not
// answer, there is no value.
func (s *Source) Read(into []power.Reading) ([]power.Reading, error) {
	now, err := s.host.Boottime()
	if err != nil {
		return into, err
	}
	for _, m := range s.counters {
		r := m.read(now)
		after, err := s.host.Boottime()
		if err != nil {
			return into, err
		}
		// The counter was read somewhere between the two.
		r.At = now + (after-now)/2
		into = append(into, r)
		now = after
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.latest {
		// Twice as old is late, not missing: samples do not come on the dot.
		if now-r.At > 2*s.meters[r.Meter].Every && r.Err == "" {
			r.Value, r.Err = 0, "no new sample"
		}
		r.At = now
		into = append(into, r)
	}
	if s.hostMeter != nil {
		into = append(into, s.hostMeter.read(now))
	}
	return s.gpus.Read(into, s.gpu, now), nil
}

// Run samples the Power meters until ctx ends, and hears what the host gives.
func (s *Source) Run(ctx context.Context) error {
	if s.hostMeter != nil {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.hostMeter.run(ctx)
		}()
		defer func() { <-ended }()
	}
	if len(s.latest) == 0 {
		<-ctx.Done()
		return nil
	}
	t := time.NewTicker(s.sample)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if err := s.sampleSensors(); err != nil {
			return err
		}
	}
}

// sampleSensors samples each Power meter once.
func (s *Source) sampleSensors() error {
	for i, m := range s.sensors {
		if err := s.storeSample(i, m.read); err != nil {
			return err
		}
	}
	if s.dcmi != nil {
		return s.storeSample(len(s.sensors), s.dcmi.reading)
	}
	return nil
}

// storeSample keeps what read says, stamped with the middle of the time that it took.
func (s *Source) storeSample(i int, read func(now int64) power.Reading) error {
	before, err := s.host.Boottime()
	if err != nil {
		return err
	}
	r := read(before)
	after, err := s.host.Boottime()
	if err != nil {
		return err
	}
	r.At = before + (after-before)/2
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest[i] = r
	return nil
}

// Close closes what is open. Run has returned by then.
func (s *Source) Close() error {
	var err error
	for _, list := range [][]*fileMeter{s.counters, s.sensors} {
		for _, m := range list {
			if m.file != nil {
				err = errors.Join(err, m.file.Close())
				m.file = nil
			}
		}
	}
	for _, f := range s.closers {
		err = errors.Join(err, f())
	}
	s.closers = nil
	return err
}

// deduplicate leaves out what is shown twice: of two zones the second, and sensors
// that show what a zone does. It makes names differ.
func deduplicate(zones, sensors []*fileMeter) (list []*fileMeter) {
	seen, names := map[string]bool{}, map[string]int{}
	for i, m := range append(zones, sensors...) {
		if seen[m.zoneID] {
			continue
		}
		if i < len(zones) {
			seen[m.zoneID] = true
		}
		names[m.meter.Name]++
		if n := names[m.meter.Name]; n > 1 {
			m.meter.Name = fmt.Sprintf("%s#%d", m.meter.Name, n)
		}
		list = append(list, m)
	}
	return list
}
