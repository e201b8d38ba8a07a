// Package net reads what each workload received and sent.
//
// Traffic belongs to the holder of a network namespace: a pod, never one of
// its containers; else the workload. Each workload has one source for its life,
// chosen when its first processes are seen:
//
//   - In a namespace of its own, the counters of the namespace's interfaces,
//     lo left out. The table keeps a descriptor of the namespace's net/dev, so
//     that the last value can be read when all processes are gone. That keeps
//     the namespace alive too: until [Table.Forget], in the tick in which the
//     group is gone, or until the edge of a window finds no process in it.
//   - In a namespace that others use as well, and in a cgroup v2 group of its
//     own, what its sockets send and receive, counted by group in the kernel.
//   - Else nothing is known, and the [Reading] says why. Sockets that come and
//     go between two readings are seen by no one who asks for the open ones, so
//     an estimate from those would be low without a bound.
//
// A namespace is a workload's own if it is neither that of the machine's first
// process nor this process's nor one that another workload holds, and was not
// there before the workload.
package net

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Config is what the table may use.
type Config struct {
	// Descriptors is how many files may be kept open, one for each namespace.
	// Beyond that a namespace is found by a process each time, and its last
	// value is that of the tick before.
	Descriptors int
}

// Default returns a share of descriptors that fits most limits.
func Default() Config { return Config{Descriptors: 200} }

// Validate reports what is wrong with c.
func (c Config) Validate() error {
	if c.Descriptors < 0 {
		return fmt.Errorf("net: descriptors %d: %w", c.Descriptors, fault.ErrInvalid)
	}
	return nil
}

// A Class is a class of traffic that may have its own price.
type Class uint8

// All is all traffic: the only class so far.
const All Class = 1

// A Count is cumulative traffic.
type Count struct{ RxBytes, TxBytes, RxPackets, TxPackets int64 }

func (c Count) plus(d Count) Count {
	return Count{c.RxBytes + d.RxBytes, c.TxBytes + d.TxBytes, c.RxPackets + d.RxPackets, c.TxPackets + d.TxPackets}
}

// isBelowAny reports whether any counter of c is less than d's.
func (c Count) isBelowAny(d Count) bool {
	return c.RxBytes < d.RxBytes || c.TxBytes < d.TxBytes || c.RxPackets < d.RxPackets || c.TxPackets < d.TxPackets
}

// A Source is where a workload's figures come from.
type Source uint8

const (
	Unseen     Source = iota // none, or not chosen yet
	Interfaces               // the interfaces of its own namespace, without lo
	Sockets                  // the sockets of its cgroup v2 group
)

var sourceNames = [...]string{"unseen", "interfaces", "sockets"}

// String returns the word that people see.
func (s Source) String() string { return sourceNames[s%3] }

// A Target is a workload whose traffic is wanted.
type Target struct {
	Slot   usage.Slot
	Parent usage.Slot // of the workload above, which is tracked before
	Kind   workload.Kind
	Path   string // of its group below the root of its hierarchies
	// Group is the id of the workload's cgroup v2 group where the caller knows
	// it; 0 where there is none or it is to be looked up.
	Group uint64
	// Placed says that the workload's processes are in Group for certain, also
	// where v1 hierarchies count: the caller put them there.
	Placed bool
	// Born says that the workload was not there at the reading before.
	Born bool
}

// A Reading is what a workload received and sent since its life began, or why
// that is not known.
type Reading struct {
	Count  // means nothing where Source is Unseen
	Class  Class
	Source Source
	Reason string // why the source is Unseen
}

// Quality returns the quality of the figures.
func (r Reading) Quality() usage.Quality {
	if r.Source == Unseen {
		return usage.Absent
	}
	return usage.Measured
}

// Put puts the figures into g, unless there are none.
func (r Reading) Put(g *usage.Reading) {
	if r.Source == Unseen {
		return
	}
	g.Put(usage.NetworkRx, r.RxBytes)
	g.Put(usage.NetworkTx, r.TxBytes)
	g.Put(usage.NetworkRxPackets, r.RxPackets)
	g.Put(usage.NetworkTxPackets, r.TxPackets)
}

// A Table reads the traffic of the workloads it tracks. Its owner is one
// goroutine.
type Table struct {
	h       *hostfs.FS
	primary hostfs.Hierarchy  // in which processes are looked for
	v2      *hostfs.Hierarchy // nil without one
	sockets sockets           // nil where nobody counts
	// uncounted is why nobody counts sockets.
	uncounted        string
	node             *node
	foreign          *foreignNamespaces
	namespaces       map[uint64]*netns
	targets          map[usage.Slot]*target
	order            []*target // by slot
	paths            map[string]bool
	members          map[uint64]*target // by cgroup v2 group
	spareDescriptors int                // descriptors that may still be opened to keep
	round            int                // of reading
	buf              []byte
}

// sockets counts what the sockets of each cgroup v2 group send and receive.
type sockets interface {
	// each calls f for groups whose sockets did something.
	each(f func(group uint64, c Count))
	close() error
}

// Open opens a table of h that tracks nothing yet. Sockets are counted by k,
// and by nobody where k is nil or cannot; Why then tells the reason. An error
// wrapping fault.ErrUnsupported says that h has no control groups.
func Open(h *hostfs.FS, k *bpf.Kernel, cfg Config) (*Table, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	ys, err := h.Hierarchies()
	if err != nil {
		return nil, err
	}
	t := &Table{
		h: h, primary: ys[0], foreign: surveyNamespaces(h), namespaces: map[uint64]*netns{},
		targets: map[usage.Slot]*target{}, paths: map[string]bool{}, members: map[uint64]*target{},
		spareDescriptors: cfg.Descriptors, round: 1, buf: make([]byte, 16<<10),
	}
	if ys[0].V2 {
		t.v2 = &ys[0]
	}
	if i := slices.IndexFunc(ys, func(y hostfs.Hierarchy) bool { return !y.V2 && y.Has("cpuacct") }); i >= 0 {
		t.primary = ys[i]
	}
	t.node = openNode(h)
	t.uncounted = "no cgroup v2 here"
	if t.v2 != nil {
		if t.sockets, err = openSockets(h, k, *t.v2); err != nil {
			t.uncounted = err.Error()
		}
	}
	return t, nil
}

// Close gives back what the table holds.
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

// UncountedReason says why sockets are not counted, or is empty where they are.
func (t *Table) UncountedReason() string {
	if t.sockets != nil {
		return ""
	}
	return t.uncounted
}

// NodeTraffic returns what the machine received and sent since boot, and false where
// that cannot be read: by its physical interfaces or, where it has none, by all
// of its first process's namespace but lo. What crosses a bridge then counts at
// the bridge and at its ports.
func (t *Table) NodeTraffic() (Count, bool) { return t.node.sum, t.node.seen }

// Track begins to read a workload. A slot that is tracked already is forgotten
// first.
func (t *Table) Track(g Target) {
	if t.targets[g.Slot] != nil {
		t.Forget(g.Slot)
	}
	x := &target{Target: g, round: t.round, placed: g.Group != 0 && (g.Placed || t.primary.V2), reading: Reading{Class: All, Reason: noProcess}}
	if x.Group == 0 {
		x.Group = t.groupID(g.Path)
	}
	t.claimGroup(x, x.Group)
	if p := t.targets[g.Parent]; p != nil && p.Kind == workload.Pod {
		x.decided, x.reading.Reason = true, atPod
	}
	t.targets[g.Slot] = x
	t.paths[g.Path] = true
	i, _ := slices.BinarySearchFunc(t.order, g.Slot, bySlot)
	t.order = slices.Insert(t.order, i, x)
}

// SetCPUTime says how much CPU time a workload has used up to now, in ns. Where its owner
// says so, the groups below a workload are looked for only if it ran since: who did
// not run sent nothing from where it was moved to.
func (t *Table) SetCPUTime(slot usage.Slot, cpu int64) {
	if x := t.targets[slot]; x != nil {
		x.lastCPU, x.idle = cpu, x.hasCPUTime && cpu == x.lastCPU
		x.hasCPUTime = true
	}
}

func bySlot(x *target, s usage.Slot) int { return int(x.Slot - s) }

// Forget ends the reading of a workload that is gone, after the Read of the same
// tick, and returns its last figures. What the table kept open for it is closed,
// so that its namespace can go too.
func (t *Table) Forget(slot usage.Slot) Reading {
	x := t.targets[slot]
	if x == nil {
		return Reading{Class: All, Reason: notTracked}
	}
	switch {
	case x.netns != nil:
		// By the descriptor that was kept. Without one the last value stays.
		_ = x.netns.read(t)
		t.release(x.netns)
	case x.decided:
	case x.sharedSightings > 0:
		x.reading.Source, x.reading.Reason = x.candidate, x.candidateReason
	case len(x.counts) > 0, x.placed && t.sockets != nil:
		// It was gone before it could be looked at. What its sockets did is
		// known all the same.
		x.reading.Source, x.reading.Reason = Sockets, ""
	}
	t.update(x)
	delete(t.targets, slot)
	delete(t.paths, x.Path)
	for _, id := range x.groups {
		delete(t.members, id)
	}
	if i, ok := slices.BinarySearchFunc(t.order, slot, bySlot); ok {
		t.order = slices.Delete(t.order, i, i+1)
	}
	return x.reading
}

// Reading returns what the last Read saw of a workload.
func (t *Table) Reading(slot usage.Slot) Reading {
	if x := t.targets[slot]; x != nil {
		return x.reading
	}
	return Reading{Class: All, Reason: notTracked}
}

// Read reads traffic. With all set everything is read: that is for the edges
// of windows. Otherwise, of the namespaces in which nothing moved for a while
// only every tenth is read, so that a tick costs what is going on and not what
// there is. An error costs only what it names.
func (t *Table) Read(ctx context.Context, all bool) error {
	t.round++
	errs := []error{t.node.read(t)}
	t.foreign.scan(t.round)
	for _, x := range t.order {
		if err := ctx.Err(); err != nil {
			return err
		}
		t.chooseSource(x, all)
		if all && x.reading.Source == Sockets && !x.idle {
			t.claimSubgroups(x)
		}
		x.idle = false // as long as nobody says so again
		if x.reading.Source != Interfaces {
			continue
		}
		if all || x.netns != nil && x.netns.file == nil {
			t.recheckNamespace(x)
		}
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

// quietReadings is after how many readings without traffic a namespace is quiet, and
// one in how many ticks it is then read.
const quietReadings = 10
