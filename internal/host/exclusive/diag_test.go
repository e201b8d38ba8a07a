package exclusive

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// Other users who fill the queue of a claim cannot hide its owner.
func TestFullQueue(t *testing.T) {
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	ledger := fmt.Sprintf("d0%014x", os.Getpid())
	at := &unix.SockaddrUnix{Name: "@" + name(ledger, Machine, "")}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, at), unix.Listen(fd, 0))
	}
	for err == nil {
		var client int
		if client, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0); err == nil {
			t.Cleanup(func() { _ = unix.Close(client) })
			err = unix.Connect(client, at)
		}
	}
	if err != unix.EAGAIN {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := Acquire(h, ledger, Machine); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("Acquire of a held claim = %v, want a conflict", err)
	}
	job, err := Acquire(h, ledger, Scope{Path: "/a/job"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = job.Close() }()
	if ignored, err := job.Conflicts(); !errors.Is(err, fault.ErrConflict) || len(ignored) > 0 {
		t.Errorf("Conflicts = %v, %v; want a conflict", ignored, err)
	}
}

// The kernel's list has exactly the listening sockets.
func TestListeners(t *testing.T) {
	start := fmt.Sprintf("mete.test.%d/", os.Getpid())
	for _, n := range []string{"a", "b c", strings.Repeat("x", 80)} {
		l, err := net.Listen("unix", "@"+start+n)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	bound, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(bound) }()
	if err := unix.Bind(bound, &unix.SockaddrUnix{Name: "@" + start + "bound"}); err != nil {
		t.Fatal(err)
	}
	got, err := listeners(start)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, fault.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil || len(got) != 3 {
		t.Fatalf("listeners = %v, %v; want three", got, err)
	}
	for n, uid := range got {
		if int(uid) != os.Geteuid() {
			t.Errorf("%q is of user %d, want %d", n, uid, os.Geteuid())
		}
	}
}

// The PID of an ancestor counts only with the user of that process.
func TestIsTrusted(t *testing.T) {
	parent := os.Getppid()
	up := []int{parent}
	otherUser := uint32(os.Geteuid() + 4711)
	for _, c := range []struct {
		h    Holder
		want bool
	}{
		{Holder{known: true, UID: 0}, true},
		{Holder{known: true, UID: uint32(os.Geteuid())}, true},
		{Holder{known: true, UID: otherUser}, false},
		{Holder{known: true, UID: otherUser, PID: parent}, false},
		{Holder{UID: 0}, false},
	} {
		if got := c.h.isTrusted(Machine, up); got != c.want {
			t.Errorf("%+v: isTrusted = %t, want %t", c.h, got, c.want)
		}
	}
}

// parse refuses texts that name cannot have written.
func TestParseRefuses(t *testing.T) {
	for _, tail := range []string{"/a/\x1b[31m", "/a b", "/a/\x00", "/a#0", "/a#x", "a", ""} {
		if s, ok := parse(prefix+ledger+tail, ledger); ok {
			t.Errorf("parse(%q) = %v", tail, s)
		}
	}
}
