// Package journal keeps what programs and loggers write, for tests that read it
// meanwhile.
package journal

import (
	"bytes"
	"sync"
)

// A Journal is what was written. Its zero value is empty.
type Journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (j *Journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

// String is all that was written so far.
func (j *Journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}
