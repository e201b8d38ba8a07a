package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// A sink is a real server on this machine for agents to send to.
type sink struct {
	url string
	cmd *exec.Cmd
}

// openSink starts a server that keeps its ledger in dir.
func openSink(dir string) (*sink, error) {
	bin, err := build(dir, "mete-server")
	if err != nil {
		return nil, err
	}
	s := &sink{cmd: exec.Command(bin, "server", "--insecure", "--listen", "127.0.0.1:0", "--state", filepath.Join(dir, "server"))}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "mete server: ")
	if err != nil || !ok {
		return nil, errors.Join(fmt.Errorf("mete server prints %q instead of its address", line), err, s.close())
	}
	s.url = url
	return s, nil
}

func (s *sink) close() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return s.cmd.Wait()
}

// flags returns the flags of an agent that sends to s and keeps its state in dir. Without a
// sink it has no spool.
func (s *sink) flags(dir string) []string {
	if s == nil {
		return []string{"-server", ""}
	}
	return []string{"-server", s.url, "-state", dir, "-socket", filepath.Join(dir, "sock"), "-status", ""}
}
