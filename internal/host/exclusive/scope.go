package exclusive

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Scope is what a meter counts for a ledger.
type Scope struct {
	// Path is that of a control group, which is counted with all below it: "/" is
	// the machine.
	Path string
	// Tree, where it is not 0, says that only the processes below the one of this
	// PID are counted, which is in that group.
	Tree int
}

// Machine is the scope of who measures all of it.
var Machine = Scope{Path: "/"}

// overlaps reports whether a meter of scope s, whose process descends from
// ancestors, would count what a meter of scope o counts that is there already,
// and whose process is holder; 0 is not known.
func (s Scope) overlaps(o Scope, holder int, ancestors []int) bool {
	switch {
	case o.Tree != 0 && s.Path != Machine.Path:
		// What starts now is none of its processes, unless it descends from them.
		return slices.Contains(ancestors, holder) || slices.Contains(ancestors, o.Tree)
	case s.Tree != 0:
		return contains(o.Path, s.Path)
	}
	return contains(o.Path, s.Path) || contains(s.Path, o.Path)
}

// contains reports whether the group at path is the one at above, or below it.
// Both may have been shortened.
func contains(above, path string) bool {
	a, p := components(above), components(path)
	return len(a) <= len(p) && slices.EqualFunc(a, p[:len(a)], func(x, y string) bool { return shorten(x) == shorten(y) })
}

func components(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

const (
	// prefix begins the names of all claims; a ledger and a scope follow.
	prefix = "mete.claim."
	// nameLimit is how long the name of an abstract socket may be: sun_path of
	// unix(7) less the byte that says that it is one.
	nameLimit = 107
	// nonceLen is how many letters, of five bits each, nobody guesses.
	nonceLen = 8
	// plainLimit is how long a component is at most that is short already.
	plainLimit = 9
)

// name is the name of the socket that stands for a claim. A path that is too
// long for it is told by short components, and one of very many components by
// its beginning and a hash of the rest, by which it is told apart but not what
// lies below it. A nonce makes it another name for the same claim; "" is none.
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

// parse reads what name wrote of this ledger's claims. What it cannot have written,
// as anyone can hold any name, is none.
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

// shorten is a component as it stands in a shortened path: what is long, or odd,
// by its hash.
func shorten(component string) string {
	if len(component) <= plainLimit && !needsHash(component) {
		return component
	}
	return hash(component)
}

// needsHash reports whether a component cannot stand in a name as it is.
func needsHash(component string) bool {
	return strings.ContainsFunc(component, func(r rune) bool { return r <= ' ' || r > '~' || r == '#' || r == '@' || r == '!' })
}

// hash is 40 bits of a component's hash, of just as many characters as short
// leaves alone.
func hash(component string) string {
	sum := sha256.Sum256([]byte(component))
	return "~" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
}

// String says what the scope is, for people.
func (s Scope) String() string {
	switch {
	case s.Tree != 0:
		return fmt.Sprintf("the processes below %d", s.Tree)
	case s.Path == Machine.Path:
		return "this machine"
	}
	return "the control group " + s.Path
}
