package agent

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/atomicfile"
)

// powerModelInterval is the time between two writings of what was learned of power.
const powerModelInterval = 5 * time.Minute

// A learner knows what was learned of power: it is a machine.
type learner interface{ PowerModels() []byte }

// powerModelFile is the file with what was learned of the machine's power. It is worth
// sharper figures after a start, and no more: without it the agent learns anew.
type powerModelFile struct {
	file    string // "" is none
	next    int64  // when to write it, ns of CLOCK_BOOTTIME
	failing bool
	log     *slog.Logger
}

// read returns what is in the file; nil where there is nothing.
func (l *powerModelFile) read() []byte {
	if l.file == "" {
		return nil
	}
	b, err := os.ReadFile(l.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("what was learned of this machine's power cannot be read; it is learned anew", "path", l.file, "err", err)
	}
	return b
}

// handleRefusal says why what was read is not used, and sets it aside if it is broken.
func (l *powerModelFile) handleRefusal(why error) {
	switch {
	case why == nil:
	case errors.Is(why, fault.ErrInvalid):
		aside := l.file + ".broken"
		err := os.Rename(l.file, aside)
		l.log.Warn("what was learned of this machine's power is broken and set aside; it is learned anew", "path", aside, "why", why, "err", err)
	default:
		l.log.Info("this machine's power is learned anew", "path", l.file, "why", why)
	}
}

// saveIfDue writes the file if it is time, by CLOCK_BOOTTIME in ns: the first time some
// minutes after the start.
func (l *powerModelFile) saveIfDue(now int64, m learner) {
	if l.next == 0 {
		l.next = now + int64(powerModelInterval)
	}
	if now >= l.next {
		l.next = now + int64(powerModelInterval)
		l.save(m)
	}
}

// save writes the file, and logs when that begins to fail and when it works again.
func (l *powerModelFile) save(m learner) {
	if l.file == "" {
		return
	}
	err := os.MkdirAll(filepath.Dir(l.file), 0o700)
	if err == nil {
		err = atomicfile.Replace(l.file, m.PowerModels())
	}
	switch {
	case err != nil && !l.failing:
		l.log.Warn("what was learned of this machine's power cannot be kept; it is tried again", "path", l.file, "err", err)
	case err == nil && l.failing:
		l.log.Info("what was learned of this machine's power is kept again", "path", l.file)
	}
	l.failing = err != nil
}
