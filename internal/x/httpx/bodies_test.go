package httpx_test

import (
	"net/http"
	"testing"

	"mete.dev/mete/internal/x/httpx"
)

// TestBodies checks the limits of all clients and of each one, and that a body of unknown length
// counts as the longest one.
func TestBodies(t *testing.T) {
	b := httpx.NewBodies(100, 60)
	take := func(client string, length int64, want bool) func() {
		t.Helper()
		release, ok := b.Take(&http.Request{ContentLength: length}, client, 40)
		if ok != want {
			t.Errorf("%s takes %d: %v, want %v", client, length, ok, want)
		}
		return release
	}
	a := take("a", 40, true)
	take("a", 21, false)
	take("a", 20, true)
	take("a", 0, true)
	take("a", -1, false) // 40
	unknown := take("b", -1, true)
	take("b", 1, false)
	take("c", 0, true)
	a()
	take("b", 20, true)
	take("b", 1, false)
	unknown()
	long := take("a", 1000, true) // it will be refused when it is read
	take("a", 1, false)
	long()
	take("a", 1, true)
}
