package ca_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/pki/token"
)

// TestRenewWhileBusy checks that requests continue while certificates are renewed.
func TestRenewWhileBusy(t *testing.T) {
	s := serve(t, ca.Config{})
	i := s.enrolled(s.agents(1), blade)
	node, client := i.Node(), i.Client()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	served := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if p, _, err := identify(t, client, s.url); err != nil || p.Node != node {
					t.Errorf("%+v, %v", p, err)
					cancel()
				}
				select {
				case served <- struct{}{}:
				case <-ctx.Done():
				}
			}
		})
	}
	for range 10 {
		if err := i.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		for range 8 {
			select {
			case <-served:
			case <-ctx.Done():
			}
		}
	}
	cancel()
	wg.Wait()
}

// ca reads the authority's key from its files.
func (s *server) ca() (*x509.Certificate, *ecdsa.PrivateKey) {
	s.t.Helper()
	p, err := tls.LoadX509KeyPair(filepath.Join(s.dir, "ca.pem"), filepath.Join(s.dir, "ca.pem"))
	if err != nil {
		s.t.Fatal(err)
	}
	return p.Leaf, p.PrivateKey.(*ecdsa.PrivateKey)
}

// forge returns a client with a modified certificate, which trusts any server.
func (s *server) forge(change func(*x509.Certificate), selfSigned bool) *http.Client {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		Subject: pkix.Name{CommonName: "N1", OrganizationalUnit: []string{"agent"}}, URIs: []*url.URL{{Scheme: "mete", Host: "lab", Path: "/N1"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	change(c)
	ca, signer := s.ca()
	if selfSigned {
		ca, signer = c, key
	}
	return insecure(&tls.Certificate{Certificate: [][]byte{certificate(s.t, c, ca, key.Public(), signer).Raw}, PrivateKey: key})
}

// insecure returns a client that trusts any server, and presents own regardless of what the server
// accepts.
func insecure(own *tls.Certificate) *http.Client {
	cfg := &tls.Config{InsecureSkipVerify: true}
	if own != nil {
		// Regardless of what the server accepts.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil }
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}}
}

func TestCertificates(t *testing.T) {
	s := serve(t, ca.Config{})
	if _, status, err := identify(t, insecure(nil), s.url); status != 401 {
		t.Errorf("without anything: %d, %v, want 401", status, err)
	}
	if p, status, err := identify(t, s.forge(func(*x509.Certificate) {}, false), s.url); status != 200 || p.Node != "N1" {
		t.Fatalf("a good one: %+v, %d, %v", p, status, err)
	}
	for name, c := range map[string]struct {
		change func(*x509.Certificate)
		self   bool
		status int
	}{
		"self-signed":    {func(*x509.Certificate) {}, true, 401},
		"ended":          {func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, false, 401},
		"of the future":  {func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }, false, 401},
		"server's":       {func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, false, 401},
		"two nodes":      {func(c *x509.Certificate) { c.URIs[0].Path = "/N2" }, false, 403},
		"no node":        {func(c *x509.Certificate) { c.Subject.CommonName, c.URIs[0].Path = "", "/" }, false, 403},
		"no URI":         {func(c *x509.Certificate) { c.URIs = nil }, false, 403},
		"viewer":         {func(c *x509.Certificate) { c.Subject.OrganizationalUnit[0] = "viewer" }, false, 403},
		"no role":        {func(c *x509.Certificate) { c.Subject.OrganizationalUnit = nil }, false, 403},
		"other's scheme": {func(c *x509.Certificate) { c.URIs[0].Scheme = "spiffe" }, false, 403},
	} {
		if p, status, err := identify(t, s.forge(c.change, c.self), s.url); status != c.status || err == nil {
			t.Errorf("%s: %+v, %d, %v, want %d", name, p, status, err, c.status)
		}
	}
	// A certificate from another server counts as none.
	other := serve(t, ca.Config{})
	i := other.enrolled(other.agents(1), blade)
	if _, _, err := identify(t, i.Client(), s.url); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "another certificate authority") {
		t.Errorf("the client talks to another authority's server: %v", err)
	}
	// The authority's own certificate, and one signed by a node.
	caText, key := s.ca()
	own := &tls.Certificate{Certificate: [][]byte{caText.Raw}, PrivateKey: key}
	if _, status, err := identify(t, insecure(own), s.url); status != 401 && status != 403 {
		t.Errorf("the authority's own: %d, %v", status, err)
	}
	template := func() *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			Subject: pkix.Name{CommonName: "N1", OrganizationalUnit: []string{"agent"}}, URIs: []*url.URL{{Scheme: "mete", Host: "lab", Path: "/N1"}},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
	}
	node := certificate(t, template(), caText, key.Public(), key)
	signed := template()
	signed.Subject.CommonName, signed.URIs[0].Path = "N2", "/N2"
	chain := &tls.Certificate{Certificate: [][]byte{certificate(t, signed, node, key.Public(), key).Raw, node.Raw}, PrivateKey: key}
	if _, status, err := identify(t, insecure(chain), s.url); status != 401 {
		// The key is the authority's, so that only the chain is wrong.
		t.Errorf("signed by a node: %d, %v, want 401", status, err)
	}
	// Each request is checked: a connection may outlive its certificate.
	brief := template()
	brief.NotAfter = time.Now().Add(-time.Second)
	r := httptest.NewRequest("GET", "/who", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate(t, brief, caText, key.Public(), key)}}
	for range 2 { // the second time it is known
		if p, err := s.Identify(r); !ca.IsUnidentified(err) || !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "is valid from") {
			t.Errorf("on an old connection: %+v, %v", p, err)
		}
	}
}

// TestStolenCertificate checks that a client must have the key of its certificate.
func TestStolenCertificate(t *testing.T) {
	s := serve(t, ca.Config{})
	ca, key := s.ca()
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := certificate(t, &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		Subject: pkix.Name{CommonName: "N1", OrganizationalUnit: []string{"agent"}}, URIs: []*url.URL{{Scheme: "mete", Host: "lab", Path: "/N1"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, key.Public(), key)
	if p, status, err := identify(t, insecure(&tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: other}), s.url); err == nil {
		t.Errorf("%+v, %d", p, status)
	}
}

// TestEndedIdentity checks that a machine with an expired certificate returns as the same node with
// a token, and gets a hint without one.
func TestEndedIdentity(t *testing.T) {
	s := serve(t, ca.Config{})
	dir, tok := t.TempDir(), s.agents(-1)
	i := identity(t, dir, s.url, tok, blade)
	if err := i.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	node, path := i.Node(), filepath.Join(dir, "identity.json")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var f map[string]string
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(f["certificate"]))
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	caText, key := s.ca()
	c.NotAfter = time.Now().Add(-time.Minute)
	f["certificate"] = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate(t, c, caText, c.PublicKey, key).Raw}))
	if b, err = json.Marshal(f); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	late := identity(t, dir, s.url, token.Token{}, blade)
	if err := late.Enroll(t.Context()); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "ended on") || !strings.Contains(fault.Hint(err), "mete token create") {
		t.Errorf("without a token: %v (hint %q)", err, fault.Hint(err))
	}
	s.expire(node)
	back := identity(t, dir, s.url, tok, blade)
	if err := back.Enroll(t.Context()); err != nil || back.Node() != node {
		t.Errorf("with a token: %v; node %s, want %s", err, back.Node(), node)
	}
	// A token of a new server moves the machine there.
	anew := serve(t, ca.Config{})
	if err := identity(t, dir, anew.url, token.Token{}, blade).Renew(t.Context()); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "another certificate authority") {
		t.Errorf("renewal by another server: %v", err)
	}
	moved := identity(t, dir, anew.url, anew.agents(1), blade)
	if err := moved.Enroll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p, _, err := identify(t, moved.Client(), anew.url); err != nil || p.Node != moved.Node() {
		t.Errorf("%+v, %v", p, err)
	}
}

func certificate(t *testing.T, c, parent *x509.Certificate, public any, signer *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, parent, public, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestTransport(t *testing.T) {
	s := serve(t, ca.Config{})
	old := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}
	if c, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), old); err == nil {
		t.Errorf("TLS 1.2 works: %v", c.ConnectionState().Version)
	}
	resp, err := http.Get(strings.Replace(s.url, "https", "http", 1) + "/who")
	if err != nil || resp.StatusCode != 400 {
		t.Errorf("plain HTTP: %v, %v", resp, err)
	}
	shut(t, resp)
	plain := strings.Replace(s.url, "https", "http", 1)
	if err := identity(t, t.TempDir(), plain, s.agents(1), blade).Enroll(t.Context()); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(fault.Hint(err), "https://") {
		t.Errorf("enrolling by plain HTTP: %v (hint %q)", err, fault.Hint(err))
	}
	local := serve(t, ca.Config{Local: true})
	if err := identity(t, t.TempDir(), strings.Replace(local.url, "http", "https", 1), s.agents(1), blade).Enroll(t.Context()); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(fault.Hint(err), "http://") {
		t.Errorf("TLS to a plain server: %v (hint %q)", err, fault.Hint(err))
	}
	if used := s.reg.tokens[0].Uses; used != 1 {
		t.Errorf("the token has %d uses left", used)
	}
}
