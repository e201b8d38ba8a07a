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

// reopenEvery is the shortest interval between attempts to open a closed meter, in ns.
const reopenEvery = int64(10 * time.Second)

// maxValue is the highest valid value: the kernel's numbers have 64 bits, and higher values
// are not energies.
const maxValue = 1 << 62

// errText is the error of a file without a number, errKind the error of a file that is not
// regular.
var (
	errText = fmt.Errorf("not a number: %w", fault.ErrInvalid)
	errKind = fmt.Errorf("a pipe or a device, not a file: %w", fault.ErrInvalid)
)

// A fileMeter is a meter in a file with one number.
type fileMeter struct {
	meter  power.Meter
	index  int
	host   *hostfs.FS
	path   string
	zoneID string // the zone with the same energy, or the zone itself

	file    *hostfs.File
	isNew   bool  // file was not read yet
	value   int64 // latest value
	triedAt int64 // time of the latest attempt to open, ns
	lastErr error // of reading the file, bare
	reason  error // the latest error of reading or opening, with path and kind
	text    string
	buf     [64]byte
}

// open opens the file, or keeps the error.
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
	m.file, m.isNew, m.lastErr, m.reason = f, true, nil, nil
	return true
}

// fileStat stats an open file; the result is zero on error.
func fileStat(f *hostfs.File) (st unix.Stat_t) {
	_ = unix.Fstat(f.Fd(), &st) // cannot fail for an open descriptor
	return st
}

// errorReading returns a reading with the error. It formats the text only when the error
// changes.
func (m *fileMeter) errorReading(err error) power.Reading {
	if m.lastErr != err {
		m.lastErr = err
		m.reason = hostfs.Kind(m.path, err)
		m.text = m.reason.Error()
	}
	return power.Reading{Meter: m.index, Err: m.text}
}

// read reads the file; the caller sets the time. now decides whether to retry opening a
// closed file.
func (m *fileMeter) read(now int64) power.Reading {
	if m.file == nil && now-m.triedAt >= reopenEvery {
		m.open(now)
	}
	if m.file == nil {
		return power.Reading{Meter: m.index, Err: m.text}
	}
	v, err := m.readValue()
	gone := errors.Is(err, unix.ENODEV)
	if !gone && (err != nil || v == m.value || m.isNew) && fileStat(m.file).Nlink == 0 {
		// Outside the kernel's file systems a new file may have replaced this one, whose
		// content then never changes, even before it was first read.
		if m.closeFile(); !m.open(now) {
			return power.Reading{Meter: m.index, Err: m.text}
		}
		v, err = m.readValue()
	}
	if gone {
		// The descriptor of a removed zone stays invalid when the zone comes back.
		m.closeFile()
		m.triedAt = now
	}
	if err != nil {
		return m.errorReading(err)
	}
	m.isNew, m.value, m.lastErr, m.reason = false, v, nil, nil
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
