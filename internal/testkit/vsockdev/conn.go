package vsockdev

import (
	"net"
	"sync"
)

const (
	// window is how many bytes a stream may have under way to the host.
	window = 256 << 10
	// piece is how much is read of the host's side at once.
	piece = 4 << 10
)

// A conn is a stream between the guest and what [Dial] gave. Everything in it is
// under the session's lock.
type conn struct {
	s      *session
	k      key
	moved  *sync.Cond // something of it changed
	host   net.Conn   // nil until it is dialled
	queue  []byte     // from the guest, not written yet
	taken  uint32     // bytes that were written, all in all
	told   uint32     // of which the guest knows
	room   uint32     // bytes that the guest can hold
	freed  uint32     // bytes that the guest has taken
	sent   uint32     // bytes that were sent to it
	ending bool       // the guest sends no more
	gone   bool
}

// connect begins a stream that the guest asks for.
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
			_ = host.Close() // nobody uses it
		case err == nil:
			c.host = host
			s.send(k, packet{op: opResponse})
			s.work.Go(c.toHost)
			s.work.Go(c.toGuest)
		}
	})
}

// credit takes what the guest says of itself.
func (c *conn) credit(p packet) {
	c.room, c.freed = p.room, p.forwarded
	c.moved.Broadcast()
}

// take keeps what the guest sends. One that sends more than it may is cut off.
func (c *conn) take(b []byte) {
	if len(c.queue)+len(b) > window {
		c.s.send(c.k, packet{op: opReset})
		c.drop()
		return
	}
	c.queue = append(c.queue, b...)
	c.moved.Broadcast()
}

// shutdown is what the guest does before it closes.
func (c *conn) shutdown(flags uint32) {
	c.ending = c.ending || flags&noSend != 0
	c.moved.Broadcast()
	if flags == noSend|noReceive {
		if len(c.queue) == 0 {
			c.s.send(c.k, packet{op: opReset})
			c.drop()
		}
		// Else toHost writes the rest, and closes.
	}
}

// drop forgets the stream.
func (c *conn) drop() {
	if c.gone {
		return
	}
	c.gone = true
	if c.s.conns[c.k] == c {
		delete(c.s.conns, c.k)
	}
	if c.host != nil {
		_ = c.host.Close() // what it had is of no use any more
	}
	c.moved.Broadcast()
}

// toHost writes what the guest sends.
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
		if len(c.queue) == 0 { // and it sends no more
			if w, ok := c.host.(interface{ CloseWrite() error }); ok && w.CloseWrite() == nil {
				return // toGuest sees the end of it
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

// toGuest sends the guest what the host's side says, no more than it can hold.
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
			// The guest answers with a reset, and forgets the stream.
			c.s.send(c.k, packet{op: opShutdown, flags: noReceive | noSend})
		}
		gone := c.gone || err != nil
		c.s.mu.Unlock()
		if gone {
			return
		}
	}
}
