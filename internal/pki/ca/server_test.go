package ca_test

import (
	"crypto/tls"
	"encoding/base32"
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
	"sync/atomic"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/sameuser"
)

// A server listens on a socket, and answers /who with the client's principal.
type server struct {
	t *testing.T
	*ca.Authority
	reg *memory
	dir string
	url string
	// lose is how many of the next enrollment responses get lost.
	lose atomic.Int32
}

// serve starts a server, which ends with the test.
func serve(t *testing.T, cfg ca.Config) *server {
	t.Helper()
	s := &server{t: t, reg: &memory{}, dir: filepath.Join(t.TempDir(), "authority")}
	cfg.Dir = s.dir
	s.Authority = open(t, cfg, s.reg)
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		if s.lose.Load() > 0 {
			s.lose.Add(-1)
			s.Handler().ServeHTTP(discard{http.Header{}}, r)
			panic(http.ErrAbortHandler)
		}
		s.Handler().ServeHTTP(w, r)
	})
	mux.HandleFunc("/who", func(w http.ResponseWriter, r *http.Request) {
		peer, err := s.Identify(r)
		if err != nil {
			status := fault.ProblemOf(err).Status
			if ca.IsUnidentified(err) {
				status = 401
			}
			http.Error(w, err.Error(), status)
			return
		}
		w.Header().Set("Proto", r.Proto)
		if err := json.NewEncoder(w).Encode(peer); err != nil {
			t.Error(err)
		}
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.url = "https://" + ln.Addr().String()
	h := &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0)}
	if cfg.Local {
		s.url = "http://" + ln.Addr().String()
	} else {
		ln = tls.NewListener(ln, s.ServerTLS())
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = h.Serve(ln) }()
	t.Cleanup(func() { _ = h.Close(); <-done })
	if cfg.Local {
		s.own(mux, ln.Addr())
	}
	return s
}

// own serves h at a socket for this user, where clients find it instead of the TCP address.
func (s *server) own(h http.Handler, at net.Addr) {
	dir, err := os.MkdirTemp("", "mete-ca-") // the path of a socket is short
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.t.Setenv("METE_STATE", dir)
	ln, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := sameuser.Publish(at, ln.Addr().String()); err != nil {
		s.t.Fatal(err)
	}
	own := &http.Server{Handler: ca.TrustLocal(h)}
	done := make(chan struct{})
	go func() { defer close(done); _ = own.Serve(sameuser.Listen(ln)) }()
	s.t.Cleanup(func() { _ = own.Close(); <-done })
}

// discard is a response that is lost.
type discard struct{ h http.Header }

func (d discard) Header() http.Header { return d.h }

func (discard) Write(b []byte) (int, error) { return len(b), nil }

func (discard) WriteHeader(int) {}

// token creates a token.
func (s *server) token(want registry.Token) token.Token {
	s.t.Helper()
	text, _, err := s.Tokens().Create(s.t.Context(), want)
	if err != nil {
		s.t.Fatal(err)
	}
	tok, err := token.Parse(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return tok
}

// agents creates a token for some machines of one cluster.
func (s *server) agents(uses int) token.Token {
	s.t.Helper()
	return s.token(registry.Token{Role: registry.Agent, Cluster: "lab", Uses: uses})
}

// expire lets the certificates of a node have ended.
func (s *server) expire(node string) {
	s.Forget()
	s.reg.mu.Lock()
	defer s.reg.mu.Unlock()
	for i := range s.reg.nodes {
		if s.reg.nodes[i].ID == node {
			s.reg.nodes[i].Certified = time.Now().Add(-time.Minute)
		}
	}
}

var blade = enroll.Facts{Machine: "4d1c", Boot: "boot-1", Name: "blade"}

func identity(t *testing.T, dir, url string, tok token.Token, f enroll.Facts) *enroll.Identity {
	t.Helper()
	i, err := enroll.Open(enroll.Config{Dir: dir, Server: url, Facts: f, Token: func() (token.Token, error) {
		if tok.IsZero() {
			return tok, fault.ErrNotFound
		}
		return tok, nil
	}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// enrolled returns the identity of a newly enrolled machine.
func (s *server) enrolled(tok token.Token, f enroll.Facts) *enroll.Identity {
	s.t.Helper()
	i := identity(s.t, s.t.TempDir(), s.url, tok, f)
	if err := i.Enroll(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	return i
}

// identify returns the client's principal as seen by the server.
func identify(t *testing.T, c *http.Client, url string) (p token.Principal, status int, err error) {
	t.Helper()
	resp, err := c.Get(url + "/who")
	if err != nil {
		return p, 0, err
	}
	defer shut(t, resp)
	if resp.StatusCode != http.StatusOK {
		b, err := io.ReadAll(resp.Body)
		return p, resp.StatusCode, errors.Join(errors.New(string(b)), err)
	}
	return p, resp.StatusCode, json.NewDecoder(resp.Body).Decode(&p)
}

// shut closes a response.
func shut(t *testing.T, resp *http.Response) {
	t.Helper()
	if resp == nil {
		return
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
}

// guess returns a token with the id of another, and another secret.
func guess(t *testing.T, tok token.Token) token.Token {
	t.Helper()
	id, err := base32.StdEncoding.DecodeString(strings.ToUpper(tok.ID()))
	if err != nil {
		t.Fatal(err)
	}
	g := token.New([5]byte(id), [20]byte{1}, tok.CA())
	if g.ID() != tok.ID() || g == tok {
		t.Fatalf("%v is not like %v", g, tok)
	}
	return g
}
