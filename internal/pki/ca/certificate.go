package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
)

// Lifetimes of certificates. Automatic renewal is after two thirds.
const (
	caLife     = 10 * 365 * 24 * time.Hour
	serverLife = 90 * 24 * time.Hour
	clientLife = 30 * 24 * time.Hour

	// clockSkew backdates certificates for slow clocks.
	clockSkew = time.Hour
)

// renewalTime returns when a certificate is to be renewed.
func renewalTime(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

func newKey() *ecdsa.PrivateKey {
	return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) // the system's random numbers never fail
}

// must returns the value of a function that cannot fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// template returns what all certificates have in common.
func template(now time.Time, life time.Duration) *x509.Certificate {
	return &x509.Certificate{ // its serial number is random, as it has none here
		NotBefore:             now.Add(-clockSkew).UTC(),
		NotAfter:              now.Add(life).UTC(),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
	}
}

// newCA creates an authority that may not sign other authorities.
func newCA(now time.Time) keyPair {
	key, t := newKey(), template(now, caLife)
	// The random part distinguishes authorities for clients that look them up by name.
	t.Subject = pkix.Name{CommonName: "mete certificate authority " + rand.Text()[:8]}
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	t.IsCA, t.MaxPathLenZero = true, true
	return must(sign(keyPair{key, t}, t, key))
}

// sign signs a certificate for key's public half with p.
func sign(p keyPair, t *x509.Certificate, key *ecdsa.PrivateKey) (keyPair, error) {
	cert, err := p.sign(t, key.Public())
	return keyPair{key, cert}, err
}

func (p keyPair) sign(t *x509.Certificate, public crypto.PublicKey) (*x509.Certificate, error) {
	if t.NotAfter.After(p.cert.NotAfter) {
		t.NotAfter = p.cert.NotAfter // a certificate cannot outlive its authority
	}
	der, err := x509.CreateCertificate(rand.Reader, t, p.cert, public, p.key)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", t.Subject.CommonName, err)
	}
	return x509.ParseCertificate(der)
}

// signServer creates the certificate of a server with these names and addresses.
func (p keyPair) signServer(now time.Time, names []string) (keyPair, error) {
	t := template(now, serverLife)
	t.Subject = pkix.Name{CommonName: "mete server"}
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	return sign(p, t, newKey())
}

// namesOf returns the names and addresses of a server's certificate, sorted.
func namesOf(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	slices.Sort(names)
	return names
}

// jobsQuery is the query of the URI in a certificate of the jobs of a machine.
const jobsQuery = "kind=jobs"

// signClient signs the certificate of a node: common name is the node's id, organizational unit the
// role, and a URI holds cluster and node, and whether it is the node of the jobs of a machine. It is for
// clients only.
func (p keyPair) signClient(now time.Time, life time.Duration, g registry.Node, role registry.Role, public crypto.PublicKey) (*x509.Certificate, error) {
	t := template(now, life)
	t.Subject = pkix.Name{CommonName: g.ID, OrganizationalUnit: []string{string(role)}}
	t.URIs = []*url.URL{{Scheme: "mete", Host: g.Cluster, Path: "/" + g.ID}}
	if g.IsJobs() {
		t.URIs[0].RawQuery = jobsQuery
	}
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return p.sign(t, public)
}

// parseHolder returns the holder of a certificate that signClient signed. Its machine id says only whether
// it is the node of the jobs of a machine.
func parseHolder(c *x509.Certificate) (n registry.Node, role registry.Role, ok bool) {
	if len(c.URIs) != 1 || len(c.Subject.OrganizationalUnit) != 1 {
		return n, "", false
	}
	u := c.URIs[0]
	n, role = registry.Node{ID: c.Subject.CommonName, Cluster: u.Host}, registry.Role(c.Subject.OrganizationalUnit[0])
	if u.RawQuery == jobsQuery {
		n.MachineID = registry.JobsMachineID(n.ID)
	}
	return n, role, u.Scheme == "mete" && n.ID != "" && u.Path == "/"+n.ID && (role == registry.Agent || role == registry.Upstream)
}

// parseCSR parses a signing request, and returns its public key.
func parseCSR(text string) (crypto.PublicKey, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, fmt.Errorf("csr is not a PEM certificate request: %w", fault.ErrInvalid)
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("csr: %w: %w", err, fault.ErrInvalid)
	}
	// Check before the signature: anyone may send a request, and verifying a huge RSA key takes
	// seconds.
	if !isAllowedKey(csr.PublicKey) {
		return nil, fmt.Errorf("csr: key is neither ECDSA P-256 nor Ed25519: %w", fault.ErrInvalid)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("csr: %w: %w", err, fault.ErrInvalid)
	}
	return csr.PublicKey, nil
}

// isAllowedKey reports whether this kind of key may be certified.
func isAllowedKey(key crypto.PublicKey) bool {
	switch key := key.(type) {
	case ed25519.PublicKey:
		return true
	case *ecdsa.PublicKey:
		return key.Curve == elliptic.P256()
	}
	return false
}

// checkCluster checks that a cluster's name is valid in URIs and labels.
func checkCluster(name string) error {
	ok := len(name) >= 1 && len(name) <= 63
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.')
	}
	if !ok || name[0] == '.' || name[0] == '-' || name[len(name)-1] == '.' || strings.Contains(name, "..") {
		return fault.WithHint(fmt.Errorf("cluster %q: %w name", name, fault.ErrInvalid), "use 1 to 63 letters, digits, and - _ . between them")
	}
	return nil
}
