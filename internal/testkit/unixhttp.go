package testkit

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// ServeUnix serves HTTP at a Unix socket, which it creates, until the test ends.
func ServeUnix(t testing.TB, path string, h http.Handler) {
	t.Helper()
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: ln, Config: &http.Server{Handler: h}}
	s.Start()
	t.Cleanup(s.Close)
}
