package httpx_test

import (
	"errors"
	"net/http/httptest"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/httpx"
)

// TestCheckSite checks which requests of a browser are refused: those for another site's page,
// except links to pages.
func TestCheckSite(t *testing.T) {
	for _, c := range []struct {
		method, site, mode, dest string
		page, want               bool
	}{
		{"GET", "", "", "", false, true}, // a program
		{"GET", "none", "navigate", "document", false, true},
		{"GET", "same-origin", "cors", "empty", false, true},
		{"GET", "cross-site", "no-cors", "image", false, false},
		{"GET", "cross-site", "no-cors", "image", true, false},
		{"GET", "same-site", "cors", "empty", true, false},
		{"GET", "cross-site", "navigate", "document", true, true},
		{"HEAD", "same-site", "navigate", "document", true, true},
		{"GET", "cross-site", "navigate", "document", false, false},
		{"GET", "cross-site", "navigate", "iframe", true, false},
		{"POST", "cross-site", "navigate", "document", true, false},
		{"GET", "anything", "navigate", "document", false, false},
	} {
		r := httptest.NewRequest(c.method, "/", nil)
		for k, v := range map[string]string{"Sec-Fetch-Site": c.site, "Sec-Fetch-Mode": c.mode, "Sec-Fetch-Dest": c.dest} {
			if v != "" {
				r.Header.Set(k, v)
			}
		}
		err := httpx.CheckSite(r, c.page)
		if (err == nil) != c.want || err != nil && (!errors.Is(err, fault.ErrDenied) || fault.Hint(err) == "") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
