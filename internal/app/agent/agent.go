// Package agent is mete-agent: it measures its machine, tick by tick, and
// closes a window every few seconds.
package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"strings"

	"mete.dev/mete/internal/collect"
	"mete.dev/mete/internal/machine"
	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/workload"
)

// A Config says what the agent does.
type Config struct {
	Machine machine.Config
	// Print writes each closed window to the output: a JSON line for the balance,
	// then one for each row.
	Print bool
}

// Default measures with the best reader there is, once a second.
func Default() Config {
	return Config{Machine: machine.Config{Config: collect.Default(), Reader: machine.Auto}}
}

// Flags makes a flag of every setting; what c holds is the default.
func (c *Config) Flags(f *flag.FlagSet) {
	f.DurationVar(&c.Machine.Tick, "tick", c.Machine.Tick, "`time` between two readings")
	f.DurationVar(&c.Machine.Window, "window", c.Machine.Window, "`time` that a window spans")
	f.StringVar(&c.Machine.Reader, "reader", c.Machine.Reader, "how to read the kernel: "+strings.Join(machine.Readers, ", "))
	f.BoolVar(&c.Print, "print", c.Print, "write each window to standard output as JSON lines: its balance, then each workload's row")
}

// Run measures this machine until ctx ends.
func Run(ctx context.Context, cfg Config, out io.Writer, log *slog.Logger) (err error) {
	m, err := machine.Open(cfg.Machine, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	log.Info("measuring", "reader", m.Reader, "tick", cfg.Machine.Tick, "window", cfg.Machine.Window)
	w := bufio.NewWriter(out)
	var failed error
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	err = m.Run(ctx, nil, func(win *meter.Window) {
		if b := win.Balance; b.Violations > 0 || b.Lost > 0 {
			log.Warn("window", "violations", b.Violations, "lost", b.Lost)
		}
		if cfg.Print {
			if failed = print(w, win); failed != nil {
				stop()
			}
		}
	})
	return errors.Join(err, failed)
}

// span is when a window was, in each line of it.
type span struct {
	Start int64 `json:"start_boottime_ns"`
	End   int64 `json:"end_boottime_ns"`
}

// window is the first line of a window.
type window struct {
	span
	Boot    string        `json:"boot"`
	Offset  int64         `json:"offset_ns,string"` // wall time less boottime
	Rows    int           `json:"rows"`             // that follow
	Balance meter.Balance `json:"balance"`
}

// row is a window's row as it is printed.
type row struct {
	span
	ID      workload.ID       `json:"id"`
	Parent  workload.ID       `json:"parent,omitempty"`
	Kind    workload.Kind     `json:"kind"`
	Name    string            `json:"name"`
	Path    string            `json:"path,omitempty"`
	Ended   bool              `json:"ended,omitempty"`
	Used    map[string]string `json:"used"` // base units, by resource
	Quality map[string]string `json:"quality"`
}

func print(w *bufio.Writer, win *meter.Window) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	when := span{win.Start, win.End}
	if err := enc.Encode(window{when, win.Boot, win.Offset, len(win.Rows), win.Balance}); err != nil {
		return err
	}
	for i := range win.Rows {
		r := &win.Rows[i]
		out := row{span: when, ID: r.Workload.ID, Parent: r.Parent, Kind: r.Workload.Kind,
			Name: r.Workload.Name, Path: r.Workload.Path, Ended: r.Ended, Used: map[string]string{}, Quality: map[string]string{}}
		r.Usage.Present.Each(func(res meter.Resource) {
			out.Used[res.String()] = res.Detail().Unit.Decimal(r.Usage.Amount[res])
			out.Quality[res.String()] = r.Usage.Quality.Get(res).String()
		})
		if err := enc.Encode(out); err != nil {
			return err
		}
	}
	return w.Flush()
}
