package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
)

// A runResult is the cost of one reader.
type runResult struct {
	Groups     int     `json:"groups"`
	Reader     string  `json:"reader"`
	CPU        float64 `json:"cpu_seconds_per_minute"`
	Floor      float64 `json:"floor_cpu_seconds_per_minute"` // of only reading the groups
	TickUS     float64 `json:"cpu_us_per_tick"`
	RSS        int64   `json:"rss_bytes"` // mean of a reading each second
	PeakRSS    int64   `json:"peak_rss_bytes"`
	BudgetCPU  float64 `json:"budget_cpu_seconds_per_minute,omitempty"`
	BudgetRSS  int64   `json:"budget_rss_bytes,omitempty"`
	OverBudget bool    `json:"over_budget"`
}

// A budget is the maximum cost of an agent with ticks of a second and up to the given
// number of groups: CPU seconds per minute and resident bytes.
type budget struct {
	groups int
	reader string
	cpu    float64
	rss    int64
}

var budgets = []budget{
	{500, "bpf", 0.2, 16 << 20},
	{500, "files", 0.5, 16 << 20},
	{5000, "bpf", 1.5, 50 << 20},
}

func agent(args []string) (over bool, err error) {
	fs := flag.NewFlagSet("agent", flag.ExitOnError)
	n := fs.Int("n", 500, "groups to make")
	tick := fs.Duration("tick", time.Second, "time between readings")
	length := fs.Duration("for", time.Minute, "how long to measure")
	readers := fs.String("reader", "bpf,files", "readers to measure, one after the other")
	alone := fs.Bool("alone", false, "measure only, without a spool and a server to send to")
	packages := fs.Int("zones", 2, "CPU packages, with memory, of a simulated powercap tree; 0 uses this machine's meters")
	given := fs.String("bin", "", "measure this program instead of building ./cmd/mete-agent")
	output := fs.String("o", "text", "text or json")
	if err := fs.Parse(args); err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "mete-bench-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bin := *given
	if bin == "" {
		if bin, err = build(dir, "mete-agent"); err != nil {
			return false, err
		}
	}
	h, err := hostfs.Open("/")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	fmt.Fprintf(os.Stderr, "making %d groups\n", *n)
	f, err := newFarm(h, *n)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.clear()) }()

	var power []string
	if *packages > 0 {
		z, err := createZones(filepath.Join(dir, "powercap"), *packages)
		if err != nil {
			return false, err
		}
		defer func() { err = errors.Join(err, z.close()) }()
		power = []string{"-powercap", z.dir}
	}

	var to *sink
	if !*alone {
		if to, err = openSink(dir); err != nil {
			return false, err
		}
		defer func() { err = errors.Join(err, to.close()) }()
	}

	var results []runResult
	for reader := range strings.SplitSeq(*readers, ",") {
		fmt.Fprintf(os.Stderr, "measuring mete-agent -reader %s for %v\n", reader, *length)
		flags := append(to.flags(filepath.Join(dir, reader)), "-reader", reader, "-tick", tick.String())
		r, err := measure(exec.Command(bin, append(flags, power...)...), reader, *tick, *length)
		if err != nil {
			return false, err
		}
		r.Groups = *n
		floor, err := measureBare(h, f, reader)
		if err != nil {
			return false, err
		}
		r.Floor = floor.Seconds() * float64(time.Minute) / float64(*tick)
		for _, b := range budgets {
			if b.reader == reader && *n <= b.groups && *tick >= time.Second {
				r.BudgetCPU, r.BudgetRSS = b.cpu, b.rss
				r.OverBudget = r.CPU > b.cpu || r.RSS > b.rss
				break
			}
		}
		over = over || r.OverBudget
		results = append(results, r)
	}
	if *output == "json" {
		return over, json.NewEncoder(os.Stdout).Encode(results)
	}
	return over, show(results)
}

func show(results []runResult) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "groups\treader\tCPU s/min\tbudget\tbare reading s/min\tCPU us/tick\tRSS MiB\tbudget\tpeak MiB\t\t")
	for _, r := range results {
		verdict := "ok"
		if r.OverBudget {
			verdict = "OVER"
		}
		fmt.Fprintf(w, "%d\t%s\t%.3f\t%.1f\t%.3f\t%.0f\t%.1f\t%d\t%.1f\t%s\t\n", r.Groups, r.Reader, r.CPU, r.BudgetCPU, r.Floor,
			r.TickUS, float64(r.RSS)/(1<<20), r.BudgetRSS>>20, float64(r.PeakRSS)/(1<<20), verdict)
	}
	return w.Flush()
}

// measure runs the agent and measures its cost after the start.
func measure(cmd *exec.Cmd, reader string, tick, length time.Duration) (r runResult, err error) {
	cmd.Stderr = os.Stderr
	cmd.Env = append(cmd.Environ(), "METE_HOST_VSOCK=false") // not part of the measurement
	if err := cmd.Start(); err != nil {
		return r, err
	}
	defer func() {
		if e := cmd.Process.Signal(syscall.SIGTERM); e != nil {
			err = errors.Join(err, e)
		}
		err = errors.Join(err, cmd.Wait())
	}()
	pid := cmd.Process.Pid
	// Until it has found everything, read each slow set once, and read back what it needs of the memory
	// that it returned after its first window.
	time.Sleep(25*time.Second + 2*tick)
	from, at := cpuOf(pid), time.Now()
	var sum, n int64
	for end := at.Add(length); time.Now().Before(end); n++ {
		time.Sleep(min(time.Second, time.Until(end)))
		var rss int64
		if rss, r.PeakRSS, err = memoryOf(pid); err != nil {
			return r, err
		}
		sum += rss
	}
	used, took := cpuOf(pid)-from, time.Since(at)
	if from == 0 {
		return r, fmt.Errorf("mete-agent -reader %s ended early", reader)
	}
	r.Reader = reader
	r.CPU = used.Seconds() / took.Minutes()
	r.TickUS = used.Seconds() * 1e6 / (took.Seconds() / tick.Seconds())
	r.RSS = sum / max(n, 1)
	return r, nil
}

// cpuOf returns the CPU time of another process: the clock id of process pid is ~pid<<3 | 2
// (CPUCLOCK_SCHED of linux/posix-timers.h).
func cpuOf(pid int) time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(int32(^pid<<3|2), &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

func memoryOf(pid int) (rss, peak int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kb int64
		if _, e := fmt.Sscanf(line, "VmRSS: %d kB", &kb); e == nil {
			rss = kb << 10
		}
		if _, e := fmt.Sscanf(line, "VmHWM: %d kB", &kb); e == nil {
			peak = kb << 10
		}
	}
	return rss, peak, nil
}

// measureBare returns the CPU time of one pass that only reads CPU and memory of all
// groups.
func measureBare(h *hostfs.FS, f *farm, reader string) (cost time.Duration, err error) {
	const passes = 30
	var pass func() error
	if reader == "files" {
		var files []*hostfs.File
		defer func() {
			for _, f := range files {
				_ = f.Close()
			}
		}()
		var buf [4096]byte
		for i := range f.cpu {
			for _, p := range []string{firstExisting(h, f.cpu[i]+"/cpuacct.usage", f.cpu[i]+"/cpu.stat"),
				firstExisting(h, f.mem[i]+"/memory.usage_in_bytes", f.mem[i]+"/memory.current")} {
				file, err := h.Open(p)
				if err != nil {
					return 0, err
				}
				files = append(files, file)
			}
		}
		pass = func() error {
			for _, f := range files {
				if _, err := f.Pread(buf[:]); err != nil {
					return err
				}
			}
			return nil
		}
	} else {
		cfg := bpf.Default()
		cfg.Parts = bpf.Walks
		k, err := bpf.Open(cfg)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, k.Close()) }()
		var ws []*bpf.Walker
		for _, d := range []string{filepath.Dir(filepath.Dir(f.cpu[0])), filepath.Dir(filepath.Dir(f.mem[0]))} {
			dir, err := h.Open(d)
			if err != nil {
				return 0, err
			}
			w, err := k.NewWalker(dir.Fd(), false)
			_ = dir.Close()
			if err != nil {
				return 0, err
			}
			defer func() { err = errors.Join(err, w.Close()) }()
			ws = append(ws, w)
		}
		pass = func() error {
			for _, w := range ws {
				if _, err := w.Read(); err != nil {
					return err
				}
			}
			return nil
		}
	}
	from := cpuOf(os.Getpid())
	for range passes {
		if err := pass(); err != nil {
			return 0, err
		}
	}
	return (cpuOf(os.Getpid()) - from) / passes, nil
}

// firstExisting returns the first of the files that exists.
func firstExisting(h *hostfs.FS, paths ...string) string {
	for _, p := range paths {
		if _, err := h.ReadFile(p); err == nil {
			return p
		}
	}
	return paths[0]
}
