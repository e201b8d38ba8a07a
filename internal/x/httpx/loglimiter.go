package httpx

import (
	"maps"
	"sync"
	"time"
)

const logInterval = time.Minute

// A LogLimiter limits the log lines about each client to one a minute: a client whose request
// is refused sends it again. Several goroutines may use it; the zero value is ready.
type LogLimiter struct {
	mu     sync.Mutex
	last   map[string]time.Time // latest line about each client
	pruned time.Time            // when older ones were last removed from last
}

// Allow reports whether a line about a client may be written now, and counts it.
func (l *LogLimiter) Allow(client string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, ok := l.last[client]; ok && now.Sub(last) < logInterval {
		return false
	}
	if l.last == nil {
		l.last = map[string]time.Time{}
	}
	if now.Sub(l.pruned) >= logInterval {
		maps.DeleteFunc(l.last, func(_ string, last time.Time) bool { return now.Sub(last) >= logInterval })
		l.pruned = now
	}
	l.last[client] = now
	return true
}
