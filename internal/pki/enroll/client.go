package enroll

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/httpx"
	"mete.dev/mete/internal/x/sameuser"
)

// A dialer opens connections; nil means that of package net.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

const (
	maxGrant       = 1 << 20          // bytes; an answer has about 2,000
	connectTimeout = 10 * time.Second // of TCP, and of the handshake
)

// Client returns a client that presents the current certificate and trusts only servers of
// the identity's authority. It follows no redirects. After a renewal it presents the new
// certificate in later requests; those in flight keep the old one.
func (i *Identity) Client() *http.Client { return newClient((*roundTripper)(i)) }

func newClient(t http.RoundTripper) *http.Client {
	return &http.Client{Transport: t, CheckRedirect: httpx.NoRedirect}
}

// roundTripper sends each request with the current identity.
type roundTripper Identity

// RoundTrip implements http.RoundTripper.
func (t *roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	s := t.state.Load()
	if s == nil {
		if r.Body != nil {
			_ = r.Body.Close() // required of an http.RoundTripper after an error too
		}
		return nil, fmt.Errorf("not enrolled: %w", fault.ErrDenied)
	}
	if t.local && r.URL.Host == t.base.Host {
		r = r.Clone(r.Context())
		r.Header.Set(token.NodeHeader, s.node)
	}
	return s.transport.RoundTrip(r)
}

// CloseIdleConnections implements http.Client.CloseIdleConnections.
func (t *roundTripper) CloseIdleConnections() {
	if s := t.state.Load(); s != nil {
		s.transport.CloseIdleConnections()
	}
}

func (i *Identity) newTransport(check verifier, own *tls.Certificate) *http.Transport {
	return newTransport(check, own, i.cfg.dial)
}

// newTransport returns a transport that trusts servers whose certificates pass check and
// presents own, if not nil. A nil check is for plain HTTP on the loopback interface, where the
// kernel says whose server it is: package sameuser.
func newTransport(check verifier, own *tls.Certificate, dial dialer) *http.Transport {
	switch {
	case dial != nil:
	case check == nil:
		dial = sameuser.Dial
	default:
		dial = (&net.Dialer{Timeout: connectTimeout}).DialContext
	}
	t := &http.Transport{
		DialContext:         dial,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: connectTimeout,
		IdleConnTimeout:     90 * time.Second,
		// Close the connection to a silent peer after 45 s.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
	if check == nil {
		return t
	}
	t.Proxy = http.ProxyFromEnvironment
	t.TLSClientConfig = &tls.Config{
		MinVersion: tls.VersionTLS13,
		// VerifyConnection replaces the verification of crypto/tls.
		InsecureSkipVerify: true,
		VerifyConnection:   func(c tls.ConnectionState) error { return check(c.PeerCertificates) },
	}
	if own != nil {
		t.TLSClientConfig.Certificates = []tls.Certificate{*own}
	}
	return t
}

// A verifier checks a server's certificate chain, the server's own certificate first.
type verifier func(chain []*x509.Certificate) error

// verifyRoot accepts the servers of one authority. It ignores the server's name, because the
// authority signs only for its own servers. It requires a certificate for servers, because
// the authority also signs those of nodes.
func verifyRoot(ca *x509.Certificate) verifier {
	return func(chain []*x509.Certificate) error {
		if len(chain) == 0 {
			return fmt.Errorf("server without a certificate: %w", fault.ErrDenied)
		}
		roots := x509.NewCertPool()
		roots.AddCert(ca)
		// A machine whose clock is behind must still reach its server, which corrects the
		// times that the machine sends.
		now := time.Now()
		for _, from := range []time.Time{chain[0].NotBefore, ca.NotBefore} {
			if from.After(now) {
				now = from
			}
		}
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		if _, other := errors.AsType[x509.UnknownAuthorityError](err); other {
			return otherAuthorityError(token.FingerprintOf(ca.Raw))
		}
		if err != nil {
			return fault.WithHint(fmt.Errorf("server certificate: %w: %w", err, fault.ErrDenied), "check this machine's clock")
		}
		return nil
	}
}

// verifyPinned accepts servers whose chain contains the authority's certificate with this
// fingerprint.
func verifyPinned(want token.Fingerprint) verifier {
	return func(chain []*x509.Certificate) error {
		for _, c := range chain {
			if c.IsCA && token.FingerprintOf(c.Raw) == want {
				return verifyRoot(c)(chain)
			}
		}
		return otherAuthorityError(want)
	}
}

func otherAuthorityError(want token.Fingerprint) error {
	return fault.WithHint(fmt.Errorf("server belongs to another certificate authority than %s: %w", want, fault.ErrDenied),
		"check the server's address; if the server was set up again, enroll with a new token of it")
}

// ReaderClient returns a client that reads from a server with a viewer's token. It sends the
// token only to a server of the token's authority. The token may be zero for a server on the
// loopback interface without TLS.
func ReaderClient(server string, tok token.Token) (*http.Client, error) {
	base, local, err := parseServer(server)
	if err != nil {
		return nil, err
	}
	if local {
		return newClient(tokenTransport{newTransport(nil, nil, nil), tok, base.Host}), nil
	}
	if tok.IsZero() {
		return nil, fault.WithHint(fmt.Errorf("%s: a token is needed: %w", server, fault.ErrDenied), "on the server's machine: mete token create --role viewer")
	}
	return newClient(tokenTransport{newTransport(verifyPinned(tok.CA()), nil, nil), tok, base.Host}), nil
}

// tokenTransport sends a token to one host.
type tokenTransport struct {
	*http.Transport
	tok  token.Token
	host string
}

// RoundTrip implements http.RoundTripper.
func (t tokenTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !t.tok.IsZero() && r.URL.Host == t.host {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+t.tok.Reveal())
	}
	return t.Transport.RoundTrip(r)
}

// refusedError is the error of a certificate that the server rejects.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

func isRefused(err error) bool {
	_, ok := errors.AsType[refusedError](err)
	return ok
}

// post sends a claim to the server and returns the grant.
func (i *Identity) post(ctx context.Context, c *http.Client, path string, claim token.Claim) (g token.Grant, err error) {
	body := must(json.Marshal(claim)) // strings
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	r := must(http.NewRequestWithContext(ctx, http.MethodPost, i.base.String()+path, bytes.NewReader(body))) // base was parsed
	r.Header.Set("Content-Type", "application/json")
	a, err := httpx.Do(c, r, maxGrant)
	switch {
	case errors.Is(err, http.ErrSchemeMismatch):
		err = fault.WithHint(err, "the server speaks plain HTTP: use http:// on the server's machine, or start the server with TLS")
	case err == nil && a.StatusCode != http.StatusOK:
		err = refusalOf(a)
	case err == nil:
		if err = json.Unmarshal(a.Body, &g); err != nil {
			err = fmt.Errorf("answer: %w: %w", err, fault.ErrUnavailable)
		}
	}
	if err != nil {
		return g, fmt.Errorf("%s: %w", i.base, err)
	}
	return g, nil
}

// refusalOf returns the error of an answer whose status is not 200.
func refusalOf(a *httpx.Answer) error {
	p, own := a.Problem()
	if !own {
		err := fmt.Errorf("answer %s is not from a mete server: %w", a.Status, fault.ErrUnavailable)
		if a.StatusCode == http.StatusBadRequest && a.Request.URL.Scheme == "http" {
			return fault.WithHint(err, "perhaps it speaks TLS: use https://")
		}
		return err
	}
	err := p.Err()
	if a.StatusCode == http.StatusUnauthorized {
		err = refusedError{err}
	}
	return &fault.RetryError{Err: err, After: httpx.RetryAfter(a.Header, time.Now())}
}
