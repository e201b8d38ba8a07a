package cgroup

import (
	"cmp"

	"mete.dev/mete/internal/model/usage"
)

// Owner returns the workload that a process counts for, given its group's path, as in
// kernel files, in the hierarchy that counts CPU time; nil if the group is not known.
func (t *Table) Owner(path string) *usage.Group {
	tr := t.byRole[roleCPU]
	dir, ok := tr.Dir(path)
	if !ok {
		return nil
	}
	n := tr.byPath[cmp.Or(dir[len(tr.Mount):], "/")]
	if n == nil {
		return nil
	}
	return &n.owner.group
}
