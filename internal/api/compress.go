package api

import (
	"net/http"
	"strings"

	"github.com/klauspost/compress/gzhttp"
)

// minCompress is the size in bytes below which compression does not pay.
const minCompress = 1 << 10

// tagSuffix ends the ETag of a compressed answer, which is another one than that of the plain answer.
const tagSuffix = "-gzip"

// Compress compresses the answers of next for callers that accept gzip, unless they are small. Answers
// that are flushed stay streams. Do not wrap handlers whose answers contain a secret beside text of the
// request: their length would tell the secret (BREACH).
func Compress(next http.Handler) http.Handler {
	wrap, err := gzhttp.NewWrapper(gzhttp.MinSize(minCompress), gzhttp.SuffixETag(tagSuffix), gzhttp.EnableZstd(false))
	if err != nil {
		panic("api: " + err.Error()) // the options are constants
	}
	compressed := wrap(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tags := r.Header.Get("If-None-Match"); strings.Contains(tags, tagSuffix+`"`) {
			r = r.Clone(r.Context())
			r.Header.Set("If-None-Match", strings.ReplaceAll(tags, tagSuffix+`"`, `"`))
		}
		compressed.ServeHTTP(w, r)
	})
}
