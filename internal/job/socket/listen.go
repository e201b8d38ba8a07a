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
)

const (
	maxConns   = 512 // at once, of all users
	maxOfUser  = 128 // of one who is not root
	pathLimit  = 107 // of sun_path in unix(7), less its end
	probeLimit = time.Second
)

// A listener accepts connections, as many as are good for the agent.
type listener struct {
	*net.UnixListener
	lock *os.File

	mu          sync.Mutex
	conns       int
	connsByUser map[uint32]int // by user
}

// A conn is a connection and who is at its other end.
type conn struct {
	net.Conn
	peer     Peer
	once     sync.Once
	listener *listener
}

// bind makes the socket. Whoever holds the lock beside it is the one agent that
// may: a socket that is there then is left from one that died.
func bind(path string) (_ *listener, err error) {
	if len(path) > pathLimit {
		return nil, fault.WithHint(fmt.Errorf("socket %s: longer than %d bytes: %w", path, pathLimit, fault.ErrInvalid), "set METE_SOCKET to a shorter path")
	}
	if err := makeDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	// Nobody else may open it, so that nobody else can hold it.
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
	// Connecting takes the right to write.
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(classify(err), l.Close())
	}
	return &listener{UnixListener: l, lock: lock, connsByUser: map[uint32]int{}}, nil
}

// makeDir makes the directory of the socket, for all to enter whatever the umask
// is. One that is there is left as it is.
func makeDir(dir string) error {
	_, err := os.Stat(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return classify(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return classify(err)
	}
	return classify(os.Chmod(dir, 0o755))
}

// removeStale removes a socket at which nobody listens.
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
	c, err := net.DialTimeout("unix", path, probeLimit)
	if err == nil {
		_ = c.Close()
	}
	// Any other answer says that there is somebody, if a busy one.
	if !errors.Is(err, unix.ECONNREFUSED) {
		return inUseError(path)
	}
	return classify(os.Remove(path))
}

func inUseError(path string) error {
	return fault.WithHint(fmt.Errorf("%s: another agent listens: %w", path, fault.ErrConflict), "stop it, or set METE_SOCKET to another path")
}

// classify gives an error of the system its kind.
func classify(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: %w", err, fault.ErrDenied)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", err, fault.ErrNotFound)
	}
	return err
}

// Accept returns the next connection that may be. One too many is closed at
// once, which tells its peer more than to let it wait.
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

// close removes the socket and gives the lock to the next. The lock's file
// stays: to remove it would let two hold it.
func (l *listener) close() error {
	err := l.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // as the server was shut down
	}
	return errors.Join(err, l.lock.Close())
}

// Close closes the connection, and makes room for another.
func (c *conn) Close() error {
	c.once.Do(func() { c.listener.release(c.peer.UID) })
	return c.Conn.Close()
}

// peerOfConn asks the kernel who is at the other end.
func peerOfConn(c *net.UnixConn) (p Peer, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return p, err
	}
	var got error
	err = raw.Control(func(fd uintptr) {
		var u *unix.Ucred
		if u, got = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); got == nil {
			p = Peer{UID: u.Uid, GID: u.Gid, PID: int(u.Pid)}
		}
	})
	return p, errors.Join(err, got)
}

type peerKey struct{}

// withPeer puts the peer of a connection into the context of its requests.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, c.(*conn).peer)
}

func peerOf(ctx context.Context) Peer { return ctx.Value(peerKey{}).(Peer) }
