// Package claim keeps two meters of one kernel from counting the same for one
// ledger: who measures something for a ledger claims it first.
//
// A claim is a listening abstract unix socket (unix(7)), whose name tells the
// ledger and what is counted. It takes no file and no rights, everyone in the
// network namespace sees it in /proc/net/unix, the kernel says who holds it,
// and it is gone with its process, however that ends.
package claim

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/host"
	"mete.dev/mete/internal/kernfmt"
)

// A Holder is who holds a claim.
type Holder struct {
	Scope Scope
	// PID and UID are those of its process; PID is 0 where they are not known.
	PID int
	UID uint32
}

// String names the holder for people.
func (h Holder) String() string {
	if h.PID == 0 {
		return "another process"
	}
	return fmt.Sprintf("process %d of user %d", h.PID, h.UID)
}

// A Taken is the error of a claim that overlaps with others'. It wraps
// fault.ErrConflict.
type Taken struct {
	Scope Scope
	By    []Holder
}

func (t *Taken) Error() string {
	return fmt.Sprintf("%s measures %s for this ledger already: %v", t.By[0], t.By[0].Scope, fault.ErrConflict)
}

func (t *Taken) Unwrap() error { return fault.ErrConflict }

// Whole returns the holder that measures the whole machine, where one does.
func (t *Taken) Whole() (Holder, bool) {
	for _, h := range t.By {
		if h.Scope == Machine {
			return h, true
		}
	}
	return Holder{}, false
}

// A Claim is held until it is closed, or the process ends.
type Claim struct {
	h      *host.Host
	l      *net.UnixListener
	ledger string
	scope  Scope
}

// Make claims a scope for a ledger, which is named by some letters and digits.
// The error is a [*Taken] where the very same is claimed already. Whether another
// scope overlaps is for [Claim.Others] to say: who claims looks for others then,
// so that of two that come at once at least one sees the other.
func Make(h *host.Host, ledger string, s Scope) (*Claim, error) {
	text := name(ledger, s)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@" + text, Net: "unix"})
	if errors.Is(err, syscall.EADDRINUSE) {
		by, err := holder(text, s)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("claim: its holder just ended: %w", fault.ErrUnavailable)
		}
		return nil, &Taken{s, []Holder{by}}
	}
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	c := &Claim{h, l, ledger, s}
	go c.answer()
	return c, nil
}

// answer accepts who asks who this is, and has nothing more to say.
func (c *Claim) answer() {
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

// Others returns a [*Taken] where others hold claims for the same ledger that
// overlap with this one, and nil where none do. Nothing overlaps with none, nil.
func (c *Claim) Others() error {
	if c == nil {
		return nil
	}
	b, err := c.h.ReadFile("/proc/net/unix")
	if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	own := name(c.ledger, c.scope)
	var by []Holder
	var up []int
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
		if !ok || claimed == own || seen(by, s) {
			continue
		}
		o, err := holder(claimed, s)
		if errors.Is(err, syscall.ECONNREFUSED) {
			continue // gone meanwhile
		}
		if up == nil {
			up = ancestors(c.h)
		}
		if c.scope.overlaps(s, o.PID, up) {
			by = append(by, o)
		}
	}
	if by == nil {
		return nil
	}
	return &Taken{c.scope, by}
}

func seen(list []Holder, s Scope) bool {
	for _, h := range list {
		if h.Scope == s {
			return true
		}
	}
	return false
}

// answerLimit is how long a holder has to be connected to: the kernel does that
// at once, unless very many ask one that is stopped.
const answerLimit = 100 * time.Millisecond

// holder asks the kernel who holds a claim. With an error other than
// syscall.ECONNREFUSED there is one, but not who.
func holder(text string, s Scope) (Holder, error) {
	h := Holder{Scope: s}
	conn, err := net.DialTimeout("unix", "@"+text, answerLimit)
	if err != nil {
		return h, err
	}
	defer func() { _ = conn.Close() }() // nothing was said
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return h, err
	}
	var cred *unix.Ucred
	var gerr error
	if err := raw.Control(func(fd uintptr) { cred, gerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return h, err
	}
	if gerr != nil {
		return h, gerr
	}
	h.PID, h.UID = int(cred.Pid), cred.Uid
	return h, nil
}

// ancestors are the processes that this one descends from, itself left out.
func ancestors(h *host.Host) (pids []int) {
	for pid := os.Getppid(); pid > 0; {
		pids = append(pids, pid)
		b, err := h.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return pids
		}
		s, err := kernfmt.ProcStat(b)
		if err != nil {
			return pids
		}
		pid = s.Parent
	}
	return pids
}
