package hostfs

import (
	"errors"
	"path"

	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
)

// MemoryLimit returns how much memory this process may use, in bytes: the least of the
// machine's memory and the limits of its control groups.
func (h *FS) MemoryLimit() (int64, error) {
	b, err := h.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	mem, err := procfmt.Meminfo(b)
	if err != nil {
		return 0, err
	}
	least := mem.Total
	list, err := h.Hierarchies()
	if errors.Is(err, fault.ErrUnsupported) {
		return least, nil
	}
	if err != nil {
		return 0, err
	}
	for _, y := range list {
		if !y.Has("memory") || y.Self == "" {
			continue
		}
		name := "memory.limit_in_bytes"
		if y.V2 {
			name = "memory.max"
		}
		for group := y.Self; ; group = path.Dir(group) {
			dir, ok := y.Dir(group)
			if !ok {
				break
			}
			// The root group has no limit.
			if b, err := h.ReadFile(path.Join(dir, name)); err == nil {
				if v, err := procfmt.Int(b); err == nil {
					least = min(least, v)
				}
			}
			if group == "/" {
				break
			}
		}
	}
	return least, nil
}
