package launch

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
)

// An Exit is how a process ended, and its use including children that it waited for.
type Exit struct {
	Status syscall.WaitStatus
	Rusage syscall.Rusage
}

// Code returns the exit code as shells show it: 128 + n after signal n.
func (e Exit) Code() int {
	if e.Status.Signaled() {
		return 128 + int(e.Status.Signal())
	}
	return e.Status.ExitStatus()
}

// Signal returns the name of the signal that ended the process, or "".
func (e Exit) Signal() string {
	if !e.Status.Signaled() {
		return ""
	}
	if s := unix.SignalName(e.Status.Signal()); s != "" {
		return s
	}
	return fmt.Sprintf("signal %d", int(e.Status.Signal()))
}

// CPU returns user and system CPU time in ns.
func (e Exit) CPU() (user, system int64) { return e.Rusage.Utime.Nano(), e.Rusage.Stime.Nano() }

// A Process is a child that has been started.
type Process struct {
	PID   int
	Began hostfs.Clocks // just before its start

	mu     sync.Mutex
	reaped bool
}

// WaitExit blocks until the process has ended, without reaping it: /proc still shows it.
func (p *Process) WaitExit() error {
	for {
		err := unix.Waitid(unix.P_PID, p.PID, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return os.NewSyscallError("waitid", err)
		}
	}
}

// Reap reaps the ended process.
func (p *Process) Reap() (Exit, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var e Exit
	for {
		_, err := syscall.Wait4(p.PID, &e.Status, 0, &e.Rusage)
		if err != syscall.EINTR {
			p.reaped = true
			return e, os.NewSyscallError("wait4", err)
		}
	}
}

// Signal sends a signal to the process if it has not been reaped, so that it never reaches another
// process with the same PID.
func (p *Process) Signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return nil
	}
	return os.NewSyscallError("kill", syscall.Kill(p.PID, s))
}

// WaitGone blocks until none of the processes is alive, or until the timeout. Processes without a
// pidfd are polled every 20 ms.
func WaitGone(members []Member, over time.Duration) {
	end := time.Now().Add(over)
	blind := false
	var fds []unix.PollFd
	for _, m := range members {
		fd, err := unix.PidfdOpen(m.PID, 0)
		if err == unix.ESRCH {
			continue
		}
		if err != nil {
			blind = true
			break
		}
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		if len(fds) == 64 {
			break // the caller calls again after these
		}
	}
	for _, f := range fds {
		left := time.Until(end)
		if blind {
			left = min(left, 20*time.Millisecond)
		}
		if left > 0 {
			// An interrupted or failed poll only returns early.
			_, _ = unix.Poll([]unix.PollFd{f}, int(left.Milliseconds())+1)
		}
		_ = unix.Close(int(f.Fd))
	}
	if len(fds) == 0 && blind {
		time.Sleep(min(max(0, time.Until(end)), 20*time.Millisecond))
	}
}
