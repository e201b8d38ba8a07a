package httpx

import (
	"math"
	"net/http"
	"strconv"
	"time"
)

const headerRetryAfter = "Retry-After" // RFC 9110, section 10.2.3

// SetRetryAfter asks the client to wait for d, in whole seconds, at least one.
func SetRetryAfter(w http.ResponseWriter, d time.Duration) {
	w.Header().Set(headerRetryAfter, strconv.Itoa(max(1, int(math.Ceil(d.Seconds())))))
}

// RetryAfter returns how long the server of a response asks to wait, which it gives
// in seconds or as a date: 0 where it does not. It may be a long time.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	s := h.Get(headerRetryAfter)
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}
