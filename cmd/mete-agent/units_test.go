package main

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"mete.dev/mete/internal/testkit/hosttest"
)

// The units that are shipped are valid for systemd, and name flags that the agent has.
func TestUnits(t *testing.T) {
	tool := hosttest.Program(t, "systemd-analyze")
	for _, name := range []string{"mete-agent", "mete-server"} {
		text, err := os.ReadFile("../../deploy/systemd/" + name + ".service")
		if err != nil {
			t.Fatal(err)
		}
		unit := filepath.Join(t.TempDir(), name+".service")
		// It has to find the program.
		if err := os.WriteFile(unit, bytes.ReplaceAll(text, []byte("/usr/local/bin/"+name), []byte("/bin/true")), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), tool, "verify", unit).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// An agent of another user, with only the capabilities of its unit, reads all that root's does.
func TestLeastRights(t *testing.T) {
	hosttest.Need(t, "root", "bpf")
	text, err := os.ReadFile("../../deploy/systemd/mete-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	numbers := map[string]uintptr{"CAP_DAC_READ_SEARCH": 2, "CAP_NET_BIND_SERVICE": 10, "CAP_NET_ADMIN": 12, "CAP_PERFMON": 38, "CAP_BPF": 39}
	var caps []uintptr
	for name := range strings.FieldsSeq(string(regexp.MustCompile(`(?m)^AmbientCapabilities=(.*)$`).FindSubmatch(text)[1])) {
		if numbers[name] == 0 {
			t.Fatalf("the unit has %s", name)
		}
		caps = append(caps, numbers[name])
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := readableCopy(t, self)
	parts := map[bool]string{}
	for _, root := range []bool{true, false} {
		cmd := exec.CommandContext(t.Context(), program, "-print", "-window", "1s", "-nvml", "off", "-status", "", "-socket", "")
		cmd.Env = append(os.Environ(), "METE_TEST_MAIN=1")
		if !root {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, AmbientCaps: caps}
		}
		var log bytes.Buffer
		cmd.Stderr = &log
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		line, _ := bufio.NewReader(out).ReadString('\n')
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		found := regexp.MustCompile(`reader=bpf parts=(\S+)`).FindStringSubmatch(log.String())
		if found == nil || !strings.Contains(line, `"balance"`) {
			t.Fatalf("root %v: %.100s: %s", root, line, log.String())
		}
		parts[root] = found[1]
	}
	if parts[true] != parts[false] {
		t.Errorf("root's agent reads by %s, another one by %s", parts[true], parts[false])
	}
}

// readableCopy returns a copy of a program in a directory that every user can read.
func readableCopy(t *testing.T, program string) string {
	dir, err := os.MkdirTemp("", "mete-agent-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "mete-agent")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(to, b, 0o755)); err != nil {
		t.Fatal(err)
	}
	return to
}
