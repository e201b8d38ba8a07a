package powersim

import (
	"fmt"
	"time"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

// Demo returns the configuration of one CPU package with memory for all that the machine h
// runs, to show energy on machines without meters. The tree in dir is labeled as simulated.
// The power is about that of a server with the given number of threads.
func Demo(h *hostfs.FS, dir string, threads int) (Config, error) {
	const watt = 1_000_000 // uW
	whole, err := rootGroup(h)
	if err != nil {
		return Config{}, err
	}
	n := int64(max(1, threads))
	return Config{
		Dir: dir, Whole: whole, Slice: 100 * time.Millisecond, Seed: uint64(time.Now().UnixNano()),
		Label: power.DemoLabel, NormalPriority: true,
		Zones: []Zone{
			{ID: "intel-rapl:0", Name: "package-0", Domain: power.Package, Model: PowerModel{Idle: 8*watt + n*watt, Core: 7 * watt, Exponent: .85, Noise: .03}},
			{ID: "intel-rapl:0:0", Name: "dram", Domain: power.DRAM, Model: PowerModel{Idle: watt + n*watt/4, Core: watt / 2, Exponent: 1, Noise: .03}},
		},
	}, nil
}

// rootGroup returns the directory of the group that contains all groups.
func rootGroup(h *hostfs.FS) (string, error) {
	ys, err := h.Hierarchies()
	if err != nil {
		return "", err
	}
	unified := ""
	for _, y := range ys {
		switch {
		case y.Has("cpuacct"):
			return y.Mount, nil
		case y.V2:
			unified = y.Mount
		}
	}
	if unified == "" {
		return "", fmt.Errorf("no control groups count CPU time here: %w", fault.ErrUnsupported)
	}
	return unified, nil
}
