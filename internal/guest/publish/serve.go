package publish

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

	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/x/sleep"
)

const (
	// maxStreams is the maximum number of connections of one virtual machine.
	maxStreams = 2
	// connectEvery is the minimum time between two connections of one virtual machine.
	connectEvery = 100 * time.Millisecond
	// writeLimit is the timeout of a write to a client that does not read.
	writeLimit = 5 * time.Second
	// maxRefusals is the maximum number of refused connections that one listener keeps open: a
	// client that does not read keeps one open for writeLimit.
	maxRefusals = 16
	// perSecond and burst limit the acknowledgments that are read from one connection: a tick of
	// ten milliseconds gives a hundred per second.
	perSecond, burst = 200, 400
)

// A Listener accepts connections of virtual machines, such as vsock.Listener.
type Listener interface {
	// Accept returns the next connection and the peer's CID, which the peer cannot forge.
	Accept() (net.Conn, uint32, error)
	// Close ends Accept, with net.ErrClosed.
	Close() error
}

// Serve serves the virtual machines that connect through l until ctx ends or Accept fails. It
// closes l.
func (r *Publisher) Serve(ctx context.Context, l Listener) error {
	return r.serve(ctx, l, func(cid uint32) (*guest, string) {
		g, several := r.cids[cid]
		switch {
		case g != nil:
			return g, ""
		case several:
			return nil, fmt.Sprintf("two virtual machines have the CID %d", cid)
		}
		return nil, fmt.Sprintf("no known virtual machine has the CID %d", cid)
	})
}

// serveSocket serves the virtual machine whose connections arrive at a unix socket until ctx ends.
// It replaces an existing socket at the path.
func (r *Publisher) serveSocket(ctx context.Context, s Socket) error {
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
				return nil, "no known virtual machine has the UUID " + s.Guest
			})
		}
		o.report(r.log, "a virtual machine is not served by its socket; retrying", "", err, "guest", s.Guest, "path", s.Path)
		if sleep.For(ctx, retryEvery) != nil {
			return nil
		}
	}
}

// listenUnix listens at a path, accessible to the socket's owner and group.
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
		return nil, 0, err // avoid an interface holding a nil pointer
	}
	return c, 0, nil
}

// serve accepts connections. find returns the virtual machine of a connection, or why there is
// none; it is called with mu held.
func (r *Publisher) serve(ctx context.Context, l Listener, find func(cid uint32) (*guest, string)) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // ends Accept
	defer stop()
	var streams sync.WaitGroup
	defer streams.Wait()
	defer func() { _ = l.Close() }() // the error has no receiver
	ended := ctx                     // the caller's ctx; l may be closed before the derived one ends
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	refusals := make(chan struct{}, maxRefusals)
	for {
		c, cid, err := l.Accept()
		switch {
		case ended.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
			if sleep.For(ctx, time.Second) != nil { // descriptors may become available
				return nil
			}
			continue
		case err != nil:
			return err
		}
		s, why := r.admit(c, cid, find)
		if s != nil {
			streams.Go(func() { s.run(ctx) })
			continue
		}
		select {
		case refusals <- struct{}{}:
			streams.Go(func() {
				refuse(c, why)
				<-refusals
			})
		default:
			_ = c.Close() // without the reason
		}
	}
}

// refuse closes a connection, after sending the reason if there is one, for which it waits at most
// writeLimit.
func refuse(c net.Conn, why string) {
	if why != "" {
		_ = c.SetWriteDeadline(time.Now().Add(writeLimit))
		_, _ = c.Write(energyshare.AppendRefusal(nil, why)) // best effort
	}
	_ = c.Close()
}

// admit adds a connection to its virtual machine, or returns why not.
func (r *Publisher) admit(c net.Conn, cid uint32, find func(uint32) (*guest, string)) (*stream, string) {
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
		return nil, "" // a client that only reconnects gets no reply
	}
	s := &stream{publisher: r, guest: g, conn: c, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	g.streams[s] = struct{}{}
	notify(s.wake) // send the latest share
	return s, ""
}

// A stream is a connection of a virtual machine.
type stream struct {
	publisher *Publisher
	guest     *guest
	conn      net.Conn
	wake      chan struct{} // a share is unsent
	ended     chan struct{}
	once      sync.Once
	why       string // set before ended is closed
}

// stop ends the stream; the peer is sent the reason if it is not "".
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
		s.publisher.mu.Lock()
		defer s.publisher.mu.Unlock()
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
		s.publisher.mu.Lock()
		line := s.guest.line
		s.publisher.mu.Unlock()
		err := s.conn.SetWriteDeadline(time.Now().Add(writeLimit))
		if err == nil {
			_, err = s.conn.Write(line)
		}
		if err != nil { // the peer is gone, or does not read
			s.stop("")
			return
		}
	}
}

// readAcks reads acknowledgments until the connection ends, or returns why one is invalid.
func (s *stream) readAcks() string {
	r := bufio.NewReaderSize(s.conn, energyshare.MaxLine)
	left, at := float64(burst), time.Now()
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Sprintf("an acknowledgment is longer than %d bytes", energyshare.MaxLine)
		}
		if err != nil {
			return ""
		}
		now := time.Now()
		left = min(burst, left+now.Sub(at).Seconds()*perSecond) - 1
		if at = now; left < 0 {
			return fmt.Sprintf("more than %d acknowledgments a second", perSecond)
		}
		a, err := energyshare.DecodeAck(line)
		if err != nil {
			return err.Error()
		}
		s.publisher.countAck(s.guest, a)
	}
}

// countAck counts an acknowledgment, once for each share.
func (r *Publisher) countAck(g *guest, a energyshare.Ack) {
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
			// This is normal after a model substituted; the server compares what follows.
			r.log.Info("a virtual machine booked other energy than it was given; further ones are counted in the metrics",
				"guest", g.latest.Guest.UUID, "name", g.latest.Guest.Name, "n", a.N, "booked_uj", a.Energy)
		}
	}
}
