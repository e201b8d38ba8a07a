package api

import (
	"net/http"
	"strings"

	"github.com/klauspost/compress/gzhttp"

	"mete.dev/mete/internal/x/httpx"
)

// Compress compresses the answers of next for callers that accept gzip, unless they are small. Answers
// that are flushed stay streams. Do not wrap a handler whose answers contain both a secret
// and text from the request: the length of the compressed answer would reveal the secret (BREACH).
func Compress(next http.Handler) http.Handler {
	wrap, err := gzhttp.NewWrapper(gzhttp.MinSize(httpx.MinCompress), gzhttp.SuffixETag(httpx.TagSuffix), gzhttp.EnableZstd(false))
	if err != nil {
		panic("api: " + err.Error()) // the options are constants
	}
	compressed := wrap(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// next knows only the ETags of uncompressed answers.
		if tags := r.Header.Get("If-None-Match"); strings.Contains(tags, httpx.TagSuffix+`"`) {
			r = r.Clone(r.Context())
			r.Header.Set("If-None-Match", strings.ReplaceAll(tags, httpx.TagSuffix+`"`, `"`))
		}
		compressed.ServeHTTP(w, r)
	})
}
