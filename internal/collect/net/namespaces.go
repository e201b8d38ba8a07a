package net

import (
	"strconv"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
)

// namedDir is the directory in which ip-netns(8) and the plugins of container runtimes name
// namespaces.
const namedDir = "/run/netns"

// foreignNamespaces holds the namespaces that belong to no workload: those of the machine
// and of this process, and those older than the workload.
type foreignNamespaces struct {
	h *hostfs.FS
	// shared is the namespaces of process 1 and of this process.
	shared map[uint64]bool
	own    uint64 // that of this process, 0 if it is not known
	// witness is a process in each namespace at the time the table was opened.
	witness map[uint64]int32
	// since is the round in which a named namespace was first seen.
	since   map[uint64]int
	changed unix.Timespec // modification time of the directory of names
	rescans int           // rounds for which to read it again
}

// surveyNamespaces records the existing namespaces, as far as it may read them.
func surveyNamespaces(h *hostfs.FS) *foreignNamespaces {
	f := &foreignNamespaces{h: h, shared: map[uint64]bool{}, witness: map[uint64]int32{}}
	// Kernel threads are in the machine's first namespace too, and can be read even if
	// process 1 cannot.
	for _, pid := range []string{"1", "2", "self"} {
		if id, err := h.ID(link(pid)); err == nil {
			f.shared[id] = true
			if pid == "self" {
				f.own = id
			}
		}
	}
	procs, err := h.ReadDir("/proc")
	if err != nil {
		procs = nil
	}
	for _, e := range procs {
		pid, err := strconv.ParseInt(e.Name(), 10, 32)
		if err != nil {
			continue
		}
		if id, err := h.ID(link(e.Name())); err == nil && !f.shared[id] {
			f.witness[id] = int32(pid)
		}
	}
	f.scan(0)
	return f
}

// scan looks for new names of namespaces.
func (f *foreignNamespaces) scan(round int) {
	var st unix.Stat_t
	if err := unix.Stat(f.h.Path(namedDir), &st); err != nil {
		f.since = nil
		return
	}
	if st.Mtim != f.changed {
		// A name is created first, and the namespace mounted on it a moment later, which
		// does not change the directory's time.
		f.changed, f.rescans = st.Mtim, 3
	}
	if f.rescans == 0 {
		return
	}
	f.rescans--
	names, err := f.h.ReadDir(namedDir)
	if err != nil {
		return
	}
	since := make(map[uint64]int, len(names))
	for _, n := range names {
		id, err := f.h.ID(namedDir + "/" + n.Name())
		if err != nil {
			continue
		}
		first, ok := f.since[id]
		if !ok {
			first = round
		}
		since[id] = first
	}
	f.since = since
}

// existedBefore reports whether a namespace existed before a workload that was first seen
// in the given round and contains the processes for which inside is true.
func (f *foreignNamespaces) existedBefore(id uint64, round int, inside func(pid int32) bool) bool {
	if first, ok := f.since[id]; ok && first < round {
		return true
	}
	pid, ok := f.witness[id]
	if !ok {
		return false
	}
	if now, err := f.h.ID(link(strconv.Itoa(int(pid)))); err == nil && now == id && !inside(pid) {
		return true
	}
	// Namespace numbers are reused: this may be another one by now.
	delete(f.witness, id)
	return false
}
