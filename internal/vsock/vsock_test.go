package vsock_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/hosttest"
	"mete.dev/mete/internal/vsock"
)

// Close ends Accept, and one port is of one listener.
func TestListen(t *testing.T) {
	const port = 9_799_001
	l, err := vsock.Listen(port)
	if errors.Is(err, fault.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if other, err := vsock.Listen(port); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("a second listener: %v, %v, want %v", other, err, fault.ErrConflict)
	}
	ended := make(chan error)
	go func() {
		_, _, err := l.Accept()
		ended <- err
	}()
	time.Sleep(10 * time.Millisecond)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept ends with %v, want %v", err, net.ErrClosed)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("accept does not end")
	}
	if err := l.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
	if l, err = vsock.Listen(port); err != nil {
		t.Fatalf("the port is not free again: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// What is made of a socket keeps to deadlines, and Close ends a Read.
func TestConn(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := vsock.NewConn(fds[0]), vsock.NewConn(fds[1])
	defer func() { _ = b.Close() }()
	buf := make([]byte, 5)
	if _, err := b.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(a, buf); err != nil || string(buf) != "hello" {
		t.Errorf("%q, %v", buf, err)
	}
	if err := a.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read past its deadline: %v", err)
	}
	if err := a.SetWriteDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; {
		_, err = a.Write(make([]byte, 1<<16))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("writes to who does not read end with %v", err)
	}
	if err := a.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := a.Read(buf)
		ended <- err
	}()
	time.Sleep(10 * time.Millisecond)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("a read ends with %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("a read does not end")
	}
}

// Two ends speak, see who they are, keep to deadlines, and see each other go.
func TestConnection(t *testing.T) {
	hosttest.Need(t, "vsock")
	const port = 9_799_002
	l, err := vsock.Listen(port)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	type accepted struct {
		net.Conn
		cid uint32
		err error
	}
	other := make(chan accepted, 1)
	go func() {
		c, cid, err := l.Accept()
		other <- accepted{c, cid, err}
	}()
	const loopback = 1 // VMADDR_CID_LOCAL
	c, err := vsock.Dial(t.Context(), vsock.Addr{CID: loopback, Port: port}, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	a := <-other
	if a.err != nil || a.cid != loopback || c.RemoteAddr().String() != "vsock:1:9799002" {
		t.Fatalf("%+v, %v", a, c.RemoteAddr())
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(a, b); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	if err := a.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(b); err == nil || !err.(net.Error).Timeout() {
		t.Errorf("a read past its deadline: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if n, err := c.Read(b); n != 0 || err == nil {
		t.Errorf("%d bytes, %v from who went away", n, err)
	}
	_ = c.Close()
	if _, err := vsock.Dial(t.Context(), vsock.Addr{CID: loopback, Port: port + 1}, 2*time.Second); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("nobody listens: %v, want %v", err, fault.ErrUnavailable)
	}
}
