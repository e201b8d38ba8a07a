package meter

import (
	"slices"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// jobKind and jobSlot identify the job among the groups of a snapshot.
const (
	jobKind = workload.Job
	jobSlot = usage.Root + 1
)

// A source gives a sampler the root group and, once it runs, that of the job.
type source struct {
	host    *hostfs.FS
	job     Job
	more    func(*usage.Reading) // may be nil
	root    usage.Group
	group   usage.Group
	cpu     *hostfs.File // counts the CPU time of the root group; nil if that is unknown
	partial bool         // it is unknown
	buf     []byte

	running bool
	ended   bool          // what it holds now is not what it held
	seen    bool          // the latest reading was one
	shown   usage.Reading // latest
	held    levelSums

	bookedCPU, bookedUser, bookedSystem int64 // in closed windows, ns
}

func newSource(h *hostfs.FS, job Job, more func(*usage.Reading)) *source {
	s := &source{host: h, job: job, more: more, partial: true}
	s.root = usage.Group{Slot: usage.Root, Parent: usage.NoSlot, MemoryParent: usage.NoSlot, New: true, Workload: workload.Workload{Kind: workload.System}}
	s.group = usage.Group{Slot: jobSlot, Parent: usage.Root, MemoryParent: usage.Root, New: true, Born: true, Life: workload.Life{ID: 1}, Workload: workload.Workload{Kind: jobKind}}
	ys, err := h.Hierarchies()
	if err != nil {
		return s // the kernel has no groups
	}
	i := slices.IndexFunc(ys, func(y hostfs.Hierarchy) bool { return !y.V2 && y.Has("cpuacct") })
	if i < 0 {
		return s
	}
	// The first file of every hierarchy is its root. In a container the mount shows a subgroup that looks
	// like it.
	if id, err := h.ID(ys[i].Mount); err != nil || id != 1 {
		return s
	}
	if s.cpu, err = h.Open(ys[i].Mount + "/cpuacct.usage"); err == nil {
		s.partial = false
	}
	return s
}

func (s *source) close() error {
	if s.cpu == nil {
		return nil
	}
	return s.cpu.Close()
}

// Read implements sampler.Source.
func (s *source) Read(snap *usage.Snapshot) error {
	// The job first: the root's counter then includes all that is booked to it.
	if s.running {
		s.readJob(snap.At)
	} else {
		s.held.at = snap.At
	}
	if s.cpu != nil {
		var err error
		if s.buf, err = s.cpu.ReadInto(s.buf); err != nil {
			return err
		}
		v, err := procfmt.Int(s.buf)
		if err != nil {
			return err
		}
		s.root.Put(usage.CPU, v)
	}
	snap.Node.Partial = s.partial
	snap.Groups = append(snap.Groups, &s.root)
	if s.running {
		snap.Groups = append(snap.Groups, &s.group)
	}
	return nil
}

// Booked implements sampler.Booker.
func (s *source) Booked() {
	s.root.New = false
	if s.running {
		s.group.New, s.group.Born = false, false
		s.held.reset()
	}
}

// readJob reads the job at a time. Figures that could not be read, or that fall, as those of processes
// may, keep their last value; so do the levels when the job has ended.
func (s *source) readJob(at int64) {
	var r usage.Reading
	s.job.Read(&r)
	if s.seen = r.Has.Has(usage.CPU); s.seen {
		if s.more != nil {
			s.more(&r)
		}
		for res := range (s.shown.Has &^ levelSet).All() {
			if !r.Has.Has(res) || r.Value[res] < s.shown.Value[res] && !splitSet.Has(res) {
				r.Put(res, s.shown.Value[res])
				r.Apportioned |= s.shown.Apportioned & usage.SetOf(res)
			}
		}
		s.shown = r
	}
	if s.ended && s.held.seen != 0 {
		s.held.hold(at)
	} else {
		s.held.add(&r, at)
	}
	s.group.Reading = s.shown
	s.held.put(&s.group)
	s.group.Has &^= splitSet // splitCPU books them
}

// sampleLevels samples what the job holds, and reports whether there is something.
func (s *source) sampleLevels() bool {
	at, err := s.host.Clocks()
	if err != nil {
		return false
	}
	var r usage.Reading
	s.job.ReadLevels(&r)
	s.held.add(&r, at.Boottime)
	return r.Has&levelSet != 0
}

// splitCPU divides the CPU time that was booked to the job, the window of row included, into user and
// system time, in the ratio that the kernel shows for the whole job. The kernel may show none of the two
// for some milliseconds; a later window then has the parts of that time.
func (s *source) splitCPU(row *usage.Row) {
	s.bookedCPU += row.Usage.Amount[usage.CPU]
	user, system := s.shown.Value[usage.CPUUser], s.shown.Value[usage.CPUSystem]
	if !row.Usage.Present.Has(usage.CPU) || user+system <= 0 {
		return
	}
	left := s.bookedCPU - s.bookedUser - s.bookedSystem
	part := min(max(0, energy.MulDiv(s.bookedCPU, user, user+system)-s.bookedUser), left)
	s.bookedUser, s.bookedSystem = s.bookedUser+part, s.bookedSystem+left-part
	row.Usage.Put(usage.CPUUser, part, usage.Apportioned)
	row.Usage.Put(usage.CPUSystem, left-part, usage.Apportioned)
	row.Total[usage.CPUUser], row.Total[usage.CPUSystem] = s.bookedUser, s.bookedSystem
	row.Has |= splitSet
}

// splitSet is what splitCPU books.
var splitSet = usage.SetOf(usage.CPUUser, usage.CPUSystem)
