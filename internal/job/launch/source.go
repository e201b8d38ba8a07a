package launch

import (
	"errors"

	"mete.dev/mete/internal/collect/disk"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/usage"
)

// A source is one open file of the job's group.
type source struct {
	name  string
	file  *hostfs.File
	parse func(b []byte, r *usage.Reading) error
	// level says that the file shows a present level, to be sampled.
	level bool
}

// read adds the file's values to r, and returns the buffer. An unreadable or malformed file adds
// nothing.
func (s *source) read(buf []byte, r *usage.Reading) []byte {
	b, err := s.file.ReadInto(buf)
	if err == nil {
		// A value that the parser refuses is absent in the reading.
		_ = s.parse(b, r)
	}
	return b
}

// open opens the files of the group.
func (p *part) open(g *Group) {
	for _, s := range p.files(g) {
		f, err := g.h.Open(p.dir + "/" + s.name)
		if err != nil {
			continue // an older kernel, or the controller is missing
		}
		s.file = f
		p.sources = append(p.sources, s)
	}
}

func (p *part) close() {
	for _, s := range p.sources {
		// Nothing was written, so an error loses nothing.
		_ = s.file.Close()
	}
	p.sources = nil
}

// files lists the files of the part's hierarchy. v2 comes before v1, whose values do not replace
// those of v2.
func (p *part) files(g *Group) []source {
	if p.y.V2 {
		return []source{
			{name: "cpu.stat", parse: cpuStat},
			{name: "memory.current", parse: parseNumber(usage.Memory), level: true},
			{name: "memory.peak", parse: parseNumber(usage.MemoryPeak)},
			{name: "memory.stat", parse: memoryStat, level: true},
			{name: "memory.events", parse: parseKey("oom_kill", usage.OOMKills)},
			{name: "pids.current", parse: parseNumber(usage.PIDs), level: true},
			{name: "pids.peak", parse: parseNumber(usage.PIDsPeak)},
			{name: "io.stat", parse: g.disk(procfmt.IOStat)},
		}
	}
	var s []source
	if p.y.Has("cpuacct") {
		s = append(s, source{name: "cpuacct.usage", parse: g.usage}, source{name: "cpuacct.stat", parse: cpuacctStat})
	}
	if p.y.Has("cpu") {
		s = append(s, source{name: "cpu.stat", parse: cpuStat})
	}
	if p.y.Has("memory") {
		s = append(s, source{name: "memory.usage_in_bytes", parse: parseNumber(usage.Memory), level: true},
			source{name: "memory.max_usage_in_bytes", parse: parseNumber(usage.MemoryPeak)},
			source{name: "memory.stat", parse: memoryStat, level: true},
			source{name: "memory.oom_control", parse: parseKey("oom_kill", usage.OOMKills)})
	}
	if p.y.Has("pids") {
		s = append(s, source{name: "pids.current", parse: parseNumber(usage.PIDs), level: true}, source{name: "pids.peak", parse: pidsPeak})
	}
	if p.y.Has("blkio") && g.blkioCounts(p.y) {
		s = append(s, source{name: "blkio.throttle.io_service_bytes_recursive", parse: g.disk(blkio)})
	}
	return s
}

// blkioCounts reports whether blkio of v1 counts: it starts with the first throttle rule on a disk,
// and shows "Total 0" for every group before, including the root. A root group without devices is
// not counting.
func (g *Group) blkioCounts(y hostfs.Hierarchy) bool {
	b, err := g.h.ReadFile(y.Mount + "/blkio.throttle.io_service_bytes")
	if err != nil {
		return false
	}
	n, err := procfmt.BlkioServiceBytes(b, func(procfmt.Dev, int64, int64) {})
	return err == nil && n > 0
}

func parseNumber(res usage.Resource) func([]byte, *usage.Reading) error {
	return func(b []byte, r *usage.Reading) error {
		v, err := procfmt.Int(b)
		if err == nil {
			putNew(r, res, v)
		}
		return err
	}
}

func parseKey(name string, res usage.Resource) func([]byte, *usage.Reading) error {
	return func(b []byte, r *usage.Reading) error {
		v, ok, err := procfmt.KeyValue(b, name)
		if err == nil && ok {
			putNew(r, res, v)
		}
		return err
	}
}

// pidsPeak parses pids.peak of v1. The thread that started the command was in the group too, so a
// peak of two may be one.
func pidsPeak(b []byte, r *usage.Reading) error {
	v, err := procfmt.Int(b)
	if err == nil && v > 2 {
		putNew(r, usage.PIDsPeak, v)
	}
	return err
}

// putNew keeps the value of an earlier source.
func putNew(r *usage.Reading, res usage.Resource, v int64) {
	if !r.Has.Has(res) {
		r.Put(res, v)
	}
}

func cpuStat(b []byte, r *usage.Reading) error {
	c, err := procfmt.CPUStat(b)
	if err != nil {
		return err
	}
	if c.HasUsage {
		putNew(r, usage.CPU, c.Usage)
	}
	if c.HasUser && c.HasSystem {
		putNew(r, usage.CPUUser, c.User)
		putNew(r, usage.CPUSystem, c.System)
	}
	if c.HasThrottledTime {
		putNew(r, usage.CPUThrottled, c.ThrottledTime)
	}
	return nil
}

// usage parses cpuacct.usage, and subtracts the time of the thread that started the job.
func (g *Group) usage(b []byte, r *usage.Reading) error {
	v, err := procfmt.Int(b)
	if err == nil {
		putNew(r, usage.CPU, max(0, v-g.own))
	}
	return err
}

func cpuacctStat(b []byte, r *usage.Reading) error {
	user, sys, err := procfmt.CPUAcctStat(b)
	if err == nil && !r.Has.Has(usage.CPUUser) {
		r.Put(usage.CPUUser, user)
		r.Put(usage.CPUSystem, sys)
	}
	return err
}

func memoryStat(b []byte, r *usage.Reading) error {
	m, err := procfmt.MemoryStat(b)
	if err != nil {
		return err
	}
	if m.HasAnon {
		putNew(r, usage.MemoryAnon, m.Anon)
	}
	if m.HasFile {
		putNew(r, usage.MemoryFile, m.File)
	}
	return nil
}

// disk returns a parser of a file that lists the group's I/O by device. It sums the leaf devices, and
// keeps what it saw of devices that were removed since.
func (g *Group) disk(list func(b []byte, add func(procfmt.Dev, procfmt.IO)) error) func([]byte, *usage.Reading) error {
	var totals disk.Totals
	return func(b []byte, r *usage.Reading) error {
		totals.Begin()
		err := list(b, func(d procfmt.Dev, c procfmt.IO) { totals.Add(d, g.isLeaf(d), c) })
		if err == nil && g.leaves == nil {
			err = errDevices
		}
		if err != nil {
			return err
		}
		var sum usage.Reading
		totals.End(&sum)
		removed := totals.Removed()
		for _, res := range []usage.Resource{usage.DiskRead, usage.DiskWritten} {
			putNew(r, res, sum.Value[res]+removed[res])
		}
		return nil
	}
}

var errDevices = errors.New("the block devices are unknown")

// isLeaf reports whether a device counts in sums. It lists the machine's devices again for one that
// it does not know: it may have been attached since.
func (g *Group) isLeaf(d procfmt.Dev) bool {
	if _, known := g.leaves[d]; !known {
		g.listDevices()
		if leaf := g.leaves[d]; g.leaves != nil {
			g.leaves[d] = leaf // known now, whether it counts or not
		}
	}
	return g.leaves[d]
}

// listDevices adds the machine's leaf devices to those that are known. Without a list no device is
// counted; disk reports that.
func (g *Group) listDevices() {
	leaves, err := g.h.LeafDevices()
	if err != nil {
		return
	}
	if g.leaves == nil {
		g.leaves = map[procfmt.Dev]bool{}
	}
	for d := range leaves {
		g.leaves[d] = true
	}
}

func blkio(b []byte, add func(procfmt.Dev, procfmt.IO)) error {
	_, err := procfmt.BlkioServiceBytes(b, func(d procfmt.Dev, read, written int64) {
		add(d, procfmt.IO{ReadBytes: read, WrittenBytes: written})
	})
	return err
}
