package vsockdev

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/fault"
)

func TestPacket(t *testing.T) {
	want := packet{srcCID: 1 << 40, dstCID: 2, srcPort: 3, dstPort: 1<<32 - 1, kind: stream, op: opData, flags: 5, room: 6, forwarded: 7, data: []byte("data")}
	b := want.append(nil)
	got, ok := decode(b)
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(packet{})); !ok || diff != "" {
		t.Errorf("%v\n%s", ok, diff)
	}
	// The buffer may be longer than the packet, but not shorter.
	if got, ok := decode(append(b, 0)); !ok || string(got.data) != "data" {
		t.Errorf("with a byte more: %+v, %v", got, ok)
	}
	for n := range b {
		if _, ok := decode(b[:n]); ok {
			t.Errorf("decoded a packet of %d of %d bytes", n, len(b))
		}
	}
}

// newRing returns a ring in a guest's memory: descriptors at 0, used ring at 256, available
// ring at 512, and data from 1024.
func newRing(t *testing.T) (*ring, memory) {
	t.Helper()
	m := memory{{guest: 1 << 20, user: 1 << 30, bytes: make([]byte, 4096)}}
	r := &ring{num: 4, kick: -1, call: -1, on: true, addr: [3]uint64{1 << 30, 1<<30 + 256, 1<<30 + 512}}
	if err := r.locate(m); err != nil {
		t.Fatal(err)
	}
	return r, m
}

// desc sets a descriptor of the ring.
func desc(r *ring, i int, addr uint64, n uint32, flags, next uint16) {
	d := r.descs[i*sizeDesc:]
	binary.LittleEndian.PutUint64(d, addr)
	binary.LittleEndian.PutUint32(d[8:], n)
	binary.LittleEndian.PutUint16(d[12:], flags)
	binary.LittleEndian.PutUint16(d[14:], next)
}

// offer makes chains available.
func offer(r *ring, heads ...uint16) {
	idx := binary.LittleEndian.Uint16(r.avail[2:])
	for _, h := range heads {
		binary.LittleEndian.PutUint16(r.avail[4+2*(idx%r.num):], h)
		idx++
	}
	binary.LittleEndian.PutUint16(r.avail[2:], idx)
}

func TestRing(t *testing.T) {
	r, m := newRing(t)
	if _, ok, err := r.next(m); ok || err != nil {
		t.Fatalf("empty ring: %v, %v", ok, err)
	}
	copy(m[0].bytes[1024:], "headdata")
	desc(r, 3, 1<<20+1024, 4, descNext, 1)
	desc(r, 1, 1<<20+1028, 4, descNext, 0)
	desc(r, 0, 1<<20+2048, 16, descWrite, 0)
	// More chains than the ring has entries, so that the index wraps.
	for i := range 9 {
		offer(r, 3)
		c, ok, err := r.next(m)
		if !ok || err != nil || c.head != 3 || string(c.gather()) != "headdata" || c.writeable != 16 {
			t.Fatalf("%d: %+v, %v, %v", i, c, ok, err)
		}
		r.complete(c, c.scatter([]byte("answer")))
		if string(m[0].bytes[2048:2054]) != "answer" {
			t.Errorf("%q", m[0].bytes[2048:2064])
		}
		e := r.used[4+sizeUsed*(i%4):]
		if binary.LittleEndian.Uint16(r.used[2:]) != uint16(i+1) || binary.LittleEndian.Uint32(e) != 3 || binary.LittleEndian.Uint32(e[4:]) != 6 {
			t.Errorf("%d: used ring % x", i, r.used)
		}
	}
}

// An invalid ring of the guest is an error and does not crash the process.
func TestRingBroken(t *testing.T) {
	for name, broken := range map[string]func(*ring){
		"cycle":                  func(r *ring) { desc(r, 0, 1<<20, 4, descNext, 0) },
		"not a descriptor":       func(r *ring) { desc(r, 0, 1<<20, 4, descNext, 4) },
		"not in memory":          func(r *ring) { desc(r, 0, 1<<20+4095, 2, 0, 0) },
		"before memory":          func(r *ring) { desc(r, 0, 1<<20-1, 2, 0, 0) },
		"around the end of all":  func(r *ring) { desc(r, 0, 1<<64-1, 4, 0, 0) },
		"longer than all memory": func(r *ring) { desc(r, 0, 1<<20, 1<<32-1, 0, 0) },
		"all chains together":    func(r *ring) { desc(r, 0, 1<<20, mostChainSize, 0, 0) },
	} {
		r, m := newRing(t)
		broken(r)
		offer(r, 0)
		if c, ok, err := r.next(m); ok || err == nil {
			t.Errorf("%s: %+v, %v, %v, want an error", name, c, ok, err)
		}
	}
	r, m := newRing(t)
	r.addr[1] = 1<<30 + 4096 - 8
	if err := r.locate(m); err == nil || !strings.Contains(err.Error(), "used ring") {
		t.Errorf("ring outside memory: %v", err)
	}
}

func TestOpen(t *testing.T) {
	dial := func(uint32) (net.Conn, error) { return nil, errors.New("no host") }
	for _, cid := range []uint32{0, 1, 2, 1<<32 - 1} {
		if _, err := Open(filepath.Join(t.TempDir(), "s"), cid, dial, slog.Default()); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("CID %d: %v", cid, err)
		}
	}
}
