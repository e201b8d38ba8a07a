package httpx

import (
	"maps"
	"math"
	"sync"
	"time"
)

// A RateLimiter limits the rate of each client's requests by a bucket of tokens: a request takes one, and a bucket gets
// rate tokens a second and holds at most burst. Several goroutines may use it.
type RateLimiter struct {
	rate  float64
	burst int

	mu      sync.Mutex
	buckets map[string]bucket // of clients; full ones may lack
	pruned  time.Time         // when full ones were last removed
}

// bucket is what a client has.
type bucket struct {
	tokens float64
	at     time.Time // of the latest take
}

// pruneInterval is how often the buckets are removed that are full again.
const pruneInterval = time.Minute

// NewRateLimiter returns a limiter of burst requests of each client at once, and rate a second on average.
func NewRateLimiter(rate float64, burst int) *RateLimiter {
	return &RateLimiter{rate: rate, burst: burst, buckets: map[string]bucket{}}
}

// Take counts a request of a client and returns 0, or counts nothing and returns the time until the client may send it.
func (l *RateLimiter) Take(client string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.pruned) >= pruneInterval {
		maps.DeleteFunc(l.buckets, func(_ string, b bucket) bool { return l.fill(b, now).tokens >= float64(l.burst) })
		l.pruned = now
	}
	b, ok := l.buckets[client]
	if !ok {
		b = bucket{float64(l.burst), now}
	}
	b = l.fill(b, now)
	wait := time.Duration(0)
	if b.tokens < 1 {
		wait = time.Duration(math.Ceil((1 - b.tokens) / l.rate * float64(time.Second))) // rounded up, as 0 stands for a token
	} else {
		b.tokens--
	}
	l.buckets[client] = b
	return wait
}

// fill returns a bucket with the tokens that it got since the latest take.
func (l *RateLimiter) fill(b bucket, now time.Time) bucket {
	elapsed := max(0, now.Sub(b.at)) // a clock may go back
	return bucket{min(float64(l.burst), b.tokens+elapsed.Seconds()*l.rate), now}
}
