package cgroup

import (
	"math/bits"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
)

// noLimit and above means unlimited memory in version 1: the kernel writes 2^63 rounded
// down to a page.
const noLimit = 1 << 62

// slowLimits reads the limits of the group.
func (t *Table) slowLimits(n *node) {
	n.group.CPULimit = t.cpuLimit(n, t.src[roleLimit])
	n.group.MemoryLimit = 0
	y := t.src[roleMemory]
	if y == nil {
		return
	}
	name := "/memory.limit_in_bytes"
	if y.V2 {
		name = "/memory.max"
	}
	if v, ok := t.slowInt(n, y, name); ok && v < noLimit {
		n.group.MemoryLimit = v
	}
}

// cpuLimit returns ns of CPU time per second, 0 without a limit.
func (t *Table) cpuLimit(n *node, y *hostfs.Hierarchy) int64 {
	if y == nil {
		return 0
	}
	var quota, period int64
	if y.V2 {
		ok := t.slowFile(n, y, "/cpu.max", func(b []byte) (err error) {
			quota, period, err = procfmt.CPUMax(b)
			return err
		})
		if !ok {
			return 0
		}
	} else {
		var ok bool
		if quota, ok = t.slowInt(n, y, "/cpu.cfs_quota_us"); !ok || quota <= 0 {
			return 0
		}
		if period, ok = t.slowInt(n, y, "/cpu.cfs_period_us"); !ok {
			return 0
		}
	}
	if quota <= 0 || period <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(quota), 1e9)
	if hi >= uint64(period) {
		return 0 // more than 2^63 ns per second is unlimited
	}
	limit, _ := bits.Div64(hi, lo, uint64(period))
	return int64(min(limit, 1<<62))
}

// slowInt reads a file of one number.
func (t *Table) slowInt(n *node, y *hostfs.Hierarchy, name string) (v int64, ok bool) {
	ok = t.slowFile(n, y, name, func(b []byte) (err error) {
		v, err = procfmt.Int(b)
		return err
	})
	return v, ok
}
