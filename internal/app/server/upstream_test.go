package server

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/pki/token"
)

func TestUpstreams(t *testing.T) {
	text := token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3}).Reveal()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	u := upstreamSettings{urls: []string{"https://a:1", "https://b:2", "https://c:3"}, tokens: []string{text, "@" + file}, resolutions: []string{"1m", "1h"}, pseudonyms: true}
	got, err := u.configs()
	if err != nil || len(got) != 3 {
		t.Fatal(got, err)
	}
	for i, want := range []struct {
		url    string
		finest replica.Resolution
		token  bool
	}{{"https://a:1", replica.Minute, true}, {"https://b:2", replica.Hour, true}, {"https://c:3", replica.Hour, false}} {
		c := got[i]
		tok, err := c.Token()
		if c.URL != want.url || c.Finest != want.finest || !c.Pseudonyms || tok.IsZero() == want.token || want.token != (err == nil) || err != nil && !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("%d: %+v, token %v, %v; want %+v", i, c, tok, err, want)
		}
	}
	t.Setenv("METE_UPSTREAM_TOKEN", text)
	if got, err := (&upstreamSettings{urls: []string{"https://a:1"}}).configs(); err != nil || got[0].Finest != replica.Minute {
		t.Errorf("%v, %v", got, err)
	} else if _, err := got[0].Token(); err != nil {
		t.Errorf("token of the environment: %v", err)
	}
	for name, u := range map[string]upstreamSettings{
		"more tokens":       {urls: []string{"https://a:1"}, tokens: []string{text, text}},
		"a resolution":      {resolutions: []string{"1h"}},
		"another":           {urls: []string{"https://a:1"}, resolutions: []string{"10s"}},
		"half a token":      {urls: []string{"https://a:1"}, tokens: []string{text[:20]}},
		"pseudonyms for no": {pseudonyms: true},
	} {
		if _, err := u.configs(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
