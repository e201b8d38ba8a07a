// Package energy reads the meters inside a machine: RAPL through the kernel's powercap
// files, the sensors of hwmon, and the management controller by DCMI; in a virtual machine
// also the share from its host. Package gpu reads accelerators.
//
// Call [Source.Read] before and after a snapshot. It reads the meters that count energy.
// Meters of present power may take many milliseconds to answer, so [Source.Run] polls them
// at its own pace, and Read returns their latest values.
//
// The package judges no values. A meter that cannot be read gives a reading with the error
// and does not affect the others. If two interfaces show the same counter, only one of them
// is opened.
package energy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"mete.dev/mete/internal/collect/gpu"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/vsock"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

// A Config configures which meters to open.
type Config struct {
	// Powercap is a directory to read instead of /sys/class/powercap and hwmon, such as a
	// simulated one; "" means the machine's own.
	Powercap string
	// Every is the update interval of the counters in Powercap; 0 means RAPL's millisecond.
	Every time.Duration
	// ErrorPPM is the error of the counters in Powercap; 0 means RAPL's class. A simulated
	// counter is exact.
	ErrorPPM int64
	// IPMI is the device of the management controller, such as /dev/ipmi0. Opening it takes
	// about 10 ms, at most two seconds. "" means none.
	IPMI string
	// NVML selects NVIDIA's accelerators: gpu.Auto, gpu.On, gpu.Off, or the path of
	// mete-nvml; "" means none.
	NVML string
	// Sample is the sampling interval of meters of present power; 0 means a second, the
	// update interval of sensors and controllers.
	Sample time.Duration
	// Shares is the directory into which the host writes the share of this virtual machine;
	// "" means none.
	Shares string
	// VSock also connects to the host by AF_VSOCK.
	VSock bool
	// Dial connects to the host; nil means AF_VSOCK.
	Dial func(context.Context) (net.Conn, error)
}

// Validate returns an error wrapping fault.ErrInvalid if c cannot work.
func (c Config) Validate() error {
	if c.Sample != 0 && (c.Sample < 10*time.Millisecond || c.Sample > time.Minute) {
		return fmt.Errorf("power sample interval %v is not between 10ms and a minute: %w", c.Sample, fault.ErrInvalid)
	}
	if err := gpu.Validate(c.NVML); err != nil {
		return err
	}
	return nil
}

// A Source reads the meters of one machine. One goroutine may call Read while another runs
// Run.
type Source struct {
	host    *hostfs.FS
	clock   func() (int64, error) // CLOCK_BOOTTIME of host, ns
	sample  time.Duration
	meters  []power.Meter
	closers []func() error
	// openErrors are the errors of meters that Open found but could not open.
	openErrors []error
	simulated  string // label of simulated meters, "" if they are real

	counters  []*fileMeter // Energy meters, first in meters
	sensors   []*fileMeter // Power meters in files, next in meters
	dcmi      *dcmi        // next in meters; nil if there is none
	hostMeter *hostMeter   // next in meters; nil outside a virtual machine
	gpus      *gpu.Reader
	gpu       int // index of the first accelerator; those are last in meters

	mu     sync.Mutex
	latest []power.Reading // of levels and dcmi
}

// Open opens the meters of the machine; none is not an error. [Source.OpenErrors] returns
// the errors of meters that cannot be read. Open takes a first sample of power meters. The
// caller closes the Source.
func Open(h *hostfs.FS, cfg Config) (*Source, error) { return open(h, cfg, h.Boottime) }

func open(h *hostfs.FS, cfg Config, clock func() (int64, error)) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Sample == 0 {
		cfg.Sample = time.Second
	}
	s := &Source{host: h, clock: clock, sample: cfg.Sample}
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
	now, err := clock()
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
		s.openDCMI(cfg.IPMI, openIPMI)
	}
	for i := range s.meters {
		if m := &s.meters[i]; m.Kind == power.Power {
			m.Every += s.sample.Nanoseconds() // the share may be one sample old
		}
	}
	s.latest = make([]power.Reading, len(s.meters)-len(s.counters))
	if s.hostMeter = openHostMeter(h, cfg, vsock.IsGuest()); s.hostMeter != nil {
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

// findFiles finds the file meters of the machine, or of a directory.
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
			m.meter.Every = cmp.Or(cfg.Every.Nanoseconds(), m.meter.Every)
			m.meter.ErrorPPM = cmp.Or(cfg.ErrorPPM, m.meter.ErrorPPM)
		}
		s.openErrors = refused
		return deduplicate(zones, nil), err
	}
	zones, refused, err := powercap(s.host, powercapDir)
	if len(zones) == 0 {
		if mounted, others, err2 := powercap(s.host, mountedDir); len(mounted) > 0 {
			zones, refused, err = mounted, others, err2
		}
	}
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

// layoutHint describes a directory of counters.
const layoutHint = "the directory must be laid out like /sys/class/powercap, with intel-rapl:0/name (package-0) and intel-rapl:0/energy_uj in it"

// openDCMI opens the management controller, if there is one, and keeps it if it answers or
// may answer later.
func (s *Source) openDCMI(device string, open func(path string) (bmc, error)) {
	b, err := open(s.host.Path(device))
	if errors.Is(err, fault.ErrNotFound) {
		return
	}
	if err == nil {
		s.closers = append(s.closers, b.Close)
		d := &dcmi{index: len(s.meters), path: device, bmc: b}
		if _, err = d.read(); err == nil || errors.Is(err, fault.ErrUnavailable) {
			s.dcmi, s.meters = d, append(s.meters, d.meter())
		}
	}
	if errors.Is(err, fault.ErrDenied) {
		err = fault.WithHint(err, "run as root, or let this user read and write "+device)
	}
	if err != nil {
		s.openErrors = append(s.openErrors, fmt.Errorf("%s: %w", dcmiName, err))
	}
}

// Meters returns the meters. Readings refer to a meter by its index here. The list does not
// change, and callers must not modify it.
func (s *Source) Meters() []power.Meter { return s.meters }

// OpenErrors returns, for each meter that Open could not open, the error, with a hint. All
// but the management controller are retried every ten seconds. Call it before the first
// Read and Run.
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

// grantHint says how to get access to energy counters. Only root may read them because they
// can leak secrets (CVE-2020-8694, CVE-2020-12912).
const grantHint = "only root can read energy counters: run as root, or grant CAP_DAC_READ_SEARCH (in a systemd unit: AmbientCapabilities=CAP_DAC_READ_SEARCH)"

// Read appends to into a reading of each meter, in their order. It does not allocate if
// into has capacity and the meters answer as before.
//
// The latest value of a Power meter is returned as of now: its age is at most the meter's
// Every. If it is older, because Run is not running or the meter does not answer, there is
// no value.
func (s *Source) Read(into []power.Reading) ([]power.Reading, error) {
	now, err := s.clock()
	if err != nil {
		return into, err
	}
	for _, m := range s.counters {
		r := m.read(now)
		after, err := s.clock()
		if err != nil {
			return into, err
		}
		// The counter was read between the two times.
		r.At = now + (after-now)/2
		into = append(into, r)
		now = after
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.latest {
		// Twice as old is late, not missing, since samples have jitter.
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

// Run samples the Power meters and receives the host's shares until ctx ends.
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
	tick := time.Tick(s.sample)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
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

// storeSample stores the result of read, timed at the middle of the call.
func (s *Source) storeSample(i int, read func(now int64) power.Reading) error {
	before, err := s.clock()
	if err != nil {
		return err
	}
	r := read(before)
	after, err := s.clock()
	if err != nil {
		return err
	}
	r.At = before + (after-before)/2
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest[i] = r
	return nil
}

// Close closes all meters. Call it after Run has returned.
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

// deduplicate drops the second of two equal zones, and sensors that show the same as a
// zone. It makes names unique.
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
