package cgroup

import "mete.dev/mete/internal/model/workload"

// recognize returns the name of the group at path p of a tree. It has a key only if root gave the
// group its name: in a group that is delegated to a user, that user can give groups the names of
// other containers, pods and jobs. A job there has a key of that user; other workloads have none, so
// that boot id and path identify them.
func (t *Table) recognize(tr *tree, p string) (workload.Name, bool) {
	name, ok := workload.Recognize(p)
	if !ok || name.Key == "" {
		return name, ok
	}
	switch uid, err := t.host.Maker(tr.Mount, p); {
	case err == nil && uid == 0:
	case err == nil && name.Kind == workload.Job:
		name.Key = workload.JobKey(name.Key, uid)
	default:
		name.Key = ""
	}
	return name, true
}
