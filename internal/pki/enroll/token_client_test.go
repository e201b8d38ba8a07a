package enroll

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/testkit/hosttest"
)

// serveTLS starts a server of a new authority, which answers with the credential that it gets.
func serveTLS(t *testing.T) (url string, ca *x509.Certificate) {
	t.Helper()
	ca, key := issue(t, -day, 1000*day, x509.ExtKeyUsageServerAuth, nil, nil)
	leaf, own := issue(t, -day, day, x509.ExtKeyUsageServerAuth, ca, key)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Authorization")) // the client reports errors
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw, ca.Raw}, PrivateKey: own}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL, ca
}

func encodePEM(c *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
}

// TestTokenClients checks that the clients of readers and jobs send their token to the server that
// it is for, to no other one, and leave the caller's request as it is.
func TestTokenClients(t *testing.T) {
	url, ca := serveTLS(t)
	otherURL, other := serveTLS(t)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Authorization")) // the client reports errors
	}))
	defer plain.Close()
	tok := token.New([5]byte{1}, [20]byte{2}, token.FingerprintOf(ca.Raw))
	reader := func(server string, tok token.Token) func() (*http.Client, error) {
		return func() (*http.Client, error) { return ReaderClient(server, tok) }
	}
	job := func(server, text, ca string) func() (*http.Client, error) {
		return func() (*http.Client, error) { return JobClient(server, text, ca) }
	}
	for name, c := range map[string]struct {
		client func() (*http.Client, error)
		target string
		want   string // credential
		err    string // "" is none
	}{
		"reader":                      {reader(url, tok), url, "Bearer " + tok.Reveal(), ""},
		"reader, other authority":     {reader(otherURL, tok), otherURL, "", "another certificate authority"},
		"reader, other server":        {reader(plain.URL, tok), strings.Replace(plain.URL, "127.0.0.1", "localhost", 1), "", ""},
		"reader, plain":               {reader(plain.URL, tok), plain.URL, "Bearer " + tok.Reveal(), ""},
		"reader, plain, without":      {reader(plain.URL, token.Token{}), plain.URL, "", ""},
		"job":                         {job(url, "secret", encodePEM(ca)), url, "Bearer secret", ""},
		"job, other authority":        {job(url, "secret", encodePEM(other)), url, "", "another certificate authority"},
		"job, other server":           {job(plain.URL, "secret", ""), strings.Replace(plain.URL, "127.0.0.1", "localhost", 1), "", ""},
		"job, plain":                  {job(plain.URL, "secret", ""), plain.URL, "Bearer secret", ""},
		"job, plain, other authority": {job(plain.URL, "secret", "not needed"), plain.URL, "Bearer secret", ""},
	} {
		client, err := c.client()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r, err := http.NewRequest(http.MethodGet, c.target, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		var got []byte
		if err == nil {
			got, err = io.ReadAll(resp.Body)
			err = errors.Join(err, resp.Body.Close())
		}
		if (err == nil) != (c.err == "") || c.err != "" && (!errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), c.err)) || string(got) != c.want || len(r.Header) != 0 {
			t.Errorf("%s: %q, %v, want %q, %q; the caller's request has %v", name, got, err, c.want, c.err, r.Header)
		}
		client.CloseIdleConnections()
	}
	for name, c := range map[string]struct {
		client func() (*http.Client, error)
		want   error
		hint   string
	}{
		"reader, no address":    {reader("server", tok), fault.ErrInvalid, "https://"},
		"reader, no token":      {reader(url, token.Token{}), fault.ErrDenied, "--role viewer"},
		"job, no address":       {job("server", "secret", encodePEM(ca)), fault.ErrInvalid, "https://"},
		"job, no authority":     {job(url, "secret", "x"), fault.ErrInvalid, "METE_SELF_CA"},
		"job, damaged":          {job(url, "secret", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))), fault.ErrInvalid, ""},
		"job, plain, elsewhere": {job("http://192.0.2.1", "secret", ""), fault.ErrInvalid, "https://"},
	} {
		if client, err := c.client(); client != nil || !errors.Is(err, c.want) || !strings.Contains(fault.Hint(err), c.hint) {
			t.Errorf("%s: %v (hint %q), want %v, %q", name, err, fault.Hint(err), c.want, c.hint)
		}
	}
}

// TestNotTLS checks that a machine learns if the server does not speak TLS.
func TestNotTLS(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	tok := token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3})
	i, err := Open(Config{Dir: t.TempDir(), Server: strings.Replace(plain.URL, "http:", "https:", 1), Token: func() (token.Token, error) { return tok, nil }}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Enroll(t.Context()); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(fault.Hint(err), "http://") {
		t.Errorf("%v (hint %q), want that it speaks plain HTTP", err, fault.Hint(err))
	}
}

// TestTrustAlone checks that a server need not send the certificate of an authority that is known.
func TestTrustAlone(t *testing.T) {
	ca, key := issue(t, -day, 1000*day, x509.ExtKeyUsageServerAuth, nil, nil)
	for from, chain := range map[string][]*x509.Certificate{"now": {sole(t, -day, ca, key)}, "soon": {sole(t, day, ca, key)}} {
		if err := verifyRoot(ca)(chain); err != nil {
			t.Errorf("valid from %s: %v", from, err)
		}
	}
}

func sole(t *testing.T, from time.Duration, ca *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	c, _ := issue(t, from, from+2*day, x509.ExtKeyUsageServerAuth, ca, key)
	return c
}

// TestSelfBase checks which address a job's URL names.
func TestSelfBase(t *testing.T) {
	for self, want := range map[string]string{
		"https://server:9797/v1/self": "https://server:9797", "http://127.0.0.1/v1/self": "http://127.0.0.1", "https://server/mete/v1/self": "https://server/mete",
		"https://server": "", "https://server/v1/self/x": "", "/v1/self": "", "": "", "https://%zz/v1/self": "",
	} {
		if got, err := SelfBase(self); got != want || (err == nil) != (want != "") || want == "" && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%q: %q, %v, want %q", self, got, err, want)
		}
	}
}

// TestFactsOf checks what a machine says of itself.
func TestFactsOf(t *testing.T) {
	const clocks = "-- mete/clocks --\nboottime 1\nmonotonic 1\nrealtime 1\n-- proc/uptime --\n1 1\n"
	const boot, name, machine = "-- proc/sys/kernel/random/boot_id --\nb\n", "-- proc/sys/kernel/hostname --\nn\n", "-- etc/machine-id --\nm\n"
	for text, want := range map[string]Facts{
		boot + name + machine: {Machine: "m", Boot: "b", Name: "n"},
		boot + name:           {Machine: "n", Boot: "b", Name: "n"}, // a container often has no machine id
		boot + machine:        {},
		name + machine:        {},
	} {
		got, err := FactsOf(hosttest.Unpack(t, []byte(clocks+text)))
		if (err == nil) != (want != Facts{}) || err == nil && got != want || err != nil && !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
		if err != nil {
			continue
		}
		// A pod has another host name after each start.
		if same := got.Named(""); same != got {
			t.Errorf("%+v without a name of its own", same)
		}
		named := Facts{Machine: "node-1", Boot: "b", Name: "node-1"}
		if strings.Contains(text, machine) {
			named.Machine = "m"
		}
		if given := got.Named("node-1"); given != named {
			t.Errorf("%q: %+v, want %+v", text, given, named)
		}
	}
}
