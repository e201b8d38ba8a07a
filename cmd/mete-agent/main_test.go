package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/testkit/ledgertest"
)

// TestMain makes the test program act as the agent, which ends by a signal, and as the other
// programs that the tests need.
func TestMain(m *testing.M) {
	if err := os.Setenv("METE_HOST_VSOCK", "false"); err != nil { // tests must not query the real host
		panic(err)
	}
	switch os.Getenv("METE_TEST_MAIN") {
	case "1":
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	case "mete":
		os.Exit(mete(os.Args[1:]))
	case "busy": // uses an idle CPU, for at most three minutes
		runtime.LockOSThread()
		if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 19); err != nil { // of the thread
			panic(err)
		}
		for begin := time.Now(); time.Since(begin) < 3*time.Minute; {
		}
		os.Exit(0)
	case "zones":
		if err := writeZones(os.Args[1:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	ledgertest.Main(m)
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"-help", 0, "Usage: mete-agent", ""},
		{"-no", 2, "", "mete-agent: error: flag provided but not defined: -no\nhint: mete-agent --help lists the flags\n"},
		{"-tick soon", 2, "", "hint: mete-agent --help lists the flags\n"},
		{"extra", 2, "", "mete-agent: error: unexpected argument \"extra\"\n"},
		{"-reader tea", 2, "", "for flag -reader: it is one of auto, bpf, files: invalid\n"},
		{"-tick 1ns", 2, "", "for flag -tick: from 10ms to 1m0s: invalid\n"},
		{"-window 10ms", 2, "", "mete-agent: error: window 10ms"},
		{"-idle-power 20", 2, "", "is not DOMAIN=WATTS"},
		{"-idle-power package=-1", 2, "", "is not DOMAIN=WATTS"},
		{"-idle-power package=NaN", 2, "", "is not DOMAIN=WATTS"},
		{"-idle-power package=20,room=9", 2, "", "\"room\" is not one of package, dram, gpu and rest"},
		{"-power-curve /no/such", 2, "", "hint: mete power calibrate -o FILE writes one"},
		{"-power-curve /dev/null", 2, "", "mete-agent: error: --power-curve /dev/null: power curve: "},
		{"-vm-vsock-socket web", 2, "", "\"web\" is not UUID=PATH"},
		{"-vm-vsock-socket web=/run/web", 2, "", "hint: give UUID=PATH"},
		{"-name -x", 2, "", "\"-x\" is not a name of a machine"},
		{"-container-socket docker.sock", 2, "", "\"docker.sock\" is not the path of a unix socket"},
		{"-powercap /no/such", 1, "", "/no/such"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(strings.Fields(c.args), &stdout, &stderr)
		if code != c.code || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("mete-agent %s: exit %d, stdout %q, stderr %q, want %d, %q, %q", c.args, code, &stdout, &stderr, c.code, c.stdout, c.stderr)
		}
		if c.stderr == "" && stderr.Len() > 0 || c.stdout == "" && stdout.Len() > 0 {
			t.Errorf("mete-agent %s: stdout %q, stderr %q, want one of them empty", c.args, &stdout, &stderr)
		}
	}
}

// line is a line of -print: a window if it has a balance, else a row.
type line struct {
	Start   int64             `json:"start_boottime_ns"`
	End     int64             `json:"end_boottime_ns"`
	Rows    int               `json:"rows"`
	Balance *balance          `json:"balance"`
	Kind    string            `json:"kind"`
	Used    map[string]string `json:"used"`
}

type balance struct {
	Whole, Workloads, System, Idle, Skew struct{ CPU json.Number }
	Violations                           int64
}

// TestPrint reads windows of a running agent, stops it, and checks that the parts of the CPU time
// sum to the whole.
func TestPrint(t *testing.T) {
	for _, reader := range []string{"auto", "files"} {
		t.Run(reader, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-print", "-tick", "50ms", "-window", "200ms", "-reader", reader)
			cmd.Env = append(os.Environ(), "METE_TEST_MAIN=1")
			var log bytes.Buffer
			cmd.Stderr = &log
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill() }) // if the test has failed
			windows := 0
			lines := json.NewDecoder(bufio.NewReader(out))
			for {
				var w line
				if err := lines.Decode(&w); err == io.EOF {
					break
				} else if err != nil || w.Balance == nil {
					t.Fatalf("%v, %+v, want a window; log:\n%s", err, w, &log)
				}
				checkWindow(t, &w, lines)
				if windows++; windows == 3 {
					if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("after SIGTERM: %v; log:\n%s", err, &log)
			}
			if windows < 3 {
				t.Errorf("%d windows, want at least 3; log:\n%s", windows, &log)
			}
			if !strings.Contains(log.String(), "msg=measuring") {
				t.Errorf("log %q, want that it measures, and how", &log)
			}
		})
	}
}

// checkWindow reads the rows of w and compares them with its balance.
func checkWindow(t *testing.T, w *line, lines *json.Decoder) {
	t.Helper()
	sums := map[string]*big.Rat{"system": new(big.Rat), "idle": new(big.Rat), "": new(big.Rat)}
	all := new(big.Rat)
	for range w.Rows {
		var r line
		if err := lines.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Start != w.Start || r.End != w.End || r.Balance != nil {
			t.Fatalf("row %+v, want one of the window %d to %d", r, w.Start, w.End)
		}
		cpu, ok := r.Used["cpu"]
		if !ok {
			continue
		}
		kind := r.Kind
		if sums[kind] == nil {
			kind = ""
		}
		sums[kind].Add(sums[kind], rat(t, cpu))
		all.Add(all, rat(t, cpu))
	}
	b := w.Balance
	whole := rat(t, b.Whole.CPU.String())
	if whole.Sign() <= 0 || b.Violations != 0 {
		t.Errorf("balance %+v, want a whole above 0 and no violation", b)
	}
	if want := whole.Add(whole, rat(t, b.Skew.CPU.String())); all.Cmp(want) != 0 {
		t.Errorf("CPU of all rows %s s, want the whole and the skew, %s s", all.FloatString(9), want.FloatString(9))
	}
	for kind, want := range map[string]json.Number{"system": b.System.CPU, "idle": b.Idle.CPU, "": b.Workloads.CPU} {
		if got := sums[kind]; got.Cmp(rat(t, want.String())) != 0 {
			t.Errorf("CPU of rows of kind %q %s s, want %s s", kind, got.FloatString(9), want)
		}
	}
}

func rat(t *testing.T, decimal string) *big.Rat {
	t.Helper()
	r, ok := new(big.Rat).SetString(decimal)
	if !ok {
		t.Fatalf("%q is not a number", decimal)
	}
	return r
}
