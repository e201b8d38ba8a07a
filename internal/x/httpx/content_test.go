package httpx_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"mete.dev/mete/internal/x/httpx"
)

// TestContent checks which clients get a content compressed, and that the headers say so.
func TestContent(t *testing.T) {
	large := []byte(strings.Repeat("x", httpx.MinCompress))
	for _, c := range []struct {
		plain             []byte
		accept, ranged    string
		encoding, varies  string
		tagBefore, tagNow string
	}{
		{large, "gzip", "", "gzip", "Accept-Encoding", "", ""},
		{large, "br, GZIP ;q=0.5", "", "gzip", "Accept-Encoding", `"a"`, `"a-gzip"`},
		{large, "", "", "", "Accept-Encoding", `"a"`, `"a"`},
		{large, "br, gzip; q=0", "", "", "Accept-Encoding", `"a"`, `"a"`},
		{large, "gzip", "bytes=0-1", "", "Accept-Encoding", `"a"`, `"a"`}, // of the uncompressed bytes
		{large[1:], "gzip", "", "", "", `"a"`, `"a"`},
	} {
		content := httpx.NewContent(c.plain)
		for range 2 {
			h, r := http.Header{}, &http.Request{Header: http.Header{}}
			for name, value := range map[string]string{"Accept-Encoding": c.accept, "Range": c.ranged} {
				if value != "" {
					r.Header.Set(name, value)
				}
			}
			if c.tagBefore != "" {
				h.Set("ETag", c.tagBefore)
			}
			body := content.Encode(h, r)
			if h.Get("Content-Encoding") != c.encoding || h.Get("Vary") != c.varies || h.Get("ETag") != c.tagNow {
				t.Errorf("%q, %q: %v", c.accept, c.ranged, h)
			}
			if c.encoding == "gzip" {
				z, err := gzip.NewReader(bytes.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				if body, err = io.ReadAll(z); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(body, c.plain) {
				t.Errorf("%q, %q: %d bytes, want %d", c.accept, c.ranged, len(body), len(c.plain))
			}
		}
	}
}
