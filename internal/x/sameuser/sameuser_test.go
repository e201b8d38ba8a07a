package sameuser

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit/hosttest"
)

// state sets a state directory for this test, short enough for sockets.
func state(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mete-loopback-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("METE_STATE", filepath.Join(dir, "state"))
	return dir
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// answer accepts one connection, and writes a text to it when the client has ended its request.
func answer(ln net.Listener, text string) {
	if c, err := ln.Accept(); err == nil {
		_, _ = io.Copy(io.Discard, c)
		_, _ = io.WriteString(c, text)
		_ = c.Close()
	}
}

// dial returns what the server at an address writes.
func dial(t *testing.T, address string) (string, error) {
	t.Helper()
	c, err := Dial(t.Context(), "tcp", address)
	if err != nil {
		return "", err
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return "", errors.Join(err, c.Close())
	}
	b, err := io.ReadAll(c)
	return string(b), errors.Join(err, c.Close())
}

// TestDial checks that Dial connects to servers of this user, in IPv4 and IPv6.
func TestDial(t *testing.T) {
	state(t)
	for _, at := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		ln, err := net.Listen("tcp", at)
		if err != nil {
			t.Logf("%s: %v", at, err) // no IPv6
			continue
		}
		go answer(ln, "hello")
		address := ln.Addr().String()
		if at == ":0" {
			address = strings.Replace(address, "[::]", "127.0.0.1", 1)
		}
		if got, err := dial(t, address); got != "hello" || err != nil {
			t.Errorf("%s: %q, %v", address, got, err)
		}
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
		if _, err := dial(t, address); err == nil || errors.Is(err, fault.ErrDenied) {
			t.Errorf("no server listens at %s: %v", address, err)
		}
	}
}

// TestDialOtherUser checks that another user who listens at the address gets no byte.
func TestDialOtherUser(t *testing.T) {
	hosttest.Need(t, "root")
	state(t)
	var ln net.Listener
	got, listens := make(chan string, 1), make(chan error, 1)
	go func() {
		_ = hosttest.AsOther(t, func() (err error) {
			ln, err = net.Listen("tcp", "127.0.0.1:0")
			if listens <- err; err != nil {
				return err
			}
			c, err := ln.Accept()
			if err != nil {
				return err
			}
			b, err := io.ReadAll(c)
			got <- string(b)
			return err
		})
	}()
	if err := <-listens; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	c, err := Dial(t.Context(), "tcp", ln.Addr().String())
	if !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "user 65534") || fault.Hint(err) == "" {
		t.Errorf("%v, hint %q", err, fault.Hint(err))
	}
	if err == nil {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if b := <-got; b != "" {
		t.Errorf("the other user read %q", b)
	}
}

// TestDialNotAccepted checks that a connection that no process has accepted is not used: the
// kernel lists it as root's.
func TestDialNotAccepted(t *testing.T) {
	ln := listen(t, "tcp", "127.0.0.1:0")
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := checkAccepted(ctx, c); !errors.Is(err, fault.ErrUnavailable) || fault.Hint(err) == "" {
		t.Errorf("%v", err)
	}
}

// TestSocketOwner checks how the kernel's tables are read.
func TestSocketOwner(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	const tail = " 1 0000000000000000 20 4 30 10 -1\n"
	tcp := head +
		"   0: 0100007F:2645 00000000:0000 0A 00000000:00000000 00:00000000 00000000     7        0 11" + tail +
		"   1: 0100007F:2645 0100007F:8001 01 00000000:00000000 00:00000000 00000000  1000        0 12" + tail +
		"   2: 0100007F:2645 0100007F:8002 01 00000000:00000000 00:00000000 00000000     0        0 0" + tail +
		"   3: 0100007F:8001 0100007F:2645 01 00000000:00000000 00:00000000 00000000     0        0 13" + tail
	tcp6 := head +
		"   0: 0000000000000000FFFF00000100007F:2646 0000000000000000FFFF00000100007F:8001 01 00000000:00000000 00:00000000 00000000  1001        0 14" + tail +
		"   1: 00000000000000000000000001000000:2646 00000000000000000000000001000000:8001 01 00000000:00000000 00:00000000 00000000  1002        0 15" + tail
	for _, c := range []struct {
		local, remote string
		uid           uint32
		ok            bool
	}{
		{"127.0.0.1:9797", "127.0.0.1:32769", 1000, true},
		{"127.0.0.1:32769", "127.0.0.1:9797", 0, true},
		{"127.0.0.1:9797", "127.0.0.1:32770", 0, false}, // not accepted
		{"127.0.0.1:9797", "127.0.0.1:32771", 0, false},
		{"127.0.0.1:9798", "127.0.0.1:32769", 1001, true},
		{"[::ffff:127.0.0.1]:9798", "127.0.0.1:32769", 1001, true},
		{"[::1]:9798", "[::1]:32769", 1002, true},
	} {
		dir := t.TempDir()
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "tcp"), []byte(tcp), 0o600), os.WriteFile(filepath.Join(dir, "tcp6"), []byte(tcp6), 0o600)); err != nil {
			t.Fatal(err)
		}
		uid, ok, err := socketOwner(dir, netip.MustParseAddrPort(c.local), netip.MustParseAddrPort(c.remote))
		if uid != c.uid || ok != c.ok || err != nil {
			t.Errorf("%s from %s: user %d, %v, %v", c.local, c.remote, uid, ok, err)
		}
		if err := os.Remove(filepath.Join(dir, "tcp6")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := socketOwner(dir, netip.MustParseAddrPort(c.local), netip.MustParseAddrPort(c.remote)); err != nil {
			t.Errorf("without IPv6: %v", err)
		}
	}
	if _, _, err := socketOwner(t.TempDir(), netip.AddrPort{}, netip.AddrPort{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a table: %v", err)
	}
}

// TestPublish checks that Dial finds a published socket by each form of its address, that a link
// of a server that was killed is ignored, and that nothing stays of one that ended.
func TestPublish(t *testing.T) {
	dir := state(t)
	tcp, other := listen(t, "tcp", "127.0.0.1:0"), listen(t, "tcp", "127.0.0.1:0")
	socket := filepath.Join(dir, "s")
	ln := Listen(listen(t, "unix", socket))
	serve := func() { answer(ln, "by socket") }
	if _, err := Publish(other.Addr(), socket); err != nil { // and killed
		t.Fatal(err)
	}
	withdraw, err := Publish(tcp.Addr(), socket)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{tcp.Addr().String(), strings.Replace(tcp.Addr().String(), "127.0.0.1", "localhost", 1)} {
		go serve()
		if got, err := dial(t, at); got != "by socket" || err != nil {
			t.Errorf("%s: %q, %v", at, got, err)
		}
	}
	go answer(other, "by TCP")
	if got, err := dial(t, other.Addr().String()); got != "by TCP" || err != nil {
		t.Errorf("the former address: %q, %v", got, err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	go answer(tcp, "by TCP")
	if got, err := dial(t, tcp.Addr().String()); got != "by TCP" || err != nil {
		t.Errorf("the socket is gone: %q, %v", got, err)
	}
	if err := withdraw(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "state")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the end: %v", err)
	}
}

// TestOtherUserOfSocket checks that neither end of a unix socket serves another user, whatever
// the mode of its file.
func TestOtherUserOfSocket(t *testing.T) {
	dir := state(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "own")
	ln := Listen(listen(t, "unix", socket))
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	go answer(ln, "secret")
	err := hosttest.AsOther(t, func() error {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		_ = c.(*net.UnixConn).CloseWrite() // it may be closed already
		b, _ := io.ReadAll(c)              // a reset is as good as an end
		if len(b) > 0 {
			t.Errorf("the other user read %q", b)
		}
		return c.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	// The other way round: another user listens where this user's link leads.
	theirs := filepath.Join(dir, "theirs")
	if err := hosttest.AsOther(t, func() error {
		ln, err := net.Listen("unix", theirs)
		if err == nil {
			t.Cleanup(func() { _ = ln.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}
	if _, err := Publish(at, theirs); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(t.Context(), "tcp", at.String()); !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "user 65534") {
		t.Errorf("their socket: %v", err)
	}
}
