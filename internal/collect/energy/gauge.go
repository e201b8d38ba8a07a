package energy

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

// reopenEvery is the shortest time between two tries to open a meter that has
// none open, in ns.
const reopenEvery = int64(10 * time.Second)

// highest is the highest value that is believed to be one: the kernel's numbers
// have 64 bits, and what is written above 63 is nothing that counts joules.
const highest = 1 << 62

// errText is what a meter's file holds where that is no number, and errKind is
// what stands in its place where that cannot be read as one is.
var (
	errText = fmt.Errorf("no number: %w", fault.ErrInvalid)
	errKind = fmt.Errorf("a pipe or a device, and no file: %w", fault.ErrInvalid)
)

// A gauge is a meter that is a file with a number in it.
type gauge struct {
	meter power.Meter
	index int
	host  *hostfs.FS
	path  string
	same  string // the zone that shows the same thing, or the zone itself

	file   *hostfs.File
	value  int64 // that it showed last
	tried  int64 // when it was opened or tried to be, ns
	last   error // of reading the file, as the operating system says it
	reason error // last, or why the file could not be opened, with path and kind
	text   string
	buf    [64]byte
}

// open opens the file, or keeps why it could not.
func (g *gauge) open(now int64) (ok bool) {
	g.tried = now
	f, err := g.host.Open(g.path)
	if err == nil && stat(f).Mode&unix.S_IFMT != unix.S_IFREG && stat(f).Mode&unix.S_IFMT != unix.S_IFDIR {
		_ = f.Close() // nothing was written
		err = hostfs.Kind(g.path, errKind)
	}
	if err != nil {
		g.reason, g.text = err, err.Error()
		return false
	}
	g.file, g.last, g.reason = f, nil, nil
	return true
}

// stat is what the operating system says of an open file; nothing where it fails.
func stat(f *hostfs.File) (st unix.Stat_t) {
	_ = unix.Fstat(f.Fd(), &st) // of an open descriptor
	return st
}

// failed is the reading that says why there is no value. The text is made when
// the reason changes.
func (g *gauge) failed(err error) power.Reading {
	if g.last != err {
		g.last = err
		g.reason = hostfs.Kind(g.path, err)
		g.text = g.reason.Error()
	}
	return power.Reading{Meter: g.index, Err: g.text}
}

// read reads the file. It leaves the time to the caller: now says when to try
// again to open what is not open.
func (g *gauge) read(now int64) power.Reading {
	if g.file == nil && now-g.tried >= reopenEvery {
		g.open(now)
	}
	if g.file == nil {
		return power.Reading{Meter: g.index, Err: g.text}
	}
	v, err := g.show()
	gone := errors.Is(err, unix.ENODEV)
	if !gone && (err != nil || v == g.value) && stat(g.file).Nlink == 0 {
		// In a directory that is not the kernel's a new file may have taken the
		// place of this one, which stands still for ever.
		if g.shut(); !g.open(now) {
			return power.Reading{Meter: g.index, Err: g.text}
		}
		v, err = g.show()
	}
	if gone {
		// A descriptor of a zone that was taken away stays dead when the zone
		// comes back.
		g.shut()
		g.tried = now
	}
	if err != nil {
		return g.failed(err)
	}
	g.value, g.last, g.reason = v, nil, nil
	return power.Reading{Meter: g.index, Value: v}
}

// show reads the number in the file.
func (g *gauge) show() (int64, error) {
	n, err := g.file.Pread(g.buf[:])
	if err != nil {
		return 0, err
	}
	v, err := procfmt.Int(g.buf[:n])
	if err != nil || v > highest {
		return 0, errText
	}
	return v, nil
}

// shut closes the file.
func (g *gauge) shut() {
	_ = g.file.Close() // nothing was written
	g.file = nil
}
