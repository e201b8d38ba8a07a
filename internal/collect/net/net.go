// Package net reads the network traffic of each workload.
//
// Traffic belongs to the holder of a network namespace: a pod, never one of
// its containers; else the workload. Each workload has one source for its life,
// chosen when its first processes are seen:
//
//   - In a namespace of its own, the counters of the namespace's interfaces
//     without lo. The table keeps a descriptor of the namespace's net/dev, so
//     that it can read the last value after all processes have ended. That also
//     keeps the namespace alive: until [Table.Forget], in the tick in which the
//     group is gone, or until a reading at the edge of a window finds no process. Of an
//     interface that is removed before, as a runtime does with those of a pod some time after
//     the last container, the latest reading counts.
//   - In a shared namespace and a cgroup v2 group of its own, the traffic of its
//     sockets, which the kernel counts by group.
//   - Otherwise the traffic is unknown, and the [Reading] has the reason. An
//     estimate from the open sockets would be low without a bound, because it
//     misses sockets that come and go between two readings.
//
// A workload's processes are those of its group and of the groups below that are part of it.
// A pod's are those of all groups below: its containers, of which the sandbox holds the
// namespace.
//
// A namespace is a workload's own if it is not that of process 1, of this process
// or of another workload, and did not exist before the workload.
package net

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Config limits the resources of a Table.
type Config struct {
	// Descriptors is how many files may stay open, one per namespace. Without a descriptor
	// the namespace is found through a process each time, and its last value is that of the
	// previous tick.
	Descriptors int
	// Classes are the classes of an operator's prefixes.
	Classes Rules
	// NoClasses says that traffic is not counted by class.
	NoClasses bool
	// Connections says that traffic is counted by peer and port, where it is counted by class.
	Connections bool
}

// Default returns a number of descriptors that fits most limits.
func Default() Config { return Config{Descriptors: 200} }

// Validate returns an error wrapping fault.ErrInvalid if c cannot work.
func (c Config) Validate() error {
	if c.Descriptors < 0 {
		return fmt.Errorf("net: descriptors %d: %w", c.Descriptors, fault.ErrInvalid)
	}
	return nil
}

// A Count is cumulative traffic.
type Count struct{ RxBytes, TxBytes, RxPackets, TxPackets int64 }

func (c Count) plus(d Count) Count {
	return Count{c.RxBytes + d.RxBytes, c.TxBytes + d.TxBytes, c.RxPackets + d.RxPackets, c.TxPackets + d.TxPackets}
}

// isBelowAny reports whether any counter of c is less than that of d.
func (c Count) isBelowAny(d Count) bool {
	return c.RxBytes < d.RxBytes || c.TxBytes < d.TxBytes || c.RxPackets < d.RxPackets || c.TxPackets < d.TxPackets
}

// A Source is the source of a workload's figures.
type Source uint8

const (
	Unseen     Source = iota // none, or not chosen yet
	Interfaces               // the interfaces of its own namespace, without lo
	Sockets                  // the sockets of its cgroup v2 group
)

var sourceNames = [...]string{"unseen", "interfaces", "sockets"}

// String returns the name of the source.
func (s Source) String() string { return sourceNames[s%3] }

// A Target is a workload to track.
type Target struct {
	Slot   usage.Slot
	Parent usage.Slot // of the parent workload, which is tracked before
	Kind   workload.Kind
	// Hierarchy is one that has the workload's group, and Path is the group's path there. The
	// path may be another one in another hierarchy.
	Hierarchy *hostfs.Hierarchy
	Path      string
	// Group is the id of the workload's cgroup v2 group if the caller knows it; 0 to look
	// it up.
	Group uint64
	// Placed means that the caller has put the workload's processes into Group, even if v1
	// hierarchies count.
	Placed bool
	// Born means that the workload did not exist at the previous reading.
	Born bool
}

// A Reading is the traffic of a workload since its life began, or why that is not known.
type Reading struct {
	Count  // undefined if Source is Unseen
	Source Source
	// Classes is the traffic by class since the latest call of [Table.Booked], as far as it is known; nil if none
	// is.
	Classes *usage.ClassBytes
	// Connections is with whom the workload exchanged the traffic since the latest call of [Table.Booked], as far as it is
	// known: the [connection.Top] largest edges; nil if none is.
	Connections *connection.Sketch
	Reason      string // why the source is Unseen
}

// Quality returns the quality of the figures.
func (r Reading) Quality() usage.Quality {
	if r.Source == Unseen {
		return usage.Absent
	}
	return usage.Measured
}

// Put puts the figures into g if there are any, else it leaves g alone.
func (r Reading) Put(g *usage.Group) {
	if r.Source == Unseen {
		return
	}
	g.Put(usage.NetworkRx, r.RxBytes)
	g.Put(usage.NetworkTx, r.TxBytes)
	g.Put(usage.NetworkRxPackets, r.RxPackets)
	g.Put(usage.NetworkTxPackets, r.TxPackets)
	g.Classes, g.Connections = r.Classes, r.Connections
}

// A Table reads the traffic of the tracked workloads. Only one goroutine may use it.
type Table struct {
	h       *hostfs.FS
	v2      *hostfs.Hierarchy // nil if not mounted
	sockets sockets           // nil if sockets are not counted
	// uncounted is why sockets are not counted.
	uncounted        string
	classes          *classes // nil if traffic is not counted by class
	unclassified     string   // why
	unconnected      string   // why traffic is not counted by peer and port, where it is by class
	node             *node
	foreign          *foreignNamespaces
	namespaces       map[uint64]*netns
	bySlot           []*target          // nil if the slot is not tracked
	order            []*target          // those tracked, by slot
	members          map[uint64]*target // by cgroup v2 group
	spareDescriptors int                // descriptors that may still be opened to keep
	round            int                // of reading
	buf              []byte
}

// sockets counts the traffic of the sockets of each cgroup v2 group.
type sockets interface {
	// each calls f for groups whose sockets had traffic.
	each(f func(group uint64, c Count))
	close() error
}

// Open opens an empty table of h. k counts sockets; if k is nil or cannot, UncountedReason
// says why they are not counted. The error wraps fault.ErrUnsupported if h has no control
// groups.
func Open(h *hostfs.FS, k *bpf.Kernel, cfg Config) (*Table, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	ys, err := h.Hierarchies()
	if err != nil {
		return nil, err
	}
	t := &Table{
		h: h, foreign: surveyNamespaces(h), namespaces: map[uint64]*netns{},
		members:          map[uint64]*target{},
		spareDescriptors: cfg.Descriptors, round: 1, buf: make([]byte, 16<<10),
	}
	if ys[0].V2 {
		t.v2 = &ys[0]
	}
	t.node = openNode(h)
	t.uncounted = "no cgroup v2 here"
	if t.v2 != nil {
		if t.sockets, err = openSockets(h, k, *t.v2); err != nil {
			t.uncounted = err.Error()
		}
	}
	t.openClasses(k, cfg)
	return t, nil
}

// Close releases the table's resources.
func (t *Table) Close() error {
	for _, ns := range t.namespaces {
		t.release(ns)
	}
	t.node.close()
	if t.sockets == nil {
		return nil
	}
	return t.sockets.close()
}

// openClasses lets k count traffic by class.
func (t *Table) openClasses(k *bpf.Kernel, cfg Config) {
	switch {
	case cfg.NoClasses:
		t.unclassified = "it is switched off"
	case t.sockets == nil:
		t.unclassified = t.uncounted
	case k.Err(bpf.Classes) != nil:
		t.unclassified = k.Err(bpf.Classes).Error()
	default:
		t.classes = newClasses(k, cfg.Classes)
		t.openConnections(k, cfg)
		t.followTranslations()
	}
}

// openConnections lets k count traffic by peer and port.
func (t *Table) openConnections(k *bpf.Kernel, cfg Config) {
	switch {
	case !cfg.Connections:
		t.unconnected = "it is switched off"
	case k.Err(bpf.Connections) != nil:
		t.unconnected = k.Err(bpf.Connections).Error()
	default:
		t.classes.byPeer = true
	}
}

// UnclassifiedReason returns why traffic is not counted by class, "" if it is.
func (t *Table) UnclassifiedReason() string { return t.unclassified }

// UnconnectedReason returns why traffic is not counted by peer and port, "" if it is.
func (t *Table) UnconnectedReason() string {
	if t.unclassified != "" {
		return "traffic is not counted by class: " + t.unclassified
	}
	return t.unconnected
}

// UncountedReason returns why sockets are not counted, "" if they are.
func (t *Table) UncountedReason() string {
	if t.sockets != nil {
		return ""
	}
	return t.uncounted
}

// NodeTraffic returns the machine's traffic since boot, and false if it cannot be read:
// that of its physical interfaces or, without any, of all interfaces of process 1's
// namespace but lo. Traffic across a bridge then counts at the bridge and at its ports.
func (t *Table) NodeTraffic() (Count, bool) { return t.node.sum, t.node.seen }

// Track starts to read a workload. It forgets a workload already tracked in the slot.
func (t *Table) Track(g Target) {
	if t.at(g.Slot) != nil {
		t.Forget(g.Slot)
	}
	x := &target{Target: g, round: t.round, until: t.round + firstRounds, placed: g.Group != 0 && (g.Placed || g.Hierarchy.V2),
		reading: Reading{Reason: noProcess}}
	if x.Group == 0 {
		x.Group = t.groupID(g.Path)
	}
	t.claimGroup(x, x.Group)
	if p := t.at(g.Parent); p != nil && p.Kind == workload.Pod {
		x.decided, x.reading.Reason = true, atPod
		p.until = x.until // the pod may have had no process before
		if p.decided && p.reading.Source == Unseen {
			// Its first process may have been about to enter its namespace, for longer than usual.
			p.decided, p.sharedSightings = false, 0
		}
	}
	for int(g.Slot) >= len(t.bySlot) {
		t.bySlot = append(t.bySlot, nil)
	}
	t.bySlot[g.Slot] = x
	i, _ := slices.BinarySearchFunc(t.order, g.Slot, compareSlot)
	t.order = slices.Insert(t.order, i, x)
}

// SetCPUTime sets how much CPU time a workload has used so far, in ns. Then Read looks for
// groups below the workload only if it ran since, because without running it sent nothing.
func (t *Table) SetCPUTime(slot usage.Slot, cpu int64) {
	if x := t.at(slot); x != nil {
		x.lastCPU, x.idle = cpu, x.hasCPUTime && cpu == x.lastCPU
		x.hasCPUTime = true
	}
}

// at returns the target in a slot, nil if there is none.
func (t *Table) at(s usage.Slot) *target {
	if s < 0 || int(s) >= len(t.bySlot) {
		return nil
	}
	return t.bySlot[s]
}

func compareSlot(x *target, s usage.Slot) int { return int(x.Slot - s) }

// Forget ends the tracking of a workload that is gone, after the Read of the same tick, and
// returns its last figures. It closes the descriptors of the workload, so that its
// namespace can be removed.
func (t *Table) Forget(slot usage.Slot) Reading {
	x := t.at(slot)
	if x == nil {
		return Reading{Reason: notTracked}
	}
	settled := x.decided
	switch {
	case x.netns != nil:
		// Without a kept descriptor the last value remains.
		_ = x.netns.read(t)
	case x.decided:
	case x.sharedSightings > 0:
		x.reading.Source, x.reading.Reason = x.candidate, x.candidateReason
	case len(x.counts) > 0, x.placed && t.sockets != nil:
		// It ended before its namespace was seen. The traffic of its sockets is known
		// anyway.
		x.reading.Source, x.reading.Reason = Sockets, ""
	}
	t.update(x)
	if x.reading.Source != Unseen && x.reading.Count != (Count{}) {
		// Traffic that cannot be read is not classified. A workload whose source was chosen just now owned nothing before.
		_ = t.readClasses(false, !settled)
	}
	if x.netns != nil {
		t.release(x.netns)
	}
	t.showClasses(x)
	t.forgetClasses(x)
	if p := t.at(x.Parent); p != nil && p.Kind == workload.Pod && p.netns != nil {
		// The runtime removes the interfaces of a pod a moment after its last container, so do
		// not wait until a quiet namespace is read again. An error is that of the next Read too.
		_ = p.netns.read(t)
	}
	t.bySlot[slot] = nil
	for _, id := range x.groups {
		delete(t.members, id)
	}
	if i, ok := slices.BinarySearchFunc(t.order, slot, compareSlot); ok {
		t.order = slices.Delete(t.order, i, i+1)
	}
	return x.reading
}

// Reading returns the result of the last Read for a workload.
func (t *Table) Reading(slot usage.Slot) Reading {
	if x := t.at(slot); x != nil {
		t.showClasses(x)
		return x.reading
	}
	return Reading{Reason: notTracked}
}

// Read reads the traffic. With all set it reads everything, as needed at the edges of
// windows. Otherwise it reads only every tenth of the namespaces that had no traffic for a
// while, so that the cost of a tick depends on activity. An error concerns only what it
// names.
func (t *Table) Read(ctx context.Context, all bool) error {
	t.round++
	errs := []error{t.node.read(t)}
	t.foreign.scan(t.round)
	if all && t.classes != nil {
		errs = append(errs, t.updateRules())
	}
	for _, x := range t.order {
		if err := ctx.Err(); err != nil {
			return err
		}
		t.chooseSource(x, all)
		if all && x.reading.Source == Sockets && !x.idle {
			t.claimSubgroups(x)
		}
		x.idle = false // until SetCPUTime says so again
		if x.reading.Source != Interfaces {
			continue
		}
		if all || x.netns != nil && x.netns.file == nil {
			t.recheckNamespace(x)
		}
	}
	if all {
		// Before the traffic as a whole, so that the classes do not exceed it.
		errs = append(errs, t.readClasses(true, false))
	}
	for _, x := range t.order {
		if ns := x.netns; ns != nil && (all || ns.quiet < quietReadings || (t.round+int(x.Slot))%quietReadings == 0) {
			errs = append(errs, ignoreNotFound(ns.read(t)))
		}
	}
	t.updateSocketCounts()
	for _, x := range t.order {
		t.update(x)
	}
	return errors.Join(errs...)
}

// quietReadings is after how many readings without traffic a namespace is quiet, and the
// interval in ticks at which it is then read.
const quietReadings = 10
