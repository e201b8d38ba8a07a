package cgroup

import (
	"errors"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// A diskSource is the source of block I/O by group on this machine.
type diskSource uint8

const (
	diskNone  diskSource = iota // absent
	diskV2                      // io.stat
	diskBlkio                   // v1 blkio.throttle
	diskBPF                     // the block layer's own tracepoint
)

// chooseDisk selects the source of block I/O. Files of v1 read zero until a device has a
// throttle rule, like those of a group without I/O. So they count only if the root's file
// lists every leaf device that did I/O.
func chooseDisk(t *Table, bpf bool) diskSource {
	io := t.src[roleIO]
	switch {
	case io != nil && io.V2:
		return diskV2
	case io != nil && blkioCounts(t.host, io):
		return diskBlkio
	case bpf:
		return diskBPF
	}
	t.note("disk: no io controller that counts; absent (the bpf reader can)")
	return diskNone
}

const (
	blkioBytes    = "/blkio.throttle.io_service_bytes_recursive"
	blkioRequests = "/blkio.throttle.io_serviced_recursive"
)

func blkioCounts(h *hostfs.FS, y *hostfs.Hierarchy) bool {
	leaves, err := h.LeafDevices()
	if err != nil {
		return false
	}
	stats, err := h.ReadFile("/proc/diskstats")
	if err != nil {
		return false
	}
	b, err := h.ReadFile(y.Mount + blkioBytes)
	if err != nil {
		return false
	}
	counted := map[procfmt.Dev]bool{}
	if _, err := procfmt.BlkioServiceBytes(b, func(d procfmt.Dev, _, _ int64) { counted[d] = true }); err != nil {
		return false
	}
	all := len(counted) > 0
	err = procfmt.Diskstats(stats, func(d procfmt.Dev, _ string, reads, _, writes, _ int64) {
		if _, leaf := leaves[d]; leaf && reads+writes > 0 && !counted[d] {
			all = false
		}
	})
	return all && err == nil
}

// read reads a group's block I/O from its files.
func (d diskSource) read(t *Table, n *node) {
	y := t.src[roleIO]
	switch d {
	case diskV2:
		t.slowFile(n, y, "/io.stat", func(b []byte) error {
			var sum procfmt.IO
			leaves := t.leafDevices()
			err := procfmt.IOStat(b, func(dev procfmt.Dev, c procfmt.IO) {
				if _, leaf := leaves[dev]; leaf {
					sum.ReadBytes += c.ReadBytes
					sum.WrittenBytes += c.WrittenBytes
					sum.Reads += c.Reads
					sum.Writes += c.Writes
				}
			})
			if err == nil {
				putDisk(&n.group.Reading, sum.ReadBytes, sum.WrittenBytes, sum.Reads, sum.Writes)
			}
			return err
		})
	case diskBlkio:
		var bytes, requests [2]int64
		ok := t.slowFile(n, y, blkioBytes, t.blkio(&bytes)) && t.slowFile(n, y, blkioRequests, t.blkio(&requests))
		if ok {
			putDisk(&n.group.Reading, bytes[0], bytes[1], requests[0], requests[1])
		}
	}
}

func (t *Table) blkio(sum *[2]int64) func([]byte) error {
	return func(b []byte) error {
		leaves := t.leafDevices()
		_, err := procfmt.BlkioServiceBytes(b, func(dev procfmt.Dev, read, written int64) {
			if _, leaf := leaves[dev]; leaf {
				sum[0] += read
				sum[1] += written
			}
		})
		return err
	}
}

func putDisk(r *usage.Reading, readBytes, writtenBytes, reads, writes int64) {
	r.Put(usage.DiskRead, readBytes)
	r.Put(usage.DiskWritten, writtenBytes)
	r.Put(usage.DiskReads, reads)
	r.Put(usage.DiskWrites, writes)
}

// leafDevices returns the devices to sum totals over, refreshed once a window.
func (t *Table) leafDevices() map[procfmt.Dev]string {
	every := max(1, t.cfg.Every)
	if t.leaves == nil || t.ticks >= t.leavesAt+every {
		leaves, err := t.host.LeafDevices()
		if err != nil && !errors.Is(err, fault.ErrNotFound) {
			t.log.Debug("block devices", "err", err)
		}
		if err == nil || t.leaves == nil {
			t.leaves = leaves
		}
		t.leavesAt = t.ticks
	}
	return t.leaves
}
