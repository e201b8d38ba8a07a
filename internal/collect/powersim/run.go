package powersim

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/x/atomicfile"
)

// A Config configures a simulator.
type Config struct {
	Dir    string // of the tree: existing files in it are replaced
	Zones  []Zone
	Faults []Fault
	Loads  []Load
	// Whole is the directory of the group that contains all groups: the root of cpuacct, or
	// of cgroup v2, which misses a few percent. "" simulates a machine that runs only the
	// loads.
	Whole string
	Slice time.Duration // interval between steps
	// Rest is the interval between steps while the machine is idle, so that the simulator does not
	// keep a small machine busy; 0 is Slice.
	Rest  time.Duration
	Seed  uint64 // of the noise
	Truth string // file for the records, a line for each step; "" for none
	// Label is the name of the meters for readers of the tree, so that they are not taken
	// for real ones; "" gives a tree like a real one.
	Label string
	// NormalPriority does not raise the simulator's priority.
	NormalPriority bool
}

// Default returns a configuration with steps of 20 ms.
func Default() Config { return Config{Slice: 20 * time.Millisecond} }

// A Load is a separate load in the truth: a control group with all groups below it, or a
// process without its children.
type Load struct {
	Name string
	// Group is a directory of v1's cpuacct or of v2. A group that appears later is counted
	// from its beginning; what a group used between the last step and its end counts as
	// others.
	Group string
	PID   int
}

// Run simulates the meters until ctx ends. It calls ready once the tree exists.
func Run(ctx context.Context, cfg Config, ready func()) (err error) {
	if cfg.Slice < time.Millisecond {
		return fmt.Errorf("slices of %v are shorter than 1ms: %w", cfg.Slice, fault.ErrInvalid)
	}
	h, err := hostfs.Open("/")
	if err != nil {
		return err
	}
	s := simulator{host: h, cfg: cfg, cpu: make([]int64, len(cfg.Loads))}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(); err != nil {
		return err
	}
	ready()
	t := time.NewTimer(cfg.Slice)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return s.step()
		case <-t.C:
		}
		if err := s.step(); err != nil {
			return err
		}
		next := cfg.Slice
		if s.idle {
			next = max(next, cfg.Rest)
		}
		t.Reset(next)
	}
}

// restingCPUs is the number of CPUs below whose use in a step the machine is idle.
const restingCPUs = .05

// A simulator drives a Machine.
type simulator struct {
	host    *hostfs.FS
	cfg     Config
	m       *Machine
	readers []*cpuReader
	whole   *cpuReader // nil if the loads are everything
	cpu     []int64
	at      int64    // of the latest step, ns of boottime
	idle    bool     // in the latest step
	file    *os.File // the truth; nil if there is none
	truth   *bufio.Writer
}

func (s *simulator) open() error {
	for _, l := range s.cfg.Loads {
		s.readers = append(s.readers, &cpuReader{host: s.host, load: l})
	}
	if s.cfg.Whole != "" {
		s.whole = &cpuReader{host: s.host, load: Load{Group: s.cfg.Whole}}
		if err := s.whole.open(); err != nil {
			return err
		}
	}
	at, err := s.readLoads()
	if err != nil {
		return err
	}
	// Set the start of existing groups before the machine begins.
	for _, r := range s.readers {
		r.begun = true
	}
	if s.m, err = NewMachine(s.cfg.Zones, s.cfg.Faults, len(s.cfg.Loads), s.cfg.Seed, at); err != nil {
		return err
	}
	if err := s.createTree(); err != nil {
		return err
	}
	if s.cfg.Truth == "" {
		return nil
	}
	if s.file, err = os.Create(s.cfg.Truth); err != nil {
		return err
	}
	s.truth = bufio.NewWriter(s.file)
	var names []string
	for _, l := range s.cfg.Loads {
		names = append(names, l.Name)
	}
	return s.write(heading{Loads: names})
}

// createTree creates the powercap directory.
func (s *simulator) createTree() error {
	if s.cfg.Label != "" {
		if err := os.MkdirAll(s.cfg.Dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.cfg.Dir, power.SimulatedFile), []byte(s.cfg.Label+"\n"), 0o644); err != nil {
			return err
		}
	}
	for i, z := range s.m.zones {
		dir := filepath.Join(s.cfg.Dir, z.ID)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for name, text := range map[string]string{"name": z.Name, "enabled": "1", "max_energy_range_uj": fmt.Sprint(z.Range)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
				return err
			}
		}
		if err := s.writeZone(i); err != nil {
			return err
		}
	}
	return nil
}

// writeZone replaces the file of a zone's counter, since a reader may see a part of what is
// written into an open one.
func (s *simulator) writeZone(zone int) error {
	var text []byte // a file without a number
	if v, ok := s.m.Value(zone); ok {
		text = fmt.Appendf(nil, "%d\n", v)
	}
	return atomicfile.Overwrite(filepath.Join(s.cfg.Dir, s.m.zones[zone].ID, "energy_uj"), text)
}

// readLoads reads what the loads used since the previous reading, and the time.
func (s *simulator) readLoads() (int64, error) {
	before, err := s.host.Boottime()
	if err != nil {
		return 0, err
	}
	for i, r := range s.readers {
		s.cpu[i] = r.used()
	}
	after, err := s.host.Boottime()
	return before + (after-before)/2, err
}

// step books a slice and writes the counters.
func (s *simulator) step() error {
	// Read the total first, so that its increase meanwhile does not count as others.
	all := int64(0)
	if s.whole != nil {
		all = s.whole.used()
	}
	at, err := s.readLoads()
	if err != nil {
		return err
	}
	if s.whole == nil {
		for _, c := range s.cpu {
			all += c
		}
	}
	s.m.Step(at, s.cpu, all)
	s.idle = s.at > 0 && float64(all) < restingCPUs*float64(at-s.at)
	s.at = at
	for i := range s.m.zones {
		if err := s.writeZone(i); err != nil {
			return err
		}
	}
	if s.truth == nil {
		return nil
	}
	return s.write(s.m.Record())
}

// write appends a line to the truth.
func (s *simulator) write(line any) error {
	if err := json.NewEncoder(s.truth).Encode(line); err != nil {
		return err
	}
	return s.truth.Flush()
}

func (s *simulator) close() error {
	err := s.host.Close()
	for _, r := range append(s.readers, s.whole) {
		if r != nil {
			err = errors.Join(err, r.close())
		}
	}
	if s.file != nil {
		err = errors.Join(err, s.file.Close())
	}
	return err
}
