package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// A shell runs the commands of one stage one after another, and keeps their output and the
// CPU time of them and their children.
type shell struct {
	ctx      context.Context
	packages []string  // of the run: ./... or a list
	progress io.Writer // receives the package lines of go test as they come
	env      []string  // in addition to the gate's own
	out      bytes.Buffer
	cpu      time.Duration
}

// do runs a command.
func (sh *shell) do(name string, args ...string) error { return sh.show(&sh.out, name, args...) }

// show runs a command with its output written to w.
func (sh *shell) show(w io.Writer, name string, args ...string) error {
	fmt.Fprintf(&sh.out, "$ %s\n", strings.Join(append(append([]string{}, sh.env...), append([]string{name}, args...)...), " "))
	cmd := sh.command(name, args...)
	cmd.Stdout, cmd.Stderr = w, w // one writer for both, so that writes do not interleave
	return sh.wait(cmd)
}

// test runs go test, and shows each package's verdict as it comes.
func (sh *shell) test(args ...string) error {
	return sh.show(io.MultiWriter(&sh.out, &verdicts{to: sh.progress}), "go", append([]string{"test", "-count=1", "-vet=off"}, args...)...)
}

// verdicts passes on the lines of go test with the verdict of a package, except for
// packages without tests.
type verdicts struct {
	to   io.Writer
	line []byte
}

func (v *verdicts) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		part, after, whole := bytes.Cut(rest, []byte{'\n'})
		v.line = append(v.line, part...)
		rest = after
		if !whole {
			break
		}
		if verdict := bytes.HasPrefix(v.line, []byte("ok  \t")) || bytes.HasPrefix(v.line, []byte("FAIL\t")); verdict && v.to != nil {
			fmt.Fprintf(v.to, "%s\n", v.line)
		}
		v.line = v.line[:0]
	}
	return len(p), nil
}

// quiet runs a command that prints only problems: any output is a failure.
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

// command creates a command that is killed with all its children when the run is stopped.
func (sh *shell) command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(sh.ctx, name, args...)
	// On a virtual machine, do not connect to its host.
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
