package receiver

import (
	"math"
	"slices"
	"time"

	"mete.dev/mete/internal/delivery/timeline"
	"mete.dev/mete/internal/model/batch"
)

const (
	// aliveTimeout is how long after its last word a machine is still taken to run.
	aliveTimeout = 5 * time.Minute

	maxEarlierBoots = 4
	maxClones       = 16
)

// bootTracker knows under which boots a node was here. One machine is in one boot at a
// time, and never in an earlier one again, unless it is put back to a snapshot.
type bootTracker struct {
	current bootRecord
	earlier []bootRecord // the latest first
	clones  []string     // boots
}

// bootRecord is the time of one boot.
type bootRecord struct {
	boot string
	// By the server's clock: when it was heard first, when it took over, and
	// when it was heard last.
	first, since, last time.Time
	began              int64 // what is believed of when the boot began, ns since 1970
	earliest           int64 // the earliest that it can have begun: without the time that requests take
}

// observe notes that the node speaks now, its clocks showing c; newest is the end of
// its newest window of that boot, -1 where it brings none. The result is whether
// it is a clone: a machine that came later with the identity of one that goes
// on.
//
// A machine that starts anew looks like a clone at first, so a boot that was
// never heard of takes over. If another one then shows windows that are newer
// than that, two machines are alive, and the one that was heard of first is the
// right one. Where the other has been silent, the machine was put back to a
// snapshot of itself.
func (p *bootTracker) observe(now time.Time, c batch.Clock, newest int64) (clone bool) {
	if slices.Contains(p.clones, c.Boot) {
		return true
	}
	fresh := now.UnixNano() - c.Boottime
	if c.Boot == p.current.boot {
		p.current.update(now, c, fresh)
		return false
	}
	i := slices.IndexFunc(p.earlier, func(t bootRecord) bool { return t.boot == c.Boot })
	if i < 0 {
		p.setCurrent(bootRecord{boot: c.Boot, first: now, since: now, last: now, began: fresh, earliest: fresh})
		return false
	}
	t := &p.earlier[i]
	t.update(now, c, fresh)
	// A request that was long on its way is no sign of life.
	if newest < 0 || t.earliest+newest <= p.current.since.UnixNano() {
		return false
	}
	back := *t
	back.since = now
	p.earlier = slices.Delete(p.earlier, i, i+1)
	switch {
	case now.Sub(p.current.last) > aliveTimeout:
		p.setCurrent(back)
	case back.first.After(p.current.first):
		p.markClone(back.boot)
		return true
	default:
		p.markClone(p.current.boot)
		p.current = back
	}
	return false
}

// markClone remembers a boot as a clone's.
func (p *bootTracker) markClone(boot string) {
	p.clones = append(p.clones, boot)
	p.clones = p.clones[max(0, len(p.clones)-maxClones):]
}

// setCurrent makes t the current boot.
func (p *bootTracker) setCurrent(t bootRecord) {
	if p.current.boot != "" {
		p.earlier = slices.Insert(p.earlier, 0, p.current)
		p.earlier = p.earlier[:min(len(p.earlier), maxEarlierBoots)]
	}
	p.current = t
}

func (t *bootRecord) update(now time.Time, c batch.Clock, fresh int64) {
	t.last = now
	t.began = timeline.BootStart(now, c, t.began)
	t.earliest = min(t.earliest, fresh)
}

// tokenBucket holds what a node may still ask now.
type tokenBucket struct {
	tokens float64
	at     time.Time
}

// take takes one token, or says how long it takes until there is one. The bucket
// gets rate tokens a second and holds burst.
func (b *tokenBucket) take(now time.Time, rate float64, burst int) time.Duration {
	if b.at.IsZero() {
		b.tokens = float64(burst)
	} else if d := now.Sub(b.at); d > 0 {
		b.tokens = min(float64(burst), b.tokens+d.Seconds()*rate)
	}
	b.at = now
	if b.tokens < 1 {
		return time.Duration(math.Ceil((1 - b.tokens) / rate * float64(time.Second))) // 0 would be a token
	}
	b.tokens--
	return 0
}
