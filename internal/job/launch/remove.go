package launch

import (
	"errors"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/fault"
)

// Remove removes the groups, and those that the job created in them, if they have no processes. It
// reports whether all are gone. It also removes leftovers of earlier jobs whose mete was killed or
// which outlived it.
func (g *Group) Remove() bool {
	all := true
	for _, p := range slices.Concat(g.parts, g.abandoned) {
		p.close()
		if !g.removePart(p) {
			all = false
		}
		closeLock(p.lock)
		p.lock = -1
		g.sweep(p.parent)
	}
	return all
}

// exitGrace is how long an ended process may take to leave its group after its parent is notified:
// usually a millisecond, longer on a busy machine.
const exitGrace = time.Second

// removePart removes the groups of one part. It retries for exitGrace, while the last processes exit, and gives up at once
// if any part of the job has processes.
func (g *Group) removePart(p *part) bool {
	end, pause := time.Now().Add(exitGrace), 100*time.Microsecond
	for !g.removeEmpty(p.dir) {
		if len(g.Members()) > 0 {
			return false
		}
		if time.Now().After(end) {
			return g.removeEmpty(p.dir) // this process may have been stopped for all that time
		}
		time.Sleep(pause)
		pause = min(2*pause, 20*time.Millisecond)
	}
	return true
}

// removeEmpty removes the groups in dir and dir itself, and reports whether none is left.
func (g *Group) removeEmpty(dir string) bool {
	gone := true
	g.walk(dir, func(dir string) {
		if err := g.h.Rmdir(dir); err != nil && !errors.Is(err, fault.ErrNotFound) {
			gone = false
		}
	})
	return gone
}

// lockGrace protects a job's group after its start, when it may not be locked yet. A job whose group
// is removed nevertheless makes it again.
const lockGrace = 2 * time.Second

// sweep removes empty groups in dir of jobs whose mete is gone. Errors are ignored: the next job
// sweeps again.
func (g *Group) sweep(dir string) {
	es, err := g.h.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range es {
		id, ok := jobOf(e.Name())
		if !ok || time.Since(report.Time(id)) < lockGrace {
			continue
		}
		old := path.Join(dir, e.Name())
		if fd := lockDir(g.h, old, unix.LOCK_EX); fd >= 0 {
			g.removeEmpty(old)
			closeLock(fd)
		}
	}
}

// lockShared marks a group as belonging to a living mete: the kernel releases the lock when the
// process ends.
func lockShared(h *hostfs.FS, dir string) int { return lockDir(h, dir, unix.LOCK_SH) }

// lockDir returns a locked descriptor of dir, or -1. It is -1 too if dir was removed, and perhaps made
// again, before the descriptor was locked.
func lockDir(h *hostfs.FS, dir string, how int) int {
	fd, err := unix.Open(h.Path(dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	if err := unix.Flock(fd, how|unix.LOCK_NB); err != nil || !isAt(h, fd, dir) {
		closeLock(fd)
		return -1
	}
	return fd
}

// isAt reports whether the open directory has the path dir.
func isAt(h *hostfs.FS, fd int, dir string) bool {
	var opened, found unix.Stat_t
	return unix.Fstat(fd, &opened) == nil && unix.Stat(h.Path(dir), &found) == nil && opened.Ino == found.Ino
}

func closeLock(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd) // nothing was written
	}
}
