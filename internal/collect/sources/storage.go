package sources

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/collect/storage"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// diskSpace sets the disk space of the containers and pods of a snapshot, and of persistent volumes.
type diskSpace struct {
	table  *storage.Table
	groups *cgroup.Table
	pods   map[usage.Slot]string // UIDs
}

// Read implements sampler.Source.
func (d *diskSpace) Read(s *usage.Snapshot) error {
	s.Volumes = d.table.Volumes()
	for _, g := range s.Groups {
		if g.Workload.Kind != workload.Container && g.Workload.Kind != workload.Pod {
			continue
		}
		if g.New && !g.Final {
			d.track(g)
		}
		sign := storage.Sign{CPU: g.Value[usage.CPU], Written: g.Value[usage.DiskWritten]}
		bytes, ok := d.table.Use(g.Slot, sign, s.At)
		switch {
		case ok:
			g.Storage = usage.KnownLevel(bytes)
		case !g.Final: // else it keeps its figure
			g.Storage = 0
		}
		if g.Final {
			d.table.Forget(g.Slot)
			delete(d.pods, g.Slot)
		}
	}
	return nil
}

func (d *diskSpace) track(g *usage.Group) {
	x := storage.Target{Slot: g.Slot, Kind: g.Workload.Kind, Key: g.Workload.Key, Hierarchy: *d.groups.Hierarchy(g.Slot), Path: g.Workload.Path, ID: g.Life.ID}
	if x.Kind == workload.Pod {
		d.pods[g.Slot] = x.Key
	} else {
		x.Pod = d.pods[g.Parent]
	}
	d.table.Track(x)
}

// openStorage opens the source of disk space.
func (m *Machine) openStorage(cfg storage.Config, log *slog.Logger) error {
	if cfg == (storage.Config{}) {
		cfg.Mode = storage.Off
	}
	t, err := storage.Open(m.host, cfg, log)
	if err != nil {
		return err
	}
	m.storage = t
	m.closers = append(m.closers, t.Close)
	if why := t.Reason(); why == "" {
		m.sources = append(m.sources, &diskSpace{table: t, groups: m.table, pods: map[usage.Slot]string{}})
	} else if cfg.Mode == storage.Auto {
		m.notes = append(m.notes, "disk space: absent ("+why+")")
	}
	return nil
}

// StorageNotes says of how many containers and pods the disk space can be measured, and why not of others. It may take long.
func (m *Machine) StorageNotes() (found, all int, notes []string) {
	if why := m.storage.Reason(); why != "" {
		return 0, 0, []string{why}
	}
	s := m.storage.Survey()
	for _, why := range slices.SortedFunc(maps.Keys(s.Reasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.Reasons[b], s.Reasons[a]), cmp.Compare(a, b))
	}) {
		notes = append(notes, fmt.Sprintf("%d: %s", s.Reasons[why], why))
	}
	return s.Found, s.All, notes
}
