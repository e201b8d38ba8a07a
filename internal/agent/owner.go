package agent

import (
	"fmt"
	"os"
	"path"
	"syscall"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/workload"
)

// ownsJob reports whether a peer may act for the job with this id: root always may. Otherwise the
// peer must be in the job's group, or own the group, which must be where mete run creates groups:
// below its own group or, with cgroup v2, beside it.
func ownsJob(h *hostfs.FS, p socket.Peer, id string) bool {
	if p.UID == 0 {
		return true
	}
	ys, err := h.Hierarchies()
	if err != nil {
		return false
	}
	b, err := h.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID))
	if err != nil {
		return false
	}
	members, err := procfmt.Cgroups(b)
	if err != nil {
		return false
	}
	for _, m := range members {
		if n, ok := workload.Recognize(m.Path); ok && n.Kind == workload.Job && n.Key == id {
			return true
		}
		for _, y := range ys {
			if int(y.ID) == m.Hierarchy && (ownsGroup(h, y, m.Path, p, id) || ownsGroup(h, y, path.Dir(m.Path), p, id)) {
				return true
			}
		}
	}
	return false
}

// ownsGroup reports whether the job's group is below a path and owned by the peer.
func ownsGroup(h *hostfs.FS, y hostfs.Hierarchy, below string, p socket.Peer, id string) bool {
	dir, ok := y.Dir(path.Join(below, "mete-run-"+id))
	if !ok {
		return false
	}
	info, err := os.Stat(h.Path(dir))
	st, ok := sysStat(info)
	return err == nil && ok && st.Uid == p.UID
}

func sysStat(info os.FileInfo) (*syscall.Stat_t, bool) {
	if info == nil {
		return nil, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return st, ok
}
