// Package torture runs the real programs, kills them repeatedly, and compares the ledger with
// the kernel's counters.
package torture

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/ledgertest"
)

var (
	long = flag.Bool("long", false, "torture for ten minutes")
	seed = flag.Uint64("seed", 0, "seed of random decisions; 0 means a new one")
	keep = flag.String("keep", "", "`directory` in which to keep logs and ledgers")
)

// TestMain also runs the test binary as a worker process.
func TestMain(m *testing.M) {
	if home := os.Getenv(workHome); home != "" {
		if err := work(home, strings.Split(os.Getenv(workMounts), "\n"), os.Getenv(workFile)); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		return
	}
	if err := os.Setenv("METE_HOST_VSOCK", "false"); err != nil { // tests must not contact the machine's real host
		panic(err)
	}
	ledgertest.Main(m)
}

// A variant is a combination of programs and faults.
type variant struct {
	name     string
	reader   string
	postgres bool
	upstream bool          // a second server, to which the first one replicates
	drill    bool          // a fixed list of faults, see TestTortureShort
	clock    bool          // set the wall clock of the agent's machine at random
	again    bool          // agents measure booked time again, see again_test.go
	span     time.Duration // length of the short run
	faults   int           // minimum number of faults
	points   []string      // failpoints to hit at least three times
}

var variants = []variant{
	{name: "sqlite-bpf", reader: "bpf", span: 40 * time.Second, faults: 100, points: slices.Concat(names(agentPoints), names(serverPoints), lossPoints)},
	{name: "sqlite-files", reader: "files", span: 12 * time.Second},
	{name: "postgres-upstream-bpf", reader: "bpf", postgres: true, upstream: true, clock: true, span: 20 * time.Second,
		points: append(names(corePoints), upPoint)},
	{name: "again-bpf", reader: "bpf", again: true, span: 20 * time.Second},
	{name: "upstream-bpf", reader: "bpf", upstream: true},
	{name: "postgres-bpf", reader: "bpf", postgres: true},
}

func names(points map[string]int) []string { return slices.Sorted(maps.Keys(points)) }

// After kills and faults at random times, the ledger equals the kernel's counters to the
// nanosecond.
func TestTorture(t *testing.T) {
	testkit.Stage(t, "torture", "kills at random for minutes")
	hosttest.Need(t, "root", "cgroup1", "memcg1", "loop", "bpf")
	bin := build(t, true)
	for _, v := range variants {
		if *long {
			v.span = 10 * time.Minute / time.Duration(len(variants))
		}
		t.Run(v.name, func(t *testing.T) {
			if v.span == 0 {
				t.Skip("only with -long")
			}
			n := *seed
			if n == 0 {
				n = rand.Uint64()
			}
			t.Logf("-seed %d", n)
			r := newRig(t, v, bin, n)
			r.run(v.span)
			r.check()
		})
	}
}

// programs maps the programs of a run to their packages.
var programs = map[string]string{
	"mete":        "mete.dev/mete/cmd/mete",
	"mete-server": "mete.dev/mete/internal/testkit/torture/server",
	"mete-agent":  "mete.dev/mete/internal/testkit/torture/agent",
}

// build builds the programs with failpoints and, if clock is true, the agent with a settable
// wall clock.
func build(t *testing.T, clock bool) string {
	dir := t.TempDir()
	for program, pkg := range programs {
		replaced := map[string]string{
			filepath.Join(sourceDir(t, "mete.dev/mete/internal/x/failpoint"), "failpoint.go"): filepath.Join(sourceDir(t, "mete.dev/mete/internal/testkit/torture/failpoint"), "failpoint.go"),
		}
		if clock && program == "mete-agent" {
			maps.Copy(replaced, replaceClock(t, dir))
		}
		cmd := exec.Command("go", "build", "-overlay", testkit.Overlay(t, replaced), "-o", filepath.Join(dir, program), pkg)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
	}
	return dir
}

// sourceDir returns the source directory of a package.
func sourceDir(t *testing.T, pkg string) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// place creates the directory of a run, with a path short enough for sockets.
func place(t *testing.T, name string) string {
	dir := *keep
	if dir != "" {
		dir = filepath.Join(dir, name)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	dir, err := os.MkdirTemp("", "mete-torture-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
