package net

import (
	"bytes"
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// target is a tracked workload.
type target struct {
	Target
	round           int  // of the table when it was added
	until           int  // the round until which Read checks it each time, unless decided
	placed          bool // the caller has put its processes into Group
	decided         bool // its source is chosen
	sharedSightings int  // how often its processes were seen in a foreign namespace
	candidate       Source
	candidateReason string // with candidate, chosen if it is seen there again
	netns           *netns
	earlier         Count              // traffic of namespaces that it held before
	groups          []uint64           // cgroup v2 groups whose sockets belong to it
	counts          map[uint64]Count   // traffic of those groups
	byOther                            // that is not booked
	classKeys       []bpf.ClassKey     // its counts by class
	shown           *connection.Sketch // traffic by peer that readings have shown and that is not booked; does not change
	reading         Reading
	lastCPU         int64 // see SetCPUTime
	hasCPUTime      bool  // lastCPU is set
	idle            bool  // lastCPU did not change since the previous tick
}

// byOther is traffic by where its other end is; a nil field is that without any.
type byOther struct {
	classes *usage.ClassBytes
	edges   *connection.Sketch // those that no reading has shown
}

// Reasons for an unknown figure.
const (
	notYet      = "its network namespace is not certain yet"
	noProcess   = "no process of its own was seen"
	denied      = "its network namespace cannot be read"
	atPod       = "it is counted at the pod"
	atOther     = "its network namespace is counted at "
	ofMachine   = "it is in the machine's network namespace"
	ofOthers    = "its network namespace was there before it"
	ungrouped   = ", and it has no cgroup v2 group of its own"
	uncounted   = ", and sockets are not counted: "
	notTracked  = "it is not tracked"
	firstRounds = 3 // in which Read checks a new workload each time, a pod again after each new container
)

// chooseSource chooses the source of x if there is none yet.
func (t *Table) chooseSource(x *target, all bool) {
	if x.decided || !all && t.round > x.until {
		return
	}
	x.reading.Reason = noProcess
	for _, pid := range t.pids(x) {
		id, err := t.namespaceID(pid)
		if err != nil {
			if errors.Is(err, fault.ErrDenied) {
				x.reading.Reason = denied
			}
			continue
		}
		if why := t.whyForeign(x, id); why != "" {
			t.sight(x, pid, id, why)
			return
		}
		if t.chooseNamespace(x, pid, id) {
			return
		}
	}
}

// whyForeign returns why a namespace is not x's own, "" if it may be.
func (t *Table) whyForeign(x *target, id uint64) string {
	switch held := t.namespaces[id]; {
	case held != nil:
		return atOther + held.path
	case t.foreign.shared[id]:
		return ofMachine
	case x.Born && t.foreign.existedBefore(id, x.round, func(pid int32) bool { return isBelow(t.groupPath(pid, x.Hierarchy), x.Path) }):
		return ofOthers
	}
	return ""
}

// chooseNamespace makes the namespace of a process the source of x. It returns false if another process is needed.
func (t *Table) chooseNamespace(x *target, pid int32, id uint64) bool {
	ns, err := t.holdNamespace(id, pid, x.Path)
	if err != nil {
		x.reading.Reason = notYet
		return false
	}
	ns.holder = x
	x.netns, x.decided = ns, true
	x.reading.Source, x.reading.Reason = Interfaces, ""
	return true
}

// sight records that a process of x is in a namespace that is not its own, and why.
func (t *Table) sight(x *target, pid int32, id uint64, why string) {
	x.candidate = Unseen
	switch {
	case t.namespaces[id] != nil:
		x.candidateReason = why
	case t.sockets == nil:
		x.candidateReason = why + uncounted + t.uncounted
	case x.Group == 0 || !isBelow(t.groupPath(pid, t.v2), x.Path):
		x.candidateReason = why + ungrouped
	default:
		x.candidate, x.candidateReason = Sockets, ""
	}
	// A runtime moves the first process into its group first and into its namespace
	// afterwards, so require a second sighting.
	x.reading.Reason = notYet
	if x.sharedSightings++; x.sharedSightings == 2 {
		x.decided = true
		x.reading.Source, x.reading.Reason = x.candidate, x.candidateReason
	}
}

// recheckNamespace finds another process of x if the one in its namespace is gone, and
// follows x to a new namespace, as when a pod's sandbox was recreated. Without any process
// it releases the namespace.
func (t *Table) recheckNamespace(x *target) {
	ns := x.netns
	if ns != nil {
		if now, err := t.namespaceID(ns.pid); err == nil && now == ns.id {
			return
		}
	}
	pids := t.pids(x)
	var next *netns
	for _, pid := range pids {
		id, err := t.namespaceID(pid)
		switch held := t.namespaces[id]; {
		case err != nil || t.foreign.shared[id]:
		case held == nil && next == nil:
			if n, err := t.holdNamespace(id, pid, x.Path); err == nil {
				next = n
			}
		case held != nil && held == ns:
			ns.pid = pid
			if next != nil {
				t.release(next)
			}
			return
		}
	}
	if next == nil && len(pids) > 0 {
		return
	}
	if next != nil {
		next.holder = x
	}
	if ns != nil {
		// Without a descriptor the last value is that of the previous tick.
		_ = ns.read(t)
		_ = t.readClasses(false, true) // while x holds the namespace
		x.earlier = x.earlier.plus(ns.sum)
		t.release(ns)
	}
	x.netns = next
}

// update computes the reading of x.
func (t *Table) update(x *target) {
	switch x.reading.Source {
	case Interfaces:
		x.reading.Count = x.earlier
		if x.netns != nil {
			x.reading.Count = x.earlier.plus(x.netns.sum)
		}
	case Sockets:
		sum := Count{}
		for _, c := range x.counts {
			sum = sum.plus(c)
		}
		x.reading.Count = sum
	}
}

// claimGroup assigns the sockets of a cgroup v2 group to x.
func (t *Table) claimGroup(x *target, group uint64) {
	if group != 0 && t.members[group] == nil {
		t.members[group] = x
		x.groups = append(x.groups, group)
	}
}

// updateSocketCounts adds the new counts of sockets.
func (t *Table) updateSocketCounts() {
	if t.sockets == nil {
		return
	}
	t.sockets.each(func(group uint64, c Count) {
		// If the counter forgot a group, keep its last counts.
		if x := t.members[group]; x != nil && !c.isBelowAny(x.counts[group]) {
			if x.counts == nil {
				x.counts = map[uint64]Count{}
			}
			x.counts[group] = c
		}
	})
}

// maxVisited is how many processes and groups of a workload to visit at most to find a
// readable one.
const maxVisited = 64

// pids returns a few processes of x: of its own group, and of groups below that are part of
// it. All groups below a pod are part of it, even tracked ones, and the first one is that of its sandbox: the lowest
// number, as processes of its containers may not have entered their namespace yet, or have one of their own.
func (t *Table) pids(x *target) (pids []int32) {
	top, ok := x.Hierarchy.Dir(x.Path)
	if !ok {
		return nil
	}
	t.walk(top, x, func(dir string, _ uint64) bool {
		b, err := t.h.ReadInto(dir+"/cgroup.procs", t.buf)
		if err != nil {
			return true // removed: try the next one
		}
		t.buf = b[:cap(b)]
		most := 8
		if x.Kind == workload.Pod {
			most = min(most, len(pids)+2)
		}
		for len(b) > 0 && len(pids) < most {
			var line []byte
			line, b, _ = bytes.Cut(b, []byte{'\n'})
			if pid, err := strconv.ParseInt(string(line), 10, 32); err == nil && pid > 0 {
				pids = append(pids, int32(pid))
			}
		}
		return len(pids) == 0 || x.Kind == workload.Pod && len(pids) < 8
	})
	if x.Kind == workload.Pod {
		slices.Sort(pids)
	}
	return pids
}

// walk calls f with the directory and id of x's group and of the groups below that are part
// of it, parents first, until f returns false.
func (t *Table) walk(top string, x *target, f func(dir string, id uint64) bool) {
	for dirs, n := []string{top}, 0; n < len(dirs) && n < maxVisited; n++ {
		id, leaf := t.h.Dir(dirs[n])
		if !f(dirs[n], id) {
			return
		}
		if leaf || x.Kind == workload.Path {
			continue // nothing below a path is part of it
		}
		names, err := t.h.ReadDir(dirs[n])
		if err != nil {
			continue
		}
		for _, e := range names {
			if !e.IsDir() {
				continue
			}
			dir := dirs[n] + "/" + e.Name()
			if x.Kind == workload.Pod || isPart(path.Join(x.Path, strings.TrimPrefix(dir, top))) {
				dirs = append(dirs, dir)
			}
		}
	}
}

// isPart reports whether the group at path p, below a workload other than a pod or a path, is part of
// it, not a workload. The tracked workloads do not tell: the group may be newer than the snapshot that
// they come from.
func isPart(p string) bool {
	_, named := workload.Recognize(p)
	return !named
}

// claimSubgroups assigns to x the sockets of cgroup v2 groups below its own that are part
// of it.
func (t *Table) claimSubgroups(x *target) {
	top, ok := t.v2.Dir(x.Path)
	if !ok {
		return
	}
	t.walk(top, x, func(_ string, id uint64) bool {
		t.claimGroup(x, id)
		return true
	})
}

// groupID returns the id of the cgroup v2 group at path, 0 if there is none.
func (t *Table) groupID(path string) uint64 {
	if t.v2 == nil {
		return 0
	}
	dir, ok := t.v2.Dir(path)
	if !ok {
		return 0
	}
	id, err := t.h.ID(dir)
	if err != nil {
		return 0
	}
	return id
}

// groupPath returns the path of a process's group in a hierarchy, "" if it is unknown.
func (t *Table) groupPath(pid int32, y *hostfs.Hierarchy) string {
	b, err := t.h.ReadFile("/proc/" + strconv.Itoa(int(pid)) + "/cgroup")
	if err != nil {
		return ""
	}
	ms, err := procfmt.Cgroups(b)
	if err != nil {
		return ""
	}
	for _, m := range ms {
		if m.Hierarchy == int(y.ID) {
			return y.Absolute(m.Path)
		}
	}
	return ""
}

// isBelow reports whether group is top or below it.
func isBelow(group, top string) bool {
	rest, ok := strings.CutPrefix(group, top)
	return ok && (rest == "" || rest[0] == '/' || top == "/")
}

// ignoreNotFound returns err unless it means that something was removed, which is not an
// error here.
func ignoreNotFound(err error) error {
	if errors.Is(err, fault.ErrNotFound) {
		return nil
	}
	return err
}
