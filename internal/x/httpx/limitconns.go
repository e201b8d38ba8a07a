package httpx

import (
	"net"
	"slices"
	"sync"
)

// LimitConns returns a listener that keeps the n latest of its connections open, at most: it closes
// the oldest one for another. So clients that hold many connections keep no others from being
// served, and cost the process few descriptors.
func LimitConns(ln net.Listener, n int) net.Listener { return &connLimiter{Listener: ln, limit: n} }

type connLimiter struct {
	net.Listener
	limit int

	mu   sync.Mutex
	open []*limitedConn // in the order of their arrival
}

// A limitedConn is a connection of a connLimiter.
type limitedConn struct {
	net.Conn
	limiter *connLimiter
}

// Accept implements net.Listener.
func (l *connLimiter) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	one := &limitedConn{c, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open = append(l.open, one); len(l.open) > l.limit {
		_ = l.open[0].Conn.Close() // its client is not waited for
		l.open = slices.Delete(l.open, 0, 1)
	}
	return one, nil
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	l := c.limiter
	l.mu.Lock()
	l.open = slices.DeleteFunc(l.open, func(o *limitedConn) bool { return o == c })
	l.mu.Unlock()
	return c.Conn.Close()
}
