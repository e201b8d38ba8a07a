package httpx

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// MinCompress is the size in bytes below which compression does not pay.
const MinCompress = 1 << 10

// TagSuffix ends the ETag of a compressed answer. Its ETag must differ from that of the uncompressed answer, because their
// bytes differ.
const TagSuffix = "-gzip"

// A Content is a body that many clients get. It is compressed once, for the first of them that accepts gzip.
type Content struct {
	Plain   []byte
	gzipped func() []byte
}

// NewContent returns a content, which keeps plain.
func NewContent(plain []byte) *Content {
	return &Content{plain, sync.OnceValue(func() []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(plain) // a buffer takes everything
		_ = z.Close()
		return b.Bytes()
	})}
}

// Encode returns the body of an answer to r, and sets the headers of the answer that say how it is encoded. If the answer has
// an ETag already, that of a compressed one ends in [TagSuffix].
func (c *Content) Encode(h http.Header, r *http.Request) []byte {
	if len(c.Plain) < MinCompress {
		return c.Plain
	}
	h.Set("Vary", "Accept-Encoding")
	if !Accepts(r.Header.Get("Accept-Encoding"), "gzip") || r.Header.Get("Range") != "" {
		return c.Plain
	}
	h.Set("Content-Encoding", "gzip")
	if tag := h.Get("ETag"); tag != "" {
		h.Set("ETag", strings.TrimSuffix(tag, `"`)+TagSuffix+`"`)
	}
	return c.gzipped()
}

// Accepts reports whether a header that lists accepted values contains one.
func Accepts(header, one string) bool {
	return slices.ContainsFunc(strings.Split(header, ","), func(s string) bool {
		name, q, _ := strings.Cut(strings.TrimSpace(s), ";")
		return strings.EqualFold(strings.TrimSpace(name), one) && strings.TrimSpace(q) != "q=0"
	})
}
