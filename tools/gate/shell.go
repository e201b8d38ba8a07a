package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// A shell runs the commands of one stage, one after another, and keeps what
// they print and the CPU time that they and their children took.
type shell struct {
	ctx context.Context
	env []string // beside the gate's own
	out bytes.Buffer
	cpu time.Duration
}

// do runs a command.
func (sh *shell) do(name string, args ...string) error {
	fmt.Fprintf(&sh.out, "$ %s\n", strings.Join(append(append([]string{}, sh.env...), append([]string{name}, args...)...), " "))
	cmd := sh.command(name, args...)
	cmd.Stdout, cmd.Stderr = &sh.out, &sh.out
	return sh.wait(cmd)
}

// quiet runs a command that must print nothing: what it prints is what is wrong.
func (sh *shell) quiet(name string, args ...string) error {
	out, err := sh.output(name, args...)
	if err != nil {
		return err
	}
	if out = strings.TrimSpace(out); out != "" {
		fmt.Fprintln(&sh.out, out)
		return fmt.Errorf("%s found the above", name)
	}
	return nil
}

// output runs a command and returns its standard output.
func (sh *shell) output(name string, args ...string) (string, error) {
	var stdout bytes.Buffer
	cmd := sh.command(name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &sh.out
	err := sh.wait(cmd)
	if err != nil {
		sh.out.Write(stdout.Bytes())
	}
	return stdout.String(), err
}

// command makes a command that is killed with all its children when the stage
// is interrupted.
func (sh *shell) command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(sh.ctx, name, args...)
	// Where this machine is a virtual one itself, nothing here asks its host.
	cmd.Env = append(append(os.Environ(), "METE_HOST_VSOCK=false"), sh.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func (sh *shell) wait(cmd *exec.Cmd) error {
	err := cmd.Run()
	if s := cmd.ProcessState; s != nil {
		sh.cpu += s.UserTime() + s.SystemTime()
	}
	switch {
	case sh.ctx.Err() != nil:
		return context.Cause(sh.ctx)
	case err != nil:
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args[:min(3, len(cmd.Args))], " "), err)
	}
	return nil
}
