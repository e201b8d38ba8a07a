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
)

// A Config says what to play.
type Config struct {
	Dir    string // where the tree is made: existing files in it are replaced
	Zones  []Zone
	Faults []Fault
	Loads  []Load
	// Whole is the directory of the group that holds all that the machine runs,
	// the root of cpuacct, or of cgroup v2, which misses some percent. "" makes a
	// machine that runs the loads alone.
	Whole string
	Slice time.Duration // between two steps
	Seed  uint64        // of the noise
	Truth string        // the file to write what was used to, a line for each step; "" is none
	// Label is what the meters are called to whoever reads the tree, so that nobody
	// takes them for real ones; "" leaves the tree as real ones have it.
	Label string
	// Calm leaves the simulator among all others, and not before them.
	Calm bool
}

// Default steps every 20 ms.
func Default() Config { return Config{Slice: 20 * time.Millisecond} }

// A Load is what is told apart in the truth: a control group with all that is
// below it, or a process without its children.
type Load struct {
	Name string
	// Group is a directory, of v1's cpuacct or of v2. One that comes later is
	// counted from its beginning; what a group used between the last step and its
	// end is the others'.
	Group string
	PID   int
}

// Run plays the meters until ctx ends. It calls ready when the tree is there.
func Run(ctx context.Context, cfg Config, ready func()) (err error) {
	if cfg.Slice < time.Millisecond {
		return fmt.Errorf("slices of %v are shorter than 1ms: %w", cfg.Slice, fault.ErrInvalid)
	}
	h, err := hostfs.Open("/")
	if err != nil {
		return err
	}
	p := player{host: h, cfg: cfg, cpu: make([]int64, len(cfg.Loads))}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.open(); err != nil {
		return err
	}
	ready()
	t := time.NewTicker(cfg.Slice)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return p.step()
		case <-t.C:
		}
		if err := p.step(); err != nil {
			return err
		}
	}
}

// A player turns the machine.
type player struct {
	host  *hostfs.FS
	cfg   Config
	m     *Machine
	taps  []*tap
	whole *tap // nil where the loads are all
	cpu   []int64
	files []*os.File // energy_uj of each zone
	file  *os.File   // the truth; nil where nobody wants it
	truth *bufio.Writer
}

func (p *player) open() error {
	for _, l := range p.cfg.Loads {
		p.taps = append(p.taps, &tap{host: p.host, load: l})
	}
	if p.cfg.Whole != "" {
		p.whole = &tap{host: p.host, load: Load{Group: p.cfg.Whole}}
		if err := p.whole.open(); err != nil {
			return err
		}
	}
	at, err := p.look()
	if err != nil {
		return err
	}
	// What is there now has used its past before the machine began.
	for _, t := range p.taps {
		t.begun = true
	}
	if p.m, err = NewMachine(p.cfg.Zones, p.cfg.Faults, len(p.cfg.Loads), p.cfg.Seed, at); err != nil {
		return err
	}
	if err := p.tree(); err != nil {
		return err
	}
	if p.cfg.Truth == "" {
		return nil
	}
	if p.file, err = os.Create(p.cfg.Truth); err != nil {
		return err
	}
	p.truth = bufio.NewWriter(p.file)
	var names []string
	for _, l := range p.cfg.Loads {
		names = append(names, l.Name)
	}
	return p.write(heading{Loads: names})
}

// tree makes the directory of powercap.
func (p *player) tree() error {
	if p.cfg.Label != "" {
		if err := os.MkdirAll(p.cfg.Dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(p.cfg.Dir, power.SimulatedFile), []byte(p.cfg.Label+"\n"), 0o644); err != nil {
			return err
		}
	}
	for i, z := range p.m.zones {
		dir := filepath.Join(p.cfg.Dir, z.ID)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for name, text := range map[string]string{"name": z.Name, "enabled": "1", "max_energy_range_uj": fmt.Sprint(z.Range)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
				return err
			}
		}
		f, err := os.OpenFile(filepath.Join(dir, "energy_uj"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		if err != nil {
			return err
		}
		p.files = append(p.files, f)
		if err := p.show(i); err != nil {
			return err
		}
	}
	return nil
}

// show writes what a zone shows. The number has always the same length, so that
// one write replaces it, and a reader sees it before or after.
func (p *player) show(zone int) error {
	f := p.files[zone]
	v, ok := p.m.Shown(zone)
	if !ok {
		return f.Truncate(0) // a file without a number
	}
	_, err := f.WriteAt(fmt.Appendf(nil, "%020d\n", v), 0)
	return err
}

// look reads what the loads used since the look before, and the time of that.
func (p *player) look() (int64, error) {
	before, err := p.host.Boottime()
	if err != nil {
		return 0, err
	}
	for i, t := range p.taps {
		p.cpu[i] = t.used()
	}
	after, err := p.host.Boottime()
	return before + (after-before)/2, err
}

// step books a slice and shows it.
func (p *player) step() error {
	// The whole is read first, so that what it gains meanwhile is not taken for
	// the use of others.
	all := int64(0)
	if p.whole != nil {
		all = p.whole.used()
	}
	at, err := p.look()
	if err != nil {
		return err
	}
	if p.whole == nil {
		for _, c := range p.cpu {
			all += c
		}
	}
	p.m.Step(at, p.cpu, all)
	for i := range p.files {
		if err := p.show(i); err != nil {
			return err
		}
	}
	if p.truth == nil {
		return nil
	}
	return p.write(p.m.Now())
}

// write appends a line to the truth.
func (p *player) write(line any) error {
	if err := json.NewEncoder(p.truth).Encode(line); err != nil {
		return err
	}
	return p.truth.Flush()
}

func (p *player) close() error {
	err := p.host.Close()
	for _, t := range append(p.taps, p.whole) {
		if t != nil {
			err = errors.Join(err, t.close())
		}
	}
	for _, f := range p.files {
		err = errors.Join(err, f.Close())
	}
	if p.file != nil {
		err = errors.Join(err, p.file.Close())
	}
	return err
}
