// Package meterreader reads external meters: over Redfish, from Prometheus, from JSON over
// HTTP, from MQTT and from files. A [Collector] stores their samples in the ledger and
// books their energy minute by minute.
package meterreader

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/httpx"
)

// A reader reads a meter on request.
type reader interface {
	// Read returns the value of the meter, in uW or uJ.
	Read(ctx context.Context) (int64, error)
}

// A recordFunc records the value of a meter at an instant, or the error of a reading.
type recordFunc func(at time.Time, value int64, err error)

// A source delivers the samples of a meter.
type source interface {
	// Run records samples and failures until ctx ends.
	Run(ctx context.Context, record recordFunc)
}

// open returns the source of a meter. It reads its secrets and certificates, but does not
// connect.
func open(s *external.Spec) (source, error) {
	if s.Type == external.File {
		return &poller{&file{s}, s.Interval}, nil
	}
	a, err := newAccess(s)
	if err != nil {
		return nil, fmt.Errorf("meter %q: %w", s.Name, err)
	}
	switch s.Type {
	case external.Redfish:
		return &poller{&redfish{spec: s, access: a}, s.Interval}, nil
	case external.Prometheus:
		return &poller{&prometheus{s, a}, s.Interval}, nil
	case external.HTTP:
		return &poller{&httpJSON{s, a}, s.Interval}, nil
	case external.MQTT:
		return &mqttTopic{s, a}, nil
	}
	return nil, fmt.Errorf("meter %q: type %q: %w", s.Name, s.Type, fault.ErrInvalid)
}

// A poller reads a meter at intervals.
type poller struct {
	reader
	interval time.Duration
}

// readTimeout limits one reading.
const readTimeout = 10 * time.Second

// Run implements source.
func (p *poller) Run(ctx context.Context, record recordFunc) {
	tick := time.NewTicker(p.interval)
	defer tick.Stop()
	for {
		readCtx, cancel := context.WithTimeout(ctx, min(p.interval, readTimeout))
		began := time.Now()
		v, err := p.Read(readCtx)
		cancel()
		if ctx.Err() != nil {
			return
		}
		// Assume that the meter was read halfway.
		record(began.Add(time.Since(began)/2), v, err)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// An access holds the HTTP client, TLS configuration and credentials of a meter.
type access struct {
	client                *http.Client
	tls                   *tls.Config
	user, password, token string
}

func newAccess(s *external.Spec) (*access, error) {
	a := &access{user: s.User, tls: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: s.Insecure}}
	var err error
	if a.password, err = secret("password", s.Password.Clear, s.Password.Env, s.Password.File); err != nil {
		return nil, err
	}
	if a.token, err = secret("token", s.Token.Clear, s.Token.Env, s.Token.File); err != nil {
		return nil, err
	}
	if s.CA != "" {
		pem, err := os.ReadFile(s.CA)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		if a.tls.RootCAs, err = x509.SystemCertPool(); err != nil {
			a.tls.RootCAs = x509.NewCertPool()
		}
		if !a.tls.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file: %s: no certificate in PEM: %w", s.CA, fault.ErrInvalid)
		}
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = a.tls
	t.MaxIdleConnsPerHost = 1
	// A redirect would send credentials to another port, and read what only this machine can.
	a.client = &http.Client{Transport: t, CheckRedirect: httpx.NoRedirect}
	return a, nil
}

// secret returns a secret from the one place that is configured, or "".
func secret(what, clear, env, file string) (string, error) {
	switch {
	case clear != "" && env+file != "", env != "" && file != "":
		return "", fmt.Errorf("%s: given in more than one place: %w", what, fault.ErrInvalid)
	case env != "":
		v := os.Getenv(env)
		if v == "" {
			return "", fmt.Errorf("%s_env: %s is not set: %w", what, env, fault.ErrNotFound)
		}
		return v, nil
	case file != "":
		b, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("%s_file: %w", what, err)
		}
		return strings.TrimSpace(string(b)), nil
	}
	return clear, nil
}

// maxText limits an answer or a file, in bytes.
const maxText = 1 << 20

// get returns the body at a URL.
func (a *access) get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("url: %w: %w", httpx.WithoutURL(err), fault.ErrInvalid)
	}
	switch {
	case a.token != "":
		req.Header.Set("Authorization", "Bearer "+a.token)
	case a.user != "":
		req.SetBasicAuth(a.user, a.password)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", req.URL.Host, httpx.WithoutURL(err)) // the rest of the URL may be secret
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxText+1))
	err = errors.Join(err, resp.Body.Close())
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode/100 == 3:
		return nil, fault.WithHint(fmt.Errorf("%s redirects (%s): redirects are not followed", req.URL.Host, resp.Status), "set url to the address to which it redirects")
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answers %s", req.URL.Host, resp.Status)
	case len(text) > maxText:
		return nil, fmt.Errorf("%s answers with more than %d bytes", req.URL.Host, maxText)
	}
	return text, nil
}

// valueIn returns the value at a meter's path in a text, in uW or uJ.
func valueIn(s *external.Spec, text []byte) (int64, error) {
	number, err := s.Path.Find(text)
	if err != nil {
		return 0, err
	}
	return s.Unit.Value(number)
}
