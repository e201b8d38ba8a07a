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

// Disk: processes read and write around the page cache, so that what they ask
// for goes to the disk at once, and in their group's name.
//
// The bytes are exact: the file's blocks are all there and written before, so
// that nothing about it needs to be read, and what changes in the inode is
// written by the journal's own thread, which is in no group. Requests are not
// compared: the kernel may split and join them.

// blockSize is of one request, in bytes: a multiple of any disk's sector.
const blockSize = 16 << 10

// fileBlocks is how many of them a worker's file has.
const fileBlocks = 8

// An op is what one process did on the disk for a while.
type op struct {
	path     string // of its group
	from, to time.Time
	done
}

// upon makes a directory that is directly upon a disk, until the test ends; or
// returns "" where it would not be: below a mapper, say, the disk is another.
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
		t.Logf("%s is not upon a disk: none is used (%s, %v)", dir, link, err)
		return ""
	}
	return dir
}

// file makes a worker's file, with its blocks upon the disk.
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

// direct is a worker's file, open in its process.
type direct struct {
	f     *os.File
	block []byte
}

func openDirect(file string) (d direct, err error) {
	if file == "" {
		return d, nil
	}
	if d.block, err = touch(blockSize); err != nil { // that is aligned
		return d, err
	}
	d.f, err = os.OpenFile(file, os.O_RDWR|syscall.O_DIRECT|unix.O_NOATIME, 0)
	return d, err
}

// exercise writes so many blocks and reads them again.
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
	// The kernel's count of what a process wrote has its share of inodes too.
	size := int64(blocks * blockSize)
	if err == nil && (after.Read-before.Read < size || after.Written-before.Written < size) {
		err = fmt.Errorf("%d bytes written and read again, and the kernel counted %+v, then %+v", size, before, after)
	}
	return done{size, size}, err
}

// transferred is what this process moved from and to disks.
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

// disk compares bytes read and written by group. No agent counts them but the
// bpf reader's, and while it is away nobody does: then they are in system.
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
			c.t.Errorf("%d rows have what was written, which the files of this machine do not show", present)
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
				c.t.Errorf("%s: %+v bytes are booked, it was %+v, and %+v of that while an agent looked", path, got, hi, lo)
			}
		}
	}
	for path, got := range sums {
		if _, ok := most[path]; !ok && got != (done{}) {
			c.t.Errorf("%s: %+v bytes are booked of a group that did nothing on the disk", path, got)
		}
	}
	// The disk's own count does not stop while the agent is away.
	whole := done{c.sum1("SELECT CAST(sum(whole_disk_read) AS bigint) FROM " + c.all("node_")), c.sum1("SELECT CAST(sum(whole_disk_written) AS bigint) FROM " + c.all("node_"))}
	if whole.Read < all.Read || whole.Written < all.Written {
		c.t.Errorf("the disks did %+v bytes, the groups %+v", whole, all)
	}
	c.t.Logf("disk: %d groups did %+v bytes, %d of them all while an agent looked; the machine %+v", len(most), all, exact, whole)
	if c.fleet.disk != "" && !c.lost && !c.v.clock && exact < 20 {
		c.t.Errorf("%d of %d groups used the disk while an agent looked: too few to judge by", exact, len(most))
	}
}

func add(to map[string]done, path string, d done) {
	sum := to[path]
	to[path] = done{sum.Read + d.Read, sum.Written + d.Written}
}

// during reports whether some span touches that from one time to another.
func during(spans []span, from, to time.Time) bool {
	for _, s := range spans {
		if !to.Before(s.from) && !from.After(s.to) {
			return true
		}
	}
	return false
}

// sum1 is the one number that a query answers with.
func (c *checker) sum1(query string) (n int64) {
	c.rows(func(scan func(...any) error) { _ = scan(&n) }, query)
	return n
}
