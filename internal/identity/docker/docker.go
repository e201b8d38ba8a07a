// Package docker names the containers of Docker and Podman. Both serve Docker's Engine API at a unix
// socket: the package lists the containers there, and follows their events.
package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/x/sleep"
)

// None is the socket that stands for no daemon.
const None = "none"

// Sockets are the sockets of Docker and Podman, where Debian, Fedora and their own packages put them.
func Sockets() []string { return []string{"/run/docker.sock", "/run/podman/podman.sock"} }

// CheckSocket returns an error wrapping fault.ErrInvalid if path is neither [None] nor an absolute path.
func CheckSocket(path string) error {
	if path != None && (!filepath.IsAbs(path) || strings.Contains(path, ",")) {
		return fault.WithHint(fmt.Errorf("%q is not the path of a unix socket: %w", path, fault.ErrInvalid), "as /run/docker.sock; or none; several are given one by one")
	}
	return nil
}

const (
	// minRetry and maxRetry are how long a watcher waits before it connects again. A connection that lasted for maxRetry was
	// a good one.
	minRetry, maxRetry = time.Second, time.Minute
	// relist is the time between two lists while events are followed: one may have been missed.
	relist = time.Minute
	// maxRemoved is how many removed containers are kept: some may be in a window that is not closed yet. maxAsked limits
	// the ids that a daemon may not know.
	maxRemoved, maxAsked = 10_000, 10_000
)

// A Watcher knows the containers of some daemons. It connects once there is a container that it does not know: where
// systemd listens for a daemon, a connection starts the daemon. Its methods are safe for concurrent use; nil is a watcher of nothing.
type Watcher struct {
	daemons []*daemon
	keep    time.Duration
	log     *slog.Logger

	mu      sync.Mutex
	known   map[string]*Container
	removed []removal // in the order of their removal
}

// A daemon is one socket. The watcher's lock protects its fields below the channel.
type daemon struct {
	socket  string
	runtime string        // whose containers it has; "" is any
	wanted  chan struct{} // holds one request to connect or to list again

	path  string          // of the socket, without links, while it is connected; "" is not connected
	ids   map[string]bool // of the containers that it has shown
	asked map[string]bool // ids that Find wanted since it is connected, or since it is not
}

// A removal is a container that a daemon has removed.
type removal struct {
	*Container
	at time.Time
}

// New returns a watcher of the daemons at these sockets. It keeps the name of a removed container for keep.
func New(sockets []string, keep time.Duration, log *slog.Logger) *Watcher {
	w := &Watcher{keep: keep, log: log, known: map[string]*Container{}}
	for _, s := range sockets {
		if s == None {
			continue
		}
		d := &daemon{socket: s, wanted: make(chan struct{}, 1), ids: map[string]bool{}, asked: map[string]bool{}}
		for _, r := range []string{"docker", "podman"} {
			if strings.TrimSuffix(filepath.Base(s), ".sock") == r {
				d.runtime = r
			}
		}
		w.daemons = append(w.daemons, d)
	}
	return w
}

// Find returns what is known of a workload of this kind, key and path: nil if it is not a container, or nothing is known.
// The result never changes: after a change Find returns another one. A container that lives makes the watcher connect
// to the daemons that may know it, and list again what they have if it is not known.
func (w *Watcher) Find(kind workload.Kind, key, path string, lives bool) *Container {
	if w == nil || !isNamed(kind, key, path) {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.known[key]
	if !lives {
		return c
	}
	for _, d := range w.daemons {
		if d.asked[key] || c != nil && (d.path != "" || !d.ids[key]) {
			continue
		}
		if len(d.asked) >= maxAsked {
			clear(d.asked)
		}
		d.asked[key] = true
		if n, _ := workload.Recognize(path); n.Runtime != "" && d.runtime != "" && n.Runtime != d.runtime {
			continue
		}
		select {
		case d.wanted <- struct{}{}:
		default: // it is wanted already
		}
	}
	return c
}

// Want makes the watcher connect if a workload that lives is a container that is not known.
func (w *Watcher) Want(of *workload.Workload) { _ = w.Find(of.Kind, of.Key, of.Path, true) }

// isNamed reports whether a daemon may know a workload: a container with an id, unless the kubelet made its group. The API
// server of its cluster names that.
func isNamed(kind workload.Kind, key, path string) bool {
	return kind == workload.Container && workload.IsContainerID(key) && !strings.Contains(path, "kubepods")
}

// DisplayName returns the name of a workload: that of its container, if it is one that a daemon knows.
func (w *Watcher) DisplayName(of *workload.Workload) string {
	if c := w.Find(of.Kind, of.Key, of.Path, false); c != nil {
		return c.Name
	}
	return of.Name
}

// Name puts the names of containers into rows. It reports whether all of them are known.
func (w *Watcher) Name(rows []live.Row) (all bool) {
	all = true
	for i := range rows {
		r := &rows[i]
		if c := w.Find(r.Kind, r.Key, r.Path, !r.Ended); c != nil {
			r.Name = c.Name
		} else if all && isNamed(r.Kind, r.Key, r.Path) {
			all = false
		}
	}
	return all
}

// Run follows the daemons until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, d := range w.daemons {
		all.Go(func() { w.run(ctx, d) })
	}
	all.Wait()
	return nil
}

// run connects to a daemon whenever its containers are wanted.
func (w *Watcher) run(ctx context.Context, d *daemon) {
	last := "" // error that was logged
	for retry := minRetry; ; {
		select {
		case <-ctx.Done():
			return
		case <-d.wanted:
		}
		began := time.Now()
		err := w.follow(ctx, d)
		w.disconnect(d)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) >= maxRetry {
			retry, last = minRetry, ""
		}
		switch text := err.Error(); {
		case errors.Is(err, errConnected), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED): // no such daemon runs
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			w.log.Info("the daemon ended the connection", "socket", d.socket)
		case text != last:
			last = text
			w.log.Warn("new containers are named by their ids", append([]any{"socket", d.socket}, fault.Attrs(err)...)...)
		}
		if sleep.For(ctx, retry) != nil {
			return
		}
		retry = min(2*retry, maxRetry)
	}
}

// errConnected says that another socket leads to the same daemon.
var errConnected = errors.New("another socket leads there")

// connect records that a daemon is connected, unless another socket leads to it.
func (w *Watcher) connect(d *daemon) error {
	path, err := filepath.EvalSymlinks(d.socket)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.daemons {
		if o.path == path {
			return errConnected
		}
	}
	d.path = path
	return nil
}

// disconnect records that a daemon is not connected: containers that are found from now on count as wanted.
func (w *Watcher) disconnect(d *daemon) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d.path = ""
	d.reset()
}

// reset forgets the ids that Find wanted.
func (d *daemon) reset() {
	clear(d.asked)
	select {
	case <-d.wanted:
	default:
	}
}

// follow reads the containers of a daemon and then its events, until the connection ends, for which it always returns
// a reason.
func (w *Watcher) follow(ctx context.Context, d *daemon) error {
	if err := w.connect(d); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := newClient(d.socket)
	defer c.close()
	since := time.Now()
	n, err := w.list(ctx, c, d)
	if err != nil {
		return err
	}
	w.log.Info("containers are named", "socket", d.socket, "containers", n)
	events := make(chan event)
	ended := make(chan error, 1)
	go func() { ended <- c.follow(ctx, since, events) }()
	var again <-chan time.Time
	for {
		select {
		case e := <-events:
			w.apply(d, &e)
		case <-d.wanted:
			if again == nil {
				again = time.After(relist - time.Since(since))
			}
		case <-again:
			again, since = nil, time.Now()
			if _, err := w.list(ctx, c, d); err != nil {
				return err
			}
		case err := <-ended:
			return fmt.Errorf("%s: events: %w", d.socket, err)
		}
	}
}

// list replaces the containers of a daemon by those that it has, and returns their number.
func (w *Watcher) list(ctx context.Context, c *client, d *daemon) (int, error) {
	listed, err := c.list(ctx)
	if err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	gone := maps.Clone(d.ids)
	for _, c := range listed {
		w.set(d, c)
		delete(gone, c.ID)
	}
	for id := range gone {
		w.remove(d, id)
	}
	// An id that it does not know now becomes known by an event.
	select {
	case <-d.wanted:
	default:
	}
	return len(listed), nil
}

func (w *Watcher) apply(d *daemon, e *event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.isRemoval() {
		w.remove(d, e.Actor.ID)
		return
	}
	if c := e.container(); c != nil {
		w.set(d, c)
	}
}

func (w *Watcher) set(d *daemon, c *Container) {
	// One that was removed before is another one, which does not end with that removal.
	if old := w.known[c.ID]; old == nil || !d.ids[c.ID] || !old.equal(c) {
		w.known[c.ID] = c
	}
	d.ids[c.ID] = true
}

// remove keeps a container for a while, since a window may still have a row of it.
func (w *Watcher) remove(d *daemon, id string) {
	now := time.Now()
	for len(w.removed) > 0 && (len(w.removed) >= maxRemoved || now.Sub(w.removed[0].at) > w.keep) {
		if c := w.removed[0].Container; w.known[c.ID] == c {
			delete(w.known, c.ID)
		}
		w.removed = w.removed[1:]
	}
	if c := w.known[id]; c != nil && d.ids[id] {
		w.removed = append(w.removed, removal{c, now})
	}
	delete(d.ids, id)
}
