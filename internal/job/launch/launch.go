// Package launch runs a command as a job, in control groups of its own or, if none can be created,
// as a process tree, and reads its use.
//
// A [Group] is below the caller's own groups and never outside their limits. The command is in it
// before its first instruction, and so are all its descendants until they are moved. Resources
// without a counter in the group are missing from readings.
//
// A [Tree] follows parents to children instead. It sees less, and its readings are apportioned:
// shared pages count for each process, and processes that start and end between two readings are
// missing.
//
// The job is an ordinary child of this process, with the same process group, terminal, descriptors
// and limits. It continues if this process dies.
package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// Prefix begins the name of every job's group; the job's ID follows.
const Prefix = "mete-run-"

// A Command is a program to run.
type Command struct {
	Path string   // of the executable, from [LookPath]
	Args []string // argument vector including the program's name
	Env  []string
	// Files are the descriptors that become 0, 1 and so on. Other descriptors without close-on-exec
	// are inherited too, as by exec.
	Files []uintptr
	// Before, if not nil, is called when everything is ready, and the start waits for it; an error of
	// it prevents the start. Its own use may count for the job, so it should only wait.
	Before func() error
}

// A Member is a living process of a job.
type Member struct {
	PID  int
	Name string
}

// A StartError says why a command was not started, with the exit code of POSIX shells.
type StartError struct {
	Name string
	Code int // 127 if there is no such command, 126 if it cannot be executed, 128 + n if signal n came first
	Err  error
}

func (e *StartError) Error() string { return e.Name + ": " + e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// errCommand is the shells' message for a command that is not in PATH.
var errCommand = errors.New("command not found")

// LookPath finds the file that a shell would execute for name: name itself if it contains a slash,
// else the first executable file of that name in the directories of path ($PATH). A directory
// without search permission counts as empty. Errors are *StartError.
func LookPath(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		if _, err := checkExecutable(name); err != nil {
			return "", newStartError(name, err)
		}
		return name, nil
	}
	if name == "" {
		return "", &StartError{"''", 127, errCommand}
	}
	var denied error
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "." // as in POSIX
		}
		file := dir + "/" + name
		seen, err := checkExecutable(file)
		switch {
		case err == nil:
			return file, nil
		case seen && err != syscall.EISDIR && denied == nil:
			denied = newStartError(file, err)
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", &StartError{name, 127, errCommand}
}

// checkExecutable returns why file cannot be executed, and whether it exists.
func checkExecutable(file string) (seen bool, err error) {
	st, err := os.Stat(file)
	switch {
	case err != nil:
		// The caller's message contains the path.
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			return false, pe.Err
		}
		return false, err
	case st.IsDir():
		return true, syscall.EISDIR
	}
	// The kernel checks the effective user.
	return true, unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS)
}

// newStartError assigns the exit code of shells: 126 for a file that exists but cannot run,
// including one whose interpreter is missing.
func newStartError(name string, err error) *StartError {
	if errors.Is(err, fs.ErrNotExist) {
		return &StartError{name, 127, err}
	}
	return &StartError{name, 126, err}
}

// exec starts the command on the calling thread: the child inherits the thread's control groups,
// and joins group, a descriptor of a v2 group, unless it is -1.
func (c Command) exec(h *hostfs.FS, group int) (*Process, error) {
	began, err := h.Clocks()
	if err != nil {
		return nil, err
	}
	pid, err := c.fork(group)
	return &Process{PID: pid, Began: began}, err
}

func (c Command) fork(group int) (int, error) {
	attr := &syscall.ProcAttr{Env: c.Env, Files: c.Files, Sys: &syscall.SysProcAttr{}}
	if group >= 0 {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, group
	}
	// os.StartProcess is not used: its first call starts a child to check for pidfd support.
	pid, err := syscall.ForkExec(c.Path, c.Args, attr)
	if err == syscall.ENOEXEC {
		// A script without an interpreter line: like shells and execvp(3), run it with sh.
		pid, err = syscall.ForkExec("/bin/sh", append([]string{"sh", c.Path}, c.Args[1:]...), attr)
	}
	return pid, err
}

// failed explains why exec did not start the command.
func (c Command) failed(err error) error {
	if err == syscall.ENOENT {
		if _, serr := os.Stat(c.Path); serr == nil {
			return &StartError{c.Path, 126, errors.New("bad interpreter: no such file or directory")}
		}
	}
	switch err {
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE:
		return fmt.Errorf("%s: %w: %w", c.Path, fault.ErrUnavailable, err)
	}
	return newStartError(c.Path, err)
}
