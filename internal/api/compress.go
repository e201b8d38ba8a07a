package api

import (
	"net/http"
	"strings"

	"github.com/klauspost/compress/gzhttp"
)

// minCompress is the size in bytes below which compression does not pay.
const minCompress = 1 << 10

// tagSuffix ends the ETag of a compressed answer. Its ETag must differ from that of the uncompressed
// answer, because their bytes differ.
const tagSuffix = "-gzip"

// Compress compresses the answers of next for callers that accept gzip, unless they are small. Answers
// that are flushed stay streams. Do not wrap a handler whose answers contain both a secret
// and text from the request: the length of the compressed answer would reveal the secret (BREACH).
func Compress(next http.Handler) http.Handler {
	wrap, err := gzhttp.NewWrapper(gzhttp.MinSize(minCompress), gzhttp.SuffixETag(tagSuffix), gzhttp.EnableZstd(false))
	if err != nil {
		panic("api: " + err.Error()) // the options are constants
	}
	compressed := wrap(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// next knows only the ETags of uncompressed answers.
		if tags := r.Header.Get("If-None-Match"); strings.Contains(tags, tagSuffix+`"`) {
			r = r.Clone(r.Context())
			r.Header.Set("If-None-Match", strings.ReplaceAll(tags, tagSuffix+`"`, `"`))
		}
		compressed.ServeHTTP(w, r)
	})
}
