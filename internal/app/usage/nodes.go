package usage

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/ui/table"
)

// Nodes returns mete nodes.
func Nodes() *cobra.Command {
	var s serverFlags
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the machines that a server knows, and revoke them",
		Long: `List the machines that a server knows: the end of the latest booked window of each, and
whether it is live, behind (what it sends is older), silent, or revoked. NESTED IN is
the machine in which it is a guest, and as which workload: sums count it there.`,
		Example: `  mete nodes
  mete nodes -o json | jq -r '.nodes[] | select(.state == "silent") | .name'`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return showList(&s, cmd, func(ctx context.Context, c *client.Client) ([]v1.Node, error) { return c.Nodes(ctx) },
				table.NodesText)
		},
	}
	s.flags(cmd)
	cmd.AddCommand(uptime(), revoke())
	return cmd
}

func uptime() *cobra.Command {
	var s serverFlags
	var q queryFlags
	cmd := &cobra.Command{
		Use:   "uptime [NODE]",
		Short: "Show for how long machines were up",
		Long: `Show for how long of a range of time machines were up: the time that the kernel ran, also
while no agent did. DOWN is from the latest figures before each restart to the boot
after it, so it may be too long by one window (10 s), or by as long as no agent ran
before. UNKNOWN is the time since the latest figures of a machine that is silent, and
while an agent had lost its state. A machine counts from its enrollment on.`,
		Example: `  mete nodes uptime --from -30d
  mete nodes uptime web-1 --from -1d -o json | jq '.uptimes[0].up_share'`,
		Args:          cobra.MaximumNArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			var node string
			if len(args) > 0 {
				node = args[0]
			}
			return showList(&s, cmd, func(ctx context.Context, c *client.Client) ([]v1.Uptime, error) {
				from, to, err := v1.ParseRange(q.parameters(), time.Now())
				if err != nil {
					return nil, err
				}
				return c.Uptimes(ctx, from, to, node)
			}, table.UptimesText)
		},
	}
	q.rangeFlags(cmd)
	s.flags(cmd)
	return cmd
}

func revoke() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:   "revoke NODE",
		Short: "Revoke a machine or a server below",
		Long: `Revoke a machine or a server below: the server refuses its next request and all later
ones. NODE is its id, or its name if only one node has it. Data that it sent stays in the
ledger, and later measurements stay on its own disk.

Its certificate cannot be restored: to send again, it enrolls with a new token as a new
node. mete token revoke ends a token with which it could enroll by itself.

Revoking a machine also revokes its clones, which enrolled with a copy of its
certificate. Revoking a clone revokes only that clone.

The server takes this order on a socket in its state directory, so only users with
access to that can give it.`,
		Example: `  mete nodes revoke web-1
  mete nodes revoke 01KAK3Q0JY4M1T8Z0B7V1N5RCD --state /srv/mete`,
		Args:          cobra.ExactArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := client.OpenLocal(state)
			if err != nil {
				return err
			}
			n, err := l.RevokeNode(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(escapeControl(fmt.Appendf(nil, "revoked %s (%s)\n", n.ID, n.Name)))
			return err
		},
	}
	cli.StateFlag(cmd, &state)
	return cmd
}

// VMs returns mete vms.
func VMs() *cobra.Command {
	var s serverFlags
	var q queryFlags
	cmd := &cobra.Command{
		Use:   "vms",
		Short: "Compare the energy of virtual machines as hosts and guests report it",
		Long: `List the virtual machines that hosts gave energy in a range of time, by the hosts'
figures: active is what their activity used, idle their part of the host's idle energy.
An agent in a virtual machine (NODE) reports the shares that it booked, and the server
compares them with its host's: COMPARED is the number of shares that both reported, on
the days of the range, and DIFFERING the number of those that were not equal to the
microjoule. Sums leave a guest out from the first day with an equal share.`,
		Example: `  mete vms
  mete vms --from -7d -o json | jq -r '.vms[] | select(.differing > 0) | .guest'`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return showList(&s, cmd, func(ctx context.Context, c *client.Client) ([]v1.VM, error) {
				from, to, err := v1.ParseRange(q.parameters(), time.Now())
				if err != nil {
					return nil, err
				}
				return c.VMs(ctx, from, to)
			}, table.VMsText)
		},
	}
	q.rangeFlags(cmd)
	s.flags(cmd)
	return cmd
}

// Sources returns mete sources.
func Sources() *cobra.Command {
	var s serverFlags
	cmd := &cobra.Command{
		Use:   "sources",
		Short: "List the servers below a server",
		Long: `List the servers below a server, which send it their rows: when each sent last, the end
of the latest booked window of any of its machines and how long ago that is, how many
pages of which epoch of its ledger were booked, and how many machines it has. The
epoch of a ledger changes each time it is opened; no page is booked twice.`,
		Example: `  mete sources
  mete sources -o json | jq -r '.sources[] | select(.state != "live") | .name'`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text := func(list []v1.Source, s table.Style) string { return table.SourcesText(list, time.Now(), s) }
			return showList(&s, cmd, func(ctx context.Context, c *client.Client) ([]v1.Source, error) { return c.Sources(ctx) },
				text)
		},
	}
	s.flags(cmd)
	return cmd
}
