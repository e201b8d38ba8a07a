package enroll

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/testkit/syncbuf"
)

// fakeRegistry accepts every token and holds one node.
type fakeRegistry struct {
	ca.Registry
	mu     sync.Mutex
	nodes  []registry.Node
	tokens []registry.Token
}

func (r *fakeRegistry) PutNode(_ context.Context, n registry.Node) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes = []registry.Node{n}
	return nil
}

func (r *fakeRegistry) NodesByMachine(context.Context, string) ([]registry.Node, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes, nil
}

func (r *fakeRegistry) Tokens(context.Context) ([]registry.Token, error) { return r.tokens, nil }

func (r *fakeRegistry) PutToken(_ context.Context, t registry.Token) error {
	r.tokens = append(r.tokens, t)
	return nil
}

func (r *fakeRegistry) UseToken(context.Context, string, [32]byte, registry.Role, string, time.Time) (registry.Token, error) {
	return r.tokens[0], nil
}

func (*fakeRegistry) Enrolled(context.Context, string, string) (string, error) { return "", nil }
func (*fakeRegistry) Certify(context.Context, string, time.Time) error         { return nil }
func (*fakeRegistry) Node(context.Context, string) (registry.Node, error) {
	return registry.Node{}, nil
}
func (*fakeRegistry) RevokedNodes(context.Context) ([]string, error) { return nil, nil }
func (*fakeRegistry) Audit(context.Context, registry.Audit) error    { return nil }

// A bench is a server that clients reach over pipes, for tests in virtual time.
type bench struct {
	server   string // its address
	ca       *ca.Authority
	conns    chan net.Conn
	down     atomic.Bool
	frozen   atomic.Bool  // nothing that either side sends arrives
	open     atomic.Int32 // connections
	enrolls  atomic.Int32
	renewals atomic.Int32
	answer   atomic.Pointer[http.HandlerFunc] // instead of the authority
	tok      token.Token
	dir      string
	log      syncbuf.Buffer
}

func newBench(t *testing.T) *bench { return serveBench(t, "https://server") }

// newLocalBench returns a server without TLS that trusts its clients.
func newLocalBench(t *testing.T) *bench { return serveBench(t, "http://127.0.0.1:9797") }

func serveBench(t *testing.T, server string) *bench {
	t.Helper()
	b := &bench{server: server, conns: make(chan net.Conn), dir: t.TempDir()}
	isLocal := strings.HasPrefix(server, "http:")
	a, err := ca.Open(ca.Config{Dir: t.TempDir(), Local: isLocal}, &fakeRegistry{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	b.ca = a
	text, _, err := a.Tokens().Create(t.Context(), registry.Token{Role: registry.Agent})
	if err != nil {
		t.Fatal(err)
	}
	if b.tok, err = token.Parse(text); err != nil {
		t.Fatal(err)
	}
	h := http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.down.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		switch r.URL.Path {
		case "/v1/renew":
			b.renewals.Add(1)
		case "/v1/enroll":
			b.enrolls.Add(1)
		}
		if answer := b.answer.Load(); answer != nil {
			(*answer)(w, r)
			return
		}
		a.Handler().ServeHTTP(w, r)
	})}
	h.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			b.open.Add(1)
		case http.StateClosed, http.StateHijacked:
			b.open.Add(-1)
		}
	}
	var ln net.Listener = pipeListener{b.conns, make(chan struct{})}
	if isLocal {
		h.Handler = ca.TrustLocal(h.Handler)
	} else {
		ln = tls.NewListener(ln, a.ServerTLS())
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = h.Serve(ln) }()
	t.Cleanup(func() { _ = h.Close(); <-done })
	return b
}

// answers makes the server answer all requests by f; nil is as the authority does.
func (b *bench) answers(f http.HandlerFunc) {
	if f == nil {
		b.answer.Store(nil)
		return
	}
	b.answer.Store(&f)
}

// pipeListener is a listener whose connections are pipes.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipeListener) Close() error { close(p.closed); return nil }
func (pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// pipe returns a connection whose writes do not wait for the reader.
func (b *bench) pipe() (near, far net.Conn) {
	near, far = net.Pipe()
	return newBufferedConn(near, &b.frozen), newBufferedConn(far, &b.frozen)
}

type bufferedConn struct {
	net.Conn
	frozen *atomic.Bool
	writes chan []byte
	closed chan struct{}
	once   sync.Once
}

func newBufferedConn(c net.Conn, frozen *atomic.Bool) *bufferedConn {
	b := &bufferedConn{Conn: c, frozen: frozen, writes: make(chan []byte, 1000), closed: make(chan struct{})}
	go func() {
		defer func() { _ = c.Close() }() // never fails for a pipe
		for {
			select {
			case p := <-b.writes:
				if _, err := c.Write(p); err != nil {
					return
				}
			case <-b.closed:
				if len(b.writes) == 0 {
					return
				}
			}
		}
	}()
	return b
}

func (b *bufferedConn) Write(p []byte) (int, error) {
	if b.frozen.Load() {
		return len(p), nil
	}
	select {
	case <-b.closed:
		return 0, net.ErrClosed
	case b.writes <- bytes.Clone(p):
		return len(p), nil
	}
}

func (b *bufferedConn) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// config returns the configuration of a client with a token.
func (b *bench) config(tok token.Token) Config {
	return Config{
		Dir: b.dir, Server: b.server, Facts: Facts{"m", "b", "n"},
		Token: func() (token.Token, error) { return tok, nil },
		dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			near, far := b.pipe()
			select {
			case b.conns <- far:
				return near, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	}
}

func (b *bench) openWith(t *testing.T, cfg Config) *Identity {
	t.Helper()
	i, err := Open(cfg, slog.New(slog.NewTextHandler(&b.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Client().CloseIdleConnections() })
	return i
}

func (b *bench) identity(t *testing.T, tok token.Token) *Identity {
	t.Helper()
	return b.openWith(t, b.config(tok))
}

const day = 24 * time.Hour

// Run renews the certificate after two thirds of its life, repeatedly, also after the
// server was unreachable for days.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		i := b.identity(t, b.tok)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- i.Run(ctx) }() // Run enrolls too
		time.Sleep(time.Second)
		node, first := i.Node(), i.Expiry()
		if node == "" {
			t.Fatalf("not enrolled\n%s", &b.log)
		}
		time.Sleep(18 * day)
		if b.renewals.Load() != 0 || !i.Expiry().Equal(first) {
			t.Errorf("%d renewals within 18 days", b.renewals.Load())
		}
		time.Sleep(3 * day)
		if b.renewals.Load() != 1 || !i.Expiry().After(first.Add(18*day)) {
			t.Errorf("%d renewals within 21 days; the certificate ends %v after the first one", b.renewals.Load(), i.Expiry().Sub(first))
		}
		b.down.Store(true)
		time.Sleep(26 * day)
		if !time.Now().Before(i.Expiry()) {
			t.Fatal("the certificate has ended before the server is back")
		}
		b.down.Store(false)
		time.Sleep(maxWait)
		if n := b.renewals.Load(); n != 2 || time.Until(i.Expiry()) < 29*day {
			t.Errorf("%d renewals; the certificate ends in %v", n, time.Until(i.Expiry()))
		}
		if n := strings.Count(b.log.String(), "cannot renew the certificate; retrying"); n < 24*7 || n > 2*24*10 {
			t.Errorf("%d failed renewals in about 8 days", n)
		}
		time.Sleep(300 * day)
		if n := b.renewals.Load(); n < 2+15 || n > 2+17 {
			t.Errorf("%d renewals in the next 300 days", n-2)
		}
		if i.Node() != node {
			t.Errorf("node %s became %s", node, i.Node())
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// After the certificate has ended, Enroll obtains a new one with the token for the same
// node. Without a token its error has a hint, and the node id stays.
func TestEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		i := b.identity(t, b.tok)
		if err := i.Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
		node := i.Node()
		time.Sleep(31 * day) // the machine is off
		late := b.identity(t, token.Token{})
		err := late.Enroll(t.Context())
		if !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "ended on") || !strings.Contains(fault.Hint(err), "mete token create") {
			t.Errorf("without a token: %v (hint %q)", err, fault.Hint(err))
		}
		if err := late.Renew(t.Context()); !isRefused(err) {
			t.Errorf("renewal of an ended certificate: %v, want a refusal", err)
		}
		if late.Node() != node {
			t.Errorf("node %q, want %q", late.Node(), node)
		}
		again := b.identity(t, b.tok)
		if err := again.Enroll(t.Context()); err != nil || again.Node() != node || time.Until(again.Expiry()) < 29*day {
			t.Errorf("with the token: %v; node %s, want %s", err, again.Node(), node)
		}
	})
}

// If the clock is before or long after the certificate's validity, it is wrong, and the
// certificate is due: the server decides.
func TestWrongClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		i := b.identity(t, b.tok)
		if err := i.Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := i.state.Load()
		now := time.Now()
		for _, c := range []struct {
			now, last time.Time
			want      bool
		}{
			{now, time.Time{}, false},
			{s.leaf.NotBefore.Add(-time.Second), time.Time{}, true},
			{s.leaf.NotBefore.Add(21 * day), time.Time{}, true},
			{now.Add(2 * day), now, false},
			{now.Add(21 * day), now, true},
			{now.Add(400 * day), now.Add(399 * day), false}, // renewed under the same wrong clock
			{now.Add(400 * day), now.Add(396 * day), true},
		} {
			if got := i.isDue(c.now, c.last); got != c.want {
				t.Errorf("due at %v, last renewed at %v: %v, want %v", c.now.Sub(now), c.last.Sub(now), got, c.want)
			}
		}
		for _, c := range []struct {
			now           time.Time
			awake, passed time.Duration
			want          bool
		}{
			{now.Add(31 * day), day, 31 * day, true}, // the machine was suspended
			{now.Add(5 * day), day, 5 * day, false},
			{now.Add(31 * day), day, day, false}, // the clock was already wrong
		} {
			if got := s.isDueAgain(c.now, c.awake, c.passed); got != c.want {
				t.Errorf("due at %v, awake for %v of %v: %v, want %v", c.now.Sub(now), c.awake, c.passed, got, c.want)
			}
		}
	})
}

// After a crash during a write the identity is the old or the new one; Open reports any
// other damage with a hint.
func TestCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		i := b.identity(t, b.tok)
		if err := i.Enroll(t.Context()); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(b.dir, "identity.json")
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// A crash after the identity was written, before the pending key was removed.
		key := encodeKey(i.state.Load().pair.PrivateKey.(*ecdsa.PrivateKey))
		left, err := json.Marshal(pendingKey{"m", key})
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string][]byte{".new-123": whole[:100], pendingFile: left, "other.json": []byte("x")} {
			if err := os.WriteFile(filepath.Join(b.dir, name), content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		// cleanUp keeps younger temporary files, which another process may be writing.
		if old := time.Now().Add(-2 * tempFileAge); os.Chtimes(filepath.Join(b.dir, ".new-123"), old, old) != nil {
			t.Fatal("no such file")
		}
		again := b.identity(t, token.Token{})
		if err := again.Enroll(t.Context()); err != nil || again.Node() != i.Node() {
			t.Errorf("%v; node %q, want %q", err, again.Node(), i.Node())
		}
		fresh, err := again.loadPendingKey()
		if err != nil || fresh.PublicKey.Equal(i.state.Load().leaf.PublicKey) {
			t.Errorf("the next enrollment uses the current key: %v", err)
		}
		if _, err := os.Stat(filepath.Join(b.dir, ".new-123")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("temporary file not removed: %v", err)
		}
		if st, err := os.Stat(filepath.Join(b.dir, pendingFile)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("mode of the key's file: %v, %v", st.Mode(), err)
		}
		// Truncated files, and files with a wrong part.
		var f identityFile
		if err := json.Unmarshal(whole, &f); err != nil {
			t.Fatal(err)
		}
		other := newKey()
		damaged := map[string][]byte{"empty": {}, "half": whole[:len(whole)/2], "no brace": whole[:len(whole)-2]}
		for name, change := range map[string]func(*identityFile){
			"other's key":    func(f *identityFile) { f.Key = encodeKey(other) },
			"other node":     func(f *identityFile) { f.Node = "X" },
			"no node":        func(f *identityFile) { f.Node = "" },
			"no authority":   func(f *identityFile) { f.CA = "" },
			"no certificate": func(f *identityFile) { f.Certificate = "" },
			"other's CA":     func(f *identityFile) { f.CA = f.Certificate },
		} {
			g := f
			change(&g)
			if damaged[name], err = json.Marshal(g); err != nil {
				t.Fatal(err)
			}
		}
		for name, content := range damaged {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(Config{Dir: b.dir, Server: "https://server"}, slog.New(slog.DiscardHandler))
			if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(fault.Hint(err), "token") {
				t.Errorf("%s: %v (hint %q)", name, err, fault.Hint(err))
			}
		}
	})
}

func TestServerAddress(t *testing.T) {
	for text, want := range map[string]string{
		"https://mete.example.org:9797/": "https://mete.example.org:9797",
		"https://192.0.2.1":              "https://192.0.2.1",
		"http://127.0.0.1:9797":          "http://127.0.0.1:9797",
		"http://[::1]:9797/":             "http://[::1]:9797",
		"http://localhost":               "http://localhost",
		"http://mete.example.org":        "",
		"http://127.0.0.1.example.org":   "",
		"mete.example.org:9797":          "",
		"":                               "",
		"ftp://127.0.0.1":                "",
		"https://user@host":              "",
		"https://host?x":                 "",
	} {
		i, err := Open(Config{Dir: t.TempDir(), Server: text}, slog.New(slog.DiscardHandler))
		if want == "" {
			if !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
				t.Errorf("%q: %v", text, err)
			}
		} else if err != nil || i.Server() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
