package api

import (
	"embed"
	"net/http"
)

// docs holds the files of the page that shows the API description in a browser.
//
//go:embed docs
var docs embed.FS

// DocsPath is the path of the page.
const DocsPath = "/docs"

// pagePolicy is the Content-Security-Policy of the page: it may load its own files, query this
// server only, and never parse text as HTML.
const pagePolicy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// registerDocs registers the files of the page, which need no authorization.
func (d *description) registerDocs() {
	for path, file := range map[string][2]string{
		DocsPath:         {"docs/index.html", "text/html; charset=utf-8"},
		"/docs/docs.js":  {"docs/docs.js", "text/javascript; charset=utf-8"},
		"/docs/docs.css": {"docs/docs.css", "text/css; charset=utf-8"},
	} {
		body, err := docs.ReadFile(file[0])
		if err != nil {
			panic("api: " + err.Error()) // the file is embedded
		}
		d.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Security-Policy", pagePolicy)
			w.Header().Set("Content-Type", file[1])
			sendTagged(w, r, encoded(body))
		})
		d.rejectOtherMethods(path)
	}
}
