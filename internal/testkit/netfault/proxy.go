// Package netfault simulates a faulty network for tests: a TCP proxy that cuts, slows,
// holds, repeats and reorders connections.
//
// It passes TLS through. No connection lives longer than a limit, and Close ends all of them.
// docs/decisions/0019-hand-made.md says what toxiproxy lacks.
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

// Limit bounds the life of a connection, so that a client that would wait forever fails.
// [OpenLimited] sets another limit.
const Limit = time.Minute

const (
	chunk     = 4 << 10
	maxRepeat = 4 << 20 // bytes of a connection that can be repeated
)

// Conditions are the faults of the network. The zero value passes everything without delay.
// Probabilities are from 0 to 1 and apply to each connection.
type Conditions struct {
	// Down resets every connection, including existing ones.
	Down bool
	// Silent holds back all data and closes nothing, like a pulled cable. The data
	// continues when Silent ends.
	Silent bool
	// Delay is the maximum of the random delay of each piece of data.
	Delay time.Duration
	// Rate limits the bytes per second in each direction; 0 means no limit.
	Rate int
	// Cut is the probability of a reset after a random number of bytes from the client,
	// up to 64 KiB.
	Cut float64
	// Lose is the probability of a reset before the first byte of the answer: the server
	// handled the request, but the client gets no answer.
	Lose float64
	// Repeat is the probability that the proxy repeats all bytes of the client on another
	// connection after this one ends, and drops the answers. With TLS the server refuses
	// the repetition.
	Repeat float64
	// Hold is the maximum of the random delay before the proxy connects to the server,
	// which reorders connections.
	Hold time.Duration
}

// Stats counts connections and injected faults.
type Stats struct {
	Conns, Reset, Lost, Repeated int64
}

// A Proxy forwards connections to a server. Its methods are safe for concurrent use.
type Proxy struct {
	ln     net.Listener
	target string
	limit  time.Duration
	ctx    context.Context
	stop   context.CancelFunc
	all    sync.WaitGroup

	conns, reset, lost, repeated atomic.Int64

	mu         sync.Mutex
	rand       *rand.Rand
	conditions Conditions
	changed    chan struct{} // closed when the conditions change
	links      map[*link]bool
}

// A link is one connection through the proxy.
type link struct {
	p      *Proxy
	ctx    context.Context
	cancel context.CancelFunc
	client net.Conn
	server net.Conn

	limit  int64 // bytes from the client before the reset; -1 means no reset
	lose   bool
	sent   []byte // by the client, while it may be repeated
	repeat bool
}

// Open starts a proxy for target on a free port of the loopback interface. seed initializes
// its random decisions, which also depend on the order of events.
func Open(target string, seed uint64) (*Proxy, error) { return OpenLimited(target, seed, Limit) }

// OpenLimited is [Open] with a limit of the life of a connection, and of its repetition.
func OpenLimited(target string, seed uint64, limit time.Duration) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{ln: ln, target: target, limit: limit, rand: rand.New(rand.NewPCG(seed, 0)), changed: make(chan struct{}), links: map[*link]bool{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.all.Go(p.accept)
	return p, nil
}

// Addr returns the address of the proxy as host:port.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Close resets all connections and stops listening.
func (p *Proxy) Close() error {
	p.stop()
	err := p.ln.Close()
	p.CutAll()
	p.all.Wait()
	return err
}

// Stats returns the counts so far.
func (p *Proxy) Stats() Stats {
	return Stats{p.conns.Load(), p.reset.Load(), p.lost.Load(), p.repeated.Load()}
}

// Set changes the conditions. Cut, Lose, Repeat and Hold apply to new connections, the
// others to existing ones too.
func (p *Proxy) Set(w Conditions) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conditions = w
	if w.Down {
		p.cutAll() // before data that Silent holds back continues
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// CutAll resets all connections.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAll()
}

// cutAll is CutAll for callers that hold p.mu.
func (p *Proxy) cutAll() {
	for l := range p.links {
		l.cancel()
	}
}

// Storm changes the conditions at random, on average every each, for the duration long or
// until ctx ends. Then it clears the conditions.
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
	return p.rand.IntN(n)
}

func (p *Proxy) randomDuration(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(p.rand.Int64N(int64(d)))
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

// link forwards one connection.
func (p *Proxy) link(c net.Conn) {
	l := &link{p: p, client: c, limit: -1}
	l.ctx, l.cancel = context.WithTimeout(p.ctx, p.limit)
	defer l.cancel()
	p.mu.Lock()
	w := p.conditions
	if p.rand.Float64() < w.Cut {
		l.limit = p.rand.Int64N(64 << 10)
	}
	l.lose, l.repeat = p.rand.Float64() < w.Lose, p.rand.Float64() < w.Repeat
	p.links[l] = true
	p.conns.Add(1) // with p.mu held: after the count changes, Set does not affect this link's faults
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
		if l.repeat && len(l.sent) > 0 && p.ctx.Err() == nil {
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
	// Dropping the connections ends the reads in pump.
	gone := context.AfterFunc(l.ctx, l.drop)
	var both sync.WaitGroup
	both.Go(func() { l.pump(s, c, true) })
	both.Go(func() { l.pump(c, s, false) })
	both.Wait()
	if gone() {
		_ = errors.Join(c.Close(), s.Close()) // both sides have finished sending
	}
}

// drop resets both sides.
func (l *link) drop() {
	l.p.reset.Add(1)
	for _, c := range []net.Conn{l.client, l.server} {
		if t, ok := c.(*net.TCPConn); ok {
			// Close then sends a reset and discards unsent data.
			_ = t.SetLinger(0)
			_ = t.Close()
		}
	}
}

// sleep waits for d. It returns false if the connection was cut.
func (l *link) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return l.ctx.Err() == nil
	case <-l.ctx.Done():
		return false
	}
}

// pump forwards the data of one side until it finishes sending.
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
			_ = to.(*net.TCPConn).CloseWrite() // fails only if to is closed
			return
		case err != nil:
			l.cancel()
			return
		}
	}
}

// pass forwards one piece of data under the conditions, and reports whether the connection
// continues.
func (l *link) pass(to net.Conn, b []byte, passed int64, up bool) bool {
	if up && l.repeat && len(l.sent)+len(b) <= maxRepeat {
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

// repeat sends the bytes of a client to the server again.
func (p *Proxy) repeat(sent []byte) {
	ctx, cancel := context.WithTimeout(p.ctx, p.limit)
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
	// Read the answer to its end, because a server may abort if its client closes.
	_ = c.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, c)
}
