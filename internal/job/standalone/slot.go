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
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// maxSlots is how many jobs may run at once.
const maxSlots = 4096

// A slot is a spool that one job at a time has.
type slot struct {
	sender *Sender
	dir    string
	spool  *spool.Spool
}

// debt is the file in a slot that says that somebody owes something: it is there
// from the start of a job until all of it has been sent.
type debt struct {
	Job   string    `json:"job"` // id
	Name  string    `json:"name"`
	Began time.Time `json:"began"`
	Ended bool      `json:"ended"` // and all of it is in the spool
}

// state goes with each window, so that it is known of a job that was left alone
// up to when its figures are.
type state struct {
	Job     string    `json:"job"`
	Through time.Time `json:"through"`
	Boot    string    `json:"boot"`
	End     int64     `json:"end"` // of the window, ns of CLOCK_BOOTTIME
}

func (o *Sender) slotDir(n int) string {
	return filepath.Join(o.dir, "spool", o.id.Node(), strconv.Itoa(n))
}

// acquireSlot takes the first slot that is free for windows from since on, in ns of
// CLOCK_BOOTTIME: windows of a slot do not overlap.
func (o *Sender) acquireSlot(since int64) (*slot, error) {
	for n := range maxSlots {
		s, err := o.openSlot(o.slotDir(n))
		if errors.Is(err, fault.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if st := s.lastState(); st.Boot != o.boot || st.End <= since {
			return s, nil
		}
		if err := s.spool.Close(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: %d jobs run: %w", o.dir, maxSlots, fault.ErrConflict)
}

// openSlot takes a slot. The error wraps fault.ErrConflict where another one has it.
func (o *Sender) openSlot(dir string) (*slot, error) {
	cfg := o.cfg.Spool
	cfg.Dir = dir
	sp, err := spool.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	s := &slot{o, dir, sp}
	if err := s.recover(); err != nil {
		return nil, errors.Join(err, sp.Close())
	}
	return s, nil
}

// recover books what is not known of a job whose mete run was killed.
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
	// A gap goes with a window; nobody used anything in this one.
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

// lastState is how far the slot's windows go.
func (s *slot) lastState() (st state) {
	list := s.spool.Checkpoint()
	if len(list) == 0 || json.Unmarshal(list[len(list)-1], &st) != nil {
		return state{}
	}
	return st
}

// append puts a window of a job into the spool.
func (s *slot) append(w *usage.Window, names []batch.Name, job string) error {
	b, err := json.Marshal(state{job, time.Unix(0, w.End+w.Offset).UTC(), w.Boot, w.End})
	if err != nil {
		return err
	}
	sent := wire.Prepare(w)
	return s.spool.Append(&sent, names, w.Gaps, func(bool) []byte { return b })
}

// readDebt reads the debt; a zero one is none. One that cannot be read was not
// written to its end, by a job that had just begun.
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

// writeDebt writes the debt. It is not forced to the disk, as it is about what a job's
// windows, which are, do not say.
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

// close lets go of the slot, and of its debt where all was sent.
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

// sendOthers sends what is left in slots that nobody has, but for the first that
// fails.
func (o *Sender) sendOthers(ctx context.Context) error {
	list, err := filepath.Glob(filepath.Join(filepath.Dir(o.slotDir(0)), "*", debtName))
	if err != nil {
		return err
	}
	for _, file := range list {
		s, err := o.openSlot(filepath.Dir(file))
		if errors.Is(err, fault.ErrConflict) {
			continue
		}
		if err != nil {
			return err
		}
		err = o.flush(ctx, s)
		if err = errors.Join(err, s.close()); err != nil {
			return err
		}
	}
	return nil
}
