package httpx

import (
	"net/http"
	"sync"
)

// Bodies limits the bytes of request bodies that a handler holds at once, of all clients and of each
// one: a client that sends many bodies slowly would fill the memory.
type Bodies struct {
	all, each int64

	mu       sync.Mutex
	held     int64
	byClient map[string]int64
}

// NewBodies returns limits in bytes.
func NewBodies(all, each int64) *Bodies {
	return &Bodies{all: all, each: each, byClient: map[string]int64{}}
}

// Take reserves room for the body of a client's request, which has limit bytes at most, until release
// is called. ok is false if there is none now.
func (b *Bodies) Take(r *http.Request, client string, limit int64) (release func(), ok bool) {
	size := limit
	if r.ContentLength >= 0 {
		size = min(size, r.ContentLength)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if size > 0 && (b.held+size > b.all || b.byClient[client]+size > b.each) {
		return nil, false
	}
	b.add(client, size)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.add(client, -size)
	}, true
}

// add changes what a client holds. The caller holds mu.
func (b *Bodies) add(client string, bytes int64) {
	b.held += bytes
	if b.byClient[client] += bytes; b.byClient[client] == 0 {
		delete(b.byClient, client)
	}
}
