package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
)

// processes are the programs of a cluster that run in the background. Each ends with this process, however
// that ends: the kernel kills children of a thread that ends, so all are started by the main thread.
type processes struct {
	logs  string // a directory
	list  []*process
	ended chan string // why a program ended by itself
}

type process struct {
	*exec.Cmd
	name     string
	stopping atomic.Bool
}

// start starts a program. Its output goes to the log NAME.log.
func (p *processes) start(name string, cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := startLogged(p.logs, name, cmd); err != nil {
		return err
	}
	one := &process{Cmd: cmd, name: name}
	p.list = append(p.list, one)
	go func() {
		if err := cmd.Wait(); !one.stopping.Load() {
			p.ended <- fmt.Sprintf("%s ended: %v; its output is in %s.log", name, err, filepath.Join(p.logs, name))
		}
	}()
	return nil
}

// restart kills a program and starts it again.
func (p *processes) restart(name string) error {
	at := slices.IndexFunc(p.list, func(o *process) bool { return o.name == name })
	if at < 0 {
		return fmt.Errorf("no program %q runs", name)
	}
	one := p.list[at]
	one.stopping.Store(true)
	p.list = slices.Delete(p.list, at, at+1)
	if err := syscall.Kill(-one.Process.Pid, syscall.SIGKILL); err != nil {
		return err
	}
	if err := wait(5*time.Second, func() error { return gone(one.Process.Pid) }); err != nil {
		return err
	}
	return p.start(name, exec.Command(one.Path, one.Args[1:]...))
}

// startLogged starts a program whose output goes to the log NAME.log of a directory.
func startLogged(logs, name string, cmd *exec.Cmd) error {
	log, err := os.OpenFile(filepath.Join(logs, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the program has its own descriptor
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// stop ends all programs, the last one first, and waits for each.
func (p *processes) stop() {
	for i := len(p.list) - 1; i >= 0; i-- {
		p.list[i].stopping.Store(true)
		pid := p.list[i].Process.Pid
		_ = syscall.Kill(pid, syscall.SIGTERM) // it may have ended
		if wait(2*time.Second, func() error { return gone(pid) }) != nil {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
			_ = wait(5*time.Second, func() error { return gone(pid) })
		}
	}
	p.list = nil
}

func gone(pid int) error {
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("process %d still runs", pid)
	}
	return nil
}

// wait calls f until it returns nil, for at most a time, and returns its last error.
func wait(most time.Duration, f func() error) error {
	for end := time.Now().Add(most); ; time.Sleep(50 * time.Millisecond) {
		err := f()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// freePort returns a TCP port of this machine that nothing uses.
func freePort() (int, error) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }() // nothing was written
	return l.Addr().(*net.TCPAddr).Port, nil
}

// run runs a program and returns its output as part of the error.
func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %q: %w\n%s", name, args, err, out)
	}
	return nil
}
