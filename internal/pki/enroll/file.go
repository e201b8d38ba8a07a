package enroll

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/atomicfile"
)

// identityFile is the JSON form of an identity.
type identityFile struct {
	Node        string `json:"node"`
	Cluster     string `json:"cluster"`
	Server      string `json:"server"` // that issued it
	Key         string `json:"key,omitempty"`
	Certificate string `json:"certificate,omitempty"`
	CA          string `json:"ca,omitempty"`
	JobKey      string `json:"job_key,omitempty"`
}

// pendingKey is the key of an unfinished enrollment. If the answer is lost, or the agent is
// killed before it keeps the answer, the same machine repeats the request with the same key, so
// that the server recognizes the enrollment and counts no second use of the token.
type pendingKey struct {
	Machine string `json:"machine_id"`
	Key     string `json:"key"`
}

const pendingFile = "pending.json"

// path returns the file of the identity. The identity of a loopback server has its own
// file, because overwriting one with a certificate would lose the certificate.
func (i *Identity) path() string {
	if i.local {
		return filepath.Join(i.cfg.Dir, "local.json")
	}
	return filepath.Join(i.cfg.Dir, "identity.json")
}

// load makes a state of a stored identity after checking it.
func (i *Identity) load(f identityFile) (*state, error) {
	s := &state{node: f.Node, cluster: f.Cluster}
	if s.node == "" {
		return nil, errors.New("no node")
	}
	// Without a valid job key only the tokens of jobs are missing.
	s.jobs, _ = token.ParseJobKey(f.JobKey)
	var err error
	if block, _ := pem.Decode([]byte(f.CA)); block != nil {
		if s.ca, err = x509.ParseCertificate(block.Bytes); err != nil {
			return nil, err
		}
	}
	if i.local {
		s.transport = i.newTransport(nil, nil)
		return s, nil
	}
	if s.ca == nil {
		return nil, errors.New("no certificate authority")
	}
	if s.pair, err = tls.X509KeyPair([]byte(f.Certificate), []byte(f.Key)); err != nil {
		return nil, err
	}
	s.leaf = s.pair.Leaf
	if err := s.leaf.CheckSignatureFrom(s.ca); err != nil {
		return nil, err
	}
	if s.leaf.Subject.CommonName != s.node {
		return nil, fmt.Errorf("certificate is of node %q, not %q", s.leaf.Subject.CommonName, s.node)
	}
	s.transport = i.newTransport(verifyRoot(s.ca), &s.pair)
	return s, nil
}

// adopt checks and stores a grant, and makes it the current identity.
func (i *Identity) adopt(g token.Grant, key *ecdsa.PrivateKey) error {
	f := identityFile{Node: g.Node, Cluster: g.Cluster, Server: i.base.String(), Certificate: g.Certificate, CA: g.CA, JobKey: g.JobKey}
	if key != nil {
		f.Key = encodeKey(key)
	}
	s, err := i.load(f)
	if err != nil {
		return fmt.Errorf("%s: invalid grant: %w: %w", i.base, err, fault.ErrUnavailable)
	}
	if err := writeFile(i.path(), f); err != nil {
		return err
	}
	old := i.state.Swap(s)
	switch {
	case old == nil:
		i.log.Info("enrolled", "node", s.node, "cluster", s.cluster, "server", i.base.String())
	case old.node != s.node:
		i.log.Warn("this machine has a new node id", "node", s.node, "before", old.node)
	case !i.local:
		i.log.Info("certificate renewed", "node", s.node, "ends", s.leaf.NotAfter)
	}
	if old != nil {
		old.transport.CloseIdleConnections()
	}
	return nil
}

// loadPendingKey returns the key to enroll with, a new one unless an enrollment is pending.
func (i *Identity) loadPendingKey() (*ecdsa.PrivateKey, error) {
	path := filepath.Join(i.cfg.Dir, pendingFile)
	// An unreadable key is replaced; that costs one use of the token.
	if p, err := readFile[pendingKey](path); err == nil && p.Machine == i.cfg.Facts.Machine {
		if key := decodeKey(p.Key); key != nil && !i.isCurrentKey(key) {
			return key, nil
		}
	}
	key := newKey()
	return key, writeFile(path, pendingKey{i.cfg.Facts.Machine, encodeKey(key)})
}

// isCurrentKey reports whether a key is that of the identity, whose enrollment is finished.
func (i *Identity) isCurrentKey(key *ecdsa.PrivateKey) bool {
	s := i.state.Load()
	return s != nil && s.leaf != nil && key.PublicKey.Equal(s.leaf.PublicKey)
}

// dropPending removes the key of a finished enrollment. Another enrolling process may have removed
// it.
func (i *Identity) dropPending() error {
	if err := os.Remove(filepath.Join(i.cfg.Dir, pendingFile)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func newKey() *ecdsa.PrivateKey {
	return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) // the system's random numbers never fail
}

func encodeKey(key *ecdsa.PrivateKey) string {
	der := must(x509.MarshalPKCS8PrivateKey(key)) // possible for P-256
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// decodeKey returns the key of a text of encodeKey, or nil.
func decodeKey(text string) *ecdsa.PrivateKey {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil
	}
	parsed, _ := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, _ := parsed.(*ecdsa.PrivateKey)
	return key
}

// newCSR returns a certificate request for a key. The claim names the requester.
func newCSR(key *ecdsa.PrivateKey) string {
	der := must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)) // possible for P-256
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// must returns the value of a function that cannot fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// tempFileAge is the age up to which another process may still be writing a temporary file.
const tempFileAge = time.Minute

// cleanUp removes temporary files that a crash left and restricts permissions.
func cleanUp(dir string) error {
	files, failed := os.ReadDir(dir)
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		info, err := f.Info()
		switch {
		case err != nil: // another enrolling process has removed it
		case strings.HasPrefix(f.Name(), ".new-") && time.Since(info.ModTime()) >= tempFileAge:
			err = os.Remove(path)
		case filepath.Ext(f.Name()) == ".json":
			err = os.Chmod(path, 0o600)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.Join(failed, os.Chmod(dir, 0o700))
}

func readFile[T identityFile | pendingKey](path string) (v T, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return v, err
	}
	return v, json.Unmarshal(b, &v)
}

// writeFile replaces a file atomically and durably.
func writeFile[T identityFile | pendingKey](path string, v T) error {
	b := must(json.MarshalIndent(v, "", "  ")) // strings
	return atomicfile.Replace(path, append(b, '\n'))
}
