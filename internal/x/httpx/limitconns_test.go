package httpx_test

import (
	"net"
	"testing"

	"mete.dev/mete/internal/x/httpx"
)

// TestLimitConns checks that the oldest connections are closed, that closed ones leave room, and that
// the others stay open.
func TestLimitConns(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inner.Close() }()
	ln := httpx.LimitConns(inner, 2)
	var clients, served []net.Conn
	open := func() {
		t.Helper()
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		s, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		clients, served = append(clients, c), append(served, s)
	}
	isOpen := func(i int) bool {
		t.Helper()
		// A closed one is at its end without waiting.
		_, _ = served[i].Write([]byte("x"))
		_, err := clients[i].Read(make([]byte, 1))
		return err == nil
	}
	open()
	open()
	if !isOpen(0) || !isOpen(1) {
		t.Error("two connections are not open")
	}
	open()
	if isOpen(0) || !isOpen(1) || !isOpen(2) {
		t.Error("the two latest of three connections are not those that are open")
	}
	if err := served[2].Close(); err != nil {
		t.Error(err)
	}
	open()
	if !isOpen(1) || !isOpen(3) {
		t.Error("a closed connection takes the room of another")
	}
}
