// Package silence implements the command mete silence, with which a server's administrator
// suppresses notifications of alerts for a time.
package silence

import (
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/ui/table"
)

// Command returns mete silence with its subcommands.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "silence",
		Short: "Suppress notifications of alerts for a time",
		Long: `Suppress notifications of alerts for a time: Alertmanagers and the webhook do not get
the alerts that a silence matches. The page and the API still show them.

The command uses a socket in the state directory of the server, so it needs access to
that directory. The server keeps the silences with their authors.`,
		Example: `  mete silence create alertname=MeteNodeSilent 'node=~rack1-.*' --for 2h --comment "new switch"
  mete silence list
  mete silence end k3v7q2mzx4ab`,
	}
	cmd.AddCommand(create(), list(), end())
	return cmd
}

func create() *cobra.Command {
	var length, comment, by, form, dir string
	cmd := &cobra.Command{
		Use:   "create MATCHER...",
		Short: "Silence the alerts that all matchers match",
		Long: `Silence the alerts that all matchers match, from now on, and print the silence.

A matcher compares a label of an alert, as Alertmanager's does: LABEL=VALUE,
LABEL!=VALUE, LABEL=~REGEX or LABEL!~REGEX. A regular expression matches the whole
value. The name of an alert is its label alertname. mete prints the labels of the
alerts on the page Alerts and at /v1/alerts.

Receivers are notified of the end of an alert of which they know, also during a
silence, and of an alert that still fires when the silence ends.`,
		Example: `  mete silence create alertname=MeteNodeSilent 'node=~rack1-.*' --for 2h --comment "new switch"
  mete silence create cluster=lab --for 1d`,
		Args:          cobra.MinimumNArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.OneOf("-o", form, "text", "json"); err != nil {
				return err
			}
			want, err := request(args, length, comment, by, time.Now())
			if err != nil {
				return err
			}
			l, err := client.OpenLocal(dir)
			if err != nil {
				return err
			}
			made, err := l.Silence(cmd.Context(), want)
			if err != nil {
				return err
			}
			body := []byte(table.SilencesText([]v1.Silence{made}, table.Style{Zone: time.Local}))
			if form == "json" {
				body = v1.JSON(made)
			}
			_, err = cmd.OutOrStdout().Write(body)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&length, "for", "2h", "end after `DURATION`: 30m, 2h, 7d")
	f.StringVar(&comment, "comment", "", "`TEXT` that says why, for others to read")
	f.StringVar(&by, "by", "", "`NAME` of its author (default: this user)")
	cli.OutputFlag(cmd, &form, "text", "json")
	cli.StateFlag(cmd, &dir)
	return cmd
}

// request returns the order that arguments and flags describe.
func request(matchers []string, length, comment, by string, now time.Time) (v1.SilenceRequest, error) {
	lasts, err := v1.ParseLength(length)
	if err != nil {
		return v1.SilenceRequest{}, fault.WithHint(fmt.Errorf("--for %q: %w", length, fault.ErrInvalid), "write 30m, 2h or 7d")
	}
	if by == "" {
		by = thisUser()
	}
	want := v1.SilenceRequest{Matchers: strings.Join(matchers, ", "), Ends: new(now.Add(lasts).Truncate(time.Second).UTC()), By: by, Comment: comment}
	_, err = want.Silence(now)
	return want, err
}

// thisUser returns the name of the user who runs the command, before sudo.
func thisUser() string {
	if name := os.Getenv("SUDO_USER"); name != "" {
		return name
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return fmt.Sprint("uid ", os.Getuid())
}

func list() *cobra.Command {
	var form, dir string
	cmd := &cobra.Command{
		Use:           "list",
		Short:         "List the silences",
		Long:          "List the silences, those that ended in the last 30 days included.",
		Example:       "  mete silence list\n  mete silence list -o json",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.OneOf("-o", form, "table", "csv", "json"); err != nil {
				return err
			}
			l, err := client.OpenLocal(dir)
			if err != nil {
				return err
			}
			all, err := l.Silences(cmd.Context())
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(table.Encode(form, v1.List[v1.Silence]{Items: all}, func() string { return table.SilencesText(all, table.Style{Zone: time.Local}) }))
			return err
		},
	}
	cli.OutputFlag(cmd, &form, "table", "csv", "json")
	cli.StateFlag(cmd, &dir)
	return cmd
}

func end() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:           "end ID",
		Short:         "End a silence",
		Long:          "End a silence: from now on receivers are notified of its alerts again.",
		Example:       "  mete silence end k3v7q2mzx4ab",
		Args:          cobra.ExactArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := client.OpenLocal(dir)
			if err != nil {
				return err
			}
			if err := l.EndSilence(cmd.Context(), args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "ended %s\n", args[0])
			return err
		},
	}
	cli.StateFlag(cmd, &dir)
	return cmd
}
