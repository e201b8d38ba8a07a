package api

import (
	"embed"
	"net/http"
)

// docs is the page that shows the description to people.
//
//go:embed docs
var docs embed.FS

// DocsPath is the path of that page.
const DocsPath = "/docs"

// pagePolicy lets that page load its own files and query this server only, and make no
// element out of text.
const pagePolicy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// registerDocs registers the page that shows /openapi.json.
func (d *description) registerDocs() {
	for path, file := range map[string][2]string{
		DocsPath:         {"docs/index.html", "text/html; charset=utf-8"},
		"/docs/docs.js":  {"docs/docs.js", "text/javascript; charset=utf-8"},
		"/docs/docs.css": {"docs/docs.css", "text/css; charset=utf-8"},
	} {
		body, err := docs.ReadFile(file[0])
		if err != nil {
			panic("api: " + err.Error()) // it is part of the program
		}
		d.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Security-Policy", pagePolicy)
			w.Header().Set("Content-Type", file[1])
			sendTagged(w, r, encoded(body))
		})
		d.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { allowMethods(w, r, http.MethodGet, http.MethodHead) })
	}
}
