package usage

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/ui/table"
)

// Runs returns mete runs.
func Runs() *cobra.Command {
	var s serverFlags
	var q queryFlags
	var failed bool
	cmd := &cobra.Command{
		Use:   "runs [JOB]",
		Short: "List the runs of a job, and what each used",
		Long: `List the runs of a job, or of all jobs, that used something in a range of time, the
latest first. A run is one execution of a job: of mete run, of Slurm with its steps, or
a Job of Kubernetes with its pods, also each one that a CronJob starts.

The figures of a run are of all its life, also of the part outside the range. LENGTH is
the time from its start to its end, and CORES the average over that time. PEAK is the
highest memory. A run that ended because it had no memory left says so under EXIT;
above 128, the exit code is that of a signal.

A mark compares a run with the successful runs of the same job, user and project before
it, the latest 20, at least 5: "CPU time +40 %" is the change from their median. It is
shown if the modified z-score of Iglewicz and Hoaglin is beyond its limit, which 1 % of
runs exceed without a change, and if the change is 10 % or more; -o json has all scores.

–  absent (not zero)   ~  a measured total, apportioned   ≈  modelled`,
		Example: `  mete runs
  mete runs build --from -7d
  mete runs build --failed
  mete runs build --where node=web-1 -o csv`,
		Args:          cobra.MaximumNArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				q.where = append(q.where, string(query.ByJob)+"="+args[0])
			}
			if s.output == "table" && q.limit == "" {
				q.limit = defaultLimit
			}
			return showList(&s, cmd, func(ctx context.Context, c *client.Client) ([]v1.Run, error) {
				filter, err := v1.ParseFilter(q.parameters(), time.Now())
				if err != nil {
					return nil, err
				}
				return c.Runs(ctx, query.RunQuery{Query: filter, Failed: failed})
			}, table.RunsText)
		},
	}
	q.rangeFlags(cmd)
	q.whereFlag(cmd, &s)
	cmd.ValidArgsFunction = q.completeJobs(&s)
	cmd.Flags().BoolVar(&failed, "failed", false, "only runs whose exit code is known and not 0")
	q.limitFlag(cmd, "the latest `N` runs (default: "+defaultLimit+" of a table, else all)")
	s.flags(cmd)
	return cmd
}

// maxNumber is the largest number of a run after @.
const maxNumber = 1000

// Compare returns mete compare.
func Compare() *cobra.Command {
	var s serverFlags
	var q queryFlags
	cmd := &cobra.Command{
		Use:   "compare RUN RUN...",
		Short: "Compare runs",
		Long: `Compare two or more runs side by side, with the differences to the first one in percent.

RUN is the id of a run as mete runs shows it, in full or its beginning, or JOB@N: the
latest run of a job is JOB@1, the previous one JOB@2. Runs are looked for in a range of
time; their figures are of all their life.`,
		Example: `  mete compare build@2 build@1
  mete compare 2f7qk build@1 build@2 -o json`,
		Args:          cobra.MinimumNArgs(2),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(&s, cmd, func(ctx context.Context, c *client.Client) (*v1.RunsCompared, error) {
				filter, err := v1.ParseFilter(q.parameters(), time.Now())
				if err != nil {
					return nil, err
				}
				var runs []v1.Run
				for _, arg := range args {
					r, err := findRun(ctx, c, filter, arg)
					if err != nil {
						return nil, err
					}
					runs = append(runs, *r)
				}
				return v1.CompareRuns(runs), nil
			}, table.CompareText)
		},
	}
	q.rangeFrom(cmd, "30d")
	s.flags(cmd)
	return cmd
}

// findRun finds the run that an argument names.
func findRun(ctx context.Context, c *client.Client, filter query.Query, arg string) (*v1.Run, error) {
	q := query.RunQuery{Query: filter}
	at := strings.LastIndex(arg, "@")
	if at < 0 {
		var err error
		if q.ID, err = v1.ParseRunID(map[string][]string{v1.ParamRun: {arg}}); err != nil {
			return nil, fault.WithHint(fmt.Errorf("run %q: %w", arg, fault.ErrInvalid), "name a run by its id, or its beginning, or as JOB@1, the latest run of a job")
		}
		q.Limit = 2
		list, err := c.Runs(ctx, q)
		switch {
		case err != nil:
			return nil, err
		case len(list) == 0:
			return nil, fault.WithHint(fmt.Errorf("run %q: %w", arg, fault.ErrNotFound), "mete runs lists the runs; --from looks further back; the latest run of a job is JOB@1")
		case len(list) > 1:
			return nil, fault.WithHint(fmt.Errorf("run %q: several ids begin with it: %w", arg, fault.ErrInvalid), "give more of the id")
		}
		return &list[0], nil
	}
	job, text := arg[:at], arg[at+1:]
	n, err := strconv.Atoi(text)
	if err != nil || job == "" || n < 1 || n > maxNumber {
		return nil, fault.WithHint(fmt.Errorf("run %q: %w", arg, fault.ErrInvalid), fmt.Sprintf("write JOB@N with N from 1, the latest run, to %d", maxNumber))
	}
	q.Where, q.Limit = map[query.Dimension][]string{query.ByJob: {job}}, n
	list, err := c.Runs(ctx, q)
	switch {
	case err != nil:
		return nil, err
	case len(list) < n:
		return nil, fault.WithHint(fmt.Errorf("run %q: the job has %d runs in the range: %w", arg, len(list), fault.ErrNotFound), "mete runs lists the runs; --from looks further back")
	}
	return &list[n-1], nil
}
