// Package web serves the dashboard: a page without a build step that sends requests only to
// this server.
//
// The paths of its files contain a hash of their content, so that browsers cache them
// forever and never mix two versions.
package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"maps"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/x/httpx"
)

//go:embed static
var static embed.FS

// Policy allows the page to load only its own files, and forbids embedding it. Trusted
// Types prevent text from becoming elements, so that the name of a workload cannot inject
// any; the page's own policy allows only empty text.
const Policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'; trusted-types default"

// Paths are those of the page, as patterns of http.ServeMux. A pattern that ends in a slash
// includes all paths below.
var Paths = []string{"/{$}", "/live", "/jobs", "/job", "/nodes", "/node/", "/flow", "/query", "/alerts", "/health", "/static/", "/icon.svg"}

// IsPage reports whether a path shows the page itself, rather than one of its files.
func IsPage(path string) bool {
	for _, p := range Paths {
		switch {
		case p == "/static/" || p == "/icon.svg":
		case p == "/{$}" && path == "/", p == path, strings.HasSuffix(p, "/") && strings.HasPrefix(path, p):
			return true
		}
	}
	return false
}

// A file is a static file.
type file struct {
	*httpx.Content
	kind string
	tag  string
}

// A Page is the dashboard.
type Page struct {
	version string
	files   map[string]*file // by their path below static
	index   *file
}

// New returns the page. live means that /api/v0/snapshot has the latest second of this
// machine.
func New(live bool) *Page {
	p := &Page{files: map[string]*file{}}
	all := sha256.New()
	err := fs.WalkDir(static, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := static.ReadFile(name)
		name = strings.TrimPrefix(name, "static/")
		p.files[name] = newFile(name, body)
		all.Write([]byte(name + "\x00" + p.files[name].tag))
		return err
	})
	if err != nil {
		panic(err) // embedded in the program
	}
	p.version = hex.EncodeToString(all.Sum(nil)[:6])
	text := strings.Replace(string(p.files["index.html"].Plain), "<!-- modules -->\n", p.preloads(), 1)
	text = strings.ReplaceAll(text, "/static/-/", "/static/"+p.version+"/")
	if live {
		text = strings.Replace(text, `<div id="app"`, `<div id="app" data-live="1"`, 1)
	}
	p.index = newFile("index.html", []byte(text))
	return p
}

// preloads returns the links by which a browser loads all modules of the page at once. Otherwise
// it learns of each from those that import it, a round trip for each level. Styles come first, so
// that the skeleton of the page shows meanwhile.
func (p *Page) preloads() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p.files)) {
		if strings.HasPrefix(name, "js/") && name != "js/theme.js" && name != "js/app.js" {
			b.WriteString(`<link rel="modulepreload" fetchpriority="low" href="/static/-/` + name + "\">\n")
		}
	}
	return b.String()
}

func newFile(name string, body []byte) *file {
	sum := sha256.Sum256(body)
	return &file{httpx.NewContent(body), contentType(name), `"` + hex.EncodeToString(sum[:12]) + `"`}
}

// contentType depends on the file's name only, not on the machine's MIME tables.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".js", ".mjs":
		return "text/javascript; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case "":
		return "text/plain; charset=utf-8"
	}
	return mime.TypeByExtension(path.Ext(name))
}

// Mount adds the paths of the page to mux.
func (p *Page) Mount(mux *http.ServeMux) {
	for _, pattern := range Paths {
		mux.Handle(pattern, p)
	}
}

// ServeHTTP serves a file of the page, and the page itself at all of its paths: the page
// reads the address to decide what to show.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	SetHeaders(h)
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	name, below := strings.CutPrefix(r.URL.Path, "/static/")
	switch {
	case r.URL.Path == "/icon.svg":
		p.files["icon.svg"].serve(w, r)
	case !below:
		p.index.serve(w, r)
	default:
		version, name, _ := strings.Cut(name, "/")
		f := p.files[name]
		if f == nil || name == "index.html" {
			http.NotFound(w, r)
			return
		}
		if version == p.version {
			h.Set("Cache-Control", "public, max-age=31536000, immutable")
		}
		f.serve(w, r)
	}
}

// NotFoundHandler serves the page, which shows an error with links, to browsers at unknown
// paths, and calls next for all other requests.
func (p *Page) NotFoundHandler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !httpx.Accepts(r.Header.Get("Accept"), "text/html") {
			next.ServeHTTP(w, r)
			return
		}
		SetHeaders(w.Header())
		w.Header().Set("Content-Type", p.index.kind)
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write(p.index.Plain) // the client may be gone
	})
}

// SetHeaders sets the security headers of an answer.
func SetHeaders(h http.Header) {
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
}

// serve serves the file, or 304 if it is unchanged.
func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("ETag", f.tag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.Encode(h, r)))
}
