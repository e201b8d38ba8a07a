package enroll

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/testkit/hosttest"
)

// issue makes a certificate, or that of an authority if parent is nil.
func issue(t *testing.T, from, to time.Duration, usage x509.ExtKeyUsage, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key := newKey()
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

// Only the same machine continues an enrollment, also after a reboot; another one with a copy of
// its disk generates a new key.
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
	for _, f := range []Facts{{"m", "b", "other name"}, {"m", "b2", "n"}} {
		if !key(f).Equal(first) {
			t.Errorf("%v uses another key to repeat the enrollment", f)
		}
	}
	if key(Facts{"m2", "b", "n"}).Equal(first) {
		t.Error("another machine uses the key")
	}
}

// TestOtherUserOnLoopback checks that no secret, and nothing about this machine, goes to a
// process of another user that listens at the server's address.
func TestOtherUserOnLoopback(t *testing.T) {
	hosttest.Need(t, "root")
	t.Setenv("METE_STATE", t.TempDir())
	var ln net.Listener
	listens, ended := make(chan error, 1), make(chan error, 1)
	var got bytes.Buffer
	go func() {
		ended <- hosttest.AsOther(t, func() (err error) {
			ln, err = net.Listen("tcp", "127.0.0.1:0")
			if listens <- err; err != nil {
				return err
			}
			for {
				c, err := ln.Accept()
				if errors.Is(err, net.ErrClosed) {
					return nil
				}
				if err != nil {
					return err
				}
				// Without a request a client would wait forever.
				b := make([]byte, 1)
				if n, _ := c.Read(b); n > 0 {
					got.Write(b)
				}
				_ = c.Close()
			}
		})
	}()
	if err := <-listens; err != nil {
		t.Fatal(err)
	}
	server := "http://" + ln.Addr().String()
	reader, err := ReaderClient(server, token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3}))
	if err != nil {
		t.Fatal(err)
	}
	job, err := JobClient(server, "metejob_secret", "")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*http.Client{"reader": reader, "job": job} {
		resp, err := c.Get(server + "/v1/nodes")
		if !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "user 65534") {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			_ = resp.Body.Close() // the test has failed
		}
	}
	agent, err := Open(Config{Dir: t.TempDir(), Server: server, Facts: Facts{Machine: "m", Boot: "b", Name: "n"}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Enroll(t.Context()); !errors.Is(err, fault.ErrDenied) || fault.Hint(err) == "" {
		t.Errorf("agent: %v", err)
	}
	if err := errors.Join(ln.Close(), <-ended); err != nil {
		t.Error(err)
	}
	if got.Len() > 0 {
		t.Errorf("the other user got %d requests", got.Len())
	}
}
