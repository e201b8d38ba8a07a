// Package exclusive prevents two meters of one kernel from counting the same use twice for
// one ledger: a meter first claims what it measures.
//
// A claim is a listening abstract unix socket (unix(7)), whose name holds the ledger and
// the scope. It needs no file and no privilege; everyone in the network namespace sees it
// in /proc/net/unix; the kernel knows its owner; and it ends with its process.
//
// Any user can listen at any such name. So a claim counts only if its holder is root, the
// user of this process or of the machine's agent, or an ancestor of this process; otherwise
// any user could prevent the machine from being measured. If another user holds the name of
// a claim, the claim is made under a random name.
package exclusive

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/peercred"
	"mete.dev/mete/internal/x/trusted"
)

// A Holder is the process that holds a claim.
type Holder struct {
	Scope Scope
	// PID and UID are those of its process; PID is 0 if the process is not visible in this
	// PID namespace.
	PID int
	UID uint32

	known bool // the kernel reported UID
}

// String describes the holder.
func (h Holder) String() string {
	switch {
	case !h.known:
		return "a process that does not answer"
	case h.PID == 0:
		return fmt.Sprintf("a process of user %d", h.UID)
	}
	return fmt.Sprintf("process %d of user %d", h.PID, h.UID)
}

// isTrusted reports whether the holder's claim counts for this process, which has the given
// ancestors and wants to claim s.
func (h Holder) isTrusted(s Scope, ancestors []int) bool {
	switch {
	case !h.known:
		return false
	case trusted.Agent(trusted.AgentDir, h.UID):
		return true
	case h.UID == overflowUser && s != Machine && !hasAllUsers():
		// The machine's root appears as this user in a user namespace. A job prefers to
		// trust too much over being counted twice.
		return true
	}
	// The process may have exited and its PID may be in use again.
	return h.PID != 0 && slices.Contains(ancestors, h.PID) && userOf(h.PID) == int(h.UID)
}

// overflowUser stands for users outside the user namespace, see user_namespaces(7).
const overflowUser = 65534

// hasAllUsers reports whether the user namespace maps all users of the machine.
func hasAllUsers() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	return err != nil || slices.Equal(strings.Fields(string(b)), []string{"0", "0", "4294967295"})
}

// userOf returns the user of a process, or -1.
func userOf(pid int) int {
	info, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		return -1
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return -1
	}
	return int(st.Uid)
}

// A ConflictError is the error of a claim that overlaps with others. It wraps
// fault.ErrConflict.
type ConflictError struct {
	Scope   Scope
	Holders []Holder
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s measures %s for this ledger already: %v", e.Holders[0], e.Holders[0].Scope, fault.ErrConflict)
}

func (e *ConflictError) Unwrap() error { return fault.ErrConflict }

// MachineHolder returns the holder that measures the whole machine, if any.
func (e *ConflictError) MachineHolder() (Holder, bool) {
	for _, h := range e.Holders {
		if h.Scope == Machine {
			return h, true
		}
	}
	return Holder{}, false
}

// A Claim is held until Close or the end of the process.
type Claim struct {
	h      *hostfs.FS
	l      *net.UnixListener
	ledger string
	scope  Scope
	name   string
}

// Acquire claims a scope for a ledger, whose name consists of letters and digits. The error
// is a [*ConflictError] if the same scope is claimed already. Overlapping scopes are found
// by [Claim.Conflicts]: call it after Acquire, so that of two concurrent claims at least
// one sees the other.
func Acquire(h *hostfs.FS, ledger string, s Scope) (*Claim, error) {
	text := name(ledger, s, "")
	l, err := listen(text)
	// A process that just ended holds its name for a moment.
	for try := 0; errors.Is(err, syscall.EADDRINUSE) && try < 10; try++ {
		by, gone := holder(text, s, socketUsers(ledger))
		switch {
		case errors.Is(gone, syscall.ECONNREFUSED):
			l, err = listen(text)
			continue
		case by.isTrusted(s, ancestors(h)):
			return nil, &ConflictError{s, []Holder{by}}
		}
		break
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		text = name(ledger, s, strings.ToLower(rand.Text()[:nonceLen]))
		l, err = listen(text)
	}
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	c := &Claim{h, l, ledger, s, text}
	go c.acceptAll()
	return c, nil
}

func listen(text string) (*net.UnixListener, error) {
	return net.ListenUnix("unix", &net.UnixAddr{Name: "@" + text, Net: "unix"})
}

// acceptAll accepts and closes connections, by which others learn the holder's credentials.
func (c *Claim) acceptAll() {
	for {
		conn, err := c.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors
			continue
		}
		_ = conn.Close()
	}
}

// Close gives the claim up. A nil Claim is allowed.
func (c *Claim) Close() error {
	if c == nil {
		return nil
	}
	return c.l.Close()
}

// Conflicts returns a [*ConflictError] if others hold claims of the same ledger that
// overlap with this one. ignored lists a few overlapping claims of untrusted users, which
// do not count. A nil Claim has no conflicts.
func (c *Claim) Conflicts() (ignored []Holder, err error) {
	if c == nil {
		return nil, nil
	}
	b, err := c.h.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	var by []Holder
	var up []int
	var listening map[string]uint32
	asked := 0
	seen := map[string]bool{c.name: true}
	for line := range bytes.Lines(b) {
		// Num RefCount Protocol Flags Type St Inode Path: proc_pid_net(5). Skip other
		// sockets quickly, there may be many thousands.
		_, text, ok := bytes.Cut(line, []byte(" @"+prefix+c.ledger))
		if !ok {
			continue
		}
		claimed := prefix + c.ledger + string(bytes.TrimSuffix(text, []byte("\n")))
		s, ok := parse(claimed, c.ledger)
		// A socket has a line for each of its connections too.
		if !ok || seen[claimed] {
			continue
		}
		seen[claimed] = true
		if len(seen) == 2 { // the first other claim
			up, listening = ancestors(c.h), socketUsers(c.ledger)
		}
		if uid, ok := listening[claimed]; ok && !(Holder{UID: uid, known: true}).isTrusted(c.scope, nil) {
			// It counts only if an ancestor holds it, which takes a query.
			if asked++; asked > maxQueried {
				continue
			}
		}
		o, err := holder(claimed, s, listening)
		if errors.Is(err, syscall.ECONNREFUSED) {
			continue // ended meanwhile
		}
		switch {
		case !c.scope.overlaps(s, o.PID, up):
		case o.isTrusted(c.scope, up):
			by = append(by, o)
		case len(ignored) < maxIgnored:
			ignored = append(ignored, o)
		}
	}
	if by == nil {
		return ignored, nil
	}
	return ignored, &ConflictError{c.scope, by}
}

// Limits on claims of untrusted users, since anyone can hold any number of names: how many
// are queried for their process and how many are reported.
const (
	maxQueried = 256
	maxIgnored = 16
)

// queueRetries is how often to try again, a millisecond apart, to connect to a holder whose
// queue is full because very many processes connect to it.
const queueRetries = 100

// socketUsers returns the users who created the sockets of a ledger's claims, by name; nil
// if the kernel does not report them.
func socketUsers(ledger string) map[string]uint32 {
	list, err := listeners(prefix + ledger)
	if err != nil {
		return nil
	}
	return list
}

// holder returns the holder of a claim. users is the result of socketUsers; if nil, holder
// connects to the claim. The error is syscall.ECONNREFUSED if no process listens at the
// name; any other error means that one does and its user is unknown.
func holder(text string, s Scope, users map[string]uint32) (Holder, error) {
	h := Holder{Scope: s}
	if users != nil {
		if h.UID, h.known = users[text]; !h.known {
			return h, syscall.ECONNREFUSED
		}
	}
	cred, err := peerCredentials(text)
	switch {
	case err == nil:
		h.PID = int(cred.Pid)
		if !h.known {
			h.UID, h.known = cred.Uid, true
		}
	case h.known && !errors.Is(err, syscall.ECONNREFUSED):
		err = nil // the user is known, the process is optional
	}
	return h, err
}

// peerCredentials connects to a claim and returns the process that listens there. A connection
// to a unix socket succeeds or fails at once: it needs no time limit, which a process that does
// not run for a moment could exceed.
func peerCredentials(text string) (*unix.Ucred, error) {
	conn, err := net.Dial("unix", "@"+text)
	for try := 0; errors.Is(err, syscall.EAGAIN) && try < queueRetries; try++ {
		time.Sleep(time.Millisecond)
		conn, err = net.Dial("unix", "@"+text)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // nothing was written
	return peercred.Of(conn.(*net.UnixConn))
}

// ancestors returns the ancestors of this process.
func ancestors(h *hostfs.FS) (pids []int) {
	for pid := os.Getppid(); pid > 0; {
		pids = append(pids, pid)
		b, err := h.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return pids
		}
		s, err := procfmt.ProcStat(b)
		if err != nil {
			return pids
		}
		pid = s.Parent
	}
	return pids
}
