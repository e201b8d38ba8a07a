package run_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/app/run"
	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit/otheruser"
)

// TestMain makes the test program act as mete: run changes a process's handling of signals and
// children, which tests in one process would share.
func TestMain(m *testing.M) {
	powersim.Main()
	otheruser.Main()
	if os.Getenv("METE_TEST_SELF") != "" {
		os.Exit(askSelf())
	}
	if os.Getenv("METE_TEST_MAIN") == "" {
		os.Exit(m.Run())
	}
	if err := os.Unsetenv("METE_TEST_MAIN"); err != nil {
		panic(err)
	}
	run.BePatient()
	root := &cobra.Command{Use: "mete", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(run.Command(), run.Report())
	root.SetArgs(os.Args[1:])
	err := root.ExecuteContext(context.Background())
	code := 0
	if err != nil {
		code = 1
	}
	if e, ok := errors.AsType[*run.Exit](err); ok {
		code, err = e.Code, e.Err
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mete: error:", err)
		if h := fault.Hint(err); h != "" {
			fmt.Fprintln(os.Stderr, "hint:", h)
		}
	}
	os.Exit(code)
}

// A mete is the program with its own state directory.
type mete struct {
	t   testing.TB
	env []string
	dir string // state
}

func program(t testing.TB) *mete {
	m := &mete{t: t, dir: t.TempDir()}
	m.env = append(os.Environ(), "METE_TEST_MAIN=1", "METE_STATE="+m.dir, "METE_SOCKET="+filepath.Join(m.dir, "none")) // not the agent of this machine
	return m
}

func (m *mete) command(args ...string) *exec.Cmd {
	c := exec.Command(os.Args[0], args...)
	c.Env = m.env
	return c
}

// result is the output and exit code of a run.
type result struct {
	stdout, stderr string
	code           int
}

func (m *mete) run(args ...string) result {
	m.t.Helper()
	return finish(m.t, m.command(args...))
}

func finish(t testing.TB, c *exec.Cmd) result {
	t.Helper()
	var out, err bytes.Buffer
	c.Stdout, c.Stderr = &out, &err
	if e := c.Run(); e != nil {
		if _, ok := errors.AsType[*exec.ExitError](e); !ok {
			t.Fatal(e)
		}
	}
	return result{out.String(), err.String(), c.ProcessState.ExitCode()}
}

// job runs a job and returns its report.
func (m *mete) job(args ...string) (*report.Report, result) {
	m.t.Helper()
	file := filepath.Join(m.t.TempDir(), "report.json")
	r := m.run(append([]string{"run", "--json", file, "-q"}, args...)...)
	b, err := os.ReadFile(file)
	if err != nil {
		m.t.Fatalf("%v: exit %d: %s", err, r.code, r.stderr)
	}
	rep, err := report.Parse(b)
	if err != nil {
		m.t.Fatalf("%v\n%s", err, b)
	}
	return rep, r
}

// load builds the program that generates known loads.
func load(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "load")
	c := exec.Command("go", "build", "-o", file, "mete.dev/mete/internal/testkit/loadgen")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return file
}

// did is the load's report of what it did.
type did struct {
	CPU      int64 `json:"cpu_ns"`
	Children int64 `json:"children"`
	Bytes    int64 `json:"bytes"`
	Segments int64 `json:"segments"`
	Sent     int64 `json:"sent"`
}

func oracle(t testing.TB, r result) did {
	t.Helper()
	var d did
	if err := json.Unmarshal([]byte(r.stdout), &d); err != nil {
		t.Fatalf("%v: exit %d: %q %s", err, r.code, r.stdout, r.stderr)
	}
	return d
}
