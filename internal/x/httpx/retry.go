package httpx

import (
	"math"
	"net/http"
	"strconv"
	"time"
)

const headerRetryAfter = "Retry-After" // RFC 9110, section 10.2.3

// SetRetryAfter sets the header that asks the client to wait for d, rounded up to seconds, at least one.
func SetRetryAfter(w http.ResponseWriter, d time.Duration) {
	w.Header().Set(headerRetryAfter, strconv.Itoa(max(1, int(math.Ceil(d.Seconds())))))
}

// RetryAfter returns how long a response asks the client to wait, in seconds or until a date,
// or 0 if it does not ask. The time has no upper bound: the caller limits it.
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
