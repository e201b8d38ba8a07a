// Package enroll is an agent's identity: which node it is, the certificate that
// proves it, and how both are got and renewed.
//
// An identity is one file, replaced as a whole: no crash can part a key from its
// certificate. The key is made here and never leaves the machine.
package enroll

import (
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

// Facts are what a machine says of itself.
type Facts struct {
	Machine string // its id: /etc/machine-id, or what stands for it
	Boot    string // boot id
	Name    string // host name
}

// Config says whose identity it is, and where it is got.
type Config struct {
	Dir string // holds the identity; made where it is not there
	// Server is https://host:port. It may be http://host:port where host is this
	// machine's loopback: there a server may trust whoever is on the machine, and
	// an identity needs neither token nor certificate.
	Server string
	// Token returns the token to enroll by, each time that one is needed. It may be
	// nil, or return fault.ErrNotFound: then there is none.
	Token func() (token.Token, error)
	Role  registry.Role // "" is registry.Agent
	Facts Facts

	dial dialer
}

// newToken is what helps where an identity cannot be had otherwise.
const newToken = "on the server's machine: mete token create --role agent"

// An Identity is who this machine is to a server. Its methods may be called from
// several goroutines.
type Identity struct {
	cfg   Config
	base  *url.URL
	local bool
	log   *slog.Logger

	mu    sync.Mutex // held by who changes state
	state atomic.Pointer[state]
}

// A state is an identity as it is at one time.
type state struct {
	node, cluster string
	leaf, ca      *x509.Certificate // nil where the loopback needs none
	jobs          token.JobKey      // zero where the server gave none
	pair          tls.Certificate
	transport     *http.Transport
}

// Open returns the identity in cfg.Dir as it is there, which may be none yet. It
// asks nobody.
func Open(cfg Config, log *slog.Logger) (*Identity, error) {
	base, local, err := parseServer(cfg.Server)
	if err != nil {
		return nil, err
	}
	if cfg.Token == nil {
		cfg.Token = func() (token.Token, error) { return token.Token{}, fault.ErrNotFound }
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
			"remove it and enroll with a new token: the server knows the machine by its machine id, and gives it the same node")
	}
	i.state.Store(s)
	return i, nil
}

// parseServer reads the address of a server. local says that it is one without
// TLS on this machine.
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
		return nil, false, fault.WithHint(fmt.Errorf("server %q: http is for a server on this machine only: %w", text, fault.ErrInvalid), "use https://"+u.Host)
	case u.Scheme != "https":
		return nil, false, fault.WithHint(fmt.Errorf("server %q: scheme %q: %w", text, u.Scheme, fault.ErrInvalid), "give it as https://host:port")
	}
	u.Path = strings.TrimRight(u.Path, "/")
	return u, local, nil
}

// Node is the id of this node; "" as long as it is not enrolled. Only Enroll,
// Reenroll and Run change it.
func (i *Identity) Node() string {
	if s := i.state.Load(); s != nil {
		return s.node
	}
	return ""
}

// Cluster is the cluster that the node was enrolled for.
func (i *Identity) Cluster() string {
	if s := i.state.Load(); s != nil {
		return s.cluster
	}
	return ""
}

// Server is the address of the server, without a slash at its end.
func (i *Identity) Server() string { return i.base.String() }

// LedgerID tells the ledger that the server keeps from all others, by letters and
// digits: it is made of its certificate authority, or of the server's address
// where that is not known. It is "" as long as the node is not enrolled.
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

// LedgerID tells the ledger of a server with this authority from all others.
func LedgerID(ca token.Fingerprint) string { return ca.String()[:16] }

// Expiry is when the certificate ends; zero where there is none.
func (i *Identity) Expiry() time.Time {
	if s := i.state.Load(); s != nil && s.leaf != nil {
		return s.leaf.NotAfter
	}
	return time.Time{}
}

// Enroll makes sure that there is an identity: where a good one is there it does
// nothing. A token of another authority than the identity's says that the
// machine is to go to another server, and is followed. It tries once; the
// error is fault.ErrUnavailable where it may work later, fault.ErrDenied or
// fault.ErrInvalid where a person has to do something.
func (i *Identity) Enroll(ctx context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.state.Load()
	if i.local {
		// It is asked again each time, as it costs nothing and its ledger may be
		// another one by now.
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

// IsForOtherAuthority says whether a token is for another authority than that of the identity
// that is there.
func (i *Identity) IsForOtherAuthority(tok token.Token) bool {
	s := i.state.Load()
	return s != nil && s.leaf != nil && s.isForOtherAuthority(tok)
}

// isForOtherAuthority says whether a token is for another authority than that of the
// identity.
func (s *state) isForOtherAuthority(tok token.Token) bool {
	return !tok.IsZero() && tok.CA() != token.FingerprintOf(s.ca.Raw)
}

// certify gets a certificate, by the one that is there or by the token.
func (i *Identity) certify(ctx context.Context, tok token.Token, s *state) error {
	if s == nil {
		return i.enrollByToken(ctx, tok)
	}
	if s.isForOtherAuthority(tok) {
		i.log.Warn("the token is of another certificate authority: enrolling there", "node", s.node)
		return i.enrollByToken(ctx, tok)
	}
	// Whether a certificate has ended is for the server's clock to say, so that is
	// asked first.
	err := i.renew(ctx, s)
	ended := time.Now().After(s.leaf.NotAfter)
	switch {
	case err == nil:
		return nil
	case tok.IsZero() && ended && isRefused(err):
		return fault.WithHint(fmt.Errorf("certificate of node %s ended on %s, and there is no token to enroll by again: %w", s.node, s.leaf.NotAfter.Format(time.RFC3339), fault.ErrDenied), newToken)
	case tok.IsZero() && ended:
		return fault.WithHint(fmt.Errorf("certificate of node %s ended on %s: %w", s.node, s.leaf.NotAfter.Format(time.RFC3339), err), newToken)
	case !tok.IsZero() && (ended || isRefused(err)):
		return i.enrollByToken(ctx, tok)
	}
	return err
}

// enrollByToken enrolls with the server that the token is for.
func (i *Identity) enrollByToken(ctx context.Context, tok token.Token) error {
	if tok.IsZero() {
		return fault.WithHint(fmt.Errorf("not enrolled, and there is no token to enroll by: %w", fault.ErrDenied), newToken)
	}
	t := i.newTransport(verifyPinned(tok.CA()), nil)
	defer t.CloseIdleConnections()
	return i.requestIdentity(ctx, newClient(t), tok)
}

// token is the one to enroll by; zero where there is none.
func (i *Identity) token() (token.Token, error) {
	tok, err := i.cfg.Token()
	if errors.Is(err, fault.ErrNotFound) {
		return token.Token{}, nil
	}
	return tok, err
}

// Reenroll makes this machine a node of its own where the server found that
// another one has the same identity and is at work.
func (i *Identity) Reenroll(ctx context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.state.Load()
	if s == nil {
		return fmt.Errorf("not enrolled: %w", fault.ErrDenied)
	}
	return i.requestIdentity(ctx, i.Client(), token.Token{})
}

// requestIdentity enrolls: with a token if there is one, else by what the client shows.
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
	if claim.CSR, err = newCSR(key); err != nil {
		return err
	}
	g, err := i.post(ctx, c, "/v1/enroll", claim)
	if err != nil {
		return err
	}
	if err := i.adopt(g, key); err != nil {
		return err
	}
	return i.dropPending()
}

// Renew gets a new key and certificate for the same node. The old ones stay good
// until they end, so that nothing under way is disturbed.
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
	key, err := newKey()
	if err != nil {
		return err
	}
	claim := i.claim()
	if claim.CSR, err = newCSR(key); err != nil {
		return err
	}
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
