package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipeConn is one end of a pipe with an address.
type pipeConn struct {
	net.Conn
	from string
}

func (c pipeConn) RemoteAddr() net.Addr { a, _ := net.ResolveTCPAddr("tcp", c.from); return a }

// pipes is a listener on pipes.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p pipes) Close() error { close(p.done); return nil }
func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A connection whose client does not identify itself ends after 10 s, or after a minute if a
// request takes so long; another one stays.
func TestConnectionTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := pipes{make(chan net.Conn), make(chan struct{})}
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/known":
				keepConnection(r, "node", true)
			case "/slow":
				time.Sleep(30 * time.Second)
			case "/endless":
				<-r.Context().Done()
			}
		})}
		go func() { _ = srv.Serve(newConnections(connLimitsOf(1000)).track(srv, ln)) }()
		began := time.Now()
		var mu sync.Mutex
		ended := map[string]time.Duration{}
		for i, path := range []string{"/known", "/other", "/slow", "/endless"} {
			mine, its := net.Pipe()
			ln.conns <- pipeConn{its, fmt.Sprintf("10.0.0.%d:1", i)}
			go func() {
				if _, err := fmt.Fprintf(mine, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", path); err != nil {
					t.Error(err)
				}
				_, _ = io.Copy(io.Discard, mine) // until it ends
				mu.Lock()
				defer mu.Unlock()
				ended[path] = time.Since(began)
			}()
		}
		time.Sleep(2 * time.Minute)
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		for path, want := range map[string]time.Duration{"/known": 2 * time.Minute, "/other": 10 * time.Second, "/slow": 30 * time.Second, "/endless": time.Minute} {
			if ended[path] != want {
				t.Errorf("the connection of %s ended after %v, want %v", path, ended[path], want)
			}
		}
	})
}

// Clients without identity have few connections, and the address that has the most loses its
// oldest, so that a machine with a certificate can always connect. No client has all.
func TestConnectionLimits(t *testing.T) {
	l := connLimits{total: 20, unidentified: 6, perAddress: 4, tokens: 8, perToken: 5, perNode: 2, timeout: time.Hour, busyTimeout: time.Hour}
	s := newConnections(l)
	open := func(from string) *conn {
		_, its := net.Pipe()
		return s.add(pipeConn{its, from})
	}
	isOpen := func(c *conn) bool { return !c.closed }
	count := func(list []*conn) (n int) {
		for _, c := range list {
			if isOpen(c) {
				n++
			}
		}
		return n
	}
	machine := open("10.0.0.1:1")
	var attack []*conn
	for i := range 100 {
		attack = append(attack, open(fmt.Sprintf("[2001:db8::%x]:%d", i, i+1))) // one network
	}
	if n := count(attack); n != l.perAddress || !isOpen(machine) || !isOpen(attack[99]) || isOpen(attack[0]) {
		t.Errorf("%d connections of one network are open, that of another address %v", n, isOpen(machine))
	}
	for i := range 3 {
		attack = append(attack, open(fmt.Sprintf("10.0.1.%d:1", i)))
	}
	if n := count(attack); n != l.unidentified-1 || !isOpen(machine) {
		t.Errorf("%d connections of attackers are open, that of the machine %v", n, isOpen(machine))
	}
	s.identify(machine, "node", true)
	for i := range 100 {
		open(fmt.Sprintf("10.0.2.%d:1", i))
	}
	if !isOpen(machine) || s.waiting != l.unidentified {
		t.Errorf("the identified connection is open: %v; %d others", isOpen(machine), s.waiting)
	}
	// Many connections of one client count as unidentified again.
	for who, most := range map[string]int{"node": l.perNode, "token": l.perToken} {
		for range 20 {
			s.identify(open("10.0.0.1:1"), who, who == "node")
		}
		if n := s.byIdentity[who]; n != most {
			t.Errorf("%d connections of %s are identified, want %d", n, who, most)
		}
	}
	// All tokens together leave room for certificates.
	for i := range 20 {
		s.identify(open("10.0.0.1:1"), fmt.Sprintf("token %d", i), false)
	}
	if s.tokens != l.tokens {
		t.Errorf("%d connections with tokens, want %d", s.tokens, l.tokens)
	}
	late := open("10.0.0.9:1")
	s.identify(late, "late", true)
	if late.identity == "" {
		t.Error("no room for a certificate")
	}
	for i := range 40 {
		s.identify(open("10.0.0.1:1"), fmt.Sprintf("node %d", i), true)
	}
	if s.identified+s.waiting > l.total {
		t.Errorf("%d connections, want %d at most", s.identified+s.waiting, l.total)
	}
	if err := errors.Join(late.Close(), machine.Close()); err != nil {
		t.Error(err)
	}
	if s.byIdentity["late"] != 0 || s.byIdentity["node"] != l.perNode-1 {
		t.Errorf("closed connections count: %v", s.byIdentity)
	}
}

// Requests over TLS and HTTP/2 identify their connection, and descriptors are kept for files.
func TestConnectionIdentified(t *testing.T) {
	s := newConnections(connLimitsOf(300))
	if l := s.limits; l.total > 225 || l.unidentified+l.tokens > l.total*3/4 {
		t.Errorf("limits for 300 files: %+v", l)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keepConnection(r, "node", true)
		_, _ = io.WriteString(w, r.Proto)
	}))
	srv.EnableHTTP2 = true
	srv.Listener = s.track(srv.Config, srv.Listener)
	srv.StartTLS()
	defer srv.Close()
	a, err := srv.Client().Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	text, err := bufio.NewReader(a.Body).ReadString(0)
	if err := a.Body.Close(); err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !strings.HasPrefix(text, "HTTP/2") || !errors.Is(err, io.EOF) || s.identified != 1 || s.waiting != 0 {
		t.Errorf("%s, %v: %d connections are identified, %d are not", text, err, s.identified, s.waiting)
	}
}

// TestConnectionRequests checks that the connection with the most requests ends where clients that have
// not identified themselves have too many.
func TestConnectionRequests(t *testing.T) {
	l := connLimitsOf(1000)
	l.requests = 5
	s := newConnections(l)
	open := func() *conn {
		t.Helper()
		here, there := net.Pipe()
		t.Cleanup(func() { _, _ = here.Close(), there.Close() })
		c := s.add(pipeConn{here, "10.0.0.1:1"})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	few, many, known := open(), open(), open()
	for range 3 {
		s.begin(many)
	}
	s.begin(few)
	s.begin(few)
	s.end(few)
	s.begin(few)
	if few.closed || many.closed || s.requests != 5 {
		t.Errorf("closed %v and %v with %d requests", few.closed, many.closed, s.requests)
	}
	s.begin(known)
	if few.closed || !many.closed || known.closed || s.requests != 3 {
		t.Errorf("closed %v, %v and %v with %d requests; want the second one", few.closed, many.closed, known.closed, s.requests)
	}
	s.end(many)
	s.identify(known, "node", true)
	for range 100 {
		s.begin(known)
	}
	if few.closed || known.closed || s.requests != 2 {
		t.Errorf("closed %v and %v with %d requests; those of a node do not count", few.closed, known.closed, s.requests)
	}
	s.end(known)
	if s.end(few); s.requests != 1 {
		t.Errorf("%d requests, want 1", s.requests)
	}
}
