// Package enroll obtains, stores and renews an agent's identity: its node id and the
// certificate that proves it.
//
// An identity is one file that is replaced atomically, so that a crash cannot separate
// a key from its certificate. The key is generated here and never leaves the machine.
package enroll

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/token"
)

// Facts describe a machine in its claims to a server.
type Facts struct {
	Machine string // machine id: /etc/machine-id, or the host name
	Boot    string // boot id
	Name    string // host name
}

// Config configures an Identity.
type Config struct {
	Dir string // holds the identity; created if missing
	// Server is https://host:port, or http://host:port for a loopback address: there
	// the server may trust local callers, and the identity needs neither token nor
	// certificate.
	Server string
	// Token returns the enrollment token whenever one is needed. It may be nil or
	// return fault.ErrNotFound if there is none.
	Token func() (token.Token, error)
	Role  registry.Role // "" means registry.Agent
	Facts Facts

	dial dialer
}

// newTokenHint is the hint when only a new token helps.
func (i *Identity) newTokenHint() string {
	role := cmp.Or(i.cfg.Role, registry.Agent)
	if registry.IsJobsMachine(i.cfg.Facts.Machine) {
		role = registry.Job
	}
	hint := "on the server's machine: mete token create --role " + string(role)
	if node := i.Node(); role == registry.Upstream && node != "" {
		hint += " --node " + node
	}
	return hint
}

// An Identity is the identity of this machine to a server. Its methods are safe for
// concurrent use.
type Identity struct {
	cfg   Config
	base  *url.URL
	local bool
	log   *slog.Logger

	mu    sync.Mutex // serializes changes of state
	state atomic.Pointer[state]
}

// A state is an immutable version of an identity.
type state struct {
	node, cluster string
	leaf, ca      *x509.Certificate // nil if a loopback server needs none
	jobs          token.JobKey      // zero if the server gave none
	pair          tls.Certificate
	transport     *http.Transport
}

// Open returns the identity stored in cfg.Dir, which may be none yet. It makes no
// requests.
func Open(cfg Config, log *slog.Logger) (*Identity, error) {
	base, local, err := parseServer(cfg.Server)
	if err != nil {
		return nil, err
	}
	if cfg.Token == nil {
		cfg.Token = func() (none token.Token, err error) { return none, nil }
	}
	i := &Identity{cfg: cfg, base: base, local: local, log: log}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := cleanUp(cfg.Dir); err != nil {
		return nil, err
	}
	kept, err := readFile[identityFile](i.path())
	if errors.Is(err, fs.ErrNotExist) {
		return i, nil
	}
	var s *state
	if err == nil {
		s, err = i.load(kept)
	}
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("%s: %w: %w", i.path(), err, fault.ErrInvalid),
			"remove it and enroll with a token for the same node, which has its id: mete token create --node ID")
	}
	i.state.Store(s)
	return i, nil
}

// parseServer parses the address of a server. local reports whether it is a loopback
// address without TLS.
func parseServer(text string) (base *url.URL, local bool, err error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, false, fault.WithHint(fmt.Errorf("server %q: %w address", text, fault.ErrInvalid), "give it as https://host:port")
	}
	addr, err := netip.ParseAddr(u.Hostname())
	loopback := u.Hostname() == "localhost" || err == nil && addr.IsLoopback()
	switch {
	case u.Scheme == "http" && loopback:
		local = true
	case u.Scheme == "http":
		return nil, false, fault.WithHint(fmt.Errorf("server %q: plain http works only on this machine: %w", text, fault.ErrInvalid), "use https://"+u.Host)
	case u.Scheme != "https":
		return nil, false, fault.WithHint(fmt.Errorf("server %q: scheme %q: %w", text, u.Scheme, fault.ErrInvalid), "give it as https://host:port")
	}
	u.Path = strings.TrimRight(u.Path, "/")
	return u, local, nil
}

// Node returns the id of this node, or "" before enrollment. Only Enroll,
// Reenroll and Run change it.
func (i *Identity) Node() string {
	if s := i.state.Load(); s != nil {
		return s.node
	}
	return ""
}

// Cluster returns the cluster of the node.
func (i *Identity) Cluster() string {
	if s := i.state.Load(); s != nil {
		return s.cluster
	}
	return ""
}

// Server returns the address of the server without a trailing slash.
func (i *Identity) Server() string { return i.base.String() }

// LedgerID returns an id of the server's ledger, in letters and digits. It is derived
// from the server's certificate authority or, if that is not known, from the server's
// address. It is "" before enrollment.
func (i *Identity) LedgerID() string {
	s := i.state.Load()
	switch {
	case s == nil:
		return ""
	case s.ca == nil:
		sum := sha256.Sum256([]byte(i.base.Host))
		return LedgerID(token.Fingerprint(sum[:]))
	}
	return LedgerID(token.FingerprintOf(s.ca.Raw))
}

// LedgerID returns the id of the ledger of a server with this authority.
func LedgerID(ca token.Fingerprint) string { return ca.String()[:16] }

// Expiry returns the end of the certificate's validity, zero without a certificate.
func (i *Identity) Expiry() time.Time {
	if s := i.state.Load(); s != nil && s.leaf != nil {
		return s.leaf.NotAfter
	}
	return time.Time{}
}

// Enroll obtains an identity unless a valid one exists. If the token is of another
// authority than the identity, Enroll enrolls with that authority's server. It tries
// once. Its error wraps fault.ErrUnavailable if a retry may succeed, and
// fault.ErrDenied or fault.ErrInvalid if the operator must act.
func (i *Identity) Enroll(ctx context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.state.Load()
	if i.local {
		// Ask each time: it is cheap, and the server may have another ledger.
		c := newClient(i.newTransport(nil, nil))
		defer c.CloseIdleConnections()
		err := i.requestIdentity(ctx, c, token.Token{})
		if s != nil && errors.Is(err, fault.ErrUnavailable) {
			return nil
		}
		return err
	}
	tok, err := i.token()
	if err != nil {
		return err
	}
	if s != nil && !s.isForOtherAuthority(tok) && time.Now().Before(s.leaf.NotAfter) {
		return nil
	}
	return i.certify(ctx, tok, s)
}

// IsForOtherAuthority reports whether a token is for another authority than the current
// identity's.
func (i *Identity) IsForOtherAuthority(tok token.Token) bool {
	s := i.state.Load()
	return s != nil && s.leaf != nil && s.isForOtherAuthority(tok)
}

func (s *state) isForOtherAuthority(tok token.Token) bool {
	return !tok.IsZero() && tok.CA() != token.FingerprintOf(s.ca.Raw)
}

// certify obtains a certificate, with the current certificate or with the token.
func (i *Identity) certify(ctx context.Context, tok token.Token, s *state) error {
	if s == nil {
		return i.enrollByToken(ctx, tok)
	}
	if s.isForOtherAuthority(tok) {
		i.log.Warn("the token is of another certificate authority; enrolling with its server", "node", s.node)
		return i.enrollByToken(ctx, tok)
	}
	// The server's clock decides whether the certificate has ended, so try to renew first.
	err := i.renew(ctx, s)
	ended := time.Now().After(s.leaf.NotAfter)
	switch {
	case err == nil:
		return nil
	case tok.IsZero() && ended && isRefused(err):
		return fault.WithHint(fmt.Errorf("certificate of node %s ended on %s, and there is no token to enroll again: %w", s.node, s.leaf.NotAfter.Format(time.RFC3339), fault.ErrDenied), i.newTokenHint())
	case tok.IsZero() && ended:
		return fault.WithHint(fmt.Errorf("certificate of node %s ended on %s: %w", s.node, s.leaf.NotAfter.Format(time.RFC3339), err), i.newTokenHint())
	case !tok.IsZero() && (ended || isRefused(err)):
		return i.enrollByToken(ctx, tok)
	}
	return err
}

// enrollByToken enrolls with the server that the token is for.
func (i *Identity) enrollByToken(ctx context.Context, tok token.Token) error {
	if tok.IsZero() {
		return fault.WithHint(fmt.Errorf("not enrolled, and there is no token to enroll with: %w", fault.ErrDenied), i.newTokenHint())
	}
	t := i.newTransport(verifyPinned(tok.CA()), nil)
	defer t.CloseIdleConnections()
	return i.requestIdentity(ctx, newClient(t), tok)
}

// token returns the enrollment token, zero if there is none.
func (i *Identity) token() (token.Token, error) {
	tok, err := i.cfg.Token()
	if errors.Is(err, fault.ErrNotFound) {
		return token.Token{}, nil
	}
	return tok, err
}

// Reenroll obtains a new node id and certificate after the server detected another
// live machine with the same identity.
func (i *Identity) Reenroll(ctx context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.state.Load()
	if s == nil {
		return fmt.Errorf("not enrolled: %w", fault.ErrDenied)
	}
	return i.requestIdentity(ctx, i.Client(), token.Token{})
}

// requestIdentity enrolls with the token or, if that is zero, with the client's certificate.
func (i *Identity) requestIdentity(ctx context.Context, c *http.Client, tok token.Token) error {
	claim := i.claim()
	if i.local {
		g, err := i.post(ctx, c, "/v1/enroll", claim)
		if err != nil {
			return err
		}
		return i.adopt(g, nil)
	}
	if !tok.IsZero() {
		claim.Token = tok.Reveal()
	}
	key, err := i.loadPendingKey()
	if err != nil {
		return err
	}
	claim.CSR = newCSR(key)
	g, err := i.post(ctx, c, "/v1/enroll", claim)
	if err != nil {
		return err
	}
	if err := i.adopt(g, key); err != nil {
		return err
	}
	return i.dropPending()
}

// Renew obtains a new key and certificate for the same node. The old certificate stays
// valid until its end, for connections that use it.
func (i *Identity) Renew(ctx context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.state.Load()
	if s == nil {
		return fmt.Errorf("not enrolled: %w", fault.ErrDenied)
	}
	return i.renew(ctx, s)
}

func (i *Identity) renew(ctx context.Context, s *state) error {
	if i.local {
		return nil
	}
	key, claim := newKey(), i.claim()
	claim.CSR = newCSR(key)
	g, err := i.post(ctx, i.Client(), "/v1/renew", claim)
	if err != nil {
		return err
	}
	if g.Node != s.node {
		return fmt.Errorf("%s: renewed node %q instead of %q: %w", i.base, g.Node, s.node, fault.ErrUnavailable)
	}
	return i.adopt(g, key)
}

func (i *Identity) claim() token.Claim {
	return token.Claim{Role: i.cfg.Role, Machine: i.cfg.Facts.Machine, Boot: i.cfg.Facts.Boot, Name: i.cfg.Facts.Name}
}
