package net

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// classes counts traffic by class.
type classes struct {
	counter  classCounter
	operator Rules                       // given
	directed atomic.Pointer[Rules]       // of a server
	set      *Rules                      // those of a server that were set last, with own; nil if they have to be set again
	own      []netip.Prefix              // of this machine, as last read
	services []netip.Addr                // addresses that the machine translates, as last read
	known    map[bpf.ClassKey]*ownCounts // with an owner
	strange  map[bpf.ClassKey]int        // those without, and in how many edges of windows
	table    []byte                      // of routing tables, for reading
	round    int                         // of the latest reading
	shown    bool                        // some were shown since the latest call of Booked
	byPeer   bool                        // traffic is counted by peer and port too
	waiting  map[bpf.ClassKey]*waiting   // traffic by peer without an owner
	// unresolved is why translated addresses have no class of their own, nil if they have.
	unresolved error
}

// ownCounts is what is taken of the traffic of a key.
type ownCounts struct {
	owner *target
	taken bpf.ClassCounts
	quiet int // edges of windows without traffic
}

// classCounter counts the traffic of sockets by class: [bpf.Kernel].
type classCounter interface {
	SetClasses(map[netip.Prefix]uint8) error
	ClassCounts(f func(bpf.ClassKey, *bpf.ClassCounts)) error
	ForgetClasses(bpf.ClassKey)
	DrainEdges(f func(bpf.Edge, *bpf.EdgeTraffic)) error
	FollowTranslations() error
	Services(f func(netip.Addr)) error
}

func newClasses(c classCounter, operator Rules) *classes {
	out := &classes{counter: c, operator: operator, known: map[bpf.ClassKey]*ownCounts{}, strange: map[bpf.ClassKey]int{}, waiting: map[bpf.ClassKey]*waiting{}}
	out.directed.Store(&Rules{})
	return out
}

// updateRules sets the rules that hold now.
func (t *Table) updateRules() error {
	c := t.classes
	t.followTranslations()
	var services []netip.Addr
	servicesErr := c.counter.Services(func(a netip.Addr) { services = append(services, a) })
	// A service is there once for each of its ports.
	slices.SortFunc(services, netip.Addr.Compare)
	services = slices.Compact(services)
	own, err := t.ownPrefixes()
	if err != nil {
		own = c.own // as they were read before
	}
	err = errors.Join(err, servicesErr)
	directed := c.directed.Load()
	if c.set == directed && slices.Equal(own, c.own) && slices.Equal(services, c.services) {
		return err
	}
	c.set, c.own, c.services = nil, own, services
	rules := c.rules(*directed)
	for _, a := range services {
		rules.exceptService(a)
	}
	now := make(map[netip.Prefix]uint8, len(rules))
	for p, class := range rules {
		now[p] = uint8(class)
	}
	setErr := c.counter.SetClasses(now)
	if setErr == nil {
		c.set = directed
	}
	return errors.Join(err, setErr)
}

// SetDirected sets the classes that a server gives, from the next edge of a window on. It is safe for concurrent use.
func (t *Table) SetDirected(r Rules) {
	if t.classes != nil {
		t.classes.directed.Store(&r)
	}
}

// followTranslations lets the kernel find the real end of addresses that the machine translates. Connection tracking may begin at
// any time, as when kube-proxy starts.
func (t *Table) followTranslations() {
	c := t.classes
	for _, pid := range []string{"1", "2"} {
		if id, err := t.h.ID(link(pid)); err == nil && id != t.foreign.own {
			c.unresolved = fmt.Errorf("net: this process is not in the machine's network namespace: %w", fault.ErrUnsupported)
			return
		}
	}
	c.unresolved = c.counter.FollowTranslations()
}

// UnresolvedReason returns why traffic to translated addresses, as those of services, has no class, "" if it has, or if no traffic
// is counted by class.
func (t *Table) UnresolvedReason() string {
	if t.classes == nil || t.classes.unresolved == nil {
		return ""
	}
	return t.classes.unresolved.Error()
}

// Counts without an owner are kept for some edges of windows, as a workload that is new has its source within a few ticks.
// Those with an owner are kept for longer without traffic: a workload may enter many namespaces in its life.
const (
	strangeEdges = 3
	quietEdges   = 10
)

// readClasses adds the traffic by class since the latest reading to its owners, once a round unless again is set. edge says
// that a window ends.
func (t *Table) readClasses(edge, again bool) error {
	c := t.classes
	if c == nil || c.round == t.round && !again {
		return nil
	}
	c.round = t.round
	var gone []bpf.ClassKey
	err := c.counter.ClassCounts(func(k bpf.ClassKey, n *bpf.ClassCounts) {
		x, ofInterface := t.ownerOf(k)
		if x == nil {
			if edge {
				if c.strange[k]++; c.strange[k] >= strangeEdges {
					gone = append(gone, k)
				}
			}
			return
		}
		delete(c.strange, k)
		own := c.known[k]
		if own == nil {
			own = &ownCounts{}
			c.known[k] = own
		}
		if own.owner != x {
			own.owner = x
			x.classKeys = append(x.classKeys, k)
		}
		switch {
		case *n != own.taken:
			if sum := x.addClasses(n, &own.taken, ofInterface); c.byPeer && sum > 0 {
				x.sketch().Miss(sum)
			}
			own.taken, own.quiet = *n, 0
		case edge:
			if own.quiet++; own.quiet >= quietEdges {
				x.classKeys = slices.DeleteFunc(x.classKeys, func(other bpf.ClassKey) bool { return other == k })
				gone = append(gone, k)
			}
		}
	})
	for _, k := range gone {
		c.forget(k)
	}
	if c.byPeer {
		err = errors.Join(err, t.readEdges(edge))
	}
	return err
}

// ownerOf returns the workload to which the traffic of a key belongs, nil if it has none yet, and whether its interfaces count
// its traffic as a whole.
func (t *Table) ownerOf(k bpf.ClassKey) (x *target, ofInterface bool) {
	if ns := t.namespaces[k.NetNS]; ns != nil {
		return ns.holder, true
	}
	if x := t.members[k.Group]; x != nil && x.reading.Source == Sockets {
		return x, false
	}
	return nil, false
}

// addClasses adds what came since the counts that were taken before, and returns the sum of it.
func (x *byOther) addClasses(now, taken *bpf.ClassCounts, ofInterface bool) (sum int64) {
	for i := range now {
		n := int64(now[i].Wire - taken[i].Wire)
		if ofInterface {
			n = int64(now[i].Interface - taken[i].Interface)
		}
		if n <= 0 {
			continue
		}
		sum += n
		if r := usage.NetworkRxNode + usage.Resource(i); usage.Classified.Has(r) {
			x.addClass(r, n)
		}
	}
	return sum
}

func (x *byOther) addClass(r usage.Resource, n int64) {
	if n == 0 {
		return
	}
	if x.classes == nil {
		x.classes = &usage.ClassBytes{}
	}
	x.classes.Add(r, n)
}

// forgetClasses removes the counts of a workload that is gone.
func (t *Table) forgetClasses(x *target) {
	for _, k := range x.classKeys {
		if own := t.classes.known[k]; own != nil && own.owner == x {
			t.classes.forget(k)
		}
	}
	x.classKeys = nil
}

func (c *classes) forget(k bpf.ClassKey) {
	c.counter.ForgetClasses(k)
	delete(c.known, k)
	delete(c.strange, k)
}

// showClasses puts the traffic by class and by peer that is not booked into x's reading.
func (t *Table) showClasses(x *target) {
	t.showConnections(x)
	x.reading.Classes = nil
	if x.classes != nil {
		x.reading.Classes = new(*x.classes) // later readings add to the other
		t.classes.shown = true
	}
}

// Booked says that the traffic by class and by peer of the latest readings was booked. The next ones have
// all that was read since they were returned.
func (t *Table) Booked() {
	if t.classes == nil || !t.classes.shown {
		return
	}
	t.classes.shown = false
	for _, x := range t.order {
		if x.reading.Connections != nil {
			x.shown, x.reading.Connections = nil, nil
		}
		if x.reading.Classes == nil {
			continue
		}
		for r, n := range x.reading.Classes.All() {
			x.classes.Add(r, -n)
		}
		if x.reading.Classes = nil; *x.classes == (usage.ClassBytes{}) {
			x.classes = nil
		}
	}
}
