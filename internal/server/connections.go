package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// connLimits limits connections, by whether their client has identified itself.
type connLimits struct {
	total        int // of all clients
	unidentified int
	perAddress   int // unidentified, of one address
	tokens       int // of clients with tokens and without certificates
	perToken     int
	perNode      int // of clients with one certificate
	// requests limits the requests that are being served for clients that have not identified
	// themselves: a connection of HTTP/2 has many at once.
	requests int
	// timeout is the time within which a client identifies itself, busyTimeout the same for one
	// whose first request is still being served.
	timeout, busyTimeout time.Duration
}

// connLimitsOf returns the limits of a process that may have files descriptors. A quarter of
// them is for files, and another one at least for connections of machines with certificates.
func connLimitsOf(files int) connLimits {
	total := max(8, min(files, 20_000)*3/4)
	return connLimits{
		total: total, unidentified: total / 4, perAddress: total / 8, tokens: total / 2, perToken: total / 4, perNode: 16, requests: 4096,
		timeout: 10 * time.Second, busyTimeout: time.Minute,
	}
}

// maxFiles returns how many descriptors the process may have.
func maxFiles() int {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil {
		return 1024
	}
	return int(min(l.Cur, 1<<20))
}

// connections tracks the connections of a listener, so that clients that do not identify
// themselves cannot use up the descriptors of the server. A client identifies itself with a
// request that [connections.identify] is called for.
type connections struct {
	limits connLimits

	mu           sync.Mutex
	unidentified map[netip.Prefix][]*conn // by address, in the order of their arrival
	waiting      int                      // in unidentified
	byIdentity   map[string]int
	tokens       int
	identified   int
	requests     int // being served on connections without identity
}

func newConnections(l connLimits) *connections {
	return &connections{limits: l, unidentified: map[netip.Prefix][]*conn{}, byIdentity: map[string]int{}}
}

// A conn is a connection of connections, which guards its fields.
type conn struct {
	net.Conn
	set     *connections
	address netip.Prefix
	began   time.Time
	timer   *time.Timer

	requests  int // being served, while it has no identity
	closed    bool
	busy      bool // a request is being served
	identity  string
	certified bool
}

// addressOf returns the address of a client; those of one IPv6 network of 64 bits are one.
func addressOf(addrPort string) netip.Prefix {
	at, err := netip.ParseAddrPort(addrPort)
	if err != nil {
		return netip.Prefix{}
	}
	ip, bits := at.Addr().Unmap().WithZone(""), 32
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits) // bits fits
	return p
}

// add tracks a new connection. If there are too many without identity it closes the oldest of
// the address that has the most.
func (s *connections) add(c net.Conn) *conn {
	one := &conn{Conn: c, set: s, address: addressOf(c.RemoteAddr().String()), began: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unidentified[one.address] = append(s.unidentified[one.address], one)
	s.waiting++
	one.timer = time.AfterFunc(s.limits.timeout, func() { s.expire(one) })
	if mine := s.unidentified[one.address]; len(mine) > s.limits.perAddress {
		s.close(mine[0])
	} else if s.waiting > s.limits.unidentified {
		s.close(s.excess())
	}
	return one
}

// excess returns the oldest unidentified connection of the address that has the most.
func (s *connections) excess() (oldest *conn) {
	most := 0
	for _, list := range s.unidentified {
		if len(list) > most || len(list) == most && list[0].began.Before(oldest.began) {
			oldest, most = list[0], len(list)
		}
	}
	return oldest
}

// close closes a connection. The caller holds mu.
func (s *connections) close(c *conn) {
	s.remove(c)
	_ = c.Conn.Close() // its client is not waited for
}

// remove ends the tracking of a connection. The caller holds mu.
func (s *connections) remove(c *conn) {
	if c.closed {
		return
	}
	c.closed = true
	c.timer.Stop()
	s.forgetRequests(c)
	if c.identity == "" {
		s.leave(c)
		return
	}
	s.identified--
	if !c.certified {
		s.tokens--
	}
	if s.byIdentity[c.identity]--; s.byIdentity[c.identity] == 0 {
		delete(s.byIdentity, c.identity)
	}
}

// leave removes a connection from those without identity. The caller holds mu.
func (s *connections) leave(c *conn) {
	list := s.unidentified[c.address]
	i := slices.Index(list, c)
	if list = slices.Delete(list, i, i+1); len(list) > 0 {
		s.unidentified[c.address] = list
	} else {
		delete(s.unidentified, c.address)
	}
	s.waiting--
}

// expire closes a connection that has not identified itself in time.
func (s *connections) expire(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	age := time.Since(c.began)
	switch {
	case c.closed || c.identity != "":
	case c.busy && age < s.limits.busyTimeout:
		c.timer.Reset(s.limits.busyTimeout - age)
	default:
		s.close(c)
	}
}

// setBusy records whether a request of a connection is being served.
func (s *connections) setBusy(c *conn, busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.busy = busy
	if !busy && !c.closed && c.identity == "" && time.Since(c.began) >= s.limits.timeout {
		s.close(c)
	}
}

// identify records the client of a connection. A connection above the limits of its client
// stays unidentified: its requests are served until its time is over.
func (s *connections) identify(c *conn, identity string, certified bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := s.limits.perToken
	if certified {
		most = s.limits.perNode
	}
	if c.closed || c.identity != "" || s.byIdentity[identity] >= most || s.identified >= s.limits.total-s.limits.unidentified || !certified && s.tokens >= s.limits.tokens {
		return
	}
	s.leave(c)
	c.timer.Stop()
	s.forgetRequests(c)
	c.identity, c.certified = identity, certified
	s.byIdentity[identity]++
	s.identified++
	if !certified {
		s.tokens++
	}
}

// begin counts a request on a connection without identity until end is called. If there are too many
// it closes the connection that has the most.
func (s *connections) begin(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed || c.identity != "" {
		return
	}
	c.requests++
	if s.requests++; s.requests > s.limits.requests {
		s.close(s.busiest())
	}
}

// end ends the count of a request.
func (s *connections) end(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.requests > 0 {
		c.requests--
		s.requests--
	}
}

// forgetRequests ends the count of all requests of a connection. The caller holds mu.
func (s *connections) forgetRequests(c *conn) {
	s.requests -= c.requests
	c.requests = 0
}

// busiest returns the connection without identity that has the most requests.
func (s *connections) busiest() (c *conn) {
	for _, list := range s.unidentified {
		for _, one := range list {
			if c == nil || one.requests > c.requests {
				c = one
			}
		}
	}
	return c
}

// count returns a handler that counts the requests of clients without identity.
func (s *connections) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, _ := r.Context().Value(connKey{}).(*conn); c != nil {
			s.begin(c)
			defer s.end(c)
		}
		next.ServeHTTP(w, r)
	})
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.set.mu.Lock()
	c.set.remove(c)
	c.set.mu.Unlock()
	return c.Conn.Close()
}

// A connListener tracks the connections that it accepts.
type connListener struct {
	net.Listener
	set *connections
}

func (l connListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.set.add(c), nil
}

// track makes srv track the connections of ln.
func (s *connections) track(srv *http.Server, ln net.Listener) net.Listener {
	srv.Handler = s.count(srv.Handler)
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, trackedConn(c))
	}
	srv.ConnState = func(c net.Conn, state http.ConnState) {
		if one := trackedConn(c); one != nil && (state == http.StateActive || state == http.StateIdle) {
			s.setBusy(one, state == http.StateActive)
		}
	}
	return connListener{ln, s}
}

type connKey struct{}

// trackedConn returns the tracked connection below c, or nil.
func trackedConn(c net.Conn) *conn {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	one, _ := c.(*conn)
	return one
}

// keepConnection records who sent a request, so that its connection may stay.
func keepConnection(r *http.Request, identity string, certified bool) {
	if c, _ := r.Context().Value(connKey{}).(*conn); c != nil {
		c.set.identify(c, identity, certified)
	}
}
