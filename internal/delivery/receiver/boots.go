package receiver

import (
	"slices"
	"time"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
)

const (
	// aliveTimeout is the time after its last request for which a machine counts as running.
	aliveTimeout = 5 * time.Minute

	maxEarlierBoots = 4
	maxClones       = 16
)

// A bootTracker holds the boots under which a node sent. A machine is in one boot at a time, and
// never again in an earlier one, unless it is restored from a snapshot.
type bootTracker struct {
	current bootRecord
	earlier []bootRecord // latest first
	clones  []string     // boot ids
}

// A bootRecord holds the times of one boot.
type bootRecord struct {
	boot string
	// By the server's clock: of its first request, of when it became the current boot, and of
	// its latest request.
	first, since, last time.Time
	began              int64 // believed start of the boot, ns since 1970
	earliest           int64 // earliest possible start: without the time that requests take
	unheard            bool  // it was booked before this server started, and sent no request since
}

// seed records the boot in which the node was booked before this server started. It came before all
// others, so that a copy of the machine does not pass for it by sending first.
func (b *bootTracker) seed(boot string) {
	if b.current.boot == "" && boot != "" {
		b.current = bootRecord{boot: boot, unheard: true}
	}
}

// observe records a request of the node, whose clocks show c; newest is the boottime at which its
// newest window of that boot ends, or -1 without one. It reports whether the sender is a clone: a
// machine that came later, with the identity of one that still runs.
//
// A machine that reboots looks like a clone at first, so an unknown boot becomes the current one.
// If an earlier boot then sends windows that are newer than that, two machines run, and the one
// whose first request came earlier is the right one. If the current boot was silent, the machine
// was restored from a snapshot of itself.
func (b *bootTracker) observe(now time.Time, c batch.Clock, newest int64) (clone bool) {
	if slices.Contains(b.clones, c.Boot) {
		return true
	}
	fresh := now.UnixNano() - c.Boottime
	if c.Boot == b.current.boot {
		b.current.update(now, c, fresh)
		return false
	}
	i := slices.IndexFunc(b.earlier, func(r bootRecord) bool { return r.boot == c.Boot })
	if i < 0 {
		b.setCurrent(bootRecord{boot: c.Boot, first: now, since: now, last: now, began: fresh, earliest: fresh})
		return false
	}
	r := &b.earlier[i]
	r.update(now, c, fresh)
	// A request that was long in transit does not show that its machine runs.
	if r.earliest+newest <= b.current.since.UnixNano() {
		return false
	}
	back := *r
	back.since = now
	b.earlier = slices.Delete(b.earlier, i, i+1)
	switch {
	case now.Sub(b.current.last) > aliveTimeout:
		b.setCurrent(back)
	case back.first.After(b.current.first):
		b.markClone(back.boot)
		return true
	default:
		b.markClone(b.current.boot)
		b.current = back
	}
	return false
}

// markClone records a boot as that of a clone.
func (b *bootTracker) markClone(boot string) {
	b.clones = append(b.clones, boot)
	b.clones = b.clones[max(0, len(b.clones)-maxClones):]
}

// setCurrent makes r the current boot.
func (b *bootTracker) setCurrent(r bootRecord) {
	if b.current.boot != "" {
		b.earlier = slices.Insert(b.earlier, 0, b.current)
		b.earlier = b.earlier[:min(len(b.earlier), maxEarlierBoots)]
	}
	b.current = r
}

func (r *bootRecord) update(now time.Time, c batch.Clock, fresh int64) {
	r.last = now
	if r.unheard {
		r.began, r.earliest, r.unheard = fresh, fresh, false
	}
	r.began = walltime.BootStart(now, c, r.began)
	r.earliest = min(r.earliest, fresh)
}
