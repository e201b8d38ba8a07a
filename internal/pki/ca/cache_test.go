package ca

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/token"
)

// TestVerifiedCache checks that a certificate is verified once, and how many are remembered.
func TestVerifiedCache(t *testing.T) {
	now := time.Now()
	authority := newCA(now)
	cert, err := authority.signClient(now, time.Hour, registry.Node{ID: "N1", Cluster: "lab"}, registry.Agent, newKey().Public())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority.cert)
	for _, c := range []struct{ before, after int }{{0, 1}, {1<<14 - 1, 1 << 14}, {1 << 14, 1}} {
		v := verifiedCache{good: map[[sha256.Size]byte]bool{}}
		for i := range c.before {
			v.good[[sha256.Size]byte(binary.BigEndian.AppendUint64(make([]byte, sha256.Size-8), uint64(i)))] = true
		}
		if err := v.check(x509.NewCertPool(), cert); err == nil || len(v.good) != c.before {
			t.Errorf("by no authority: %v, %d are remembered", err, len(v.good))
		}
		if err := v.check(roots, cert); err != nil || len(v.good) != c.after {
			t.Errorf("%v; %d are remembered after %d, want %d", err, len(v.good), c.before, c.after)
		}
		if err := v.check(x509.NewCertPool(), cert); err != nil {
			t.Errorf("a second time: %v", err)
		}
	}
}

// countingRegistry counts how often it is read.
type countingRegistry struct {
	Registry
	err    error
	reads  int
	audits int
}

func (r *countingRegistry) Audit(context.Context, registry.Audit) error {
	r.audits++
	return nil
}

func (r *countingRegistry) Tokens(context.Context) ([]registry.Token, error) {
	r.reads++
	return nil, r.err
}

func (r *countingRegistry) RevokedNodes(context.Context) ([]string, error) {
	return []string{"gone"}, r.err
}

// TestRegistryCache checks for how long results and errors of the registry are used.
func TestRegistryCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := &countingRegistry{}
		a := &Authority{reg: reg}
		a.registryCache.reg = reg
		read := func(reads int, want error) {
			t.Helper()
			if err := a.CheckAllowed(t.Context(), "N1"); !errors.Is(err, want) || reg.reads != reads {
				t.Errorf("%v after %d reads, want %v after %d", err, reg.reads, want, reads)
			}
			if err := a.CheckAllowed(t.Context(), "gone"); want == nil && !errors.Is(err, fault.ErrDenied) {
				t.Errorf("a revoked node: %v", err)
			}
		}
		read(1, nil)
		time.Sleep(5*time.Second - 1)
		read(1, nil)
		time.Sleep(time.Nanosecond)
		reg.err = errors.New("disk")
		read(2, fault.ErrUnavailable)
		time.Sleep(time.Second - 1)
		read(2, fault.ErrUnavailable)
		time.Sleep(time.Nanosecond)
		reg.err = nil
		read(3, nil)
		a.registryCache.invalidate()
		read(4, nil)
	})
}

// fullRegistry has tokens with the first ids that are drawn.
type fullRegistry struct {
	Registry
	taken int
	ids   map[string]bool
}

func (r *fullRegistry) PutToken(_ context.Context, t registry.Token) error {
	if r.ids[t.ID] = true; len(r.ids) <= r.taken {
		return fault.ErrConflict
	}
	return nil
}

func (*fullRegistry) Audit(context.Context, registry.Audit) error { return nil }

// TestTakenID checks that a token gets another id if its first ones are taken.
func TestTakenID(t *testing.T) {
	for taken, want := range map[int]error{0: nil, 3: nil, 4: fault.ErrConflict, 9: fault.ErrConflict} {
		reg := &fullRegistry{taken: taken, ids: map[string]bool{}}
		a := &Authority{reg: reg, ca: newCA(time.Now())}
		text, made, err := a.Tokens().Create(t.Context(), registry.Token{Role: registry.Viewer})
		if !errors.Is(err, want) || len(reg.ids) != min(taken+1, 4) || want == nil && !reg.ids[made.ID] {
			t.Errorf("%d are taken: %v after %d ids", taken, err, len(reg.ids))
		}
		if tok, err := token.Parse(text); want == nil && (err != nil || tok.ID() != made.ID || tok.Hash() != made.Hash) {
			t.Errorf("%s is not that of %+v: %v", text, made, err)
		}
	}
}

// TestShortestWait checks that a client that sends wrong tokens waits to the nanosecond.
func TestShortestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, now := netip.MustParseAddr("10.0.0.1"), time.Now()
		for wait, want := range map[time.Duration]error{0: fault.ErrDenied, 1: fault.ErrUnavailable} {
			reset := func() *Authority {
				reg := &countingRegistry{}
				a := &Authority{reg: reg, log: slog.New(slog.DiscardHandler)}
				a.registryCache.reg = reg
				a.wrongTokens.one = map[netip.Prefix]bucket{netip.PrefixFrom(from, 32): {now.Add(9*10*time.Second + wait)}}
				return a
			}
			claim := token.Claim{Token: token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3}).Reveal()}
			if _, err := reset().chargeToken(t.Context(), claim, newKey().Public(), from, now); !errors.Is(err, want) {
				t.Errorf("a wrong token that waits %v: %v, want %v", wait, err, want)
			}
			r := httptest.NewRequest("GET", "https://localhost/v1/self", nil)
			r.RemoteAddr = "10.0.0.1:1"
			r.Header.Set("Authorization", "Bearer metejob_x")
			if _, err := reset().IdentifyJob(r); !errors.Is(err, want) {
				t.Errorf("a wrong job token that waits %v: %v, want %v", wait, err, want)
			}
			a := reset()
			if err := a.recordDenial(t.Context(), "T1", claim, fault.ErrDenied, true, from, now); err != nil || a.reg.(*countingRegistry).audits != int(1-wait) {
				t.Errorf("a denial that waits %v: %v, %d audit lines", wait, err, a.reg.(*countingRegistry).audits)
			}
		}
	})
}

// TestLimits states the limits of wrong tokens.
func TestLimits(t *testing.T) {
	if oneBurst != 10 || oneEvery != 10*time.Second || allBurst != 100 || allEvery != time.Second || maxAddresses != 4096 {
		t.Error("docs/security.md and the tests state other limits")
	}
	var l limiter
	now := morning
	for i := range 5000 {
		now = now.Add(time.Second)
		if wait := l.take(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(i)))), now); wait != 0 || len(l.one) > 4096 {
			t.Fatalf("address %d waits %v; %d are remembered", i, wait, len(l.one))
		}
	}
	// A network of 64 bits is one client.
	for i, want := range []time.Duration{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10 * time.Second} {
		addr := netip.MustParseAddr("2001:db8::1")
		if i%2 == 1 {
			addr = netip.MustParseAddr("2001:db8:0:0:8000::1")
		}
		if wait := l.take(addr, now.Add(time.Hour)); wait != want {
			t.Errorf("request %d of a network waits %v, want %v", i, wait, want)
		}
	}
	if wait := l.take(netip.MustParseAddr("2001:db8:0:1::1"), now.Add(time.Hour)); wait != 0 {
		t.Errorf("the next network waits %v", wait)
	}
}
