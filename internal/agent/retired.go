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

// retiredRetention is for how long what a machine measured as another node is kept:
// until then it may become that node again.
const retiredRetention = 30 * 24 * time.Hour

// RetiredSpools are the spools of nodes that a machine was and is not any more, as when
// it was revoked or turned out to be a clone. What is in them can be sent as
// those nodes only.
type RetiredSpools struct {
	gaps []usage.Gap // of what is given up
	dirs []string    // that can go once the gaps are told
}

// FindRetiredSpools looks through the spools beside the one of cfg, which are named by their
// nodes. What is not sent and still young is told of in the log and kept; what is
// old is given up: it becomes a gap of the present node, and is removed after
// that.
func FindRetiredSpools(cfg spool.Config, now time.Time, log *slog.Logger) (p RetiredSpools) {
	parent, own := filepath.Split(cfg.Dir)
	entries, err := os.ReadDir(parent)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("cannot see whether this machine was another node", "err", err)
	}
	for _, e := range entries {
		cfg.Dir = filepath.Join(parent, e.Name())
		if _, err := os.Stat(filepath.Join(cfg.Dir, "lock")); err != nil || e.Name() == own {
			continue // no spool, or the present one
		}
		if err := p.addSpool(cfg, e.Name(), now, log); err != nil && !errors.Is(err, fault.ErrConflict) {
			log.Warn("what this machine measured as another node cannot be read; it is kept", "node", e.Name(), "path", cfg.Dir, "err", err)
		}
	}
	return p
}

// addSpool adds the spool of a node.
func (p *RetiredSpools) addSpool(cfg spool.Config, node string, now time.Time, log *slog.Logger) error {
	s, err := spool.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return err // fault.ErrConflict: another agent is that node
	}
	from, to, last := s.Unsent()
	if err := s.Close(); err != nil {
		return err
	}
	old := now.Sub(last) > retiredRetention
	switch {
	case old && !from.IsZero():
		log.Warn("what this machine measured as another node was never sent; it is given up, as a gap", "node", node, "from", from, "to", to, "path", cfg.Dir)
		p.gaps = append(p.gaps, usage.Gap{From: from, To: to, Reason: usage.Forgotten, Detail: "measured as node " + node + ", which this machine was before"})
	case !from.IsZero():
		log.Warn("what this machine measured as another node is not sent; it is kept for 30 days", "node", node, "from", from, "to", to, "path", cfg.Dir,
			"hint", "it can be sent as that node only: put its identity back, or remove the directory")
	}
	if old {
		p.dirs = append(p.dirs, cfg.Dir)
	}
	return nil
}

// remove removes what is given up.
func (p *RetiredSpools) remove(log *slog.Logger) {
	for _, dir := range p.dirs {
		if err := os.RemoveAll(dir); err != nil {
			log.Warn("the spool of a node that this machine was cannot be removed", "path", dir, "err", err)
			continue
		}
		log.Info("the spool of a node that this machine was is removed", "path", dir)
	}
}
