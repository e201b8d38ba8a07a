package spool

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"syscall"

	"mete.dev/mete/internal/x/failpoint"
)

// rewriteFile is the file in which segments are rewritten.
const rewriteFile = "rewrite.tmp"

// errCorrupt says that a record cannot be read any more.
var errCorrupt = errors.New("record is corrupt")

// segments is a log that is only appended to, in the files of a directory. What
// append returned without an error is durable. The file that is appended to is
// the last one; from it nothing is ever removed, and it is never rewritten.
type segments struct {
	fs   FS
	dir  string
	size int64      // at which a segment is full
	list []*segment // by number
	// file is the last segment's; nil where the next append has to begin a new
	// one: there is none, it is full, or a write to it failed.
	file File
}

// A segment is one file of a log.
type segment struct {
	header
	size int64 // of what counts in it
}

// A location says where a record stands.
type location struct {
	seg    *segment
	offset int64
	size   int // bytes of its payload
}

// damage is what recovery found.
type damage struct {
	corrupt int   // stretches within a log that are no records
	torn    int64 // bytes behind the end of the log: a write that never ended
}

func (g *segments) name(number uint64) string {
	return filepath.Join(g.dir, fmt.Sprintf("%016x.seg", number))
}

// openSegments recovers the log in a directory, and calls visit for every whole
// record in it, in order. At most one segment is in memory at a time.
func openSegments(fs FS, dir string, size int64, visit func(p location, kind byte, payload []byte)) (*segments, damage, error) {
	g := &segments{fs: fs, dir: dir, size: size}
	var found damage
	if err := fs.MkdirAll(dir); err != nil {
		return nil, found, err
	}
	if err := g.listSegments(); err != nil {
		return nil, found, err
	}
	if err := g.removeEmptyTail(); err != nil {
		return nil, found, err
	}
	for i, seg := range g.list {
		b, err := g.load(seg)
		if err != nil {
			return nil, found, err
		}
		end, corrupt := scanRecords(b, seg.number, func(at int64, kind byte, payload []byte) {
			visit(location{seg, at, len(payload)}, kind, payload)
		})
		found.corrupt += corrupt
		switch {
		case i == len(g.list)-1:
			found.torn += seg.size - end
			seg.size = end
		case end < seg.size && g.list[i+1].before == seg.number:
			found.corrupt++
		case end < seg.size:
			// Of a write that failed, as the one that stood next knew.
			found.torn += seg.size - end
		}
	}
	return g, found, g.resume()
}

// removeEmptyTail removes segments at the end that have no record: they were being begun,
// and what stood before them is the last one again.
func (g *segments) removeEmptyTail() error {
	for len(g.list) > 0 {
		seg, records := g.last(), 0
		b, err := g.load(seg)
		if err != nil {
			return err
		}
		scanRecords(b, seg.number, func(int64, byte, []byte) { records++ })
		if records > 0 {
			return nil
		}
		if err := g.fs.Remove(g.name(seg.number)); err != nil {
			return err
		}
		g.list = g.list[:len(g.list)-1]
	}
	return nil
}

// listSegments lists the segments that count, and removes what others stand for.
func (g *segments) listSegments() error {
	names, err := g.fs.List(g.dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	var through uint64
	for _, name := range names {
		var number uint64
		if name == rewriteFile {
			if err := g.fs.Remove(filepath.Join(g.dir, name)); err != nil {
				return err
			}
			continue
		}
		if n, err := fmt.Sscanf(name, "%016x.seg", &number); n != 1 || err != nil || g.name(number) != filepath.Join(g.dir, name) || number == 0 {
			continue
		}
		if number <= through {
			if err := g.fs.Remove(g.name(number)); err != nil {
				return err
			}
			continue
		}
		seg, err := g.readHeader(number)
		if err != nil {
			return err
		}
		through = max(through, seg.through)
		if n := len(g.list); n > 0 && seg.before == g.list[n-1].number && g.list[n-1].rewritten == 0 {
			g.list[n-1].size = min(g.list[n-1].size, int64(seg.length))
		}
		g.list = append(g.list, seg)
	}
	return nil
}

// readHeader reads a segment's header; one that has none is searched for records all
// the same.
func (g *segments) readHeader(number uint64) (*segment, error) {
	f, err := g.fs.Open(g.name(number))
	if err != nil {
		return nil, err
	}
	b := make([]byte, headerSize)
	n, err := f.ReadAt(b, 0)
	size, err2 := f.Size()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	h, ok := parseHeader(b[:n], number)
	if !ok {
		h = header{number: number, through: number}
	}
	// No segment is longer than one that was all but full and got one record more.
	size = min(size, g.size+recordHeadSize+maxPayload)
	return &segment{header: h, size: size}, errors.Join(err, err2, f.Close())
}

// load reads what counts of a segment.
func (g *segments) load(seg *segment) ([]byte, error) {
	f, err := g.fs.Open(g.name(seg.number))
	if err != nil {
		return nil, err
	}
	b := make([]byte, seg.size)
	n, err := f.ReadAt(b, 0)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.EIO) {
		// What cannot be read is as good as corrupt.
		err = nil
	}
	return b[:n], errors.Join(err, f.Close())
}

// resume opens the last segment to append to it, behind its last whole record.
// What was read of it is durable then, also where the program before was killed
// while it wrote.
func (g *segments) resume() error {
	if err := g.fs.SyncDir(g.dir); err != nil || len(g.list) == 0 {
		return err
	}
	seg := g.list[len(g.list)-1]
	f, err := g.fs.Open(g.name(seg.number))
	if err != nil {
		return err
	}
	size, err := f.Size()
	if err == nil && size > seg.size {
		err = f.Truncate(seg.size)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	g.file = f
	return nil
}

// bytes is the size of all segments.
func (g *segments) bytes() (n int64) {
	for _, seg := range g.list {
		n += seg.size
	}
	return n
}

// last is the segment that is appended to, nil where there is none.
func (g *segments) last() *segment {
	if len(g.list) == 0 {
		return nil
	}
	return g.list[len(g.list)-1]
}

// isFull says that the next append has to begin a segment.
func (g *segments) isFull() bool { return g.file == nil || g.last().size >= g.size }

// append makes a record durable. After an error it is not in the log: the
// segment is left, since it cannot be known what of it a disk has after a failed
// write, and the next one says how much of it counts.
func (g *segments) append(kind byte, payload []byte, begin bool) (location, error) {
	if len(payload) > maxPayload {
		return location{}, fmt.Errorf("record of %d bytes: longer than %d", len(payload), maxPayload)
	}
	if begin {
		return g.beginSegment(kind, payload)
	}
	seg := g.last()
	b := appendRecord(nil, checksumSeed(seg.number), kind, payload)
	if err := writeSync(g.file, b, seg.size); err != nil {
		// With luck the next start does not even see it.
		_ = errors.Join(g.file.Truncate(seg.size), g.file.Sync(), g.file.Close())
		g.file = nil
		return location{}, err
	}
	p := location{seg, seg.size, len(payload)}
	seg.size += int64(len(b))
	return p, nil
}

// beginSegment makes a segment with its first record.
func (g *segments) beginSegment(kind byte, payload []byte) (location, error) {
	h := header{number: 1}
	if last := g.last(); last != nil {
		h.number = max(last.number, last.through) + 1
		h.before, h.length = last.number, uint64(last.size)
	}
	h.through = h.number
	b := appendRecord(h.append(nil), checksumSeed(h.number), kind, payload)
	name := g.name(h.number)
	f, err := g.fs.Create(name)
	if err != nil {
		return location{}, err
	}
	err = writeSync(f, b, 0)
	if err == nil {
		err = g.fs.SyncDir(g.dir)
	}
	if err != nil {
		// The next try makes it anew under the same name. Until then nobody is to
		// take it for one that counts.
		_ = f.Truncate(0)
		return location{}, errors.Join(err, f.Close(), g.fs.Remove(name))
	}
	if g.file != nil {
		// Every byte of it was synced when it was written.
		_ = g.file.Close()
	}
	seg := &segment{header: h, size: int64(len(b))}
	g.file, g.list = f, append(g.list, seg)
	return location{seg, headerSize, len(payload)}, nil
}

func writeSync(f File, b []byte, at int64) error {
	if _, err := f.WriteAt(b, at); err != nil {
		return err
	}
	failpoint.At("spool.written")
	return f.Sync()
}

// read returns a record's payload. The error wraps errCorrupt where it is not
// there any more, which trying again does not mend.
func (g *segments) read(p location) (payload []byte, err error) {
	f := g.file
	if f == nil || p.seg != g.last() {
		if f, err = g.fs.Open(g.name(p.seg.number)); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
	}
	b := make([]byte, recordHeadSize+p.size)
	n, err := f.ReadAt(b, p.offset)
	switch {
	case err == nil || errors.Is(err, io.EOF):
	case errors.Is(err, syscall.EIO):
		return nil, fmt.Errorf("%s: at %d: %w: %w", g.name(p.seg.number), p.offset, errCorrupt, err)
	default:
		return nil, err
	}
	_, payload, ok := parseRecord(b[:n], checksumSeed(p.seg.number))
	if !ok || len(payload) != p.size {
		return nil, fmt.Errorf("%s: at %d: %w", g.name(p.seg.number), p.offset, errCorrupt)
	}
	return payload, nil
}

// remove deletes a segment, which may not be the last. Whether that is durable
// does not matter: what is in it is not needed.
func (g *segments) remove(seg *segment) error {
	if err := g.fs.Remove(g.name(seg.number)); err != nil {
		return err
	}
	g.list = slices.DeleteFunc(g.list, func(s *segment) bool { return s == seg })
	return nil
}

// rewrite puts one segment in place of several that stand side by side, with
// what fill appends to it. The last segment may not be among them. After a
// crash either all of the old ones are there or the new one alone.
func (g *segments) rewrite(old []*segment, fill func(add func(kind byte, payload []byte) (location, error)) error) (err error) {
	old = slices.Clone(old) // it may be a part of the list
	first, end := old[0], old[len(old)-1]
	h := first.header
	h.through, h.rewritten = max(end.number, end.through), first.rewritten+1
	name := filepath.Join(g.dir, rewriteFile)
	f, err := g.fs.Create(name)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.fs.Remove(name))
		}
	}()
	seg := &segment{header: h, size: headerSize}
	_, err = f.WriteAt(h.append(nil), 0)
	if err == nil {
		err = fill(func(kind byte, payload []byte) (location, error) {
			b := appendRecord(nil, checksumSeed(seg.number), kind, payload)
			if _, err := f.WriteAt(b, seg.size); err != nil {
				return location{}, err
			}
			p := location{seg, seg.size, len(payload)}
			seg.size += int64(len(b))
			return p, nil
		})
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := g.fs.Rename(name, g.name(seg.number)); err != nil {
		return err
	}
	i := slices.Index(g.list, first)
	g.list = slices.Replace(g.list, i, i+len(old), seg)
	// From here on the new one is what is read; the old ones may only go when
	// its name is durable.
	if g.fs.SyncDir(g.dir) == nil {
		failpoint.At("spool.merged")
		for _, o := range old[1:] {
			_ = g.fs.Remove(g.name(o.number)) // else the next start removes it
		}
	}
	return nil
}

// close closes the file that is appended to.
func (g *segments) close() error {
	if g.file == nil {
		return nil
	}
	return g.file.Close()
}
