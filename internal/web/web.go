// Package web serves the dashboard: a page without a build step that asks this
// server alone.
//
// Its files lie below one path that names their content, so that a browser keeps
// them for good and never mixes two versions.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

//go:embed static
var static embed.FS

// Policy lets the page load nothing but itself from here, and nobody frame it.
// Trusted Types forbid it to make elements of text, so that no workload's name
// can become one; a policy of the page's own allows what is empty.
const Policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'; trusted-types default"

// Paths are those of the page, as patterns of http.ServeMux. Of one that ends in a
// slash all below it are.
var Paths = []string{"/{$}", "/live", "/jobs", "/job", "/nodes", "/node/", "/flow", "/query", "/alerts", "/health", "/static/", "/icon.svg"}

// A file is one that is served.
type file struct {
	body       []byte
	kind       string
	tag        string
	compressed func() []byte // by gzip
}

// A Page is the dashboard.
type Page struct {
	version string
	files   map[string]*file // by their path below static
	index   *file
}

// New returns the page. live says that there is /api/v0/snapshot, with the latest
// second of this machine.
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
		panic(err) // they are part of the program
	}
	p.version = hex.EncodeToString(all.Sum(nil)[:6])
	text := strings.ReplaceAll(string(p.files["index.html"].body), "/static/-/", "/static/"+p.version+"/")
	if live {
		text = strings.Replace(text, `<div id="app"`, `<div id="app" data-live="1"`, 1)
	}
	p.index = newFile("index.html", []byte(text))
	return p
}

func newFile(name string, body []byte) *file {
	sum := sha256.Sum256(body)
	return &file{body, contentType(name), `"` + hex.EncodeToString(sum[:12]) + `"`, sync.OnceValue(func() []byte { return compress(body) })}
}

// contentType is by the file's name, and not by what the machine thinks of it.
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

func compress(body []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(body) // into memory
	_ = w.Close()
	return b.Bytes()
}

// Mount has mux answer the paths of the page with it.
func (p *Page) Mount(mux *http.ServeMux) {
	for _, pattern := range Paths {
		mux.Handle(pattern, p)
	}
}

// ServeHTTP answers with a file of the page, and with the page itself at all of its
// paths: what is shown there it finds in its address.
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

// NotFoundHandler answers a browser at a path that nobody has with the page, which says
// so and leads on; whoever else asks gets what next answers.
func (p *Page) NotFoundHandler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !accepts(r.Header.Get("Accept"), "text/html") {
			next.ServeHTTP(w, r)
			return
		}
		SetHeaders(w.Header())
		w.Header().Set("Content-Type", p.index.kind)
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write(p.index.body) // who asked may have left
	})
}

// SetHeaders says what a browser may do with an answer.
func SetHeaders(h http.Header) {
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
}

// minCompress is the size in bytes below which packing saves nothing.
const minCompress = 1 << 10

// serve answers with the file, or that it has not changed.
func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("ETag", f.tag)
	body := f.body
	if len(body) >= minCompress {
		h.Set("Vary", "Accept-Encoding")
		if accepts(r.Header.Get("Accept-Encoding"), "gzip") && r.Header.Get("Range") == "" {
			body = f.compressed()
			h.Set("Content-Encoding", "gzip")
			h.Set("ETag", strings.TrimSuffix(f.tag, `"`)+`-gz"`)
		}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// accepts says whether a header that lists what is accepted names one.
func accepts(header, one string) bool {
	return slices.ContainsFunc(strings.Split(header, ","), func(s string) bool {
		name, q, _ := strings.Cut(strings.TrimSpace(s), ";")
		return strings.EqualFold(strings.TrimSpace(name), one) && strings.TrimSpace(q) != "q=0"
	})
}
