// Package nvml reads the energy of accelerators from NVIDIA's management library.
//
// The library comes with the driver and is opened at run time, since machines without it
// must work too. That needs the C library's loader, so a program that links this package is
// not static. mete-agent therefore runs mete-nvml, which consists of [Serve].
package nvml

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/ebitengine/purego"

	"mete.dev/mete/internal/model/fault"
)

// soname is the name under which the driver installs the library.
const soname = "libnvidia-ml.so.1"

// A result is what each call returns (nvmlReturn_t in nvml.h).
type result int32

const (
	success      result = 0
	notSupported result = 3
	noPermission result = 4
	noDriver     result = 9
	noFunction   result = 13
)

// uuidBytes is the size of the UUID buffer (NVML_DEVICE_UUID_V2_BUFFER_SIZE).
const uuidBytes = 96

// A Library is the initialized library. It is not safe for concurrent use.
type Library struct {
	handle uintptr

	shutdown func() result
	count    func(*uint32) result
	device   func(uint32, *uintptr) result
	uuid     func(uintptr, *byte, uint32) result
	energy   func(uintptr, *uint64) result // mJ since the driver was loaded; nil if the library lacks it
	power    func(uintptr, *uint32) result // mW
	text     func(result) string
}

// Open opens the library and initializes it, which may take seconds while the driver wakes
// the devices. The error wraps fault.ErrNotFound without the library, and
// fault.ErrUnavailable without its driver.
func Open() (_ *Library, err error) {
	l := &Library{}
	if l.handle, err = purego.Dlopen(soname, purego.RTLD_NOW|purego.RTLD_LOCAL); err != nil {
		return nil, fmt.Errorf("%w: %w", err, fault.ErrNotFound)
	}
	var start func() result
	for _, f := range []struct {
		into any
		name string
	}{{&start, "nvmlInit_v2"}, {&l.shutdown, "nvmlShutdown"}, {&l.count, "nvmlDeviceGetCount_v2"},
		{&l.device, "nvmlDeviceGetHandleByIndex_v2"}, {&l.uuid, "nvmlDeviceGetUUID"}, {&l.power, "nvmlDeviceGetPowerUsage"},
		{&l.text, "nvmlErrorString"}} {
		at, err := purego.Dlsym(l.handle, f.name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", err, fault.ErrUnsupported), purego.Dlclose(l.handle))
		}
		purego.RegisterFunc(f.into, at)
	}
	if at, err := purego.Dlsym(l.handle, "nvmlDeviceGetTotalEnergyConsumption"); err == nil {
		purego.RegisterFunc(&l.energy, at)
	}
	if err := l.failed("nvmlInit", start()); err != nil {
		return nil, errors.Join(err, purego.Dlclose(l.handle))
	}
	return l, nil
}

// Close shuts the library down.
func (l *Library) Close() error {
	return errors.Join(l.failed("nvmlShutdown", l.shutdown()), purego.Dlclose(l.handle))
}

// failed returns the error of a result, nil for success.
func (l *Library) failed(call string, r result) error {
	kind := fault.ErrUnavailable
	switch r {
	case success:
		return nil
	case notSupported, noFunction:
		kind = fault.ErrUnsupported
	case noPermission:
		kind = fault.ErrDenied
	}
	err := fmt.Errorf("%s: %s: %w", call, l.text(r), kind)
	if r == noDriver {
		err = fault.WithHint(err, "load the driver; nvidia-smi shows whether it works")
	}
	return err
}

// A Device is one accelerator. Models before Volta report power only.
type Device struct {
	UUID   string
	Energy bool // mJ since the driver was loaded; else power in mW

	lib    *Library
	handle uintptr
}

// Devices lists the accelerators that report energy or power; refused has an error for each
// other one.
func (l *Library) Devices() (list []*Device, refused []error, err error) {
	var n uint32
	if err := l.failed("nvmlDeviceGetCount", l.count(&n)); err != nil {
		return nil, nil, err
	}
	for i := range n {
		d := &Device{lib: l, Energy: true}
		if err := l.failed("nvmlDeviceGetHandleByIndex", l.device(i, &d.handle)); err != nil {
			refused = append(refused, fmt.Errorf("accelerator %d: %w", i, err))
			continue
		}
		var uuid [uuidBytes]byte
		if err := l.failed("nvmlDeviceGetUUID", l.uuid(d.handle, &uuid[0], uuidBytes)); err != nil {
			refused = append(refused, fmt.Errorf("accelerator %d: %w", i, err))
			continue
		}
		text, _, _ := bytes.Cut(uuid[:], []byte{0})
		d.UUID = string(text)
		_, err := d.Read()
		if errors.Is(err, fault.ErrUnsupported) {
			d.Energy = false
			_, err = d.Read()
		}
		if errors.Is(err, fault.ErrUnsupported) {
			refused = append(refused, fmt.Errorf("accelerator %s: %w", d.UUID, err))
			continue
		}
		list = append(list, d)
	}
	return list, refused, nil
}

// Read returns the device's energy in mJ if Energy is set, else its power in mW.
func (d *Device) Read() (int64, error) {
	if !d.Energy {
		var mW uint32
		err := d.lib.failed("nvmlDeviceGetPowerUsage", d.lib.power(d.handle, &mW))
		return int64(mW), err
	}
	if d.lib.energy == nil {
		return 0, d.lib.failed("nvmlDeviceGetTotalEnergyConsumption", noFunction)
	}
	var mJ uint64
	err := d.lib.failed("nvmlDeviceGetTotalEnergyConsumption", d.lib.energy(d.handle, &mJ))
	return int64(min(mJ, maxEnergy)), err
}

// maxEnergy in mJ is more than any accelerator uses.
const maxEnergy = 1 << 53
