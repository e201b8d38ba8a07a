// Package torture runs the programs as they are, kills them all the time, and
// compares the ledger with what the kernel counted.
package torture

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/hosttest"
	"mete.dev/mete/internal/store/ledger/ledgertest"
)

var (
	wanted = flag.Bool("torture", os.Getenv("METE_TORTURE") != "", "run the test: it loads the machine for a minute or two (or METE_TORTURE=1)")
	long   = flag.Bool("long", false, "torture for ten minutes")
	seed   = flag.Uint64("seed", 0, "of what is left to chance; 0 is a new one")
	keep   = flag.String("keep", "", "`directory` for logs and ledgers, which stay there")
)

// TestMain lets the test binary be a worker, too.
func TestMain(m *testing.M) {
	if home := os.Getenv(workHome); home != "" {
		if err := work(home, strings.Split(os.Getenv(workMounts), "\n")); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		return
	}
	ledgertest.Main(m)
}

// A variant is one way to put the programs together.
type variant struct {
	name     string
	reader   string
	postgres bool
	upstream bool          // a second server, to which the first one tells its rows
	span     time.Duration // in the short run
	// points says that each crash point is to be hit at least three times.
	points bool
}

var variants = []variant{
	{name: "sqlite-bpf", reader: "bpf", span: 60 * time.Second, points: true},
	{name: "sqlite-files", reader: "files", span: 15 * time.Second},
	{name: "upstream-bpf", reader: "bpf", upstream: true},
	{name: "postgres-bpf", reader: "bpf", postgres: true},
}

// Whatever is killed and whenever, and whatever else goes wrong: in the end the
// ledger has, to the nanosecond, what the kernel counted.
func TestTorture(t *testing.T) {
	if !*wanted || testing.Short() {
		t.Skip("loads the machine for a minute or two: -torture or METE_TORTURE=1 runs it")
	}
	hosttest.Need(t, "root", "cgroup1", "bpf")
	bin := build(t)
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

// build makes the programs with their crash points.
func build(t *testing.T) string {
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-tags", "torture", "-o", dir+"/", "mete.dev/mete/cmd/mete", "mete.dev/mete/cmd/mete-agent")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return dir
}

// place makes the directory of a run: short, as a socket's path has to be.
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
