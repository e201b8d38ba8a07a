package procfmt

import (
	"bytes"
	"strings"
)

// A Membership is the control group of a process in one hierarchy.
type Membership struct {
	Hierarchy   int      // the kernel's id; 0 is v2
	Controllers []string // none for v2 and for named hierarchies
	Name        string   // of a named v1 hierarchy, such as systemd
	Path        string   // of the group, from the reader's root
	// Deleted is true if the v2 group was removed. A group whose name ends in " (deleted)"
	// looks the same and is taken for a removed one.
	Deleted bool
}

// Cgroups reads /proc/PID/cgroup.
func Cgroups(b []byte) ([]Membership, error) {
	var ms []Membership
	for line := []byte(nil); len(b) > 0; {
		line, b = cutLine(b)
		if len(line) == 0 {
			continue
		}
		id, rest, ok1 := bytes.Cut(line, []byte(":"))
		list, path, ok2 := bytes.Cut(rest, []byte(":"))
		h, ok3 := small(id)
		if !ok1 || !ok2 || !ok3 || len(path) == 0 || path[0] != '/' {
			return nil, invalid("cgroup", line)
		}
		m := Membership{Hierarchy: int(h), Path: string(path)}
		if h == 0 {
			m.Path, m.Deleted = strings.CutSuffix(m.Path, " (deleted)")
		}
		for len(list) > 0 {
			var c []byte
			c, list, _ = bytes.Cut(list, []byte(","))
			if name, ok := bytes.CutPrefix(c, []byte("name=")); ok {
				m.Name = string(name)
			} else if len(c) > 0 {
				m.Controllers = append(m.Controllers, string(c))
			}
		}
		ms = append(ms, m)
	}
	return ms, nil
}

// A Controller is one line of /proc/cgroups.
type Controller struct {
	Name      string
	Hierarchy int // 0: in v2, or in none
	Groups    int
	Enabled   bool
}

// ProcCgroups reads /proc/cgroups.
func ProcCgroups(b []byte) ([]Controller, error) {
	var cs []Controller
	for line := []byte(nil); len(b) > 0; {
		line, b = cutLine(b)
		name, rest := cutField(line)
		if len(name) == 0 || name[0] == '#' {
			continue
		}
		var v [3]int64
		if _, ok := numbers(rest, v[:]); !ok || v[0] < 0 || v[1] < 0 {
			return nil, invalid("cgroups", line)
		}
		cs = append(cs, Controller{string(name), int(v[0]), int(v[1]), v[2] != 0})
	}
	return cs, nil
}
