package sources

import (
	"log/slog"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// openScope finds out what of the machine the table shows. hidden is why it does not show all of
// it, if that is known.
func (m *Machine) openScope(hidden error, log *slog.Logger) (err error) {
	if m.extent, err = extentOf(m.host); err != nil || m.table.IsWhole() {
		return err
	}
	m.sources = append(m.sources, partial{})
	m.partial = "only the groups below this container's are seen; use outside of it counts for system"
	const message = "not all groups of the machine can be seen: use outside of this container counts for system, apportioned"
	if hidden == nil {
		m.notes = append(m.notes, m.partial)
		log.Info(message, "scope", string(m.extent.Scope), "why", "the configuration or the mounts show no more")
		return nil
	}
	m.notes = append(m.notes, m.partial+" ("+oneLine(hidden)+")")
	log.Warn(message, "scope", string(m.extent.Scope), "why", hidden, "hint", fault.Hint(hidden))
	return nil
}

// partial marks snapshots of a part of the machine.
type partial struct{}

func (partial) Read(s *usage.Snapshot) error {
	s.Node.Partial = true
	return nil
}

// Partial says what of the machine is not seen by name; "" if all is.
func (m *Machine) Partial() string { return m.partial }

// extentOf returns what of the kernel the CPU time of a machine's root group measures: in the
// hierarchy that counts it, v1 before v2. It is zero if the root has no id, as on most captured
// machines.
func extentOf(h *hostfs.FS) (usage.Extent, error) {
	ys, err := h.Hierarchies()
	if err != nil {
		return usage.Extent{}, err
	}
	root := ys[0]
	for _, y := range ys {
		if y.Has("cpuacct") {
			root = y
		}
	}
	id, err := h.ID(root.Mount)
	if err != nil {
		if h.Live() {
			return usage.Extent{}, err
		}
		return usage.Extent{}, nil
	}
	p := usage.Extent{Scope: usage.ScopeOf(id)}
	if p.Scope != usage.Machine {
		p.Ancestors = usage.AncestorsOf(root.ID) // what is above the mount is not seen
	}
	return p, nil
}
