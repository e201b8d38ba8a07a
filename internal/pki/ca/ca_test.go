package ca_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/ca"
)

func open(t testing.TB, cfg ca.Config, reg ca.Registry) *ca.Authority {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "authority")
	}
	a, err := ca.Open(cfg, reg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// greeting returns the chain that a server presents.
func greeting(t testing.TB, a *ca.Authority) []*x509.Certificate {
	t.Helper()
	c, err := a.ServerTLS().GetCertificate(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	var chain []*x509.Certificate
	for _, der := range c.Certificate {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, cert)
	}
	return chain
}

func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state", "authority")
	cfg := ca.Config{Dir: dir, Names: []string{"mete.example.org", "192.0.2.7", "0:0:0:0:0:0:0:1"}}
	a := open(t, cfg, &memory{})
	first := greeting(t, a)
	if len(first) != 2 || !first[1].IsCA || first[0].IsCA {
		t.Fatalf("chain of %d", len(first))
	}
	roots := x509.NewCertPool()
	roots.AddCert(first[1])
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mete.example.org", "192.0.2.7", "localhost", "127.0.0.1", "[::1]", host} {
		if _, err := first[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := first[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
		t.Error("the server's certificate is valid for clients")
	}
	for name, want := range map[string]os.FileMode{".": 0o700, "ca.pem": 0o600, "server.pem": 0o600} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", name, st.Mode().Perm(), err, want)
		}
	}
	// The same after a restart, even if others could read the key meanwhile.
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Join(dir, "ca.pem"), 0o644)); err != nil {
		t.Fatal(err)
	}
	b := open(t, cfg, &memory{})
	if again := greeting(t, b); a.CA() != b.CA() || !again[0].Equal(first[0]) {
		t.Error("another authority, or another certificate, after a restart")
	}
	if st, err := os.Stat(filepath.Join(dir, "ca.pem")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("ca.pem still has mode %v, %v", st.Mode(), err)
	}
	// Another name gives another certificate of the same authority.
	cfg.Names = cfg.Names[:1]
	if c := open(t, cfg, &memory{}); c.CA() != a.CA() || greeting(t, c)[0].Equal(first[0]) {
		t.Error("removing a name did not change the certificate, or changed the authority")
	}
}

// TestCrash interrupts the creation of the files before each step, which must be harmless; after
// manual changes nothing is created in their place.
func TestCrash(t *testing.T) {
	whole := t.TempDir()
	a := open(t, ca.Config{Dir: whole}, &memory{})
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(whole, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	caText, server := read("ca.pem"), read("server.pem")
	other := t.TempDir()
	open(t, ca.Config{Dir: other}, &memory{})
	foreign, err := os.ReadFile(filepath.Join(other, "server.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files map[string][]byte
		want  error
		same  bool // the authority
	}{
		"nothing":             {nil, nil, false},
		"half an authority":   {map[string][]byte{".new-1": caText[:100]}, nil, false},
		"no certificate":      {map[string][]byte{"ca.pem": caText}, nil, true},
		"half a certificate":  {map[string][]byte{"ca.pem": caText, ".new-2": server[:50]}, nil, true},
		"both":                {map[string][]byte{"ca.pem": caText, "server.pem": server}, nil, true},
		"damaged certificate": {map[string][]byte{"ca.pem": caText, "server.pem": server[:200]}, nil, true},
		"another's":           {map[string][]byte{"ca.pem": caText, "server.pem": foreign}, nil, true},
		"authority lost":      {map[string][]byte{"server.pem": server}, fault.ErrNotFound, false},
		"authority damaged":   {map[string][]byte{"ca.pem": caText[:300], "server.pem": server}, fault.ErrInvalid, false},
		"authority empty":     {map[string][]byte{"ca.pem": {}}, fault.ErrInvalid, false},
		"no authority":        {map[string][]byte{"ca.pem": server}, fault.ErrInvalid, false},
		"parted":              {map[string][]byte{"ca.pem": append(caText[:bytes.Index(caText, []byte("-----BEGIN CERT"))], server[bytes.Index(server, []byte("-----BEGIN CERT")):]...)}, fault.ErrInvalid, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, b := range c.files {
				if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			b, err := ca.Open(ca.Config{Dir: dir}, &memory{}, slog.New(slog.DiscardHandler))
			if c.want != nil {
				if !errors.Is(err, c.want) || !strings.Contains(fault.Hint(err), "backup") {
					t.Errorf("Open: %v (hint %q), want %v and a hint", err, fault.Hint(err), c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if (b.CA() == a.CA()) != c.same {
				t.Errorf("same authority: %v, want %v", !c.same, c.same)
			}
			chain := greeting(t, b)
			if err := chain[0].CheckSignatureFrom(chain[1]); err != nil {
				t.Error(err)
			}
			if left, err := filepath.Glob(filepath.Join(dir, ".new-*")); len(left) > 0 || err != nil {
				t.Errorf("left over: %v, %v", left, err)
			}
		})
	}
}

// TestOpenTogether checks that concurrent opens of a new directory have one authority.
func TestOpenTogether(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	got := make([]*ca.Authority, 8)
	for i := range got {
		wg.Go(func() { got[i] = open(t, ca.Config{Dir: dir}, &memory{}) })
	}
	wg.Wait()
	for _, a := range got {
		if a.CA() != got[0].CA() {
			t.Error("two authorities")
		}
	}
}

// TestServerRenewal checks that the server's certificate is renewed after two thirds of its life,
// without a restart and on disk too.
func TestServerRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		a := open(t, ca.Config{Dir: dir}, &memory{})
		first := greeting(t, a)[0]
		time.Sleep(59 * 24 * time.Hour)
		if !greeting(t, a)[0].Equal(first) {
			t.Error("renewed before 60 days")
		}
		time.Sleep(2 * 24 * time.Hour)
		var wg sync.WaitGroup
		for range 4 { // connections that come together
			wg.Go(func() { greeting(t, a) })
		}
		wg.Wait()
		second := greeting(t, a)[0]
		if second.Equal(first) || time.Until(second.NotAfter) < 89*24*time.Hour {
			t.Errorf("after 61 days it expires %s", second.NotAfter)
		}
		if b := open(t, ca.Config{Dir: dir}, &memory{}); !greeting(t, b)[0].Equal(second) {
			t.Error("the renewed certificate is not on the disk")
		}
		time.Sleep(200 * 24 * time.Hour) // no connections meanwhile, and it has expired
		if third := greeting(t, a)[0]; time.Now().After(third.NotAfter) {
			t.Error("an expired certificate is presented")
		}
		time.Sleep(11 * 365 * 24 * time.Hour)
		_, err := ca.Open(ca.Config{Dir: dir}, &memory{}, slog.New(slog.DiscardHandler))
		if !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
			t.Errorf("an expired authority: %v", err)
		}
	})
}

// TestReadOnly checks that the server works if a new certificate cannot be written.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	a := open(t, ca.Config{Dir: dir}, &memory{})
	if err := errors.Join(os.Remove(filepath.Join(dir, "server.pem")), os.MkdirAll(filepath.Join(dir, "server.pem", "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if b := open(t, ca.Config{Dir: dir}, &memory{}); b.CA() != a.CA() || len(greeting(t, b)) != 2 {
		t.Error("another authority")
	}
}

func TestClusterNames(t *testing.T) {
	for name, want := range map[string]bool{"default": true, "eu-1.prod_A": true, "a/b": false, "a b": false, ".a": false, "a..b": false, "ä": false, strings.Repeat("x", 64): false,
		strings.Repeat("x", 63): true, "": true, "a": true, "z": true, "A": true, "Z": true, "0": true, "9": true, "_": true, "-": false, ".": false, "a.": false, "a-": true, "-a": false,
		"a`": false, "a{": false, "a@": false, "a[": false, "a:": false, "a/": false} {
		_, err := ca.Open(ca.Config{Dir: t.TempDir(), Cluster: name}, &memory{}, slog.New(slog.DiscardHandler))
		if (err == nil) != want || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("cluster %q: %v", name, err)
		}
	}
}
