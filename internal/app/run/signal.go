package run

import (
	"io/fs"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// signals are those that a job's command is to get.
type signals struct {
	c   chan os.Signal
	tty int // of /dev/tty, or -1
}

// listen catches all signals that end a process or mean something to one,
// instead of what they would do to mete. Those that were ignored stay so, for
// the command too: nohup and background jobs of scripts rely on it.
//
// The stop signals of the terminal are left alone: they stop mete with its
// command, as the shell expects of a job.
func listen() *signals {
	s := &signals{c: make(chan os.Signal, 16), tty: -1}
	if fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err == nil {
		s.tty = fd
	}
	if signal.Ignored(syscall.SIGINT) {
		// A shell without job control ignores both in what it runs in the
		// background, and the runtime remembers only the first.
		signal.Ignore(syscall.SIGQUIT)
	}
	for n := syscall.Signal(1); n <= 64; n++ {
		switch n {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, // the last is the runtime's own
			syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
			syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGSYS,
			32, 33: // glibc's and the runtime's
			continue
		}
		if !signal.Ignored(n) {
			signal.Notify(s.c, n)
		}
	}
	return s
}

// needsSignal reports whether the command is to be sent sig: not where the terminal
// has sent it to both, because both are in its foreground, and not SIGPIPE,
// which comes of mete's own writing.
func (s *signals) needsSignal(sig os.Signal) bool {
	switch sig {
	case syscall.SIGPIPE:
		return false
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGWINCH:
		if s.tty < 0 {
			return true
		}
		front, err := unix.IoctlGetInt(s.tty, unix.TIOCGPGRP)
		return err != nil || front != unix.Getpgrp()
	}
	return true
}

// close leaves the signals caught, so that a late one does not cost the report.
func (s *signals) close() {
	if s.tty >= 0 {
		_ = unix.Close(s.tty) // only ever asked
	}
}

// umask reads the file mode mask of this process, which can only be read by
// setting it.
func umask() fs.FileMode {
	old := unix.Umask(0o77)
	unix.Umask(old)
	return fs.FileMode(old)
}
