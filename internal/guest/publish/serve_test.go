package publish_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/guest/publish"
	"mete.dev/mete/internal/host/vsock"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit"
	_ "mete.dev/mete/internal/testkit/wirewarm"
)

var _ publish.Listener = (*vsock.Listener)(nil)

// A listener passes on connections made by tests, each with a CID.
type listener struct {
	conns  chan call
	closed chan struct{}
}

type call struct {
	conn net.Conn
	cid  uint32
}

func newListener() *listener { return &listener{make(chan call), make(chan struct{})} }

func (l *listener) Accept() (net.Conn, uint32, error) {
	select {
	case c := <-l.conns:
		return c.conn, c.cid, nil
	case <-l.closed:
		return nil, 0, net.ErrClosed
	}
}

func (l *listener) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}

// A caller is a connected virtual machine.
type caller struct {
	net.Conn
	lines *bufio.Reader
	t     *testing.T
}

func (l *listener) call(t *testing.T, cid uint32) *caller {
	t.Helper()
	ours, theirs := net.Pipe()
	l.conns <- call{theirs, cid}
	return &caller{ours, bufio.NewReader(ours), t}
}

// next reads a line.
func (c *caller) next() (energyshare.Message, error) {
	line, err := c.lines.ReadBytes('\n')
	if err != nil {
		return energyshare.Message{}, err
	}
	return energyshare.Decode(line)
}

// gets reads the share of a tick.
func (c *caller) gets(i int, n int64) {
	c.t.Helper()
	if m, err := c.next(); err != nil || m.Share != given(i, "", n).Share {
		c.t.Errorf("%+v, %v, want the share of tick %d", m, err, n)
	}
}

// refused reads a refusal, and the end of the connection.
func (c *caller) refused(why string) {
	c.t.Helper()
	if m, err := c.next(); err == nil || !strings.Contains(err.Error(), why) {
		c.t.Errorf("%+v, %v, want %q", m, err, why)
	}
	c.ended()
}

func (c *caller) ended() {
	c.t.Helper()
	if b, err := io.ReadAll(c.lines); err != nil || len(b) > 0 {
		c.t.Errorf("%q, %v, want the end of the connection", b, err)
	}
}

func (c *caller) send(text string) {
	c.t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		c.t.Error(err)
	}
}

func (c *caller) acks(i int, n, energy int64) {
	c.t.Helper()
	c.send(string(energyshare.AppendAck(nil, energyshare.Ack{Epoch: given(i, "", 0).Share.Epoch, N: n * 1000, Energy: energy})))
}

// serving runs f with a publisher that serves a listener, in virtual time.
func serving(t *testing.T, f func(t *testing.T, r *publish.Publisher, l *listener)) {
	synctest.Test(t, func(t *testing.T) {
		r, err := publish.New(publish.Config{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		l := newListener()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Serve(ctx, l) }()
		f(t, r, l)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestServe checks that each virtual machine gets its own shares, the present one at once and later
// ones as they are published, and that acknowledgments are compared.
func TestServe(t *testing.T) {
	serving(t, func(t *testing.T, r *publish.Publisher, l *listener) {
		tick := func(n int64) { r.Publish([]attribute.Guest{given(1, "a", n), given(2, "b", n)}) }
		tick(1)
		a, b := l.call(t, 101), l.call(t, 102)
		a.gets(1, 1)
		b.gets(2, 1)
		tick(2)
		a.gets(1, 2)
		b.gets(2, 2)
		tick(2) // an unchanged share is not sent again
		tick(3)
		a.gets(1, 3)
		b.gets(2, 3)
		a.acks(1, 1, 4e6)
		a.acks(1, 3, 12e6)
		a.acks(1, 3, 12e6) // counts once
		a.acks(1, 2, 8e6+1)
		a.acks(1, 4, 16e6) // not published yet
		a.acks(2, 3, 12e6) // the epoch of another machine
		b.acks(2, 3, 12e6)
		synctest.Wait()
		want := []publish.Status{
			{Guest: uuid(1), Name: "a", Published: 3, Streams: 1, Equal: 2, Differing: 1, Unknown: 2},
			{Guest: uuid(2), Name: "b", Published: 3, Streams: 1, Equal: 1}}
		if got := r.Status(); len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
			t.Errorf("%+v, want %+v", got, want)
		}
		// A client that did not read for a while gets the latest share.
		tick(4)
		synctest.Wait()
		tick(5)
		tick(6)
		a.gets(1, 4) // was already sent
		a.gets(1, 6)
		r.Publish([]attribute.Guest{given(1, "a", 7)})
		b.gets(2, 4)
		for { // what was on its way
			m, err := b.next()
			if err == nil && m.N == 6000 {
				continue
			}
			if err == nil || !strings.Contains(err.Error(), "no longer exists here") {
				t.Errorf("%+v, %v", m, err)
			}
			break
		}
		b.ended()
		a.gets(1, 7)
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if s := r.Status(); len(s) != 1 || s[0].Streams != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestServeRefuses checks that invalid acknowledgments are answered with a refusal and end the
// connection.
func TestServeRefuses(t *testing.T) {
	serving(t, func(t *testing.T, r *publish.Publisher, l *listener) {
		twin := given(4, "twin", 1)
		twin.Guest.CID = 103
		r.Publish([]attribute.Guest{given(1, "a", 1), given(3, "c", 1), twin})
		l.call(t, 7).refused("no known virtual machine has the CID 7")
		l.call(t, 0).refused("CID 0")
		l.call(t, 103).refused("two virtual machines have the CID 103")

		first := l.call(t, 101)
		first.gets(1, 1)
		l.call(t, 101).ended() // immediately after the first
		time.Sleep(time.Second)
		second := l.call(t, 101)
		second.gets(1, 1)
		time.Sleep(time.Second)
		l.call(t, 101).refused("2 connections already")

		second.send("hello\n")
		second.refused("ack:")
		time.Sleep(time.Second)
		second = l.call(t, 101)
		second.gets(1, 1)
		long := second
		go func() { _, _ = long.Write(make([]byte, 5000)) }() // the end of it is not read
		second.refused("longer than 4096 bytes")
		time.Sleep(time.Second)

		second = l.call(t, 101)
		second.gets(1, 1)
		many := second
		go func() {
			for range 1000 {
				if _, err := many.Write(energyshare.AppendAck(nil, energyshare.Ack{Epoch: "E", N: 1})); err != nil {
					return
				}
			}
		}()
		second.refused("more than 200 acknowledgments a second")
		time.Sleep(time.Second)

		// A connection that is not read is closed; the machine's other one is not.
		second = l.call(t, 101)
		second.gets(1, 1)
		for n := int64(2); n < 10; n++ {
			r.Publish([]attribute.Guest{given(1, "a", n)})
			first.gets(1, n)
			time.Sleep(time.Second)
		}
		if s := r.Status(); s[0].Streams != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestServeRefusals checks that machines that do not read their refusals delay no others, and that
// only a limited number of connections waits for them.
func TestServeRefusals(t *testing.T) {
	serving(t, func(t *testing.T, r *publish.Publisher, l *listener) {
		r.Publish([]attribute.Guest{given(1, "a", 1)})
		began := time.Now()
		for range 16 {
			l.call(t, 7) // does not read
		}
		l.call(t, 7).ended() // without the reason
		l.call(t, 101).gets(1, 1)
		if took := time.Since(began); took != 0 {
			t.Errorf("delayed for %v", took)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		l.call(t, 7).refused("no known virtual machine has the CID 7")
	})
}

// TestServePorts checks that a publisher listens at a port that no ordinary user can have, and for guests
// that know no other at one that all can have. Each works without the other.
func TestServePorts(t *testing.T) {
	for _, missing := range []uint32{0, energyshare.Port, energyshare.OpenPort} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			r, err := publish.New(publish.Config{VSock: true}, slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			ports := map[uint32]*listener{979: newListener(), 9799: newListener()}
			r.ListenBy(func(port uint32) (publish.Listener, error) {
				if port == missing {
					return nil, fault.WithHint(fault.ErrDenied, "some right")
				}
				return ports[port], nil
			})
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- r.Run(ctx) }()
			r.Publish([]attribute.Guest{given(1, "a", 1), given(2, "b", 1)})
			for port, l := range ports {
				if port == missing {
					continue
				}
				a := l.call(t, 101)
				a.gets(1, 1)
				if err := a.Close(); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if warned := strings.Contains(log.String(), fmt.Sprintf("port=%d", missing)) && strings.Contains(log.String(), "some right"); warned != (missing != 0) {
				t.Errorf("without port %d: log:\n%s", missing, &log)
			}
		})
	}
}

// A unix socket that is one virtual machine's serves that one.
func TestServeSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v.sock_9799")
	r, _ := start(t, publish.Config{Sockets: []publish.Socket{{Guest: uuid(1), Path: path}}})
	var c net.Conn
	testkit.Eventually(t, "it listens", func() (ok bool) {
		var err error
		c, err = net.Dial("unix", path)
		return err == nil
	})
	x := &caller{c, bufio.NewReader(c), t}
	x.refused("has the UUID " + uuid(1))
	r.Publish([]attribute.Guest{given(2, "b", 5), given(1, "a", 5)})
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	x = &caller{c, bufio.NewReader(c), t}
	x.gets(1, 5)
	x.acks(1, 5, 20e6)
	testkit.Eventually(t, "it is compared", func() bool { return r.Status()[0].Equal == 1 })
	_ = c.Close()
}
