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

// powerModelInterval is the time between two writes of the power models.
const powerModelInterval = 5 * time.Minute

// A learner provides learned power models.
type powerModelSource interface{ PowerModels() []byte }

// powerModelFile is the file with the learned power models. It only improves accuracy after a
// start: without it the agent learns again.
type powerModelFile struct {
	file    string // "" disables it
	next    int64  // next write, ns of CLOCK_BOOTTIME
	failing bool
	log     *slog.Logger
}

// read returns the content of the file, or nil.
func (f *powerModelFile) read() []byte {
	if f.file == "" {
		return nil
	}
	b, err := os.ReadFile(f.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.log.Warn("the power models of this machine cannot be read; learning again", "path", f.file, "err", err)
	}
	return b
}

// handleRefusal logs why the models are not used, and renames a corrupt file.
func (f *powerModelFile) handleRefusal(why error) {
	switch {
	case why == nil:
	case errors.Is(why, fault.ErrInvalid):
		aside := f.file + ".broken"
		err := os.Rename(f.file, aside)
		f.log.Warn("the power models of this machine are corrupt and renamed; learning again", "path", aside, "why", why, "err", err)
	default:
		f.log.Info("learning the power of this machine again", "path", f.file, "why", why)
	}
}

// saveIfDue writes the file if it is due at now, ns of CLOCK_BOOTTIME; the first time some minutes
// after the start.
func (f *powerModelFile) saveIfDue(now int64, m powerModelSource) {
	if f.next == 0 {
		f.next = now + int64(powerModelInterval)
	}
	if now >= f.next {
		f.next = now + int64(powerModelInterval)
		f.save(m)
	}
}

// save writes the file, and logs when that begins to fail and when it recovers.
func (f *powerModelFile) save(m powerModelSource) {
	if f.file == "" {
		return
	}
	err := os.MkdirAll(filepath.Dir(f.file), 0o700)
	if err == nil {
		err = atomicfile.Replace(f.file, m.PowerModels())
	}
	switch {
	case err != nil && !f.failing:
		f.log.Warn("the power models of this machine cannot be saved; retrying", "path", f.file, "err", err)
	case err == nil && f.failing:
		f.log.Info("the power models of this machine are saved again", "path", f.file)
	}
	f.failing = err != nil
}
