package sources

import (
	"fmt"
	"log/slog"

	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/collect/proc"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/usage"
)

// maxListings is how many groups' lists of processes are read in a tick at most: each costs some 20
// us of CPU time.
const maxListings = 50

// memberDescriptors is how many files of processes that run in uncounted groups are kept open.
const memberDescriptors = 64

// listIdle is in how many of its turns the processes of a group that did nothing are listed once: one
// that entered it from elsewhere and has not used memory since would otherwise not be seen. In its first
// turns the processes of a group are listed in each.
const listIdle = 8

// uncounted gives groups without a CPU counter of their own the CPU time of their processes, as on
// machines where only the memory hierarchy has the groups of jobs.
type uncounted struct {
	host    *hostfs.FS
	groups  *cgroup.Table
	cpu     hostfs.Hierarchy // that counts CPU time
	members map[cgroup.Uncounted]*memberGroup
	spare   int // descriptors
	tick    int
	last    int64 // ns of CLOCK_BOOTTIME of the latest reading
	log     *slog.Logger
}

// A memberGroup is the processes of an uncounted group.
type memberGroup struct {
	*proc.Members
	counter *usage.Group // with which the kernel counts it
	booked  int64        // of its CPU time, ns
	tick    int          // that saw it last
	turn    int          // in which ticks its processes are listed, if there are many groups
	turns   int          // that it had
	memory  int64        // charged to it at the latest of them, bytes
}

func newUncounted(h *hostfs.FS, groups *cgroup.Table, log *slog.Logger) (*uncounted, error) {
	y, err := proc.Primary(h)
	if err != nil {
		return nil, err
	}
	return &uncounted{host: h, groups: groups, cpu: y, members: map[cgroup.Uncounted]*memberGroup{}, spare: memberDescriptors, log: log}, nil
}

// Read implements sampler.Source.
func (s *uncounted) Read(snap *usage.Snapshot) error {
	if s.tick++; s.tick == 1 {
		s.last = snap.At
	}
	n := 0
	s.groups.EachUncounted(func(u cgroup.Uncounted, dir string, counter *usage.Group) {
		m := s.members[u]
		if m == nil || m.counter != counter {
			if m != nil {
				_ = m.Close() // nothing was written
			}
			m = &memberGroup{counter: counter, turn: len(s.members)}
			m.Members = proc.NewMembers(s.host, dir, s.last, func(pid int32) bool { return s.countsWith(pid, counter) }, &s.spare)
			s.members[u] = m
		}
		m.tick = s.tick
		n++
	})
	if n == 0 && len(s.members) == 0 {
		s.last = snap.At
		return nil
	}
	for _, m := range s.members {
		m.counter.Apportioned &^= usage.SetOf(usage.CPU)
	}
	turns := 1 + n/maxListings
	for u, m := range s.members {
		if m.tick != s.tick { // it ended, or has a counter now
			_ = m.Close() // nothing was written
			delete(s.members, u)
			continue
		}
		cpu, err := m.read(snap.At, u, m.turns == 0 || (m.turn+s.tick)%turns == 0)
		if err != nil {
			s.log.Debug("processes of a group", "err", err)
		}
		s.groups.AddCPU(u, max(0, cpu-m.booked))
		m.booked = max(m.booked, cpu)
		m.counter.Apportioned |= usage.SetOf(usage.CPU) // less the time of these processes
	}
	s.last = snap.At
	return nil
}

// read returns the CPU time of the group's processes at now, both in ns. In its turn it also lists them, unless the
// group did nothing since its latest turn.
func (m *memberGroup) read(now int64, u cgroup.Uncounted, turn bool) (cpu int64, err error) {
	if !turn {
		return m.CPU(), nil
	}
	memory := u.Memory()
	m.turns++
	due := m.turns <= listIdle || m.turns%listIdle == m.turn%listIdle || memory != m.memory
	m.memory = memory
	return m.Read(now, due)
}

// Close closes the files.
func (s *uncounted) Close() error {
	for _, m := range s.members {
		_ = m.Close() // nothing was written
	}
	return nil
}

// countsWith reports whether the kernel counts the CPU time of a process with this workload. A
// process may be in the group of another workload in the hierarchy for CPU time, and then has its
// CPU time there.
func (s *uncounted) countsWith(pid int32, counter *usage.Group) bool {
	b, err := s.host.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	ms, err := procfmt.Cgroups(b)
	if err != nil {
		return false
	}
	for _, m := range ms {
		if m.Hierarchy == int(s.cpu.ID) {
			return s.groups.Owner(s.cpu.Absolute(m.Path)) == counter
		}
	}
	return false
}
