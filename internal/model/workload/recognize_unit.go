package workload

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// slurm recognizes Slurm jobs and steps; the groups below a step, one for each task, are folded
// into it. The forms are those of src/plugins/cgroup/v1/cgroup_v1.c (slurm/uid_N/job_N/step_X,
// slurm_NODE with several slurmd) and v2/cgroup_v2.c (slurmstepd.scope/job_N/step_X,
// NODE_slurmstepd.scope).
func slurm(g group) (Name, bool) {
	if uid, ok := strings.CutPrefix(g.up(0), "uid_"); ok && isSlurmV1(g.up(1)) && allBytes(uid, isDigit) {
		return Name{Kind: User, Name: "user " + uid}, true
	}
	if id, key, ok := slurmJob(g); ok {
		return Name{Kind: SlurmJob, Key: key, Name: "job " + id}, true
	}
	step, ok := strings.CutPrefix(g.up(0), "step_")
	id, key, ok2 := slurmJob(g[:len(g)-1])
	if !ok || !ok2 || !allBytes(step, isStep) {
		return Name{}, false
	}
	if key != "" {
		key += "/" + step
	}
	return Name{Kind: SlurmStep, Key: key, Name: "job " + id + " step " + step}, true
}

// slurmJob recognizes a Slurm job's own group. Its key is "" for a slurmd inside a container: that
// is another cluster with the same numbers.
func slurmJob(g group) (id, key string, ok bool) {
	id, ok = strings.CutPrefix(g.up(0), "job_")
	if !ok || !allBytes(id, isDigit) {
		return "", "", false
	}
	own := false
	switch uid, v1 := strings.CutPrefix(g.up(1), "uid_"); {
	case v1 && allBytes(uid, isDigit) && isSlurmV1(g.up(2)):
		own = len(g) == 3
	case g.up(1) == "slurmstepd.scope", strings.HasSuffix(g.up(1), "_slurmstepd.scope"):
		own = len(g) == 2 || len(g) == 3 && g[0] == "system.slice"
	default:
		return "", "", false
	}
	if own {
		key = "/" + id
	}
	return id, key, true
}

func isSlurmV1(s string) bool { return s == "slurm" || strings.HasPrefix(s, "slurm_") }

// isStep is the class of bytes of a step's name: a number, with "+component" for heterogeneous
// jobs, or batch, extern, interactive, TBD.
func isStep(c byte) bool { return isAlnum(c) || c == '+' || c == '.' }

// unit recognizes systemd units that hold processes, of a systemd on the machine, for a user, or in
// a container. Groups of mounts, sockets and swaps are folded into their slice: they hold only
// helper processes.
func unit(g group) (Name, bool) {
	last := g.up(0)
	dot := strings.LastIndexByte(last, '.')
	if dot <= 0 {
		return Name{}, false
	}
	stem := last[:dot]
	switch last[dot:] {
	case ".slice":
		if uid, ok := strings.CutPrefix(stem, "user-"); ok && allBytes(uid, isDigit) {
			return Name{Kind: User, Name: "user " + uid}, true
		}
		return Name{Kind: Slice, Name: unescape(last)}, true
	case ".service":
		return Name{Kind: Service, Name: unescape(last)}, true
	case ".scope":
		id, ok := strings.CutPrefix(stem, "session-")
		if ok && allBytes(id, isAlnum) && strings.HasPrefix(g.up(1), "user-") {
			return Name{Kind: Session, Name: "session " + id}, true
		}
		return Name{Kind: Scope, Name: unescape(last)}, true
	}
	return Name{}, false
}

// unescape decodes systemd's \xNN in a unit's name (systemd.unit(5), "String escaping for inclusion
// in unit names"). A "-" stays: what it stands for is unknown.
func unescape(s string) string {
	if !strings.Contains(s, `\x`) {
		return readable(s)
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if i+4 <= len(s) && s[i] == '\\' && s[i+1] == 'x' {
			if c, err := strconv.ParseUint(s[i+2:i+4], 16, 8); err == nil {
				b = append(b, byte(c))
				i += 3
				continue
			}
		}
		b = append(b, s[i])
	}
	return readable(string(b))
}

// readable writes unprintable characters as \xNN: group names are arbitrary and must not control a
// terminal.
func readable(s string) string {
	const digits = "0123456789abcdef"
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if unicode.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			b.WriteString(s[:n])
		} else {
			for i := range n {
				b.WriteString(`\x`)
				b.WriteByte(digits[s[i]>>4])
				b.WriteByte(digits[s[i]&15])
			}
		}
		s = s[n:]
	}
	return b.String()
}
