// Package audit implements the command mete audit, which shows the audit log of a server to its administrator.
package audit

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/ui/table"
)

// Command returns mete audit.
func Command() *cobra.Command {
	var from, to, action, about, form, dir string
	var limit int
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show the audit log of this machine's server",
		Long: `Show the audit log of this machine's server, newest first: tokens and silences that were
made or ended, machines that enrolled, renewed their certificates, were refused or
revoked, and data that the server had to refuse or change, with its reason. Actor is
"local" for the administrator of the server, otherwise the id of a node or token.

The command uses a socket in the state directory of the server, so it needs access to
that directory. The log is part of the ledger, and of a backup.`,
		Example: `  mete audit --from 7d
  mete audit --action token
  mete audit --about 01M84XF4SWMCC93YSFXDPENT4H --limit 1000 -o csv`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.OneOf("-o", form, "table", "csv", "json"); err != nil {
				return err
			}
			limit = cmp.Or(limit, v1.DefaultAuditLimit)
			parameters, err := parameters(from, to, action, about, limit, time.Now())
			if err != nil {
				return err
			}
			l, err := client.OpenLocal(dir)
			if err != nil {
				return err
			}
			all, err := l.Audit(cmd.Context(), parameters)
			if err != nil {
				return err
			}
			body := table.Encode(form, v1.List[v1.AuditEntry]{Items: all}, func() string { return table.AuditText(all, table.Style{Zone: time.Local}) })
			if _, err := cmd.OutOrStdout().Write(body); err != nil || len(all) < limit {
				return err
			}
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "there may be older entries; --limit shows more than %d, up to %d\n", limit, v1.MaxAuditLimit)
			return err
		},
	}
	cli.RangeFlags(cmd, &from, &to, "", "only entries since", "only entries before")
	f := cmd.Flags()
	f.StringVar(&action, "action", "", "only entries of action `TEXT`: token.create, or token for all actions of tokens")
	f.StringVar(&about, "about", "", "only entries with `TEXT` as actor or object: the id of a node or token, or a name")
	f.IntVar(&limit, "limit", v1.DefaultAuditLimit, "show the latest `N` entries, at most 10000")
	cli.OutputFlag(cmd, &form, "table", "csv", "json")
	cli.StateFlag(cmd, &dir)
	return cmd
}

// parameters returns the request that the flags describe, with times in UTC, since the clock of a user may have another zone
// than that of the server.
func parameters(from, to, action, about string, limit int, now time.Time) (url.Values, error) {
	p := url.Values{v1.ParamLimit: {strconv.Itoa(limit)}}
	for name, text := range map[string]string{v1.ParamFrom: from, v1.ParamTo: to} {
		if text == "" {
			continue
		}
		at, err := v1.ParseTime(text, now)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
		p.Set(name, at.UTC().Format(time.RFC3339Nano))
	}
	for name, text := range map[string]string{v1.ParamAction: action, v1.ParamAbout: about} {
		if text != "" {
			p.Set(name, text)
		}
	}
	_, err := v1.ParseAuditQuery(p, now)
	return p, err
}
