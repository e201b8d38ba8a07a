package machine

import (
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
)

// scopeOf returns the scope that the CPU time of a machine's root group has: of the
// hierarchy that counts it, v1 before v2. It is "" if the root has no id, as on most captured
// machines.
func scopeOf(h *hostfs.FS) (usage.Scope, error) {
	ys, err := h.Hierarchies()
	if err != nil {
		return "", err
	}
	root := ys[0].Mount
	for _, y := range ys {
		if y.Has("cpuacct") {
			root = y.Mount
		}
	}
	id, err := h.ID(root)
	if err != nil {
		if h.Live() {
			return "", err
		}
		return "", nil
	}
	return usage.ScopeOf(id), nil
}
