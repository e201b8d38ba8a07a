package energy

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/host"
	"mete.dev/mete/internal/kernfmt"
	"mete.dev/mete/internal/power"
)

// reopenEvery is the shortest time between two tries to open a meter that has
// none open, in ns.
const reopenEvery = int64(10 * time.Second)

// highest is the highest value that is believed to be one: the kernel's numbers
// have 64 bits, and what is written above 63 is nothing that counts joules.
const highest = 1 << 62

// errText is what a meter's file holds where that is no number.
var errText = fmt.Errorf("no number: %w", fault.ErrInvalid)

// A gauge is a meter that is a file with a number in it.
type gauge struct {
	meter power.Meter
	index int
	host  *host.Host
	path  string
	same  string // the zone that shows the same thing, or the zone itself

	file   *host.File
	tried  int64 // when it was opened or tried to be, ns
	last   error // of reading the file, as the operating system says it
	reason error // last, or why the file could not be opened, with path and kind
	text   string
	buf    [64]byte
}

// open opens the file, or keeps why it could not.
func (g *gauge) open(now int64) {
	g.tried = now
	f, err := g.host.Open(g.path)
	if err != nil {
		g.reason, g.text = err, err.Error()
		return
	}
	g.file, g.last, g.reason = f, nil, nil
}

// failed is the reading that says why there is no value. The text is made when
// the reason changes.
func (g *gauge) failed(err error) power.Reading {
	if g.last != err {
		g.last = err
		g.reason = host.Kind(g.path, err)
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
	n, err := g.file.Pread(g.buf[:])
	if err != nil {
		// A descriptor of a zone that was taken away stays dead when the zone
		// comes back.
		if errors.Is(err, unix.ENODEV) {
			_ = g.file.Close() // nothing was written
			g.file, g.tried = nil, now
		}
		return g.failed(err)
	}
	v, err := kernfmt.Int(g.buf[:n])
	if err != nil || v > highest {
		return g.failed(errText)
	}
	g.last, g.reason = nil, nil
	return power.Reading{Meter: g.index, Value: v}
}
