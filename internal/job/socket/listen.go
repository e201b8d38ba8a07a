package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/peercred"
)

const (
	maxConns     = 512 // at once, of all users
	maxOfUser    = 128 // at once, of a user other than root
	maxPathLen   = 107 // bytes of sun_path in unix(7) without the final NUL
	probeTimeout = time.Second
)

// A listener accepts a limited number of connections at once.
type listener struct {
	*net.UnixListener
	lock *os.File

	mu          sync.Mutex
	conns       int            // open ones
	connsByUser map[uint32]int // open ones, by user
}

// A conn is a connection and its peer.
type conn struct {
	net.Conn
	peer     Peer
	once     sync.Once
	listener *listener
}

// bind makes the socket. Only the holder of the lock file beside it may make or remove it: a
// socket that exists then is left from an agent that died.
func bind(path string) (_ *listener, err error) {
	if len(path) > maxPathLen {
		return nil, fault.WithHint(fmt.Errorf("socket %s: longer than %d bytes: %w", path, maxPathLen, fault.ErrInvalid), "set METE_SOCKET to a shorter path")
	}
	if err := makeDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	dir, err := openDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	// Other users may not open the lock file, so that none of them can hold the lock.
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, classify(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, inUseError(path)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, classify(err)
	}
	// To connect, a user needs the right to write.
	if err := unix.Fchmodat(int(dir.Fd()), filepath.Base(path), 0o666, 0); err != nil {
		return nil, errors.Join(classify(fmt.Errorf("%s: %w", path, err)), l.Close())
	}
	return &listener{UnixListener: l, lock: lock, connsByUser: map[uint32]int{}}, nil
}

// makeDir makes the directory of the socket such that all users can enter it, whatever the umask.
// It leaves an existing directory unchanged.
func makeDir(dir string) error {
	_, err := os.Stat(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return classify(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return classify(err)
	}
	// Not by its path, which may lead elsewhere by now.
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return classify(err)
	}
	return classify(errors.Join(f.Chmod(0o755), f.Close()))
}

// openDir opens the directory of the socket. It must belong to root or this user, and others must
// not be able to replace files in it: they could let the permissions of another file be changed.
func openDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, classify(err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && (st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0) {
		err = fault.WithHint(fmt.Errorf("%s: other users can replace files in this directory: %w", dir, fault.ErrDenied), "set METE_SOCKET to a path in a directory of this user's own")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// removeStale removes a socket on which no process listens.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return classify(err)
	case info.Mode().Type() != fs.ModeSocket:
		return fault.WithHint(fmt.Errorf("%s: not a socket: %w", path, fault.ErrConflict), "move it away, or set METE_SOCKET to another path")
	}
	c, err := net.DialTimeout("unix", path, probeTimeout)
	if err == nil {
		_ = c.Close()
	}
	// After any other error a process listens, but may be busy.
	if !errors.Is(err, unix.ECONNREFUSED) {
		return inUseError(path)
	}
	return classify(os.Remove(path))
}

func inUseError(path string) error {
	return fault.WithHint(fmt.Errorf("%s: another agent listens: %w", path, fault.ErrConflict), "stop it, or set METE_SOCKET to another path")
}

// classify gives an error of the operating system its kind.
func classify(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: %w", err, fault.ErrDenied)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", err, fault.ErrNotFound)
	}
	return err
}

// Accept returns the next connection within the limits. It closes one above them at once, which
// tells its peer more than waiting does.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		p, err := peerOfConn(c)
		if err == nil && l.admit(p.UID) {
			return &conn{Conn: c, peer: p, listener: l}, nil
		}
		_ = c.Close()
	}
}

func (l *listener) admit(uid uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns >= maxConns || uid != 0 && l.connsByUser[uid] >= maxOfUser {
		return false
	}
	l.conns++
	l.connsByUser[uid]++
	return true
}

func (l *listener) release(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns--
	if l.connsByUser[uid]--; l.connsByUser[uid] == 0 {
		delete(l.connsByUser, uid)
	}
}

// close removes the socket and releases the lock. The lock file stays: if it were removed, two
// agents could hold a lock each.
func (l *listener) close() error {
	err := l.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // the server's shutdown closed it
	}
	return errors.Join(err, l.lock.Close())
}

// Close closes the connection and stops counting it.
func (c *conn) Close() error {
	c.once.Do(func() { c.listener.release(c.peer.UID) })
	return c.Conn.Close()
}

// peerOfConn returns the peer of a connection, as the kernel identifies it.
func peerOfConn(c *net.UnixConn) (p Peer, err error) {
	u, err := peercred.Of(c)
	if err != nil {
		return p, err
	}
	return Peer{UID: u.Uid, GID: u.Gid, PID: int(u.Pid)}, nil
}

type peerKey struct{}

// withPeer returns a context of a connection's requests that holds its peer.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, c.(*conn).peer)
}

func peerOf(ctx context.Context) Peer { return ctx.Value(peerKey{}).(Peer) }
