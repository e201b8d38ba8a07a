package httpx

import (
	"fmt"
	"net/http"

	"mete.dev/mete/internal/model/fault"
)

// CheckSite returns fault.ErrDenied for a request that a browser sends because a page of another
// site, or of another port of this host, asks for it. The browser says so in Sec-Fetch-Site
// (Fetch Metadata Request Headers, W3C); programs do not send the header. A link of another
// site may lead to a page: page says that the path of the request is one.
//
// An answer to such a request cannot be read by the other site, but computing it takes time and
// memory, and the other site can measure how much.
func CheckSite(r *http.Request, page bool) error {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return nil
	}
	if page && (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" {
		return nil
	}
	return fault.WithHint(fmt.Errorf("a page of another site asks for this: %w", fault.ErrDenied), "ask from a program, or from the server's own page")
}
