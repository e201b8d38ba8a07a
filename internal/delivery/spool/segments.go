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

// rewriteFile is the temporary file of rewrite.
const rewriteFile = "rewrite.tmp"

// errCorrupt reports a record that is permanently unreadable.
var errCorrupt = errors.New("record is corrupt")

// segments is an append-only log in the files of a directory. A record is durable when
// append returns without an error. append writes to the last file, which is never removed or
// rewritten.
type segments struct {
	fs   FS
	dir  string
	size int64      // at which a segment is full
	list []*segment // by number
	// file is the last segment's file. It is nil if the next append has to start a new
	// segment: there is none, or a write to the last one failed.
	file File
}

// A segment is one file of a log.
type segment struct {
	header
	size int64 // of its valid bytes
}

// A location is the position of a record.
type location struct {
	seg    *segment
	offset int64
	size   int // bytes of its payload
}

// damage counts the invalid parts that recovery found.
type damage struct {
	corrupt int   // invalid parts within a log
	torn    int64 // bytes of an incomplete write at the end of the log
}

func (g *segments) name(number uint64) string {
	return filepath.Join(g.dir, fmt.Sprintf("%016x.seg", number))
}

// openSegments recovers the log in a directory and calls visit for each valid record, in
// order. It has at most one segment in memory at a time.
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
		default:
			// A failed write, as the original next segment recorded, or nothing.
			found.torn += seg.size - end
		}
	}
	return g, found, g.resume()
}

// removeEmptyTail removes segments without a record at the end of the log, which an
// interrupted beginSegment leaves.
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

// listSegments lists the segments and removes those that another one replaces.
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

// readHeader reads a segment's header. A segment without a valid header is still searched
// for records.
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
	// The longest segment was almost full before its last record.
	size = min(size, g.size+recordHeadSize+maxPayload)
	return &segment{header: h, size: size}, errors.Join(err, err2, f.Close())
}

// load reads the valid bytes of a segment.
func (g *segments) load(seg *segment) ([]byte, error) {
	f, err := g.fs.Open(g.name(seg.number))
	if err != nil {
		return nil, err
	}
	b := make([]byte, seg.size)
	n, err := f.ReadAt(b, 0)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.EIO) {
		// Treat unreadable bytes as corrupt.
		err = nil
	}
	return b[:n], errors.Join(err, f.Close())
}

// resume opens the last segment for appends after its last valid record. It syncs the
// segment, because the previous process may have been killed before its sync.
func (g *segments) resume() error {
	if err := g.fs.SyncDir(g.dir); err != nil || len(g.list) == 0 {
		return err
	}
	seg := g.last()
	f, err := g.fs.Open(g.name(seg.number))
	if err != nil {
		return err
	}
	if err = f.Truncate(seg.size); err == nil {
		err = f.Sync()
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	g.file = f
	return nil
}

// bytes returns the size of all segments.
func (g *segments) bytes() (n int64) {
	for _, seg := range g.list {
		n += seg.size
	}
	return n
}

// last returns the segment for appends, or nil.
func (g *segments) last() *segment {
	if len(g.list) == 0 {
		return nil
	}
	return g.list[len(g.list)-1]
}

// isFull reports whether the next append has to start a segment.
func (g *segments) isFull() bool { return g.file == nil || g.last().size >= g.size }

// append writes and syncs a record. After an error the record is not in the log: the next
// append starts a new segment that records the valid length of this one, because the content
// of the file after a failed write is unknown.
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
		// Best effort: the next segment records the valid length anyway.
		_ = errors.Join(g.file.Truncate(seg.size), g.file.Sync(), g.file.Close())
		g.file = nil
		return location{}, err
	}
	p := location{seg, seg.size, len(payload)}
	seg.size += int64(len(b))
	return p, nil
}

// beginSegment creates a segment with its first record.
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
		// The next attempt creates the file again under the same name. Until then a restart
		// must not use it.
		_ = f.Truncate(0)
		return location{}, errors.Join(err, f.Close(), g.fs.Remove(name))
	}
	if g.file != nil {
		// Each append synced its bytes.
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

// read returns a record's payload. The error wraps errCorrupt if the record is permanently
// unreadable.
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

// remove deletes a segment, which must not be the last. It does not sync the directory,
// because a segment that reappears is harmless.
func (g *segments) remove(seg *segment) error {
	if err := g.fs.Remove(g.name(seg.number)); err != nil {
		return err
	}
	g.list = slices.DeleteFunc(g.list, func(s *segment) bool { return s == seg })
	return nil
}

// rewrite replaces adjacent segments by one with the records that fill adds. The last
// segment must not be among them. After a crash the log has either all old segments or the
// new one.
func (g *segments) rewrite(old []*segment, fill func(add func(kind byte, payload []byte) (location, error)) error) (err error) {
	old = slices.Clone(old) // may be a part of g.list
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
	// The new segment replaces the old ones; remove these only when its name is durable.
	if g.fs.SyncDir(g.dir) == nil {
		failpoint.At("spool.merged")
		for _, o := range old[1:] {
			_ = g.fs.Remove(g.name(o.number)) // else the next start removes it
		}
	}
	return nil
}

// close closes the last segment's file.
func (g *segments) close() error {
	if g.file == nil {
		return nil
	}
	return g.file.Close()
}
