package ca

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/token"
)

var morning = time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)

// tokenRegistry has one token, and counts its uses.
type tokenRegistry struct {
	Registry
	token registry.Token
	err   error // of reading the tokens
	used  int
}

func (r *tokenRegistry) Tokens(context.Context) ([]registry.Token, error) {
	return []registry.Token{r.token}, r.err
}

func (*tokenRegistry) RevokedNodes(context.Context) ([]string, error) { return nil, nil }

func (*tokenRegistry) Enrolled(context.Context, string, string) (string, error) { return "", nil }

func (r *tokenRegistry) UseToken(context.Context, string, [32]byte, registry.Role, string, time.Time) (registry.Token, error) {
	r.used++
	return r.token, nil
}

// TestChargeToken checks that a claim that is repeated within an hour uses its token once, and
// that no claim is granted if the tokens cannot be read.
func TestChargeToken(t *testing.T) {
	tok := token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3})
	reg := &tokenRegistry{token: registry.Token{ID: tok.ID(), Hash: tok.Hash(), Role: registry.Agent, Cluster: "lab", Uses: -1}}
	a := &Authority{reg: reg, log: slog.New(slog.DiscardHandler), enrollments: enrollments{recent: map[[32]byte]enrollment{}}}
	a.cfg.LiveBoot = func(string) (string, bool) { return "", false }
	a.registryCache.reg = reg
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	claim := token.Claim{Token: tok.Reveal(), Machine: "m", Boot: "b", Name: "n", Role: registry.Agent}
	for _, c := range []struct {
		after time.Duration
		boot  string
		used  int
	}{
		{0, "b", 1}, {time.Minute, "b", 1}, {time.Hour - 1, "b", 1}, {time.Hour - 1, "b2", 2}, {time.Hour, "b", 3}, {2*time.Hour - 1, "b", 3}, {2 * time.Hour, "b", 4},
	} {
		claim.Boot = c.boot
		by, err := a.chargeToken(t.Context(), claim, public, netip.Addr{}, morning.Add(c.after))
		if err != nil || by.cluster != "lab" || by.role != registry.Agent || by.actor != tok.ID() || reg.used != c.used {
			t.Errorf("after %v, boot %s: %+v, %v, %d uses, want %d", c.after, c.boot, by, err, reg.used, c.used)
		}
	}
	a.registryCache.invalidate()
	reg.err = errors.New("file is not a database")
	if by, err := a.chargeToken(t.Context(), claim, public, netip.Addr{}, morning); !errors.Is(err, fault.ErrUnavailable) || reg.used != 4 {
		t.Errorf("without a registry: %+v, %v, %d uses", by, err, reg.used)
	}
}

// TestChargeNode checks how many clones a node may create in a day, and that a claim that is
// repeated within an hour is not another one.
func TestChargeNode(t *testing.T) {
	a := &Authority{enrollments: enrollments{recent: map[[32]byte]enrollment{}, made: map[string][]time.Time{}}}
	charge := func(claim byte, at time.Time) error {
		by := authorization{node: "N1", root: "N0", claimKey: [32]byte{claim}}
		err := a.chargeNode(by, at)
		if err == nil && a.recent[by.claimKey].node == "" {
			a.recent[by.claimKey] = enrollment{at, "a node"}
			a.made[by.root] = append(a.made[by.root], at)
		}
		return err
	}
	for i := range byte(10) {
		at := morning
		if i == 0 {
			at = morning.Add(-2)
		}
		if err := charge(i, at); err != nil {
			t.Fatalf("clone %d: %v", i, err)
		}
	}
	limited := func(err error, want time.Duration) {
		t.Helper()
		if wait, _ := fault.RetryAfter(err); wait != want {
			t.Errorf("%v, wait %v, want %v", err, wait, want)
		}
	}
	limited(charge(10, morning), 24*time.Hour-2)
	limited(charge(9, morning.Add(time.Hour-1)), 0)
	limited(charge(9, morning.Add(time.Hour)), 23*time.Hour-2)
	limited(charge(10, morning.Add(24*time.Hour-3)), 1)
	limited(charge(10, morning.Add(24*time.Hour-2)), 0)
	limited(charge(11, morning.Add(24*time.Hour-1)), 1)
	limited(charge(11, morning.Add(24*time.Hour)), 0)
	if n := len(a.made["N0"]); n != 2 {
		t.Errorf("%d clones are remembered, want those of the last day", n)
	}
}

// newNodes is a registry that knows no machine.
type newNodes struct{ Registry }

func (newNodes) NodesByMachine(context.Context, string) ([]registry.Node, error) { return nil, nil }
func (newNodes) PutNode(context.Context, registry.Node) error                    { return nil }
func (newNodes) Audit(context.Context, registry.Audit) error                     { return nil }

// TestJobNodesPerDay checks that a token for jobs enrolls those of a limited number of machines in a
// day, whatever machine ids are claimed, and that other tokens go on.
func TestJobNodesPerDay(t *testing.T) {
	a := &Authority{reg: newNodes{}, log: slog.New(slog.DiscardHandler), enrollments: enrollments{made: map[string][]time.Time{}}}
	enroll := func(by authorization, at time.Time) error {
		n := registry.Node{MachineID: registry.JobsMachineID("m"), Cluster: "lab", At: at}
		return a.assignNode(t.Context(), &n, by)
	}
	jobs := authorizationBy(registry.Token{ID: "T", Role: registry.Job, Cluster: "lab"}, [32]byte{})
	for i := range 1000 {
		if err := enroll(jobs, morning.Add(time.Duration(i))); err != nil {
			t.Fatalf("node %d: %v", i, err)
		}
	}
	err := enroll(jobs, morning.Add(time.Hour))
	if wait, _ := fault.RetryAfter(err); !errors.Is(err, fault.ErrUnavailable) || wait != 23*time.Hour {
		t.Errorf("node 1001: %v, wait %v", err, wait)
	}
	for _, by := range []authorization{authorizationBy(registry.Token{ID: "T2", Role: registry.Job}, [32]byte{}), authorizationBy(registry.Token{ID: "T", Role: registry.Agent}, [32]byte{})} {
		if err := enroll(by, morning.Add(time.Hour)); err != nil {
			t.Errorf("another token: %v", err)
		}
	}
	if err := enroll(jobs, morning.Add(24*time.Hour)); err != nil {
		t.Errorf("a day later: %v", err)
	}
}

// TestRememberClaim checks that claims are forgotten after an hour, and not before.
func TestRememberClaim(t *testing.T) {
	a := &Authority{enrollments: enrollments{recent: map[[32]byte]enrollment{}}}
	for i, c := range []struct {
		after time.Duration
		known int
	}{{0, 1}, {time.Hour - 1, 2}, {time.Hour, 2}, {2*time.Hour - 1, 2}, {9 * time.Hour, 1}} {
		a.rememberClaim([32]byte{byte(i)}, morning.Add(c.after))
		if _, ok := a.recent[[32]byte{byte(i)}]; !ok || len(a.recent) != c.known {
			t.Errorf("after %v: %d claims, want %d with the latest", c.after, len(a.recent), c.known)
		}
	}
}

// TestMatchNode checks which node a machine is, of those that it may be.
func TestMatchNode(t *testing.T) {
	now := registry.Node{Name: "web", Boot: "now", KeyHash: "key"}
	node := func(id, name, boot, key string, at int) registry.Node {
		return registry.Node{ID: id, Name: name, Boot: boot, KeyHash: key, At: morning.Add(time.Duration(at))}
	}
	for name, c := range map[string]struct {
		nodes []registry.Node
		live  map[string]string
		want  string
	}{
		"none":                       {nil, nil, ""},
		"the only one":               {[]registry.Node{node("A", "old", "old", "", 0)}, nil, "A"},
		"name":                       {[]registry.Node{node("A", "old", "old", "", 9), node("B", "web", "old", "", 0)}, nil, "B"},
		"boot before name":           {[]registry.Node{node("A", "web", "old", "", 9), node("B", "old", "now", "", 0)}, nil, "B"},
		"sends before boot and name": {[]registry.Node{node("A", "web", "now", "", 9), node("B", "old", "old", "", 0)}, map[string]string{"B": "now"}, "B"},
		"key before all":             {[]registry.Node{node("A", "web", "now", "other", 9), node("B", "old", "old", "key", 0)}, map[string]string{"A": "now"}, "B"},
		"sends with another boot":    {[]registry.Node{node("A", "web", "old", "", 0), node("B", "old", "old", "", 9)}, map[string]string{"B": "other"}, "A"},
		"the latest":                 {[]registry.Node{node("A", "web", "now", "", 1), node("B", "web", "now", "", 0)}, nil, "A"},
		"the larger id":              {[]registry.Node{node("A", "web", "now", "", 0), node("B", "web", "now", "", 0)}, nil, "B"},
	} {
		for range 2 {
			slices.Reverse(c.nodes)
			if id := matchNode(c.nodes, now, func(id string) (string, bool) { boot, ok := c.live[id]; return boot, ok }); id != c.want {
				t.Errorf("%s: %s, want %s", name, id, c.want)
			}
		}
	}
}

// TestProblemStatus checks the status codes that are this package's own.
func TestProblemStatus(t *testing.T) {
	a := &Authority{log: slog.New(slog.DiscardHandler)}
	for _, c := range []struct {
		err    error
		status int
		wait   string
	}{
		{&fault.RetryError{Err: fault.ErrUnavailable, After: time.Minute}, http.StatusTooManyRequests, "60"},
		{fault.ErrUnavailable, http.StatusServiceUnavailable, "5"},
		{&http.MaxBytesError{Limit: 1}, http.StatusRequestEntityTooLarge, ""},
		{unidentifiedError{fault.ErrDenied}, http.StatusUnauthorized, ""},
		{fault.ErrDenied, http.StatusForbidden, ""},
	} {
		w := httptest.NewRecorder()
		a.writeProblem(w, httptest.NewRequest(http.MethodPost, "/v1/enroll", nil), c.err)
		if w.Code != c.status || w.Header().Get("Retry-After") != c.wait {
			t.Errorf("%v: %d, retry after %q, want %d, %q", c.err, w.Code, w.Header().Get("Retry-After"), c.status, c.wait)
		}
	}
}
