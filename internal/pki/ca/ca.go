// Package ca is a server's identity and those that it gives: its
// certificate authority, its own certificate, the certificates of machines and
// of servers below it, and the tokens by which they get them.
//
// The authority is made at the first start and lies in two files, ca.pem and
// server.pem, each with a key and a certificate and each replaced as a whole,
// so that no crash can part a key from its certificate.
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

// Config says whose authority this is, and how far the loopback is trusted.
type Config struct {
	Dir   string   // holds the keys; made where it is not there
	Names []string // host names and addresses of the server, beside the machine's own name and the loopback's
	// Local trusts plain HTTP from this machine: whoever can open a connection
	// to the loopback enrolls and reads without a token.
	Local   bool
	Cluster string // of nodes that enroll without a token; "" is DefaultCluster
	// CertificateLife is how long the certificates of machines and of servers below are good;
	// 0 is 30 days.
	CertificateLife time.Duration
	// LiveBoot tells under which boot a node sends at present; ok is false where it
	// does not. It may be nil: then no node does.
	LiveBoot func(node string) (boot string, ok bool)
}

// DefaultCluster is the cluster where none is named.
const DefaultCluster = "default"

// Registry is where nodes and tokens are kept; the ledger is one.
type Registry interface {
	// PutNode keeps a node, in place of one with the same ID, whose Root stays. A new
	// one whose Root is revoked is fault.ErrDenied.
	PutNode(ctx context.Context, n registry.Node) error
	Node(ctx context.Context, id string) (registry.Node, error)
	NodesByMachine(ctx context.Context, machineID string) ([]registry.Node, error)
	// PutSource keeps a server that sends its rows here, in place of one with the
	// same ID; Sources finds those of a machine that are not revoked, the newest
	// first. For RevokeNode and RevokedNodes they are nodes.
	PutSource(ctx context.Context, n registry.Node) error
	Sources(ctx context.Context, machineID string) ([]registry.Node, error)
	// RevokeNode remembers that a node is not to be let in any more, nor those whose
	// Root it is.
	RevokeNode(ctx context.Context, id string, now time.Time) error
	RevokedNodes(ctx context.Context) ([]string, error)

	PutToken(ctx context.Context, t registry.Token) error // fault.ErrConflict where its ID is taken
	// UseToken takes one use of a token, which has this hash and role, has not
	// ended and is not used up; it is fault.ErrNotFound where the ID or the hash
	// is wrong, fault.ErrDenied otherwise.
	UseToken(ctx context.Context, id string, hash [32]byte, role registry.Role, now time.Time) (registry.Token, error)
	Tokens(ctx context.Context) ([]registry.Token, error)
	RevokeToken(ctx context.Context, id string, now time.Time) error

	Audit(ctx context.Context, a registry.Audit) error
}

// An Authority signs certificates, and knows by them who asks. Several
// processes may have the same directory open.
type Authority struct {
	cfg   Config
	reg   Registry
	log   *slog.Logger
	names []string

	ca    keyPair
	jobs  []byte                          // secret of the keys of jobs
	roots *x509.CertPool                  // of ca alone
	chain atomic.Pointer[tls.Certificate] // the server's own
	mu    sync.Mutex                      // renewing chain

	expiries      sync.Map // of certificates that were shown last: node to time.Time
	registryCache registryCache
	verified      verifiedCache
	wrongTokens   limiter
	enrollments
}

const (
	caFile     = "ca.pem"
	serverFile = "server.pem"
)

// Check reports a directory that has no authority in it.
func Check(dir string) error {
	_, err := os.Stat(filepath.Join(dir, caFile))
	return err
}

// Open returns the authority in cfg.Dir, and makes it where there is none.
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
	secret, err := a.ca.jobSecret()
	if err != nil {
		return err
	}
	a.jobs = secret
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
		a.log.Warn("server certificate made anew", "err", err)
	}
	return a.renewServer(now)
}

// openCA reads the authority's key and certificate, or makes them where this
// directory never had any.
func (a *Authority) openCA(now time.Time) error {
	path := filepath.Join(a.cfg.Dir, caFile)
	ca, err := readPair(path)
	if err == nil && !ca.cert.IsCA {
		err = fmt.Errorf("%s: certificate of no authority: %w", path, fault.ErrInvalid)
	}
	if err == nil && now.After(ca.cert.NotAfter) {
		return fault.WithHint(fmt.Errorf("%s: the certificate authority ended on %s: %w", path, ca.cert.NotAfter.Format(time.DateOnly), fault.ErrInvalid),
			fmt.Sprintf("check this machine's clock; else move %s away, and enroll the machines again", a.cfg.Dir))
	}
	if err == nil {
		a.ca = ca
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fault.WithHint(err, fmt.Sprintf("restore %s from a backup; without it every machine has to be enrolled again: then move %s away", path, a.cfg.Dir))
	}
	// The server's file is written after the authority's, so where it stands
	// alone the other was lost, and a new one would shut all machines out.
	if _, err := os.Stat(filepath.Join(a.cfg.Dir, serverFile)); err == nil {
		return fault.WithHint(fmt.Errorf("%s: %w, but %s is there", path, fault.ErrNotFound, serverFile),
			fmt.Sprintf("restore %s from a backup; without it every machine has to be enrolled again: then remove %s", path, serverFile))
	}
	if ca, err = newCA(now); err != nil {
		return err
	}
	if err := atomicfile.Replace(path, ca.encode()); err != nil {
		return err
	}
	a.ca = ca
	a.log.Info("certificate authority made", "fingerprint", a.CA().String(), "ends", ca.cert.NotAfter)
	return nil
}

// renewServer makes the server's own certificate anew.
func (a *Authority) renewServer(now time.Time) error {
	own, err := a.ca.signServer(now, a.names)
	if err != nil {
		return err
	}
	a.setServerCertificate(own)
	a.log.Info("server certificate made", "names", strings.Join(a.names, " "), "ends", own.cert.NotAfter)
	if err := atomicfile.Replace(filepath.Join(a.cfg.Dir, serverFile), own.encode()); err != nil {
		// It serves as well; the file is only for the next start.
		a.log.Warn("server certificate not kept", "err", err)
	}
	return nil
}

// setServerCertificate has new connections greeted with this certificate.
func (a *Authority) setServerCertificate(own keyPair) {
	// The authority's certificate goes along: by it, a machine with nothing but a
	// token knows whom it talks to.
	a.chain.Store(&tls.Certificate{Certificate: [][]byte{own.cert.Raw, a.ca.cert.Raw}, PrivateKey: own.key, Leaf: own.cert})
}

// CA is the fingerprint of the authority, which its tokens carry.
func (a *Authority) CA() token.Fingerprint { return token.FingerprintOf(a.ca.cert.Raw) }

// CAPEM is the authority's certificate, for clients that are not mete's.
func (a *Authority) CAPEM() []byte { return encodeCertificate(a.ca.cert.Raw) }

// serverNames lists what the server is called: each name once, in order.
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

// lock waits until no other process is making files in dir.
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

// cleanUp takes away what a crash left, and rights that others should not have.
func cleanUp(dir string, log *slog.Logger) error {
	if err := restrict(dir, 0o700, log); err != nil {
		return err
	}
	left, err := filepath.Glob(filepath.Join(dir, ".new-*"))
	if err != nil {
		return err
	}
	for _, name := range left {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	return errors.Join(restrict(filepath.Join(dir, caFile), 0o600, log), restrict(filepath.Join(dir, serverFile), 0o600, log))
}

func restrict(path string, mode fs.FileMode, log *slog.Logger) error {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || st.Mode().Perm()&^mode == 0 {
		return err
	}
	log.Warn("others could read keys, now they cannot", "path", path, "mode", st.Mode().Perm().String())
	return os.Chmod(path, mode)
}

// A keyPair is a key and the certificate over it.
type keyPair struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func (p keyPair) encode() []byte {
	key, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		panic(err) // its curve has no number, and it is always P-256
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), encodeCertificate(p.cert.Raw)...)
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// readPair reads what encode wrote. What is damaged is fault.ErrInvalid.
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
