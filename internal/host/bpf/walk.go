package bpf

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// Has says which fields of a [Row] or an [Event] hold a reading. The other fields are
// undefined.
type Has uint32

// The bits of Has, as in group.h.
const (
	HasCPU Has = 1 << iota
	HasMemory
	HasPIDs
	HasOwnCPU
	HasCounts
	hasCut
)

// A Row is one group in a walk.
type Row struct {
	// ID is the group's kernfs id: the inode number of its directory.
	ID uint64
	// CPU is the time in ns that the group and all groups that ever were below it used:
	// cpuacct.usage, or usage_usec of cpu.stat in ns. The root of the default hierarchy has
	// it only if cpuacct is not mounted; it is then the time of all tasks of this machine.
	CPU uint64
	// Memory is what is charged to the group and all groups below it, in bytes. The root
	// has none.
	Memory uint64
	// PIDs is how many tasks are in the group and below it. The root has none.
	PIDs uint32
	// Has says which of CPU, Memory and PIDs were read: those whose controller is enabled
	// for this group in this hierarchy.
	Has Has

	// Serial number of the group and addresses of its counters, which the walk keeps for the next one.
	_ [4]uint64
}

const (
	maxWalkers = 64 // of walkers in walk.bpf.c
	firstRows  = 256
)

type walkPart struct {
	program *ebpf.Program
	flush   *ebpf.Program // nil if the kernel has no flush function
	maps    map[string]*ebpf.Map
	rows    *ebpf.MapSpec // of a walker; before Linux 6.2 the types of keys and values must be alike too
	vars    []byte        // walker and seen of walk.bpf.c, mapped
	walker  *uint32
	seen    *uint32
	taken   uint64 // bit set of walkers
}

func (k *Kernel) openWalk(l *loader) {
	if l.cfg.Parts&Walks != 0 {
		k.setResult(Walks, k.walk.open(k, l))
	}
}

func (w *walkPart) open(k *Kernel, l *loader) error {
	spec, err := loadWalk()
	if err != nil {
		return err
	}
	if err := l.setConstants(spec); err != nil {
		return err
	}
	w.rows = spec.Maps["walkers"].InnerMap
	offsets := [2]uint32{spec.Variables["walker"].Offset, spec.Variables["seen"].Offset}
	if w.maps, err = l.maps(spec); err != nil {
		return err
	}
	k.onClose(closeMaps(w.maps))
	if w.vars, err = mmapMap(w.maps[".bss"], 1); err != nil {
		return err
	}
	k.onClose(func() error { return unix.Munmap(w.vars) })
	w.walker = (*uint32)(unsafe.Pointer(&w.vars[offsets[0]]))
	w.seen = (*uint32)(unsafe.Pointer(&w.vars[offsets[1]]))

	if w.program, err = l.program(spec, w.maps, "walk"); err != nil {
		return err
	}
	k.onClose(w.program.Close)
	for _, name := range []string{"flush", "flush_old"} {
		if w.flush, err = l.program(spec, w.maps, name); err == nil {
			k.onClose(w.flush.Close)
			break
		}
	}
	return nil
}

// A Walker reads all groups of a hierarchy, or a group and all groups below it.
type Walker struct {
	part  *walkPart
	slot  int
	links [2]int // flush and walk; -1 without
	rows  *ebpf.Map
	mem   []byte
	cap   int
}

// NewWalker returns a walker over the group whose open directory is dirfd, and all groups
// below it. The caller may close dirfd afterwards. At most 64 walkers can be open at a
// time. With flush, each walk first updates the CPU times of the default hierarchy; version
// 1 hierarchies need no flush, and there it costs nothing.
func (k *Kernel) NewWalker(dirfd int, flush bool) (*Walker, error) {
	if err := k.Err(Walks); err != nil {
		return nil, err
	}
	p := &k.walk
	slot := bits.TrailingZeros64(^p.taken)
	if slot >= maxWalkers {
		return nil, fmt.Errorf("bpf: more than %d walkers: %w", maxWalkers, fault.ErrUnavailable)
	}
	w := &Walker{part: p, slot: slot, links: [2]int{-1, -1}}
	p.taken |= 1 << slot
	err := w.open(dirfd, flush)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bpf: walker: %w", classify(err)), w.Close())
	}
	return w, nil
}

func (w *Walker) open(dirfd int, flush bool) (err error) {
	if flush {
		if w.part.flush == nil {
			return fmt.Errorf("no kernel function to flush CPU times: %w", fault.ErrUnsupported)
		}
		if w.links[0], err = linkGroups(w.part.flush, iterSelf, dirfd); err != nil {
			return err
		}
	}
	if w.links[1], err = linkGroups(w.part.program, iterDescendantsPre, dirfd); err != nil {
		return err
	}
	return w.grow(firstRows)
}

// grow makes room for n rows.
func (w *Walker) grow(n int) error {
	spec := w.part.rows.Copy()
	spec.MaxEntries = uint32(n)
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return err
	}
	mem, err := mmapMap(m, n*int(unsafe.Sizeof(Row{})))
	if err != nil {
		return errors.Join(err, m.Close())
	}
	if err := w.part.maps["walkers"].Put(uint32(w.slot), m); err != nil {
		return errors.Join(err, unix.Munmap(mem), m.Close())
	}
	err = w.drop()
	w.rows, w.mem, w.cap = m, mem, n
	return err
}

// drop releases the rows.
func (w *Walker) drop() error {
	if w.rows == nil {
		return nil
	}
	err := errors.Join(unix.Munmap(w.mem), w.rows.Close())
	w.rows, w.mem = nil, nil
	return err
}

// Read walks and returns the rows. They belong to the walker, and its next Read overwrites
// them. A group that dies or is born during the walk may or may not be in it.
//
// Parents come before their children. So what a child uses between the two readings is
// missing in its parent, whose remainder is a little too small until the next walk; in the
// other order it would be too large, and booked.
func (w *Walker) Read() ([]Row, error) {
	for {
		if w.links[0] >= 0 {
			if err := runIter(w.links[0]); err != nil {
				return nil, fmt.Errorf("bpf: flush: %w", err)
			}
		}
		*w.part.walker, *w.part.seen = uint32(w.slot), 0
		if err := runIter(w.links[1]); err != nil {
			return nil, fmt.Errorf("bpf: walk: %w", err)
		}
		n := int(*w.part.seen)
		if n <= w.cap {
			return unsafe.Slice((*Row)(unsafe.Pointer(&w.mem[0])), n), nil
		}
		if err := w.grow(n + n/2); err != nil {
			return nil, fmt.Errorf("bpf: walk: room for %d groups: %w", n, err)
		}
	}
}

// Close frees the walker and its rows.
func (w *Walker) Close() error {
	var errs []error
	for i, fd := range w.links {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
			w.links[i] = -1
		}
	}
	if w.rows != nil {
		errs = append(errs, w.part.maps["walkers"].Delete(uint32(w.slot)), w.drop())
	}
	w.part.taken &^= 1 << w.slot
	return errors.Join(errs...)
}
