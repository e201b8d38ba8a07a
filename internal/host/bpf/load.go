package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// maxCPUs is MAX_CPUS of group.h.
const maxCPUs = 1024

var errNotLoaded = errors.New("not loaded")

// A loader loads programs into the kernel one by one, so that the failure of one does not
// affect the others.
type loader struct {
	cfg   Config
	cache *btf.Cache
	types *btf.Spec
	// cpus is the number of possible CPUs, 0 if the offsets are unknown; offsets are those
	// of each CPU's per-CPU data.
	cpus    uint32
	offsets [maxCPUs]uint64
}

// typed is the parts whose programs attach to typed kernel objects. They need all kernel
// types; the other parts need a few.
const typed = Walks | Events | Tasks

func newLoader(cfg Config) (*loader, error) {
	l := &loader{cfg: cfg, cache: btf.NewCache()}
	if cfg.Parts&typed == 0 {
		spec, err := loadCount()
		if err != nil {
			return nil, err
		}
		if l.types, err = neededTypes(spec.Types); err != nil {
			return nil, fmt.Errorf("bpf: kernel types: %w", classify(err))
		}
		return l, nil
	}
	var err error
	if l.types, err = l.cache.Kernel(); err != nil {
		return nil, fmt.Errorf("bpf: kernel types: %w", classify(err))
	}
	// Without offsets, sums over CPUs are absent.
	if err := l.findOffsets(); err != nil {
		l.cpus = 0
	}
	return l, nil
}

// options returns the options of every collection. Without KernelTypes the library would
// also read the types of all modules.
func (l *loader) options() ebpf.CollectionOptions {
	return ebpf.CollectionOptions{
		Cache:    l.cache,
		Programs: ebpf.ProgramOptions{KernelTypes: l.types},
	}
}

// findOffsets asks the kernel for the offset of each CPU's per-CPU data.
func (l *loader) findOffsets() error {
	n, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	if n > maxCPUs {
		return fmt.Errorf("%d CPUs: %w", n, fault.ErrUnsupported)
	}
	spec, err := loadOffset()
	if err != nil {
		return err
	}
	if err := spec.Variables["cpus"].Set(uint32(n)); err != nil {
		return err
	}
	c, err := ebpf.NewCollectionWithOptions(spec, l.options())
	if err != nil {
		return err
	}
	defer c.Close()
	if failed, err := c.Programs["find"].Run(&ebpf.RunOptions{}); err != nil || failed != 0 {
		return fmt.Errorf("per-CPU offsets: %d %w", failed, err)
	}
	if err := c.Variables["offset"].Get(&l.offsets); err != nil {
		return err
	}
	l.cpus = uint32(n)
	return nil
}

// setConstants sets the constants that describe this machine.
func (l *loader) setConstants(spec *ebpf.CollectionSpec) error {
	return setAll(spec, map[string]any{
		"cpus":          l.cpus,
		"page_size":     uint64(os.Getpagesize()),
		"percpu_offset": l.offsets,
		"unified":       l.cfg.Unified,
	})
}

// setAll sets those of the constants that spec has.
func setAll(spec *ebpf.CollectionSpec, values map[string]any) error {
	for name, v := range values {
		if s := spec.Variables[name]; s != nil {
			if err := s.Set(v); err != nil {
				return fmt.Errorf("constant %s: %w", name, err)
			}
		}
	}
	return nil
}

// maps creates the maps of spec without loading a program.
func (l *loader) maps(spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	s := *spec
	s.Programs = nil
	c, err := ebpf.NewCollectionWithOptions(&s, l.options())
	if err != nil {
		return nil, err
	}
	ms := c.Maps
	c.Maps = nil
	c.Close()
	return ms, nil
}

// program loads the named program of spec with the given maps.
func (l *loader) program(spec *ebpf.CollectionSpec, maps map[string]*ebpf.Map, name string) (*ebpf.Program, error) {
	s := *spec
	s.Variables = nil
	s.Programs = map[string]*ebpf.ProgramSpec{name: spec.Programs[name]}
	opts := l.options()
	opts.MapReplacements = maps
	c, err := ebpf.NewCollectionWithOptions(&s, opts)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.DetachProgram(name), nil
}

func closeMaps(maps map[string]*ebpf.Map) func() error {
	return func() error {
		var errs []error
		for _, m := range maps {
			errs = append(errs, m.Close())
		}
		return errors.Join(errs...)
	}
}

// classify adds the fault kind to an error of the kernel.
func classify(err error) error {
	var refused *ebpf.VerifierError
	switch {
	case err == nil, errors.Is(err, fault.ErrUnsupported), errors.Is(err, fault.ErrDenied):
		return err
	case errors.As(err, &refused) && len(refused.Log) > 0:
		// The verifier also refuses with EACCES or EPERM.
		return fmt.Errorf("%w: %w", err, fault.ErrUnsupported)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: %w", err, fault.ErrDenied)
	}
	return fmt.Errorf("%w: %w", err, fault.ErrUnsupported)
}

// mmapMap maps the first n bytes of an mmapable map.
func mmapMap(m *ebpf.Map, n int) ([]byte, error) {
	page := os.Getpagesize()
	n = (n + page - 1) / page * page
	b, err := unix.Mmap(m.FD(), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap %s: %w", m, err)
	}
	return b, nil
}
