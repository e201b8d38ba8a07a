package torture

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/usage"
)

// Disk: processes bypass the page cache, so that their requests go to the disk at once and
// are charged to their group.
//
// The bytes are exact: all blocks of the files are allocated and written beforehand, so that
// no metadata is read, and the journal's thread, which is in no group, writes changes of
// inodes. Request counts are not compared, because the kernel splits and merges requests.

// blockSize is the size of a request in bytes, a multiple of any disk's sector.
const blockSize = 16 << 10

// fileBlocks is the number of blocks of a worker's file.
const fileBlocks = 8

// An op is the use of the disk by a process.
type op struct {
	path     string // of its group
	from, to time.Time
	done
}

// upon creates a directory on a physical disk until the test ends. It returns "" if the file
// system is on a virtual device such as a mapper, whose requests go to another disk.
func upon(t *testing.T) string {
	dir, err := os.MkdirTemp("", "mete-torture-disk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	dev := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	link, err := filepath.EvalSymlinks(dev)
	if err != nil || strings.Contains(link, "/virtual/") {
		t.Logf("%s is not on a physical disk: no disk load (%s, %v)", dir, link, err)
		return ""
	}
	return dir
}

// file creates a worker's file with all blocks on disk.
func (f *fleet) file(t *testing.T) string {
	if f.disk == "" {
		return ""
	}
	file, err := os.CreateTemp(f.disk, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.Write(make([]byte, fileBlocks*blockSize))
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		t.Fatal(err)
	}
	return file.Name()
}

// direct is a worker's file, opened with O_DIRECT.
type direct struct {
	f     *os.File
	block []byte
}

func openDirect(file string) (d direct, err error) {
	if file == "" {
		return d, nil
	}
	if d.block, err = touch(blockSize); err != nil { // aligned to pages
		return d, err
	}
	d.f, err = os.OpenFile(file, os.O_RDWR|syscall.O_DIRECT|unix.O_NOATIME, 0)
	return d, err
}

// exercise writes blocks and reads them again.
func (d direct) exercise(blocks int) (n done, err error) {
	before, err := transferred()
	if err != nil {
		return n, err
	}
	for i := range blocks {
		at := int64(i % fileBlocks * blockSize)
		_, err := d.f.WriteAt(d.block, at)
		if err == nil {
			_, err = d.f.ReadAt(d.block, at)
		}
		if err != nil {
			return n, err
		}
	}
	after, err := transferred()
	// The kernel's count of a process includes writes of inodes.
	size := int64(blocks * blockSize)
	if err == nil && (after.Read-before.Read < size || after.Written-before.Written < size) {
		err = fmt.Errorf("%d bytes written and read again, but the kernel counted %+v before and %+v after", size, before, after)
	}
	return done{size, size}, err
}

// transferred returns the kernel's counters of this process's disk transfers.
func transferred() (d done, err error) {
	f, err := os.Open("/proc/self/io")
	if err != nil {
		return d, err
	}
	b, err := io.ReadAll(f)
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ": ")
		to := map[string]*int64{"read_bytes": &d.Read, "write_bytes": &d.Written}[name]
		if to != nil {
			_, err2 := fmt.Sscan(value, to)
			err = errors.Join(err, err2)
		}
	}
	return d, errors.Join(err, f.Close())
}

// disk compares bytes read and written by group. Only the bpf reader counts them by group;
// without an agent they count as system.
func (c *checker) disk(away []span) {
	sums := map[string]done{}
	present := 0
	c.rows(func(scan func(...any) error) {
		var path string
		var d done
		var has int
		_ = scan(&path, &d.Read, &d.Written, &has)
		sums[path] = d
		present += has
	}, fmt.Sprintf("SELECT w.path, CAST(sum(m.disk_read) AS bigint), CAST(sum(m.disk_written) AS bigint), CAST(sum((m.present >> %d) & 1) AS bigint) FROM %s JOIN workload w ON w.id = m.workload WHERE w.path LIKE '%s%%' GROUP BY w.path",
		usage.DiskWritten, c.all(""), c.fleet.top))
	if c.v.reader == "files" {
		if present > 0 {
			c.t.Errorf("%d rows have written bytes, which the files of this machine do not show", present)
		}
		return
	}
	slack := c.slack()
	least, most := map[string]done{}, map[string]done{}
	var all done
	for _, o := range c.fleet.ops {
		add(most, o.path, o.done)
		all.Read, all.Written = all.Read+o.Read, all.Written+o.Written
		if !c.lost && !during(away, o.from.Add(-slack), o.to.Add(slack)) {
			add(least, o.path, o.done)
		}
	}
	exact, bad := 0, 0
	for path, hi := range most {
		lo, got := least[path], sums[path]
		if lo == hi {
			exact++
		}
		if got.Read < lo.Read || got.Read > hi.Read || got.Written < lo.Written || got.Written > hi.Written {
			if bad++; bad <= 20 {
				c.t.Errorf("%s: %+v bytes booked, want at most %+v and at least %+v, the part while an agent ran", path, got, hi, lo)
			}
		}
	}
	for path, got := range sums {
		if _, ok := most[path]; !ok && got != (done{}) {
			c.t.Errorf("%s: %+v bytes booked for a group that did not use the disk", path, got)
		}
	}
	// The disk's own counter continues without an agent.
	whole := done{c.sum1("SELECT CAST(sum(whole_disk_read) AS bigint) FROM " + c.all("node_")), c.sum1("SELECT CAST(sum(whole_disk_written) AS bigint) FROM " + c.all("node_"))}
	if whole.Read < all.Read || whole.Written < all.Written {
		c.t.Errorf("disks transferred %+v bytes, groups %+v", whole, all)
	}
	c.t.Logf("disk: %d groups transferred %+v bytes, %d of them only while an agent ran; the machine %+v", len(most), all, exact, whole)
	if c.fleet.disk != "" && !c.lost && !c.v.clock && exact < 20 {
		c.t.Errorf("only %d of %d groups used the disk while an agent ran", exact, len(most))
	}
}

func add(to map[string]done, path string, d done) {
	sum := to[path]
	to[path] = done{sum.Read + d.Read, sum.Written + d.Written}
}

// during reports whether a span overlaps the time from from to to.
func during(spans []span, from, to time.Time) bool {
	for _, s := range spans {
		if !to.Before(s.from) && !from.After(s.to) {
			return true
		}
	}
	return false
}

// sum1 returns the single number of a query.
func (c *checker) sum1(query string) (n int64) {
	c.rows(func(scan func(...any) error) { _ = scan(&n) }, query)
	return n
}
