// Package netfault is a network that misbehaves, for tests: a proxy of TCP
// connections that cuts, slows, holds, repeats and reorders them.
//
// TLS passes through it. Nothing it does lasts longer than Limit, and Close ends
// all of it. docs/decisions/0019-hand-made.md says what toxiproxy lacks.
package netfault

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Limit is how long a connection lives at most: what waits for ever without the
// proxy fails with it.
const Limit = time.Minute

const (
	chunk     = 4 << 10
	maxRepeat = 4 << 20 // bytes of a connection that can be repeated
)

// Conditions is what the network does to connections. Its zero value lets all pass
// at once. Chances are from 0 to 1, for each connection anew.
type Conditions struct {
	// Down resets every connection, those that there are too.
	Down bool
	// Silent lets nothing through and closes nothing, as a cable does that was
	// pulled. What was on its way goes on when it ends.
	Silent bool
	// Delay is how much later a piece arrives: anywhere up to it.
	Delay time.Duration
	// Rate is how many bytes a second pass, each way; 0 is any number.
	Rate int
	// Cut is the chance that a connection is reset, after anything up to 64 KiB
	// from the client.
	Cut float64
	// Lose is the chance that a connection is reset as the first byte of an
	// answer comes: the server did what it was asked, and the client never hears
	// of it.
	Lose float64
	// Repeat is the chance that all that the client sent is sent once more on
	// another connection when this one ends, and the answers dropped. TLS makes
	// a server refuse it.
	Repeat float64
	// Hold is how long a connection waits before the server sees it, anywhere
	// up to it: so that connections overtake each other.
	Hold time.Duration
}

// Stats counts what was done.
type Stats struct {
	Conns, Reset, Lost, Repeated int64
}

// A Proxy passes connections to a server. Its methods may be called from
// several goroutines.
type Proxy struct {
	ln     net.Listener
	target string
	ctx    context.Context
	stop   context.CancelFunc
	all    sync.WaitGroup

	conns, reset, lost, repeated atomic.Int64

	mu         sync.Mutex
	chance     *rand.Rand
	conditions Conditions
	changed    chan struct{} // is closed when the conditions change
	links      map[*link]bool
}

// A link is one connection through the proxy.
type link struct {
	p      *Proxy
	ctx    context.Context
	cancel context.CancelFunc
	client net.Conn
	server net.Conn

	limit int64 // bytes from the client after which it is cut; -1 is never
	lose  bool
	sent  []byte // by the client, while it may be repeated
	again bool
}

// Open listens on a free port of the loopback for connections to target. What is
// left to chance depends on the seed, as far as the order of events does not.
func Open(target string, seed uint64) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{ln: ln, target: target, chance: rand.New(rand.NewPCG(seed, 0)), changed: make(chan struct{}), links: map[*link]bool{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.all.Go(p.accept)
	return p, nil
}

// Addr is where the proxy listens, as host:port.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Close cuts everything and listens no more.
func (p *Proxy) Close() error {
	p.stop()
	err := p.ln.Close()
	p.CutAll()
	p.all.Wait()
	return err
}

// Stats returns what was done so far.
func (p *Proxy) Stats() Stats {
	return Stats{p.conns.Load(), p.reset.Load(), p.lost.Load(), p.repeated.Load()}
}

// Set changes the conditions. Cut, Lose, Repeat and Hold count for connections to
// come, the rest for those that there are too.
func (p *Proxy) Set(w Conditions) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conditions = w
	if w.Down {
		p.cutAll() // before what is held back learns that the silence is over
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// CutAll resets the connections that there are.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAll()
}

// cutAll is CutAll where p.mu is held.
func (p *Proxy) cutAll() {
	for l := range p.links {
		l.cancel()
	}
}

// Storm changes the conditions every so often, at random, for as long as it is told
// or until ctx ends. Then all is well.
func (p *Proxy) Storm(ctx context.Context, long, each time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	defer p.Set(Conditions{})
	for {
		w := Conditions{Delay: p.randomDuration(each / 20), Cut: 0.2, Lose: 0.2, Repeat: 0.2, Hold: p.randomDuration(each / 2)}
		switch p.intN(6) {
		case 0:
			w = Conditions{Down: true}
		case 1:
			w = Conditions{Silent: true}
		case 2:
			w.Rate = 8<<10 + p.intN(1<<20)
		case 3:
			w = Conditions{}
		}
		p.Set(w)
		select {
		case <-time.After(p.randomDuration(2 * each)):
		case <-ctx.Done():
			return
		}
	}
}

func (p *Proxy) intN(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.chance.IntN(n)
}

func (p *Proxy) randomDuration(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(p.chance.Int64N(int64(d)))
}

func (p *Proxy) current() (Conditions, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conditions, p.changed
}

func (p *Proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			p.all.Go(func() { p.link(c) })
		}
	}
}

// link passes one connection on.
func (p *Proxy) link(c net.Conn) {
	l := &link{p: p, client: c, limit: -1}
	l.ctx, l.cancel = context.WithTimeout(p.ctx, Limit)
	defer l.cancel()
	p.mu.Lock()
	w := p.conditions
	if p.chance.Float64() < w.Cut {
		l.limit = p.chance.Int64N(64 << 10)
	}
	l.lose, l.again = p.chance.Float64() < w.Lose, p.chance.Float64() < w.Repeat
	p.links[l] = true
	p.conns.Add(1) // the conditions of now are this one's
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
		if l.again && len(l.sent) > 0 && p.ctx.Err() == nil {
			p.repeat(l.sent)
		}
	}()
	if w.Down || !l.sleep(p.randomDuration(w.Hold)) {
		l.drop()
		return
	}
	var d net.Dialer
	s, err := d.DialContext(l.ctx, "tcp", p.target)
	if err != nil {
		l.drop()
		return
	}
	l.server = s
	// Reading ends when the connections are dropped, which this does.
	gone := context.AfterFunc(l.ctx, l.drop)
	var both sync.WaitGroup
	both.Go(func() { l.pump(s, c, true) })
	both.Go(func() { l.pump(c, s, false) })
	both.Wait()
	if gone() {
		_ = errors.Join(c.Close(), s.Close()) // both ends have said that they are done
	}
}

// drop resets both sides.
func (l *link) drop() {
	l.p.reset.Add(1)
	for _, c := range []net.Conn{l.client, l.server} {
		if t, ok := c.(*net.TCPConn); ok {
			// Closing then sends a reset, and what is under way is lost.
			_ = t.SetLinger(0)
			_ = t.Close()
		}
	}
}

// sleep waits, or says that the connection was cut meanwhile.
func (l *link) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return l.ctx.Err() == nil
	case <-l.ctx.Done():
		return false
	}
}

// pump passes what one side sends to the other until that is done sending.
func (l *link) pump(to, from net.Conn, up bool) {
	buf := make([]byte, chunk)
	var passed int64
	for {
		n, err := from.Read(buf)
		if n > 0 && !l.pass(to, buf[:n], passed, up) {
			l.cancel()
			return
		}
		passed += int64(n)
		switch {
		case errors.Is(err, io.EOF):
			_ = to.(*net.TCPConn).CloseWrite() // it fails where to is gone, as then everything does
			return
		case err != nil:
			l.cancel()
			return
		}
	}
}

// pass does to a piece what the conditions want, and says whether the connection
// goes on.
func (l *link) pass(to net.Conn, b []byte, passed int64, up bool) bool {
	if up && l.again && len(l.sent)+len(b) <= maxRepeat {
		l.sent = append(l.sent, b...)
	}
	if !up && l.lose {
		l.p.lost.Add(1)
		return false
	}
	w, changed := l.p.current()
	for w.Silent {
		select {
		case <-changed:
		case <-l.ctx.Done():
			return false
		}
		w, changed = l.p.current()
	}
	if l.ctx.Err() != nil {
		return false
	}
	wait := l.p.randomDuration(w.Delay)
	if w.Rate > 0 {
		wait += time.Duration(len(b)) * time.Second / time.Duration(w.Rate)
	}
	if wait > 0 && !l.sleep(wait) {
		return false
	}
	if up && l.limit >= 0 && passed+int64(len(b)) > l.limit {
		_, _ = to.Write(b[:max(l.limit-passed, 0)])
		return false
	}
	_, err := to.Write(b)
	return err == nil
}

// repeat sends the same to the server once more.
func (p *Proxy) repeat(sent []byte) {
	ctx, cancel := context.WithTimeout(p.ctx, Limit/10)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", p.target)
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	defer func() { _ = c.Close() }()
	if _, err := c.Write(sent); err != nil {
		return
	}
	p.repeated.Add(1)
	// A server that is not listened to may stop before it is done.
	_ = c.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, c)
}
