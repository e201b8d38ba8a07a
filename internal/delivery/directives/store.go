package directives

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/directive"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/atomicfile"
)

// fileVersion is the version of the file's format.
const fileVersion = 1

// stored is the file of a follower. It is JSON after a line with a checksum, so that a wrong bit changes neither an epoch nor
// a time unnoticed.
type stored struct {
	Version  int             `json:"version"`
	Node     string          `json:"node"`
	Boot     string          `json:"boot"`
	Boottime int64           `json:"boottime_ns"` // when it was written
	Wall     int64           `json:"wall_ns"`     // the same
	Sections []storedSection `json:"sections"`
}

type storedSection struct {
	directive.Section
	Left    int64  `json:"left_ns"`           // until it expires
	Content []byte `json:"content,omitempty"` // base64; none after it expired
}

// load reads the file. Without it nothing holds until the server says so.
func (f *Follower) load() {
	in, err := f.read()
	now, clockErr := f.clock()
	if err == nil {
		err = clockErr
	}
	switch {
	case err != nil:
		f.log.Warn("the directives on disk cannot be used; requesting them from the server", "path", f.cfg.File, "err", err)
		return
	case in.Node != f.cfg.Node:
		return // there is none, or it is of another identity
	}
	// CLOCK_BOOTTIME begins again with each boot; what passed since then, the wall clock says.
	passed := now.Boottime - in.Boottime
	if in.Boot != now.Boot {
		passed = max(0, now.Wall-in.Wall)
	}
	if f.stale = in.Boot != now.Boot; !f.stale {
		f.savedAt = in.Boottime
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range in.Sections {
		apply := f.apply[s.Name]
		if apply == nil {
			continue // of a newer program
		}
		h := &held{s.Section, s.Content, now.Boottime + s.Left - passed}
		f.sections[s.Name] = h // also if it expired, for its epoch
		switch {
		case s.Content == nil:
		case h.until <= now.Boottime:
			f.drop(h)
		default:
			if err := apply(s.Content); err != nil {
				h.content = nil
				f.log.Warn("a directive on disk cannot be followed", "section", s.Name, "err", err)
			}
		}
	}
}

// read reads the file; the result is zero if there is no file.
func (f *Follower) read() (in stored, err error) {
	b, err := os.ReadFile(f.cfg.File) // "" is not the name of one
	if errors.Is(err, fs.ErrNotExist) {
		return in, nil
	}
	if err == nil {
		b, err = unseal(b)
	}
	if err == nil {
		err = json.Unmarshal(b, &in)
	}
	if err == nil && in.Version != fileVersion {
		err = fmt.Errorf("version %d: %w", in.Version, fault.ErrUnsupported)
	}
	return in, err
}

// seal returns b after a line with its checksum.
func seal(b []byte) []byte { return append([]byte(directive.HashOf(b)+"\n"), b...) }

// unseal returns what seal took. The error wraps fault.ErrInvalid if the checksum is wrong.
func unseal(sealed []byte) ([]byte, error) {
	sum, b, _ := bytes.Cut(sealed, []byte("\n"))
	if string(sum) != directive.HashOf(b) {
		return nil, fmt.Errorf("its checksum is wrong: %w", fault.ErrInvalid)
	}
	return b, nil
}

// saveParts is in how many parts of the shortest life the file is written although only the time of the confirmation changed.
const saveParts = 24

// save writes the file if something changed, or if what is confirmed since it was written would matter after a restart. It
// reports an error once: the directives hold without the file.
func (f *Follower) save(now batch.Clock, changed bool) {
	out := stored{Version: fileVersion, Node: f.cfg.Node, Boot: now.Boot, Boottime: now.Boottime, Wall: now.Wall, Sections: []storedSection{}}
	f.mu.Lock()
	due := changed || f.unsaved || f.stale
	for _, h := range f.sections {
		out.Sections = append(out.Sections, storedSection{h.Section, h.until - now.Boottime, h.content})
		due = due || h.content != nil && time.Duration(now.Boottime-f.savedAt) >= h.Lifetime()/saveParts
	}
	f.mu.Unlock()
	if !due || f.cfg.File == "" {
		return
	}
	b, err := json.Marshal(out)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(f.cfg.File), 0o700)
	}
	if err == nil {
		err = atomicfile.Replace(f.cfg.File, seal(b))
	}
	switch {
	case err != nil && !f.unsaved:
		f.log.Warn("the directives cannot be kept on disk; they hold until the agent ends", "path", f.cfg.File, "err", err)
	case err == nil:
		f.savedAt, f.stale = now.Boottime, false
	}
	f.unsaved = err != nil
}

// expire ends sections whose time is over.
func (f *Follower) expire(now batch.Clock) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.sections {
		if h.content != nil && h.until <= now.Boottime {
			f.drop(h)
		}
	}
}

// drop ends a section. Its epoch stays. The caller holds mu.
func (f *Follower) drop(h *held) {
	h.content, f.tag = nil, ""
	f.log.Warn("a directive expired, as the server did not confirm it", "section", h.Name, "life", h.Lifetime())
	if err := f.apply[h.Name](nil); err != nil {
		f.log.Error("an expired directive cannot be given up (bug)", "section", h.Name, "err", err)
	}
}

// A SectionStatus is the state of a section.
type SectionStatus struct {
	Name  string        `json:"name"`
	Epoch int64         `json:"epoch"`
	Left  time.Duration `json:"left_ns"` // until it expires; 0 if it expired, or was never taken
	// Rejected is why the server's latest version is not followed; "" if it is.
	Rejected string `json:"rejected,omitempty"`
}

// Status returns the sections by name: those that were taken, and those that are not followed. It is safe for concurrent use.
func (f *Follower) Status() []SectionStatus {
	now, err := f.clock()
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]*SectionStatus{}
	for name, h := range f.sections {
		if _, rejected := f.rejected[name]; h.content == nil && !rejected && f.listed != nil && !f.listed[name] {
			continue // the server withdrew it
		}
		all[name] = &SectionStatus{Name: name, Epoch: h.Epoch}
		if h.content != nil && err == nil {
			all[name].Left = time.Duration(max(0, h.until-now.Boottime))
		}
	}
	for name, r := range f.rejected {
		if all[name] == nil {
			all[name] = &SectionStatus{Name: name}
		}
		all[name].Rejected = r.why
	}
	out := make([]SectionStatus, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, *all[name])
	}
	return out
}
