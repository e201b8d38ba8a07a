package ca_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/pki/token"
)

const (
	nodeA = "01J0000000000000000000000A"
	nodeB = "01J0000000000000000000000B"
)

// jobOf returns a job of a node whose token is valid for a duration.
func jobOf(node string, left time.Duration) token.Job {
	return token.Job{Workload: workload.NewID(node, workload.Job, "1"), Node: node, Ends: time.Now().Add(left).UTC().Truncate(time.Second)}
}

// shows returns a request over TLS with a bearer text, if any.
func shows(text, from string) *http.Request {
	r := httptest.NewRequest("GET", "/v1/self", nil)
	r.RemoteAddr, r.TLS = from+":1", &tls.ConnectionState{}
	if text != "" {
		r.Header.Set("Authorization", "Bearer "+text)
	}
	return r
}

func TestIdentifyJob(t *testing.T) {
	s := serve(t, ca.Config{})
	other := serve(t, ca.Config{})
	a, b := jobOf(nodeA, time.Hour), jobOf(nodeB, time.Hour)
	key := s.JobKey(nodeA)
	if j, err := s.IdentifyJob(shows(key.Sign(a), "10.0.0.1")); err != nil || j != a {
		t.Fatalf("%+v, %v, want %+v", j, err, a)
	}
	foreign := a
	foreign.Workload = workload.NewID(nodeA, workload.Job, "2")
	swapped := strings.Replace(key.Sign(a), string(a.Workload), string(foreign.Workload), 1)
	moved := strings.Replace(key.Sign(a), nodeA, nodeB, 1)
	gone := jobOf("01J0000000000000000000000C", time.Hour)
	s.reg.revoked = append(s.reg.revoked, gone.Node)
	viewer := s.token(registry.Token{Role: registry.Viewer}).Reveal()
	for name, c := range map[string]struct {
		text         string
		unidentified bool // 401, else 403
	}{
		"nothing":                  {"", true},
		"ended":                    {key.Sign(jobOf(nodeA, -time.Second)), true},
		"of another server":        {other.JobKey(nodeA).Sign(a), true},
		"of another node's key":    {key.Sign(b), true},
		"of another workload":      {swapped, true},
		"of another node":          {moved, true},
		"longer than it was given": {key.Sign(a)[:len(key.Sign(a))-41] + "zzzzzzzz" + key.Sign(a)[len(key.Sign(a))-33:], true},
		"cut off":                  {key.Sign(a)[:70], true},
		"an unknown token":         {token.New([5]byte{1}, [20]byte{2}, s.CA()).Reveal(), true},
		"a viewer's":               {viewer, false},
		"of a node that is gone":   {s.JobKey(gone.Node).Sign(gone), false},
	} {
		j, err := s.IdentifyJob(shows(c.text, "10.0.0.9"))
		if !errors.Is(err, fault.ErrDenied) || ca.IsUnidentified(err) != c.unidentified {
			t.Errorf("%s: %+v, %v, unidentified %t", name, j, err, ca.IsUnidentified(err))
		}
	}
	// It identifies no client of other endpoints.
	if p, err := s.Identify(shows(key.Sign(a), "10.0.0.1")); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a job's token is %+v", p)
	}
	// Without TLS it is accepted only from this machine, if that is trusted.
	plain := shows(key.Sign(a), "127.0.0.1")
	plain.TLS, plain.Host = nil, "localhost"
	if _, err := s.IdentifyJob(plain); !ca.IsUnidentified(err) {
		t.Errorf("without TLS: %v", err)
	}
	local := serve(t, ca.Config{Local: true})
	plain.Header.Set("Authorization", "Bearer "+local.JobKey(nodeA).Sign(a))
	if j, err := local.IdentifyJob(plain); err != nil || j != a {
		t.Errorf("on the loopback: %+v, %v", j, err)
	}
	plain.RemoteAddr = "10.0.0.1:1"
	if _, err := local.IdentifyJob(plain); !ca.IsUnidentified(err) {
		t.Errorf("from elsewhere without TLS: %v", err)
	}
}

// TestIdentifyJobLimit checks that wrong tokens are limited in rate, and valid ones never.
func TestIdentifyJobLimit(t *testing.T) {
	s := serve(t, ca.Config{})
	right := s.JobKey(nodeA).Sign(jobOf(nodeA, time.Hour))
	var held error
	for i := 0; held == nil; i++ {
		wrong := token.JobKeyOf([]byte(strconv.Itoa(i)), nodeA).Sign(jobOf(nodeA, time.Hour))
		if _, err := s.IdentifyJob(shows(wrong, "10.0.0.1")); !ca.IsUnidentified(err) {
			held = err
		}
	}
	if _, ok := fault.RetryAfter(held); !ok || !errors.Is(held, fault.ErrUnavailable) {
		t.Errorf("after many wrong ones: %v", held)
	}
	if _, err := s.IdentifyJob(shows(right, "10.0.0.1")); err != nil {
		t.Errorf("a right one: %v", err)
	}
}

// TestSelfOfEnrolled checks that the key from enrollment signs tokens that the server accepts, also
// after renewal and restart.
func TestSelfOfEnrolled(t *testing.T) {
	for name, cfg := range map[string]ca.Config{"TLS": {}, "loopback": {Local: true}} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, cfg)
			tok := token.Token{}
			if !cfg.Local {
				tok = s.agents(-1)
			}
			dir := t.TempDir()
			i := identity(t, dir, s.url, tok, blade)
			if v := i.Self("", "x"); v != (token.SelfAccess{}) {
				t.Errorf("before it is enrolled: %+v", v)
			}
			if err := i.Enroll(t.Context()); err != nil {
				t.Fatal(err)
			}
			id := workload.NewID(i.Node(), workload.Job, "1")
			check := func(when string) {
				t.Helper()
				v := i.Self(i.Node(), id)
				if v.URL != s.url+"/v1/self" || (v.CA == string(s.CAPEM())) == cfg.Local {
					t.Fatalf("%s: %+v", when, v)
				}
				r := shows(v.Token, "127.0.0.1")
				if r.Host = "localhost"; cfg.Local {
					r.TLS = nil
				}
				if j, err := s.IdentifyJob(r); err != nil || j.Workload != id || j.Node != i.Node() || time.Until(j.Ends) < token.JobLife-time.Minute {
					t.Errorf("%s: %+v, %v", when, j, err)
				}
			}
			check("enrolled")
			if err := i.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			check("renewed")
			i = identity(t, dir, s.url, tok, blade)
			check("started again")
			if v := i.Self(nodeB, id); v != (token.SelfAccess{}) {
				t.Errorf("for another node: %+v", v)
			}
		})
	}
}

// TestJobKeyStays checks that keys stay the same after a restart of the server.
func TestJobKeyStays(t *testing.T) {
	dir := t.TempDir()
	a, b := open(t, ca.Config{Dir: dir}, &memory{}), open(t, ca.Config{Dir: dir}, &memory{})
	if a.JobKey(nodeA) != b.JobKey(nodeA) || a.JobKey(nodeA) == a.JobKey(nodeB) {
		t.Error("keys of nodes differ after a restart")
	}
}

// TestForeignToken: a token of another issuer is taken alone and over TLS only, and reads nothing but /v1/self.
func TestForeignToken(t *testing.T) {
	s := serve(t, ca.Config{})
	const text = "eyJh.eyJi.c"
	if got, ok := s.ForeignToken(shows(text, "10.0.0.1")); !ok || got != text {
		t.Errorf("%q, %v", got, ok)
	}
	plain, both := shows(text, "10.0.0.1"), shows(text, "10.0.0.1")
	plain.TLS = nil
	both.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
	for name, r := range map[string]*http.Request{"without TLS": plain, "with a certificate": both, "a job's": shows(s.JobKey(nodeA).Sign(jobOf(nodeA, time.Hour)), "10.0.0.1"), "a viewer's": shows(s.token(registry.Token{Role: registry.Viewer}).Reveal(), "10.0.0.1"), "none": shows("", "10.0.0.1")} {
		if got, ok := s.ForeignToken(r); ok {
			t.Errorf("%s: %q", name, got)
		}
	}
	for name, r := range map[string]*http.Request{"without TLS": plain, "with a certificate": both} {
		if _, err := s.IdentifyJob(r); !errors.Is(err, fault.ErrDenied) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Identify(shows(text, "10.0.0.1")); !errors.Is(err, fault.ErrDenied) || !ca.IsUnidentified(err) || !strings.Contains(fault.Hint(err), "/v1/self") {
		t.Errorf("%v", err)
	}
}
