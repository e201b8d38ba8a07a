package receiver_test

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A pipes is a listener whose connections are in memory, so that the time of a
// bubble goes on while they wait.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), ended: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.ended) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// dial is one of [http.Transport].
func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	up, down := &way{changed: make(chan struct{})}, &way{changed: make(chan struct{})}
	select {
	case p.conns <- &conn{up, down}:
		return &conn{down, up}, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

// A way is one direction of a connection. As in a kernel, what is written waits
// there to be read: in a [net.Pipe] two ends that say farewell at once wait for
// each other.
type way struct {
	mu       sync.Mutex
	waits    []byte
	closed   bool
	deadline time.Time     // of reading
	changed  chan struct{} // is closed when something of this changes
}

func (w *way) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *way) read(b []byte) (int, error) {
	for {
		w.mu.Lock()
		if len(w.waits) > 0 {
			n := copy(b, w.waits)
			w.waits = w.waits[n:]
			w.mu.Unlock()
			return n, nil
		}
		closed, deadline, changed := w.closed, w.deadline, w.changed
		w.mu.Unlock()
		if closed {
			return 0, io.EOF
		}
		var late <-chan time.Time
		if !deadline.IsZero() {
			left := time.Until(deadline)
			if left <= 0 {
				return 0, os.ErrDeadlineExceeded
			}
			late = time.After(left)
		}
		select {
		case <-changed:
		case <-late:
		}
	}
}

// A conn is one end of a connection.
type conn struct{ in, out *way }

func (c *conn) Read(b []byte) (int, error) { return c.in.read(b) }

func (c *conn) Write(b []byte) (n int, err error) {
	c.out.change(func() {
		if c.out.closed {
			err = net.ErrClosed
			return
		}
		c.out.waits = append(c.out.waits, b...)
		n = len(b)
	})
	return n, err
}

func (c *conn) Close() error {
	for _, w := range []*way{c.in, c.out} {
		w.change(func() { w.closed = true })
	}
	return nil
}

func (c *conn) SetReadDeadline(at time.Time) error {
	c.in.change(func() { c.in.deadline = at })
	return nil
}

func (*conn) SetWriteDeadline(time.Time) error { return nil } // no write waits

func (c *conn) SetDeadline(at time.Time) error { return c.SetReadDeadline(at) }

func (*conn) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }
func (*conn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
