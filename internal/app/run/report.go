package run

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/job/archive"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/ui/top"
	"mete.dev/mete/internal/x/statedir"
)

// Report returns mete report.
func Report() *cobra.Command {
	var output string
	var last, list bool
	cmd := &cobra.Command{
		Use:   "report [JOB | ID | --last | --list]",
		Short: "Print the report of an earlier mete run again",
		Long: `Print the report of a job of mete run again, on standard output: of the last one; of
the latest run of the job with this name (or its beginning, if only one job's name
begins so); or of the run with this ID (or six or more characters of its beginning or
end, if only one has them).`,
		Example: `  mete report
  mete report build
  mete report 01k5x3 -o json
  mete report --list`,
		Args:          cobra.MaximumNArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.OneOf("-o", output, "text", "json", "csv"); err != nil {
				return err
			}
			if (last && list) || len(args) > 0 && (last || list) {
				return fmt.Errorf("JOB, --last and --list: only one of them: %w", fault.ErrInvalid)
			}
			dir, err := statedir.Default(os.Getenv, os.Geteuid())
			if err != nil {
				return err
			}
			s := archive.New(dir)
			if list {
				return printAll(s, output, cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			r, err := find(s, args)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(form(output, r))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&output, "output", "o", "text", "print the report as `FORM`: text, json or csv")
	f.BoolVar(&last, "last", false, "the job that started last (the default)")
	f.BoolVar(&list, "list", false, "list all jobs")
	cli.Choices(cmd, "output", "text", "json", "csv")
	cmd.ValidArgsFunction = complete
	return cmd
}

// maxCompletions is how many of the latest reports completion offers.
const maxCompletions = 20

// complete offers the names of the latest jobs, and their IDs. It is silent where they cannot be read.
func complete(_ *cobra.Command, args []string, _ string) (words []cobra.Completion, _ cobra.ShellCompDirective) {
	dir, err := statedir.Default(os.Getenv, os.Geteuid())
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	s := archive.New(dir)
	ids, err := s.IDs()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := map[string]bool{}
	for _, id := range slices.Backward(ids[max(0, len(ids)-maxCompletions):]) {
		r, err := s.Get(id)
		if err != nil {
			continue
		}
		name, about := report.Clean(r.Name), r.Started.Local().Format(time.DateTime)
		if name == r.Name && cli.IsPlainWord(name) && !names[name] {
			names[name] = true
			words = append(words, cobra.CompletionWithDesc(name, "latest run, "+about))
		}
		words = append(words, cobra.CompletionWithDesc(id, name+", "+about))
	}
	return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

func find(s *archive.Store, args []string) (*report.Report, error) {
	if len(args) > 0 {
		r, err := s.Get(args[0])
		if errors.Is(err, fault.ErrNotFound) || errors.Is(err, fault.ErrConflict) {
			return nil, fault.WithHint(err, "mete report --list shows all jobs")
		}
		return r, explain(err)
	}
	r, err := s.Last()
	if errors.Is(err, fault.ErrNotFound) {
		return nil, fault.WithHint(err, "run one: mete run -- COMMAND")
	}
	return r, explain(err)
}

// explain adds a hint to an error of an unreadable report.
func explain(err error) error {
	if errors.Is(err, fault.ErrInvalid) {
		return fault.WithHint(err, "the file is damaged; remove it")
	}
	return err
}

// printAll lists the jobs, oldest first, and skips unreadable reports with a message.
func printAll(s *archive.Store, output string, stdout, stderr io.Writer) error {
	ids, err := s.IDs()
	if err != nil {
		return err
	}
	var all []*report.Report
	for _, id := range ids {
		r, err := s.Get(id)
		if err != nil {
			if _, err := fmt.Fprintln(stderr, "mete:", err); err != nil {
				return err
			}
			continue
		}
		all = append(all, r)
	}
	switch output {
	case "csv":
		_, err := stdout.Write(report.CSV(all...))
		return err
	case "json":
		for _, r := range all {
			if _, err := stdout.Write(r.JSON()); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	rows := []string{"ID\tSTARTED\tNAME\tEXIT\tWALL\tCPU\tMEMORY PEAK\tENERGY"}
	for _, r := range all {
		rows = append(rows, strings.Join([]string{r.ID, r.Started.Local().Format(time.DateTime), report.Clean(r.Name),
			strconv.Itoa(r.ExitCode), formatSeconds(r, report.Wall), formatSeconds(r, report.CPU), formatSize(r, report.MemoryPeak), formatEnergy(r)}, "\t"))
	}
	if _, err := fmt.Fprintln(w, strings.Join(rows, "\n")); err != nil {
		return err
	}
	return w.Flush()
}

func formatSeconds(r *report.Report, k report.Key) string {
	v, ok := r.Get(k)
	if !ok {
		return "-"
	}
	return unit.Seconds(time.Duration(v))
}

func formatSize(r *report.Report, k report.Key) string {
	v, ok := r.Get(k)
	if !ok {
		return "-"
	}
	return unit.Bytes(float64(v))
}

// formatEnergy formats the energy of the job's activity with the mark of its quality.
func formatEnergy(r *report.Report) string {
	v, ok := r.Get(report.Energy)
	if !ok {
		return "-"
	}
	return top.Mark(r.Figures[report.Energy].Quality, false) + unit.Joules(float64(v)/1e6)
}

// join joins words as in a sentence.
func join(words []string) string {
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
	}
	return strings.Join(words, "")
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}
