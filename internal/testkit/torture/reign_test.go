package torture

import (
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"mete.dev/mete/internal/testkit/netfault"
)

// A reign is a period in which the server runs with a copy of its state so old that the agent
// has already deleted batches that it lacks: the agent must report them lost. Then the
// rightful state is restored. The agent keeps all that this one lacks, so that nothing is
// lost in the end.
type reign struct {
	ready bool      // the old copy exists
	short bool      // the agent has deleted batches for want of room
	point string    // failpoint at which a program is to die
	hits  int       // hits of point before this reign
	ends  time.Time // latest end; zero outside a reign
	next  time.Time // earliest begin of the next one
	n     int       // number of reigns
}

func (g *reign) lasts() bool { return !g.ends.IsZero() }

func (r *rig) ancient() string  { return filepath.Join(r.dir, "ancient") }
func (r *rig) rightful() string { return filepath.Join(r.dir, "rightful") }

// due returns a failpoint that still needs a reign, or "".
func (r *rig) due() string {
	hits := r.hits()
	for _, p := range lossPoints {
		if hits[p] < 3 && slices.Contains(r.v.points, p) {
			return p
		}
	}
	return ""
}

// rule begins a reign if one is due, and ends it.
func (r *rig) rule() {
	g, now := &r.reign, time.Now()
	switch {
	case g.lasts():
		if now.After(g.ends) || r.hits()[g.point] > g.hits {
			r.endReign()
		}
	case !g.ready || !r.late() || now.Before(g.next) || now.Before(r.outage) || r.due() == "":
	case r.stores[r.agent].full || r.stores[r.server].full || r.owes():
	case g.short:
		r.beginReign(r.due())
	default:
		// On a full disk the agent deletes batches that the server has.
		g.short = true
		r.faults["agent disk full"]++
		r.must(r.stores[r.agent].fill(1500 * time.Millisecond))
		r.copied = false
	}
}

func (r *rig) beginReign(point string) {
	r.faults["reign"]++
	for i, c := range r.children()[:2] {
		c.kill(syscall.SIGKILL)
		r.died(i, c, "killed")
	}
	r.copy(r.state(), r.rightful())
	r.putBack(r.ancient())
	r.reign.point, r.reign.hits, r.reign.ends = point, r.hits()[point], time.Now().Add(8*time.Second)
	r.reign.n++
	// No network faults, so that it is short.
	r.weather, r.fair = r.reign.ends, true
	r.proxy.Set(netfault.Conditions{})
}

func (r *rig) endReign() {
	if !r.reign.lasts() {
		return
	}
	r.server.kill(syscall.SIGKILL)
	r.died(0, r.server, "killed")
	r.putBack(r.rightful())
	r.reign.ends, r.reign.next = time.Time{}, time.Now().Add(time.Second)
	if r.hits()[r.reign.point] == r.reign.hits {
		// The agent had all batches that the copy lacked. Delete batches again before the
		// next reign.
		r.reign.short, r.reign.next = false, time.Now().Add(3*time.Second)
	}
	r.weather = time.Now()
}

// arm returns the failpoint at which a program is to die in a reign, or "".
func (g *reign) arm(r *rig, c *child) string {
	if map[string]*child{"ledger.lost": r.server, "ship.lost": r.agent}[g.point] != c {
		return ""
	}
	return g.point + "@1"
}
