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

// maxValue is the highest value that is believed to be one: the kernel's numbers
// have 64 bits, and what is written above 63 is nothing that counts joules.
const maxValue = 1 << 62

// errText is what a meter's file holds where that is no number, and errKind is
// what stands in its place where that cannot be read as one is.
var (
	errText = fmt.Errorf("no number: %w", fault.ErrInvalid)
	errKind = fmt.Errorf("a pipe or a device, and no file: %w", fault.ErrInvalid)
)

// A fileMeter is a meter that is a file with a number in it.
type fileMeter struct {
	meter  power.Meter
	index  int
	host   *hostfs.FS
	path   string
	zoneID string // the zone that shows the same thing, or the zone itself

	file    *hostfs.File
	value   int64 // that it showed last
	triedAt int64 // when it was opened or tried to be, ns
	lastErr error // of reading the file, as the operating system says it
	reason  error // last, or why the file could not be opened, with path and kind
	text    string
	buf     [64]byte
}

// open opens the file, or keeps why it could not.
func (m *fileMeter) open(now int64) (ok bool) {
	m.triedAt = now
	f, err := m.host.Open(m.path)
	if err == nil && fileStat(f).Mode&unix.S_IFMT != unix.S_IFREG && fileStat(f).Mode&unix.S_IFMT != unix.S_IFDIR {
		_ = f.Close() // nothing was written
		err = hostfs.Kind(m.path, errKind)
	}
	if err != nil {
		m.reason, m.text = err, err.Error()
		return false
	}
	m.file, m.lastErr, m.reason = f, nil, nil
	return true
}

// fileStat is what the operating system says of an open file; nothing where it fails.
func fileStat(f *hostfs.File) (st unix.Stat_t) {
	_ = unix.Fstat(f.Fd(), &st) // of an open descriptor
	return st
}

// errorReading is the reading that says why there is no value. The text is made when
// the reason changes.
func (m *fileMeter) errorReading(err error) power.Reading {
	if m.lastErr != err {
		m.lastErr = err
		m.reason = hostfs.Kind(m.path, err)
		m.text = m.reason.Error()
	}
	return power.Reading{Meter: m.index, Err: m.text}
}

// read reads the file. It leaves the time to the caller: now says when to try
// again to open what is not open.
func (m *fileMeter) read(now int64) power.Reading {
	if m.file == nil && now-m.triedAt >= reopenEvery {
		m.open(now)
	}
	if m.file == nil {
		return power.Reading{Meter: m.index, Err: m.text}
	}
	v, err := m.readValue()
	gone := errors.Is(err, unix.ENODEV)
	if !gone && (err != nil || v == m.value) && fileStat(m.file).Nlink == 0 {
		// In a directory that is not the kernel's a new file may have taken the
		// place of this one, which stands still for ever.
		if m.closeFile(); !m.open(now) {
			return power.Reading{Meter: m.index, Err: m.text}
		}
		v, err = m.readValue()
	}
	if gone {
		// A descriptor of a zone that was taken away stays dead when the zone
		// comes back.
		m.closeFile()
		m.triedAt = now
	}
	if err != nil {
		return m.errorReading(err)
	}
	m.value, m.lastErr, m.reason = v, nil, nil
	return power.Reading{Meter: m.index, Value: v}
}

// readValue reads the number in the file.
func (m *fileMeter) readValue() (int64, error) {
	n, err := m.file.Pread(m.buf[:])
	if err != nil {
		return 0, err
	}
	v, err := procfmt.Int(m.buf[:n])
	if err != nil || v > maxValue {
		return 0, errText
	}
	return v, nil
}

// closeFile closes the file.
func (m *fileMeter) closeFile() {
	_ = m.file.Close() // nothing was written
	m.file = nil
}
