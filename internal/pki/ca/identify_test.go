package ca_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
)

func TestRevokedNode(t *testing.T) {
	s := serve(t, ca.Config{})
	i := s.enrolled(s.agents(-1), blade)
	client := i.Client()
	if _, status, err := identify(t, client, s.url); status != 200 {
		t.Fatal(status, err)
	}
	if err := s.RevokeNode(t.Context(), i.Node()); err != nil {
		t.Fatal(err)
	}
	if _, status, err := identify(t, client, s.url); status != 403 {
		t.Errorf("%d, %v, want 403 at once, on the same connection", status, err)
	}
	for name, f := range map[string]func(context.Context) error{"Renew": i.Renew, "Reenroll": i.Reenroll} {
		if err := f(t.Context()); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "revoked") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCertificateExpiry checks that the end of a node's certificate is known once the node has shown it.
func TestCertificateExpiry(t *testing.T) {
	s := serve(t, ca.Config{})
	c := leafOf(t, s, "N1")
	if at, ok := s.CertificateExpiry("N1"); ok {
		t.Errorf("it ends at %v, before it was shown", at)
	}
	r := httptest.NewRequest(http.MethodGet, "https://localhost/", nil)
	r.TLS.PeerCertificates = []*x509.Certificate{c}
	if _, err := s.Identify(r); err != nil {
		t.Fatal(err)
	}
	if at, ok := s.CertificateExpiry("N1"); !ok || !at.Equal(c.NotAfter) {
		t.Errorf("it ends at %v (%v), want %v", at, ok, c.NotAfter)
	}
}

func TestViewer(t *testing.T) {
	s := serve(t, ca.Config{})
	reader := func(tok token.Token) *http.Client {
		c, err := enroll.ReaderClient(s.url, tok)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	all, lab := s.token(registry.Token{Role: registry.Viewer}), s.token(registry.Token{Role: registry.Viewer, Cluster: "lab", Expires: time.Now().Add(time.Hour)})
	for _, c := range []struct {
		tok  token.Token
		want token.Principal
	}{{all, token.Principal{Role: registry.Viewer, Token: all.ID()}}, {lab, token.Principal{Role: registry.Viewer, Cluster: "lab", Token: lab.ID()}}} {
		if p, _, err := identify(t, reader(c.tok), s.url); err != nil || p != c.want {
			t.Errorf("%+v, %v, want %+v", p, err, c.want)
		}
	}
	agent, everything := s.agents(-1), s.token(registry.Token{Role: registry.Viewer})
	if _, status, err := identify(t, reader(everything), s.url); status != 200 {
		t.Errorf("a token that was made after a request: %d, %v", status, err)
	}
	unknown := token.New([5]byte{1}, [20]byte{2}, s.CA())
	s.reg.mu.Lock()
	s.reg.tokens[1].Expires = time.Now()
	s.reg.mu.Unlock()
	if err := s.Tokens().Revoke(t.Context(), all.ID()); err != nil { // it is worth nothing at once
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		tok    token.Token
		status int
	}{"revoked": {all, 403}, "ended": {lab, 403}, "agent's": {agent, 403}, "unknown": {unknown, 401}, "wrong secret": {guess(t, everything), 401}} {
		if _, status, err := identify(t, reader(c.tok), s.url); status != c.status {
			t.Errorf("%s: %d, %v, want %d", name, status, err, c.status)
		}
	}
	if _, err := enroll.ReaderClient(s.url, token.Token{}); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("no token: %v", err)
	}
	other := serve(t, ca.Config{})
	if _, _, err := identify(t, reader(other.token(registry.Token{Role: registry.Viewer})), s.url); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a token of another server was sent to this one: %v", err)
	}
	// A truncated token, and a token in addition to a certificate.
	for name, c := range map[string]struct {
		client *http.Client
		header string
		status int
	}{
		"cut off": {insecure(nil), "Bearer " + agent.Reveal()[:30], 401},
		"both":    {s.forge(func(*x509.Certificate) {}, false), "bearer " + s.token(registry.Token{Role: registry.Viewer}).Reveal(), 403},
		"basic":   {insecure(nil), "Basic abc", 401},
	} {
		r, err := http.NewRequest("GET", s.url+"/who", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", c.header)
		resp, err := c.client.Do(r)
		if err != nil || resp.StatusCode != c.status {
			t.Errorf("%s: %v, %v, want %d", name, resp, err, c.status)
		}
		shut(t, resp)
	}
}

func TestLocal(t *testing.T) {
	s := serve(t, ca.Config{Local: true, Cluster: "home"})
	i := s.enrolled(token.Token{}, blade)
	if p, _, err := identify(t, i.Client(), s.url); err != nil || p != (token.Principal{Node: i.Node(), Cluster: "home", Role: registry.Agent}) {
		t.Errorf("%+v, %v", p, err)
	}
	if i.LedgerID() != enroll.LedgerID(s.CA()) {
		t.Errorf("the ledger is %s, want %s", i.LedgerID(), enroll.LedgerID(s.CA()))
	}
	reader, err := enroll.ReaderClient(s.url, token.Token{})
	if err != nil {
		t.Fatal(err)
	}
	if p, _, err := identify(t, reader, s.url); err != nil || p != (token.Principal{Role: registry.Viewer}) {
		t.Errorf("the server's own user: %+v, %v", p, err)
	}
	if p, status, _ := identify(t, http.DefaultClient, s.url); status != 401 {
		t.Errorf("by TCP without anything: %d %+v", status, p)
	}
	n, err := s.EnrollLocal(t.Context(), blade.Machine, blade.Boot, blade.Name)
	if err != nil || n.ID != i.Node() {
		t.Errorf("in the process: %+v, %v, want %s", n, err, i.Node())
	}
	if other, err := s.EnrollLocal(t.Context(), "another", "b", "n"); err != nil || other.ID == n.ID {
		t.Errorf("another machine: %+v, %v", other, err)
	}
	// The socket does not make an unknown node one.
	r := httptest.NewRequest("GET", "http://localhost/who", nil)
	r.Header.Set(token.NodeHeader, "unknown")
	ca.TrustLocal(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if p, err := s.Identify(r); !errors.Is(err, fault.ErrDenied) {
			t.Errorf("unknown node: %+v, %v", p, err)
		}
	})).ServeHTTP(httptest.NewRecorder(), r)
	// A request by TCP neither enrolls nor reads without a token, nor takes the part of a node.
	viewer := s.token(registry.Token{Role: registry.Viewer}).Reveal()
	for name, c := range map[string]struct {
		a                    *ca.Authority
		remote, host, header string
		bears                bool
	}{
		"local":       {s.Authority, "127.0.0.1:1", "localhost", "X-None", true},
		"IPv6":        {s.Authority, "[::1]:1", "[::1]:9797", "X-None", true},
		"elsewhere":   {s.Authority, "192.0.2.1:1", "localhost", "X-None", false},
		"proxy":       {s.Authority, "127.0.0.1:1", "localhost", "X-Forwarded-For", false},
		"page":        {s.Authority, "127.0.0.1:1", "localhost", "Origin", false},
		"rebinding":   {s.Authority, "127.0.0.1:1", "example.org", "X-None", false},
		"not enabled": {open(t, ca.Config{}, s.reg), "127.0.0.1:1", "localhost", "X-None", false},
	} {
		for _, node := range []string{"", n.ID} {
			r := httptest.NewRequest("POST", "http://localhost/v1/enroll", strings.NewReader(`{"machine_id":"m","boot":"b","name":"n"}`))
			r.RemoteAddr, r.Host = c.remote, c.host
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set(c.header, "192.0.2.7")
			if node != "" {
				r.Header.Set(token.NodeHeader, node)
			}
			w := httptest.NewRecorder()
			isLocal := c.a == s.Authority
			if c.a.Handler().ServeHTTP(w, r); w.Code != 403 || strings.Contains(w.Body.String(), `METE_STATE`) != isLocal || strings.Contains(w.Body.String(), `"hint":"use https"`) == isLocal {
				t.Errorf("%s: %d %s", name, w.Code, w.Body)
			}
			if p, err := c.a.Identify(r); !ca.IsUnidentified(err) || strings.Contains(fault.Hint(err), "as the user that runs the server") != isLocal {
				t.Errorf("%s: %+v, %v (hint %q)", name, p, err, fault.Hint(err))
			}
			// A viewer's token is taken from this machine only.
			r.Header.Set("Authorization", "Bearer "+viewer)
			if p, err := c.a.Identify(r); (err == nil) != c.bears || c.bears && p.Role != registry.Viewer {
				t.Errorf("%s, with a token: %+v, %v", name, p, err)
			}
		}
	}
	// The loopback is not trusted by default.
	strict := serve(t, ca.Config{})
	resp, err := insecure(nil).Post(strict.url+"/v1/enroll", "application/json", strings.NewReader(`{"machine_id":"m","boot":"b","name":"n","csr":"`+strings.ReplaceAll(csr(t, elliptic.P256()), "\n", `\n`)+`"}`))
	if err != nil || resp.StatusCode != 401 {
		t.Errorf("no token: %v, %v, want 401", resp, err)
	}
	shut(t, resp)
}

func csr(t *testing.T, curve elliptic.Curve) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "root"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// rsaCSR returns a signing request for an RSA key of some bits, with an invalid signature.
func rsaCSR(t *testing.T, bits uint) string {
	t.Helper()
	n := new(big.Int).Lsh(big.NewInt(1), bits-1)
	key, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: n.Add(n, big.NewInt(1)), E: 1<<31 - 1})
	if err != nil {
		t.Fatal(err)
	}
	type body struct {
		Version      int
		Subject, Key asn1.RawValue
		Attributes   []asn1.RawValue `asn1:"tag:0"`
	}
	der, err := asn1.Marshal(struct {
		Body      body
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		body{Subject: asn1.RawValue{FullBytes: []byte{0x30, 0}}, Key: asn1.RawValue{FullBytes: key}},
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, Parameters: asn1.NullRawValue},
		asn1.BitString{Bytes: bytes.Repeat([]byte{1}, int(bits/8)), BitLength: int(bits)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// TestHugeKey checks that an unsupported key is refused before its signature is verified, which
// could be expensive.
func TestHugeKey(t *testing.T) {
	a := open(t, ca.Config{}, &memory{})
	b, err := json.Marshal(token.Claim{CSR: rsaCSR(t, 176_000), Machine: "m", Boot: "b", Name: "n"})
	if err != nil || len(b) > 64<<10 {
		t.Fatal(len(b), err)
	}
	r := httptest.NewRequest("POST", "https://localhost/v1/enroll", bytes.NewReader(b))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	begin := time.Now()
	a.Handler().ServeHTTP(w, r)
	if w.Code != 400 || !strings.Contains(w.Body.String(), "neither ECDSA P-256 nor Ed25519") {
		t.Errorf("after %v: %d %s", time.Since(begin), w.Code, w.Body)
	}
}

// TestMalformed checks that malformed requests are refused before they cost a use.
func TestMalformed(t *testing.T) {
	s := serve(t, ca.Config{})
	tok := s.agents(1)
	good := token.Claim{Token: tok.Reveal(), CSR: csr(t, elliptic.P256()), Machine: "m", Boot: "b", Name: "n"}
	claim := func(change func(*token.Claim)) string {
		c := good
		change(&c)
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	broken := []byte(good.CSR)
	broken[len(broken)-60] ^= 1
	for name, c := range map[string]struct {
		body, kind string
		status     int
	}{
		"not JSON":     {"hello", "application/json", 400},
		"two":          {claim(func(*token.Claim) {}) + "{}", "application/json", 400},
		"a page's":     {claim(func(*token.Claim) {}), "text/plain", 400},
		"no machine":   {claim(func(c *token.Claim) { c.Machine = "" }), "application/json", 400},
		"line end":     {claim(func(c *token.Claim) { c.Name = "a\nb" }), "application/json", 400},
		"slash":        {claim(func(c *token.Claim) { c.Name = "lab/blade" }), "application/json", 400},
		"long name":    {claim(func(c *token.Claim) { c.Name = strings.Repeat("x", 254) }), "application/json", 400},
		"no csr":       {claim(func(c *token.Claim) { c.CSR = "" }), "application/json", 400},
		"broken csr":   {claim(func(c *token.Claim) { c.CSR = string(broken) }), "application/json", 400},
		"other curve":  {claim(func(c *token.Claim) { c.CSR = csr(t, elliptic.P384()) }), "application/json", 400},
		"cut off":      {claim(func(c *token.Claim) { c.Token = c.Token[:40] }), "application/json", 400},
		"unknown role": {claim(func(c *token.Claim) { c.Role = "root" }), "application/json", 403},
		"too long":     {claim(func(c *token.Claim) { c.Token = strings.Repeat(" ", 70000) }), "application/json", 413},
	} {
		resp, err := insecure(nil).Post(s.url+"/v1/enroll", c.kind, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		var p fault.Problem
		if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != c.status || p.Status != c.status || resp.Header.Get("Content-Type") != fault.ProblemType {
			t.Errorf("%s: %d %+v, %v, want %d", name, resp.StatusCode, p, err, c.status)
		}
		if reason := map[string]string{"a page's": "content type", "two": "more than one value"}[name]; !strings.Contains(p.Detail, reason) {
			t.Errorf("%s: %q, want %s as the reason", name, p.Detail, reason)
		}
		shut(t, resp)
	}
	if left := s.reg.tokens[0].Uses; left != 1 {
		t.Errorf("%d uses left, want 1", left)
	}
	resp, err := insecure(nil).Post(s.url+"/v1/renew", "application/json", strings.NewReader(claim(func(*token.Claim) {})))
	if err != nil || resp.StatusCode != 401 {
		t.Errorf("renewal without a certificate: %v, %v", resp, err)
	}
	shut(t, resp)
	// The subject of the request is ignored.
	resp, err = insecure(nil).Post(s.url+"/v1/enroll", "application/json", bytes.NewReader([]byte(claim(func(*token.Claim) {}))))
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, resp)
	var g token.Grant
	if err := json.NewDecoder(resp.Body).Decode(&g); err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(g.Certificate))
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || cert.Subject.CommonName != g.Node || cert.IsCA || len(cert.ExtKeyUsage) != 1 || cert.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("%+v, %v", cert.Subject, err)
	}
}

// TestLimit checks that wrong tokens are limited in rate, and valid ones never.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in real time, a slow machine may wait for the next token
		s := serve(t, ca.Config{})
		good := s.agents(-1)
		wrong := token.New([5]byte{1}, [20]byte{2}, s.CA())
		var err error
		n := 0
		for ; n < 20; n++ {
			if err = identity(t, t.TempDir(), s.url, wrong, blade).Enroll(t.Context()); !errors.Is(err, fault.ErrDenied) {
				break
			}
		}
		if n != 10 || !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "too many") {
			t.Errorf("after %d: %v", n, err)
		}
		s.enrolled(good, blade)
		if got := fmt.Sprint(s.reg.actions()); strings.Count(got, "enrol.denied") != 10 {
			t.Errorf("audited: %v", got)
		}
	})
}

// TestRegistryDown checks that a failing registry admits no client, and works after recovery.
func TestRegistryDown(t *testing.T) {
	s := serve(t, ca.Config{})
	tok := s.agents(1)
	s.reg.mu.Lock()
	s.reg.err = fmt.Errorf("ledger: %w", fault.ErrUnavailable)
	s.reg.mu.Unlock()
	i := identity(t, t.TempDir(), s.url, tok, blade)
	if err := i.Enroll(t.Context()); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("Enroll: %v", err)
	}
	if _, status, err := identify(t, s.forge(func(*x509.Certificate) {}, false), s.url); status != 503 {
		t.Errorf("%d, %v, want 503", status, err)
	}
	s.reg.mu.Lock()
	s.reg.err = nil
	s.reg.mu.Unlock()
	if err := s.Tokens().Revoke(t.Context(), s.token(registry.Token{Role: registry.Viewer}).ID()); err != nil { // which has it asked again
		t.Fatal(err)
	}
	if err := i.Enroll(t.Context()); err != nil || s.reg.tokens[0].Uses != 0 {
		t.Errorf("%v; uses left: %d", err, s.reg.tokens[0].Uses)
	}
}

// stuck is a registry that times out.
type stuck struct{ memory }

func (*stuck) Tokens(ctx context.Context) ([]registry.Token, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestRegistryStuck checks that a client of a stuck registry receives an error that may be retried, and that
// waiting requests do not wait again.
func TestRegistryStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, begin := open(t, ca.Config{}, &stuck{}), time.Now()
		for range 4 {
			if err := a.CheckAllowed(t.Context(), "n"); !errors.Is(err, fault.ErrUnavailable) || errors.Is(err, fault.ErrDenied) {
				t.Errorf("%v, want that it may work later", err)
			}
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("four, one after another, waited %v, want 5s", took)
		}
	})
}

// TestRegistryFails checks that no error of the registry denies a client.
func TestRegistryFails(t *testing.T) {
	for _, broken := range []error{errors.New("file is not a database"), context.DeadlineExceeded, fmt.Errorf("disk: %w", fault.ErrDenied)} {
		a := open(t, ca.Config{}, &memory{err: broken})
		err := a.CheckAllowed(t.Context(), "n")
		if p := fault.ProblemOf(err); p.Status != 503 || ca.IsUnidentified(err) || !strings.Contains(err.Error(), broken.Error()) {
			t.Errorf("%v: %d, %v, want 503", broken, p.Status, err)
		}
	}
}
