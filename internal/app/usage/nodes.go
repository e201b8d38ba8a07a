package usage

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/ui/table"
)

// Nodes returns mete nodes.
func Nodes() *cobra.Command {
	var s serverFlags
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the machines that a server knows, and revoke them",
		Long: `List the machines that a server knows: how far each is booked, and whether it is
live, behind (what it sends is of the past), silent, or revoked. NESTED IN is the
machine in which it is a guest now, and as what: sums have it there.`,
		Example: `  mete nodes
  mete nodes -o json | jq -r '.nodes[] | select(.state == "silent") | .name'`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(&s, cmd, func(ctx context.Context, c *client.Client) ([]query.Node, error) { return c.Nodes(ctx) },
				table.NodesText, v1.NodesCSV, v1.NodesJSON)
		},
	}
	s.flags(cmd)
	cmd.AddCommand(revoke())
	return cmd
}

func revoke() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:   "revoke NODE",
		Short: "Let a machine, or a server below, send no more",
		Long: `Let a machine, or a server below, send no more, from its next request on. NODE is
its id, or its name where only one is called so. What it sent stays in the ledger,
and what it measures from now on stays on its own disk.

There is no way back for its certificate: where it is to send again, it enrolls with
a new token as a new node. A token by which it could do that by itself is ended
with mete token revoke.

The clones of a machine, which enrolled with a copy of its certificate, are revoked
along with it. A clone that is named itself is revoked alone.

The server takes this order on a socket in its state directory, so only who may use
that can give it.`,
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
	cmd.Flags().StringVar(&state, "state", "", "`directory` that mete up or mete server was given with --state (default: as theirs)")
	return cmd
}

// VMs returns mete vms.
func VMs() *cobra.Command {
	var s serverFlags
	var q queryFlags
	cmd := &cobra.Command{
		Use:   "vms",
		Short: "List the virtual machines that hosts gave energy, and what these say of it",
		Long: `List the virtual machines that hosts gave energy in a range of time, by the hosts'
figures: active is what their activity used, idle their part of what the host draws
anyway. Where a mete agent runs in one (NODE), it tells of the shares that it booked,
and the server compares these with its host's: COMPARED is how many both told of, on
the days of the range, and DIFFERING how many of them were not equal to the
microjoule. A guest is left out of sums from the day on of which a share was equal.`,
		Example: `  mete vms
  mete vms --from -7d -o json | jq -r '.vms[] | select(.differing > 0) | .guest'`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(&s, cmd, func(ctx context.Context, c *client.Client) ([]query.VM, error) {
				from, to, err := v1.ParseRange(q.parameters(), time.Now())
				if err != nil {
					return nil, err
				}
				return c.VMs(ctx, from, to)
			}, table.VMsText, v1.VMsCSV, v1.VMsJSON)
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
		Short: "List the servers below, which send their rows to a server",
		Long: `List the servers below a server, which send it their rows: when each sent last, how
far the furthest of its machines is booked and how long ago that is, how many pages
of which epoch of its ledger were taken, and of how many machines it tells. An epoch
changes where a ledger was opened anew; what was taken is not taken twice.`,
		Example: `  mete sources
  mete sources -o json | jq -r '.sources[] | select(.state != "live") | .name'`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text := func(list []query.Source, s table.Style) string { return table.SourcesText(list, time.Now(), s) }
			return show(&s, cmd, func(ctx context.Context, c *client.Client) ([]query.Source, error) { return c.Sources(ctx) },
				text, v1.SourcesCSV, v1.SourcesJSON)
		},
	}
	s.flags(cmd)
	return cmd
}
