// Package peercred identifies the process at the other end of a unix socket.
package peercred

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Of returns the process and user at the other end of a connection, as the kernel identifies them: who
// connected, or who called listen (SO_PEERCRED, unix(7)).
func Of(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var u *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { u, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, os.NewSyscallError("getsockopt", failed)
	}
	return u, nil
}
