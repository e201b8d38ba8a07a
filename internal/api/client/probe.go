package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/x/httpx"
)

// A Probe is what a server shows of itself.
type Probe struct {
	Version string    // of its program; "" if it does not say
	Time    time.Time // of its clock, to the second; zero if it does not say
	// Took is the time from the request to the answer that has Time.
	Took time.Duration
	// Expires is the end of its certificate, and Names are the certificate's; zero without TLS.
	Expires time.Time
	Names   []string
}

// Probe asks a server for its version. The error is that of its answer, where Time and Expires are
// set too: they are also those of a server that refuses the token.
func (c *Client) Probe(ctx context.Context) (Probe, error) {
	p, err := probe(ctx, c.http, c.base)
	if err != nil {
		err = c.explain(err)
	}
	return p, err
}

// Probe asks this machine's server for its version.
func (l *Local) Probe(ctx context.Context) (Probe, error) {
	p, err := probe(ctx, l.http, "http://mete")
	return p, l.explain(err)
}

// Health asks this machine's server how complete its measurements are.
func (l *Local) Health(ctx context.Context) (*v1.Health, error) {
	body, err := l.do(ctx, http.MethodGet, "/v1/health", nil)
	if err != nil {
		return nil, err
	}
	return decode[v1.Health]("health", body)
}

func probe(ctx context.Context, c *http.Client, base string) (p Probe, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/api/v1/status/buildinfo", nil)
	if err != nil {
		return p, err
	}
	began := time.Now()
	a, err := httpx.Do(c, r, 1<<20)
	if err != nil {
		return p, connectionError(ctx, err)
	}
	p.Took = time.Since(began)
	if t, err := http.ParseTime(a.Header.Get("Date")); err == nil {
		p.Time = t
	}
	if a.TLS != nil && len(a.TLS.PeerCertificates) > 0 {
		own := a.TLS.PeerCertificates[0]
		p.Expires, p.Names = own.NotAfter, own.DNSNames
		for _, ip := range own.IPAddresses {
			p.Names = append(p.Names, ip.String())
		}
	}
	if a.StatusCode != http.StatusOK {
		return p, answerError(a)
	}
	var answer struct {
		Data struct {
			Version string `json:"version"`
		} `json:"data"`
	}
	if err := json.Unmarshal(a.Body, &answer); err == nil { // another program may answer
		p.Version = clean(answer.Data.Version)
	}
	return p, nil
}
