package agent

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// retiredRetention is how long the spools of former node ids are kept: until then the machine may
// become that node again.
const retiredRetention = 30 * 24 * time.Hour

// RetiredSpools holds undelivered data of this machine's former node ids (revoked or cloned). It
// can be sent only as those nodes.
type RetiredSpools struct {
	gaps []usage.Gap // of expired spools
	dirs []string    // to remove once the gaps are stored
}

// FindRetiredSpools searches the directories beside the spool of cfg, which are named by node id.
// It logs and keeps recent unsent data. Expired data becomes a gap of the present node, and its
// spool is removed after that.
func FindRetiredSpools(cfg spool.Config, now time.Time, log *slog.Logger) (p RetiredSpools) {
	parent, own := filepath.Split(cfg.Dir)
	entries, err := os.ReadDir(parent)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("cannot check for spools of former node ids", "err", err)
	}
	for _, e := range entries {
		cfg.Dir = filepath.Join(parent, e.Name())
		if _, err := os.Stat(filepath.Join(cfg.Dir, "lock")); err != nil || e.Name() == own {
			continue // not a spool, or the present one
		}
		if err := p.addSpool(cfg, e.Name(), now, log); err != nil && !errors.Is(err, fault.ErrConflict) {
			log.Warn("the spool of a former node id cannot be read; it is kept", "node", e.Name(), "path", cfg.Dir, "err", err)
		}
	}
	return p
}

func (r *RetiredSpools) addSpool(cfg spool.Config, node string, now time.Time, log *slog.Logger) error {
	s, err := spool.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return err // fault.ErrConflict: in use by another agent
	}
	from, to, last := s.Unsent()
	if err := s.Close(); err != nil {
		return err
	}
	old := now.Sub(last) > retiredRetention
	switch {
	case old && !from.IsZero():
		log.Warn("data of a former node id was never sent and has expired; it becomes a gap", "node", node, "from", from, "to", to, "path", cfg.Dir)
		r.gaps = append(r.gaps, usage.Gap{From: from, To: to, Reason: usage.Forgotten, Detail: "measured as node " + node + ", which this machine was before"})
	case !from.IsZero():
		log.Warn("data of a former node id is not sent; it is kept for 30 days", "node", node, "from", from, "to", to, "path", cfg.Dir,
			"hint", "it can be sent only as that node: restore its identity, or remove the directory")
	}
	if old {
		r.dirs = append(r.dirs, cfg.Dir)
	}
	return nil
}

// remove removes expired spools.
func (r *RetiredSpools) remove(log *slog.Logger) {
	for _, dir := range r.dirs {
		if err := os.RemoveAll(dir); err != nil {
			log.Warn("the spool of a former node id cannot be removed", "path", dir, "err", err)
			continue
		}
		log.Info("removed the spool of a former node id", "path", dir)
	}
}
