package ca

import (
	"crypto/x509"
	"path/filepath"
	"time"
)

// Files returns the paths of the two files of the authority in a directory: of its own key, and of the
// server's.
func Files(dir string) (authority, server string) {
	return filepath.Join(dir, caFile), filepath.Join(dir, serverFile)
}

// ReadCertificate reads the certificate of a file of an authority. A damaged file is fault.ErrInvalid.
func ReadCertificate(path string) (*x509.Certificate, error) {
	p, err := readPair(path)
	return p.cert, err
}

// Names returns the host names and addresses of a server's certificate, sorted.
func Names(c *x509.Certificate) []string { return namesOf(c) }

// RenewalTime returns when a running server renews its certificate.
func RenewalTime(c *x509.Certificate) time.Time { return renewalTime(c) }
