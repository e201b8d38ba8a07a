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

// ServerTLS returns the server's TLS configuration. A client may present a certificate, and TLS
// verifies that it has the key. Identify verifies the certificate itself: a failed handshake in TLS
// 1.3 often ends before the client can read the reason, and an agent must learn that its
// certificate has expired.
func (a *Authority) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		ClientAuth:     tls.RequestClientCert,
		ClientCAs:      a.roots, // tells clients which certificate to present
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return a.serverCertificate(), nil },
		NextProtos:     []string{"h2", "http/1.1"},
		// A resumed session would keep an identity verified days ago.
		SessionTicketsDisabled: true,
	}
}

// serverCertificate returns the server's certificate, renewing it if due.
func (a *Authority) serverCertificate() *tls.Certificate {
	if now := time.Now(); now.After(renewalTime(a.chain.Load().Leaf)) && a.mu.TryLock() {
		defer a.mu.Unlock()
		if err := a.renewServer(now); err != nil {
			a.log.Error("server certificate not renewed", "err", err)
		}
	}
	return a.chain.Load()
}

// unidentifiedError is the error for a request without valid credentials.
type unidentifiedError struct{ error }

func (u unidentifiedError) Unwrap() error { return u.error }

// IsUnidentified reports whether an error of Identify means that the request has no valid
// credentials, rather than too few rights.
func IsUnidentified(err error) bool {
	_, ok := errors.AsType[unidentifiedError](err)
	return ok
}

// Identify returns the client of a request: the holder of a certificate, the bearer of a token of
// a viewer, a writer or a browser, or the server's own user, see [TrustLocal]. A request with both
// a certificate and a token is refused, since it would be ambiguous whose rights apply. The error is
// fault.ErrDenied, or fault.ErrUnavailable if the registry cannot be read.
func (a *Authority) Identify(r *http.Request) (token.Principal, error) {
	text, bears := bearerToken(r)
	switch cert := clientCertificate(r); {
	case cert != nil && bears:
		return token.Principal{}, fmt.Errorf("both a certificate and a token: %w", fault.ErrDenied)
	case cert != nil:
		return a.identifyByCertificate(r.Context(), cert)
	case bears && (r.TLS != nil || a.mayBear(r)):
		return a.identifyByToken(r.Context(), text)
	case !bears && isLocal(r):
		return a.identifyLocal(r)
	case a.cfg.Local:
		return token.Principal{}, unidentifiedError{fault.WithHint(fmt.Errorf("this server answers its own user and root, and bearers of a token: %w", fault.ErrDenied),
			"run this as the user that runs the server, as with sudo, or with a token that this user makes: mete token create --role viewer")}
	}
	return token.Principal{}, unidentifiedError{fault.WithHint(fmt.Errorf("neither a certificate nor a token: %w", fault.ErrDenied),
		"mete token create --role viewer makes a token for reading")}
}

// clientCertificate returns the client's certificate, whose key it has. The certificate's signature
// is not verified yet.
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
		return token.Principal{}, fmt.Errorf("certificate is neither of a node nor of a server: %w", fault.ErrDenied)
	}
	// Checked for each request, as a connection may outlive the certificate.
	if now := time.Now(); now.Before(cert.NotBefore) || now.After(cert.NotAfter) {
		hint := "enroll the machine with a new token: mete token create --role agent"
		if role == registry.Upstream {
			hint = "enroll the server with a new token: mete token create --role upstream --node " + n.ID
		}
		return token.Principal{}, unidentifiedError{fault.WithHint(fmt.Errorf("certificate of node %s is valid from %s to %s: %w", n.ID, cert.NotBefore.Format(time.RFC3339), cert.NotAfter.Format(time.RFC3339), fault.ErrDenied), hint)}
	}
	if err := a.CheckAllowed(ctx, n.ID); err != nil {
		return token.Principal{}, err
	}
	a.expiries.Store(n.ID, cert.NotAfter)
	return token.Principal{Node: n.ID, Cluster: n.Cluster, Role: role, Jobs: n.IsJobs()}, nil
}

// CertificateExpiry returns when the latest certificate seen of a node or downstream server
// expires; false if none was seen since the start.
func (a *Authority) CertificateExpiry(node string) (time.Time, bool) {
	t, ok := a.expiries.Load(node)
	if !ok {
		return time.Time{}, false
	}
	return t.(time.Time), true
}

// OwnExpiry returns when the server's certificate and the authority's expire.
func (a *Authority) OwnExpiry() (server, authority time.Time) {
	return a.chain.Load().Leaf.NotAfter, a.ca.cert.NotAfter
}

// CheckAllowed returns fault.ErrDenied if a node or downstream server is revoked.
func (a *Authority) CheckAllowed(ctx context.Context, node string) error {
	revoked, err := a.registryCache.revoked(ctx, node)
	if err == nil && revoked {
		return registry.RevokedError(node)
	}
	return err
}

func (a *Authority) identifyByToken(ctx context.Context, text string) (token.Principal, error) {
	if isPageToken(text) {
		if a.pages.admits(text) {
			return token.Principal{Role: registry.Viewer}, nil
		}
		return token.Principal{}, unidentifiedError{fault.WithHint(fmt.Errorf("this browser's access ended with an earlier start of the server: %w", fault.ErrDenied), "mete token link makes a new link for it")}
	}
	if token.IsJob(text) {
		return token.Principal{}, fault.WithHint(fmt.Errorf("a job's token is only for querying its own use: %w", fault.ErrDenied), "it is accepted at /v1/self; mete token create --role viewer makes one for reading")
	}
	if token.IsForeign(text) {
		return token.Principal{}, unidentifiedError{fault.WithHint(fmt.Errorf("a pod's token is only for querying its own use: %w", fault.ErrDenied), "it is accepted at /v1/self; mete token create --role viewer makes one for reading")}
	}
	tok, err := token.Parse(text)
	if err != nil {
		// A malformed token is a missing right, not a malformed request.
		return token.Principal{}, unidentifiedError{fault.WithHint(fmt.Errorf("%v: %w", err, fault.ErrDenied), fault.Hint(err))}
	}
	t, ok, err := a.registryCache.token(ctx, tok)
	if err != nil {
		return token.Principal{}, err
	}
	now := time.Now()
	switch {
	case !ok:
		return token.Principal{}, unidentifiedError{fault.WithHint(fmt.Errorf("token %s is not one of this server: %w", tok.ID(), fault.ErrDenied),
			"mete token list shows those that are; mete token create --role viewer makes one for reading")}
	case !t.Revoked.IsZero():
		err = fmt.Errorf("token %s is revoked: %w", t.ID, fault.ErrDenied)
	case !t.Expires.IsZero() && !now.Before(t.Expires):
		err = fmt.Errorf("token %s expired at %s: %w", t.ID, t.Expires.UTC().Format(time.RFC3339), fault.ErrDenied)
	case !t.Role.IsBearer():
		err = fmt.Errorf("token %s is for role %s, not for reading: %w", t.ID, t.Role, fault.ErrDenied)
	default:
		return token.Principal{Cluster: t.Cluster, Role: t.Role, Token: t.ID}, nil
	}
	return token.Principal{}, fault.WithHint(err, "mete token create --role viewer makes a token for reading")
}

func (a *Authority) identifyLocal(r *http.Request) (token.Principal, error) {
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

// localKey is the key, in the context of a request, that marks those of [TrustLocal].
type localKey struct{}

// TrustLocal wraps a handler for a listener that only the user of this process and root can
// reach, such as one of package sameuser: a request without a credential enrolls and reads as
// the server's own user.
func TrustLocal(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), localKey{}, true)))
	})
}

// isLocal reports whether a request came through [TrustLocal].
func isLocal(r *http.Request) bool { return r.Context().Value(localKey{}) != nil }

// mayBear reports whether a request without TLS may have a token: only one whose way was within
// this machine.
func (a *Authority) mayBear(r *http.Request) bool {
	return isLocal(r) || a.isOnLoopback(r) && r.Header.Get("Origin") == ""
}

// isOnLoopback reports whether a request came from a program on this machine, without TLS, and
// Config.Local admits those. Requests of a local proxy come from the loopback too, but have
// telling headers.
func (a *Authority) isOnLoopback(r *http.Request) bool {
	if !a.cfg.Local || r.TLS != nil || !remoteAddr(r).IsLoopback() {
		return false
	}
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "Via"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	// A foreign host name may resolve to the loopback (DNS rebinding).
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// remoteAddr returns the address that a request came from.
func remoteAddr(r *http.Request) netip.Addr {
	ap, _ := netip.ParseAddrPort(r.RemoteAddr)
	return ap.Addr().Unmap()
}

// A verifiedCache remembers verified client certificates, so that they are not verified for each
// request.
type verifiedCache struct {
	mu   sync.Mutex
	good map[[sha256.Size]byte]bool
}

// maxVerified is how many certificates are remembered.
const maxVerified = 1 << 14

// check verifies that a certificate is a client's and signed by one of roots. It does not check the
// dates.
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

// A registryCache caches tokens and revocations for a moment, as every request needs them.
type registryCache struct {
	reg Registry

	mu    sync.Mutex
	next  time.Time                 // when to read again
	err   error                     // of the latest read
	all   map[string]registry.Token // by ID
	nodes map[string]bool           // revoked nodes
}

// cacheTTL is how long results are cached, and so how long another process's revocation may go
// unnoticed; errorTTL the same for errors, so that not every request queries a failing registry.
// Both count from the end of a read, since a slow read may exceed them while requests wait for it.
const (
	cacheTTL = 5 * time.Second
	errorTTL = time.Second
)

// invalidate makes the next request read the registry.
func (c *registryCache) invalidate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = time.Time{}
}

func (c *registryCache) load(ctx context.Context) error {
	if time.Now().Before(c.next) {
		return c.err
	}
	// The result serves other requests too, so the read continues if this one is canceled.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cacheTTL)
	defer cancel()
	wait := cacheTTL
	if c.err = registryError(c.read(ctx)); c.err != nil {
		wait = errorTTL
	}
	c.next = time.Now().Add(wait)
	return c.err
}

// registryError converts an error of reading the registry to fault.ErrUnavailable: clients may
// retry.
func registryError(err error) error {
	if err == nil || errors.Is(err, fault.ErrUnavailable) {
		return err
	}
	return fault.WithHint(fmt.Errorf("the registry cannot be read: %v: %w", err, fault.ErrUnavailable), fault.Hint(err))
}

func (c *registryCache) read(ctx context.Context) error {
	tokens, err := c.reg.Tokens(ctx)
	if err != nil {
		return err
	}
	nodes, err := c.reg.RevokedNodes(ctx)
	if err != nil {
		return err
	}
	c.all, c.nodes = map[string]registry.Token{}, map[string]bool{}
	for _, t := range tokens {
		c.all[t.ID] = t
	}
	for _, id := range nodes {
		c.nodes[id] = true
	}
	return nil
}

func (c *registryCache) revoked(ctx context.Context, node string) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.load(ctx)
	return c.nodes[node], err
}

// token returns the token with tok's secret. Its duration does not reveal how close a guess is.
func (c *registryCache) token(ctx context.Context, tok token.Token) (registry.Token, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.load(ctx); err != nil {
		return registry.Token{}, false, err
	}
	t, ok := c.all[tok.ID()]
	hash := tok.Hash()
	return t, subtle.ConstantTimeCompare(t.Hash[:], hash[:]) == 1 && ok, nil
}
