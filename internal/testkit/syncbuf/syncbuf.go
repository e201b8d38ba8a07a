// Package syncbuf records the output of programs and loggers, for tests that read it
// concurrently.
package syncbuf

import (
	"bytes"
	"sync"
)

// A Buffer is the recorded output. Its zero value is empty.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (j *Buffer) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

// String returns everything written so far.
func (j *Buffer) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}
