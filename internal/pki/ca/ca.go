// Package ca is a server's identity and the identities it issues: its certificate authority, its
// own certificate, certificates of machines and downstream servers, and the tokens for obtaining
// them.
//
// The authority is created at the first start and stored in two files, ca.pem and server.pem. Each
// contains a key and a certificate and is replaced atomically, so that no crash can separate a key
// from its certificate.
package ca

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/atomicfile"
)

// Config configures an authority.
type Config struct {
	Dir   string   // holds the keys; created if missing
	Names []string // host names and addresses of the server, in addition to the machine's own name and the loopback
	// Local accepts the tokens of viewers, writers, jobs and browsers by plain HTTP from this
	// machine.
	Local   bool
	Cluster string // of nodes that enroll without a token; "" is DefaultCluster
	// CertificateLife is the lifetime of certificates of machines and downstream servers; 0 is 30
	// days.
	CertificateLife time.Duration
	// LiveBoot returns the boot id with which a node is sending now; ok is false if it is not. It
	// may be nil: no node sends.
	LiveBoot func(node string) (boot string, ok bool)
}

const DefaultCluster = "default"

// Registry stores nodes and tokens; the ledger is one.
type Registry interface {
	// PutNode stores a node, or updates one with the same ID, whose Root and later Certified stay. A
	// new node whose Root is revoked is fault.ErrDenied.
	PutNode(ctx context.Context, n registry.Node) error
	// Certify records that a node, which may be unknown, has a certificate until a time.
	Certify(ctx context.Context, id string, until time.Time) error
	Node(ctx context.Context, id string) (registry.Node, error)
	NodesByMachine(ctx context.Context, machineID string) ([]registry.Node, error)
	// PutSource stores a downstream server, or updates one with the same ID; Sources returns those
	// of a machine that are not revoked, newest first. RevokeNode and RevokedNodes treat them as
	// nodes.
	PutSource(ctx context.Context, n registry.Node) error
	Source(ctx context.Context, id string) (registry.Node, error)
	Sources(ctx context.Context, machineID string) ([]registry.Node, error)
	// Enrolled returns the id of the node or downstream server that enrolled last with a token, by
	// its id, and a key; "" is none.
	Enrolled(ctx context.Context, tokenID, keyHash string) (string, error)
	// RevokeNode revokes a node and those whose Root it is.
	RevokeNode(ctx context.Context, id string, now time.Time) error
	RevokedNodes(ctx context.Context) ([]string, error)

	PutToken(ctx context.Context, t registry.Token) error // fault.ErrConflict if its ID is taken
	// UseToken takes one use of a token with this hash and role, which has not expired and is not
	// used up, for a key, by its hash. A key that took a use takes no second one; "" is not
	// remembered. The error is fault.ErrNotFound for a wrong ID or hash, fault.ErrDenied otherwise.
	UseToken(ctx context.Context, id string, hash [32]byte, role registry.Role, key string, now time.Time) (registry.Token, error)
	Tokens(ctx context.Context) ([]registry.Token, error)
	RevokeToken(ctx context.Context, id string, now time.Time) error

	Audit(ctx context.Context, a registry.Audit) error
}

// An Authority signs certificates and identifies clients by them. Several processes may open the
// same directory.
type Authority struct {
	cfg   Config
	reg   Registry
	log   *slog.Logger
	names []string

	ca    keyPair
	jobs  []byte                          // secret for the keys of jobs
	roots *x509.CertPool                  // of ca alone
	chain atomic.Pointer[tls.Certificate] // the server's own
	mu    sync.Mutex                      // serializes renewal of chain

	expiries      sync.Map // of certificates seen, by node: time.Time
	registryCache registryCache
	verified      verifiedCache
	wrongTokens   limiter
	pages         pageLogins
	enrollments
}

const (
	caFile     = "ca.pem"
	serverFile = "server.pem"
)

// Check returns an error if a directory has no authority.
func Check(dir string) error {
	_, err := os.Stat(filepath.Join(dir, caFile))
	return err
}

// Open opens the authority in cfg.Dir, creating it if there is none.
func Open(cfg Config, reg Registry, log *slog.Logger) (*Authority, error) {
	a := &Authority{cfg: cfg, reg: reg, log: log}
	if a.cfg.Cluster == "" {
		a.cfg.Cluster = DefaultCluster
	}
	if err := checkCluster(a.cfg.Cluster); err != nil {
		return nil, err
	}
	if a.cfg.CertificateLife == 0 {
		a.cfg.CertificateLife = clientLife
	}
	if a.cfg.LiveBoot == nil {
		a.cfg.LiveBoot = func(string) (string, bool) { return "", false }
	}
	a.registryCache.reg = reg
	a.names = serverNames(cfg.Names)
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	unlock, err := lock(cfg.Dir)
	if err != nil {
		return nil, err
	}
	return a, errors.Join(a.open(), unlock())
}

func (a *Authority) open() error {
	if err := cleanUp(a.cfg.Dir, a.log); err != nil {
		return err
	}
	now := time.Now()
	if err := a.openCA(now); err != nil {
		return err
	}
	a.jobs = a.ca.jobSecret()
	a.roots = x509.NewCertPool()
	a.roots.AddCert(a.ca.cert)
	if left := a.ca.cert.NotAfter.Sub(now); left < 365*24*time.Hour {
		a.log.Warn("certificate authority ends within a year", "ends", a.ca.cert.NotAfter)
	}
	own, err := readPair(filepath.Join(a.cfg.Dir, serverFile))
	if err == nil && own.cert.CheckSignatureFrom(a.ca.cert) == nil && slices.Equal(namesOf(own.cert), a.names) && now.Before(renewalTime(own.cert)) {
		a.setServerCertificate(own)
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.log.Warn("server certificate cannot be read and is renewed", "err", err)
	}
	return a.renewServer(now)
}

// openCA reads the authority's key and certificate, or creates them if this directory never had
// any.
func (a *Authority) openCA(now time.Time) error {
	path := filepath.Join(a.cfg.Dir, caFile)
	ca, err := readPair(path)
	if err == nil && !ca.cert.IsCA {
		err = fmt.Errorf("%s: not a CA certificate: %w", path, fault.ErrInvalid)
	}
	if err == nil && now.After(ca.cert.NotAfter) {
		return fault.WithHint(fmt.Errorf("%s: the certificate authority ended on %s: %w", path, ca.cert.NotAfter.Format(time.DateOnly), fault.ErrInvalid),
			fmt.Sprintf("check this machine's clock; otherwise move %s away and enroll the machines again", a.cfg.Dir))
	}
	if err == nil {
		a.ca = ca
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fault.WithHint(err, fmt.Sprintf("restore %s from a backup; if there is none, move %s away and enroll every machine again", path, a.cfg.Dir))
	}
	// The server's file is written after the authority's. If only the former exists the authority
	// was lost, and a new one would lock out all machines.
	if _, err := os.Stat(filepath.Join(a.cfg.Dir, serverFile)); err == nil {
		return fault.WithHint(fmt.Errorf("%s: %w, but %s exists", path, fault.ErrNotFound, serverFile),
			fmt.Sprintf("restore %s from a backup; if there is none, remove %s and enroll every machine again", path, serverFile))
	}
	ca = newCA(now)
	if err := atomicfile.Replace(path, ca.encode()); err != nil {
		return err
	}
	a.ca = ca
	a.log.Info("certificate authority made", "fingerprint", a.CA().String(), "ends", ca.cert.NotAfter)
	return nil
}

// renewServer creates a new server certificate.
func (a *Authority) renewServer(now time.Time) error {
	own, err := a.ca.signServer(now, a.names)
	if err != nil {
		return err
	}
	a.setServerCertificate(own)
	a.log.Info("server certificate made", "names", strings.Join(a.names, " "), "ends", own.cert.NotAfter)
	if err := atomicfile.Replace(filepath.Join(a.cfg.Dir, serverFile), own.encode()); err != nil {
		// The certificate works; the file is only for the next start.
		a.log.Warn("server certificate not kept", "err", err)
	}
	return nil
}

// setServerCertificate sets the certificate for new connections.
func (a *Authority) setServerCertificate(own keyPair) {
	// The chain includes the authority's certificate, by which a machine with only a token verifies
	// the server.
	a.chain.Store(&tls.Certificate{Certificate: [][]byte{own.cert.Raw, a.ca.cert.Raw}, PrivateKey: own.key, Leaf: own.cert})
}

// CA returns the fingerprint of the authority, which its tokens contain.
func (a *Authority) CA() token.Fingerprint { return token.FingerprintOf(a.ca.cert.Raw) }

// CAPEM returns the authority's certificate for other clients.
func (a *Authority) CAPEM() []byte { return encodeCertificate(a.ca.cert.Raw) }

// serverNames returns the server's names, sorted and unique.
func serverNames(more []string) []string {
	names := append([]string{"localhost", "127.0.0.1", "::1"}, more...)
	if host, err := os.Hostname(); err == nil {
		names = append(names, host)
	}
	for i, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			names[i] = ip.String()
		}
	}
	slices.Sort(names)
	return slices.Compact(slices.DeleteFunc(names, func(n string) bool { return n == "" }))
}

// lock waits for other processes that create files in dir.
func lock(dir string) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: lock: %w", f.Name(), err), f.Close())
	}
	return f.Close, nil
}

// cleanUp removes temporary files of a crash, and restricts permissions.
func cleanUp(dir string, log *slog.Logger) error {
	restricted := restrict(dir, 0o700, log)
	files, err := os.ReadDir(dir)
	for _, f := range files {
		if strings.HasPrefix(f.Name(), ".new-") {
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
				return err
			}
		}
	}
	return errors.Join(restricted, err, restrict(filepath.Join(dir, caFile), 0o600, log), restrict(filepath.Join(dir, serverFile), 0o600, log))
}

func restrict(path string, mode fs.FileMode, log *slog.Logger) error {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || st.Mode().Perm()&^mode == 0 {
		return err
	}
	log.Warn("restricted permissions of keys that others could read", "path", path, "mode", st.Mode().Perm().String())
	return os.Chmod(path, mode)
}

// A keyPair is a key and its certificate.
type keyPair struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func (p keyPair) encode() []byte {
	key := must(x509.MarshalPKCS8PrivateKey(p.key)) // possible for P-256
	return append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), encodeCertificate(p.cert.Raw)...)
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// readPair reads what encode wrote. A damaged file is fault.ErrInvalid.
func readPair(path string) (keyPair, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return keyPair{}, err
	}
	p, err := decodePair(b)
	if err != nil {
		return keyPair{}, fmt.Errorf("%s: %w: %w", path, err, fault.ErrInvalid)
	}
	return p, nil
}

func decodePair(b []byte) (p keyPair, err error) {
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case "PRIVATE KEY":
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return p, err
			}
			p.key, _ = key.(*ecdsa.PrivateKey)
		case "CERTIFICATE":
			if p.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
				return p, err
			}
		}
	}
	switch {
	case p.key == nil:
		return p, errors.New("has no ECDSA key")
	case p.cert == nil:
		return p, errors.New("has no certificate")
	case !p.key.PublicKey.Equal(p.cert.PublicKey):
		return p, errors.New("key and certificate do not belong together")
	}
	return p, nil
}
