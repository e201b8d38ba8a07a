// Package journal records the output of programs and loggers, for tests that read it
// concurrently.
package journal

import (
	"bytes"
	"sync"
)

// A Journal is the recorded output. Its zero value is empty.
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

// String returns everything written so far.
func (j *Journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}
