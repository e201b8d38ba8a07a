package receiver

import (
	"math"
	"slices"
	"time"

	"mete.dev/mete/internal/delivery/timeline"
	"mete.dev/mete/internal/model/batch"
)

const (
	// together is how long after its last word a machine is still taken to run.
	together = 5 * time.Minute

	pastKept   = 4
	clonesKept = 16
)

// presence is under which boots a node was here. One machine is in one boot at a
// time, and never in an earlier one again, unless it is put back to a snapshot.
type presence struct {
	current tenure
	past    []tenure // the latest first
	clones  []string // boots
}

// tenure is the time of one boot.
type tenure struct {
	boot string
	// By the server's clock: when it was heard first, when it took over, and
	// when it was heard last.
	first, since, last time.Time
	began              int64 // what is believed of when the boot began, ns since 1970
	earliest           int64 // the earliest that it can have begun: without the time that requests take
}

// see notes that the node speaks now, its clocks showing c; newest is the end of
// its newest window of that boot, -1 where it brings none. The result is whether
// it is a clone: a machine that came later with the identity of one that goes
// on.
//
// A machine that starts anew looks like a clone at first, so a boot that was
// never heard of takes over. If another one then shows windows that are newer
// than that, two machines are alive, and the one that was heard of first is the
// right one. Where the other has been silent, the machine was put back to a
// snapshot of itself.
func (p *presence) see(now time.Time, c batch.Clock, newest int64) (clone bool) {
	if slices.Contains(p.clones, c.Boot) {
		return true
	}
	fresh := now.UnixNano() - c.Boottime
	if c.Boot == p.current.boot {
		p.current.hear(now, c, fresh)
		return false
	}
	i := slices.IndexFunc(p.past, func(t tenure) bool { return t.boot == c.Boot })
	if i < 0 {
		p.takeOver(tenure{boot: c.Boot, first: now, since: now, last: now, began: fresh, earliest: fresh})
		return false
	}
	t := &p.past[i]
	t.hear(now, c, fresh)
	// A request that was long on its way is no sign of life.
	if newest < 0 || t.earliest+newest <= p.current.since.UnixNano() {
		return false
	}
	back := *t
	back.since = now
	p.past = slices.Delete(p.past, i, i+1)
	switch {
	case now.Sub(p.current.last) > together:
		p.takeOver(back)
	case back.first.After(p.current.first):
		p.condemn(back.boot)
		return true
	default:
		p.condemn(p.current.boot)
		p.current = back
	}
	return false
}

// condemn remembers a boot as a clone's.
func (p *presence) condemn(boot string) {
	p.clones = append(p.clones, boot)
	p.clones = p.clones[max(0, len(p.clones)-clonesKept):]
}

// takeOver makes t the current tenure.
func (p *presence) takeOver(t tenure) {
	if p.current.boot != "" {
		p.past = slices.Insert(p.past, 0, p.current)
		p.past = p.past[:min(len(p.past), pastKept)]
	}
	p.current = t
}

func (t *tenure) hear(now time.Time, c batch.Clock, fresh int64) {
	t.last = now
	t.began = timeline.Began(now, c, t.began)
	t.earliest = min(t.earliest, fresh)
}

// bucket holds what a node may still ask now.
type bucket struct {
	tokens float64
	at     time.Time
}

// take takes one token, or says how long it takes until there is one. The bucket
// gets rate tokens a second and holds burst.
func (b *bucket) take(now time.Time, rate float64, burst int) time.Duration {
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
