package ca_test

import (
	"crypto/elliptic"
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
}

// upstream returns the identity of a server with a ledger, and the error of its enrollment.
func (s *server) upstream(tok token.Token, ledger string) (*enroll.Identity, error) {
	s.t.Helper()
	i, err := enroll.Open(enroll.Config{
		Dir: s.t.TempDir(), Server: s.url, Role: registry.Upstream, Facts: enroll.Facts{Machine: ledger, Boot: ledger, Name: "n"}, Token: func() (token.Token, error) { return tok, nil },
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		s.t.Fatal(err)
	}
	return i, i.Enroll(s.t.Context())
}

// TestLedgerOfAnotherServer checks that no token takes over the downstream server of a ledger, whose
// id is not secret, but one that was made for that server.
func TestLedgerOfAnotherServer(t *testing.T) {
	s := serve(t, ca.Config{})
	shared := s.token(registry.Token{Role: registry.Upstream, Cluster: "edge", Uses: 3})
	first, err := s.upstream(shared, "ledger")
	if err != nil {
		t.Fatal(err)
	}
	s.reg.actions()
	once := s.token(registry.Token{Role: registry.Upstream, Cluster: "edge"})
	for name, tok := range map[string]token.Token{"the same token": shared, "another token": once} {
		s.reg.audits = nil
		_, err := s.upstream(tok, "ledger")
		if !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "another key") || !strings.HasSuffix(fault.Hint(err), "--role upstream --node "+first.Node()) {
			t.Errorf("%s: %v (hint %q)", name, err, fault.Hint(err))
		}
		if len(s.reg.audits) != 1 || s.reg.audits[0].Action != "enrol.denied" || s.reg.audits[0].Actor != tok.ID() || !strings.Contains(s.reg.audits[0].Detail, first.Node()) {
			t.Errorf("%s: audited %+v", name, s.reg.audits)
		}
	}
	if left := s.reg.tokens[0].Uses + s.reg.tokens[1].Uses; left != 3 {
		t.Errorf("%d uses are left, want 3: a refused claim takes none", left)
	}
	// Another ledger, or another cluster, has a server of its own.
	if other, err := s.upstream(shared, "another"); err != nil || other.Node() == first.Node() {
		t.Errorf("another ledger: %s, %v", other.Node(), err)
	}
	if other, err := s.upstream(s.token(registry.Token{Role: registry.Upstream, Cluster: "prod"}), "ledger"); err != nil || other.Node() == first.Node() {
		t.Errorf("another cluster: %s, %v", other.Node(), err)
	}
	// The administrator knows that it is the server.
	for name, want := range map[string]registry.Token{
		"of a cluster": {Cluster: "prod", Node: first.Node()}, "unknown": {Node: "N1"}, "twice": {Node: first.Node(), Uses: 2}, "often": {Node: first.Node(), Uses: -1},
	} {
		want.Role = registry.Upstream
		if _, _, err := s.Tokens().Create(t.Context(), want); err == nil || name == "unknown" && !strings.Contains(fault.Hint(err), "mete sources") {
			t.Errorf("a token for the server, %s: %v", name, err)
		}
	}
	bound := s.token(registry.Token{Role: registry.Upstream, Node: first.Node()})
	again, err := s.upstream(bound, "ledger")
	if err != nil || again.Node() != first.Node() || again.Cluster() != "edge" {
		t.Errorf("with a token for it: %s in %s, %v, want %s", again.Node(), again.Cluster(), err, first.Node())
	}
	if _, err := s.upstream(bound, "ledger"); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "used up") {
		t.Errorf("with a token for it, twice: %v", err)
	}
	if err := s.RevokeNode(t.Context(), first.Node()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Tokens().Create(t.Context(), registry.Token{Role: registry.Upstream, Node: first.Node()}); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a token for a revoked server: %v", err)
	}
	if other, err := s.upstream(once, "ledger"); err != nil || other.Node() == first.Node() {
		t.Errorf("after the server was revoked: %s, %v", other.Node(), err)
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

// TestSameMachine checks which machine becomes a node again. Its machine id and boot id are not
// secret, so they prove nothing.
func TestSameMachine(t *testing.T) {
	live := map[string]string{}
	s := serve(t, ca.Config{LiveBoot: func(node string) (string, bool) { b, ok := live[node]; return b, ok }})
	tok := s.agents(-1)
	with := func(boot, name string) string {
		return s.enrolled(tok, enroll.Facts{Machine: "m", Boot: boot, Name: name}).Node()
	}
	first := with("b1", "a")
	for name, isLive := range map[string]bool{"a silent one": false, "a live one": true} {
		if isLive {
			live[first] = "b1"
		}
		s.reg.actions()
		if taken := with("b1", "a"); taken == first {
			t.Errorf("%s: a machine with its machine id and boot id became it", name)
		}
		if got := s.reg.actions(); got[len(got)-1] != "node.clone" {
			t.Errorf("%s: audited: %v", name, got)
		}
	}
	// An administrator makes a token for the node.
	if again := s.enrolled(s.token(registry.Token{Role: registry.Agent, Node: first}), enroll.Facts{Machine: "m", Boot: "b2", Name: "a"}); again.Node() != first || again.Cluster() != "lab" {
		t.Errorf("with a token for the node: %s in %s, want %s in lab", again.Node(), again.Cluster(), first)
	}
	if n, err := s.reg.Node(t.Context(), first); err != nil || n.Boot != "b2" {
		t.Errorf("%+v, %v, want the last boot", n, err)
	}
	// Its certificate has ended, but it is sending: it is in use.
	s.expire(first)
	if taken := with("b1", "a"); taken == first {
		t.Error("became a node that is sending")
	}
	delete(live, first)
	s.expire(first)
	if again := with("b3", "a"); again != first {
		t.Errorf("after its certificate ended: %s, want %s", again, first)
	}
	if taken := with("b3", "a"); taken == first {
		t.Error("became a node that has a certificate again")
	}
	// A token of one cluster gives no rights to nodes of another.
	s.expire(first)
	if elsewhere := s.enrolled(s.token(registry.Token{Role: registry.Agent, Cluster: "prod"}), enroll.Facts{Machine: "m", Boot: "b6", Name: "a"}); elsewhere.Node() == first {
		t.Error("a token of another cluster took over a node")
	}
	bound := s.token(registry.Token{Role: registry.Agent, Node: first})
	if err := s.RevokeNode(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if again := with("b7", "a"); again == first {
		t.Error("a revoked node came back")
	}
	if err := identity(t, t.TempDir(), s.url, bound, blade).Enroll(t.Context()); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a revoked node with a token for it: %v", err)
	}
}

// TestRenewedIsCertified checks that a node whose certificate was renewed is not given away when the
// first certificate ends.
func TestRenewedIsCertified(t *testing.T) {
	s := serve(t, ca.Config{})
	i := s.enrolled(s.agents(1), blade)
	s.expire(i.Node())
	if err := i.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Forget()
	if other := s.enrolled(s.agents(1), blade); other.Node() == i.Node() {
		t.Error("became a node whose certificate had been renewed")
	}
}

// TestSameKey checks that a machine or server that did not get the answer becomes the same node with
// the same key and token, of one use too, after restarts of both sides, and that no other key does.
func TestSameKey(t *testing.T) {
	jobs := enroll.Facts{Machine: "4d1c jobs", Boot: "boot-1", Name: "blade"}
	for name, c := range map[string]struct {
		want  registry.Token
		facts enroll.Facts
	}{
		"once": {registry.Token{Role: registry.Agent}, blade}, "often": {registry.Token{Role: registry.Agent, Uses: -1}, blade},
		"jobs": {registry.Token{Role: registry.Job}, jobs}, "server": {registry.Token{Role: registry.Upstream}, blade},
	} {
		t.Run(name, func(t *testing.T) {
			live := map[string]string{}
			s := serve(t, ca.Config{LiveBoot: func(node string) (string, bool) { b, ok := live[node]; return b, ok }})
			c.want.Expires = time.Now().Add(time.Hour)
			tok, dir := s.token(c.want), t.TempDir()
			start := func(dir, boot string) (string, error) {
				role := c.want.Role
				if role == registry.Job {
					role = registry.Agent
				}
				f := c.facts
				f.Boot = boot
				i, err := enroll.Open(enroll.Config{Dir: dir, Server: s.url, Role: role, Facts: f, Token: func() (token.Token, error) { return tok, nil }}, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				err = i.Enroll(t.Context())
				return i.Node(), err
			}
			s.lose.Store(1)
			if _, err := start(dir, "boot-1"); !errors.Is(err, fault.ErrUnavailable) {
				t.Fatalf("without an answer: %v", err)
			}
			made := append(s.reg.nodes, s.reg.sources...)
			pending, err := os.ReadFile(filepath.Join(dir, "pending.json"))
			if len(made) != 1 || err != nil {
				t.Fatalf("%+v, %v, want one node", made, err)
			}
			// with starts the machine again as it was before the answer.
			with := func(boot string) (string, error) {
				s.Forget()
				dir := t.TempDir()
				if err := os.WriteFile(filepath.Join(dir, "pending.json"), pending, 0o600); err != nil {
					t.Fatal(err)
				}
				return start(dir, boot)
			}
			for _, boot := range []string{"boot-1", "boot-2"} { // killed, and out of power
				if node, err := with(boot); err != nil || node != made[0].ID {
					t.Errorf("in %s: %s, %v, want %s", boot, node, err, made[0].ID)
				}
			}
			if n := len(s.reg.nodes) + len(s.reg.sources); n != 1 || s.reg.tokens[0].Uses != min(0, c.want.Uses) {
				t.Errorf("%d nodes, want 1; %d uses are left", n, s.reg.tokens[0].Uses)
			}
			if c.want.Uses == 0 {
				if node, err := start(t.TempDir(), "boot-2"); !errors.Is(err, fault.ErrDenied) {
					t.Errorf("with another key: %s, %v", node, err)
				}
				live[made[0].ID] = "boot-2"
				if node, err := with("boot-3"); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "used up") {
					t.Errorf("a copy of the machine, while it sends: %s, %v", node, err)
				}
				if node, err := with("boot-2"); err != nil || node != made[0].ID {
					t.Errorf("while it sends: %s, %v", node, err)
				}
			}
			s.reg.tokens[0].Expires = time.Now()
			if node, err := with("boot-2"); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "has ended") {
				t.Errorf("after the token ended: %s, %v", node, err)
			}
			s.reg.tokens[0].Expires = time.Time{}
			if err := s.RevokeNode(t.Context(), made[0].ID); err != nil {
				t.Fatal(err)
			}
			if node, err := with("boot-2"); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "is revoked") {
				t.Errorf("after the node was revoked: %s, %v", node, err)
			}
			s.reg.revoked = nil
			if err := s.Tokens().Revoke(t.Context(), tok.ID()); err != nil {
				t.Fatal(err)
			}
			if node, err := with("boot-2"); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "is revoked") {
				t.Errorf("after the token was revoked: %s, %v", node, err)
			}
		})
	}
}

// TestSameKeyOtherToken checks that a machine that got no answer becomes the same node with the same
// key and another token.
func TestSameKeyOtherToken(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, ca.Config{})
	s.lose.Store(1)
	if err := identity(t, dir, s.url, s.agents(1), blade).Enroll(t.Context()); !errors.Is(err, fault.ErrUnavailable) {
		t.Fatalf("without an answer: %v", err)
	}
	i := identity(t, dir, s.url, s.agents(1), blade)
	if err := i.Enroll(t.Context()); err != nil || len(s.reg.nodes) != 1 || s.reg.nodes[0].ID != i.Node() {
		t.Errorf("%v; nodes %+v, want %s alone", err, s.reg.nodes, i.Node())
	}
}

// TestSameKeyAsAnother checks that a key that used a token gives no other right: it makes no jobs of
// a machine, no machine of a server, and no second node.
func TestSameKeyAsAnother(t *testing.T) {
	s := serve(t, ca.Config{})
	for _, c := range []struct {
		token registry.Role
		first token.Claim
		other token.Claim
	}{
		{registry.Agent, token.Claim{Machine: "m"}, token.Claim{Machine: "m jobs"}},
		{registry.Agent, token.Claim{Machine: "m"}, token.Claim{Machine: "m", Role: registry.Upstream}},
		{registry.Upstream, token.Claim{Machine: "m", Role: registry.Upstream}, token.Claim{Machine: "m"}},
		{registry.Job, token.Claim{Machine: "m jobs"}, token.Claim{Machine: "m"}},
	} {
		request, text := csr(t, elliptic.P256()), s.token(registry.Token{Role: c.token}).Reveal()
		send := func(claim token.Claim) (token.Grant, error) {
			claim.Token, claim.CSR, claim.Boot, claim.Name = text, request, "b", "n"
			return s.Enroll(t.Context(), claim)
		}
		first, err := send(c.first)
		if err != nil {
			t.Errorf("%s's token, %q as %q: %v", c.token, c.first.Machine, c.first.Role, err)
		}
		if g, err := send(c.other); !errors.Is(err, fault.ErrDenied) {
			t.Errorf("%s's token, %q as %q: %+v, %v", c.token, c.other.Machine, c.other.Role, g, err)
		}
		c.first.Machine = "another " + c.first.Machine
		if g, err := send(c.first); err != nil || g.Node != first.Node {
			t.Errorf("%s's token, %q as %q: %s, %v, want node %s", c.token, c.first.Machine, c.first.Role, g.Node, err, first.Node)
		}
	}
}

// TestLocalIsNotTaken checks that a node of the loopback, which has no certificate, is given to no
// token, and again to the loopback.
func TestLocalIsNotTaken(t *testing.T) {
	s := serve(t, ca.Config{})
	local := func() string {
		n, err := s.EnrollLocal(t.Context(), blade.Machine, blade.Boot, blade.Name)
		if err != nil {
			t.Fatal(err)
		}
		return n.ID
	}
	node := local()
	if taken := s.enrolled(s.token(registry.Token{Role: registry.Agent, Cluster: ca.DefaultCluster}), blade); taken.Node() == node {
		t.Error("a token took over the node of the loopback")
	}
	if again := local(); again != node {
		t.Errorf("again %s, want %s", again, node)
	}
}

// TestJobTokens checks that a token for jobs enrolls no machine, and that each of them has a node of
// its own.
func TestJobTokens(t *testing.T) {
	s := serve(t, ca.Config{})
	machine := s.enrolled(s.agents(1), blade)
	alice, bob := s.token(registry.Token{Role: registry.Job, Cluster: "lab", Uses: -1}), s.token(registry.Token{Role: registry.Job, Cluster: "lab", Uses: -1})
	if err := identity(t, t.TempDir(), s.url, alice, blade).Enroll(t.Context()); !errors.Is(err, fault.ErrDenied) || !strings.Contains(fault.Hint(err), "--role agent") {
		t.Errorf("a machine with a token for jobs: %v (hint %q)", err, fault.Hint(err))
	}
	jobs := blade
	jobs.Machine = registry.JobsMachineID(blade.Machine)
	first, second, other := s.enrolled(alice, jobs), s.enrolled(alice, jobs), s.enrolled(bob, jobs)
	if first.Node() == machine.Node() || first.Node() != second.Node() || other.Node() == first.Node() {
		t.Errorf("machine %s; jobs by one token %s and %s, by another %s", machine.Node(), first.Node(), second.Node(), other.Node())
	}
	if p, _, err := identify(t, first.Client(), s.url); err != nil || p.Role != registry.Agent || p.Node != first.Node() {
		t.Errorf("the server sees %+v, %v", p, err)
	}
	// Tokens of before this role existed still serve jobs.
	if old := s.enrolled(s.agents(1), jobs); old.Node() == "" || old.Node() == first.Node() {
		t.Errorf("an agent's token for jobs: node %q", old.Node())
	}
	// The node of jobs does not become a machine by its certificate.
	dir := t.TempDir()
	if err := identity(t, dir, s.url, alice, jobs).Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := identity(t, dir, s.url, token.Token{}, blade).Reenroll(t.Context()); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("jobs as a machine: %v", err)
	}
	for _, want := range []registry.Token{
		{Role: registry.Agent, Node: "unknown"},
		{Role: registry.Agent, Node: machine.Node(), Uses: 2},
		{Role: registry.Agent, Node: machine.Node(), Cluster: "prod"},
		{Role: registry.Viewer, Node: machine.Node()},
	} {
		if _, _, err := s.Tokens().Create(t.Context(), want); err == nil {
			t.Errorf("created %+v", want)
		}
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

// TestRenewUnknownJobs checks that the jobs of a machine stay jobs when they renew their certificate, or
// enroll by it, after the ledger was restored from a backup without their node, and that they become a
// machine by neither, whatever they state.
func TestRenewUnknownJobs(t *testing.T) {
	s := serve(t, ca.Config{})
	alice := s.token(registry.Token{Role: registry.Job, Cluster: "lab", Uses: -1})
	jobs := blade
	jobs.Machine = registry.JobsMachineID(blade.Machine)
	dir := t.TempDir()
	first := identity(t, dir, s.url, alice, jobs)
	if err := first.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, forget := range map[string]func() []registry.Node{
		"unknown": func() []registry.Node { return nil },
		"recalled": func() []registry.Node { // as by a batch
			p, _, err := identify(t, first.Client(), s.url)
			if err != nil || !p.Jobs {
				t.Fatalf("the server sees %+v, %v", p, err)
			}
			return []registry.Node{ca.Recall(p, time.Now())}
		},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := forget()
			s.reg.mu.Lock()
			s.reg.nodes = nodes
			s.reg.mu.Unlock()
			machine := identity(t, dir, s.url, token.Token{}, blade)
			if err := machine.Renew(t.Context()); !errors.Is(err, fault.ErrDenied) {
				t.Errorf("renewed as a machine: %v", err)
			}
			if err := machine.Reenroll(t.Context()); !errors.Is(err, fault.ErrDenied) {
				t.Errorf("enrolled as a machine: %v", err)
			}
			if n, err := s.reg.Node(t.Context(), first.Node()); err == nil && (!n.IsJobs() || n.Name == blade.Name) {
				t.Errorf("the ledger has %+v", n)
			}
			for range 2 { // the second by the certificate that the first one gave
				if err := first.Renew(t.Context()); err != nil {
					t.Fatal(err)
				}
				if p, _, err := identify(t, first.Client(), s.url); err != nil || !p.Jobs {
					t.Errorf("the server sees %+v, %v", p, err)
				}
			}
			if n, err := s.reg.Node(t.Context(), first.Node()); err != nil || n.MachineID != jobs.Machine || n.Name != blade.Name || n.Cluster != "lab" {
				t.Errorf("the ledger has %+v, %v", n, err)
			}
		})
	}
	if p, _, err := identify(t, s.enrolled(s.agents(1), blade).Client(), s.url); err != nil || p.Jobs {
		t.Errorf("the server sees the machine as %+v, %v", p, err)
	}
}

// TestVolumesMachine: no machine enrolls as the pseudo-node of a cluster's volumes, by its machine id or its name.
func TestVolumesMachine(t *testing.T) {
	s := serve(t, ca.Config{})
	n := registry.VolumesNode("ledger", "c")
	for _, c := range [][2]string{{n.MachineID, "m"}, {"m", n.Name}} {
		if _, err := s.EnrollLocal(t.Context(), c[0], "b", c[1]); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("machine %q, name %q: %v", c[0], c[1], err)
		}
	}
	if _, err := s.EnrollLocal(t.Context(), "m", "b", "volumes"); err != nil {
		t.Error(err)
	}
}
