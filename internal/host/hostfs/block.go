package hostfs

import (
	"bytes"
	"errors"
	"fmt"
	"path"

	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
)

// stacked are the block drivers whose devices store nothing themselves: their reads and
// writes reach another device, or memory.
var stacked = map[string]bool{
	"bcache":        true,
	"device-mapper": true,
	"drbd":          true,
	"loop":          true,
	"md":            true,
	"mdp":           true,
	"ramdisk":       true,
	"zram":          true,
	"zvol":          true,
}

// StackedMajors returns the major numbers of block drivers whose devices are backed by
// other devices or memory, with the drivers' names. Totals over devices leave them out.
func (h *FS) StackedMajors() (map[uint32]string, error) {
	const p = "/proc/devices"
	b, err := h.ReadFile(p)
	if err != nil {
		return nil, err
	}
	ds, err := procfmt.Devices(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	majors := map[uint32]string{}
	for _, d := range ds {
		if stacked[d.Name] {
			majors[d.Major] = d.Name
		}
	}
	return majors, nil
}

// LeafDevices returns the block devices to sum totals over, with their names: whole
// devices, no partitions, not stacked.
func (h *FS) LeafDevices() (map[procfmt.Dev]string, error) {
	majors, err := h.StackedMajors()
	if err != nil {
		return nil, err
	}
	const dir = "/sys/block"
	leaves := map[procfmt.Dev]string{}
	es, err := h.ReadDir(dir)
	if errors.Is(err, fault.ErrNotFound) {
		return leaves, nil // a kernel without block devices
	}
	if err != nil {
		return nil, err
	}
	for _, e := range es {
		dev, ok, err := h.device(path.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if ok && majors[dev.Major] == "" {
			leaves[dev] = e.Name()
		}
	}
	return leaves, nil
}

// device returns the number of the block device whose directory is dir, and false if it is
// stacked, has no number (a hidden path of a multipath NVMe device) or was removed.
func (h *FS) device(dir string) (procfmt.Dev, bool, error) {
	if below, err := h.ReadDir(path.Join(dir, "slaves")); err == nil && len(below) > 0 {
		return procfmt.Dev{}, false, nil
	}
	b, err := h.ReadFile(path.Join(dir, "dev"))
	if errors.Is(err, fault.ErrNotFound) {
		return procfmt.Dev{}, false, nil
	}
	if err != nil {
		return procfmt.Dev{}, false, err
	}
	dev, err := procfmt.Device(bytes.TrimSpace(b))
	if err != nil {
		return procfmt.Dev{}, false, fmt.Errorf("%s/dev: %w", dir, err)
	}
	return dev, true, nil
}
