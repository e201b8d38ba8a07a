package bpf

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Counts is what a group did since [Open], without the groups below it. Parts that were not
// opened stay 0; see [Kernel.WorkingParts].
type Counts struct {
	// Processes started, in the group in which the new process begins; threads and kernel
	// threads do not count.
	Forks uint64
	// Bytes and requests issued to leaf block devices. Flushes, discards and writes of
	// zeroes move no data and do not count.
	ReadBytes, WrittenBytes uint64
	Reads, Writes           uint64
	// Packets, and bytes from the IP header up, as on the wire: each segment of a packet
	// that offloading splits or merges counts with its headers.
	RxBytes, TxBytes     uint64
	RxPackets, TxPackets uint64
}

// A Count is the Counts of one group.
type Count struct {
	// ID is the kernfs id of the group, 0 for requests without an owner and for groups
	// without a slot.
	ID uint64
	// Hierarchy of ID. If controllers have hierarchies of their own: blkio's for disk,
	// cpuacct's for forks, 0 for network; otherwise 0.
	Hierarchy uint32
	used      uint32
	Counts
}

type countPart struct {
	maps    map[string]*ebpf.Map
	slots   []Count // those mapped: see mapUsed
	mem     []byte  // of slots
	limit   int     // of slots
	state   *countState
	net     [2]*ebpf.Program       // ingress and egress
	rules   map[netip.Prefix]uint8 // the classes of prefixes that are set
	version uint32                 // of the rules; 0 before there are any
	// events takes what is of use from the events of connection tracking, or eventsErr says why not.
	events    *ebpf.Program
	eventsErr error
	followed  bool // see [Kernel.FollowTranslations]
	// The latest batch of [Kernel.ClassCounts].
	keys    []ClassKey
	byClass []ClassCounts
	// The latest batch of [Kernel.DrainEdges].
	edgeKeys []edgeKey
	edges    []EdgeTraffic
	// Slots of dead groups with their last counts. The next [Kernel.Counts] frees them.
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
		if err == nil && p&(Classes|Connections) != 0 && c.maps["by_class"] == nil {
			return // open has said why
		}
		if err != nil {
			k.setResult(p, err)
			return
		}
		net := c.net // of both directions, or those of another part
		for _, name := range programsOf[p] {
			prog, err := l.program(spec, c.maps, name)
			if err == nil {
				k.onClose(prog.Close)
				switch name {
				case "net_ingress", "class_ingress", "edge_ingress":
					net[0] = prog
				case "net_egress", "class_egress", "edge_egress":
					net[1] = prog
				default:
					err = k.attach(prog, spec.Programs[name].AttachTo)
				}
			}
			if err != nil {
				k.setResult(p, fmt.Errorf("%s: %w", name, err))
				return
			}
		}
		c.net = net
		k.setResult(p, nil)
		if p == Classes {
			if c.events, err = l.program(spec, c.maps, "connection"); err != nil {
				c.eventsErr = fmt.Errorf("bpf: connections: %w", classify(err))
				err = nil // the other parts do not need it
			} else {
				k.onClose(c.events.Close)
			}
		}
	})
}

// programsOf lists the programs of each part, in count.bpf.c; renamed is a copy of born.
var programsOf = map[Part][]string{
	Events:  {"born", "renamed", "died"},
	Forks:   {"fork"},
	Disk:    {"disk_requeue", "disk_issue"},
	Net:     {"net_ingress", "net_egress"},
	Classes: {"class_ingress", "class_egress"},
	// In their place.
	Connections: {"edge_ingress", "edge_egress"},
}

func (c *countPart) open(k *Kernel, l *loader) (*ebpf.CollectionSpec, error) {
	spec, err := loadCount()
	if err != nil {
		return nil, err
	}
	// Both tracepoints have the same arguments.
	spec.Programs["renamed"] = spec.Programs["born"].Copy()
	spec.Programs["renamed"].AttachTo = "cgroup_rename"
	slots := uint32(l.cfg.Groups) + 1
	wanted := ^uint64(0)
	if len(l.cfg.Hierarchies) > 0 {
		wanted = 0
		for _, h := range l.cfg.Hierarchies {
			wanted |= 1 << h // numbers from 64 on shift out; the filter always passes them
		}
	}
	if err := errors.Join(l.setConstants(spec), setAll(spec, map[string]any{
		"slot_count":  slots,
		"hierarchies": wanted,
		"loopback":    l.cfg.Loopback,
	})); err != nil {
		return nil, err
	}
	spec.Maps["slots"].MaxEntries = slots
	spec.Maps["index_of"].MaxEntries = slots
	spec.Maps["freed"].MaxEntries = slots
	if l.cfg.Parts&Events != 0 {
		spec.Maps["events"].MaxEntries = uint32(l.cfg.Ring)
	}
	edges, keys := uint32(1), uint32(1)
	if l.cfg.Parts&Connections != 0 {
		edges, keys = MaxEdges, slots
	}
	byClass := map[string]*ebpf.MapSpec{}
	for name, most := range map[string]uint32{
		"classes4": MaxPrefixes, "classes6": MaxPrefixes, "by_class": slots, "class_cache": 0, "class_rules": 0,
		"real_ends": maxTranslated, "more_ends": 0, "services": 0, "pending": 0, "following": 0,
		"edges": edges, "edges_of": keys,
	} {
		byClass[name] = spec.Maps[name]
		if most > 0 {
			byClass[name].MaxEntries = most
		}
		delete(spec.Maps, name)
	}
	if c.maps, err = l.maps(spec); err != nil {
		return nil, err
	}
	k.onClose(closeMaps(c.maps))
	if l.cfg.Parts&Classes != 0 {
		more, err := l.maps(&ebpf.CollectionSpec{Maps: byClass, Types: spec.Types, ByteOrder: spec.ByteOrder})
		if err != nil {
			k.setResult(Classes, err)
		} else {
			k.onClose(closeMaps(more))
			maps.Copy(c.maps, more)
			maps.Copy(spec.Maps, byClass)
		}
	}

	c.limit = int(slots)
	if err := c.mapSlots(l.cfg.Groups / 16); err != nil {
		return nil, err
	}
	k.onClose(func() error { return unix.Munmap(c.mem) })

	page, err := mmapMap(c.maps["shared"], int(unsafe.Sizeof(countState{})))
	if err != nil {
		return nil, err
	}
	k.onClose(func() error { return unix.Munmap(page) })
	c.state = (*countState)(unsafe.Pointer(&page[0]))
	// Slot 0 is for all groups without a slot.
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

// mapSlots maps the first n slots, or all if there are fewer. All that is mapped is resident.
func (c *countPart) mapSlots(n int) error {
	n = min(max(n, 1), c.limit)
	mem, err := mmapMap(c.maps["slots"], n*int(unsafe.Sizeof(Count{})))
	if err != nil {
		return err
	}
	if c.mem != nil {
		err = unix.Munmap(c.mem)
	}
	c.mem, c.slots = mem, unsafe.Slice((*Count)(unsafe.Pointer(&mem[0])), n)
	return err
}

// mapUsed maps all slots that were ever used, and reports whether they are mapped. Counts are
// cumulative: those of a slot that cannot be mapped now are complete once it is.
func (c *countPart) mapUsed() bool {
	n := min(int(atomic.LoadUint32(&c.state.Next)), c.limit)
	return n <= len(c.slots) || c.mapSlots(n+n/2) == nil
}

// SetSkipMajors replaces the major numbers of the block devices that do not count because
// their I/O reaches another device: loop, md, device-mapper, zram, ram. A driver may get
// its number, in /proc/devices, long after Open.
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

// Counts yields the counts of each group that did anything, in no particular order. The
// first has ID 0: counts without a group.
func (k *Kernel) Counts() iter.Seq[Count] {
	return func(yield func(Count) bool) {
		c := &k.count
		if c.state == nil {
			return
		}
		c.mapUsed()
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

// Full returns how often a group got no slot and was counted as group 0. The number wraps
// at 32 bits.
func (k *Kernel) Full() uint32 {
	if k.count.state == nil {
		return 0
	}
	return atomic.LoadUint32(&k.count.state.Full)
}

// Forget frees the slot of a dead group and returns its final counts; false if the group
// had no slot. Call it at least a tick after the death, for late packets and write-back.
// Anything later counts for group 0, or for the same id again.
func (k *Kernel) Forget(hierarchy uint32, id uint64) (Counts, bool) {
	c := &k.count
	if c.state == nil || id == 0 {
		return Counts{}, false
	}
	key := struct{ id, hierarchy uint64 }{id, uint64(hierarchy)}
	var slot uint32
	if !c.mapUsed() {
		return Counts{}, false
	}
	if err := c.maps["index_of"].LookupAndDelete(&key, &slot); err != nil {
		return Counts{}, false
	}
	if !c.mapUsed() || int(slot) >= len(c.slots) { // a late packet may have taken the slot just now
		return Counts{}, false
	}
	s := &c.slots[slot]
	atomic.StoreUint32(&s.used, 0)
	last := s.Counts
	c.retired = append(c.retired, retired{slot, last})
	return last, true
}

// release frees retired slots for other groups. It moves to slot 0 what a CPU, having
// looked up the slot just before it was retired, added since.
func (c *countPart) release() {
	for _, r := range c.retired {
		s := &c.slots[r.slot]
		late, all, taken := s.Counts.fields(), c.slots[0].Counts.fields(), r.last.fields()
		for i := range late {
			atomic.AddUint64(all[i], atomic.LoadUint64(late[i])-*taken[i])
		}
		*s = Count{}
		// Put cannot fail: freed has room for all slots.
		_ = c.maps["freed"].Put(nil, r.slot)
	}
	c.retired = c.retired[:0]
}

func (c *Counts) fields() [9]*uint64 {
	return [...]*uint64{
		&c.Forks, &c.ReadBytes, &c.WrittenBytes, &c.Reads, &c.Writes,
		&c.RxBytes, &c.TxBytes, &c.RxPackets, &c.TxPackets,
	}
}

// An Attachment counts the packets of a group until it is closed.
type Attachment struct{ links [2]*link.RawLink }

// AttachNet starts to count what the sockets of a group of the default hierarchy, and of
// all groups below it, send and receive; each group has its own counts. dirfd is the
// group's open directory. Attach a Kernel only once along any path to the root, or packets
// count twice. Programs attached by others stay in effect.
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

// Close stops counting. The counts remain.
func (a *Attachment) Close() error {
	var errs []error
	for _, ln := range a.links {
		if ln != nil {
			errs = append(errs, ln.Close())
		}
	}
	return errors.Join(errs...)
}
