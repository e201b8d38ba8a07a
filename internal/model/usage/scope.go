package usage

import (
	"slices"
	"strconv"
	"strings"
)

// A Scope says what part of a kernel a window measured: Machine, or one control group and
// all below it. It is "" where the sender does not state it.
type Scope string

// Machine is the scope of a whole machine.
const Machine Scope = "/"

// rootID is the id of the root of every hierarchy of control groups: the kernel numbers
// the directories of each, beginning with its root.
const rootID = 1

// ScopeOf returns the scope of a control group with this id. In a control group namespace
// of its own, a meter sees as its root a group that has another id than the machine's root.
func ScopeOf(id uint64) Scope {
	if id == rootID {
		return Machine
	}
	return Scope(groupPrefix + strconv.FormatUint(id, 10))
}

const groupPrefix = "cgroup:"

// IsValid reports whether s is "" or a result of [ScopeOf].
func (s Scope) IsValid() bool {
	if s == "" || s == Machine {
		return true
	}
	id, err := strconv.ParseUint(strings.TrimPrefix(string(s), groupPrefix), 10, 64)
	return err == nil && id != rootID && s == ScopeOf(id)
}

// MaxAncestors is the maximum number of groups in [Ancestors]: the innermost ones.
const MaxAncestors = 32

// Ancestors are the control groups that contain what a window measured, as far as its meter sees them:
// the number of their hierarchy, and their ids from the innermost one outward, such as "0:812,77". The
// machine contains everything and is not listed. If the window measured only a part of its scope, the
// list begins with the scope itself. It is "" where the sender does not state it.
type Ancestors string

// AncestorsOf returns the ancestors with these ids in a hierarchy, of which 0 is cgroup v2.
func AncestorsOf(hierarchy uint32, ids ...uint64) Ancestors {
	b := append(strconv.AppendUint(nil, uint64(hierarchy), 10), ':')
	n := 0
	for _, id := range ids {
		if id == rootID || n == MaxAncestors {
			break
		}
		if n++; n > 1 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, id, 10)
	}
	return Ancestors(b)
}

// parse returns the hierarchy and the ids.
func (a Ancestors) parse() (hierarchy uint32, ids []uint64, ok bool) {
	first, rest, ok := strings.Cut(string(a), ":")
	h, err := strconv.ParseUint(first, 10, 32)
	if !ok || err != nil {
		return 0, nil, false
	}
	for rest != "" {
		var text string
		text, rest, _ = strings.Cut(rest, ",")
		id, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return 0, nil, false
		}
		ids = append(ids, id)
	}
	return uint32(h), ids, true
}

// IsValid reports whether a is "" or a result of [AncestorsOf].
func (a Ancestors) IsValid() bool {
	hierarchy, ids, ok := a.parse()
	return a == "" || ok && a == AncestorsOf(hierarchy, ids...)
}

// Scopes returns the scopes of the groups.
func (a Ancestors) Scopes() (list []Scope) {
	_, ids, _ := a.parse()
	for _, id := range ids {
		list = append(list, ScopeOf(id))
	}
	return list
}

// An Extent is what a window measured of a kernel: a scope, or some of it.
type Extent struct {
	Scope     Scope
	Ancestors Ancestors
}

// LevelIn returns at which level above e the scope of o is, if all of e is in o: 0 is the innermost of its
// ancestors, and the machine is above all of them. The two parts must be of one kernel. Groups are compared
// within one hierarchy, since each hierarchy has ids of its own.
func (e Extent) LevelIn(o Extent) (level int, ok bool) {
	if o.Scope == Machine {
		return MaxAncestors, true
	}
	a, inner, stated := e.Ancestors.parse()
	b, outer, known := o.Ancestors.parse()
	isOuter := func(id uint64) bool { return ScopeOf(id) == o.Scope }
	if !stated || !known || a != b || slices.ContainsFunc(outer, isOuter) {
		return 0, false
	}
	level = slices.IndexFunc(inner, isOuter)
	return level, level >= 0
}
