// Package agent is mete-agent: it measures its machine, tick by tick, and
// closes a window every few seconds.
package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"

	"mete.dev/mete/internal/machine"
	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/workload"
)

// A Config says what the agent does.
type Config struct {
	Machine machine.Config
	// Print writes each closed window to the output, a JSON line a row.
	Print bool
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

// row is a window's row as it is printed.
type row struct {
	Start   int64             `json:"start_boottime_ns"`
	End     int64             `json:"end_boottime_ns"`
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
	for i := range win.Rows {
		r := &win.Rows[i]
		out := row{Start: win.Start, End: win.End, ID: r.Workload.ID, Parent: r.Parent, Kind: r.Workload.Kind,
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
