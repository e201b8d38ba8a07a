package sameuser

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/peercred"
	"mete.dev/mete/internal/x/statedir"
)

// Listen returns a listener that accepts only connections of this user and of root, and closes
// all others. ln listens on a unix socket.
func Listen(ln net.Listener) net.Listener { return listener{ln} }

type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if u, ok := c.(*net.UnixConn); ok {
			if who, err := peercred.Of(u); err == nil && isTrusted(who.Uid) {
				return c, nil
			}
		}
		_ = c.Close() // it is not served
	}
}

// Publish lets [Dial] of this user find the unix socket of a server by the TCP address at which
// it listens: it makes a symbolic link in the directory loopback of the state directory of this
// user. The caller calls withdraw when the server ends; a link that a crash leaves leads to
// nothing, or is replaced.
func Publish(at net.Addr, socket string) (withdraw func() error, err error) {
	tcp, ok := at.(*net.TCPAddr)
	if !ok {
		return nil, fmt.Errorf("publish %v: not TCP: %w", at, fault.ErrInvalid)
	}
	if socket, err = filepath.Abs(socket); err != nil {
		return nil, err
	}
	dir, err := linkDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// An earlier server of this state listened elsewhere, and was killed.
	old, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range old {
		path := filepath.Join(dir, e.Name())
		if to, err := os.Readlink(path); err == nil && to == socket {
			_ = os.Remove(path) // else Symlink fails, or a client finds this server by its former address too
		}
	}
	path := filepath.Join(dir, linkName(tcp.AddrPort()))
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.Symlink(socket, path); err != nil {
		return nil, err
	}
	return func() error {
		if to, err := os.Readlink(path); err != nil || to != socket {
			return nil // another server has the address now
		}
		err := os.Remove(path)
		// Leave no directories of a server that kept nothing here.
		if os.Remove(dir) == nil {
			_ = os.Remove(filepath.Dir(dir)) // it may hold more
		}
		return err
	}, nil
}

// linkDir returns the directory of the links.
func linkDir() (string, error) {
	state, err := statedir.Default(os.Getenv, os.Geteuid())
	if err != nil {
		return "", err
	}
	return filepath.Join(state, "loopback"), nil
}

// linkName returns the name of a link: address and port, or any and port for a server that
// listens at all addresses.
func linkName(at netip.AddrPort) string {
	ip := at.Addr().Unmap()
	if ip.IsUnspecified() {
		return "any_" + strconv.Itoa(int(at.Port()))
	}
	return ip.WithZone("").String() + "_" + strconv.Itoa(int(at.Port()))
}

// linkNames returns the names of the links that may lead to a server at an address, in the form
// HOST:PORT.
func linkNames(address string) (names []string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil
	}
	hosts := []string{host}
	if host == "localhost" {
		hosts = []string{"127.0.0.1", "::1"}
	}
	for _, h := range append(hosts, "0.0.0.0") {
		if ip, err := netip.ParseAddr(h); err == nil {
			names = append(names, linkName(netip.AddrPortFrom(ip, uint16(n))))
		}
	}
	return names
}

// dialPublished connects to the socket of the server that is published under an address. Both
// results are nil if there is none.
func dialPublished(ctx context.Context, address string) (net.Conn, error) {
	dir, err := linkDir()
	if err != nil {
		return nil, nil // a user without a state directory has published nothing
	}
	for _, name := range linkNames(address) {
		// The path of a socket is at most 107 bytes long, and that of the link may be longer.
		socket, err := os.Readlink(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", socket)
		if err != nil {
			continue // of a server that was killed; TCP may still work
		}
		who, err := peercred.Of(c.(*net.UnixConn))
		if err == nil && !isTrusted(who.Uid) {
			err = otherUserError(socket, who.Uid)
		}
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return c, nil
	}
	return nil, nil
}
