package web_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/web"
)

// ask sends a request to the mounted page.
func ask(method, url string, header ...string) *http.Response {
	mux := http.NewServeMux()
	web.New(false).Mount(mux)
	r := httptest.NewRequest(method, url, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	return w.Result()
}

func read(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Vendored files are as released.
func TestSums(t *testing.T) {
	for _, dir := range []string{"static/vendor", "testdata"} {
		text, err := os.ReadFile(filepath.Join(dir, "SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		listed := []string{"SUMS"}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "#") {
				continue
			}
			f := strings.Fields(line)
			if len(f) < 4 {
				t.Fatalf("%s: %q is incomplete", dir, line)
			}
			listed = append(listed, f[1])
			body, err := os.ReadFile(filepath.Join(dir, f[1]))
			if err != nil {
				t.Error(err)
			}
			if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != f[0] {
				t.Errorf("%s/%s is %x, not %s", dir, f[1], sum, f[0])
			}
		}
		there, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range there {
			if !e.IsDir() && !slices.Contains(listed, e.Name()) {
				t.Errorf("%s/%s is in no line of SUMS", dir, e.Name())
			}
		}
	}
}

// Each path of the page serves the page, and other paths get 404, so that they stay
// available.
func TestPaths(t *testing.T) {
	index := read(t, ask("GET", "/"))
	for _, p := range []string{"/", "/live", "/jobs", "/job", "/nodes", "/node/a", "/node/a%2Fb", "/flow", "/query", "/alerts", "/health"} {
		if r := ask("GET", p+"?range=1h"); r.StatusCode != 200 || read(t, r) != index {
			t.Errorf("%s: %s", p, r.Status)
		}
	}
	for _, p := range []string{"/none", "/index.html", "/static/-/index.html", "/static/", "/static/-/none.js", "/static/-/../page.go", "/js/app.js"} {
		if r := ask("GET", p); r.StatusCode != 404 && r.StatusCode != 301 && r.StatusCode != 307 {
			t.Errorf("%s: %s, want 404", p, r.Status)
		}
	}
	if r := ask("POST", "/jobs"); r.StatusCode != 405 || r.Header.Get("Allow") == "" {
		t.Errorf("POST: %s", r.Status)
	}
	if strings.Contains(index, "data-live") {
		t.Error("a page without a snapshot claims to have one")
	}
}

// Each page of the navigation is served at its own path, so that it can be reloaded.
func TestPathsOfPages(t *testing.T) {
	b, err := os.ReadFile("static/js/pages/all.js")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`path: "([^"]*)"`).FindAllSubmatch(b, -1)
	if len(found) < 10 {
		t.Fatalf("all.js lists %d paths", len(found))
	}
	for _, m := range found {
		if !web.IsPage(string(m[1])) {
			t.Errorf("all.js has a page at %s, which web.Paths lacks", m[1])
		}
	}
}

// A browser at an unknown path gets the page; a program gets the next handler's answer.
func TestNotFoundHandler(t *testing.T) {
	h := web.New(false).NotFoundHandler(http.NotFoundHandler())
	for _, tc := range []struct {
		method, accept string
		page           bool
	}{
		{"GET", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", true},
		{"GET", "*/*", false},
		{"GET", "", false},
		{"GET", "application/json, text/html;q=0", false},
		{"POST", "text/html", false},
	} {
		r := httptest.NewRequest(tc.method, "/none", nil)
		r.Header.Set("Accept", tc.accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 404 || strings.Contains(w.Body.String(), `<div id="app"`) != tc.page || tc.page && w.Header().Get("Content-Security-Policy") != web.Policy {
			t.Errorf("%s, %q: %d %v\n%s", tc.method, tc.accept, w.Code, w.Header(), w.Body)
		}
	}
}

// All files of the page exist and are cached forever; the page itself is revalidated.
func TestCaching(t *testing.T) {
	r := ask("GET", "/")
	if c := r.Header.Get("Cache-Control"); c != "no-cache" {
		t.Errorf("the page: Cache-Control %q", c)
	}
	if again := ask("GET", "/", "If-None-Match", r.Header.Get("ETag")); again.StatusCode != 304 {
		t.Errorf("the page again: %s", again.Status)
	}
	named := regexp.MustCompile(`(?:src|href)="(/static/[^"]+)"`).FindAllStringSubmatch(read(t, r), -1)
	if len(named) < 4 {
		t.Fatalf("the page names %d files", len(named))
	}
	for _, m := range named {
		f := ask("GET", m[1])
		if f.StatusCode != 200 || !strings.Contains(f.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %s, Cache-Control %q", m[1], f.Status, f.Header.Get("Cache-Control"))
		}
		if again := ask("GET", m[1], "If-None-Match", f.Header.Get("ETag")); again.StatusCode != 304 {
			t.Errorf("%s again: %s", m[1], again.Status)
		}
		// A tab opened before an update still finds its files, and does not cache them.
		old := "/static/0123456789ab/" + strings.SplitN(m[1], "/", 4)[3]
		if f := ask("GET", old); f.StatusCode != 200 || f.Header.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: %s, Cache-Control %q", old, f.Status, f.Header.Get("Cache-Control"))
		}
	}
}

func TestCompressed(t *testing.T) {
	name := "/static/-/vendor/echarts.mjs"
	plain := read(t, ask("GET", name))
	for accept, want := range map[string]bool{"gzip": true, "br, gzip;q=0.5": true, "gzip;q=0": false, "": false} {
		r := ask("GET", name, "Accept-Encoding", accept)
		if got := r.Header.Get("Content-Encoding") == "gzip"; got != want || r.Header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%q: compressed %t, Vary %q", accept, got, r.Header.Get("Vary"))
		}
		body := []byte(read(t, r))
		if want {
			z, err := gzip.NewReader(bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if body, err = io.ReadAll(z); err != nil {
				t.Fatal(err)
			}
		}
		if string(body) != plain {
			t.Errorf("%q: %d bytes, want %d", accept, len(body), len(plain))
		}
	}
	if a, b := ask("GET", name).Header.Get("ETag"), ask("GET", name, "Accept-Encoding", "gzip").Header.Get("ETag"); a == b {
		t.Errorf("both encodings have the tag %s", a)
	}
}

func TestHeaders(t *testing.T) {
	for _, url := range []string{"/", "/static/-/js/app.js", "/static/-/none", "/icon.svg"} {
		h := ask("GET", url).Header
		for k, want := range map[string]string{"Content-Security-Policy": web.Policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin"} {
			if got := h.Get(k); got != want {
				t.Errorf("%s: %s = %q, want %q", url, k, got, want)
			}
		}
	}
	for name, kind := range map[string]string{"js/app.js": "text/javascript", "vendor/uplot.mjs": "text/javascript", "css/app.css": "text/css", "vendor/licenses/htm.txt": "text/plain"} {
		r := ask("GET", "/static/-/"+name)
		if got := r.Header.Get("Content-Type"); r.StatusCode != http.StatusOK || !strings.HasPrefix(got, kind) {
			t.Errorf("%s: %s, %q", name, r.Status, got)
		}
	}
}

// Own files load from no other machine, make no elements of text, and import only existing
// files.
func TestFiles(t *testing.T) {
	imports := regexp.MustCompile(`(?m)^import .*from "([^"]+)";$|import\("([^"]+)"\)`)
	err := filepath.WalkDir("static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(name, "vendor") {
			return err
		}
		body, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		text := strings.ReplaceAll(string(body), `xmlns="http://www.w3.org/2000/svg"`, "")
		for _, bad := range []string{"http://", "https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " onclick=", "<script>", "dangerouslySetInnerHTML", "localhost"} {
			if strings.Contains(text, bad) {
				t.Errorf("%s holds %q", name, bad)
			}
		}
		if path.Ext(name) != ".html" && len(text) > 40<<10 {
			t.Errorf("%s has %d bytes: split it", name, len(text))
		}
		for _, m := range imports.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), m[1]+m[2])); err != nil {
				t.Errorf("%s imports %s: %v", name, m[1]+m[2], err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
