package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// A cost is what mete run adds to a trivial command: medians.
type cost struct {
	Reader     string  `json:"reader"`
	Runs       int     `json:"runs"`
	BareMS     float64 `json:"bare_wall_ms"`
	OverMS     float64 `json:"over_bare_wall_ms"`
	CPUMS      float64 `json:"cpu_ms"`
	RSS        int64   `json:"peak_rss_bytes"`
	BareRSS    int64   `json:"bare_peak_rss_bytes"`
	OverBudget bool    `json:"over_budget"`
}

// The budget of `mete run -- true` above the bare command.
const (
	budgetRunMS  = 40
	budgetRunRSS = 40 << 20
)

func run(args []string) (over bool, err error) {
	fs := flag.NewFlagSet("run", flag.ExitOnError)
	n := fs.Int("n", 21, "runs of each")
	readers := fs.String("reader", "auto,bpf,files", "readers to measure")
	output := fs.String("o", "text", "text or json")
	if err := fs.Parse(args); err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "mete-bench-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bin, err := build(dir, "mete")
	if err != nil {
		return false, err
	}
	var costs []cost
	for reader := range strings.SplitSeq(*readers, ",") {
		c := cost{Reader: reader, Runs: *n}
		var bare, wall, cpu []float64
		for range *n {
			b, err := runOnce("true")
			if err != nil {
				return false, err
			}
			m, err := runOnce(bin, "run", "-q", "--reader", reader, "--", "true")
			if err != nil {
				return false, err
			}
			bare, wall, cpu = append(bare, b.wall), append(wall, m.wall), append(cpu, m.cpu)
			c.RSS, c.BareRSS = max(c.RSS, m.rss), max(c.BareRSS, b.rss)
		}
		c.BareMS, c.CPUMS = median(bare), median(cpu)
		c.OverMS = median(wall) - c.BareMS
		c.OverBudget = c.OverMS > budgetRunMS || c.RSS-c.BareRSS > budgetRunRSS
		over = over || c.OverBudget
		costs = append(costs, c)
	}
	if *output == "json" {
		return over, json.NewEncoder(os.Stdout).Encode(costs)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "mete run -- true\tbare ms\tover bare ms\tbudget\tCPU ms\tpeak MiB\tbudget\t\t")
	for _, c := range costs {
		verdict := "ok"
		if c.OverBudget {
			verdict = "OVER"
		}
		fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%d\t%.1f\t%.1f\t%d over %.1f\t%s\t\n", c.Reader, c.BareMS, c.OverMS, budgetRunMS, c.CPUMS,
			float64(c.RSS)/(1<<20), budgetRunRSS>>20, float64(c.BareRSS)/(1<<20), verdict)
	}
	return over, w.Flush()
}

type single struct {
	wall, cpu float64 // ms
	rss       int64
}

func runOnce(name string, args ...string) (s single, err error) {
	cmd := exec.Command(name, args...)
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return s, fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	s.wall = time.Since(start).Seconds() * 1e3
	s.cpu = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds() * 1e3
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		s.rss = u.Maxrss << 10
	}
	return s, nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
