package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// kernelTypesFile is the kernel's own BTF, since Linux 5.4.
const kernelTypesFile = "/sys/kernel/btf/vmlinux"

// neededTypes returns the kernel types that the given program objects use. Indexing the
// other hundred thousand would take most of Open's time and memory.
func neededTypes(objects ...*btf.Spec) (*btf.Spec, error) {
	wanted := make(map[string]bool)
	for _, o := range objects {
		for t, err := range o.All() {
			if err != nil {
				return nil, err
			}
			name, _, _ := bytes.Cut([]byte(t.TypeName()), []byte("___"))
			switch t.(type) {
			case *btf.Struct, *btf.Union, *btf.Enum:
				wanted[string(name)] = len(name) > 0
			}
		}
	}
	raw, unmap, err := readKernelTypes()
	if err != nil {
		return nil, err
	}
	defer unmap()
	s, err := newSieve(raw)
	if err != nil {
		return nil, err
	}
	if err := s.index(wanted); err != nil {
		return nil, err
	}
	small, err := s.write()
	if err != nil {
		return nil, err
	}
	return btf.LoadSpecFromReader(bytes.NewReader(small))
}

// readKernelTypes maps the file, or reads it on Linux before 6.17, which cannot map it.
func readKernelTypes() (raw []byte, unmap func(), err error) {
	f, err := os.Open(kernelTypesFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("%w: %w", err, fault.ErrUnsupported)
	} else if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	raw, err = unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err == nil {
		return raw, func() { _ = unix.Munmap(raw) }, nil
	}
	raw, err = os.ReadFile(kernelTypesFile)
	return raw, func() {}, err
}

// BTF constants of include/uapi/linux/btf.h of Linux.
const (
	btfMagic      = 0xeb9f
	btfHeaderSize = 24
	btfTypeSize   = 12

	kindInt       = 1
	kindPtr       = 2
	kindArray     = 3
	kindStruct    = 4
	kindUnion     = 5
	kindEnum      = 6
	kindFwd       = 7
	kindTypedef   = 8
	kindVolatile  = 9
	kindConst     = 10
	kindRestrict  = 11
	kindFunc      = 12
	kindFuncProto = 13
	kindVar       = 14
	kindDatasec   = 15
	kindFloat     = 16
	kindDeclTag   = 17
	kindTypeTag   = 18
	kindEnum64    = 19
)

// tail returns the length of a type after its common part, and the length of each repeated
// element.
func tail(kind, vlen uint32) (n, each uint32, err error) {
	switch kind {
	case kindInt, kindVar, kindDeclTag:
		return 4, 0, nil
	case kindArray:
		return 12, 0, nil
	case kindStruct, kindUnion, kindDatasec, kindEnum64:
		return 12 * vlen, 12, nil
	case kindEnum, kindFuncProto:
		return 8 * vlen, 8, nil
	case kindPtr, kindFwd, kindTypedef, kindVolatile, kindConst, kindRestrict, kindFunc, kindFloat, kindTypeTag:
		return 0, 0, nil
	}
	return 0, 0, fmt.Errorf("BTF kind %d: %w", kind, fault.ErrUnsupported)
}

// A sieve copies some types, and the types that they consist of, to a BTF of their own. It
// leaves out the targets of pointers, which affect no offset.
type sieve struct {
	types, names []byte
	at           []uint32 // offset in types of each type, by id
	queue        []uint32 // ids of the types to copy, in their new order
	newID        map[uint32]uint32
	out, strings []byte
}

var errBadTypes = fmt.Errorf("kernel types: not understood: %w", fault.ErrUnsupported)

func newSieve(raw []byte) (*sieve, error) {
	le := binary.LittleEndian
	if len(raw) < btfHeaderSize || le.Uint16(raw) != btfMagic {
		return nil, errBadTypes
	}
	head := uint64(le.Uint32(raw[4:]))
	part := func(i int) []byte {
		off, n := head+uint64(le.Uint32(raw[i:])), uint64(le.Uint32(raw[i+4:]))
		if off+n > uint64(len(raw)) {
			return nil
		}
		return raw[off : off+n]
	}
	s := &sieve{types: part(8), names: part(16), newID: make(map[uint32]uint32)}
	if len(s.types) == 0 || len(s.names) == 0 {
		return nil, errBadTypes
	}
	return s, nil
}

func (s *sieve) name(off uint32) []byte {
	if uint64(off) >= uint64(len(s.names)) {
		return nil
	}
	b := s.names[off:]
	if before, _, ok := bytes.Cut(b, []byte{0}); ok {
		return before
	}
	return nil
}

// index finds all types and takes those with wanted names.
func (s *sieve) index(wanted map[string]bool) error {
	le := binary.LittleEndian
	// A type takes about 25 bytes.
	s.at = make([]uint32, 1, 1+len(s.types)/24)
	for off := uint32(0); off < uint32(len(s.types)); {
		t := s.types[off:]
		if len(t) < btfTypeSize {
			return errBadTypes
		}
		info := le.Uint32(t[4:])
		kind := info >> 24 & 31
		n, _, err := tail(kind, info&0xffff)
		if err != nil {
			return err
		}
		if uint64(len(t)) < uint64(btfTypeSize+n) {
			return errBadTypes
		}
		switch kind {
		case kindStruct, kindUnion, kindEnum, kindEnum64:
			if wanted[string(s.name(le.Uint32(t)))] {
				s.take(uint32(len(s.at)))
			}
		}
		s.at = append(s.at, off)
		off += btfTypeSize + n
	}
	return nil
}

// take queues the type for copying and returns its new id. Type 0 is void.
func (s *sieve) take(id uint32) uint32 {
	if id == 0 {
		return 0
	}
	if n, ok := s.newID[id]; ok {
		return n
	}
	s.queue = append(s.queue, id)
	n := uint32(len(s.queue))
	s.newID[id] = n
	return n
}

// put32 appends v to the output.
func (s *sieve) put32(v uint32) { s.out = binary.LittleEndian.AppendUint32(s.out, v) }

// putName appends the offset of the name at off in the new string table.
func (s *sieve) putName(off uint32) {
	name := s.name(off)
	if len(name) == 0 {
		s.put32(0)
		return
	}
	s.put32(uint32(len(s.strings)))
	s.strings = append(append(s.strings, name...), 0)
}

// write returns the taken types as BTF.
func (s *sieve) write() ([]byte, error) {
	s.out = make([]byte, btfHeaderSize, 64<<10)
	s.strings = append(make([]byte, 0, 64<<10), 0)
	// copyType may append to the queue.
	for i := 0; i < len(s.queue); i++ {
		id := s.queue[i]
		if uint64(id) >= uint64(len(s.at)) {
			return nil, errBadTypes
		}
		s.copyType(s.types[s.at[id]:])
	}
	le := binary.LittleEndian
	n := uint32(len(s.out) - btfHeaderSize)
	le.PutUint16(s.out, btfMagic)
	s.out[2] = 1 // version
	le.PutUint32(s.out[4:], btfHeaderSize)
	le.PutUint32(s.out[12:], n)
	le.PutUint32(s.out[16:], n)
	le.PutUint32(s.out[20:], uint32(len(s.strings)))
	return append(s.out, s.strings...), nil
}

// copyType copies the type at the start of t, which index has checked.
func (s *sieve) copyType(t []byte) {
	le := binary.LittleEndian
	info := le.Uint32(t[4:])
	kind, vlen := info>>24&31, info&0xffff
	s.putName(le.Uint32(t))
	s.put32(info)

	ref := le.Uint32(t[8:])
	switch kind {
	case kindPtr:
		ref = 0
	case kindTypedef, kindVolatile, kindConst, kindRestrict, kindTypeTag:
		ref = s.take(ref)
	}
	s.put32(ref)

	n, each, _ := tail(kind, vlen)
	t = t[btfTypeSize : btfTypeSize+n]
	switch kind {
	case kindStruct, kindUnion:
		for ; len(t) > 0; t = t[each:] {
			s.putName(le.Uint32(t))
			s.put32(s.take(le.Uint32(t[4:])))
			s.put32(le.Uint32(t[8:]))
		}
	case kindEnum, kindEnum64:
		for ; len(t) > 0; t = t[each:] {
			s.putName(le.Uint32(t))
			s.out = append(s.out, t[4:each]...)
		}
	case kindArray:
		s.put32(s.take(le.Uint32(t)))
		s.put32(s.take(le.Uint32(t[4:])))
		s.put32(le.Uint32(t[8:]))
	default:
		s.out = append(s.out, t...)
	}
}
