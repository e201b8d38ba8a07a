package torture

import (
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"mete.dev/mete/internal/testkit/netfault"
)

// A reign is the time of a server that somebody restored from the wrong copy, one
// so old that its agent does not keep any more what it lacks: the agent has to
// say that it is lost. Then the right state is put back. The agent keeps all
// that it lacks, so that in the end nothing is lost.
type reign struct {
	ready bool      // there is an old copy
	short bool      // the agent has given up batches
	point string    // at which a program is to die
	hits  int       // how often it had been hit before
	ends  time.Time // at the latest; zero where none lasts
	next  time.Time // the earliest time of the next one
	n     int
}

func (g *reign) lasts() bool { return !g.ends.IsZero() }

func (r *rig) ancient() string  { return filepath.Join(r.dir, "ancient") }
func (r *rig) rightful() string { return filepath.Join(r.dir, "rightful") }

// due is the point for which there is to be a reign still, "" where for none.
func (r *rig) due() string {
	hits := r.hits()
	for _, p := range lossPoints {
		if hits[p] < 3 && slices.Contains(r.v.points, p) {
			return p
		}
	}
	return ""
}

// rule begins a reign where one is due, and ends it.
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
		// On a full disk the agent gives up what the server has.
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
	// Nothing else goes wrong, so that it is short.
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
		// The agent had all that was lacking. It keeps what it was asked for
		// meanwhile, once it has been asked for it again.
		r.reign.short, r.reign.next = false, time.Now().Add(3*time.Second)
	}
	r.weather = time.Now()
}

// arm says where a program is to die in a reign: "" is nowhere.
func (g *reign) arm(r *rig, c *child) string {
	if map[string]*child{"ledger.lost": r.server, "ship.lost": r.agent}[g.point] != c {
		return ""
	}
	return g.point + "@1"
}
