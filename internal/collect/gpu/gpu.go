// Package gpu reads the meters of NVIDIA's accelerators through mete-nvml, a separate
// process: their library needs a dynamic loader and much memory, and its crashes must not
// end the agent.
package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

// Modes of reading accelerators; any other mode is the path of mete-nvml.
const (
	Off  = "off"  // none
	Auto = "auto" // those of a loaded driver, unless reading would keep an idle device powered
	On   = "on"   // always
)

// Validate reports whether mode is valid.
func Validate(mode string) error {
	switch mode {
	case "", Off, Auto, On:
		return nil
	}
	if !filepath.IsAbs(mode) {
		return fault.WithHint(fmt.Errorf("nvml %q: %w", mode, fault.ErrInvalid), "auto, on, off, or the path of mete-nvml")
	}
	return nil
}

// program is the helper, in the same directory as this program.
const program = "mete-nvml"

const (
	// startTimeout is how long the library may take to start: it wakes each device.
	startTimeout = 20 * time.Second
	// answerTimeout is how long a tick waits for an answer, which usually takes well below
	// a millisecond. After a late answer, ticks do not wait until it has arrived.
	answerTimeout = 20 * time.Millisecond
	// stale is the age at which an answer is not used any more, in ns.
	stale = int64(5 * time.Second)
	// restart is the delay before a helper that exited is started again.
	restart = 10 * time.Second
)

// deviceError is the assumed class of NVML's figures. NVIDIA states for "Fermi and Kepler"
// that power is "accurate to within +/- 5% of current power draw" (NVML API Reference,
// nvmlDeviceGetPowerUsage), and nothing for later devices. Yang, Adamek and Armour
// ("Part-time Power Measurements: nvidia-smi's Lack of Attention", 2023) compared 70
// devices with a meter: some are off by far more for work that changes within a tenth of a
// second, because the sensor does not sample all the time.
const deviceError = 50_000

// energyEvery is the maximum age of an energy counter, in ns. NVIDIA documents none; it
// updates about ten times a second.
const energyEvery = 100e6

// meter describes a device: mJ since the driver was loaded, or mW, the mean of a second on
// all but old devices.
func meter(kind, uuid string) power.Meter {
	m := power.Meter{Name: "gpu/" + uuid, Level: power.Part, Domain: power.GPU, From: power.NVML,
		Kind: power.Energy, Step: 1000, Every: energyEvery, ErrorPPM: deviceError}
	if kind == "power" {
		m.Kind, m.Every = power.Power, int64(time.Second)
	}
	return m
}

// A Reader reads the accelerators of this machine. Only one goroutine may call Read.
type Reader struct {
	host       *hostfs.FS // has the clock
	path       string
	meters     []power.Meter
	openErrors []error

	requests chan struct{} // a tick wants a reading
	answers  chan struct{} // an answer has arrived
	late     bool          // the latest answer was late

	mu     sync.Mutex
	latest []power.Reading // by meter

	cancel context.CancelFunc
	ended  chan struct{}
}

// Open starts mete-nvml, and reads the accelerators until Close. A Reader without meters
// does nothing: the machine has no accelerators, or [Reader.OpenErrors] says why they
// cannot be read.
func Open(h *hostfs.FS, mode string) *Reader {
	r := &Reader{host: h, path: mode, requests: make(chan struct{}, 1), answers: make(chan struct{}, 1)}
	if mode == Off || mode == "" || !h.Live() {
		return r
	}
	if mode == Auto || mode == On {
		switch err := detect(h, mode); {
		case errors.Is(err, fault.ErrNotFound):
			return r
		case err != nil:
			r.openErrors = append(r.openErrors, err)
			return r
		}
		self, err := os.Executable()
		if err != nil {
			r.openErrors = append(r.openErrors, err)
			return r
		}
		r.path = filepath.Join(filepath.Dir(self), program)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p, err := start(ctx, r.path)
	if err != nil {
		cancel()
		if errors.Is(err, errNone) {
			return r
		}
		r.openErrors = append(r.openErrors, fmt.Errorf("accelerators: %w", err))
		return r
	}
	r.addMeters(p)
	if len(r.meters) == 0 {
		cancel()
		_ = p.wait() // no accelerators, so no error to report
		return r
	}
	r.cancel, r.ended = cancel, make(chan struct{})
	go r.run(ctx, p)
	return r
}

// detect reports whether accelerators may be read. The error is fault.ErrNotFound without a
// driver.
func detect(h *hostfs.FS, mode string) error {
	found := false
	for _, p := range []string{"/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg"} {
		_, err := os.Stat(h.Path(p))
		found = found || err == nil
	}
	if !found {
		return fmt.Errorf("driver of accelerators: %w", fault.ErrNotFound)
	}
	if mode == On {
		return nil
	}
	const dir = "/sys/bus/pci/drivers/nvidia"
	es, err := h.ReadDir(dir)
	if err != nil {
		return nil // no device that could sleep
	}
	for _, e := range es {
		b, err := h.ReadFile(filepath.Join(dir, e.Name(), "power/control"))
		if err == nil && strings.TrimSpace(string(b)) == "auto" {
			return fault.WithHint(fmt.Errorf("accelerator %s: reading would keep it on while it could be switched off: %w", e.Name(), fault.ErrUnsupported),
				"read it anyway with --nvml on")
		}
	}
	return nil
}

// addMeters adds the meters of the devices.
func (r *Reader) addMeters(p *process) {
	for _, d := range p.devices {
		if why, ok := strings.CutPrefix(d, "!"); ok {
			r.openErrors = append(r.openErrors, errors.New(why))
			continue
		}
		kind, uuid, _ := strings.Cut(d, " ")
		r.meters = append(r.meters, meter(kind, uuid))
	}
	r.latest = make([]power.Reading, len(r.meters))
	for i := range r.latest {
		r.latest[i].Err = "not read yet"
	}
}

// Meters returns the meters. The list does not change.
func (r *Reader) Meters() []power.Meter { return r.meters }

// OpenErrors returns the errors of accelerators that cannot be read.
func (r *Reader) OpenErrors() []error { return r.openErrors }

// Read appends to into a reading of each meter. first is the index of the first one among
// all meters, now the time in ns of CLOCK_BOOTTIME.
func (r *Reader) Read(into []power.Reading, first int, now int64) []power.Reading {
	if len(r.meters) == 0 {
		return into
	}
	select {
	case <-r.answers: // of an earlier request
		r.late = false
	default:
	}
	select {
	case r.requests <- struct{}{}:
	default: // the earlier request is not answered yet
	}
	if !r.late {
		t := time.NewTimer(answerTimeout)
		select {
		case <-r.answers:
		case <-t.C:
			r.late = true
		}
		t.Stop()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, l := range r.latest {
		l.Meter = first + i
		if l.Err == "" && now-l.At > stale {
			l.Value, l.Err = 0, "no answer from "+program
		}
		if l.At == 0 || l.Err != "" {
			l.At = now
		}
		into = append(into, l)
	}
	return into
}

// Close ends mete-nvml. A process that hangs in the driver cannot be killed: Close leaves
// it to the kernel.
func (r *Reader) Close() error {
	if r.cancel == nil {
		return nil
	}
	r.cancel()
	select {
	case <-r.ended:
		return nil
	case <-time.After(time.Second):
		return fmt.Errorf("%s: it does not exit because a driver hangs: %w", program, fault.ErrUnavailable)
	}
}

// run sends a request for each tick that wants one, and restarts the helper if it exited.
func (r *Reader) run(ctx context.Context, p *process) {
	defer close(r.ended)
	for {
		err := r.serve(ctx, p)
		if e := p.wait(); e != nil {
			err = fmt.Errorf("%w; %w", err, e)
		}
		if ctx.Err() != nil {
			return
		}
		for p = nil; p == nil; {
			r.storeError(err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(restart):
			}
			p, err = start(ctx, r.path)
		}
	}
}

// serve serves requests until the helper or ctx ends.
func (r *Reader) serve(ctx context.Context, p *process) error {
	place := r.mapDevices(p.devices)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.requests:
		}
		before, err := r.host.Boottime()
		if err != nil {
			return err
		}
		values, err := p.ask()
		if err != nil {
			return err
		}
		after, err := r.host.Boottime()
		if err != nil {
			return err
		}
		r.store(place, values, before+(after-before)/2)
	}
}

// mapDevices returns the index of each device's meter; -1 means none.
func (r *Reader) mapDevices(devices []string) (at []int) {
	for _, d := range devices {
		kind, uuid, ok := strings.Cut(d, " ")
		if !ok || strings.HasPrefix(d, "!") {
			continue
		}
		place := -1
		for i := range r.meters {
			if r.meters[i] == meter(kind, uuid) {
				place = i
			}
		}
		at = append(at, place)
	}
	return at
}
