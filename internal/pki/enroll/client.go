package enroll

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/httpx"
)

// A dialer opens connections; nil is the network's.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// maxGrant is how long an answer may be, in bytes; one has some 2,000.
const maxGrant = 1 << 20

// Client returns a client that shows the certificate which is good at the time,
// and trusts servers of the node's own authority only. It follows no redirect.
// It may be kept: a renewed certificate is used by the next request, requests
// under way go on with the one before.
func (i *Identity) Client() *http.Client { return newClient((*roundTripper)(i)) }

func newClient(t http.RoundTripper) *http.Client {
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// roundTripper sends requests as the identity is at the time.
type roundTripper Identity

// RoundTrip implements http.RoundTripper.
func (t *roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	s := t.state.Load()
	if s == nil {
		if r.Body != nil {
			_ = r.Body.Close() // as an http.RoundTripper has to, whatever comes of it
		}
		return nil, fmt.Errorf("not enrolled: %w", fault.ErrDenied)
	}
	if t.local && r.URL.Host == t.base.Host {
		r = r.Clone(r.Context())
		r.Header.Set(token.NodeHeader, s.node)
	}
	return s.transport.RoundTrip(r)
}

// CloseIdleConnections lets http.Client have the next request use a new
// connection.
func (t *roundTripper) CloseIdleConnections() {
	if s := t.state.Load(); s != nil {
		s.transport.CloseIdleConnections()
	}
}

func (i *Identity) newTransport(check verifier, own *tls.Certificate) *http.Transport {
	return newTransport(check, own, i.cfg.dial)
}

// newTransport makes one that trusts what check lets pass, and shows own. Without
// check it is for plain HTTP on the loopback.
func newTransport(check verifier, own *tls.Certificate, dial dialer) *http.Transport {
	if dial == nil {
		dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	t := &http.Transport{
		DialContext:         dial,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     90 * time.Second,
		// A connection that died without a word is given up after 45 s.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
	if check == nil {
		return t
	}
	t.Proxy = http.ProxyFromEnvironment
	t.TLSClientConfig = &tls.Config{
		MinVersion: tls.VersionTLS13,
		// The usual checks are those of VerifyConnection, by other rules: see check.
		InsecureSkipVerify: true,
		VerifyConnection:   func(c tls.ConnectionState) error { return check(c.PeerCertificates) },
	}
	if own != nil {
		t.TLSClientConfig.Certificates = []tls.Certificate{*own}
	}
	return t
}

// A verifier lets a server's certificates pass or not.
type verifier func(chain []*x509.Certificate) error

// verifyRoot lets servers of one authority pass. A server's name means nothing: the
// authority signs for its own servers only, whatever address they are reached
// by, and what a node's certificate is good for is another matter, which is
// checked.
func verifyRoot(ca *x509.Certificate) verifier {
	return func(chain []*x509.Certificate) error {
		if len(chain) == 0 {
			return fmt.Errorf("server without a certificate: %w", fault.ErrDenied)
		}
		roots := x509.NewCertPool()
		roots.AddCert(ca)
		// A machine whose clock stands still at some past time has to reach its
		// server all the same, which tells it how late it is.
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

// verifyPinned lets servers pass that show, beside their own certificate, that of the
// authority with this fingerprint.
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
	return fault.WithHint(fmt.Errorf("server is of another certificate authority than %s: %w", want, fault.ErrDenied),
		"check the server's address; where the server was made anew, enroll with a new token of it")
}

// ReaderClient returns a client that reads with a viewer's token from a server, and
// shows the token to a server of its authority only. A server on the loopback
// without TLS is asked without a token if tok is zero.
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

// tokenTransport shows a token to one host.
type tokenTransport struct {
	*http.Transport
	tok  token.Token
	host string
}

// RoundTrip implements http.RoundTripper.
func (b tokenTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !b.tok.IsZero() && r.URL.Host == b.host {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.tok.Reveal())
	}
	return b.Transport.RoundTrip(r)
}

// refusedError is the error of a certificate that the server does not take.
type refusedError struct{ error }

func (r refusedError) Unwrap() error { return r.error }

func isRefused(err error) bool {
	_, ok := errors.AsType[refusedError](err)
	return ok
}

// post asks the server for something.
func (i *Identity) post(ctx context.Context, c *http.Client, path string, claim token.Claim) (g token.Grant, err error) {
	body, err := json.Marshal(claim)
	if err != nil {
		return g, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, i.base.String()+path, bytes.NewReader(body))
	if err != nil {
		return g, err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(r)
	if err != nil {
		return g, connectionError(err)
	}
	defer func() { _ = resp.Body.Close() }() // all that matters of it was read
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxGrant))
	if err != nil {
		return g, connectionError(err)
	}
	if resp.StatusCode != http.StatusOK {
		return g, fmt.Errorf("%s: %w", i.base, parseProblem(resp, b))
	}
	if err := json.Unmarshal(b, &g); err != nil {
		return g, fmt.Errorf("%s: answer: %w: %w", i.base, err, fault.ErrUnavailable)
	}
	return g, nil
}

// connectionError makes an error of a request that got no answer.
func connectionError(err error) error {
	if errors.Is(err, fault.ErrDenied) {
		return err
	}
	err = fmt.Errorf("%w: %w", err, fault.ErrUnavailable)
	if errors.Is(err, http.ErrSchemeMismatch) {
		return fault.WithHint(err, "the server speaks plain HTTP: on its own machine use http://, else start it with TLS")
	}
	return err
}

// parseProblem makes an error of an answer that is not what was asked for.
func parseProblem(resp *http.Response, body []byte) error {
	var p fault.Problem
	if t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || t != fault.ProblemType || json.Unmarshal(body, &p) != nil {
		err := fmt.Errorf("answer %s, which is no mete server's: %w", resp.Status, fault.ErrUnavailable)
		if resp.StatusCode == http.StatusBadRequest && resp.Request.URL.Scheme == "http" {
			return fault.WithHint(err, "perhaps it speaks TLS: use https://")
		}
		return err
	}
	p.Status = resp.StatusCode
	err := p.Err()
	if resp.StatusCode == http.StatusUnauthorized {
		err = refusedError{err}
	}
	if after := httpx.RetryAfter(resp.Header, time.Now()); after > 0 {
		err = &fault.RetryError{Err: err, After: after}
	}
	return err
}
