package workload

import (
	"strconv"
	"strings"
)

// A Name is what a control group's path says about its workload.
type Name struct {
	// Kind is never Unknown in a result of Recognize.
	Kind Kind
	// Key outlives the group where its maker gave it a name of its own:
	//
	//   - Container: the runtime's id, 64 hexadecimal digits; the name for LXC
	//     and systemd-nspawn.
	//   - Pod: the UID as a UUID in its canonical dashed form, also for static
	//     pods, whose UIDs the kubelet writes without dashes; for pods of
	//     Podman the 64 hexadecimal digits of their id.
	//   - SlurmJob and SlurmStep: "cluster/job" and "cluster/job/step". No path
	//     tells the cluster, so it is empty here: "/123/batch".
	//   - Job: the id that mete run gave it; see [JobKey] for those of other users.
	//
	// Otherwise, and if the manager that assigned the key is inside a container or belongs to one
	// user, so that the key may not be unique on the machine, it is "": boot id and path are used
	// instead.
	Key string
	// Name is for display: unescaped, printable, not unique.
	Name string
	// Runtime is the runtime of a container, pod or virtual machine, or "" if the path does not
	// tell.
	Runtime string
}

// Recognize returns the workload of the control group at path, which is absolute below its
// hierarchy's root, as in /proc/PID/cgroup.
//
// It describes the last element only; the elements above are context. It returns false for a group
// that no recognizer names, such as a task of a Slurm step or the emulator thread of a virtual
// machine: the caller folds it into the nearest named group above or, without one, names it by
// [NameFromPath].
//
// A group inside a container may be named too, as a unit of the container's systemd. Several groups
// of one machine may have the same Name: one workload's groups in several v1 hierarchies, or a
// Slurm step under two slurmd.
func Recognize(path string) (Name, bool) {
	g := split(path)
	if len(g) == 0 {
		return Name{}, false
	}
	for _, recognizer := range [...]func(group) (Name, bool){
		runJob, kubernetes, container, lxc, machine, slurm, unit,
	} {
		if n, ok := recognizer(g); ok {
			// A recognizer that returns no kind knows the group as a part of the one above, such as
			// a container's monitor.
			return n, n.Kind != Unknown
		}
	}
	return Name{}, false
}

// NameFromPath returns the name of a group known by its path only.
func NameFromPath(path string) Name { return Name{Kind: Path, Name: readable(path)} }

// Workload returns the workload of this name on a node. The boot id is used only if the name has no
// key.
func (n Name) Workload(node, boot, path string) Workload {
	key := n.Key
	if key == "" {
		key = boot + path
	}
	return Workload{ID: NewID(node, n.Kind, key), Kind: n.Kind, Key: key, Name: n.Name, Path: path}
}

// A group is a path split into elements, the topmost first.
type group []string

// split splits a path, ignoring empty elements.
func split(path string) group {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// up returns the element n levels above the last one, or "" above the top.
func (g group) up(n int) string {
	if n >= len(g) {
		return ""
	}
	return g[len(g)-1-n]
}

// runJob recognizes the groups of mete run: mete-run-<id>, and mete-run-<id>.scope of systemd.
func runJob(g group) (Name, bool) {
	id, ok := strings.CutPrefix(strings.TrimSuffix(g.up(0), ".scope"), "mete-run-")
	if !ok || len(id) != 26 || !allBytes(id, isCrockford) {
		return Name{}, false
	}
	// The id begins with the time, which is similar for jobs started together.
	return Name{Kind: Job, Key: id, Name: "run " + id[len(id)-6:]}, true
}

// JobKey returns the key of the job of mete run with this id, in a group that a user named: the id
// for root, otherwise id@uid. So no user can create a group that counts for the job of another.
func JobKey(id string, uid uint32) string {
	if uid == 0 {
		return id
	}
	return id + "@" + strconv.FormatUint(uint64(uid), 10)
}

func isHex(c byte) bool   { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// isCrockford reports whether c is in Crockford's base 32 in lower case, used for job ids.
func isCrockford(c byte) bool {
	return strings.IndexByte("0123456789abcdefghjkmnpqrstvwxyz", c) >= 0
}

// allBytes reports whether s is not empty and all bytes are of the class.
func allBytes(s string, class func(byte) bool) bool {
	for i := range len(s) {
		if !class(s[i]) {
			return false
		}
	}
	return s != ""
}

// IsContainerID reports whether s is an id of OCI runtimes: 64 hexadecimal digits.
func IsContainerID(s string) bool { return len(s) == 64 && allBytes(s, isHex) }

// between removes prefix and suffix from s; ok is false if s lacks one.
func between(s, prefix, suffix string) (string, bool) {
	if len(s) < len(prefix)+len(suffix) || !strings.HasPrefix(s, prefix) || !strings.HasSuffix(s, suffix) {
		return "", false
	}
	return s[len(prefix) : len(s)-len(suffix)], true
}
