package launch

import (
	"errors"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/fault"
)

// Remove removes the groups, and those that the job made in them, where no
// process is left in them. It reports whether all are gone. In passing it
// removes what earlier jobs left behind whose mete was killed, or which lived
// on after it.
func (g *Group) Remove() bool {
	all := true
	for _, p := range slices.Concat(g.parts, g.abandoned) {
		p.close()
		if !g.remove(p) {
			all = false
		}
		closeLock(p.lock)
		p.lock = -1
		g.sweep(p.parent)
	}
	return all
}

// exitGrace is how long what has ended may take to leave its group, which is a little
// after its parent knows: a millisecond or so, longer on a machine with much to do.
const exitGrace = time.Second

// remove tries for a moment.
func (g *Group) remove(p *part) bool {
	end, pause := time.Now().Add(exitGrace), 100*time.Microsecond
	for !g.rmdir(p.dir) {
		if time.Now().After(end) || len(g.Members()) > 0 {
			return false
		}
		time.Sleep(pause)
		pause = min(2*pause, 20*time.Millisecond)
	}
	return true
}

// rmdir removes the group and all below it, or as much as is empty.
func (g *Group) rmdir(dir string) bool {
	gone := true
	g.walk(dir, func(dir string) {
		if err := g.h.Rmdir(dir); err != nil && !errors.Is(err, fault.ErrNotFound) {
			gone = false
		}
	})
	return gone
}

// lockGrace is how long after its start a job's group is nobody else's to remove,
// as it may be about to be locked.
const lockGrace = 2 * time.Second

// sweep removes the groups in dir of jobs whose mete is gone, as far as they are
// empty. Failing is no harm: the next job sweeps again.
func (g *Group) sweep(dir string) {
	es, err := g.h.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range es {
		id, ok := strings.CutPrefix(e.Name(), Prefix)
		if !ok || !report.ValidID(id) || time.Since(report.Time(id)) < lockGrace {
			continue
		}
		old := path.Join(dir, e.Name())
		if fd := lockDir(g.h, old, unix.LOCK_EX); fd >= 0 {
			g.rmdir(old)
			closeLock(fd)
		}
	}
}

// lockShared marks a group as that of a living mete: the kernel takes the lock away
// when the process ends, however it ends.
func lockShared(h *hostfs.FS, dir string) int { return lockDir(h, dir, unix.LOCK_SH) }

// lockDir returns a descriptor of dir that is locked, or -1.
func lockDir(h *hostfs.FS, dir string, how int) int {
	fd, err := unix.Open(h.Path(dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	if err := unix.Flock(fd, how|unix.LOCK_NB); err != nil {
		closeLock(fd)
		return -1
	}
	return fd
}

func closeLock(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd) // nothing was written
	}
}
