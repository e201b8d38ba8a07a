package standalone

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// maxSlots is the maximum number of concurrent jobs.
const maxSlots = 4096

// A slot is a spool that belongs to one job at a time.
type slot struct {
	sender *Sender
	dir    string
	spool  *spool.Spool
}

// A debt is the content of a file that marks a slot with unsent data. The file exists from the start
// of a job until everything has been sent.
type debt struct {
	Job   string    `json:"job"` // id
	Name  string    `json:"name"`
	Began time.Time `json:"began"`
	Ended bool      `json:"ended"` // everything is in the spool
}

// A state is stored with each window. If the process that measures a job is killed, the state shows
// where the job's figures end.
type state struct {
	Job     string    `json:"job"`
	Through time.Time `json:"through"`
	Boot    string    `json:"boot"`
	End     int64     `json:"end"` // of the window, ns of CLOCK_BOOTTIME
}

func (s *Sender) slotDir(n int) string {
	return filepath.Join(s.dir, "spool", s.id.Node(), strconv.Itoa(n))
}

// acquireSlot takes the first free slot whose last window ended no later than since, in ns of
// CLOCK_BOOTTIME, because windows of a slot must not overlap.
func (s *Sender) acquireSlot(since int64) (*slot, error) {
	for n := range maxSlots {
		sl, err := s.openSlot(s.slotDir(n))
		if errors.Is(err, fault.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if st := sl.lastState(); st.Boot != s.boot || st.End <= since {
			return sl, nil
		}
		if err := sl.spool.Close(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: %d jobs run: %w", s.dir, maxSlots, fault.ErrConflict)
}

// openSlot opens a slot. The error wraps fault.ErrConflict if another process has it.
func (s *Sender) openSlot(dir string) (*slot, error) {
	cfg := s.cfg.Spool
	cfg.Dir = dir
	sp, err := spool.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	sl := &slot{s, dir, sp}
	if err := sl.recover(); err != nil {
		return nil, errors.Join(err, sp.Close())
	}
	return sl, nil
}

// recover books a gap for a job whose mete run was killed.
func (s *slot) recover() error {
	d, err := s.readDebt()
	if err != nil || d.Ended || d.Job == "" {
		return err
	}
	from := d.Began
	if st := s.lastState(); st.Job == d.Job {
		from = st.Through
	}
	at, err := s.sender.h.Clocks()
	if err != nil {
		return err
	}
	// A gap is sent with a window; this one is empty.
	w := usage.Window{Boot: s.sender.boot, Start: at.Boottime - 1, End: at.Boottime, Offset: at.Realtime - at.Boottime, Gaps: []usage.Gap{{
		From: from, To: time.Unix(0, at.Realtime).UTC(), Reason: usage.Killed,
		Detail: fmt.Sprintf("mete run of the job %s (%s)", d.Name, d.Job),
	}}}
	if err := s.append(&w, nil, ""); err != nil {
		return err
	}
	d.Ended = true
	return s.writeDebt(d)
}

// lastState returns the state of the slot's last window; zero if there is none.
func (s *slot) lastState() (st state) {
	list := s.spool.Checkpoint()
	if len(list) == 0 || json.Unmarshal(list[len(list)-1], &st) != nil {
		return state{}
	}
	return st
}

// append stores a window of a job in the spool.
func (s *slot) append(w *usage.Window, names []batch.Name, job string) error {
	b, err := json.Marshal(state{job, time.Unix(0, w.End+w.Offset).UTC(), w.Boot, w.End})
	if err != nil {
		return err
	}
	return s.spool.Append(w, names, w.Gaps, func(bool) []byte { return b }, nil)
}

// readDebt reads the debt; zero if there is none. A corrupt one counts as none: the file is not
// synced, so the machine crashed soon after it was written.
func (s *slot) readDebt() (d debt, err error) {
	b, err := os.ReadFile(s.debtFile())
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err == nil && json.Unmarshal(b, &d) != nil {
		d = debt{}
	}
	return d, err
}

// writeDebt writes the debt. It is not synced: the job's windows, which are, have the essential
// data.
func (s *slot) writeDebt(d debt) error {
	b, err := json.Marshal(d)
	if err != nil {
		return err
	}
	temp := s.debtFile() + ".new"
	if err := os.WriteFile(temp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, s.debtFile())
}

func (s *slot) debtFile() string { return filepath.Join(s.dir, debtName) }

const debtName = "debt.json"

// close closes the slot, and removes its debt if everything was sent.
func (s *slot) close() error {
	err := s.spool.Maintain(time.Now())
	waits := slices.ContainsFunc(s.spool.Streams(), func(st spool.Status) bool { return !st.Oldest.IsZero() })
	if !waits {
		if rerr := os.Remove(s.debtFile()); !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return errors.Join(err, s.spool.Close())
}

// sendOthers sends what is left in unused slots until one fails.
func (s *Sender) sendOthers(ctx context.Context) error {
	// A glob does not do: the name of the directory may have brackets, as that of an IPv6 address.
	slots := filepath.Dir(s.slotDir(0))
	list, err := os.ReadDir(slots)
	if err != nil {
		return err
	}
	for _, e := range list {
		dir := filepath.Join(slots, e.Name())
		if _, err := os.Stat(filepath.Join(dir, debtName)); err != nil {
			continue
		}
		sl, err := s.openSlot(dir)
		if errors.Is(err, fault.ErrConflict) {
			continue
		}
		if err != nil {
			return err
		}
		err = s.flush(ctx, sl)
		if err = errors.Join(err, sl.close()); err != nil {
			return err
		}
	}
	return nil
}
