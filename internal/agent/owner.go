package agent

import (
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/workload"
)

// jobKey returns the key of the job with this id that a peer may act for, or "" if there is none:
// that of the group in which the peer is, or that the peer's user owns where mete run creates
// groups: below the peer's own group or, with cgroup v2, beside it. The key is of the user who named
// that very group, so another group with the same id is another job. Root may act for jobs whose
// groups are elsewhere too.
func jobKey(h *hostfs.FS, p socket.Peer, id string) string {
	key, err := jobKeyNear(h, p, id)
	if err != nil || key == "" && p.UID == 0 {
		key = ""
		if p.UID == 0 {
			key = workload.JobKey(id, 0)
		}
	}
	return key
}

func jobKeyNear(h *hostfs.FS, p socket.Peer, id string) (string, error) {
	ys, err := h.Hierarchies()
	if err != nil {
		return "", err
	}
	b, err := h.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID))
	if err != nil {
		return "", err
	}
	members, err := procfmt.Cgroups(b)
	if err != nil {
		return "", err
	}
	for _, m := range members {
		for _, y := range ys {
			if int(y.ID) != m.Hierarchy {
				continue
			}
			at := y.Absolute(m.Path)
			if n, ok := workload.Recognize(at); ok && n.Kind == workload.Job && n.Key == id {
				if key := keyOfGroup(h, y, at, id); key != "" {
					return key, nil
				}
			}
			for _, above := range []string{at, path.Dir(at)} {
				group := path.Join(above, "mete-run-"+id)
				if key := keyOfGroup(h, y, group, id); key != "" && (p.UID == 0 || isOwner(h, y, group, p.UID)) {
					return key, nil
				}
			}
		}
	}
	return "", nil
}

// keyOfGroup returns the key of the job with this id in a group, or "" if the group does not exist.
func keyOfGroup(h *hostfs.FS, y hostfs.Hierarchy, group, id string) string {
	dir, ok := y.Dir(group)
	if !ok {
		return ""
	}
	if _, err := os.Stat(h.Path(dir)); err != nil {
		return ""
	}
	below, _ := strings.CutPrefix(dir, y.Mount)
	uid, err := h.Maker(y.Mount, below)
	if err != nil {
		return ""
	}
	return workload.JobKey(id, uid)
}

// isOwner reports whether a user owns a group.
func isOwner(h *hostfs.FS, y hostfs.Hierarchy, group string, uid uint32) bool {
	dir, ok := y.Dir(group)
	if !ok {
		return false
	}
	info, err := os.Stat(h.Path(dir))
	st, ok := sysStat(info)
	return err == nil && ok && st.Uid == uid
}

func sysStat(info os.FileInfo) (*syscall.Stat_t, bool) {
	if info == nil {
		return nil, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return st, ok
}
