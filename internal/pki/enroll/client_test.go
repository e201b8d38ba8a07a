package enroll

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/token"
)

// issue makes a certificate, or that of an authority if parent is nil.
func issue(t *testing.T, from, to time.Duration, usage x509.ExtKeyUsage, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to), BasicConstraintsValid: true}
	if parent == nil {
		c.IsCA, c.KeyUsage, parent, signer = true, x509.KeyUsageCertSign, c, key
	} else {
		c.ExtKeyUsage = []x509.ExtKeyUsage{usage}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c, key
}

func TestTrust(t *testing.T) {
	const server, node = x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	ca, key := issue(t, -day, 1000*day, server, nil, nil)
	other, otherKey := issue(t, -day, 1000*day, server, nil, nil)
	young, youngKey := issue(t, 100*day, 1000*day, server, nil, nil)
	leaf := func(from, to time.Duration, usage x509.ExtKeyUsage, ca *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
		c, _ := issue(t, from, to, usage, ca, key)
		return c
	}
	good := leaf(-day, day, server, ca, key)
	for name, c := range map[string]struct {
		chain []*x509.Certificate
		want  string // in the error; "" if trusted
	}{
		"good":                     {[]*x509.Certificate{good, ca}, ""},
		"clock slow":               {[]*x509.Certificate{leaf(50*day, 90*day, server, ca, key), ca}, ""},
		"clock fast":               {[]*x509.Certificate{leaf(-90*day, -day, server, ca, key), ca}, "clock"},
		"a node's":                 {[]*x509.Certificate{leaf(-day, day, node, ca, key), ca}, "certificate"},
		"nothing":                  {nil, "certificate"},
		"without the authority":    {[]*x509.Certificate{good}, "another certificate authority"},
		"other authority":          {[]*x509.Certificate{leaf(-day, day, server, other, otherKey), other}, "another certificate authority"},
		"authority by name only":   {[]*x509.Certificate{leaf(-day, day, server, other, otherKey), ca}, "another certificate authority"},
		"clock before authority's": {[]*x509.Certificate{leaf(100*day, 190*day, server, young, youngKey), young}, ""},
	} {
		fingerprint := token.FingerprintOf(ca.Raw)
		if strings.HasPrefix(name, "clock before") {
			fingerprint = token.FingerprintOf(young.Raw)
		}
		err := verifyPinned(fingerprint)(c.chain)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error()+fault.Hint(err), c.want)) {
			t.Errorf("%s: %v (hint %q), want %q", name, err, fault.Hint(err), c.want)
		}
	}
	if err := verifyRoot(ca)(nil); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("no certificate: %v", err)
	}
}

// A reader's token goes only to the server that issued it, not to the target of a redirect.
func TestReader(t *testing.T) {
	var gotOther []string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		gotOther = append(gotOther, r.Header.Get("Authorization"))
	}))
	defer other.Close()
	var got []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get("Authorization"))
		http.Redirect(w, r, other.URL, http.StatusFound)
	}))
	defer s.Close()
	tok := token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3})
	c, err := ReaderClient(s.URL, tok)
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{s.URL, other.URL} {
		resp, err := c.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Error(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(got) != 1 || got[0] != "Bearer "+tok.Reveal() {
		t.Errorf("server got %q", got)
	}
	if len(gotOther) != 1 || gotOther[0] != "" {
		t.Errorf("other server got %q", gotOther)
	}
}

// Only the same machine in the same boot continues an enrollment; a copy of its disk
// generates a new key.
func TestPendingKey(t *testing.T) {
	dir := t.TempDir()
	key := func(f Facts) *ecdsa.PrivateKey {
		t.Helper()
		i, err := Open(Config{Dir: dir, Server: "https://server", Facts: f}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		k, err := i.loadPendingKey()
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	first := key(Facts{"m", "b", "n"})
	if !key(Facts{"m", "b", "other name"}).Equal(first) {
		t.Error("repeated enrollment uses another key")
	}
	for _, f := range []Facts{{"m", "b2", "n"}, {"m2", "b2", "n"}} {
		k := key(f)
		if k.Equal(first) {
			t.Errorf("%v uses the key of another machine or boot", f)
		}
		first = k
	}
}
