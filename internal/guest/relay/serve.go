package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/guest/share"
	"mete.dev/mete/internal/x/sleep"
)

const (
	// maxStreams is how many connections one virtual machine has at once.
	maxStreams = 2
	// connectEvery is the shortest time between two connections of one.
	connectEvery = 100 * time.Millisecond
	// writeLimit is how long one may leave unread what the socket has no more
	// room for.
	writeLimit = 5 * time.Second
	// perSecond is how many answers of one are read, and burst how many at once:
	// a tick of ten milliseconds gives a hundred.
	perSecond, burst = 200, 400
)

// A Listener accepts connections of virtual machines. vsock.Listener is one.
type Listener interface {
	// Accept returns the next connection, and the CID of who connected, which
	// that one cannot choose.
	Accept() (net.Conn, uint32, error)
	// Close ends Accept, with net.ErrClosed.
	Close() error
}

// Serve serves the virtual machines that connect through l, until ctx ends or
// nothing can be accepted any more. It closes l.
func (r *Relay) Serve(ctx context.Context, l Listener) error {
	return r.serve(ctx, l, func(cid uint32) (*guest, string) {
		g, several := r.cids[cid]
		switch {
		case g != nil:
			return g, ""
		case several:
			return nil, fmt.Sprintf("two virtual machines seem to have the CID %d", cid)
		}
		return nil, fmt.Sprintf("no virtual machine that is known has the CID %d", cid)
	})
}

// serveSocket serves the one virtual machine whose connections arrive at a unix
// socket, until ctx ends. Whatever was at its path is replaced if it is a socket.
func (r *Relay) serveSocket(ctx context.Context, s Socket) error {
	for o := (outage{}); ; {
		l, err := listenUnix(s.Path)
		if err == nil {
			o.report(r.log, "", "a virtual machine is served by its socket again", nil, "guest", s.Guest, "path", s.Path)
			err = r.serve(ctx, unixListener{l}, func(uint32) (*guest, string) {
				for _, g := range r.guests {
					if g.latest.Guest.UUID == s.Guest {
						return g, ""
					}
				}
				return nil, "no virtual machine that is known has the UUID " + s.Guest
			})
		}
		o.report(r.log, "a virtual machine is not served by its socket; it is tried again", "", err, "guest", s.Guest, "path", s.Path)
		if sleep.For(ctx, retryEvery) != nil {
			return nil
		}
	}
}

// listenUnix listens at a path, for the socket's owner and group alone.
func listenUnix(path string) (*net.UnixListener, error) {
	if st, err := os.Lstat(path); err == nil && st.Mode().Type() == os.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

type unixListener struct{ *net.UnixListener }

func (l unixListener) Accept() (net.Conn, uint32, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, 0, err // not an interface around nil
	}
	return c, 0, nil
}

// serve accepts connections, of whom find knows with mu held, or says why not.
func (r *Relay) serve(ctx context.Context, l Listener, find func(cid uint32) (*guest, string)) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // ends Accept
	defer stop()
	var streams sync.WaitGroup
	defer streams.Wait()
	defer func() { _ = l.Close() }() // nobody is left to hear of it
	ended := ctx                     // the listener may be closed before what follows from it has ended too
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		c, cid, err := l.Accept()
		switch {
		case ended.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
			if sleep.For(ctx, time.Second) != nil { // there may be room again
				return nil
			}
			continue
		case err != nil:
			return err
		}
		s, why := r.admit(c, cid, find)
		if s == nil {
			refuse(c, why)
			continue
		}
		streams.Go(func() { s.run(ctx) })
	}
}

// refuse closes a connection, if there is a reason with a line that has it.
// The socket of a new connection takes a line without waiting.
func refuse(c net.Conn, why string) {
	if why != "" {
		_ = c.SetWriteDeadline(time.Now().Add(connectEvery))
		_, _ = c.Write(share.AppendRefusal(nil, why)) // else it hears nothing
	}
	_ = c.Close()
}

// admit makes a connection one of its virtual machine's, or says why not.
func (r *Relay) admit(c net.Conn, cid uint32, find func(uint32) (*guest, string)) (*stream, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, why := find(cid)
	if g == nil {
		return nil, why
	}
	now := time.Now()
	since := now.Sub(g.connectedAt)
	g.connectedAt = now
	switch {
	case len(g.streams) >= maxStreams:
		return nil, fmt.Sprintf("this virtual machine has %d connections already", maxStreams)
	case since < connectEvery:
		return nil, "" // one that does nothing but connect is not worth a line
	}
	s := &stream{relay: r, guest: g, conn: c, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	g.streams[s] = struct{}{}
	notify(s.wake) // for the share that is there
	return s, ""
}

// A stream is a connection of a virtual machine.
type stream struct {
	relay *Relay
	guest *guest
	conn  net.Conn
	wake  chan struct{} // there is a share that was not sent
	ended chan struct{}
	once  sync.Once
	why   string // set before ended is closed
}

// stop ends the stream with a reason that the other side is told, if it is not "".
func (s *stream) stop(why string) {
	s.once.Do(func() {
		s.why = why
		close(s.ended)
	})
}

// run sends shares until the connection, the virtual machine or ctx ends.
func (s *stream) run(ctx context.Context) {
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		s.stop(s.readAcks())
	}()
	defer func() {
		if s.why != "" {
			refuse(s.conn, s.why)
		}
		_ = s.conn.Close()
		<-heard
		s.relay.mu.Lock()
		defer s.relay.mu.Unlock()
		delete(s.guest.streams, s)
	}()
	for {
		select {
		case <-ctx.Done():
			s.stop("")
			return
		case <-s.ended:
			return
		case <-s.wake:
		}
		s.relay.mu.Lock()
		line := s.guest.line
		s.relay.mu.Unlock()
		err := s.conn.SetWriteDeadline(time.Now().Add(writeLimit))
		if err == nil {
			_, err = s.conn.Write(line)
		}
		if err != nil { // it went away, or does not read
			s.stop("")
			return
		}
	}
}

// readAcks reads what the virtual machine answers, until it ends or says what cannot
// be, which is the reason then.
func (s *stream) readAcks() string {
	r := bufio.NewReaderSize(s.conn, share.MaxLine)
	left, at := float64(burst), time.Now()
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Sprintf("an answer is longer than %d bytes", share.MaxLine)
		}
		if err != nil {
			return ""
		}
		now := time.Now()
		left = min(burst, left+now.Sub(at).Seconds()*perSecond) - 1
		if at = now; left < 0 {
			return fmt.Sprintf("more than %d answers a second", perSecond)
		}
		a, err := share.DecodeAck(line)
		if err != nil {
			return err.Error()
		}
		s.relay.countAck(s.guest, a)
	}
}

// countAck counts what a virtual machine booked, once for each share.
func (r *Relay) countAck(g *guest, a share.Ack) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a == g.acked {
		return
	}
	g.acked = a
	switch g.ring.compare(a) {
	case equal:
		g.equal++
	case unknown:
		g.unknown++
	case differing:
		if g.differing++; g.differing == 1 {
			// As a model stood in, say; what becomes of that is the server's to compare.
			r.log.Info("a virtual machine booked other energy than it was given; more is counted in the metrics",
				"guest", g.latest.Guest.UUID, "name", g.latest.Guest.Name, "n", a.N, "booked_uj", a.Energy)
		}
	}
}
