package vsockdev

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A ring is a split virtqueue of Virtio 1.2, section 2.7.
type ring struct {
	num                uint16
	base               uint16 // index of the next chain to take
	addr               [3]uint64
	descs, avail, used []byte
	kick, call         int // eventfds, or -1
	on                 bool
}

// Flags of descriptors and of the available ring, and sizes.
const (
	descNext      = 1
	descWrite     = 2
	noInterrupt   = 1
	sizeDesc      = 16
	sizeUsed      = 8
	mostRing      = 1 << 15
	mostChainSize = 1 << 20
)

// locate maps the ring's addresses to m.
func (r *ring) locate(m memory) (err error) {
	n := int(r.num)
	if r.descs, err = m.at(r.addr[0], n*sizeDesc, true); err != nil {
		return fmt.Errorf("descriptors: %w", err)
	}
	if r.used, err = m.at(r.addr[1], 4+n*sizeUsed, true); err != nil {
		return fmt.Errorf("used ring: %w", err)
	}
	if r.avail, err = m.at(r.addr[2], 4+n*2, true); err != nil {
		return fmt.Errorf("available ring: %w", err)
	}
	if r.addr[1]%4 != 0 || r.addr[2]%4 != 0 {
		return fmt.Errorf("rings at %#x and %#x: misaligned", r.addr[1], r.addr[2])
	}
	return nil
}

// word returns the flags and the index at the head of a ring, for atomic access.
func word(b []byte) *uint32 { return (*uint32)(unsafe.Pointer(unsafe.SliceData(b))) }

// A chain is a descriptor chain.
type chain struct {
	head      uint16
	read      [][]byte // for the device to read
	write     [][]byte // for the device to write
	writeable int      // bytes
}

// next returns the next available chain; ok is false if there is none.
func (r *ring) next(m memory) (c chain, ok bool, err error) {
	if uint16(atomic.LoadUint32(word(r.avail))>>16) == r.base {
		return c, false, nil
	}
	c.head = binary.LittleEndian.Uint16(r.avail[4+2*int(r.base%r.num):])
	at, size := c.head, 0
	for range r.num {
		if at >= r.num {
			return c, false, fmt.Errorf("descriptor %d of %d", at, r.num)
		}
		d := r.descs[int(at)*sizeDesc:]
		flags := binary.LittleEndian.Uint16(d[12:])
		n := int(binary.LittleEndian.Uint32(d[8:]))
		if size += n; n > mostChainSize || size > mostChainSize {
			return c, false, fmt.Errorf("chain of more than %d bytes", mostChainSize)
		}
		b, err := m.at(binary.LittleEndian.Uint64(d), n, false)
		if err != nil {
			return c, false, err
		}
		if flags&descWrite != 0 {
			c.write, c.writeable = append(c.write, b), c.writeable+n
		} else {
			c.read = append(c.read, b)
		}
		if flags&descNext == 0 {
			r.base++
			return c, true, nil
		}
		at = binary.LittleEndian.Uint16(d[14:])
	}
	return c, false, fmt.Errorf("cycle of descriptors")
}

// complete returns a chain to the guest, with the number of bytes written to it.
func (r *ring) complete(c chain, written int) {
	w := atomic.LoadUint32(word(r.used))
	idx := uint16(w >> 16)
	e := r.used[4+sizeUsed*int(idx%r.num):]
	binary.LittleEndian.PutUint32(e, uint32(c.head))
	binary.LittleEndian.PutUint32(e[4:], uint32(written))
	atomic.StoreUint32(word(r.used), uint32(idx+1)<<16)
}

// notify interrupts the guest, unless it has disabled interrupts.
func (r *ring) notify() error {
	if r.call < 0 || atomic.LoadUint32(word(r.avail))&noInterrupt != 0 {
		return nil
	}
	one := [8]byte{1}
	if _, err := unix.Write(r.call, one[:]); err != nil && err != unix.EAGAIN {
		return fmt.Errorf("interrupt: %w", err)
	}
	return nil
}

// gather returns a copy of the data that the guest wrote.
func (c chain) gather() []byte {
	var b []byte
	for _, p := range c.read {
		b = append(b, p...)
	}
	return b
}

// scatter writes b to the guest's buffers and returns the number of bytes that fit.
func (c chain) scatter(b []byte) (n int) {
	for _, p := range c.write {
		n += copy(p, b[n:])
	}
	return n
}
