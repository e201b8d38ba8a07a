// Package otheruser runs a process of another user that holds the names of claims.
package otheruser

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// OtherUID is the user that holds the names; it has no privileges.
const OtherUID = 65534

// How names are held.
const (
	Listening = "listening" // listening, so that the kernel lists the user
	Bound     = "bound"     // bound without listening
	Full      = "full"      // listening with a full queue
)

const variable = "METE_TEST_CLAIM_HOLDER"

// Main is for the TestMain of a package that calls [Hold]: in a process started by Hold it
// holds the names.
func Main() {
	how, names, ok := strings.Cut(os.Getenv(variable), " ")
	if !ok {
		return
	}
	if err := hold(how, strings.Split(names, " ")); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	os.Exit(0)
}

func hold(how string, names []string) error {
	for _, n := range names {
		at := &unix.SockaddrUnix{Name: "@" + n}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err == nil {
			err = unix.Bind(fd, at)
		}
		switch {
		case err == nil && how == Full:
			err = unix.Listen(fd, 0)
		case err == nil && how == Listening:
			err = unix.Listen(fd, 4096) // never accepted
		}
		for err == nil && how == Full {
			if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0); err == nil {
				err = unix.Connect(fd, at)
			}
		}
		if err != nil && !(how == Full && err == unix.EAGAIN) {
			return fmt.Errorf("%s: %w", n, err)
		}
	}
	return nil
}

// Hold starts a process of [OtherUID] that holds the claims of control groups for a ledger
// until the test ends or release is called, and returns its PID. It needs root.
func Hold(t testing.TB, ledger, how string, groups ...string) (pid int, release func()) {
	t.Helper()
	// The binary's own directory is accessible to root only.
	c := exec.Command("/proc/self/exe")
	c.Env = []string{variable + "=" + how}
	for _, g := range groups {
		c.Env[0] += " mete.claim." + ledger + g
	}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: OtherUID, Gid: OtherUID}}
	c.Dir, c.Stderr = "/", os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	release = func() {
		if !ended {
			ended = true
			_ = in.Close() // this ends the process
			_ = c.Wait()
		}
	}
	t.Cleanup(release)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "held\n" {
		t.Fatalf("the holder prints %q, %v", line, err)
	}
	return c.Process.Pid, release
}
