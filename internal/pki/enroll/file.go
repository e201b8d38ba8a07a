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
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/atomicfile"
)

// identityFile is an identity as it is kept.
type identityFile struct {
	Node        string `json:"node"`
	Cluster     string `json:"cluster"`
	Server      string `json:"server"` // that gave it
	Key         string `json:"key,omitempty"`
	Certificate string `json:"certificate,omitempty"`
	CA          string `json:"ca,omitempty"`
	JobKey      string `json:"job_key,omitempty"`
}

// pendingKey is the key of an enrollment that was asked for. Where the answer is
// lost, the same key asked with again, by the same machine in the same boot,
// tells the server that it is the same enrollment, and costs no second use of a
// token.
type pendingKey struct {
	Machine string `json:"machine_id"`
	Boot    string `json:"boot"`
	Key     string `json:"key"`
}

const pendingFile = "pending.json"

// path is where the identity is kept. That of a server on the loopback does not
// take the place of one with a certificate, which could not be got back.
func (i *Identity) path() string {
	if i.local {
		return filepath.Join(i.cfg.Dir, "local.json")
	}
	return filepath.Join(i.cfg.Dir, "identity.json")
}

// load makes a state of what is kept, if it is whole.
func (i *Identity) load(f identityFile) (*state, error) {
	s := &state{node: f.Node, cluster: f.Cluster}
	if s.node == "" {
		return nil, errors.New("names no node")
	}
	// Without a good one jobs get no tokens, and nothing else is worse for it.
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
		return nil, errors.New("has no certificate authority")
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

// adopt keeps what was granted, if it is what was asked for, and goes on with it.
func (i *Identity) adopt(g token.Grant, key *ecdsa.PrivateKey) error {
	f := identityFile{Node: g.Node, Cluster: g.Cluster, Server: i.base.String(), Certificate: g.Certificate, CA: g.CA, JobKey: g.JobKey}
	if key != nil {
		f.Key = encodeKey(key)
	}
	s, err := i.load(f)
	if err != nil {
		return fmt.Errorf("%s: what it granted: %w: %w", i.base, err, fault.ErrUnavailable)
	}
	if err := writeFile(i.path(), f); err != nil {
		return err
	}
	old := i.state.Swap(s)
	switch {
	case old == nil:
		i.log.Info("enrolled", "node", s.node, "cluster", s.cluster, "server", i.base.String())
	case old.node != s.node:
		i.log.Warn("this machine is another node from now on", "node", s.node, "before", old.node)
	case !i.local:
		i.log.Info("certificate renewed", "node", s.node, "ends", s.leaf.NotAfter)
	}
	if old != nil {
		old.transport.CloseIdleConnections()
	}
	return nil
}

// loadPendingKey is the key to enroll with.
func (i *Identity) loadPendingKey() (*ecdsa.PrivateKey, error) {
	path := filepath.Join(i.cfg.Dir, pendingFile)
	// What cannot be read is made anew: all that is lost is a use of a token.
	if p, err := readFile[pendingKey](path); err == nil && p.Machine == i.cfg.Facts.Machine && p.Boot == i.cfg.Facts.Boot {
		if key, err := decodeKey(p.Key); err == nil && !i.isCurrentKey(key) {
			return key, nil
		}
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	return key, writeFile(path, pendingKey{i.cfg.Facts.Machine, i.cfg.Facts.Boot, encodeKey(key)})
}

// isCurrentKey says whether a key is that of the identity: then its enrollment is done.
func (i *Identity) isCurrentKey(key *ecdsa.PrivateKey) bool {
	s := i.state.Load()
	return s != nil && s.leaf != nil && key.PublicKey.Equal(s.leaf.PublicKey)
}

func (i *Identity) dropPending() error { return os.Remove(filepath.Join(i.cfg.Dir, pendingFile)) }

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func encodeKey(key *ecdsa.PrivateKey) string {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err) // its curve has no number, and it is always P-256
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func decodeKey(text string) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("no PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	if ec, ok := key.(*ecdsa.PrivateKey); ok {
		return ec, nil
	}
	return nil, fmt.Errorf("key is a %T", key)
}

// newCSR asks for a certificate over a key. Who asks is said elsewhere.
func newCSR(key *ecdsa.PrivateKey) (string, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), err
}

// tempFileAge is for how long a file that is being written may be another process's.
const tempFileAge = time.Minute

// cleanUp takes away what a crash left, and rights that others should not have.
func cleanUp(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, ".new-*"))
	if err != nil {
		return err
	}
	for _, name := range left {
		if info, err := os.Stat(name); err != nil || time.Since(info.ModTime()) < tempFileAge {
			continue
		}
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	for _, name := range files {
		// Another process that enrolls too may have done with one of them meanwhile.
		if err := os.Chmod(name, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Chmod(dir, 0o700)
}

func readFile[T identityFile | pendingKey](path string) (v T, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return v, err
	}
	return v, json.Unmarshal(b, &v)
}

// writeFile puts a file in place of the one before, whole or not at all, and
// durably.
func writeFile[T identityFile | pendingKey](path string, v T) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Replace(path, append(b, '\n'))
}
