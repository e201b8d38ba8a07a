package usage

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/ui/table"
)

// Connections returns mete connections.
func Connections() *cobra.Command {
	var s serverFlags
	var q queryFlags
	cmd := &cobra.Command{
		Use:   "connections",
		Short: "List the peers of workloads, with their traffic",
		Long: `List the peers with which workloads exchanged network traffic in a range of time, the
largest first: all connections with one address and one port are a row. The range is
extended to whole hours. Agents record connections if their setting connections is auto,
and their server keeps the 20 largest rows of each workload and hour.

DIRECTION is inbound where the workload listens on PORT, and outbound where the peer does.
CLASS says where the peer is, as in mete usage --network. RECEIVED and SENT are never more
than what was measured. MAY BE MORE BY is the most, of both together, by which a row may
be too low: the traffic of the time in which it was not among the largest.

The row rest is the traffic of the same workloads that is in none of the rows: smaller
ones, and what was not recorded. With it the rows sum to the traffic that mete usage
--network shows.

–  absent (not zero)   ~  a measured total, apportioned   ≈  modelled`,
		Example: `  mete connections
  mete connections --by namespace,job --from -7d
  mete connections --where job=web --limit 10
  mete connections --by node --from -1h -o csv`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.output == "table" && q.limit == "" {
				q.limit = defaultLimit
			}
			return show(&s, cmd, func(ctx context.Context, c *client.Client) (*v1.Connections, error) {
				asked, err := v1.ParseQuery(q.parameters(), time.Now())
				if err != nil {
					return nil, err
				}
				return c.Connections(ctx, asked)
			}, table.ConnectionsText)
		},
	}
	cmd.Flags().StringArrayVar(&q.by, "by", []string{"job"}, "group by `DIMENSION`, or by several with commas")
	q.rangeFlags(cmd)
	q.whereFlag(cmd, &s)
	q.limitFlag(cmd, "show the `N` largest rows; the others are in the rest (default: "+defaultLimit+" of a table, else 10000)")
	s.flags(cmd)
	cli.Choices(cmd, "by", v1.Dimensions()...)
	return cmd
}
