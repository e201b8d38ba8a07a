package ca_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
)

func TestEnroll(t *testing.T) {
	s := serve(t, ca.Config{})
	dir := t.TempDir()
	i := identity(t, dir, s.url, s.agents(1), blade)
	if i.Node() != "" || !i.Expiry().IsZero() {
		t.Errorf("node %q before it is enrolled", i.Node())
	}
	if _, err := i.Client().Get(s.url); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a request before: %v", err)
	}
	if err := i.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := token.Principal{Node: i.Node(), Cluster: "lab", Role: registry.Agent}
	if p, _, err := identify(t, i.Client(), s.url); err != nil || p != want || len(p.Node) != 26 {
		t.Errorf("the server sees %+v, %v, want %+v", p, err, want)
	}
	resp, err := i.Client().Get(s.url + "/who")
	if err != nil || resp.Header.Get("Proto") != "HTTP/2.0" {
		t.Errorf("%v, %v, want HTTP/2", resp, err)
	}
	shut(t, resp)
	n, err := s.reg.Node(t.Context(), i.Node())
	if err != nil || n.Name != "blade" || n.MachineID != "4d1c" || n.Boot != "boot-1" || n.Cluster != "lab" {
		t.Errorf("the registry has %+v, %v", n, err)
	}
	if left := time.Until(i.Expiry()); left < 29*24*time.Hour || left > 30*24*time.Hour {
		t.Errorf("the certificate ends in %v", left)
	}
	if st, err := os.Stat(filepath.Join(dir, "identity.json")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("identity.json: %v, %v", st, err)
	}
	// Again, and after a restart without a token: nothing is requested.
	again := identity(t, dir, s.url, token.Token{}, blade)
	if err := errors.Join(i.Enroll(t.Context()), again.Enroll(t.Context())); err != nil {
		t.Error(err)
	}
	if p, _, err := identify(t, again.Client(), s.url); err != nil || p != want {
		t.Errorf("after a restart %+v, %v, want %+v", p, err, want)
	}
	if got := fmt.Sprint(s.reg.actions()); got != "[token.create node.enrol]" {
		t.Errorf("audited: %s", got)
	}
}

func TestUpstream(t *testing.T) {
	s := serve(t, ca.Config{})
	tok := s.token(registry.Token{Role: registry.Upstream, Cluster: "edge"})
	i, err := enroll.Open(enroll.Config{Dir: t.TempDir(), Server: s.url, Role: registry.Upstream, Facts: blade, Token: func() (token.Token, error) { return tok, nil }}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(i.Enroll(t.Context()), i.Renew(t.Context())); err != nil {
		t.Fatal(err)
	}
	p, _, err := identify(t, i.Client(), s.url)
	if want := (token.Principal{Node: i.Node(), Cluster: "edge", Role: registry.Upstream}); err != nil || p != want {
		t.Errorf("%+v, %v, want %+v", p, err, want)
	}
	if len(s.reg.nodes) != 0 {
		t.Errorf("a server is among the nodes: %+v", s.reg.nodes)
	}
	if err := i.Reenroll(t.Context()); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a server as a clone: %v", err)
	}
	// A server that lost its identity and has the same ledger gets the same id; in another cluster
	// it does not.
	for cluster, same := range map[string]bool{"edge": true, "other": false} {
		tok := s.token(registry.Token{Role: registry.Upstream, Cluster: cluster})
		again, err := enroll.Open(enroll.Config{Dir: t.TempDir(), Server: s.url, Role: registry.Upstream, Facts: blade, Token: func() (token.Token, error) { return tok, nil }}, slog.New(slog.DiscardHandler))
		if err == nil {
			err = again.Enroll(t.Context())
		}
		if err != nil || (again.Node() == i.Node()) != same {
			t.Errorf("in cluster %s: %s, %v; before: %s", cluster, again.Node(), err, i.Node())
		}
	}
}

// TestWrongTokens checks the error of each way in which a token can be invalid.
func TestWrongTokens(t *testing.T) {
	s, other := serve(t, ca.Config{}), serve(t, ca.Config{})
	used := s.agents(1)
	s.enrolled(used, enroll.Facts{Machine: "first", Boot: "b", Name: "n"})
	ended := s.token(registry.Token{Role: registry.Agent, Expires: time.Now().Add(time.Hour)})
	s.reg.tokens[len(s.reg.tokens)-1].Expires = time.Now().Add(-time.Second)
	revoked := s.agents(-1)
	if err := s.Tokens().Revoke(t.Context(), revoked.ID()); err != nil {
		t.Fatal(err)
	}
	viewer := s.token(registry.Token{Role: registry.Viewer})
	for name, c := range map[string]struct {
		tok  token.Token
		want string
	}{
		"none":             {token.Token{}, "no token"},
		"unknown":          {token.New([5]byte{1}, [20]byte{2}, s.CA()), "permission denied"},
		"wrong secret":     {guess(t, used), "permission denied"},
		"used up":          {used, "used up"},
		"ended":            {ended, "has ended"},
		"revoked":          {revoked, "is revoked"},
		"for reading":      {viewer, "is for role viewer"},
		"another server's": {other.agents(1), "another certificate authority"},
	} {
		t.Run(name, func(t *testing.T) {
			i := identity(t, t.TempDir(), s.url, c.tok, blade)
			err := i.Enroll(t.Context())
			if !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), c.want) || fault.Hint(err) == "" {
				t.Errorf("Enroll: %v (hint %q), want denied, %q and a hint", err, fault.Hint(err), c.want)
			}
			if err != nil && !c.tok.IsZero() && strings.Contains(err.Error(), c.tok.Reveal()) {
				t.Errorf("%v shows the secret", err)
			}
			if i.Node() != "" {
				t.Errorf("enrolled as node %s", i.Node())
			}
		})
	}
	if n := len(other.reg.nodes) + len(s.reg.nodes); n != 1 {
		t.Errorf("%d nodes, want the first only", n)
	}
	// The secret of a token is sent only to its own servers.
	if len(other.reg.tokens) != 1 || other.reg.tokens[0].Uses != 1 {
		t.Errorf("tokens of the other server: %+v", other.reg.tokens)
	}
}

// TestLostAnswer checks that a lost response costs no second use and creates no second node, even
// with a restart in between.
func TestLostAnswer(t *testing.T) {
	s := serve(t, ca.Config{})
	tok, dir := s.agents(1), t.TempDir()
	s.lose.Store(2)
	for range 2 {
		if err := identity(t, dir, s.url, tok, blade).Enroll(t.Context()); !errors.Is(err, fault.ErrUnavailable) {
			t.Fatalf("without an answer: %v", err)
		}
	}
	i := identity(t, dir, s.url, tok, blade)
	if err := i.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(s.reg.nodes) != 1 || s.reg.nodes[0].ID != i.Node() || s.reg.tokens[0].Uses != 0 {
		t.Errorf("nodes %+v, tokens %+v", s.reg.nodes, s.reg.tokens)
	}
	// A copy of the disk cannot enroll with the used token.
	clone := enroll.Facts{Machine: blade.Machine, Boot: "boot-2", Name: "copy"}
	if err := identity(t, t.TempDir(), s.url, tok, clone).Enroll(t.Context()); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a second machine with the used token: %v", err)
	}
}

// TestSameMachine checks that the same machine gets the same node, even if it lost its state,
// unless that node is active elsewhere.
func TestSameMachine(t *testing.T) {
	live := map[string]string{}
	s := serve(t, ca.Config{LiveBoot: func(node string) (string, bool) { b, ok := live[node]; return b, ok }})
	tok := s.agents(-1)
	with := func(boot, name string) string {
		return s.enrolled(tok, enroll.Facts{Machine: "m", Boot: boot, Name: name}).Node()
	}
	first := with("b1", "a")
	live[first] = "b1"
	if again := with("b1", "a"); again != first {
		t.Errorf("lost state within the boot: %s, want %s", again, first)
	}
	clone := with("b2", "b")
	if clone == first {
		t.Error("a clone is the same node")
	}
	if got := s.reg.actions(); got[len(got)-1] != "node.clone" {
		t.Errorf("audited: %v", got)
	}
	live[clone] = "b2"
	delete(live, first)
	if again := with("b3", "a"); again != first {
		t.Errorf("lost state while only its clone is active: %s, want %s", again, first)
	}
	delete(live, clone)
	// Neither is active: the name decides.
	if a, b := with("b4", "a"), with("b5", "b"); a != first || b != clone {
		t.Errorf("%s and %s, want %s and %s", a, b, first, clone)
	}
	if n, err := s.reg.Node(t.Context(), first); err != nil || n.Boot != "b4" {
		t.Errorf("%+v, %v, want the last boot", n, err)
	}
	// A token of one cluster gives no rights to nodes of another.
	if elsewhere := s.enrolled(s.token(registry.Token{Role: registry.Agent, Cluster: "prod"}), enroll.Facts{Machine: "m", Boot: "b6", Name: "a"}); elsewhere.Node() == first || elsewhere.Node() == clone {
		t.Error("a token of another cluster took over a node")
	}
	if err := s.RevokeNode(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if again := with("b7", "a"); again == first {
		t.Error("a revoked node came back")
	}
}

// TestReenroll checks that a clone gets a node of its own with its certificate.
func TestReenroll(t *testing.T) {
	s := serve(t, ca.Config{})
	i := s.enrolled(s.agents(1), blade)
	first, client := i.Node(), i.Client()
	if err := i.Reenroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p, _, err := identify(t, client, s.url); err != nil || p.Node == first || p.Node != i.Node() || p.Cluster != "lab" {
		t.Errorf("%+v, %v, want another node than %s", p, err, first)
	}
	// At most ten clones a day come from one node.
	disk, other := t.TempDir(), enroll.Facts{Machine: "another", Boot: "boot-1", Name: "other"}
	if err := identity(t, disk, s.url, s.agents(1), other).Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	var last error
	n := 0
	for nodes := map[string]bool{}; n < 12 && last == nil; n++ {
		c := identity(t, copied(t, disk), s.url, token.Token{}, enroll.Facts{Machine: other.Machine, Boot: fmt.Sprint(n), Name: "copy"})
		if last = c.Reenroll(t.Context()); last == nil && nodes[c.Node()] {
			t.Errorf("two clones are node %s", c.Node())
		}
		nodes[c.Node()] = true
	}
	if later, _ := fault.RetryAfter(last); n != 11 || !errors.Is(last, fault.ErrUnavailable) || later < 23*time.Hour {
		t.Errorf("number %d: %v", n, last)
	}
}

// TestClonesOfClones checks that clones of clones count as clones of the first node, and are
// revoked with it.
func TestClonesOfClones(t *testing.T) {
	s := serve(t, ca.Config{})
	disk := t.TempDir()
	first := identity(t, disk, s.url, s.agents(1), blade)
	if err := first.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	clone := identity(t, copied(t, disk), s.url, token.Token{}, enroll.Facts{Machine: blade.Machine, Boot: "boot-2", Name: "copy"})
	var clones []string
	var last error
	for len(clones) < 12 && last == nil {
		if last = clone.Reenroll(t.Context()); last == nil {
			clones = append(clones, clone.Node())
		}
	}
	if len(clones) != 10 || !errors.Is(last, fault.ErrUnavailable) || !strings.Contains(last.Error(), first.Node()) {
		t.Errorf("%d clones, each of the previous one, then %v", len(clones), last)
	}
	for _, id := range clones {
		if n, err := s.reg.Node(t.Context(), id); err != nil || n.Root != first.Node() {
			t.Errorf("%+v, %v, want the root %s", n, err, first.Node())
		}
	}
	revoked := func(id string) bool { return errors.Is(s.CheckAllowed(t.Context(), id), fault.ErrDenied) }
	if err := s.RevokeNode(t.Context(), clones[0]); err != nil {
		t.Fatal(err)
	}
	if !revoked(clones[0]) || revoked(clones[1]) || revoked(first.Node()) {
		t.Error("a clone was not revoked alone")
	}
	if err := s.RevokeNode(t.Context(), first.Node()); err != nil {
		t.Fatal(err)
	}
	for _, id := range append(clones, first.Node()) {
		if !revoked(id) {
			t.Errorf("%s may still send", id)
		}
	}
	if _, status, err := identify(t, clone.Client(), s.url); status != 403 {
		t.Errorf("the last clone gets %d, %v, want 403", status, err)
	}
}

// TestNoClone checks that a machine with a token of its own is not a clone, even if its machine id
// is in use.
func TestNoClone(t *testing.T) {
	s := serve(t, ca.Config{LiveBoot: func(string) (string, bool) { return "boot-1", true }})
	first := s.enrolled(s.agents(1), blade)
	second := s.enrolled(s.agents(1), enroll.Facts{Machine: blade.Machine, Boot: "boot-2", Name: "copy"})
	if err := s.RevokeNode(t.Context(), first.Node()); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckAllowed(t.Context(), second.Node()); err != nil || second.Node() == first.Node() {
		t.Errorf("node %s of %s: %v", second.Node(), first.Node(), err)
	}
}

// copied returns a copy of a directory.
func copied(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestRenewUnknown checks that a node unknown to a restored ledger can renew its certificate.
func TestRenewUnknown(t *testing.T) {
	s := serve(t, ca.Config{})
	i := s.enrolled(s.agents(1), blade)
	s.reg.mu.Lock()
	s.reg.nodes = nil
	s.reg.mu.Unlock()
	if err := i.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := s.reg.Node(t.Context(), i.Node()); err != nil || n.Name != blade.Name || n.Cluster != "lab" {
		t.Errorf("%+v, %v", n, err)
	}
}
