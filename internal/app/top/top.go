// Package top implements the command mete top, which shows live what every workload of this
// machine, or of the machines of a server, uses: on a terminal, as text, or as JSON for scripts.
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/ui/top"
)

// A Meter returns the state of the machine, tick by tick. One goroutine calls Next; Close is called
// after the last call has returned.
type Meter = interface {
	// Next waits for the next tick, or for the end of ctx. The caller may keep the result: it does
	// not change later. An error skips the tick, except that one which wraps fault.ErrUnsupported,
	// fault.ErrDenied or fault.ErrInvalid ends the command.
	Next(ctx context.Context) (*live.Machine, error)
	Close() error
}

// Open starts a meter.
type Open = func(context.Context, Options) (Meter, error)

// Options control the measurement.
type Options struct {
	Tick   time.Duration
	Reader string // auto, bpf or files
	// Powercap is the directory of the RAPL counters; "" is this machine's own.
	Powercap string
}

// Limits of --interval: below the first the meter measures mostly itself, above the second it
// misses too many short-lived workloads.
const (
	minTick = 100 * time.Millisecond
	maxTick = time.Minute
)

type config struct {
	interval string
	reader   string
	powercap string
	batch    bool
	count    int
	output   string
	sort     string
	columns  []string
	all      bool
	view     top.Options

	tick   time.Duration // parsed interval
	remote remoteFlags
}

// Command returns the command. It ends without an error when its context ends.
func Command(open Open) *cobra.Command {
	var c config
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the use of every workload, live",
		Long: `Show live what every workload of this machine uses: containers, pods, services,
sessions, virtual machines, jobs; and the two that no job caused, system and idle.

The screen begins without idle workloads, whose figures are in a line of their own.

Amounts are exclusive: a row shows what a workload used and nothing below it did,
so the rows add up to the machine. A folded row shows all that is in it.
–  absent (not zero)   ~  a measured total, apportioned   ≈  modelled

With --server it shows the machines that a server knows, as of the latest window of
each: below a machine stand its workloads, and its own row shows what it uses, with
all power that it draws. A machine that is not heard is marked, and its figures are
absent; so are those of a guest, which are within its host's: --node NODE shows it.

Where the output is not a terminal, or with -b, the table is printed as plain
text, tick after tick.`,
		Example: `  mete top
  mete top -b -n 1 --sort memory
  mete top --server http://127.0.0.1:9797 --sort power
  mete top -o json -n 1 | jq '.workloads[] | select(.cpu_cores > 0.5) | .name'`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.remote.conflict(cmd); err != nil {
				return err
			}
			if c.remote.URL != "" {
				open = func(ctx context.Context, o Options) (Meter, error) {
					return openFleet(ctx, c.remote, o.Tick)
				}
			}
			if err := c.validate(cmd.Flags().Changed("interval")); err != nil {
				return err
			}
			return run(cmd.Context(), &c, open, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&c.interval, "interval", "d", "1s", "take a reading each `DURATION`: 500ms, 2s, or a number of seconds (default with --server: 5s)")
	f.StringVar(&c.reader, "reader", "auto", "read the kernel by `READER`: auto, bpf or files")
	f.StringVar(&c.powercap, "powercap", "", "read RAPL's counters in `DIR`, in place of this machine's own")
	f.BoolVarP(&c.batch, "batch", "b", false, "print plain text instead of taking the screen")
	f.IntVarP(&c.count, "iterations", "n", 0, "end after `N` readings (0: never)")
	f.StringVarP(&c.output, "output", "o", "text", "print `FORM`: text, or json, one document a line and reading")
	c.remote.flags(cmd)
	f.StringVar(&c.sort, "sort", "cpu", "sort by `COLUMN`: "+strings.Join(top.Sorts(), ", "))
	f.BoolVar(&c.view.Reverse, "reverse", false, "reverse the order")
	f.BoolVar(&c.view.Flat, "flat", false, "a list instead of a tree")
	f.StringVar(&c.view.Filter, "filter", "", "show only workloads with `TEXT` in name, path or kind")
	f.BoolVar(&c.all, "all", false, "begin with idle workloads on the screen too; the key z hides them (text and JSON always have them)")
	f.StringSliceVar(&c.columns, "columns", nil, "show only these `COLUMNS`: cpu, memory, power, disk, network, pids, pressure (default: as many as fit)")
	f.BoolVar(&c.view.ASCII, "ascii", false, "draw with ASCII characters only")
	cli.Choices(cmd, "reader", "auto", "bpf", "files")
	cli.Choices(cmd, "output", "text", "json")
	cli.Choices(cmd, "sort", top.Sorts()...)
	return cmd
}

// validate checks and parses the flags. chosen reports whether the user set the interval.
func (c *config) validate(chosen bool) (err error) {
	if c.tick, err = unit.ParseSeconds(c.interval); err != nil {
		return fmt.Errorf("--interval: %w", err)
	}
	if c.remote.URL != "" && !chosen {
		c.tick = fleetTick
	}
	switch {
	case c.remote.URL != "" && c.tick < minFleetTick:
		return fault.WithHint(fmt.Errorf("--interval %s with --server: %w", c.interval, fault.ErrInvalid), "from 1s to 1m: agents close a window every ten seconds")
	case c.tick < minTick || c.tick > maxTick:
		return fault.WithHint(fmt.Errorf("--interval %s: %w", c.interval, fault.ErrInvalid), "from 100ms to 1m")
	case c.count < 0:
		return fault.WithHint(fmt.Errorf("--iterations %d: %w", c.count, fault.ErrInvalid), "0 is unlimited")
	case c.output != "text" && c.output != "json":
		return fault.WithHint(fmt.Errorf("--output %q: %w", c.output, fault.ErrInvalid), "text or json")
	case c.reader != "auto" && c.reader != "bpf" && c.reader != "files":
		return fault.WithHint(fmt.Errorf("--reader %q: %w", c.reader, fault.ErrInvalid), "auto, bpf or files")
	}
	if c.view.Sort, err = top.ParseSort(c.sort); err != nil {
		return fmt.Errorf("--sort: %w", err)
	}
	if len(c.columns) > 0 {
		if c.view.Hidden, err = top.ParseColumns(c.columns); err != nil {
			return fmt.Errorf("--columns: %w", err)
		}
	}
	return nil
}

func run(ctx context.Context, c *config, open Open, in io.Reader, out io.Writer) (err error) {
	screen := isTerminal(out) && !c.batch && c.output == "text"
	if screen && os.Getenv("TERM") == "dumb" {
		return fault.WithHint(fmt.Errorf("terminal of type dumb: %w", fault.ErrUnsupported), "print plain text with: mete top -b")
	}
	m, err := open(ctx, Options{Tick: c.tick, Reader: c.reader, Powercap: c.powercap})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if screen {
		return show(ctx, c, m, in, out)
	}
	err = batch(ctx, c, m, out)
	if ctx.Err() != nil || errors.Is(err, syscall.EPIPE) {
		return nil // an endless list ends by a signal, or when the reader closes the pipe
	}
	return err
}

// fatal reports whether later ticks will fail in the same way.
func fatal(err error) bool {
	return errors.Is(err, fault.ErrUnsupported) || errors.Is(err, fault.ErrDenied) || errors.Is(err, fault.ErrInvalid)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(f.Fd())
}
