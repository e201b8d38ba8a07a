// Package disk sums the I/O of block devices that come and go.
package disk

import (
	"slices"

	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/usage"
)

// Totals sums the I/O of leaf devices over the lines of one file, and remembers by how much
// the sum fell because a device was removed: its counters go with it. For each reading of
// the file call Begin, Add for each device and End.
type Totals struct {
	devices []device
	removed procfmt.IO
	reading uint32
}

type device struct {
	dev     procfmt.Dev
	last    procfmt.IO
	reading uint32 // the latest that had it
}

// Begin begins a reading. A reading without End, because the file is malformed, removes no
// device.
func (t *Totals) Begin() { t.reading++ }

// Add adds the counters of a device since it was attached. A device counts from the first
// reading in which it is a leaf until a reading lacks it.
func (t *Totals) Add(dev procfmt.Dev, leaf bool, now procfmt.IO) {
	i := slices.IndexFunc(t.devices, func(d device) bool { return d.dev == dev })
	switch {
	case i < 0 && !leaf:
		return
	case i < 0:
		i = len(t.devices)
		t.devices = append(t.devices, device{dev: dev})
	case isAnyBelow(now, t.devices[i].last): // another device has its number now
		t.removed = plus(t.removed, t.devices[i].last)
	}
	t.devices[i].last, t.devices[i].reading = now, t.reading
}

// End ends a reading and puts the sums over the present devices into r, in bytes and
// requests.
func (t *Totals) End(r *usage.Reading) {
	var sum procfmt.IO
	t.devices = slices.DeleteFunc(t.devices, func(d device) bool {
		if d.reading != t.reading {
			t.removed = plus(t.removed, d.last)
			return true
		}
		sum = plus(sum, d.last)
		return false
	})
	r.Put(usage.DiskRead, sum.ReadBytes)
	r.Put(usage.DiskWritten, sum.WrittenBytes)
	r.Put(usage.DiskReads, sum.Reads)
	r.Put(usage.DiskWrites, sum.Writes)
}

// Removed returns by how much the sums fell since the last call of Booked, as
// usage.Group.Removed; nil if no device was removed.
func (t *Totals) Removed() map[usage.Resource]int64 {
	if t.removed == (procfmt.IO{}) {
		return nil
	}
	return map[usage.Resource]int64{usage.DiskRead: t.removed.ReadBytes, usage.DiskWritten: t.removed.WrittenBytes,
		usage.DiskReads: t.removed.Reads, usage.DiskWrites: t.removed.Writes}
}

// Booked says that what Removed returned was booked.
func (t *Totals) Booked() { t.removed = procfmt.IO{} }

func plus(a, b procfmt.IO) procfmt.IO {
	return procfmt.IO{ReadBytes: a.ReadBytes + b.ReadBytes, WrittenBytes: a.WrittenBytes + b.WrittenBytes, Reads: a.Reads + b.Reads, Writes: a.Writes + b.Writes}
}

// isAnyBelow reports whether any counter of a is below that of b.
func isAnyBelow(a, b procfmt.IO) bool {
	return a.ReadBytes < b.ReadBytes || a.WrittenBytes < b.WrittenBytes || a.Reads < b.Reads || a.Writes < b.Writes
}
