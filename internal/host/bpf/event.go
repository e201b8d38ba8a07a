package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// An Event is the birth, the renaming or the death of a group. It is valid until the callback that
// received it returns.
type Event struct {
	// Time of the event in ns of CLOCK_BOOTTIME.
	Time uint64
	// ID is the kernfs id of the group, Parent that of the group above.
	ID, Parent uint64
	// CPU is the final value of [Row.CPU]. In the default hierarchy it is as
	// old as the last flush.
	CPU uint64
	// OwnCPU is the CPU time in ns of the group of the default hierarchy itself, without
	// groups below it. It is exact even without a flush.
	OwnCPU uint64
	// Memory is how many bytes were still charged. The charge moves to the parent.
	Memory uint64
	// PIDs is how many tasks were in the group: zombies.
	PIDs uint64
	// Counts at the time of death. Packets of closing sockets and write-back may still add
	// a little. See [Kernel.Forget].
	Counts Counts
	// Hierarchy is its number in /proc/self/cgroup, 0 for the default one.
	Hierarchy uint32
	// Level is the depth below the root of the hierarchy.
	Level uint32
	// Born is true for a birth, false for a death. It is true for a renaming too, in which
	// the group has been born before; only a hierarchy of version 1 renames groups.
	Born bool
	// Has is which of CPU, Memory, PIDs, OwnCPU and Counts a death carries. A birth carries
	// none: all start at zero.
	Has Has
	// Path of the group from the root of its hierarchy, beginning with "/". It is valid
	// during the call of Drain's function; copy it to keep it.
	Path []byte
	// Cut means that the path was longer than 511 bytes and lacks its end.
	Cut bool
}

// ringBusy and ringDiscard are BPF_RINGBUF_BUSY_BIT and
// BPF_RINGBUF_DISCARD_BIT of include/uapi/linux/bpf.h; a record begins with
// eight bytes, its length and the page it is on.
const (
	ringBusy    = 1 << 31
	ringDiscard = 1 << 30
	ringHeader  = 8
)

// A ring is the consumer side of a BPF ring buffer.
type ring struct {
	consumerPage, data []byte // mapped
	consumer, producer *uint64
	records            []byte     // of which one may continue at the start
	joined             countEvent // the latest such record
	mask               uint64
}

// open maps the ring as Documentation/bpf/ringbuf.rst of Linux describes: the writable
// consumer page, then the producer page and the records. It does not map the records a second
// time behind the first, since all that is mapped is resident.
func (r *ring) open(m *ebpf.Map, size int) (err error) {
	page := unix.Getpagesize()
	r.consumerPage, err = unix.Mmap(m.FD(), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap ring: %w", err)
	}
	r.data, err = unix.Mmap(m.FD(), int64(page), page+size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return errors.Join(fmt.Errorf("mmap ring: %w", err), unix.Munmap(r.consumerPage))
	}
	r.consumer = (*uint64)(unsafe.Pointer(&r.consumerPage[0]))
	r.producer = (*uint64)(unsafe.Pointer(&r.data[0]))
	r.records = r.data[page:]
	r.mask = uint64(size - 1)
	return nil
}

func (r *ring) close() error {
	return errors.Join(unix.Munmap(r.data), unix.Munmap(r.consumerPage))
}

// next returns the oldest record, valid until the next call, and the position behind it, or nil.
func (r *ring) next() (rec []byte, end uint64) {
	for {
		at := atomic.LoadUint64(r.consumer)
		if at == atomic.LoadUint64(r.producer) {
			return nil, 0
		}
		head := atomic.LoadUint32((*uint32)(unsafe.Pointer(&r.records[at&r.mask])))
		if head&ringBusy != 0 {
			return nil, 0
		}
		size := uint64(head &^ (ringBusy | ringDiscard))
		end = at + ringHeader + (size+7)&^7
		if head&ringDiscard != 0 {
			atomic.StoreUint64(r.consumer, end)
			continue
		}
		from := (at + ringHeader) & r.mask
		rec := r.records[from:min(from+size, uint64(len(r.records)))]
		if rest := size - uint64(len(rec)); rest > 0 {
			whole := unsafe.Slice((*byte)(unsafe.Pointer(&r.joined)), unsafe.Sizeof(r.joined))
			rec = append(append(whole[:0], rec...), r.records[:rest]...)
		}
		return rec, end
	}
}

// Drain calls f for each event since the last call, the oldest first, and returns their
// number. It does not wait.
func (k *Kernel) Drain(f func(*Event)) (n int) {
	if k.ring.data == nil {
		return 0
	}
	var e Event
	for {
		rec, end := k.ring.next()
		if rec == nil {
			return n
		}
		if e.decode(rec) {
			f(&e)
			n++
		}
		atomic.StoreUint64(k.ring.consumer, end)
	}
}

// eventHeader is the size of a record before the path.
const eventHeader = unsafe.Offsetof(countEvent{}.Path)

func (e *Event) decode(rec []byte) bool {
	if uintptr(len(rec)) < eventHeader {
		return false
	}
	// A record may be shorter than countEvent: only the path is cut.
	r := (*countEvent)(unsafe.Pointer(&rec[0]))
	*e = Event{
		Time: r.Time, ID: r.Id, Parent: r.Parent,
		CPU: r.Cpu, OwnCPU: r.OwnCpu, Memory: r.Memory, PIDs: r.Pids,
		Counts:    *(*Counts)(unsafe.Pointer(&r.N)),
		Hierarchy: r.Hierarchy,
		Level:     r.Level,
		Born:      r.Born != 0,
		Has:       Has(r.Has) &^ hasCut,
		Cut:       Has(r.Has)&hasCut != 0,
	}
	e.Path = rec[eventHeader:]
	if i := bytes.IndexByte(e.Path, 0); i >= 0 {
		e.Path = e.Path[:i]
	}
	return true
}

// Lost returns how many events were dropped since [Open] because the ring was full. If it
// grows, find births and deaths by a walk.
func (k *Kernel) Lost() uint64 {
	if k.count.state == nil {
		return 0
	}
	return atomic.LoadUint64(&k.count.state.Lost)
}
