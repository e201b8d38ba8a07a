package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// An authority issues the certificates of a cluster, all by one CA, as PEM files NAME.crt and NAME.key
// of a directory.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// newAuthority makes the CA, and the key pair sa.key and sa.pub that signs tokens of service accounts.
func newAuthority(dir string) (*authority, error) {
	key, err := newKey(filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, key: key}
	t := template(pkix.Name{CommonName: "testbed"})
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign|x509.KeyUsageDigitalSignature
	a.cert = t
	if err := a.sign("ca", t, key.Public()); err != nil {
		return nil, err
	}
	tokens, err := newKey(filepath.Join(dir, "sa.key"))
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(tokens.Public())
	if err != nil {
		return nil, err
	}
	return a, writePEM(filepath.Join(dir, "sa.pub"), "PUBLIC KEY", public)
}

// issue makes a certificate for a user of the API, by its name and group ("" for none), or for a server
// at addresses, which are IP addresses or names.
func (a *authority) issue(file, user, group string, addresses ...string) error {
	key, err := newKey(filepath.Join(a.dir, file+".key"))
	if err != nil {
		return err
	}
	subject := pkix.Name{CommonName: user}
	if group != "" {
		subject.Organization = []string{group}
	}
	t := template(subject)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	for _, s := range addresses {
		if ip := net.ParseIP(s); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, s)
		}
	}
	return a.sign(file, t, key.Public())
}

func (a *authority) sign(file string, t *x509.Certificate, public crypto.PublicKey) error {
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, public, a.key)
	if err != nil {
		return err
	}
	return writePEM(filepath.Join(a.dir, file+".crt"), "CERTIFICATE", der)
}

func template(subject pkix.Name) *x509.Certificate {
	number, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // crypto/rand does not fail on Linux
	}
	return &x509.Certificate{SerialNumber: number, Subject: subject, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0)}
}

func newKey(path string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writePEM(path, "PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// writeKubeconfig writes the file with which the holder of certificate NAME reaches the API server.
func (a *authority) writeKubeconfig(path, server, name string) error {
	return os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: testbed, cluster: {server: %q, certificate-authority: %[2]q}}]
users: [{name: user, user: {client-certificate: %[3]q, client-key: %[4]q}}]
contexts: [{name: testbed, context: {cluster: testbed, user: user}}]
current-context: testbed
`, server, filepath.Join(a.dir, "ca.crt"), filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")), 0o600)
}
