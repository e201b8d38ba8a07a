package exclusive

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Scope is what a meter measures for a ledger.
type Scope struct {
	// Path of the control group that is measured with all groups below it: "/" is the
	// machine.
	Path string
	// Tree, if not 0, limits the scope to the descendants of the process with this PID,
	// which is in that group.
	Tree int
}

// Machine is the scope of the whole machine.
var Machine = Scope{Path: "/"}

// overlaps reports whether a meter of scope s, whose process has the given ancestors, would
// count the same as an existing meter of scope o, whose process is holder (0 if unknown).
func (s Scope) overlaps(o Scope, holder int, ancestors []int) bool {
	switch {
	case o.Tree != 0 && s.Path != Machine.Path:
		// A new process is outside the tree unless it descends from it.
		return slices.Contains(ancestors, holder) || slices.Contains(ancestors, o.Tree)
	case s.Tree != 0:
		return contains(o.Path, s.Path)
	}
	return contains(o.Path, s.Path) || contains(s.Path, o.Path)
}

// contains reports whether path is the group above or below it. Both may be shortened.
func contains(above, path string) bool {
	a, p := components(above), components(path)
	return len(a) <= len(p) && slices.EqualFunc(a, p[:len(a)], func(x, y string) bool { return shorten(x) == shorten(y) })
}

func components(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

const (
	// prefix begins the names of all claims; the ledger and the scope follow.
	prefix = "mete.claim."
	// nameLimit is the maximum length of an abstract socket's name: sun_path of unix(7)
	// less the leading zero byte.
	nameLimit = 107
	// nonceLen is the length of a nonce, at five bits per character.
	nonceLen = 8
	// plainLimit is the maximum length of a component that stays in a shortened path.
	plainLimit = 9
)

// name returns the name of a claim's socket. If the path is too long, name shortens its
// components, and replaces the end of a path with very many components by a hash, so that
// it stays distinct but no longer shows what lies below. A nonce gives another name for the
// same claim; "" means no nonce.
func name(ledger string, s Scope, nonce string) string {
	tail := ""
	if s.Tree != 0 {
		tail = "#" + strconv.Itoa(s.Tree)
	}
	if nonce != "" {
		tail += "!" + nonce
	}
	head := prefix + ledger
	room := nameLimit - len(head) - len(tail)
	list := components(s.Path)
	path := "/" + strings.Join(list, "/")
	if len(path) > room || slices.ContainsFunc(list, needsHash) {
		for i := range list {
			list[i] = shorten(list[i])
		}
		path = "/" + strings.Join(list, "/")
	}
	for n := len(list) - 1; len(path) > room && n > 0; n-- {
		path = "/" + strings.Join(list[:n], "/") + "/" + hash(strings.Join(list[n:], "/"))
	}
	return head + path + tail
}

// parse reads a name of this ledger's claims. It refuses names that name does not produce,
// since anyone can hold any name.
func parse(text, ledger string) (s Scope, ok bool) {
	text, ok = strings.CutPrefix(text, prefix+ledger)
	if !ok || !strings.HasPrefix(text, "/") {
		return s, false
	}
	text, _, _ = strings.Cut(text, "!")
	path, pid, tree := strings.Cut(text, "#")
	if slices.ContainsFunc(strings.Split(path, "/"), needsHash) {
		return s, false
	}
	s.Path = path
	if tree {
		n, err := strconv.Atoi(pid)
		if err != nil || n <= 0 {
			return s, false
		}
		s.Tree = n
	}
	return s, true
}

// shorten returns a component of a shortened path: a hash if it is long or has special
// characters.
func shorten(component string) string {
	if len(component) <= plainLimit && !needsHash(component) {
		return component
	}
	return hash(component)
}

// needsHash reports whether a component has characters that a name cannot contain.
func needsHash(component string) bool {
	return strings.ContainsFunc(component, func(r rune) bool { return r <= ' ' || r > '~' || r == '#' || r == '@' || r == '!' })
}

// hash returns 40 bits of a hash, as many characters as plainLimit.
func hash(component string) string {
	sum := sha256.Sum256([]byte(component))
	return "~" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
}

// String describes the scope.
func (s Scope) String() string {
	switch {
	case s.Tree != 0:
		return fmt.Sprintf("the processes below %d", s.Tree)
	case s.Path == Machine.Path:
		return "this machine"
	}
	return "the control group " + s.Path
}
