// Package gpu reads the meters of NVIDIA's accelerators, by asking mete-nvml, which
// is a process of its own: their library needs a dynamic loader and much memory,
// and what goes wrong in it is not to end who measures.
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

// What to do about accelerators; anything else is the path of mete-nvml.
const (
	Off  = "off"  // leave them alone
	Auto = "auto" // read those of a driver that is loaded, unless that keeps one awake that may sleep
	On   = "on"   // read them in any case
)

// Validate reports whether a mode is one.
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

// program is what is asked. It is beside this program.
const program = "mete-nvml"

const (
	// startTimeout is how long the library may take: it wakes each device.
	startTimeout = 20 * time.Second
	// answerTimeout is how long a tick waits for an answer, which takes well below
	// a millisecond. The next ticks do not wait, until one has come.
	answerTimeout = 20 * time.Millisecond
	// stale is when an answer is too old to be used, in ns.
	stale = int64(5 * time.Second)
	// restart is the time between two starts of a program that ends.
	restart = 10 * time.Second
)

// deviceError is the class of NVML's figures, an assumption: of "Fermi and Kepler"
// it is said that power is "accurate to within +/- 5% of current power draw" (NVML
// API Reference, nvmlDeviceGetPowerUsage), and of all since nothing. Yang, Adamek and
// Armour ("Part-time Power Measurements: nvidia-smi's Lack of Attention", 2023)
// held 70 devices against a meter: on some, work that comes and goes within a tenth of
// a second is off by far more, as the sensor does not look all the time.
const deviceError = 50_000

// energyEvery is how old an energy counter may be, in ns. NVIDIA does not say; it
// moves some ten times a second.
const energyEvery = 100e6

// meter describes a device: mJ since the driver was loaded, or mW, which are the
// mean of a second on all but old ones.
func meter(kind, uuid string) power.Meter {
	m := power.Meter{Name: "gpu/" + uuid, Level: power.Part, Domain: power.GPU, From: power.NVML,
		Kind: power.Energy, Step: 1000, Every: energyEvery, ErrorPPM: deviceError}
	if kind == "power" {
		m.Kind, m.Every = power.Power, int64(time.Second)
	}
	return m
}

// A Reader reads the accelerators of this machine. Read is called by one
// goroutine.
type Reader struct {
	host       *hostfs.FS // has the clock
	path       string
	meters     []power.Meter
	openErrors []error

	requests chan struct{} // one tick wants to know
	answers  chan struct{} // there is an answer
	late     bool          // the latest answer did not come in time

	mu     sync.Mutex
	latest []power.Reading // by meter

	cancel context.CancelFunc
	ended  chan struct{}
}

// Open starts mete-nvml, and reads what it has until Close. A Reader without meters
// reads nothing, and costs nothing: the machine has no accelerators, or as
// [Reader.OpenErrors] says.
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
		_ = p.wait() // it has nothing to tell
		return r
	}
	r.cancel, r.ended = cancel, make(chan struct{})
	go r.run(ctx, p)
	return r
}

// detect reports whether the machine has accelerators that may be asked: it is
// fault.ErrNotFound where there is no driver.
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
		return nil // none that could sleep
	}
	for _, e := range es {
		b, err := h.ReadFile(filepath.Join(dir, e.Name(), "power/control"))
		if err == nil && strings.TrimSpace(string(b)) == "auto" {
			return fault.WithHint(fmt.Errorf("accelerator %s: it may be switched off while nothing uses it, and reading would keep it on: %w", e.Name(), fault.ErrUnsupported),
				"read it all the same with -nvml on")
		}
	}
	return nil
}

// addMeters takes over what there is to read.
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

// Meters lists what is read. The list stays as it is.
func (r *Reader) Meters() []power.Meter { return r.meters }

// OpenErrors says what there is that cannot be read, and why.
func (r *Reader) OpenErrors() []error { return r.openErrors }

// Read appends to into a reading of each meter; first is the index of the first
// one among all that are read, and now the time in ns of CLOCK_BOOTTIME.
func (r *Reader) Read(into []power.Reading, first int, now int64) []power.Reading {
	if len(r.meters) == 0 {
		return into
	}
	select {
	case <-r.answers: // of before
		r.late = false
	default:
	}
	select {
	case r.requests <- struct{}{}:
	default: // it has not answered what was asked before
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

// Close ends mete-nvml. One that hangs in the driver cannot be ended: it is left to
// the kernel.
func (r *Reader) Close() error {
	if r.cancel == nil {
		return nil
	}
	r.cancel()
	select {
	case <-r.ended:
		return nil
	case <-time.After(time.Second):
		return fmt.Errorf("%s: it does not end, as a driver hangs: %w", program, fault.ErrUnavailable)
	}
}

// run asks whenever somebody wants to know, and starts the program anew where it
// has ended.
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

// serve answers until the program or ctx ends.
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

// mapDevices says which meter each device of a program is; -1 is none.
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
