// Package docker names the containers of Docker and Podman. Both serve Docker's Engine API at a unix
// socket: the package lists the containers there, and follows their events.
package docker

import (
	"context"
	"errors"
	"fmt"
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

// Sockets are the sockets of Docker and Podman, where Debian, Fedora and their own packages put them.
func Sockets() []string { return []string{"/run/docker.sock", "/run/podman/podman.sock"} }

// CheckSocket returns an error wrapping fault.ErrInvalid if path is neither "" nor an absolute path.
func CheckSocket(path string) error {
	if path != "" && !filepath.IsAbs(path) {
		return fault.WithHint(fmt.Errorf("%q is not the path of a unix socket: %w", path, fault.ErrInvalid), "as /run/docker.sock")
	}
	return nil
}

const (
	// minRetry and maxRetry are how long a watcher waits before it connects again.
	minRetry, maxRetry = time.Second, time.Minute
	// maxRemoved is how many removed containers are kept: some may be in a window that is not closed yet.
	maxRemoved = 10_000
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

// A daemon is one socket.
type daemon struct {
	socket string
	wanted chan struct{}   // holds one request to connect
	mine   map[string]bool // ids of containers that it has shown
}

// A removal is a container that a daemon has removed.
type removal struct {
	*Container
	at time.Time
}

// New returns a watcher of the daemons at these sockets; "" is none. It keeps the name of a removed container for keep.
func New(sockets []string, keep time.Duration, log *slog.Logger) *Watcher {
	w := &Watcher{keep: keep, log: log, known: map[string]*Container{}}
	for _, s := range sockets {
		if s == "" {
			continue
		}
		w.daemons = append(w.daemons, &daemon{socket: s, wanted: make(chan struct{}, 1), mine: map[string]bool{}})
	}
	return w
}

// Find returns what is known of a workload of this kind, key and path: nil if it is not a container, or nothing is known.
// The result never changes: after a change Find returns another one. A container that is not known makes the watcher
// connect, unless it is one of a pod of Kubernetes, which the API server of its cluster names.
func (w *Watcher) Find(kind workload.Kind, key, path string) *Container {
	if w == nil || !isNamed(kind, path) {
		return nil
	}
	w.mu.Lock()
	c := w.known[key]
	w.mu.Unlock()
	if c != nil {
		return c
	}
	for _, d := range w.daemons {
		select {
		case d.wanted <- struct{}{}:
		default: // it is wanted already
		}
	}
	return nil
}

// isNamed reports whether a daemon may know a workload: a container, unless the kubelet made its group.
func isNamed(kind workload.Kind, path string) bool {
	return kind == workload.Container && !strings.Contains(path, "kubepods")
}

// DisplayName returns the name of a workload: that of its container, if it is one that a daemon knows.
func (w *Watcher) DisplayName(of *workload.Workload) string {
	if c := w.Find(of.Kind, of.Key, of.Path); c != nil && c.Name != "" {
		return c.Name
	}
	return of.Name
}

// Name puts the names of containers into rows. It reports whether all of them are known.
func (w *Watcher) Name(rows []live.Row) (all bool) {
	all = true
	for i := range rows {
		r := &rows[i]
		if !isNamed(r.Kind, r.Path) {
			continue
		}
		c := w.Find(r.Kind, r.Key, r.Path)
		if all = all && c != nil; c != nil && c.Name != "" {
			r.Name = c.Name
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
		connected, err := w.follow(ctx, d)
		if ctx.Err() != nil {
			return
		}
		if connected {
			retry, last = minRetry, ""
		}
		switch text := err.Error(); {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED): // no such daemon runs
		case text != last:
			last = text
			w.log.Warn("containers are named by their ids until this works", append([]any{"socket", d.socket}, fault.Attrs(err)...)...)
		}
		if sleep.For(ctx, retry) != nil {
			return
		}
		retry = min(2*retry, maxRetry)
	}
}

// follow reads the containers of a daemon and then its events, until the connection ends, for which it always returns
// a reason. connected is false if nothing was read.
func (w *Watcher) follow(ctx context.Context, d *daemon) (connected bool, err error) {
	c := newClient(d.socket)
	defer c.close()
	begin := time.Now()
	listed, err := c.list(ctx)
	if err != nil {
		return false, err
	}
	w.setAll(d, listed)
	w.log.Info("containers are named", "socket", d.socket, "containers", len(listed))
	events, err := c.events(ctx, begin)
	if err != nil {
		return true, err
	}
	defer func() { _ = events.close() }()
	for {
		e, err := events.next()
		if err != nil {
			return true, fmt.Errorf("%s: events: %w", d.socket, err)
		}
		w.apply(d, &e)
	}
}

// setAll replaces the containers of a daemon.
func (w *Watcher) setAll(d *daemon, listed []*Container) {
	w.mu.Lock()
	defer w.mu.Unlock()
	gone := maps.Clone(d.mine)
	for _, c := range listed {
		w.set(d, c)
		delete(gone, c.ID)
	}
	for id := range gone {
		w.remove(d, id)
	}
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
	if old := w.known[c.ID]; old == nil || !d.mine[c.ID] || !old.equal(c) {
		w.known[c.ID] = c
	}
	d.mine[c.ID] = true
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
	if c := w.known[id]; c != nil && d.mine[id] {
		w.removed = append(w.removed, removal{c, now})
	}
	delete(d.mine, id)
}
