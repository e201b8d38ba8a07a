package powersim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
)

// variable is the environment variable with the configuration of a simulator.
const variable = "METE_POWERSIM"

// Main runs the simulator in a process started by [Start], and does not return there. In
// other processes it does nothing.
func Main() {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	if err := simulate([]byte(text), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "powersim:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// simulate runs until in ends, and writes to out once the tree exists.
func simulate(text []byte, in io.Reader, out io.Writer) error {
	var cfg Config
	if err := json.Unmarshal(text, &cfg); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	if !cfg.NormalPriority {
		if err := RaisePriority(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		// EOF means that the parent is gone, for whatever reason.
		_, _ = io.Copy(io.Discard, in)
	}()
	return Run(ctx, cfg, func() { fmt.Fprintln(out, "ready") })
}

// RaisePriority raises the priority of this process, so that steps stay short while the
// loads use all CPUs. Without the privilege steps are longer and equally exact. The process
// must have a session of its own.
func RaisePriority() error {
	h, err := hostfs.Open("/")
	if err != nil {
		return err
	}
	threads, err := h.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		// Priority is per thread; new threads inherit it.
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		_ = unix.Setpriority(unix.PRIO_PROCESS, tid, -20)
	}
	// With autogroups, priorities apply within a session.
	_ = h.WriteFile("/proc/self/autogroup", []byte("-20"))
	return h.Close()
}

// A Process is a running simulator.
type Process struct {
	cmd    *exec.Cmd
	in     io.Closer
	stderr *bytes.Buffer
	truth  string
}

// Start starts a simulator and returns once its tree exists. The simulator ends with
// [Process.Stop] or this process.
func Start(cfg Config) (*Process, error) {
	text, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), variable+"="+string(text))
	p := &Process{cmd: cmd, stderr: &bytes.Buffer{}, truth: cfg.Truth}
	cmd.Stderr = p.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // see RaisePriority
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		return nil, errors.Join(fmt.Errorf("the power simulator did not start: %q", line), p.Stop())
	}
	return p, nil
}

// PID returns the simulator's PID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Truth returns the use so far.
func (p *Process) Truth() (*Truth, error) { return ReadTruth(p.truth) }

// Stop makes a last step and ends the simulator. The truth is complete afterwards.
func (p *Process) Stop() error {
	if err := errors.Join(p.in.Close(), p.cmd.Wait()); err != nil {
		return fmt.Errorf("power simulator: %w: %s", err, bytes.TrimSpace(p.stderr.Bytes()))
	}
	return nil
}
