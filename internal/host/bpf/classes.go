package bpf

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/cilium/ebpf"

	"mete.dev/mete/internal/model/fault"
)

// MaxPrefixes is how many prefixes of each family may have a class.
const MaxPrefixes = 1 << 16

// classLimit is one more than the highest class, as CLASSES of classes.h.
const classLimit = 7

// A ClassKey says which sockets a ClassCounts is of: those of a group of the default hierarchy, in the network
// namespace with the number that /proc/PID/ns/net has. The namespace is 0 if it is not known.
type ClassKey struct{ Group, NetNS uint64 }

// ClassBytes is traffic of one class in one direction.
type ClassBytes struct {
	// Wire is bytes as [Counts] has them.
	Wire uint64
	// Interface is bytes as an Ethernet interface counts them where offloading is left to a later one, as
	// those of virtual Ethernet are: link headers included, and a packet that is not yet split once.
	Interface uint64
}

// ClassCounts is the traffic since [Open] that was received of the first class, sent to it, received of the
// second one and so on. With [Connections] it is the traffic for which there was no room by edge, and that of no class is
// at the end.
type ClassCounts [2 * classLimit]ClassBytes

// SetClasses sets the class of each prefix, from 1 to 6, or 0 for none, in place of the previous rules. Traffic whose
// other end is in a prefix counts for the class of the longest one. After an error the others are set; the next call tries
// again.
func (k *Kernel) SetClasses(rules map[netip.Prefix]uint8) error {
	if err := k.Err(Classes); err != nil {
		return err
	}
	c := &k.count
	if c.version > 0 && maps.Equal(rules, c.rules) {
		return nil
	}
	var errs []error
	for p := range c.rules { // first, to make room
		if _, ok := rules[p]; ok {
			continue
		}
		m, key := k.prefixKey(p)
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("bpf: class of %s: %w", p, err))
			continue
		}
		delete(c.rules, p)
	}
	for p, class := range rules {
		was, ok := c.rules[p]
		if ok && was == class {
			continue
		}
		if class >= classLimit || !p.IsValid() {
			errs = append(errs, fmt.Errorf("bpf: class %d of %s: %w", class, p, fault.ErrInvalid))
			continue
		}
		m, key := k.prefixKey(p)
		if err := m.Put(key, uint32(class)); err != nil {
			errs = append(errs, fmt.Errorf("bpf: class of %s: %w", p, err))
			continue
		}
		if c.rules == nil {
			c.rules = map[netip.Prefix]uint8{}
		}
		c.rules[p] = class
	}
	// Classes that were looked up until now are not valid any more. Odd versions are those of IPv6.
	if c.version += 2; c.version > 1<<31 {
		c.version = 2
	}
	if err := c.maps["class_rules"].Put(uint32(0), c.version); err != nil {
		errs = append(errs, fmt.Errorf("bpf: version of the classes: %w", err))
	}
	return errors.Join(errs...)
}

// prefixKey returns the map for a prefix, and its key.
func (k *Kernel) prefixKey(p netip.Prefix) (*ebpf.Map, any) {
	if a := p.Addr(); a.Is4() {
		return k.count.maps["classes4"], &struct {
			length  uint32
			address [4]byte
		}{uint32(p.Bits()), a.As4()}
	}
	return k.count.maps["classes6"], &struct {
		length  uint32
		address [16]byte
	}{uint32(p.Bits()), p.Addr().As16()}
}

// classBatch is how many sockets' counts one system call fetches.
const classBatch = 256

// ClassCounts calls f with all traffic by class. f must not keep the counts.
func (k *Kernel) ClassCounts(f func(ClassKey, *ClassCounts)) error {
	if err := k.Err(Classes); err != nil {
		return err
	}
	m := k.count.maps["by_class"]
	var cursor ebpf.MapBatchCursor
	if k.count.keys == nil {
		k.count.keys, k.count.byClass = make([]ClassKey, classBatch), make([]ClassCounts, classBatch)
	}
	for {
		n, err := m.BatchLookup(&cursor, k.count.keys, k.count.byClass, nil)
		for i := range n {
			f(k.count.keys[i], &k.count.byClass[i])
		}
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return nil
		case err != nil:
			return fmt.Errorf("bpf: traffic by class: %w", classify(err))
		}
	}
}

// ForgetClasses removes the counts of sockets that are gone.
func (k *Kernel) ForgetClasses(of ClassKey) {
	if k.Err(Classes) == nil {
		_ = k.count.maps["by_class"].Delete(&of) // it may not be there
	}
}
