package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// processes are the programs of a cluster that run in the background. Each ends with this process, however
// that ends: the kernel kills children of a thread that ends, so all are started by the main thread.
type processes struct {
	logs  string // a directory
	list  []*exec.Cmd
	ended chan string // why a program ended by itself
}

// start starts a program. Its output goes to the log NAME.log.
func (p *processes) start(name string, cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := startLogged(p.logs, name, cmd); err != nil {
		return err
	}
	p.list = append(p.list, cmd)
	go func() {
		err := cmd.Wait()
		p.ended <- fmt.Sprintf("%s ended: %v; its output is in %s.log", name, err, filepath.Join(p.logs, name))
	}()
	return nil
}

// startLogged starts a program whose output goes to the log NAME.log of a directory.
func startLogged(logs, name string, cmd *exec.Cmd) error {
	log, err := os.Create(filepath.Join(logs, name+".log"))
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
