package ca

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/token"
)

// ServerTLS is how a server listens. A client may show a certificate, and has to
// prove that it holds the key. Whether that certificate is good is for Identify
// to say: a handshake could only break off, in TLS 1.3 often before the client
// can read why, and an agent has to learn that its certificate has ended.
func (a *Authority) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		ClientAuth:     tls.RequestClientCert,
		ClientCAs:      a.roots, // by which clients choose what to show
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return a.serverCertificate(), nil },
		NextProtos:     []string{"h2", "http/1.1"},
		// A resumed session would bring along what was proved days ago.
		SessionTicketsDisabled: true,
	}
}

// serverCertificate returns the server's own, which it renews when that is due.
func (a *Authority) serverCertificate() *tls.Certificate {
	if now := time.Now(); now.After(renewalTime(a.chain.Load().Leaf)) && a.mu.TryLock() {
		defer a.mu.Unlock()
		if err := a.renewServer(now); err != nil {
			a.log.Error("server certificate not renewed", "err", err)
		}
	}
	return a.chain.Load()
}

// unidentifiedError is the error of one who shows nothing, or nothing any more, that
// says who he is.
type unidentifiedError struct{ error }

func (u unidentifiedError) Unwrap() error { return u.error }

// IsUnidentified says whether an error of Identify means that the request showed
// nothing that could say who asks, rather than that he may not.
func IsUnidentified(err error) bool {
	_, ok := errors.AsType[unidentifiedError](err)
	return ok
}

// Identify says who asks: the holder of a certificate, the bearer of a viewer's
// or writer's token, or this machine itself where Config.Local trusts it. One who shows both
// a certificate and a token is refused, so that nobody has to think about whose
// rights count. The error is fault.ErrDenied, or
// fault.ErrUnavailable where the registry could not be read.
func (a *Authority) Identify(r *http.Request) (token.Principal, error) {
	text, bears := bearerToken(r)
	switch cert := clientCertificate(r); {
	case cert != nil && bears:
		return token.Principal{}, fmt.Errorf("both a certificate and a token: %w", fault.ErrDenied)
	case cert != nil:
		return a.identifyByCertificate(r.Context(), cert)
	case bears && (r.TLS != nil || a.isLocal(r)):
		return a.identifyByToken(r.Context(), text)
	case !bears && a.isLocal(r):
		return a.identifyByLoopback(r)
	}
	return token.Principal{}, unidentifiedError{fault.WithHint(fmt.Errorf("neither a certificate nor a token: %w", fault.ErrDenied),
		"mete token create --role viewer makes a token for reading")}
}

// clientCertificate returns the certificate whose key the client holds. That says nothing
// yet of who signed it.
func clientCertificate(r *http.Request) *x509.Certificate {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil
	}
	return r.TLS.PeerCertificates[0]
}

func bearerToken(r *http.Request) (text string, ok bool) {
	scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return text, strings.EqualFold(scheme, "bearer")
}

func (a *Authority) identifyByCertificate(ctx context.Context, cert *x509.Certificate) (token.Principal, error) {
	if err := a.verified.check(a.roots, cert); err != nil {
		return token.Principal{}, unidentifiedError{fmt.Errorf("certificate: %w: %w", err, fault.ErrDenied)}
	}
	n, role, ok := parseHolder(cert)
	if !ok {
		return token.Principal{}, fmt.Errorf("certificate of neither a node nor a server: %w", fault.ErrDenied)
	}
	// Each time, as a connection may live longer than what opened it.
	if now := time.Now(); now.Before(cert.NotBefore) || now.After(cert.NotAfter) {
		return token.Principal{}, unidentifiedError{fault.WithHint(fmt.Errorf("certificate of node %s is good from %s to %s: %w", n.ID, cert.NotBefore.Format(time.RFC3339), cert.NotAfter.Format(time.RFC3339), fault.ErrDenied),
			"enroll the machine with a new token: mete token create --role agent")}
	}
	if err := a.CheckAllowed(ctx, n.ID); err != nil {
		return token.Principal{}, err
	}
	a.expiries.Store(n.ID, cert.NotAfter)
	return token.Principal{Node: n.ID, Cluster: n.Cluster, Role: role}, nil
}

// CertificateExpiry is when the certificate ends with which a node, or a server below, was heard
// of last; false where it was not since the start.
func (a *Authority) CertificateExpiry(node string) (time.Time, bool) {
	t, ok := a.expiries.Load(node)
	if !ok {
		return time.Time{}, false
	}
	return t.(time.Time), true
}

// OwnExpiry is when the server's own certificate ends, and that of the authority.
func (a *Authority) OwnExpiry() (server, authority time.Time) {
	return a.chain.Load().Leaf.NotAfter, a.ca.cert.NotAfter
}

// CheckAllowed says whether a node, or a server below, may still send: fault.ErrDenied
// where it is revoked.
func (a *Authority) CheckAllowed(ctx context.Context, node string) error {
	revoked, err := a.registryCache.revoked(ctx, node)
	if err == nil && revoked {
		return registry.RevokedError(node)
	}
	return err
}

func (a *Authority) identifyByToken(ctx context.Context, text string) (token.Principal, error) {
	if token.IsJob(text) {
		return token.Principal{}, fault.WithHint(fmt.Errorf("a job's token is for its own use alone: %w", fault.ErrDenied), "it is good at /v1/self; mete token create --role viewer makes one for reading")
	}
	tok, err := token.Parse(text)
	if err != nil {
		// Who shows half a token lacks a right; his request is well formed.
		return token.Principal{}, unidentifiedError{fault.WithHint(fmt.Errorf("%v: %w", err, fault.ErrDenied), fault.Hint(err))}
	}
	t, ok, err := a.registryCache.token(ctx, tok)
	if err != nil {
		return token.Principal{}, err
	}
	now := time.Now()
	switch {
	case !ok:
		return token.Principal{}, unidentifiedError{fault.WithHint(fmt.Errorf("token %s is none of this server's: %w", tok.ID(), fault.ErrDenied),
			"mete token list shows those that are; mete token create --role viewer makes one for reading")}
	case !t.Revoked.IsZero():
		err = fmt.Errorf("token %s is revoked: %w", t.ID, fault.ErrDenied)
	case !t.Expires.IsZero() && !now.Before(t.Expires):
		err = fmt.Errorf("token %s ended at %s: %w", t.ID, t.Expires.UTC().Format(time.RFC3339), fault.ErrDenied)
	case !t.Role.IsBearer():
		err = fmt.Errorf("token %s is for role %s, not for reading: %w", t.ID, t.Role, fault.ErrDenied)
	default:
		return token.Principal{Cluster: t.Cluster, Role: t.Role, Token: t.ID}, nil
	}
	return token.Principal{}, fault.WithHint(err, "mete token create --role viewer makes a token for reading")
}

func (a *Authority) identifyByLoopback(r *http.Request) (token.Principal, error) {
	id := r.Header.Get(token.NodeHeader)
	if id == "" {
		return token.Principal{Role: registry.Viewer}, nil
	}
	n, err := a.reg.Node(r.Context(), id)
	if errors.Is(err, fault.ErrNotFound) {
		return token.Principal{}, fmt.Errorf("node %q is not enrolled: %w", id, fault.ErrDenied)
	}
	if err != nil {
		return token.Principal{}, registryError(err)
	}
	if err := a.CheckAllowed(r.Context(), n.ID); err != nil {
		return token.Principal{}, err
	}
	return token.Principal{Node: n.ID, Cluster: n.Cluster, Role: registry.Agent}, nil
}

// isLocal says whether a request came from a program of this machine, without
// TLS, and may be trusted for it. A proxy's requests come from the loopback
// too, and a page's from a browser on it; those carry headers that tell.
func (a *Authority) isLocal(r *http.Request) bool {
	if !a.cfg.Local || r.TLS != nil || !remoteAddr(r).IsLoopback() {
		return false
	}
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "Via", "Origin"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	// A name of another's that leads here (DNS rebinding) is not this machine's.
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// remoteAddr is the address that a request came from.
func remoteAddr(r *http.Request) netip.Addr {
	ap, _ := netip.ParseAddrPort(r.RemoteAddr)
	return ap.Addr().Unmap()
}

// verifiedCache remembers certificates that the authority signed for clients, so that
// a connection's is not verified at each of its requests.
type verifiedCache struct {
	mu   sync.Mutex
	good map[[sha256.Size]byte]bool
}

// maxVerified is how many are remembered.
const maxVerified = 1 << 14

// check says whether a certificate is a client's and signed by one of roots. It
// leaves aside from when to when it is good.
func (v *verifiedCache) check(roots *x509.CertPool, cert *x509.Certificate) error {
	sum := sha256.Sum256(cert.Raw)
	v.mu.Lock()
	good := v.good[sum]
	v.mu.Unlock()
	if good {
		return nil
	}
	_, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: cert.NotBefore, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.good == nil || len(v.good) >= maxVerified {
		v.good = map[[sha256.Size]byte]bool{}
	}
	v.good[sum] = true
	return nil
}

// registryCache remembers for a moment which tokens there are and who is revoked, as
// every request asks for it.
type registryCache struct {
	reg Registry

	mu    sync.Mutex
	next  time.Time                 // when it reads again
	err   error                     // of the last time
	all   map[string]registry.Token // by ID
	nodes map[string]bool           // the revoked ones
}

// How long known believes what it read, which is how long another process's
// revocation may go unseen; and an error, so that a registry that is out of
// order is not asked by everybody at once. Both count from the end of the reading:
// it may have taken longer than that itself, with many waiting for it.
const (
	cacheTTL = 5 * time.Second
	errorTTL = time.Second
)

// invalidate has the next question asked of the registry.
func (k *registryCache) invalidate() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next = time.Time{}
}

func (k *registryCache) load(ctx context.Context) error {
	if time.Now().Before(k.next) {
		return k.err
	}
	// The answer is for others too, who do not leave when this one does.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cacheTTL)
	defer cancel()
	wait := cacheTTL
	if k.err = registryError(k.read(ctx)); k.err != nil {
		wait = errorTTL
	}
	k.next = time.Now().Add(wait)
	return k.err
}

// registryError is the error of a reading of the registry that failed. Whatever it was, it
// refuses nobody: they may try again.
func registryError(err error) error {
	if err == nil || errors.Is(err, fault.ErrUnavailable) {
		return err
	}
	return fault.WithHint(fmt.Errorf("who is known here cannot be read: %v: %w", err, fault.ErrUnavailable), fault.Hint(err))
}

func (k *registryCache) read(ctx context.Context) error {
	tokens, err := k.reg.Tokens(ctx)
	if err != nil {
		return err
	}
	nodes, err := k.reg.RevokedNodes(ctx)
	if err != nil {
		return err
	}
	k.all, k.nodes = map[string]registry.Token{}, map[string]bool{}
	for _, t := range tokens {
		k.all[t.ID] = t
	}
	for _, id := range nodes {
		k.nodes[id] = true
	}
	return nil
}

func (k *registryCache) revoked(ctx context.Context, node string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.load(ctx)
	return k.nodes[node], err
}

// token returns the token whose secret tok has. How long it takes says nothing
// about how nearly it was right.
func (k *registryCache) token(ctx context.Context, tok token.Token) (registry.Token, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.load(ctx); err != nil {
		return registry.Token{}, false, err
	}
	t, ok := k.all[tok.ID()]
	hash := tok.Hash()
	return t, subtle.ConstantTimeCompare(t.Hash[:], hash[:]) == 1 && ok, nil
}
