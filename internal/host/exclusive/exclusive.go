// Package exclusive keeps two meters of one kernel from counting the same for one
// ledger: who measures something for a ledger claims it first.
//
// A claim is a listening abstract unix socket (unix(7)), whose name tells the
// ledger and what is counted. It takes no file and no rights, everyone in the
// network namespace sees it in /proc/net/unix, the kernel says who holds it,
// and it is gone with its process, however that ends.
//
// Any user can listen at any such name. So a claim counts only where its holder is
// root, the user of this process, or a process that started this one: others could
// keep the machine from being measured. Where one of those others holds the name of
// a claim, the claim is made at another name, which is random.
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
)

// A Holder is who holds a claim.
type Holder struct {
	Scope Scope
	// PID and UID are those of its process; PID is 0 where it is in no namespace of
	// processes that is seen from here.
	PID int
	UID uint32

	known bool // UID is what the kernel says
}

// String names the holder for people.
func (h Holder) String() string {
	switch {
	case !h.known:
		return "a process that does not answer"
	case h.PID == 0:
		return fmt.Sprintf("a process of user %d", h.UID)
	}
	return fmt.Sprintf("process %d of user %d", h.PID, h.UID)
}

// isTrusted reports whether the holder's claim counts for this process, which
// descends from ancestors and wants to claim s.
func (h Holder) isTrusted(s Scope, ancestors []int) bool {
	switch {
	case !h.known:
		return false
	case h.UID == 0 || int(h.UID) == os.Geteuid():
		return true
	case h.UID == overflowUser && s != Machine && !hasAllUsers():
		// Root of the machine looks like that in a user namespace. A job rather believes
		// too much than is counted twice.
		return true
	}
	// A number that its process has given back may be another one's by now.
	return h.PID != 0 && slices.Contains(ancestors, h.PID) && userOf(h.PID) == int(h.UID)
}

// overflowUser stands for the users that a user namespace does not have, see
// user_namespaces(7).
const overflowUser = 65534

// hasAllUsers reports whether the user namespace has all users of the machine.
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

// A ConflictError is the error of a claim that overlaps with others'. It wraps
// fault.ErrConflict.
type ConflictError struct {
	Scope   Scope
	Holders []Holder
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s measures %s for this ledger already: %v", e.Holders[0], e.Holders[0].Scope, fault.ErrConflict)
}

func (e *ConflictError) Unwrap() error { return fault.ErrConflict }

// MachineHolder returns the holder that measures the whole machine, where one does.
func (e *ConflictError) MachineHolder() (Holder, bool) {
	for _, h := range e.Holders {
		if h.Scope == Machine {
			return h, true
		}
	}
	return Holder{}, false
}

// A Claim is held until it is closed, or the process ends.
type Claim struct {
	h      *hostfs.FS
	l      *net.UnixListener
	ledger string
	scope  Scope
	name   string
}

// Acquire claims a scope for a ledger, which is named by some letters and digits.
// The error is a [*ConflictError] where the very same is claimed already. Whether another
// scope overlaps is for [Claim.Conflicts] to say: who claims looks for others then,
// so that of two that come at once at least one sees the other.
func Acquire(h *hostfs.FS, ledger string, s Scope) (*Claim, error) {
	text := name(ledger, s, "")
	l, err := listen(text)
	// One that just ended holds its name for a moment more.
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

// acceptAll accepts who asks who this is, and has nothing more to say.
func (c *Claim) acceptAll() {
	for {
		conn, err := c.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // no descriptors, for a moment
			continue
		}
		_ = conn.Close() // nothing is said
	}
}

// Close gives the claim up. Of none, nil, there is nothing to give up.
func (c *Claim) Close() error {
	if c == nil {
		return nil
	}
	return c.l.Close()
}

// Conflicts returns a [*ConflictError] where others hold claims for the same ledger that
// overlap with this one, and no error where none do. Claims of ignored, a few of
// them, overlap too, and do not count, as other users hold them. Nothing overlaps
// with none, nil.
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
		// Num RefCount Protocol Flags Type St Inode Path: proc_pid_net(5). A socket
		// that is no claim's is left at once, as there may be many thousands.
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
		if len(seen) == 2 { // the first
			up, listening = ancestors(c.h), socketUsers(c.ledger)
		}
		if uid, ok := listening[claimed]; ok && !(Holder{UID: uid, known: true}).isTrusted(c.scope, nil) {
			// It counts at most as one of an ancestor.
			if asked++; asked > maxQueried {
				continue
			}
		}
		o, err := holder(claimed, s, listening)
		if errors.Is(err, syscall.ECONNREFUSED) {
			continue // gone meanwhile
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

// Anyone can hold any number of names: so many claims of users whose claims do not
// count are asked for their process, and reported.
const (
	maxQueried = 256
	maxIgnored = 16
)

// answerLimit is how long a holder has to be connected to: the kernel does that
// at once, unless very many ask one that is stopped.
const answerLimit = 100 * time.Millisecond

// socketUsers returns who made the sockets of a ledger's claims, by their names; nil where
// the kernel does not say that.
func socketUsers(ledger string) map[string]uint32 {
	list, err := listeners(prefix + ledger)
	if err != nil {
		return nil
	}
	return list
}

// holder asks the kernel who holds a claim. users are what it says of the sockets, if
// it does: else holder connects to the claim. The error is syscall.ECONNREFUSED where
// no process listens at the name; another error says that one does, and that its user
// is not known.
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
		err = nil // its process is not needed
	}
	return h, err
}

// peerCredentials connects to a claim and returns the process that listens there.
func peerCredentials(text string) (*unix.Ucred, error) {
	conn, err := net.DialTimeout("unix", "@"+text, answerLimit)
	// Its queue may be full, of what others did.
	for end := time.Now().Add(answerLimit); errors.Is(err, syscall.EAGAIN) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		conn, err = net.DialTimeout("unix", "@"+text, answerLimit)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // nothing was said
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var gerr error
	if err := raw.Control(func(fd uintptr) { cred, gerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return nil, err
	}
	return cred, gerr
}

// ancestors are the processes that this one descends from, itself left out.
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
