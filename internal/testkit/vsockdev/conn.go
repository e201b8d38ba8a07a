package vsockdev

import (
	"net"
	"sync"
)

const (
	// window is the receive buffer of a stream in bytes, which the guest may fill.
	window = 256 << 10
	// piece is the size of reads from the host's side, in bytes.
	piece = 4 << 10
)

// A conn is a stream between the guest and a connection of [Dial]. session.mu guards its
// fields.
type conn struct {
	s      *session
	k      key
	moved  *sync.Cond // signals a change of the fields
	host   net.Conn   // nil until dialed
	queue  []byte     // data of the guest, not written to host yet
	taken  uint32     // total bytes written to host
	told   uint32     // last value of taken that was sent to the guest
	room   uint32     // size of the guest's receive buffer
	freed  uint32     // total bytes that the guest has read
	sent   uint32     // total bytes sent to the guest
	ending bool       // the guest has finished sending
	gone   bool
}

// connect opens a stream that the guest requests.
func (s *session) connect(k key, p packet) {
	c := &conn{s: s, k: k, moved: sync.NewCond(&s.mu)}
	c.credit(p)
	s.conns[k] = c
	s.work.Go(func() {
		host, err := s.d.dial(k.host)
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case err != nil && !c.gone:
			s.d.log.Debug("vsock refused", "port", k.host, "err", err)
			s.send(k, packet{op: opReset})
			c.drop()
		case err == nil && c.gone:
			_ = host.Close() // the guest has closed the stream
		case err == nil:
			c.host = host
			s.send(k, packet{op: opResponse})
			s.work.Go(c.toHost)
			s.work.Go(c.toGuest)
		}
	})
}

// credit updates the guest's receive buffer from a packet.
func (c *conn) credit(p packet) {
	c.room, c.freed = p.room, p.forwarded
	c.moved.Broadcast()
}

// take queues data of the guest. It resets the stream if the guest exceeds the window.
func (c *conn) take(b []byte) {
	if len(c.queue)+len(b) > window {
		c.s.send(c.k, packet{op: opReset})
		c.drop()
		return
	}
	c.queue = append(c.queue, b...)
	c.moved.Broadcast()
}

// shutdown handles a shutdown packet of the guest.
func (c *conn) shutdown(flags uint32) {
	c.ending = c.ending || flags&noSend != 0
	c.moved.Broadcast()
	if flags == noSend|noReceive {
		if len(c.queue) == 0 {
			c.s.send(c.k, packet{op: opReset})
			c.drop()
		}
		// Otherwise toHost writes the queue and closes.
	}
}

// drop closes and removes the stream.
func (c *conn) drop() {
	if c.gone {
		return
	}
	c.gone = true
	if c.s.conns[c.k] == c {
		delete(c.s.conns, c.k)
	}
	if c.host != nil {
		_ = c.host.Close() // its data is not needed
	}
	c.moved.Broadcast()
}

// toHost writes the guest's data to the host's side.
func (c *conn) toHost() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for {
		for len(c.queue) == 0 && !c.ending && !c.gone {
			c.moved.Wait()
		}
		if c.gone {
			return
		}
		if len(c.queue) == 0 { // and ending
			if w, ok := c.host.(interface{ CloseWrite() error }); ok && w.CloseWrite() == nil {
				return // toGuest handles the end
			}
			c.s.send(c.k, packet{op: opReset})
			c.drop()
			return
		}
		b := c.queue
		c.s.mu.Unlock()
		n, err := c.host.Write(b)
		c.s.mu.Lock()
		if c.gone {
			return
		}
		c.queue = append([]byte(nil), c.queue[n:]...)
		c.taken += uint32(n)
		if err != nil {
			c.s.send(c.k, packet{op: opReset})
			c.drop()
			return
		}
		if c.taken-c.told > window/4 {
			c.s.send(c.k, packet{op: opCredit})
		}
	}
}

// toGuest sends the data of the host's side to the guest, limited by its receive buffer.
func (c *conn) toGuest() {
	b := make([]byte, piece)
	for {
		n, err := c.host.Read(b)
		c.s.mu.Lock()
		for from := 0; from < n && !c.gone; {
			free := int(c.room) - int(c.sent-c.freed)
			if free <= 0 {
				c.moved.Wait()
				continue
			}
			some := append([]byte(nil), b[from:min(n, from+free)]...)
			c.sent += uint32(len(some))
			c.s.send(c.k, packet{op: opData, data: some})
			from += len(some)
		}
		if err != nil && !c.gone {
			// The guest answers with a reset.
			c.s.send(c.k, packet{op: opShutdown, flags: noReceive | noSend})
		}
		gone := c.gone || err != nil
		c.s.mu.Unlock()
		if gone {
			return
		}
	}
}
