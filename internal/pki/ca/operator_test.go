package ca_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/pki/token"
)

// TestLostAnswerOfClone checks that a clone whose response was lost gets the same node again.
func TestLostAnswerOfClone(t *testing.T) {
	s := serve(t, ca.Config{})
	i := s.enrolled(s.agents(1), blade)
	s.lose.Store(1)
	if err := i.Reenroll(t.Context()); !errors.Is(err, fault.ErrUnavailable) {
		t.Fatalf("without an answer: %v", err)
	}
	if err := i.Reenroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(s.reg.nodes) != 2 || s.reg.nodes[1].ID != i.Node() {
		t.Errorf("node %s of %+v, want the second of two", i.Node(), s.reg.nodes)
	}
}

// TestCreateToken checks what a token has that an operator did not set.
func TestCreateToken(t *testing.T) {
	a := open(t, ca.Config{Cluster: "lab"}, &memory{})
	for _, c := range []struct{ in, want registry.Token }{
		{registry.Token{Role: registry.Agent}, registry.Token{Cluster: "lab", Uses: 1}},
		{registry.Token{Role: registry.Agent, Cluster: "x", Uses: -1}, registry.Token{Cluster: "x", Uses: -1}},
		{registry.Token{Role: registry.Upstream, Uses: 2}, registry.Token{Cluster: "lab", Uses: 2}},
		{registry.Token{Role: registry.Viewer}, registry.Token{Uses: -1}},
		{registry.Token{Role: registry.Viewer, Cluster: "x", Uses: -1}, registry.Token{Cluster: "x", Uses: -1}},
		{registry.Token{Role: registry.Writer}, registry.Token{Cluster: "lab", Uses: -1}},
	} {
		_, got, err := a.Tokens().Create(t.Context(), c.in)
		if err != nil || got.Cluster != c.want.Cluster || got.Uses != c.want.Uses || got.Role != c.in.Role {
			t.Errorf("%+v: %+v, %v, want cluster %q, %d uses", c.in, got, err, c.want.Cluster, c.want.Uses)
		}
	}
	for _, in := range []registry.Token{{}, {Role: registry.Agent, Uses: -2}, {Role: registry.Viewer, Uses: 1}, {Role: registry.Writer, Uses: 1}, {Role: registry.Agent, Cluster: "a/b"}, {Role: registry.Agent, Expires: time.Now()}} {
		if _, got, err := a.Tokens().Create(t.Context(), in); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %+v, %v, want invalid", in, got, err)
		}
	}
}

// TestAudits checks what the audit log says of tokens.
func TestAudits(t *testing.T) {
	reg := &memory{nodes: []registry.Node{{ID: "N1", Cluster: "x"}}}
	a := open(t, ca.Config{Cluster: "lab"}, reg)
	expires := time.Now().Add(time.Hour)
	ids := map[string]bool{}
	for _, c := range []struct {
		want   registry.Token
		detail string
	}{
		{registry.Token{Role: registry.Viewer}, `role viewer, cluster "", uses -1, expires never`},
		{registry.Token{Role: registry.Agent, Node: "N1", Uses: 1, Expires: expires}, `role agent, cluster "x", uses 1, expires ` + expires.UTC().Format(time.RFC3339) + ", for node N1"},
	} {
		text, made, err := a.Tokens().Create(t.Context(), c.want)
		if err != nil {
			t.Fatal(err)
		}
		last := reg.audits[len(reg.audits)-1]
		if last.Actor != "local" || last.Action != "token.create" || last.Object != made.ID || last.Detail != c.detail || last.At.IsZero() {
			t.Errorf("audited %+v, want %q", last, c.detail)
		}
		ids[made.ID], ids[text[:30]] = true, true
	}
	if len(ids) != 4 {
		t.Errorf("tokens are alike: %v", ids)
	}
	if secrets := [2][32]byte{reg.tokens[0].Hash, reg.tokens[1].Hash}; secrets[0] == secrets[1] {
		t.Error("two tokens have one secret")
	}
}

// TestRevokeToken checks that the revocation of a token is recorded, and of none is an error.
func TestRevokeToken(t *testing.T) {
	reg := &memory{}
	a := open(t, ca.Config{}, reg)
	_, made, err := a.Tokens().Create(t.Context(), registry.Token{Role: registry.Viewer})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Tokens().Revoke(t.Context(), "unknown"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("an unknown token: %v", err)
	}
	if err := a.Tokens().Revoke(t.Context(), made.ID); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(reg.actions()); got != "[token.create token.revoke]" {
		t.Errorf("audited: %s", got)
	}
}

// TestRevokeNode checks that the revocation of a node is recorded.
func TestRevokeNode(t *testing.T) {
	reg := &memory{nodes: []registry.Node{{ID: "N1"}}}
	a := open(t, ca.Config{}, reg)
	if err := a.RevokeNode(t.Context(), "N1"); err != nil {
		t.Error(err)
	}
	if len(reg.audits) != 1 || reg.audits[0].At.IsZero() {
		t.Fatalf("audited %+v, want one line", reg.audits)
	}
	if got := reg.audits[0]; got.Actor != "local" || got.Action != "node.revoke" || got.Object != "N1" || got.Detail != "with its clones" {
		t.Errorf("audited %+v", got)
	}
}

// TestLocalRegistryDown checks that a node on the loopback is not identified if the registry
// cannot be read.
func TestLocalRegistryDown(t *testing.T) {
	reg := &memory{}
	a := open(t, ca.Config{Local: true}, reg)
	reg.err = errors.New("file is not a database")
	r := httptest.NewRequest(http.MethodPost, "http://localhost:9797/v1/batches", nil)
	r.RemoteAddr = "127.0.0.1:4711"
	r.Header.Set(token.NodeHeader, "N1")
	ca.TrustLocal(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if p, err := a.Identify(r); !errors.Is(err, fault.ErrUnavailable) || ca.IsUnidentified(err) {
			t.Errorf("%+v, %v, want unavailable", p, err)
		}
	})).ServeHTTP(httptest.NewRecorder(), r)
}

// TestCleanUpFails checks that an authority does not open if it cannot remove what a crash left.
func TestCleanUpFails(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, ".new-1") // os.Remove removes no directory with a file in it
	if err := os.MkdirAll(filepath.Join(left, "file"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Open(ca.Config{Dir: dir}, &memory{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), left) {
		t.Errorf("%v, want an error about %s", err, left)
	}
}
