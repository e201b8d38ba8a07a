package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	_ "mete.dev/mete/internal/testkit/wirewarm"
)

// TestServeLimitsConnections checks that Serve closes the connection of a client that does not identify
// itself, long before it would close an idle one, and that of one that does only then.
func TestServeLimitsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		ln, served := pipes{make(chan net.Conn), make(chan struct{})}, make(chan error)
		go func() {
			served <- Serve(ctx, ln, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/known" {
					keepConnection(r, "node", true)
				}
			}), nil)
		}()
		for path, want := range map[string]time.Duration{"/known": 2 * time.Minute, "/other": 10 * time.Second} {
			mine, its := net.Pipe()
			ln.conns <- pipeConn{its, "10.0.0.1:1"}
			began := time.Now()
			if _, err := fmt.Fprintf(mine, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", path); err != nil {
				t.Error(err)
			}
			_, _ = io.Copy(io.Discard, mine) // until it ends
			if took := time.Since(began); took != want {
				t.Errorf("%s: the connection ends after %v, want %v", path, took, want)
			}
		}
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}
