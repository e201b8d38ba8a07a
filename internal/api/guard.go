package api

import (
	"fmt"
	"net/http"

	"mete.dev/mete/internal/model/fault"
)

// Policy lets a browser load nothing for an answer, and nobody frame it.
const Policy = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Guard stands before all handlers of a server. It says what a browser may do with
// an answer, where the handler does not say so itself, and refuses requests that
// another site's page makes and that could change something. Programs, which say
// nothing of where they come from, are not concerned.
func Guard(next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", Policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		if err := origin.Check(r); err != nil {
			writeError(w, fault.WithHint(fmt.Errorf("a page of another site asks for this: %w", fault.ErrDenied), "ask from a program, or from the server's own page"))
			return
		}
		next.ServeHTTP(w, r)
	})
}
