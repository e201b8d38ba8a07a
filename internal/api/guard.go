package api

import (
	"fmt"
	"net/http"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/httpx"
)

// Policy forbids browsers to load anything for an answer, or to frame it.
const Policy = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Guard wraps all handlers of a server. It sets the headers that restrict browsers, which
// a handler may override, and refuses requests of other sites' pages, by the headers
// Sec-Fetch-Site and Origin, except links to the paths of pages. Requests of programs have
// neither header and pass.
func Guard(next http.Handler, isPage func(path string) bool) http.Handler {
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", Policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		if err := httpx.CheckSite(r, isPage(r.URL.Path)); err != nil {
			fail(w, err)
			return
		}
		// Browsers that do not send Sec-Fetch-Site, as to a host without TLS, send Origin with
		// a request that could change something.
		if err := origin.Check(r); err != nil {
			fail(w, fault.WithHint(fmt.Errorf("a page of another site asks for this: %w", fault.ErrDenied), "ask from a program, or from the server's own page"))
			return
		}
		next.ServeHTTP(w, r)
	})
}
