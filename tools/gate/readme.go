package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// readmeCommands are the commands that the README must name.
var readmeCommands = []string{"go run ./cmd/mete run", "go run ./cmd/mete top", "go run ./cmd/mete up", "go run ./cmd/mete usage", "go run ./cmd/mete gaps", "go run ./tools/gate"}

// readme runs the commands of the README that end by themselves, with a home directory of
// their own.
func readme(sh *shell) error {
	text, err := os.ReadFile("README.md")
	if err != nil {
		return err
	}
	for _, command := range readmeCommands {
		if !bytes.Contains(text, []byte(command)) {
			return fmt.Errorf("README.md does not name %q", command)
		}
	}
	dir, err := os.MkdirTemp("", "mete-gate-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	mete := filepath.Join(dir, "mete")
	if err := sh.do("go", "build", "-o", dir+"/", "./cmd/mete", "./cmd/mete-server"); err != nil {
		return err
	}
	sh.env = []string{"HOME=" + dir, "METE_STATE=" + dir, "METE_SOCKET=" + filepath.Join(dir, "sock")}
	url, end, err := sh.up(mete)
	if err != nil {
		return err
	}
	sh.env = append(sh.env, "METE_SERVER="+url)
	for _, args := range [][]string{
		{"run", "--", "sh", "-c", "echo hello"},
		{"run", "-o", "json", "--", "true"},
		{"report", "--last"},
		{"top", "-b", "-n", "1"},
		{"usage", "--from", "-1h"},
		{"nodes"},
		{"gaps"},
	} {
		if err := sh.do(mete, args...); err != nil {
			return errors.Join(err, end())
		}
	}
	return end()
}

// up starts mete up on a free port and returns its URL, and a function that ends it.
func (sh *shell) up(mete string) (url string, end func() error, err error) {
	cmd := sh.command(mete, "up", "--listen", "127.0.0.1:0")
	cmd.Stderr = &sh.out
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	end = func() error {
		// Wait reports an earlier exit.
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return cmd.Wait()
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		fmt.Fprintln(&sh.out, lines.Text())
		if u, ok := strings.CutPrefix(lines.Text(), "mete up: "); ok {
			url = u
		}
		if strings.HasPrefix(lines.Text(), "Stop with") {
			return url, end, nil
		}
	}
	return "", nil, errors.Join(errors.New("mete up ended before it was ready"), end())
}
