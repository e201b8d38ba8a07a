// Package sameuser connects programs of this machine that run as one user, or as root, and no
// others. Without TLS only the kernel can say who is at the other end of a connection: it knows
// the user of each end of a unix socket, and of each TCP socket.
//
// A server listens on a unix socket in its state directory, wrapped by [Listen], and leaves a
// link to it, by [Publish], under its TCP address. [Dial] takes the link if there is one. Else
// it connects by TCP, and gives the connection to its caller only if a process of this user or
// of root accepted it: any user can listen on a port that no server has.
package sameuser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"mete.dev/mete/internal/model/fault"
)

// isTrusted reports whether a user is this one or root.
func isTrusted(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// Dial connects to a server of this user or of root at a TCP address of this machine. If
// another user's process has the address, the error is fault.ErrDenied and nothing was sent. It
// is fault.ErrUnavailable if no process accepts the connection, and the system's if none
// listens.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if c, err := dialPublished(ctx, address); c != nil || err != nil {
		return c, err
	}
	d := net.Dialer{Timeout: 10 * time.Second}
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if err := checkAccepted(ctx, c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// acceptTimeout is how long Dial waits for a server to accept its connection.
const acceptTimeout = 5 * time.Second

// checkAccepted returns an error unless a process of this user or of root accepted the
// connection.
func checkAccepted(ctx context.Context, c net.Conn) error {
	client, ok1 := c.LocalAddr().(*net.TCPAddr)
	server, ok2 := c.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 {
		return fmt.Errorf("connection to %v: not TCP: %w", c.RemoteAddr(), fault.ErrInvalid)
	}
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		uid, ok, err := socketOwner("/proc/net", server.AddrPort(), client.AddrPort())
		switch {
		case err != nil:
			return fmt.Errorf("the user that listens at %v is not known: %w: %w", server, err, fault.ErrDenied)
		case ok && isTrusted(uid):
			return nil
		case ok:
			return otherUserError(server.String(), uid)
		}
		select {
		case <-ctx.Done():
			return fault.WithHint(fmt.Errorf("%v: no process of this machine has accepted the connection: %w", server, fault.ErrUnavailable),
				"a server in a container or behind a redirected port needs TLS: use https://")
		case <-time.After(wait):
		}
	}
}

func otherUserError(what string, uid uint32) error {
	return fault.WithHint(fmt.Errorf("%s: the server is of user %d, neither this user's nor root's, and gets no request: %w", what, uid, fault.ErrDenied),
		fmt.Sprintf("if you trust user %d, run this as that user, or use a server with TLS: https://", uid))
}
