// Package bpf loads mete's BPF programs into the kernel and returns their results to Go.
//
// The programs read all groups of a hierarchy or all tasks in one system call, report the
// birth and the death of groups with their final figures, and count per group what no file
// shows on every machine: processes started, block I/O and packets. Nothing runs in the
// background: each call fetches its result. A program that the kernel refuses disables only
// its [Part].
//
// The package needs Linux 6.1 or newer with BTF, and CAP_BPF, CAP_PERFMON and, for [Net],
// [Classes] and [Connections], CAP_NET_ADMIN.
package bpf

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"mete.dev/mete/internal/model/fault"
)

// A Part is a feature of this package, or a set of them.
type Part uint16

const (
	// Walks reads all groups of a hierarchy: [Kernel.NewWalker].
	Walks Part = 1 << iota
	// Events reports births and deaths of groups: [Kernel.Drain].
	Events
	// Forks counts processes started: [Kernel.Counts].
	Forks
	// Disk counts block I/O: [Kernel.Counts].
	Disk
	// Net counts network traffic: [Kernel.AttachNet], then [Kernel.Counts].
	Net
	// Tasks reads all tasks: [Kernel.Tasks].
	Tasks
	// Classes counts network traffic by class too, with the programs of [Net]: [Kernel.SetClasses].
	Classes
	// Connections counts network traffic by peer and port too, with the programs of [Net] and [Classes]: [Kernel.DrainEdges].
	Connections

	// All is every part.
	All = Walks | Events | Forks | Disk | Net | Tasks | Classes | Connections
	// counting is the parts that share the table of counts.
	counting = Events | Forks | Disk | Net | Classes | Connections
)

var partNames = [...]string{"walks", "events", "forks", "disk", "net", "tasks", "classes", "connections"}

// String returns the names of the parts in p, joined by "+".
func (p Part) String() string {
	var names []string
	p.each(func(i int, _ Part) { names = append(names, partNames[i]) })
	return strings.Join(names, "+")
}

func (p Part) each(f func(i int, one Part)) {
	for p &= All; p != 0; p &= p - 1 {
		f(bits.TrailingZeros16(uint16(p)), p&-p)
	}
}

// Config says what to load.
type Config struct {
	// Parts to load. Each one costs time.
	Parts Part
	// Groups is how many groups are counted separately at a time; the counts of any others
	// go to group 0. A group that never forked, read, wrote, sent or received takes no
	// slot; a dead group keeps its slot until [Kernel.Forget].
	Groups int
	// Ring is the size of the ring of events in bytes, a power of two and a
	// multiple of the page size. An event takes 150 bytes and its path.
	Ring int
	// Hierarchies are those whose group events are reported, by their number in
	// /proc/self/cgroup (0 is the default hierarchy, cgroup v2); all if empty. The filter
	// applies to numbers below 64 and lets others pass.
	Hierarchies []uint32
	// SkipMajors are the major numbers of block devices to skip because they stack on
	// others: loop, md, device-mapper, zram, ram. See [Kernel.SetSkipMajors].
	SkipMajors []uint32
	// Loopback makes [Net] count traffic over lo too. By default it is skipped, as the
	// interface counters skip it.
	Loopback bool
	// Unified takes the group of a task from the default hierarchy even if cpuacct has a
	// hierarchy of its own.
	Unified bool
}

// Default returns the configuration for metering a whole machine, without [Connections].
func Default() Config {
	return Config{Parts: All &^ Connections, Groups: 16384, Ring: 512 << 10}
}

// Validate returns an error wrapping [fault.ErrInvalid] if c cannot work.
func (c Config) Validate() error {
	page := os.Getpagesize()
	switch {
	case c.Parts == 0 || c.Parts&^All != 0:
		return fmt.Errorf("bpf: parts %#x: %w", uint16(c.Parts), fault.ErrInvalid)
	case c.Parts&Connections != 0 && c.Parts&Classes == 0:
		return fmt.Errorf("bpf: connections without classes: %w", fault.ErrInvalid)
	case c.Parts&counting != 0 && (c.Groups < 1 || c.Groups > 1<<20):
		return fmt.Errorf("bpf: groups %d, not from 1 to %d: %w", c.Groups, 1<<20, fault.ErrInvalid)
	case c.Parts&Events != 0 && (c.Ring < page || c.Ring&(c.Ring-1) != 0):
		return fmt.Errorf("bpf: ring %d is not a power of two from %d: %w", c.Ring, page, fault.ErrInvalid)
	}
	return nil
}

// A Kernel is the set of loaded programs. Only one goroutine may use it at a time;
// [Kernel.Close] must be the last call.
type Kernel struct {
	faults  [len(partNames)]error
	closers []func() error

	walk   walkPart
	count  countPart
	ring   ring
	task   taskPart
	closed sync.Once
}

// Open loads and attaches the parts of cfg. If only some of them fail it returns a Kernel,
// and [Kernel.Err] returns the error of each. If all fail, the error wraps
// [fault.ErrUnsupported] or [fault.ErrDenied].
func Open(cfg Config) (*Kernel, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	k := &Kernel{}
	cfg.Parts.each(func(i int, _ Part) { k.faults[i] = errNotLoaded })
	(^cfg.Parts & All).each(func(i int, p Part) {
		k.faults[i] = fmt.Errorf("bpf: %s: not requested: %w", p, fault.ErrUnsupported)
	})

	l, err := newLoader(cfg)
	if err != nil {
		return nil, err
	}
	k.openWalk(l)
	k.openCount(l)
	k.openTask(l)
	if cfg.Parts&typed != 0 {
		// Release the memory of the kernel types, which nothing needs any more.
		l.cache, l.types = nil, nil
		debug.FreeOSMemory()
	}

	if k.WorkingParts() == 0 {
		return nil, errors.Join(k.commonError(cfg.Parts), k.Close())
	}
	return k, nil
}

// commonError returns one error for the failure of all parts, whose own errors repeat each
// other.
func (k *Kernel) commonError(parts Part) error {
	var first error
	denied := true
	parts.each(func(i int, _ Part) {
		if first == nil {
			first = k.faults[i]
		}
		denied = denied && errors.Is(k.faults[i], fault.ErrDenied)
	})
	if denied {
		return fault.WithHint(fmt.Errorf("bpf: %w", fault.ErrDenied), "BPF needs root, or CAP_BPF and CAP_PERFMON")
	}
	return first
}

// WorkingParts returns the parts that work.
func (k *Kernel) WorkingParts() Part {
	var p Part
	All.each(func(i int, one Part) {
		if k.faults[i] == nil {
			p |= one
		}
	})
	return p
}

// Err returns why the single part p does not work, nil if it does. The error wraps
// [fault.ErrUnsupported] or [fault.ErrDenied].
func (k *Kernel) Err(p Part) error {
	return k.faults[bits.TrailingZeros16(uint16(p))]
}

// Close detaches and unloads everything. Close walkers and attachments first; Close
// invalidates the rows of a walker.
func (k *Kernel) Close() (err error) {
	k.closed.Do(func() {
		for i := len(k.closers) - 1; i >= 0; i-- {
			err = errors.Join(err, k.closers[i]())
		}
	})
	return err
}

func (k *Kernel) onClose(f func() error) { k.closers = append(k.closers, f) }

// setResult records the result of loading part p; the first error stays.
func (k *Kernel) setResult(p Part, err error) {
	i := bits.TrailingZeros16(uint16(p))
	switch {
	case err == nil && errors.Is(k.faults[i], errNotLoaded):
		k.faults[i] = nil
	case err != nil:
		k.faults[i] = fmt.Errorf("bpf: %s: %w", p, classify(err))
	}
}

// attach attaches p to a tracepoint for as long as k is open.
func (k *Kernel) attach(p *ebpf.Program, tracepoint string) error {
	var ln link.Link
	var err error
	if p.Type() == ebpf.RawTracepoint {
		ln, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: tracepoint, Program: p})
	} else {
		ln, err = link.AttachTracing(link.TracingOptions{Program: p})
	}
	if err != nil {
		return err
	}
	k.onClose(ln.Close)
	return nil
}
