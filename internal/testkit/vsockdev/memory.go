package vsockdev

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A region is a mapped part of the guest's memory.
type region struct {
	guest uint64 // address of its first byte in the guest
	user  uint64 // address in the hypervisor, which ring addresses use
	bytes []byte
	whole []byte // the whole mapping
}

// memory is the memory of a guest.
type memory []region

// mapMemory maps the regions of a SET_MEM_TABLE request. It does not close the descriptors.
func mapMemory(payload []byte, fds []int) (m memory, err error) {
	const head, each = 8, 32
	if len(payload) < head {
		return nil, errors.New("memory table: too short")
	}
	n := int(binary.LittleEndian.Uint32(payload))
	if n != len(fds) || len(payload) < head+n*each {
		return nil, fmt.Errorf("memory table: %d regions, %d descriptors, %d bytes", n, len(fds), len(payload))
	}
	for i := range n {
		p := payload[head+i*each:]
		size, offset := binary.LittleEndian.Uint64(p[8:]), binary.LittleEndian.Uint64(p[24:])
		whole, err := unix.Mmap(fds[i], 0, int(size+offset), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("map %d bytes of the guest: %w", size, err), m.unmap())
		}
		m = append(m, region{guest: binary.LittleEndian.Uint64(p), user: binary.LittleEndian.Uint64(p[16:]), bytes: whole[offset:], whole: whole})
	}
	return m, nil
}

func (m memory) unmap() (err error) {
	for _, r := range m {
		err = errors.Join(err, unix.Munmap(r.whole))
	}
	return err
}

// at returns n bytes at an address of the guest, or of the hypervisor if user is true.
func (m memory) at(addr uint64, n int, user bool) ([]byte, error) {
	for _, r := range m {
		base := r.guest
		if user {
			base = r.user
		}
		if from := addr - base; addr >= base && from < uint64(len(r.bytes)) && uint64(n) <= uint64(len(r.bytes))-from {
			return r.bytes[from:][:n:n], nil
		}
	}
	return nil, fmt.Errorf("%d bytes at %#x: outside the guest's memory", n, addr)
}
