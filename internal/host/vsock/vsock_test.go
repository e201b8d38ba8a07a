package vsock_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/host/vsock"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// port returns the i-th port of this process, above 1023: all processes of a machine share the ports.
func port(i uint32) uint32 { return 1<<20 + uint32(os.Getpid())<<4 + i }

// blocked waits until a goroutine waits for input in the given function.
func blocked(t *testing.T, function string) {
	t.Helper()
	testkit.Eventually(t, function+" waits", func() bool {
		b := make([]byte, 1<<20)
		for g := range strings.SplitSeq(string(b[:runtime.Stack(b, true)]), "\n\n") {
			head, _, _ := strings.Cut(g, "\n")
			if strings.Contains(head, "[IO wait") && strings.Contains(g, function) {
				return true
			}
		}
		return false
	})
}

// Close ends Accept, and a port has one listener.
func TestListen(t *testing.T) {
	port := port(1)
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
	blocked(t, "vsock.(*Listener).Accept")
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept ends with %v, want %v", err, net.ErrClosed)
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

// An ordinary user cannot listen at the port of shares of energy, as at any below 1024, but can
// listen at others.
func TestListenReserved(t *testing.T) {
	if what := os.Getenv("METE_TEST_LISTEN"); what != "" {
		for _, port := range []uint32{energyshare.Port, 1023} {
			l, err := vsock.Listen(port)
			denied := errors.Is(err, fault.ErrDenied) && strings.Contains(fault.Hint(err), "CAP_NET_BIND_SERVICE")
			if denied != (what == "denied") || !denied && err != nil && !errors.Is(err, fault.ErrConflict) {
				t.Errorf("%s at port %d: %v, hint %q", what, port, err, fault.Hint(err))
			}
			if l != nil {
				_ = l.Close()
			}
		}
		l, err := vsock.Listen(port(3))
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			t.Error(err)
		}
		return
	}
	hosttest.Need(t, "root")
	l, err := vsock.Listen(port(4))
	if errors.Is(err, fault.ErrUnsupported) {
		t.Skip(err)
	}
	if err = errors.Join(err, l.Close()); err != nil {
		t.Fatal(err)
	}
	for what, caps := range map[string][]uintptr{"denied": nil, "allowed": {unix.CAP_NET_BIND_SERVICE}} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestListenReserved$", "-test.count=1")
		cmd.Env = append(os.Environ(), "METE_TEST_LISTEN="+what)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, AmbientCaps: caps}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("as another user, %s: %v\n%s", what, err, out)
		}
	}
}

// A conn keeps its deadlines, and Close ends a Read.
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
		t.Errorf("write to a peer that does not read: %v", err)
	}
	if err := a.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := a.Read(buf)
		ended <- err
	}()
	blocked(t, "os.(*File).Read")
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("a read after Close: %v", err)
	}
}

// Two peers exchange data, see each other's address, keep deadlines, and see the other
// close.
func TestConnection(t *testing.T) {
	hosttest.Need(t, "vsock")
	port := port(2)
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
	c, err := vsock.Dial(t.Context(), vsock.Addr{CID: loopback, Port: port}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	a := <-other
	if a.err != nil || a.cid != loopback || c.RemoteAddr().String() != fmt.Sprintf("vsock:1:%d", port) {
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
	if _, err := a.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read past its deadline: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if n, err := c.Read(b); n != 0 || err == nil {
		t.Errorf("%d bytes, %v from a closed peer", n, err)
	}
	_ = c.Close()
	if _, err := vsock.Dial(t.Context(), vsock.Addr{CID: loopback, Port: port + 1}, time.Hour); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("dial without a listener: %v, want %v", err, fault.ErrUnavailable)
	}
}
