// Package token implements the command mete token, with which a server's administrator creates and
// revokes access tokens.
package token

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/ui/table"
)

// Command returns mete token with its subcommands.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create, list and revoke the tokens of this machine's server",
		Long: `Create, list and revoke the tokens of this machine's server. A token admits agents that
enroll, users whose jobs send their own figures, readers, servers that send their
ledgers, or programs that write their own series.

The command uses a socket in the state directory of the server, so it needs access to
that directory.`,
		Example: `  mete token create --uses 20 --expires 1h
  mete token create --role viewer --cluster lab
  mete token create --role writer --cluster lab --expires 90d
  mete token list
  mete token revoke abcd2345
  mete token link`,
	}
	cmd.AddCommand(create(), list(), revoke(), link())
	return cmd
}

func create() *cobra.Command {
	var role, cluster, node, expires, form, dir string
	var uses int
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a token and print it",
		Long: `Create a token and print it on standard output. It is shown only once: the server keeps
only a hash of it.

The role says what a token permits:

  agent     enrolls machines, by default one
  job       enrolls users for mete run --server, but no machines
  viewer    permits its holder to read all clusters, or one (--cluster)
  writer    permits its holder to write series into one cluster
  upstream  enrolls a server that sends its ledger to this one

A machine that lost its state enrolls as a new node. To continue as its earlier node,
it needs a token for that node: --node. A server that lost its identity needs one too,
to send its ledger again: --role upstream --node.`,
		Example: `  mete token create > token
  mete token create --cluster lab --uses 20 --expires 1h
  mete token create --role job --uses -1 --expires 90d
  mete token create --node 01M84XF4SWMCC93YSFXDPENT4H
  mete token create --role viewer --expires 90d`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.OneOf("-o", form, "text", "json"); err != nil {
				return err
			}
			want, err := tokenRequest(role, cluster, node, expires, uses)
			if err != nil {
				return err
			}
			l, err := client.OpenLocal(dir)
			if err != nil {
				return err
			}
			made, err := l.CreateToken(cmd.Context(), want)
			if err != nil {
				return err
			}
			if form == "json" {
				_, err = cmd.OutOrStdout().Write(v1.JSON(made))
				return err
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), made.Text); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.ErrOrStderr(), table.TokenText(made, table.Style{Zone: time.Local}))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&role, "role", "agent", "give the rights of `ROLE`: agent, job, viewer, upstream or writer")
	f.StringVar(&cluster, "cluster", "", "enroll into `CLUSTER`, or let the holder read or write there (default: the server's, or all)")
	f.StringVar(&node, "node", "", "let a machine, or a server below, become the `NODE` of this id again, once")
	f.IntVar(&uses, "uses", 0, "let `N` machines or users enroll with it; -1 is any number (default: one)")
	f.StringVar(&expires, "expires", "24h", "expire after `DURATION`: 30m, 24h, 90d, or never")
	cli.Choices(cmd, "role", "agent", "job", "viewer", "upstream", "writer")
	cli.OutputFlag(cmd, &form, "text", "json")
	cli.StateFlag(cmd, &dir)
	return cmd
}

// tokenRequest returns the request that the flags describe.
func tokenRequest(role, cluster, node, expires string, uses int) (v1.TokenRequest, error) {
	want := v1.TokenRequest{Role: registry.Role(role), Cluster: cluster, Node: node, Uses: uses}
	now := time.Now()
	if expires != "never" {
		length, err := v1.ParseLength(expires)
		if err != nil {
			return want, fault.WithHint(fmt.Errorf("--expires %q: %w", expires, fault.ErrInvalid), "write 30m, 24h, 90d or never")
		}
		want.Expires = new(now.Add(length).Truncate(time.Second).UTC())
	}
	return want, want.Check(now)
}

func list() *cobra.Command {
	var form, dir string
	cmd := &cobra.Command{
		Use:           "list",
		Short:         "List the tokens, without their secrets",
		Long:          "List the tokens, newest first. The server does not keep their secrets.",
		Example:       "  mete token list\n  mete token list -o json",
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
			all, err := l.Tokens(cmd.Context())
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(table.Encode(form, v1.List[v1.Token]{Items: all}, func() string { return table.TokensText(all, table.Style{Zone: time.Local}) }))
			return err
		},
	}
	cli.OutputFlag(cmd, &form, "table", "csv", "json")
	cli.StateFlag(cmd, &dir)
	return cmd
}

func link() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "link",
		Short: "Create a link that opens the page in a browser, once",
		Long: `Create a link that opens the page of mete up, or of mete server --insecure, in a
browser on this machine. The link works once, within an hour, and the browser stays
signed in until the server ends. For a server with TLS, sign in with a viewer's token
instead.`,
		Example:       "  mete token link",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := client.OpenLocal(dir)
			if err != nil {
				return err
			}
			url, err := l.PageLink(cmd.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), url)
			return err
		},
	}
	cli.StateFlag(cmd, &dir)
	return cmd
}

func revoke() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "revoke ID",
		Short: "Revoke a token",
		Long: `Revoke a token: the server no longer accepts it. Machines that enrolled with it stay
enrolled.`,
		Example:       "  mete token revoke abcd2345",
		Args:          cobra.ExactArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := client.OpenLocal(dir)
			if err != nil {
				return err
			}
			err = l.RevokeToken(cmd.Context(), args[0])
			if errors.Is(err, fault.ErrNotFound) {
				return fault.WithHint(fmt.Errorf("token %q: %w", args[0], fault.ErrNotFound), "mete token list shows them")
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "revoked %s\n", args[0])
			return err
		},
	}
	cli.StateFlag(cmd, &dir)
	return cmd
}
