// Package usage implements the commands that query a server's ledger: mete usage, mete runs, mete
// compare, mete nodes, mete sources, mete workloads, mete connections, mete vms and mete gaps.
package usage

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/ui/table"
	"mete.dev/mete/internal/x/text"
)

// serverFlags are the flags of every command.
type serverFlags struct {
	client.Target
	output string
	ascii  bool
}

func (s *serverFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	s.Flags(f)
	f.StringVarP(&s.output, "output", "o", "table", "print `FORM`: table, csv or json")
	f.BoolVar(&s.ascii, "ascii", false, "print ASCII characters only")
	cli.Choices(cmd, "output", "table", "csv", "json")
}

// open checks the flags and returns the client of the server.
func (s *serverFlags) open() (*client.Client, error) {
	if err := s.checkOutput(); err != nil {
		return nil, err
	}
	return s.Open()
}

// checkOutput checks -o.
func (s *serverFlags) checkOutput() error { return cli.OneOf("-o", s.output, "table", "csv", "json") }

func (s *serverFlags) style() table.Style { return table.Style{Zone: time.Local, ASCII: s.ascii} }

// print writes an answer in the format of -o.
func (s *serverFlags) print(cmd *cobra.Command, answer v1.Table, write func() string) error {
	body := table.Encode(s.output, answer, write)
	out := cmd.OutOrStdout()
	if f, ok := out.(*os.File); ok && term.IsTerminal(f.Fd()) {
		body = escapeControl(body)
	}
	_, err := out.Write(body)
	return err
}

// show queries the server and prints its answer.
func show[T v1.Table](s *serverFlags, cmd *cobra.Command, ask func(context.Context, *client.Client) (T, error), text func(T, table.Style) string) error {
	c, err := s.open()
	if err != nil {
		return err
	}
	a, err := ask(cmd.Context(), c)
	if err != nil {
		return err
	}
	return s.print(cmd, a, func() string { return text(a, s.style()) })
}

// showList is show for a list.
func showList[T v1.Element](s *serverFlags, cmd *cobra.Command, ask func(context.Context, *client.Client) ([]T, error), text func([]T, table.Style) string) error {
	return show(s, cmd, func(ctx context.Context, c *client.Client) (v1.List[T], error) {
		items, err := ask(ctx, c)
		return v1.List[T]{Items: items}, err
	}, func(l v1.List[T], style table.Style) string { return text(l.Items, style) })
}

// escapeControl replaces control characters, which a terminal would obey, but newlines.
// Files and pipes get names unchanged, so that they can be compared and joined.
func escapeControl(words []byte) []byte {
	lines := strings.Split(string(words), "\n")
	for i, l := range lines {
		lines[i] = text.Clean(l)
	}
	return []byte(strings.Join(lines, "\n"))
}

// queryFlags are the flags of a query.
type queryFlags struct {
	from, to string
	where    []string
	by       []string
	node     string
	only     string // node argument of mete usage
	omitOwn  bool
	idle     string
	nested   string
	limit    string
	self     bool
}

func (q *queryFlags) rangeFlags(cmd *cobra.Command) { q.rangeFrom(cmd, "24h") }

// rangeFrom adds the flags of a range that begins at from by default.
func (q *queryFlags) rangeFrom(cmd *cobra.Command, from string) {
	cli.RangeFlags(cmd, &q.from, &q.to, from, "begin at", "end before")
}

func (q *queryFlags) whereFlag(cmd *cobra.Command, s *serverFlags) {
	cmd.Flags().StringArrayVar(&q.where, "where", nil, "only what has `DIMENSION=VALUE`; of one dimension several are alternatives, an empty value is none")
	_ = cmd.RegisterFlagCompletionFunc("where", q.completeWhere(s)) // the only error is an unknown flag
}

func (q *queryFlags) limitFlag(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVar(&q.limit, "limit", "", usage)
}

// parameters returns the flags as query parameters.
func (q *queryFlags) parameters() map[string][]string {
	given := map[string][]string{v1.ParamFrom: {q.from}, v1.ParamTo: {q.to}}
	if q.by != nil {
		given[v1.ParamBy] = q.by
	}
	if q.where != nil {
		given[v1.ParamWhere] = q.where
	}
	if q.only != "" {
		given[v1.ParamWhere] = append(slices.Clone(q.where), string(query.ByNode)+"="+q.only)
	}
	if q.omitOwn {
		given[v1.ParamOmitOwn] = []string{"1"}
	}
	if q.idle != "" {
		given[v1.ParamIdle] = []string{q.idle}
	}
	if q.nested != "" {
		given[v1.ParamNested] = []string{q.nested}
	}
	if q.limit != "" {
		given[v1.ParamLimit] = []string{q.limit}
	}
	return given
}

// usageQuery returns the flags of mete usage as a query.
func (q *queryFlags) usageQuery(sort, every string) (of v1.UsageQuery, err error) {
	given := q.parameters()
	if of.Query, err = v1.ParseQuery(given, time.Now()); err != nil {
		return of, err
	}
	if of.Sort, err = table.SortKey(sort); err != nil {
		return of, err
	}
	if every != "" {
		given[v1.ParamEvery] = []string{every}
	}
	of.Every, err = v1.ParsePeriod(given)
	if err == nil {
		err = v1.CheckPeriods(of.From, of.To, of.Every)
	}
	return of, err
}

// defaultLimit is the default number of rows of a table: people look for the largest.
const defaultLimit = "40"

// unusedColumn and receivedColumn are the columns by which --reserved and --network sort.
const unusedColumn, receivedColumn = "cpu-unused", "received"

// Usage returns mete usage.
func Usage() *cobra.Command {
	var s serverFlags
	var q queryFlags
	var sort, every string
	var columns []string
	var full, reserved, network bool
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Show what was used, by job or other dimensions",
		Long: `Show the use of resources in a range of time, by job or other dimensions, from the
ledger of a server: mete up or mete server.

Amounts are exclusive: a row holds the use of its workloads without that of workloads
below them, so the rows add up. Use that no job caused is in the rows system and idle,
so the sum is the capacity of the machine.

CPU TIME is the amount, CORES its average. MEMORY is the average over the whole range,
page cache included; PEAK is the largest that any one workload of the row held.
Averages are over the range so that the rows add up: mete runs shows what each run held
while it ran. PROCESSES were started in the range. Each figure has the prefix that suits
it: --sort orders the rows by a column, and -o csv has base units. A
workload without a job has a row under its own name; workloads that lack a dimension,
such as a user, are in the row (none).

ENERGY is shown with its error either way, POWER is the average. The energy that
machines use without load is in the row idle; --idle divides it among the workloads:
equal by the time that each existed, used by the CPU time that each used.

The figures of a host include those of a virtual machine to which it gives energy, so
sums leave such a guest out; by node, its row is below the sum. --node NODE selects
one guest, --nested only selects all of them.

--every 1d shows the same rows for each UTC day of the range, --every 1h for each UTC
hour: their amounts sum to those of the whole range. --columns and --sort take the
columns of the table in lower case, as cpu, memory or energy, and the keys of -o json.
-o csv has the columns of the table; with --full it has every figure, as -o json does.

--reserved shows what pods of Kubernetes reserved (their requests), what they are limited
to, and UNUSED: what was reserved and not used. It is summed over pods: what one pod uses
beyond what it reserves is not deducted from what another one does not use. So a burst
counts within its period only: UNUSED of the periods of --every may sum to more than that
of the range. LIMIT is the sum over the containers that had one: with (70%) they had one
for that part of their time; none: no container had one. All are averages over the range,
as CORES and MEMORY beside them. The columns storage-reserved and gpu-reserved show local
storage, with the capacity of volumes, and accelerators.

--network shows network traffic by class of where its other end is: node is the same
machine, box the same enclosure of machines, internal the same zone, zone another zone,
peering a network with which traffic is exchanged directly, internet anything else.
UNCLASSIFIED is RECEIVED or SENT less the sum of the classes: traffic of which the class
is not known. A class without traffic has no column in the table.

–  absent (not zero)   ~  a measured total, apportioned   ≈  modelled

Dimensions: ` + strings.Join(v1.Dimensions(), ", ") + `.`,
		Example: `  mete usage
  mete usage --by user,job --from today
  mete usage --by workload --where job=nightly --from -7d
  mete usage --by project --from -30d --idle used
  mete usage --by project --from 2026-03-01 --to 2026-04-01 --every 1d -o csv
  mete usage --sort energy --columns energy,power,cpu
  mete usage --by namespace --nested only
  mete usage --reserved --by namespace,job --from -7d
  mete usage --network --by namespace --from -30d
  mete usage --self
  mete usage --self --reserved
  mete usage --by label:team --from 2026-03-01 --to 2026-04-01 -o csv > march.csv`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.output == "table" && q.limit == "" {
				q.limit = defaultLimit
			}
			chosen := columns != nil
			preset := func(names []string, by string) {
				if !chosen {
					columns = append(columns, names...)
				}
				if !cmd.Flags().Changed("sort") {
					sort = by
				}
			}
			if reserved {
				preset(table.ReservedNames(), unusedColumn)
			}
			if network {
				preset(table.NetworkNames(), receivedColumn)
			}
			shown, err := table.ParseColumns(columns)
			if err != nil {
				return err
			}
			if q.self {
				return s.self(cmd, func(a *v1.Self) string { return table.SelfText(a, shown, s.style()) })
			}
			return show(&s, cmd, func(ctx context.Context, c *client.Client) (*v1.Usage, error) {
				asked, err := q.usageQuery(sort, every)
				if err != nil {
					return nil, err
				}
				if s.output == "csv" && !full || columns != nil {
					asked.Fields = table.Fields(shown)
				}
				a, err := c.Usage(ctx, asked)
				if err == nil {
					a.Only(asked.Fields)
					a.PutResidualsLast()
				}
				return a, err
			}, func(a *v1.Usage, style table.Style) string {
				if !chosen {
					shown = table.WithTraffic(shown, a)
				}
				return table.UsageText(a, shown, style)
			})
		},
	}
	cmd.Flags().StringArrayVar(&q.by, "by", []string{"job"}, "group by `DIMENSION`, or by several with commas")
	q.rangeFlags(cmd)
	q.whereFlag(cmd, &s)
	cmd.Flags().StringVar(&q.only, "node", "", "only the `NODE` of this name or id, as --where node=NODE")
	cmd.Flags().StringVar(&q.nested, "nested", "", "show what ran in guests, which is within their hosts' figures, by `MODE`: only (nothing else) or also (below all other)")
	cmd.Flags().BoolVar(&q.omitOwn, "omit-own", false, "leave out what mete itself used")
	cmd.Flags().StringVar(&q.idle, "idle", v1.IdlePolicies()[0], "divide the energy of idle machines by `POLICY`: none, equal or used")
	cmd.Flags().BoolVar(&q.self, "self", false, "show what the job or pod of which this command is part used itself in all its life, by METE_SELF_URL and METE_SELF_TOKEN of its environment, or METE_SELF_TOKEN_FILE; of the other flags only -o and --ascii apply, and to the table --columns, --reserved and --network")
	cmd.Flags().StringVar(&sort, "sort", "cpu", "sort by `COLUMN`, the largest first")
	cmd.Flags().StringSliceVar(&columns, "columns", nil, "show only these `COLUMNS`, with commas: "+strings.Join(table.ColumnNames(), ", "))
	cmd.Flags().BoolVar(&reserved, "reserved", false, "show what was reserved and not used, as --columns "+strings.Join(table.ReservedNames(), ",")+" --sort "+unusedColumn)
	cmd.Flags().BoolVar(&network, "network", false, "show network traffic by class, as --columns received,received-node,... --sort "+receivedColumn)
	cmd.Flags().StringVar(&every, "every", "", "show each `PERIOD` of the range: 1h or 1d, of UTC")
	cmd.Flags().BoolVar(&full, "full", false, "with -o csv: every figure")
	q.limitFlag(cmd, "show the `N` largest rows, and the sum of the others (default: "+defaultLimit+" of a table, else all)")
	s.flags(cmd)
	cli.Choices(cmd, "by", v1.Dimensions()...)
	cli.Choices(cmd, "idle", v1.IdlePolicies()...)
	cli.Choices(cmd, "sort", table.ColumnNames()...)
	cli.Choices(cmd, "columns", table.ColumnNames()...)
	cli.Choices(cmd, "every", v1.Periods()...)
	cli.Choices(cmd, "nested", v1.NestedModes()...)
	return cmd
}

// Gaps returns mete gaps.
func Gaps() *cobra.Command {
	var s serverFlags
	var q queryFlags
	cmd := &cobra.Command{
		Use:   "gaps",
		Short: "List the gaps in the data, with their reasons",
		Long: `List the times for which data is missing or incomplete, with the reason and what it
means for the figures. All other time is booked once and in full. The list also has the
corrections of machines' clocks: from when on, and by how much.`,
		Example: `  mete gaps
  mete gaps --from -30d --node web-1`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return showList(&s, cmd, func(ctx context.Context, c *client.Client) ([]v1.Gap, error) {
				from, to, err := v1.ParseRange(q.parameters(), time.Now())
				if err != nil {
					return nil, err
				}
				return c.Gaps(ctx, from, to, q.node)
			}, table.GapsText)
		},
	}
	q.rangeFlags(cmd)
	cmd.Flags().StringVar(&q.node, "node", "", "only of the `NODE` of this name or id")
	s.flags(cmd)
	return cmd
}

// Workloads returns mete workloads.
func Workloads() *cobra.Command {
	var s serverFlags
	var q queryFlags
	cmd := &cobra.Command{
		Use:   "workloads",
		Short: "List the workloads that used something",
		Long: `List the workloads that used something in a range of time: name, node and times. mete
usage --by workload shows how much they used.`,
		Example: `  mete workloads --from -1h
  mete workloads --where kind=job --where kind=container -o csv`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return showList(&s, cmd, func(ctx context.Context, c *client.Client) ([]v1.Workload, error) {
				asked, err := v1.ParseFilter(q.parameters(), time.Now())
				if err != nil {
					return nil, err
				}
				return c.Workloads(ctx, asked)
			}, table.WorkloadsText)
		},
	}
	q.rangeFlags(cmd)
	q.whereFlag(cmd, &s)
	q.limitFlag(cmd, "at most `N`")
	s.flags(cmd)
	return cmd
}
