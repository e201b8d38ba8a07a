package ca_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/ca"
)

// TestInspect reads the certificates of an authority from its files, without opening it.
func TestInspect(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "authority")
	chain := greeting(t, open(t, ca.Config{Dir: dir, Names: []string{"mete.example.org", "192.0.2.7"}}, &memory{}))
	authority, server := ca.Files(dir)
	for path, want := range map[string]int{server: 0, authority: 1} {
		if c, err := ca.ReadCertificate(path); err != nil || !c.Equal(chain[want]) {
			t.Errorf("%s: %v", path, err)
		}
	}
	leaf := chain[0]
	names := ca.Names(leaf)
	if !slices.Contains(names, "mete.example.org") || !slices.Contains(names, "192.0.2.7") || !slices.IsSorted(names) || len(names) != len(leaf.DNSNames)+len(leaf.IPAddresses) {
		t.Errorf("names %q", names)
	}
	if renew := ca.RenewalTime(leaf); renew.Sub(leaf.NotBefore) != leaf.NotAfter.Sub(leaf.NotBefore)*2/3 {
		t.Errorf("from %v to %v, renewed at %v", leaf.NotBefore, leaf.NotAfter, renew)
	}
	if err := os.WriteFile(server, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ca.ReadCertificate(server); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a damaged file: %v", err)
	}
	if _, err := ca.ReadCertificate(server + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
