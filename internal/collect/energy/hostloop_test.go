package energy

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// newHostMeter returns a host meter whose clock is the time since now, so that it follows the virtual
// time of a bubble, plus an hour. The directory is that of a machine with no other files.
func newHostMeter(t *testing.T, dir string, dial func(context.Context) (net.Conn, error)) *hostMeter {
	t.Helper()
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	hm := &hostMeter{host: h, dir: dir, dial: dial, acks: make(chan energyshare.Ack, 1)}
	hm.clock = func() (int64, error) { return (time.Hour + time.Since(began)).Nanoseconds(), nil }
	hm.channels[viaStream].name, hm.channels[viaFile].name = "vsock", dir
	return hm
}

// startRun runs the meter until stop, which waits for its end. In a bubble only.
func startRun(t *testing.T, hm *hostMeter) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	runs.Go(func() { hm.run(ctx) })
	synctest.Wait()
	return func() {
		cancel()
		runs.Wait()
	}
}

// pass lets virtual time pass, and waits until all that is due has happened.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// line returns the n-th share as a line.
func line(n int64) string {
	m := message(someUUID, n)
	return string(energyshare.Append(nil, &m))
}

// A pipeHost is a host to which a meter connects by pipes, in a bubble.
type pipeHost struct {
	began time.Time
	lasts []time.Duration // how long the next connections last; less than 0: the host refuses
	deaf  bool            // it reads no acknowledgments

	mu    sync.Mutex
	dials []time.Duration // when the meter connected
	conn  net.Conn        // the latest connection
	acks  []energyshare.Ack
}

func newPipeHost(lasts ...time.Duration) *pipeHost { return &pipeHost{began: time.Now(), lasts: lasts} }

func (p *pipeHost) dial(context.Context) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dials = append(p.dials, time.Since(p.began))
	lasts := time.Duration(0)
	if len(p.lasts) > 0 {
		lasts, p.lasts = p.lasts[0], p.lasts[1:]
	}
	if lasts < 0 {
		return nil, fault.ErrUnavailable
	}
	ours, theirs := net.Pipe()
	p.conn = ours
	if lasts > 0 {
		time.AfterFunc(lasts, func() { _ = ours.Close() })
	}
	if !p.deaf {
		go func() {
			for sc := bufio.NewScanner(ours); sc.Scan(); {
				a, err := energyshare.DecodeAck(sc.Bytes())
				if err != nil {
					a.Epoch = err.Error()
				}
				p.mu.Lock()
				p.acks = append(p.acks, a)
				p.mu.Unlock()
			}
		}()
	}
	return theirs, nil
}

// current returns the latest connection, and the number of all.
func (p *pipeHost) current() (net.Conn, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conn, len(p.dials)
}

// say writes to the meter. It reports whether the meter has read all of it.
func (p *pipeHost) say(text string) bool {
	conn, _ := p.current()
	_ = conn.SetWriteDeadline(time.Now().Add(time.Millisecond))
	_, err := conn.Write([]byte(text))
	synctest.Wait()
	return err == nil
}

// isOpen reports whether the meter has not closed the latest connection. Only for a deaf host.
func (p *pipeHost) isOpen() bool {
	conn, _ := p.current()
	_ = conn.SetReadDeadline(time.Now().Add(1))
	_, err := conn.Read(nil)
	return err == nil || errors.Is(err, os.ErrDeadlineExceeded)
}

// A meter that cannot connect retries at growing intervals, which start again at 250 ms after a connection
// that lasted for more than 10 s.
func TestHostRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipeHost(-1, -1, -1, -1, -1, -1, -1, -1, 10*time.Second, 10*time.Second+1, -1, -1, -1)
		hm := newHostMeter(t, "", p.dial)
		stop := startRun(t, hm)
		pass(67 * time.Second)
		stop()
		want := []time.Duration{0, 250e6, 750e6, 1750e6, 3750e6, 7750e6, 15750e6, 25750e6, 35750e6, 55750e6, 66e9 + 1, 66.5e9 + 1}
		if !slices.Equal(p.dials, want) {
			t.Errorf("attempts at %v, want %v", p.dials, want)
		}
		if st := hm.status(hm.now()); st.Err != "vsock: unavailable" || st.Refused != "" {
			t.Errorf("%+v", st)
		}
		if pass(time.Minute); len(p.dials) != len(want) {
			t.Errorf("attempts after the end: %v", p.dials[len(want):])
		}
	})
}

// A connection whose host is silent for two minutes is closed, and one that the meter ends too.
func TestHostSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipeHost()
		p.deaf = true
		hm := newHostMeter(t, "", p.dial)
		type end struct {
			err error
			at  time.Time
		}
		ended := make(chan end, 1)
		receive := func(ctx context.Context) {
			err := hm.receive(ctx, false)
			ended <- end{err, time.Now()}
		}
		began := time.Now()
		go receive(t.Context())
		pass(time.Minute)
		p.say(line(1))
		pass(119 * time.Second)
		if len(ended) > 0 || !gets(hm.read(hm.now()-119e9), someUUID, 1) {
			t.Fatalf("%+v, ended: %d", hm.read(hm.now()), len(ended))
		}
		pass(time.Hour)
		if e := <-ended; e.at.Sub(began) != 3*time.Minute || !errors.Is(e.err, os.ErrDeadlineExceeded) {
			t.Errorf("ended after %v with %v, want 3 min and the deadline", e.at.Sub(began), e.err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go receive(ctx)
		pass(time.Second)
		if !p.isOpen() {
			t.Error("closed at once")
		}
		cancel()
		canceled := time.Now()
		if e := <-ended; p.isOpen() || e.at != canceled {
			t.Errorf("not closed at the end, %v", e.err)
		}

		// It is closed before receive returns.
		hm.dial = func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() { _, _ = ours.Write([]byte(line(9))) }()
			return slowConn{theirs}, nil
		}
		began = time.Now()
		if err := hm.receive(t.Context(), true); err != nil || time.Since(began) != time.Second {
			t.Errorf("returned after %v with %v, want a second for closing", time.Since(began), err)
		}
	})
}

// A slowConn takes a second to close.
type slowConn struct{ net.Conn }

func (c slowConn) Close() error {
	time.Sleep(time.Second)
	return c.Conn.Close()
}

// Acknowledgments go to the host: without a connection only the latest one is kept. A host that does not
// read for 5 s is disconnected.
func TestHostAcks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipeHost()
		hm := newHostMeter(t, "", p.dial)
		s := &Source{hostMeter: hm}
		for n := range int64(10) {
			s.Ack(energyshare.Ack{Epoch: "E", N: n})
		}
		stop := startRun(t, hm)
		s.Ack(energyshare.Ack{Epoch: "E", N: 10})
		synctest.Wait()
		s.Ack(energyshare.Ack{Epoch: "E", N: 11, Energy: 5})
		synctest.Wait()
		if want := []energyshare.Ack{{Epoch: "E", N: 9}, {Epoch: "E", N: 10}, {Epoch: "E", N: 11, Energy: 5}}; !slices.Equal(p.acks, want) {
			t.Errorf("the host got %+v, want %+v", p.acks, want)
		}
		stop()

		p = newPipeHost()
		p.deaf = true
		hm.dial = p.dial
		defer startRun(t, hm)()
		s.Ack(energyshare.Ack{Epoch: "E", N: 12})
		if pass(5*time.Second - 1); !p.isOpen() {
			t.Error("disconnected within 5 s")
		}
		if pass(1); p.isOpen() {
			t.Error("a host that does not read is not disconnected")
		}
		pass(250 * time.Millisecond)
		if _, n := p.current(); n != 2 {
			t.Errorf("%d attempts to connect, want two", n)
		}

		hm = newHostMeter(t, t.TempDir(), nil)
		s.hostMeter = hm
		if s.Ack(energyshare.Ack{Epoch: "E"}); len(hm.acks) != 0 {
			t.Error("kept an acknowledgment for no host")
		}
	})
}

// Lines of a host are taken one by one, and the end of the stream has a reason.
func TestHostLines(t *testing.T) {
	fill := func(n int) string { // a share of n bytes
		return strings.TrimSuffix(line(5), "\n") + strings.Repeat(" ", n-len(line(5))) + "\n"
	}
	for _, c := range []struct {
		name, text string
		n          int64 // the latest share
		kind       error
		refused    bool
	}{
		{"nothing", "", 0, fault.ErrUnavailable, false},
		{"shares", line(1) + line(2) + line(3), 3, fault.ErrUnavailable, false},
		{"half a share", line(1) + strings.TrimSuffix(line(2), "\n"), 1, fault.ErrUnavailable, false},
		{"a refusal", line(1) + string(energyshare.AppendRefusal(nil, "no such machine")) + line(2), 1, fault.ErrUnavailable, false},
		{"garbage", line(1) + "{}\n" + line(2), 1, fault.ErrInvalid, true},
		{"the longest line", fill(4096), 5, fault.ErrUnavailable, false},
		{"a longer line", line(1) + fill(4097) + line(2), 1, fault.ErrInvalid, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipeHost()
				hm := newHostMeter(t, "", p.dial)
				ended := make(chan error, 1)
				go func() { ended <- hm.receive(t.Context(), false) }()
				synctest.Wait()
				p.say(c.text)
				_ = p.conn.Close() // the meter may have closed it
				err := <-ended
				if _, refused := errors.AsType[refusal](err); !errors.Is(err, c.kind) || refused != c.refused {
					t.Errorf("ended with %v, want %v", err, c.kind)
				}
				if r := hm.read(hm.now()); c.n > 0 && !gets(r, someUUID, c.n) || c.n == 0 && r.Err == "" {
					t.Errorf("%+v, want share %d", r, c.n)
				}
			})
		})
	}
}

// Opening waits for the first share by each channel, for at most 300 ms.
func TestHostFirst(t *testing.T) {
	dir := t.TempDir()
	hangs := func(ctx context.Context) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
	says := func(text string) func(context.Context) (net.Conn, error) {
		return func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				time.Sleep(100 * time.Millisecond)
				_, _ = ours.Write([]byte(text))
			}()
			return theirs, nil
		}
	}
	for _, c := range []struct {
		name  string
		dir   string
		files map[string]string
		dial  func(context.Context) (net.Conn, error)
		takes time.Duration
		n     int64
		err   string
		plain bool
	}{
		{name: "no channel", err: "no share received yet"},
		{name: "a share in a file", dir: dir, files: map[string]string{energyshare.File: line(1)}, n: 1},
		{name: "a counter", dir: dir, files: map[string]string{energyshare.ZoneEnergy: "77\n"}, plain: true},
		{name: "an empty directory", dir: dir, err: dir + ": " + dir + "/" + energyshare.ZoneEnergy + ": no such file or directory"},
		{name: "a host that does not answer", dial: hangs, takes: 300 * time.Millisecond, err: ""},
		{name: "a share by connection", dial: says(line(2) + line(3)), takes: 100 * time.Millisecond, n: 2},
		{name: "a refusal", dial: says("{}\n"), takes: 100 * time.Millisecond, err: "vsock: share: missing version: invalid"},
		{name: "a counter and a share", dir: dir, files: map[string]string{energyshare.ZoneEnergy: "77\n"}, dial: says(line(2)), takes: 100 * time.Millisecond, n: 2},
		{name: "a counter and no answer", dir: dir, files: map[string]string{energyshare.ZoneEnergy: "77\n"}, dial: hangs, takes: 300 * time.Millisecond, plain: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, text := range c.files {
				put(t, text, c.dir, name)
			}
			defer func() {
				for name := range c.files {
					if err := os.Remove(filepath.Join(c.dir, name)); err != nil {
						t.Error(err)
					}
				}
			}()
			synctest.Test(t, func(t *testing.T) {
				hm := newHostMeter(t, c.dir, c.dial)
				began := time.Now()
				hm.readFirst()
				if took := time.Since(began); took != c.takes {
					t.Errorf("took %v, want %v", took, c.takes)
				}
				synctest.Wait()
				r := hm.read(hm.now())
				if c.n > 0 && !gets(r, someUUID, c.n) || c.plain && r.Value != 77 || hm.plain != c.plain || c.err != "" && r.Err != c.err {
					t.Errorf("%+v, a counter only: %v", r, hm.plain)
				}
			})
		})
	}
}

// The directory is read every half second, and every ten seconds while it has nothing; not while shares
// arrive by connection.
func TestHostPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "shares")
		p := newPipeHost()
		hm := newHostMeter(t, dir, nil)
		stop := startRun(t, hm)
		has := func(when string, n int64) {
			t.Helper()
			if r := hm.read(hm.now()); n == 0 && r.Err == "" || n > 0 && !gets(r, someUUID, n) {
				t.Errorf("%s: %+v, want share %d", when, r, n)
			}
		}
		putShare(t, dir, message(someUUID, 1))
		pass(10*time.Second - 1)
		has("before 10 s", 0)
		pass(1)
		has("after 10 s", 1)
		putShare(t, dir, message(someUUID, 2))
		pass(500*time.Millisecond - 1)
		has("before half a second", 1)
		pass(1)
		has("after half a second", 2)
		put(t, "{}", dir, energyshare.File)
		pass(500 * time.Millisecond)
		putShare(t, dir, message(someUUID, 3))
		pass(500 * time.Millisecond)
		has("half a second after a malformed one", 3)
		stop()
		putShare(t, dir, message(someUUID, 4))
		pass(time.Second)
		has("after the end", 3)

		hm = newHostMeter(t, dir, p.dial)
		stop = startRun(t, hm)
		has("at the start", 4)
		p.say(line(5))
		putShare(t, dir, message(someUUID, 6))
		pass(time.Second)
		inFile := func() int64 {
			hm.mu.Lock()
			defer hm.mu.Unlock()
			return hm.channels[viaFile].share.N
		}
		if n := inFile(); n != 4000 {
			t.Errorf("the directory was read while shares arrive by connection: share %d", n)
		}
		pass(4*time.Second + 1)
		pass(500 * time.Millisecond)
		if n := inFile(); n != 6000 {
			t.Errorf("the directory is not read without shares by connection: share %d", n)
		}
		stop()
	})
}

// The end of the context ends run at once, or within a second if the host's connection hangs.
func TestHostRunEnds(t *testing.T) {
	for _, c := range []struct {
		name  string
		dial  func(context.Context) (net.Conn, error)
		takes time.Duration
	}{
		{"no connection", nil, 0},
		{"a connection", newPipeHost().dial, 0},
		{"slow", func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			time.Sleep(700 * time.Millisecond)
			return nil, ctx.Err()
		}, 700 * time.Millisecond},
		{"hangs", func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			time.Sleep(time.Minute)
			return nil, ctx.Err()
		}, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &Source{hostMeter: newHostMeter(t, t.TempDir(), c.dial), sample: time.Hour}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- s.Run(ctx) }()
				if pass(time.Minute); len(ended) > 0 {
					t.Fatalf("ended by itself: %v", <-ended)
				}
				began := time.Now()
				cancel()
				if err := <-ended; err != nil || time.Since(began) != c.takes {
					t.Errorf("ended after %v with %v, want %v", time.Since(began), err, c.takes)
				}
				pass(time.Minute) // the bubble ends with all its goroutines
			})
		})
	}
}
