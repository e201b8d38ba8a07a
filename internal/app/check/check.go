// Package check implements the command mete check, which verifies a ledger.
package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/x/statedir"
	"mete.dev/mete/internal/x/text"
)

// Command returns the command.
func Command() *cobra.Command {
	var form string
	cmd := &cobra.Command{
		Use:   "check [LEDGER]",
		Short: "Check a ledger for contradictions",
		Long: `Check a ledger for contradictions, and name each with its node, time and
amounts. LEDGER is a server's state directory, a backup, a ledger.db, or
postgres://USER@HOST/NAME; the default is the ledger of this user's server.

It checks that

– in each minute the use of a node's workloads, idle and system is the node's
– hours are the sums of minutes, days the sums of hours, and groups those of days,
  where the finer rows are still kept
– no time of a kernel is booked twice
– each row's node, workload or stream exists, and each row is where queries look
– batches agree with the marks of their streams, and shares with their comparisons
– nodes have names of their own in their cluster, and guests have their hosts
– the pages, indexes and constraints of an SQLite file are sound

The exit code is 0 if there is no defect, and 1 if there are some. Warnings may be
in order, and do not change it: a kernel whose time two clusters book, a batch that
was put aside, and rows that a server below may still be sending.

The command only reads, also while the server runs: it changes and migrates
nothing, and it needs the rights of the server's user. It reads every row, and holds
few of them in memory; large sorts use files in TMPDIR. Beside the SQLite file of a
stopped server it may leave two files, ledger.db-shm and an empty ledger.db-wal,
which the next server uses. Of each kind it lists the first hundred findings, and
counts the others.`,
		Example: `  mete check
  mete check /srv/backup/mete-1
  mete check postgres://mete@db/mete -o json`,
		Args:          cobra.MaximumNArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.OneOf("-o", form, "text", "json"); err != nil {
				return err
			}
			named := ""
			if len(args) > 0 {
				named = args[0]
			}
			dsn, name, err := find(named)
			if err != nil {
				return err
			}
			progress, stop := showProgress(cmd.Context(), cmd.ErrOrStderr())
			result, err := ledger.Check(cmd.Context(), dsn, progress)
			stop()
			if ctx := cmd.Context(); err != nil && ctx.Err() != nil {
				return ctx.Err() // the database's word for it differs
			}
			if err != nil {
				return err
			}
			write := writeText
			if form == "json" {
				write = writeJSON
			}
			if err := write(cmd.OutOrStdout(), name, result); err != nil {
				return err
			}
			if result.Defects > 0 {
				return defects(result.Defects)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&form, "output", "o", "text", "print `FORM`: text or json")
	cli.Choices(cmd, "output", "text", "json")
	return cmd
}

// defects is an error for a number of defects, which were printed.
type defects int

func (d defects) Error() string { return fmt.Sprintf("%d defects", int(d)) }

// Exit implements cli.Exit.
func (d defects) Exit() (code int, show error) { return cli.Failed, nil }

// ledgerFile is the name of the ledger in a server's state directory.
const ledgerFile = "ledger.db"

// find returns the data source of the ledger that an argument names, and its name for people.
func find(named string) (dsn, name string, err error) {
	if strings.Contains(named, "://") {
		if u, err := url.Parse(named); err == nil {
			return named, u.Redacted(), nil
		}
		return named, "the database", nil
	}
	if named == "" {
		if named, err = statedir.Default(os.Getenv, os.Geteuid()); err != nil {
			return "", "", err
		}
		named = filepath.Join(named, "server")
	}
	if named, err = filepath.Abs(named); err != nil {
		return "", "", err
	}
	info, err := os.Stat(named)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", "", fault.WithHint(fmt.Errorf("there is no ledger at %s: %w", named, fault.ErrNotFound), "name a server's state directory, a backup, or the address of a database in PostgreSQL")
	case errors.Is(err, fs.ErrPermission):
		return "", "", fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrDenied), "run it as the user that runs the server, or as root")
	case err != nil:
		return "", "", err
	case !info.IsDir():
		return named, named, nil
	}
	for _, dir := range []string{named, filepath.Join(named, "server")} { // the latter is of mete up
		file := filepath.Join(dir, ledgerFile)
		if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
			return file, file, nil
		}
	}
	return "", "", fault.WithHint(fmt.Errorf("%s has no %s: %w", named, ledgerFile, fault.ErrNotFound),
		"if its server keeps the ledger elsewhere (--database), name that file or address")
}

// showProgress returns a function that takes progress, and prints it on a terminal each second until
// stop is called.
func showProgress(ctx context.Context, to io.Writer) (progress func(ledger.CheckProgress), stop func()) {
	f, ok := to.(*os.File)
	if !ok || !term.IsTerminal(f.Fd()) {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex
	var last ledger.CheckProgress
	began, tick := time.Now(), time.NewTicker(time.Second)
	var done sync.WaitGroup
	done.Go(func() {
		for {
			select {
			case <-ctx.Done():
				fmt.Fprint(to, "\r\x1b[K")
				return
			case <-tick.C:
				mu.Lock()
				p := last
				mu.Unlock()
				fmt.Fprintf(to, "\r\x1b[Kchecking %s: step %d of %d, %.0f s", p.Step, p.Done+1, p.Total, time.Since(began).Seconds())
			}
		}
	})
	return func(p ledger.CheckProgress) {
			mu.Lock()
			defer mu.Unlock()
			last = p
		}, func() {
			tick.Stop()
			cancel()
			done.Wait()
		}
}

// writeText writes a line for each finding, and a summary.
func writeText(w io.Writer, name string, r *ledger.CheckResult) error {
	var b strings.Builder
	for _, f := range r.Findings {
		if f.Warning {
			b.WriteString("warning: ")
		}
		b.WriteString(text.Clean(f.String()))
		b.WriteByte('\n')
	}
	if more := r.Total() - len(r.Findings); more > 0 {
		fmt.Fprintf(&b, "%d more are not listed\n", more)
	}
	verdict := "no defects"
	if r.Defects > 0 {
		verdict = count(r.Defects, "defect")
	}
	if n := r.Total() - r.Defects; n > 0 {
		verdict += ", " + count(n, "warning")
	}
	fmt.Fprintf(&b, "%s: %s, %s, %s: %s\n", name, count(int(r.Nodes), "node"), count(int(r.Workloads), "workload"), count(len(r.Days), "day"), verdict)
	_, err := io.WriteString(w, b.String())
	return err
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// The result as JSON.
type (
	document struct {
		Ledger    string         `json:"ledger"`
		Schema    int            `json:"schema"`
		Nodes     int64          `json:"nodes"`
		Workloads int64          `json:"workloads"`
		Days      int            `json:"days"`
		Defects   int            `json:"defects"`
		Warnings  int            `json:"warnings"`
		Counts    map[string]int `json:"counts"` // findings by kind
		Findings  []finding      `json:"findings"`
	}
	finding struct {
		Kind     string     `json:"kind"`
		Warning  bool       `json:"warning"`
		Node     string     `json:"node,omitempty"` // id
		Name     string     `json:"name,omitempty"` // of the node
		Workload string     `json:"workload,omitempty"`
		From     *time.Time `json:"from,omitempty"`
		To       *time.Time `json:"to,omitempty"`
		Resource string     `json:"resource,omitempty"`
		Stored   string     `json:"stored,omitempty"`
		Expected string     `json:"expected,omitempty"`
		Text     string     `json:"text"`
	}
)

func writeJSON(w io.Writer, name string, r *ledger.CheckResult) error {
	d := document{Ledger: name, Schema: r.Schema, Nodes: r.Nodes, Workloads: r.Workloads, Days: len(r.Days), Defects: r.Defects,
		Warnings: r.Total() - r.Defects, Counts: r.Counts, Findings: []finding{}}
	for _, f := range r.Findings {
		one := finding{Kind: f.Kind, Warning: f.Warning, Node: f.Node, Name: f.Name, Workload: f.Workload, Resource: f.Resource, Stored: f.Have, Expected: f.Want, Text: f.Text}
		if f.To != 0 {
			from, to := time.Unix(60*f.From, 0).UTC(), time.Unix(60*f.To, 0).UTC()
			one.From, one.To = &from, &to
		}
		d.Findings = append(d.Findings, one)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(d); err != nil {
		return err
	}
	_, err := w.Write(text.JSON(b.Bytes()))
	return err
}
