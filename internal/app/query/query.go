// Package query implements the command mete query: a PromQL query to a server, printed as a table,
// a chart, CSV or JSON.
package query

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/prom/result"
	"mete.dev/mete/internal/ui/chart"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/text"
)

// formats are the values of -o.
var formats = []string{"table", "chart", "csv", "json"}

type config struct {
	client.Target
	from, to, step string
	output         string
	ascii          bool
}

// Command returns the command.
func Command() *cobra.Command {
	var c config
	cmd := &cobra.Command{
		Use:   "query PROMQL",
		Short: "Query metrics in PromQL, as a table or a chart",
		Long: `Ask a server, mete up or mete server, for metrics in PromQL, Prometheus's language.
At an instant the answer is a table; from --from on it is a range, and on a terminal a
chart: the six series that are largest on average.

Units follow from the names of metrics and from functions: the rate of seconds of CPU
time is cores, that of joules watts, that of byte-seconds bytes. Tables and charts are
rounded for people; CSV and JSON (as Prometheus answers) have the values as they are.

A series can contain measured, apportioned and modelled amounts: mete usage and mete top
mark each amount with its quality. Without data the output is empty, or has no rows or
series, and the exit code is 0. The names of workloads are labels of
mete_workload_info, whose value is 1, so that multiplying a series by it adds names.`,
		Example: `  mete query 'sum by (part) (mete_node_power_watts)'
  mete query 'topk(5, rate(mete_workload_cpu_seconds_total[5m]))' --from -1h
  mete query 'sum by (domain) (rate(mete_workload_energy_joules_total[5m]))' --from today --step 5m
  mete query 'mete_node_cpu_cores' --from -7d --step 1h -o csv > week.csv`,
		Args:          cobra.ExactArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, args []string) error { return c.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	cli.RangeFlags(cmd, &c.from, &c.to, "", "query a range that begins at", "end of the range, or the instant to query,")
	f.StringVar(&c.step, "step", "", "take a point each `DURATION` of a range: 30s, 5m, 1h (default: about 240 points)")
	f.StringVarP(&c.output, "output", "o", "", "print `FORM`: table, chart, csv or json (default: chart of a range on a terminal, else table)")
	f.BoolVar(&c.ascii, "ascii", false, "print ASCII characters only")
	c.Flags(f)
	cli.Choices(cmd, "output", formats...)
	return cmd
}

// run sends the query and prints the answer.
func (c *config) run(cmd *cobra.Command, promql string) error {
	if c.output != "" {
		if err := cli.OneOf("-o", c.output, formats...); err != nil {
			return err
		}
	}
	if strings.TrimSpace(promql) == "" {
		return fault.WithHint(fmt.Errorf("an empty query: %w", fault.ErrInvalid), "mete query --help has examples")
	}
	when, err := c.parseRange(time.Now())
	if err != nil {
		return err
	}
	server, err := c.Open()
	if err != nil {
		return err
	}
	a, err := request(cmd.Context(), server, promql, when)
	if err != nil {
		return explain(promql, err)
	}
	return c.print(cmd.OutOrStdout(), cmd.ErrOrStderr(), a, chart.Options{From: when.from, To: when.to, Step: when.step, Zone: time.Local,
		Unit: chart.UnitOf(promql), ASCII: c.ascii})
}

// A timeRange is the requested range; if step is 0, the instant to.
type timeRange struct {
	from, to time.Time
	step     time.Duration
}

// parseRange parses the time flags.
func (c *config) parseRange(now time.Time) (s timeRange, err error) {
	if s.to, err = v1.ParseTime(c.to, now); err != nil {
		return s, fmt.Errorf("--to: %w", err)
	}
	from := c.from
	switch {
	case from != "":
	case c.output == "chart":
		from = "1h"
	case c.step != "":
		return s, fault.WithHint(fmt.Errorf("--step without --from: %w", fault.ErrInvalid), "a range begins with --from, such as --from 1h")
	default:
		return s, nil
	}
	if s.from, err = v1.ParseTime(from, now); err != nil {
		return s, fmt.Errorf("--from: %w", err)
	}
	if !s.from.Before(s.to) {
		return s, fault.WithHint(fmt.Errorf("the range from %s to %s is empty: %w", from, c.to, fault.ErrInvalid), "--from is before --to")
	}
	if s.step = chart.StepFor(s.to.Sub(s.from)); c.step != "" {
		if s.step, err = v1.ParseLength(c.step); err != nil {
			return s, fmt.Errorf("--step: %w", err)
		}
	}
	if s.step < time.Millisecond || s.to.Sub(s.from)/s.step > chart.MaxPoints {
		return s, fault.WithHint(fmt.Errorf("--step %s: a range of more than %d points: %w", c.step, chart.MaxPoints, fault.ErrInvalid), "take a longer --step, or less time")
	}
	// Use round instants, so that the same query soon after has the same points.
	s.from = s.from.Truncate(s.step)
	return s, nil
}

func request(ctx context.Context, server *client.Client, promql string, s timeRange) (*result.Answer, error) {
	if s.step == 0 {
		return server.Query(ctx, promql, s.to)
	}
	return server.QueryRange(ctx, promql, s.from, s.to, s.step)
}

// explain marks the position of an error in the query.
func explain(promql string, err error) error {
	if !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) != "" {
		return err
	}
	const hint = "mete query --help has examples, docs/metrics.md the names of metrics"
	marked, about, ok := chart.MarkError(promql, err.Error())
	if !ok {
		return fault.WithHint(err, hint)
	}
	return fault.WithHint(&queryError{"query: " + about + "\n  " + strings.ReplaceAll(marked, "\n", "\n  ")}, hint)
}

// queryError is an invalid query.
type queryError struct{ text string }

func (e *queryError) Error() string      { return e.text }
func (*queryError) Is(target error) bool { return target == fault.ErrInvalid }

// emptyHint is the hint for an empty answer.
const emptyHint = `hint: samples arrive about 20 s after a machine or a job begins, and rate() needs two samples, as [5m] has;
hint: list the present names: mete query 'count by (__name__) ({__name__=~"mete_.+"})'
`

// print writes an answer in the format of -o.
func (c *config) print(out, aside io.Writer, a *result.Answer, o chart.Options) (err error) {
	width, terminal := terminalWidth(out)
	form := c.output
	if form == "" {
		form = "table"
		if terminal && o.Step > 0 {
			form = "chart"
		}
	}
	var body []byte
	switch form {
	case "json":
		body = append(text.JSON(a.Raw), '\n')
	case "csv":
		body = chart.CSV(a)
	case "chart":
		body = drawChart(out, a, o, width)
	default:
		if len(a.Series) > 0 {
			body = []byte(chart.Table(a, o))
		}
	}
	for _, w := range a.Warnings {
		_, _ = fmt.Fprintln(aside, "note:", text.Clean(w))
	}
	if a.Histograms > 0 && form != "json" {
		_, _ = fmt.Fprintf(aside, "note: %d histograms are not shown; -o json has them\n", a.Histograms)
	}
	_, err = out.Write(body)
	if len(a.Series) == 0 && a.Histograms == 0 {
		_, _ = io.WriteString(aside, "no data\n"+emptyHint)
	}
	return err
}

// chartHeight is the number of lines of a chart; a smaller terminal has fewer.
const chartHeight = 18

// drawChart draws a chart for out.
func drawChart(out io.Writer, a *result.Answer, o chart.Options, width int) []byte {
	p := top.NewPainter(out)
	o.Width, o.Height, o.Color = width, chartHeight, p.Color
	var b strings.Builder
	for _, l := range chart.Chart(a, o) {
		text := p.Line(l)
		if !p.Color {
			text = l.String() // no bold text: out may be a file
		}
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	return []byte(b.String())
}

// terminalWidth returns the width of a terminal, else 80, and whether it is one.
func terminalWidth(out io.Writer) (int, bool) {
	const without = 80
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(f.Fd()) {
		return without, false
	}
	width, _, err := term.GetSize(f.Fd())
	if err != nil || width <= 0 {
		return without, true
	}
	return width, true
}
