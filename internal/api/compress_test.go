package api_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"mete.dev/mete/internal/api"
)

// TestCompress checks that a large answer is compressed for callers that accept it, and that its ETag
// is valid in the next request.
func TestCompress(t *testing.T) {
	large := strings.Repeat(`{"job":"build"}`, 1000)
	h := api.Compress(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("ETag", `"tag"`)
		if r.Header.Get("If-None-Match") == `"tag"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		body := large
		if r.URL.Path == "/small" {
			body = "{}"
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Error(err)
		}
	}))
	ask := func(path, accept, tag string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Accept-Encoding", accept)
		if tag != "" {
			r.Header.Set("If-None-Match", tag)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	w := ask("/", "gzip, br", "")
	if w.Header().Get("Content-Encoding") != "gzip" || w.Body.Len() > len(large)/5 || !strings.Contains(w.Header().Get("Vary"), "Accept-Encoding") {
		t.Errorf("%d bytes, %v", w.Body.Len(), w.Header())
	}
	z, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(z); err != nil || string(body) != large {
		t.Errorf("%d bytes, %v, want %d", len(body), err, len(large))
	}
	tag := w.Header().Get("ETag")
	if tag == `"tag"` {
		t.Error("the compressed answer has the tag of the plain one")
	}
	if again := ask("/", "gzip", tag); again.Code != http.StatusNotModified {
		t.Errorf("the same again: %d", again.Code)
	}
	for _, w := range []*httptest.ResponseRecorder{ask("/", "", ""), ask("/", "gzip;q=0", ""), ask("/small", "gzip", "")} {
		if w.Header().Get("Content-Encoding") != "" || w.Header().Get("ETag") != `"tag"` {
			t.Errorf("%v", w.Header())
		}
	}
}
