package workload

import "strings"

// A Name is what a control group's path says about the workload that it is.
type Name struct {
	// Kind is never Unknown in a Name that Recognize gives.
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
	//   - Job: the id that mete run gave it.
	//
	// Otherwise, and where the manager that knows the key is itself inside a
	// container or belongs to one user, so that two could use the same key on
	// one machine, it is "": boot id and path stand for it.
	Key string
	// Name is for people: unescaped, printable, not unique.
	Name string
	// Runtime is what runs a container, pod or virtual machine, "" where the
	// path does not tell.
	Runtime string
}

// Recognize says which workload the control group at path is. The path is
// absolute below its hierarchy's root, as in /proc/PID/cgroup.
//
// It is asked for each group by itself and speaks of the last element only;
// the elements above are its context. It returns false for a group that no
// recognizer names, such as a task of a Slurm step or the emulator thread of a
// virtual machine: the caller folds that into the nearest named group above,
// and where there is none the group is named [NameFromPath].
//
// A group inside a container may be named too, as a unit of the systemd that
// runs in there. The same Name may be given to several groups of one machine:
// to one workload's groups in several v1 hierarchies, and to a Slurm step that
// runs under two slurmd of the machine.
func Recognize(path string) (Name, bool) {
	g := split(path)
	if len(g) == 0 {
		return Name{}, false
	}
	for _, recognizer := range [...]func(group) (Name, bool){
		runJob, kubernetes, container, lxc, machine, slurm, unit,
	} {
		if n, ok := recognizer(g); ok {
			// A recognizer that knows a group but gives it no kind says that
			// it is a part of what is above, as a container's monitor is.
			return n, n.Kind != Unknown
		}
	}
	return Name{}, false
}

// NameFromPath is the name of a group of which only the path is known.
func NameFromPath(path string) Name { return Name{Kind: Path, Name: readable(path)} }

// Workload makes the workload of this name on a node. The boot id counts only
// where the name has no key of its own.
func (n Name) Workload(node, boot, path string) Workload {
	key := n.Key
	if key == "" {
		key = boot + path
	}
	return Workload{ID: NewID(node, n.Kind, key), Kind: n.Kind, Key: key, Name: n.Name, Path: path}
}

// A group is a path as its elements, the topmost first.
type group []string

// split cuts a path at its slashes; empty elements do not count.
func split(path string) group {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// up returns the element n levels above the last one, "" above the top.
func (g group) up(n int) string {
	if n >= len(g) {
		return ""
	}
	return g[len(g)-1-n]
}

// runJob recognizes the groups that mete run makes: mete-run-<id>, and
// mete-run-<id>.scope where systemd makes it.
func runJob(g group) (Name, bool) {
	id, ok := strings.CutPrefix(strings.TrimSuffix(g.up(0), ".scope"), "mete-run-")
	if !ok || len(id) != 26 || !allBytes(id, isCrockford) {
		return Name{}, false
	}
	// The beginning of the id is the time, alike in jobs that start together.
	return Name{Kind: Job, Key: id, Name: "run " + id[len(id)-6:]}, true
}

func isHex(c byte) bool   { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// isCrockford says whether c is of Crockford's base 32 in lower case, in which
// the ids of jobs are written.
func isCrockford(c byte) bool {
	return strings.IndexByte("0123456789abcdefghjkmnpqrstvwxyz", c) >= 0
}

// allBytes says whether s has at least one byte and each is of the class.
func allBytes(s string, class func(byte) bool) bool {
	for i := range len(s) {
		if !class(s[i]) {
			return false
		}
	}
	return s != ""
}

// isID64 says whether s is the id that OCI runtimes give: 64 hexadecimal digits.
func isID64(s string) bool { return len(s) == 64 && allBytes(s, isHex) }

// between cuts prefix and suffix off s, or fails if s has not both.
func between(s, prefix, suffix string) (string, bool) {
	if len(s) < len(prefix)+len(suffix) || !strings.HasPrefix(s, prefix) || !strings.HasSuffix(s, suffix) {
		return "", false
	}
	return s[len(prefix) : len(s)-len(suffix)], true
}
