package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/host/exclusive"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
)

// registrar is a loopback server that enrolls every machine as a configured node.
type registrar struct {
	node    atomic.Pointer[string]
	batches atomic.Int64
}

func (r *registrar) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.URL.Path != "/v1/enroll" {
		r.batches.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"verdict":"taken","next":"2"}`)
		return
	}
	_, _ = io.WriteString(w, `{"node":"`+*r.node.Load()+`","cluster":"c","role":"agent"}`)
}

func (r *registrar) identity(t *testing.T) *enroll.Identity {
	t.Helper()
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	id, err := enroll.Open(enroll.Config{Dir: t.TempDir(), Server: s.URL, Facts: enroll.Facts{Machine: "m", Boot: "b", Name: "n"}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := id.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	return id
}

// TestBound checks that windows of one node are never sent as another.
func TestBound(t *testing.T) {
	var r registrar
	one, two := "one", "two"
	r.node.Store(&one)
	id := r.identity(t)
	base, err := url.Parse(id.Server())
	if err != nil {
		t.Fatal(err)
	}
	others := 0
	b := &nodeServer{HTTP: sender.NewHTTP(base, id.Client(), ""), id: id, node: id.Node(), onOtherNode: func() { others++ }}
	if _, err := b.Offer(t.Context(), batch.Clock{Boot: "b"}, []byte("x")); err != nil || r.batches.Load() != 1 {
		t.Fatalf("%v, %d batches", err, r.batches.Load())
	}
	r.node.Store(&two)
	if err := id.Reenroll(t.Context()); err != nil || id.Node() != two {
		t.Fatalf("%v, node %s", err, id.Node())
	}
	if _, err := b.Offer(t.Context(), batch.Clock{Boot: "b"}, []byte("x")); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("as another node: %v", err)
	}
	if _, err := b.Lost(t.Context(), batch.Loss{}); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("lost, as another node: %v", err)
	}
	if r.batches.Load() != 1 || others != 2 {
		t.Errorf("%d batches arrived, %d calls; want 1 and 2", r.batches.Load(), others)
	}
}

// written adapts a function to io.Writer.
type written func(b []byte) (int, error)

func (f written) Write(b []byte) (int, error) { return f(b) }

// TestEnrolled checks that an enrolled machine measures whatever is wrong with its identity, and
// that any other waits for its server.
func TestEnrolled(t *testing.T) {
	var r registrar
	one := "one"
	r.node.Store(&one)
	id := r.identity(t)
	var log strings.Builder
	c := Default()
	if err := c.waitEnrolled(t.Context(), id, slog.New(slog.NewTextHandler(&log, nil))); err != nil || log.Len() > 0 {
		t.Errorf("%v, log %q", err, &log)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	fresh, err := enroll.Open(enroll.Config{Dir: t.TempDir(), Server: "http://" + ln.Addr().String()}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	until := written(func(b []byte) (int, error) { cancel(); return log.Write(b) })
	if err := c.waitEnrolled(ctx, fresh, slog.New(slog.NewTextHandler(until, nil))); err != nil || ctx.Err() == nil {
		t.Errorf("without a server: %v, waited: %v", err, ctx.Err() != nil)
	}
	if n := strings.Count(log.String(), "cannot enroll yet; retrying"); n != 1 {
		t.Errorf("%d messages that it cannot enroll:\n%s", n, &log)
	}
}

// TestOnlyOne checks that a second agent for one ledger is refused, whatever its state directory
// and socket.
func TestOnlyOne(t *testing.T) {
	var r registrar
	node := "one"
	r.node.Store(&node)
	id := r.identity(t)
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	only, err := exclusive.AcquireMachine(t.Context(), h, id.LedgerID(), log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := only.Close(); err != nil {
			t.Error(err)
		}
	}()
	c := Default()
	c.Server, c.State, c.Socket, c.Status = id.Server(), t.TempDir(), "", ""
	if err := runWithServer(t.Context(), c, log); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
		t.Errorf("%v (hint %q), want a conflict", err, fault.Hint(err))
	}
	if _, err := os.Stat(filepath.Join(c.State, "spool")); err == nil {
		t.Error("it started measuring")
	}
}

func TestToken(t *testing.T) {
	text := token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3}).Reveal()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("\n "+text+" \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		Config
		want error
	}{
		{Config{Token: text}, nil},
		{Config{TokenFile: file, Token: "not this one"}, nil},
		{Config{}, fault.ErrNotFound},
		{Config{Token: " \n"}, fault.ErrNotFound},
		{Config{TokenFile: file + "2"}, fault.ErrNotFound},
		{Config{TokenFile: filepath.Dir(file)}, fault.ErrInvalid},
		{Config{Token: "mete_x"}, fault.ErrInvalid},
	} {
		got, err := c.readToken()
		if !errors.Is(err, c.want) || err == nil && got.Reveal() != text || err != nil && fault.Hint(err) == "" {
			t.Errorf("%+v: %v, %v (hint %q)", c.Config, got, err, fault.Hint(err))
		}
	}
}

// TestRefusedWithoutTLS checks that an agent whose user a server without TLS does not answer says
// so, rather than that it has no token.
func TestRefusedWithoutTLS(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", fault.ProblemType)
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"status":403,"title":"permission denied","detail":"not as the server's user","hint":"run the agent as that user"}`)
	}))
	t.Cleanup(s.Close)
	id, err := enroll.Open(enroll.Config{Dir: t.TempDir(), Server: s.URL, Facts: enroll.Facts{Machine: "m", Boot: "b", Name: "n"}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c := Default()
	c.Token = ""
	if err := c.waitEnrolled(t.Context(), id, slog.New(slog.DiscardHandler)); !errors.Is(err, fault.ErrDenied) || fault.Hint(err) != "run the agent as that user" {
		t.Errorf("%v, hint %q", err, fault.Hint(err))
	}
}
