package bpf

import (
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Counts is what was counted for one group since [Open]: what it did itself,
// without the groups below it. Parts that were not opened stay 0; ask
// [Kernel.WorkingParts].
type Counts struct {
	// Processes started; threads and kernel threads are none. Counted for the
	// group in which the new process begins.
	Forks uint64
	// Bytes and requests issued to leaf block devices. Flushes, discards and
	// written zeroes move no data and are not counted.
	ReadBytes, WrittenBytes uint64
	Reads, Writes           uint64
	// Bytes from the IP header up and packets, as on the wire: of a large
	// packet that is cut into segments later, or was put together from them,
	// each segment counts with its headers.
	RxBytes, TxBytes     uint64
	RxPackets, TxPackets uint64
}

// A Count is the counts of one group.
type Count struct {
	// ID is the kernfs id of the group, 0 for what belongs to no group that is
	// known: requests without an owner, and all for which no place was left.
	ID uint64
	// Hierarchy that ID is of: blkio's for disk, cpuacct's for forks, 0 for
	// network, where those are mounted apart; otherwise 0.
	Hierarchy uint32
	used      uint32
	Counts
}

type countPart struct {
	maps  map[string]*ebpf.Map
	slots []Count
	state *countState
	net   [2]*ebpf.Program // ingress and egress
	// Slots taken from dead groups and their last known counts, to be given
	// back at the next [Kernel.Counts].
	retired []retired
}

type retired struct {
	slot uint32
	last Counts
}

func (k *Kernel) openCount(l *loader) {
	parts := l.cfg.Parts & counting
	if parts == 0 {
		return
	}
	c := &k.count
	spec, err := c.open(k, l)
	parts.each(func(_ int, p Part) {
		if err != nil {
			k.setResult(p, err)
			return
		}
		for _, name := range programsOf[p] {
			prog, err := l.program(spec, c.maps, name)
			if err == nil {
				k.onClose(prog.Close)
				switch name {
				case "net_ingress":
					c.net[0] = prog
				case "net_egress":
					c.net[1] = prog
				default:
					err = k.attach(prog, spec.Programs[name].AttachTo)
				}
			}
			if err != nil {
				k.setResult(p, fmt.Errorf("%s: %w", name, err))
				return
			}
		}
		k.setResult(p, nil)
	})
}

// programsOf are the programs of each part, in count.bpf.c.
var programsOf = map[Part][]string{
	Events: {"born", "died"},
	Forks:  {"fork"},
	Disk:   {"disk_requeue", "disk_issue"},
	Net:    {"net_ingress", "net_egress"},
}

func (c *countPart) open(k *Kernel, l *loader) (*ebpf.CollectionSpec, error) {
	spec, err := loadCount()
	if err != nil {
		return nil, err
	}
	places := uint32(l.cfg.Groups) + 1
	wanted := ^uint64(0)
	if len(l.cfg.Hierarchies) > 0 {
		wanted = 0
		for _, h := range l.cfg.Hierarchies {
			wanted |= 1 << h // numbers from 64 on shift out, and always pass
		}
	}
	if err := errors.Join(l.setConstants(spec), setAll(spec, map[string]any{
		"slot_count":  places,
		"hierarchies": wanted,
		"loopback":    l.cfg.Loopback,
	})); err != nil {
		return nil, err
	}
	spec.Maps["slots"].MaxEntries = places
	spec.Maps["index_of"].MaxEntries = places
	spec.Maps["freed"].MaxEntries = places
	if l.cfg.Parts&Events != 0 {
		spec.Maps["events"].MaxEntries = uint32(l.cfg.Ring)
	}
	if c.maps, err = l.maps(spec); err != nil {
		return nil, err
	}
	k.onClose(closeMaps(c.maps))

	mem, err := mmapMap(c.maps["slots"], int(places)*int(unsafe.Sizeof(Count{})))
	if err != nil {
		return nil, err
	}
	k.onClose(func() error { return unix.Munmap(mem) })
	c.slots = unsafe.Slice((*Count)(unsafe.Pointer(&mem[0])), places)

	page, err := mmapMap(c.maps["shared"], int(unsafe.Sizeof(countState{})))
	if err != nil {
		return nil, err
	}
	k.onClose(func() error { return unix.Munmap(page) })
	c.state = (*countState)(unsafe.Pointer(&page[0]))
	// The first slot is everybody's.
	c.state.Next = 1
	c.setSkipMajors(l.cfg.SkipMajors)

	if l.cfg.Parts&Events != 0 {
		if err := k.ring.open(c.maps["events"], l.cfg.Ring); err != nil {
			return nil, err
		}
		k.onClose(k.ring.close)
	}
	return spec, nil
}

// SetSkipMajors replaces the major numbers of the block devices that do not
// count because what they do reaches another device: loop, md, device-mapper,
// zram, ram. A driver may get its number, in /proc/devices, long after Open.
func (k *Kernel) SetSkipMajors(majors []uint32) {
	if k.count.state != nil {
		k.count.setSkipMajors(majors)
	}
}

func (c *countPart) setSkipMajors(majors []uint32) {
	var set [len(c.state.SkipMajor)]uint64
	for _, m := range majors {
		if m < uint32(64*len(set)) {
			set[m/64] |= 1 << (m % 64)
		}
	}
	for i := range set {
		atomic.StoreUint64(&c.state.SkipMajor[i], set[i])
	}
}

// Counts yields what was counted for each group that did anything, in no
// order. The first has ID 0 and holds what belongs to none.
func (k *Kernel) Counts() iter.Seq[Count] {
	return func(yield func(Count) bool) {
		c := &k.count
		if c.state == nil {
			return
		}
		c.release()
		n := min(int(atomic.LoadUint32(&c.state.Next)), len(c.slots))
		for i := range n {
			s := &c.slots[i]
			if i > 0 && atomic.LoadUint32(&s.used) == 0 {
				continue
			}
			if !yield(*s) {
				return
			}
		}
	}
}

// Full returns how often no place was left for a group, so that what it did
// was counted for group 0. The number wraps at 32 bits.
func (k *Kernel) Full() uint32 {
	if k.count.state == nil {
		return 0
	}
	return atomic.LoadUint32(&k.count.state.Full)
}

// Forget gives the place of a dead group back and returns its final counts;
// false if the group never had any. Call it at least a tick after its death,
// for late packets and write-backs. What comes later still is counted for
// group 0, or for the same id anew.
func (k *Kernel) Forget(hierarchy uint32, id uint64) (Counts, bool) {
	c := &k.count
	if c.state == nil || id == 0 {
		return Counts{}, false
	}
	key := struct{ id, hierarchy uint64 }{id, uint64(hierarchy)}
	var slot uint32
	if err := c.maps["index_of"].LookupAndDelete(&key, &slot); err != nil || int(slot) >= len(c.slots) {
		return Counts{}, false
	}
	s := &c.slots[slot]
	atomic.StoreUint32(&s.used, 0)
	last := s.Counts
	c.retired = append(c.retired, retired{slot, last})
	return last, true
}

// release makes retired slots free for other groups. A CPU that had found a
// slot just before it was taken may have added to it since; that is moved to
// the common slot.
func (c *countPart) release() {
	for _, r := range c.retired {
		s := &c.slots[r.slot]
		late, all, taken := s.Counts.fields(), c.slots[0].Counts.fields(), r.last.fields()
		for i := range late {
			atomic.AddUint64(all[i], atomic.LoadUint64(late[i])-*taken[i])
		}
		*s = Count{}
		// It cannot be full: it has room for all slots.
		_ = c.maps["freed"].Put(nil, r.slot)
	}
	c.retired = c.retired[:0]
}

func (n *Counts) fields() [9]*uint64 {
	return [...]*uint64{
		&n.Forks, &n.ReadBytes, &n.WrittenBytes, &n.Reads, &n.Writes,
		&n.RxBytes, &n.TxBytes, &n.RxPackets, &n.TxPackets,
	}
}

// An Attachment counts the packets of a group until it is closed.
type Attachment struct{ links [2]*link.RawLink }

// AttachNet starts to count what the sockets of the group of the default
// hierarchy whose directory dirfd is open at send and receive, and those of
// all groups below; each group has counts of its own. Attach a Kernel only
// once along any path to the root, else packets count twice. Programs of
// others stay in force.
func (k *Kernel) AttachNet(dirfd int) (*Attachment, error) {
	if err := k.Err(Net); err != nil {
		return nil, err
	}
	a := &Attachment{}
	for i, at := range [...]ebpf.AttachType{ebpf.AttachCGroupInetIngress, ebpf.AttachCGroupInetEgress} {
		ln, err := link.AttachRawLink(link.RawLinkOptions{Target: dirfd, Program: k.count.net[i], Attach: at})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("bpf: %s: %w", at, classify(err)), a.Close())
		}
		a.links[i] = ln
	}
	return a, nil
}

// Close stops counting. What was counted stays.
func (a *Attachment) Close() error {
	var errs []error
	for _, ln := range a.links {
		if ln != nil {
			errs = append(errs, ln.Close())
		}
	}
	return errors.Join(errs...)
}
