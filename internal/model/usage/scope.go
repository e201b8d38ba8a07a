package usage

import (
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
