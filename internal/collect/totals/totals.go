// Package totals reads the totals of the machine: CPUs, steal, memory, and the traffic of its
// leaf block devices. Package sources combines it with the other sources.
package totals

import (
	"errors"

	"mete.dev/mete/internal/collect/disk"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// A Source reads the node's totals through kept descriptors.
type Source struct {
	host    *hostfs.FS
	stat    *hostfs.File
	meminfo *hostfs.File
	load    *hostfs.File // nil if missing
	disks   *hostfs.File // nil if the kernel has no block devices, or they are not read
	leaves  map[procfmt.Dev]string
	totals  disk.Totals
	merged  bool // requests that were merged count
	buf     []byte
	every   int // ticks between searches for new devices
	tick    int
}

// Open returns a source that searches for new block devices every so often, in ticks. With
// merged, disk requests count before the kernel merges them, as in groups that count them then.
// The caller closes it.
func Open(h *hostfs.FS, every int, merged bool) (*Source, error) {
	s, err := OpenWithoutDisks(h)
	if err != nil {
		return nil, err
	}
	s.every, s.merged = max(1, every), merged
	s.disks, err = h.Open("/proc/diskstats")
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// OpenWithoutDisks returns a source that does not read block devices. The caller closes it.
func OpenWithoutDisks(h *hostfs.FS) (*Source, error) {
	s := &Source{host: h}
	var err error
	if s.stat, err = h.Open("/proc/stat"); err != nil {
		return nil, err
	}
	if s.meminfo, err = h.Open("/proc/meminfo"); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.load, err = h.Open("/proc/loadavg")
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close closes the descriptors.
func (s *Source) Close() error {
	var err error
	for _, f := range []*hostfs.File{s.stat, s.meminfo, s.load, s.disks} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// Read fills snap.Node.
func (s *Source) Read(snap *usage.Snapshot) error {
	b, err := s.read("/proc/stat", s.stat)
	if err != nil {
		return err
	}
	sys, err := procfmt.Stat(b)
	if err != nil {
		return err
	}
	if b, err = s.read("/proc/meminfo", s.meminfo); err != nil {
		return err
	}
	mem, err := procfmt.Meminfo(b)
	if err != nil {
		return err
	}
	n := &snap.Node
	n.CPUs, n.Steal, n.Idle = sys.CPUs, sys.Steal, sys.Idle+sys.IOWait
	n.MemTotal, n.MemFree, n.MemAvail = mem.Total, mem.Free, mem.Available
	if s.load != nil {
		if b, err = s.read("/proc/loadavg", s.load); err != nil {
			return err
		}
		if n.Tasks, err = procfmt.Loadavg(b); err != nil {
			return err
		}
	}
	return s.readDisks(n)
}

func (s *Source) readDisks(n *usage.Node) error {
	if s.disks == nil {
		return nil
	}
	if s.tick%s.every == 0 {
		leaves, err := s.host.LeafDevices()
		if err != nil {
			return err
		}
		s.leaves = leaves
	}
	s.tick++
	b, err := s.read("/proc/diskstats", s.disks)
	if err != nil {
		return err
	}
	s.totals.Begin()
	err = procfmt.Diskstats(b, func(dev procfmt.Dev, _ string, c procfmt.DiskIO) {
		if s.merged {
			c.Reads, c.Writes = c.Reads+c.MergedReads, c.Writes+c.MergedWrites
		}
		_, leaf := s.leaves[dev]
		s.totals.Add(dev, leaf, c.IO)
	})
	if err != nil {
		return err
	}
	s.totals.End(&n.Total)
	n.Removed = s.totals.Removed()
	return nil
}

// Booked implements sampler.Booker.
func (s *Source) Booked() { s.totals.Booked() }

// read reads a whole file into the shared buffer.
func (s *Source) read(path string, f *hostfs.File) (b []byte, err error) {
	s.buf, err = f.ReadInto(s.buf)
	return s.buf, hostfs.Kind(path, err)
}
