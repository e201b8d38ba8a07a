// Package backup implements the command mete backup, which copies the data of this machine's
// server.
package backup

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/ui/table"
)

// Command returns the command.
func Command() *cobra.Command {
	var form, state string
	cmd := &cobra.Command{
		Use:   "backup DIR",
		Short: "Copy the state of this machine's server, while it runs",
		Long: `Copy the state of this machine's server into a new directory, while the server runs:
the ledger, the metrics, the certificate authority, the certificates for servers above,
and the state of the alerts.

The copy is a state directory: mete server --state DIR starts from it. That server
adds metrics from the ledger where the ledger is more recent, and requests from the
agents the data that they sent after the copy. A ledger in PostgreSQL is not in the
copy: dump it with pg_dump immediately afterwards.

The server writes the copy, with its own permissions. On the file system of its
metrics the copy has hard links to past samples: they take space once the server has
deleted its own, and a program that changes them in place changes the server's files
too. A copy on another file system is independent. The copy contains the key of the
certificate authority: protect it like the server. Tokens and certificates that were
revoked after the copy are valid again in a server that starts from it.`,
		Example: `  mete backup /srv/backup/mete-1
  mete backup /mnt/nas/mete-1 --state /srv/mete -o json`,
		Args:          cobra.ExactArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.OneOf("-o", form, "text", "json"); err != nil {
				return err
			}
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			l, err := client.OpenLocal(state)
			if err != nil {
				return err
			}
			stop := reportProgress(cmd.Context(), cmd.ErrOrStderr(), dir)
			b, err := l.Backup(cmd.Context(), dir)
			stop()
			if err != nil {
				return err
			}
			if form == "json" {
				_, err = cmd.OutOrStdout().Write(v1.JSON(b))
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), table.BackupText(b))
			return err
		},
	}
	cli.OutputFlag(cmd, &form, "text", "json")
	cli.StateFlag(cmd, &state)
	return cmd
}

// reportProgress prints progress on a terminal each second until stop is called.
func reportProgress(ctx context.Context, to io.Writer, dir string) (stop func()) {
	f, ok := to.(*os.File)
	if !ok || !term.IsTerminal(f.Fd()) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	began, tick := time.Now(), time.NewTicker(time.Second)
	var done sync.WaitGroup
	done.Go(func() {
		for {
			select {
			case <-ctx.Done():
				fmt.Fprint(to, "\r\x1b[K")
				return
			case <-tick.C:
				fmt.Fprintf(to, "\r\x1b[Kcopying to %s: %.0f s", dir, time.Since(began).Seconds())
			}
		}
	})
	return func() {
		tick.Stop()
		cancel()
		done.Wait()
	}
}
