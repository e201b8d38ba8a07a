package vsockdev

import (
	"errors"
	"net"
	"os"
	"sync"
)

// The rings of the device, by direction.
const (
	toGuest = iota
	toHost
)

// A session is the use of a device by one QEMU process.
type session struct {
	d     *Device
	front *net.UnixConn
	work  sync.WaitGroup

	mu      sync.Mutex
	mem     memory
	rings   [2]ring
	kicks   [2]*os.File
	waiting []packet // packets to the guest while its ring is full or stopped
	buf     []byte
	conns   map[key]*conn
	over    bool
}

// A key identifies a stream between the guest and the host.
type key struct{ guest, host uint32 } // ports

func newSession(d *Device, front *net.UnixConn) *session {
	s := &session{d: d, front: front, conns: map[key]*conn{}}
	for i := range s.rings {
		s.rings[i].kick, s.rings[i].call = -1, -1
	}
	return s
}

// close closes the streams and unmaps the guest's memory.
func (s *session) close() error {
	s.mu.Lock()
	s.over = true
	err := errors.Join(s.stop(toGuest), s.stop(toHost))
	for _, c := range s.conns {
		c.drop()
	}
	s.mu.Unlock()
	s.work.Wait()
	for i := range s.rings {
		err = errors.Join(err, closeFD(&s.rings[i].call))
	}
	return errors.Join(err, s.mem.unmap())
}

// turn handles the guest's packets and sends it the waiting ones.
func (s *session) turn() error {
	if r := &s.rings[toHost]; r.on {
		took := false
		for {
			c, ok, err := r.next(s.mem)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			b := c.gather()
			r.complete(c, 0)
			took = true
			if p, ok := decode(b); ok {
				s.handlePacket(p)
			}
		}
		if took {
			if err := r.notify(); err != nil {
				return err
			}
		}
	}
	return s.pump()
}

// pump writes the waiting packets to the guest's ring as far as there is room.
func (s *session) pump() error {
	r := &s.rings[toGuest]
	if !r.on {
		return nil
	}
	gave := false
	for len(s.waiting) > 0 {
		c, ok, err := r.next(s.mem)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		p := &s.waiting[0]
		rest := p.data
		if room := max(0, c.writeable-headSize); len(rest) > room {
			// The next chain gets the rest.
			rest, p.data = p.data[room:], p.data[:room]
		} else {
			rest = nil
		}
		s.buf = p.append(s.buf[:0])
		r.complete(c, c.scatter(s.buf))
		gave = true
		if p.data = rest; rest == nil {
			s.waiting = s.waiting[1:]
		}
	}
	if !gave {
		return nil
	}
	return r.notify()
}

// send sends a packet of a stream to the guest.
func (s *session) send(k key, p packet) {
	if s.over {
		return
	}
	p.srcCID, p.srcPort, p.dstCID, p.dstPort, p.kind = Host, k.host, uint64(s.d.cid), k.guest, stream
	if c := s.conns[k]; c != nil {
		p.room, p.forwarded = window, c.taken
		c.told = c.taken
	}
	s.waiting = append(s.waiting, p)
	if err := s.pump(); err != nil {
		s.d.log.Warn("vsock device", "err", err)
		_ = s.front.Close() // ends serve
	}
}

// handlePacket handles a packet of the guest.
func (s *session) handlePacket(p packet) {
	k := key{guest: p.srcPort, host: p.dstPort}
	c := s.conns[k]
	if p.srcCID != uint64(s.d.cid) || p.dstCID != Host || p.kind != stream {
		s.send(k, packet{op: opReset})
		return
	}
	if c == nil {
		switch p.op {
		case opRequest:
			s.connect(k, p)
		case opReset:
		default:
			s.send(k, packet{op: opReset})
		}
		return
	}
	c.credit(p)
	switch p.op {
	case opData:
		c.take(p.data)
	case opShutdown:
		c.shutdown(p.flags)
	case opAsk:
		s.send(k, packet{op: opCredit})
	case opReset, opRequest: // a request means that the guest has lost the stream
		c.drop()
	}
}
