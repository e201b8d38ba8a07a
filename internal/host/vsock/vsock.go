// Package vsock provides sockets between a machine and its virtual machines (AF_VSOCK),
// which package net does not support.
//
// An address is a context id (CID) and a port. A client cannot choose its CID: the
// hypervisor assigns it.
package vsock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// Host is the CID of the machine on which a virtual machine runs.
const Host = unix.VMADDR_CID_HOST

// An Addr is one end of a connection.
type Addr struct{ CID, Port uint32 }

// Network implements net.Addr.
func (Addr) Network() string { return "vsock" }

// String implements net.Addr.
func (a Addr) String() string { return fmt.Sprintf("vsock:%d:%d", a.CID, a.Port) }

// A conn is a connected socket. It uses the runtime's poller, so that deadlines work and
// Close ends a Read.
type conn struct {
	*os.File
	local, remote Addr
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// newConn takes over a connected, non-blocking socket.
func newConn(fd int, remote Addr) *conn {
	c := &conn{File: os.NewFile(uintptr(fd), remote.String()), remote: remote}
	if sa, err := unix.Getsockname(fd); err == nil {
		c.local = addr(sa)
	}
	return c
}

func addr(sa unix.Sockaddr) Addr {
	if vm, ok := sa.(*unix.SockaddrVM); ok {
		return Addr{vm.CID, vm.Port}
	}
	return Addr{}
}

// open creates a socket. The error is fault.ErrUnsupported if the kernel has none.
func open() (int, error) {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	return fd, kind(err)
}

// kind adds the fault kind to a system error.
func kind(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ESOCKTNOSUPPORT):
		return fmt.Errorf("vsock: %w: %w", err, fault.ErrUnsupported)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fault.WithHint(fmt.Errorf("vsock: %w: %w", err, fault.ErrDenied), "a port below 1024 needs CAP_NET_BIND_SERVICE")
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("vsock: %w: %w", err, fault.ErrConflict)
	}
	return fmt.Errorf("vsock: %w: %w", err, fault.ErrUnavailable)
}

// A Listener accepts connections.
type Listener struct {
	file   *os.File
	closed atomic.Bool
}

// Listen listens at a port for every peer; a port below 1024 needs CAP_NET_BIND_SERVICE. The
// error is fault.ErrUnsupported if the kernel has no such sockets, fault.ErrDenied without that
// right, and fault.ErrConflict if another process listens there. The caller closes the Listener.
func Listen(port uint32) (*Listener, error) {
	fd, err := open()
	if err != nil {
		return nil, err
	}
	if err = unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port}); err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		return nil, errors.Join(kind(err), unix.Close(fd))
	}
	return &Listener{file: os.NewFile(uintptr(fd), Addr{unix.VMADDR_CID_ANY, port}.String())}, nil
}

// backlog is how many connections may wait to be accepted.
const backlog = 64

// Accept waits for a connection and returns it with the CID of the peer.
func (l *Listener) Accept() (net.Conn, uint32, error) {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	var fd int
	var from unix.Sockaddr
	var got error
	err = raw.Read(func(s uintptr) bool {
		fd, from, got = unix.Accept4(int(s), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		// Retry after EINTR, and after ECONNABORTED, whose connection is gone.
		for errors.Is(got, unix.EINTR) || errors.Is(got, unix.ECONNABORTED) {
			fd, from, got = unix.Accept4(int(s), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		}
		return !errors.Is(got, unix.EAGAIN)
	})
	if err = errors.Join(err, got); err != nil {
		if l.closed.Load() {
			err = net.ErrClosed
		}
		return nil, 0, err
	}
	peer := addr(from)
	return newConn(fd, peer), peer.CID, nil
}

// Close ends Accept. It may be called more than once.
func (l *Listener) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	return l.file.Close()
}

// Dial connects within the limit, and may return a tenth of a second after ctx has ended.
// The error is fault.ErrUnsupported without a route to the CID, and fault.ErrUnavailable
// without a listener.
func Dial(ctx context.Context, to Addr, limit time.Duration) (net.Conn, error) {
	fd, err := open()
	if err != nil {
		return nil, err
	}
	if err := connect(ctx, fd, to, limit); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return newConn(fd, to), nil
}

// connect connects a non-blocking socket. The runtime's poller works only for connected
// sockets: others always seem ready.
func connect(ctx context.Context, fd int, to Addr, limit time.Duration) error {
	err := unix.Connect(fd, &unix.SockaddrVM{CID: to.CID, Port: to.Port})
	if err == nil || !errors.Is(err, unix.EINPROGRESS) && !errors.Is(err, unix.EINTR) {
		return kind(err)
	}
	const step = 100 * time.Millisecond
	for waited := time.Duration(0); waited < limit; waited += step {
		if err := ctx.Err(); err != nil {
			return err
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(fds, int(step.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return kind(err)
		}
		if n <= 0 {
			continue
		}
		code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		return kind(err)
	}
	return kind(unix.ETIMEDOUT)
}

// IsGuest reports whether this machine has a CID of its own, as virtual machines do.
func IsGuest() bool {
	f, err := os.Open("/dev/vsock")
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // nothing was written
	cid, err := unix.IoctlGetInt(int(f.Fd()), unix.IOCTL_VM_SOCKETS_GET_LOCAL_CID)
	return err == nil && uint32(cid) > Host && uint32(cid) != unix.VMADDR_CID_ANY
}
