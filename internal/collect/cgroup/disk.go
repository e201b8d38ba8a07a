package cgroup

import (
	"errors"
	"slices"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
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
	err = procfmt.Diskstats(stats, func(d procfmt.Dev, _ string, c procfmt.DiskIO) {
		if _, leaf := leaves[d]; leaf && c.Reads+c.Writes > 0 && !counted[d] {
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
			t.devices = t.devices[:0]
			err := procfmt.IOStat(b, func(dev procfmt.Dev, c procfmt.IO) { t.devices = append(t.devices, deviceIO{dev, c}) })
			if err == nil {
				t.addDevices(n)
			}
			return err
		})
	case diskBlkio:
		t.devices = t.devices[:0]
		bytes := func(c *procfmt.IO, read, written int64) { c.ReadBytes, c.WrittenBytes = read, written }
		requests := func(c *procfmt.IO, read, written int64) { c.Reads, c.Writes = read, written }
		if t.slowFile(n, y, blkioBytes, t.blkio(bytes)) && t.slowFile(n, y, blkioRequests, t.blkio(requests)) {
			t.addDevices(n)
		}
	}
}

// A deviceIO is a group's I/O of one device.
type deviceIO struct {
	dev procfmt.Dev
	io  procfmt.IO
}

// blkio parses one of the files of version 1 into t.devices.
func (t *Table) blkio(put func(c *procfmt.IO, read, written int64)) func([]byte) error {
	return func(b []byte) error {
		_, err := procfmt.BlkioServiceBytes(b, func(dev procfmt.Dev, read, written int64) {
			i := slices.IndexFunc(t.devices, func(d deviceIO) bool { return d.dev == dev })
			if i < 0 {
				i = len(t.devices)
				t.devices = append(t.devices, deviceIO{dev: dev})
			}
			put(&t.devices[i].io, read, written)
		})
		return err
	}
}

// addDevices puts a group's I/O of all devices, in t.devices, into its reading.
func (t *Table) addDevices(n *node) {
	leaves := t.leafDevices()
	n.disk.Begin()
	for _, d := range t.devices {
		_, leaf := leaves[d.dev]
		n.disk.Add(d.dev, leaf, d.io)
	}
	n.disk.End(&n.group.Reading)
	n.group.Removed = n.disk.Removed()
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
