package run

import (
	"io/fs"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// signals are the signals to forward to a job's command.
type signals struct {
	c   chan os.Signal
	tty int // of /dev/tty, or -1
}

// listen catches all signals that end a process or have a meaning for one. Ignored signals stay
// ignored, for the command too: nohup and background jobs of scripts rely on it.
//
// It leaves the stop signals of the terminal: they stop mete with its command, as the shell expects
// of a job.
func listen() *signals {
	s := &signals{c: make(chan os.Signal, 16), tty: -1}
	if fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err == nil {
		s.tty = fd
	}
	if signal.Ignored(syscall.SIGINT) {
		// A shell without job control ignores both in background commands, and the runtime only
		// preserves the first.
		signal.Ignore(syscall.SIGQUIT)
	}
	for n := syscall.Signal(1); n <= 64; n++ {
		switch n {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, // SIGURG is the runtime's own
			syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
			syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGSYS,
			32, 33: // of glibc and the runtime
			continue
		}
		if !signal.Ignored(n) {
			signal.Notify(s.c, n)
		}
	}
	return s
}

// needsSignal reports whether to send sig to the command: not if the terminal has sent it to both
// as its foreground processes, and not SIGPIPE, which mete's own output causes. SIGHUP is always sent:
// the terminal sends it only at a hangup, at which a second one does no harm.
func (s *signals) needsSignal(sig os.Signal) bool {
	switch sig {
	case syscall.SIGPIPE:
		return false
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGWINCH:
		if s.tty < 0 {
			return true
		}
		front, err := unix.IoctlGetInt(s.tty, unix.TIOCGPGRP)
		return err != nil || front != unix.Getpgrp()
	}
	return true
}

// close keeps the signals caught, so that a late one does not lose the report.
func (s *signals) close() {
	if s.tty >= 0 {
		_ = unix.Close(s.tty) // only queried
	}
}

// umask returns this process's file mode mask, which can only be read by setting it.
func umask() fs.FileMode {
	old := unix.Umask(0o77)
	unix.Umask(old)
	return fs.FileMode(old)
}
