package v1

import "io"

// A PageLink opens the page of a server without TLS in one browser.
type PageLink struct {
	URL string `json:"url"`
}

// WriteJSON implements [Document].
func (l PageLink) WriteJSON(w io.Writer) error { return writeLine(w, l) }
