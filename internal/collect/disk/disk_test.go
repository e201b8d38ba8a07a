package disk_test

import (
	"testing"

	"mete.dev/mete/internal/collect/disk"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/usage"
)

// Leaf devices come and go: the growth of the sum and what removed devices took with them
// make up the I/O of all leaf devices.
func TestTotals(t *testing.T) {
	type line struct {
		minor uint32
		leaf  bool
		bytes int64
	}
	var d disk.Totals
	before := int64(0)
	for i, c := range []struct {
		lines  []line
		cut    bool // the rest of the file is malformed
		failed bool // the tick is not booked
		sum    int64
		grew   int64
	}{
		{lines: []line{{1, true, 100}, {2, false, 7}}, sum: 100, grew: 100},
		{lines: []line{{1, true, 110}, {3, true, 40}}, sum: 150, grew: 50},
		{lines: []line{{1, true, 115}}, cut: true},
		{lines: []line{{1, false, 120}, {3, true, 50}}, sum: 170, grew: 20},          // once a leaf, always one
		{lines: []line{{1, true, 120}}, sum: 120, grew: 0},                           // 3 is removed
		{lines: []line{{1, true, 125}, {3, true, 30}}, sum: 155, grew: 35},           // and attached again
		{lines: []line{{1, true, 125}, {3, true, 10}}, sum: 135, grew: 10},           // and once more since the last reading
		{lines: []line{{3, true, 4}}, sum: 4, grew: 4, failed: true},                 // 1 is removed and 3 is another
		{lines: []line{{1, true, 6}}, sum: 6, grew: 10},                              // with the previous tick
		{lines: []line{{1, true, 9}}, cut: true}, {lines: []line{}, sum: 0, grew: 3}, // up to the latest reading
	} {
		d.Begin()
		for _, l := range c.lines {
			d.Add(procfmt.Dev{Major: 8, Minor: l.minor}, l.leaf, procfmt.IO{ReadBytes: l.bytes, WrittenBytes: 2 * l.bytes, Reads: 3 * l.bytes, Writes: 4 * l.bytes})
		}
		if c.cut {
			continue
		}
		var r usage.Reading
		d.End(&r)
		removed := d.Removed()
		for n, res := range []usage.Resource{usage.DiskRead, usage.DiskWritten, usage.DiskReads, usage.DiskWrites} {
			by := int64(n + 1)
			if sum, grew := r.Value[res], r.Value[res]+removed[res]-before*by; sum != c.sum*by || grew != c.grew*by {
				t.Errorf("reading %d: %v is %d, grown by %d; want %d and %d", i, res, sum, grew, c.sum*by, c.grew*by)
			}
		}
		if !c.failed {
			before = c.sum
			d.Booked()
		}
	}
	if d.Removed() != nil {
		t.Errorf("%v removed after all was booked", d.Removed())
	}
}
