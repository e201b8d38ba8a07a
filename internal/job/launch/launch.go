// Package launch runs a command as a job: in control groups of its own or, where
// none can be made, as a tree of processes, and reads what it used.
//
// A [Group] lies below the caller's own groups and never outside their limits.
// The command is in it before its first instruction, and so is all that it
// starts, however often it forks, until it is moved elsewhere. Where the kernel
// gives a resource no counter in the group, the reading lacks it.
//
// A [Tree] follows parents to children instead. It sees less, and what it sees
// is apportioned: pages shared by several processes count for each, and what
// came and went between two looks is missing.
//
// The job is a child of this process in the ordinary way: same process group,
// terminal, descriptors and limits. If this process dies, the job goes on.
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

// Prefix begins the name of every job's group; its ID follows.
const Prefix = "mete-run-"

// A Command is a program to run.
type Command struct {
	Path string   // of the file to execute, as [LookPath] finds it
	Args []string // argument vector, the program's name first
	Env  []string
	// Files are the descriptors that become 0, 1 and so on. Further ones that
	// are not close-on-exec are inherited too, as by exec.
	Files []uintptr
	// Before, if not nil, is called when everything is ready for the start,
	// and the start waits for it. What it does itself may count for the job:
	// it should do nothing but wait.
	Before func()
}

// A Member is a living process of a job.
type Member struct {
	PID  int
	Name string
}

// A StartError says why a command was not started, in the way of POSIX shells.
type StartError struct {
	Name string
	Code int // 127 if there is no such command, 126 if it cannot be executed
	Err  error
}

func (e *StartError) Error() string { return e.Name + ": " + e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// errCommand is what shells say where a search of PATH found nothing.
var errCommand = errors.New("command not found")

// LookPath finds the file that a shell would execute for name: name itself if it
// has a slash, else the first executable file of that name in the directories
// of path, as $PATH has them. A directory that may not be searched shows no
// file, and so has none. Its errors are *StartError.
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
			dir = "." // as POSIX has it
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

// checkExecutable says why file cannot be executed, and whether it could be seen at
// all.
func checkExecutable(file string) (seen bool, err error) {
	st, err := os.Stat(file)
	switch {
	case err != nil:
		// The path is in the caller's message already.
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			return false, pe.Err
		}
		return false, err
	case st.IsDir():
		return true, syscall.EISDIR
	}
	// The kernel asks for the effective user's right.
	return true, unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS)
}

// newStartError gives err the exit code of shells: what exists but does not run is
// 126, also where it is the interpreter named in its first line that is
// missing.
func newStartError(name string, err error) *StartError {
	if errors.Is(err, fs.ErrNotExist) {
		return &StartError{name, 127, err}
	}
	return &StartError{name, 126, err}
}

// exec starts the command on the calling thread: the child has the thread's
// control groups, and group, a descriptor of a v2 group, unless it is -1.
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
	// Not os.StartProcess, which at its first use starts a child of its own to
	// find out about pidfds.
	pid, err := syscall.ForkExec(c.Path, c.Args, attr)
	if err == syscall.ENOEXEC {
		// A script without a first line that names its interpreter: shells and
		// execvp(3) hand it to sh.
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
