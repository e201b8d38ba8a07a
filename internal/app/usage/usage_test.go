package usage_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/app/usage"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	modelusage "mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/apispec"
	"mete.dev/mete/internal/ui/cli"
)

var (
	update = flag.Bool("update", false, "rewrite the golden files")
	noon   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

// TestMain sets a time zone other than UTC.
func TestMain(m *testing.M) {
	time.Local = time.FixedZone("CET", 3600)
	os.Exit(m.Run())
}

// A book is a ledger with a fixed answer to each query; it records the last query.
type book struct {
	asked query.Query
	runs  query.RunQuery
}

func (b *book) Usage(_ context.Context, q query.Query) (*query.Answer, error) {
	b.asked = q
	if len(q.Where["pod"]) > 0 {
		return nil, fault.WithHint(fmt.Errorf("dimension pod: %w", fault.ErrInvalid), "there are no pods here")
	}
	a := &query.Answer{From: q.From, To: q.To, By: q.By, Gaps: 1, Idle: q.Idle, Nested: q.Nested, NestedNodes: 1}
	for i, name := range []string{"idle", "bu\x1bild", "web", "", "system"} {
		g := query.Group{Nodes: 1, First: q.From, Last: q.To}
		for range q.By {
			g.Keys = append(g.Keys, name)
		}
		put := func(r modelusage.Resource, v int64) {
			g.Usage.Present |= 1 << r
			g.Usage.Quality.Set(r, modelusage.Measured)
			g.Usage.Sum[r] = unit.Sum{}.Add(v)
		}
		put(modelusage.CPU, int64(900e9>>i))
		put(modelusage.Memory, int64(3600<<30>>i))
		put(modelusage.EnergyRest, int64(36e9>>i))
		put(modelusage.EnergyError, int64(9e9>>i))
		g.Usage.Quality.Set(modelusage.EnergyRest, modelusage.Modelled)
		// The first reserves, with a limit for 7 of 10 containers, the second without any, and the third all limited.
		if w := int64(i); i >= 1 && i <= 3 {
			const containers = 10 * 3600e9
			put(modelusage.CPUReserved, 7200e9/w)
			put(modelusage.MemoryReserved, 3600<<30/w)
			put(modelusage.StorageReserved, 3600<<32)
			put(modelusage.ReservedTime, containers)
			put(modelusage.CPULimitedTime, []int64{0, 0.7 * containers, 0, containers}[i])
			put(modelusage.MemoryLimitedTime, containers)
			put(modelusage.MemoryLimit, 3600<<31)
			if i != 2 {
				put(modelusage.CPULimit, 9000e9)
			}
			for r, of := range query.Reservable {
				g.Usage.Unused[r] = query.Unused{Sum: g.Usage.Sum[of.Reserved].Less(g.Usage.Sum[of.Used]), Quality: modelusage.Apportioned}
			}
		}
		if q.Idle != "" {
			g.Usage.Idle, g.Usage.IdleError, g.Usage.IdleQuality = unit.Sum{}.Add(int64(3e9>>i)), unit.Sum{}.Add(int64(1e9>>i)), modelusage.Modelled
		}
		a.Groups = append(a.Groups, g)
	}
	if q.Nested == query.NestedAlso {
		a.NestedGroups = a.Groups[1:3]
	}
	return a, nil
}

func (b *book) EachPeriod(ctx context.Context, q query.Query, every query.Period, f func(*query.Answer) error) error {
	return apispec.EachPeriod(ctx, q, every, b.Usage, f)
}

func (b *book) Connections(_ context.Context, q query.Query) (*query.Connections, error) {
	b.asked = q
	return &query.Connections{From: q.From, To: q.To, By: q.By}, nil
}

func (b *book) Nodes(context.Context, query.Scope) ([]query.Node, error) {
	return []query.Node{{ID: "01K5X3V7QZ8R9S0T1V2W3X4Y5Z", Name: "web-1", Cluster: "lab", Enrolled: noon.AddDate(-1, 0, 0), Through: noon, State: "live", CPUs: 8, Streams: 1,
		Nested: &query.Nesting{Host: "01K5X3V7QZ8R9S0T1V2W3X4Y61", HostName: "metal", Name: "vm\x1b1", Since: noon.Add(-time.Hour), Seen: noon}}}, nil
}

func (b *book) VMs(_ context.Context, from, to time.Time, _ query.Scope) ([]query.VM, error) {
	b.asked = query.Query{From: from, To: to}
	v := query.VM{Guest: "00112233-4455-6677-8899-aabbccddeeff", Name: "vm\x1b1", Host: "01K5X3V7QZ8R9S0T1V2W3X4Y61", HostName: "metal", Node: "01K5X3V7QZ8R9S0T1V2W3X4Y5Z", NodeName: "web-1",
		Workload: workload.NewID("metal", workload.VM, "k"), Compared: 360, N: 12345678, Last: noon}
	for r, joules := range map[modelusage.Resource]int64{modelusage.EnergyRest: 1200, modelusage.EnergyIdle: 300, modelusage.EnergyError: 120} {
		v.Usage.Present |= modelusage.SetOf(r)
		v.Usage.Quality.Set(r, modelusage.Apportioned)
		v.Usage.Sum[r] = unit.Sum{}.Add(joules * 1e6)
	}
	return []query.VM{v}, nil
}

func (b *book) DownstreamServers(context.Context, query.Scope) ([]query.Source, error) {
	return []query.Source{{ID: "01K5X3V7QZ8R9S0T1V2W3X4Y60", Name: "core-1", Cluster: "eu", Nodes: 2, Pages: 17, Epoch: "EPOCH", Seen: noon, State: "behind"}}, nil
}

func (b *book) Streams(context.Context, query.StreamQuery) ([]query.Stream, error) { return nil, nil }

func (b *book) Workloads(_ context.Context, q query.Query) ([]query.Workload, error) {
	b.asked = q
	w := query.Workload{Node: "web-1", First: noon.Add(-time.Hour), Last: noon}
	w.ID, w.Kind, w.Name.Name, w.Job = workload.NewID("web-1", workload.Job, "k"), workload.Job, "make", "build"
	return []query.Workload{w}, nil
}

func (b *book) Runs(_ context.Context, q query.RunQuery) (list []query.Run, _ error) {
	b.asked, b.runs = q.Query, q
	for i := range 8 {
		r := query.Run{NodeID: "01K5X3V7QZ8R9S0T1V2W3X4Y5Z", State: query.Ended, Length: 10 * time.Second}
		r.Node, r.Cluster, r.Kind, r.Job, r.User = "web-1", "lab", workload.Job, "bu\x1bild", "ann"
		r.ID, r.Started = workload.NewID("web-1", workload.Job, fmt.Sprint(i)), noon.Add(-time.Duration(i)*time.Minute)
		r.Ended, r.Exit = r.Started.Add(r.Length), new(0)
		put := func(res modelusage.Resource, v int64, q modelusage.Quality) {
			r.Usage.Present |= 1 << res
			r.Usage.Quality.Set(res, q)
			r.Usage.Sum[res] = unit.Sum{}.Add(v)
		}
		put(modelusage.CPU, int64(12e9+i*1e7), modelusage.Measured)
		put(modelusage.MemoryPeak, 300<<20, modelusage.Measured)
		put(modelusage.DiskWritten, int64(i)<<20, modelusage.Apportioned)
		put(modelusage.EnergyRest, 150e6, modelusage.Modelled)
		put(modelusage.EnergyError, 60e6, modelusage.Modelled)
		list = append(list, r)
	}
	list[0].Usage.Sum[modelusage.CPU], list[0].State, list[0].Ended, list[0].Exit = unit.Sum{}.Add(20e9), query.Running, time.Time{}, nil
	list[1].Usage.Sum[modelusage.CPU] = unit.Sum{}.Add(18e9)
	list[2].Exit, list[2].Usage.Present = new(137), list[2].Usage.Present|modelusage.SetOf(modelusage.OOMKills)
	list[2].Usage.Quality.Set(modelusage.OOMKills, modelusage.Measured)
	list[2].Usage.Sum[modelusage.OOMKills] = unit.Sum{}.Add(1)
	list[4].Kind, list[4].Name.Name, list[4].Node, list[4].NodeID, list[4].Nodes = workload.KubeJob, "report-2938\x1b", "", "", 3
	for i := range list {
		var before []*query.Run
		for k := i + 1; k < len(list); k++ {
			before = append(before, &list[k])
		}
		list[i].Compare(before)
	}
	if q.ID != "" {
		list = slices.DeleteFunc(list, func(r query.Run) bool { return !strings.HasPrefix(string(r.ID), q.ID) })
	}
	if q.Limit > 0 && len(list) > q.Limit {
		list = list[:q.Limit]
	}
	return list, nil
}

func (b *book) Gaps(_ context.Context, from, to time.Time, node string, _ query.Scope) ([]query.Gap, error) {
	b.asked = query.Query{From: from, To: to, Where: map[query.Dimension][]string{"node": {node}}}
	return []query.Gap{{Node: "01K5X3V7QZ8R9S0T1V2W3X4Y5Z", Name: "web-1", Gap: modelusage.Gap{From: noon, To: noon.Add(90 * time.Second), Reason: modelusage.Unwatched}}}, nil
}

func (b *book) Uptimes(_ context.Context, from, to time.Time, node string, _ query.Scope) ([]query.Uptime, error) {
	b.asked = query.Query{From: from, To: to, Where: map[query.Dimension][]string{"node": {node}}}
	return []query.Uptime{
		{Node: "01K5X3V7QZ8R9S0T1V2W3X4Y5Z", Name: "web-1", Cluster: "lab", From: from, To: to, Up: 23*time.Hour + 59*time.Minute + 59500*time.Millisecond, Down: 500 * time.Millisecond, Downs: 1,
			Last: query.Interval{From: noon.Add(-time.Hour), To: noon.Add(-time.Hour + 500*time.Millisecond)}},
		{Node: "01K5X3V7QZ8R9S0T1V2W3X4Y60", Name: "web-2", Cluster: "lab", From: from, To: to, Unknown: 24 * time.Hour},
	}, nil
}

func (b *book) EachGap(context.Context, time.Time, time.Time, query.Scope, func(*query.Gap)) error {
	return nil
}

func (b *book) Dimensions(context.Context, query.Scope) ([]query.DimensionCount, error) {
	return nil, nil
}

// mete runs a command line against a server with the ledger b.
func mete(t *testing.T, b *book, line ...string) (stdout string, err error) {
	t.Helper()
	authorize := func(r *http.Request) (query.Scope, error) { return query.Scope{All: true}, nil }
	s := httptest.NewServer(api.New(b, nil, nil, authorize, func() time.Time { return noon }, slog.New(slog.DiscardHandler)))
	defer s.Close()
	t.Setenv("METE_SERVER", s.URL)
	return run(line...)
}

// run runs a command line.
func run(line ...string) (string, error) {
	root := &cobra.Command{Use: "mete", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(usage.Usage(), usage.Nodes(), usage.Sources(), usage.Gaps(), usage.Workloads(), usage.Connections(), usage.VMs(), usage.Runs(), usage.Compare())
	cli.Complete(root)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(line)
	err := root.ExecuteContext(context.Background())
	return out.String(), err
}

const hour = "--from 2026-03-01T11:00:00Z --to 2026-03-01T12:00:00Z"

// TestCommands compares the output of commands with the golden file, and the query with the flags.
func TestCommands(t *testing.T) {
	var all strings.Builder
	for _, c := range []string{
		"usage " + hour,
		"usage --by user,label:app --where job=web --where label:a=b=c --omit-own --limit 2 --ascii " + hour,
		"usage --by node " + hour,
		"usage --idle used " + hour,
		"usage --node web-1 " + hour,
		"usage --by user,node --nested also " + hour,
		"usage --nested only -o csv --limit 1 " + hour,
		"usage -o csv " + hour, "usage -o csv --full " + hour,
		"usage --sort energy --columns energy,cpu,power --limit 3 " + hour, "usage --sort memory_byte_seconds --columns cpu -o json " + hour,
		"usage --every 1h --limit 2 --columns cpu,cores,memory,peak --from 2026-03-01T10:30:00Z --to 2026-03-01T12:00:00Z", "usage --every 1d --limit 1 --columns cpu -o csv --from 2026-02-27T22:00:00Z --to 2026-03-01T12:00:00Z", "usage --every 1d --limit 1 --columns cpu -o json --from 2026-02-28T22:00:00Z --to 2026-03-01T12:00:00Z",
		"usage --reserved " + hour, "usage --reserved --ascii --sort memory-reserved --limit 2 " + hour, "usage --reserved --columns cpu-unused,storage-reserved,gpu-reserved " + hour, "usage --reserved --limit 2 -o csv " + hour,
		"usage -o json " + hour,
		"nodes", "nodes -o csv", "nodes -o json", "nodes uptime " + hour, "nodes uptime -o json web-1 " + hour, "nodes uptime -o csv " + hour, "sources", "sources -o csv", "sources -o json",
		"gaps " + hour, "gaps --node web-1 -o json " + hour, "gaps -o csv " + hour,
		"vms " + hour, "vms -o csv " + hour, "vms -o json " + hour,
		"workloads --where kind=job --limit 7 " + hour, "workloads -o json " + hour, "workloads -o csv " + hour,
		"runs " + hour, "runs build --failed --limit 2 -o json --where node=web-1 " + hour, "runs -o csv " + hour, "runs --ascii " + hour,
		"compare build@6 build@2 build@3 " + hour, "compare build@1 build@2 -o csv " + hour, "compare build@2 build@1 -o json " + hour,
	} {
		b := &book{}
		out, err := mete(t, b, strings.Fields(c)...)
		if err != nil {
			t.Errorf("mete %s: %v", c, err)
		}
		fmt.Fprintf(&all, "$ mete %s\n", c)
		if q := b.asked; !q.From.IsZero() {
			fmt.Fprintf(&all, "(asked: %s to %s by %v where %v, own left out %v, idle %q, nested %q, limit %d)\n", q.From.UTC().Format(time.TimeOnly), q.To.UTC().Format(time.TimeOnly), q.By, q.Where, q.OmitOwn, q.Idle, q.Nested, q.Limit)
		}
		all.WriteString(out + "\n")
	}
	file := filepath.Join("testdata", "commands.txt")
	if *update {
		if err := os.WriteFile(file, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), all.String()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestDefaults checks that the default range is the last 24 hours.
func TestDefaults(t *testing.T) {
	b := &book{}
	before := time.Now()
	if _, err := mete(t, b, "usage"); err != nil {
		t.Fatal(err)
	}
	if q := b.asked; q.To.Before(before) || q.To.After(time.Now().Add(time.Minute)) || q.To.Sub(q.From) != 24*time.Hour || q.By[0] != query.ByJob {
		t.Errorf("asked %+v", q)
	}
}

func TestErrors(t *testing.T) {
	t.Setenv("METE_TOKEN", "")
	for _, c := range []struct {
		line, err, hint string
		code            int
	}{
		{"usage -o yaml", `-o "yaml": invalid`, "it is one of table, csv, json", cli.Invalid},
		{"usage --by color", `dimension "color": invalid`, "it is one of job", cli.Invalid},
		{"usage --from later", `time "later": invalid`, "write a time as", cli.Invalid},
		{"usage --from now --to -1h", "is empty: invalid", "from must be earlier than to", cli.Invalid},
		{"usage --where web", `filter "web" has no =: invalid`, "write it as job=NAME", cli.Invalid},
		{"usage --idle some", `parameter idle="some": invalid`, "it is one of none, equal, used", cli.Invalid},
		{"usage --idle reserved", `parameter idle="reserved": invalid`, "idle energy is not divided by reservations", cli.Invalid},
		{"usage --nested some", `parameter nested="some": invalid`, "only returns guest machines alone", cli.Invalid},
		{"vms --from x", `time "x": invalid`, "write a time as", cli.Invalid},
		{"usage --limit many", `parameter limit="many": invalid`, "from 1 to 10000", cli.Invalid},
		{"usage --where pod=x", "dimension pod: invalid", "there are no pods here", cli.Invalid},
		{"usage x", `unexpected argument "x"`, "mete usage --help", cli.Invalid},
		{"nodes --token mete_x", "token is cut off", "copy the whole line", cli.Invalid},
		{"nodes --server tcp://x", `server "tcp://x": invalid`, "write it as http://127.0.0.1:9797", cli.Invalid},
		{"nodes --server http://127.0.0.1:1", "no server listens there", "start one with: mete up", cli.Unavailable},
		{"nodes --server https://127.0.0.1:1", "a token is needed", "mete token create --role viewer", cli.Denied},
		{"nodes --server http://192.0.2.1:9797", "http", "", cli.Invalid},
		{"gaps --from x", `time "x": invalid`, "write a time as", cli.Invalid},
		{"usage --every 2h", `parameter every="2h": invalid`, "it is 1h for UTC hours, or 1d", cli.Invalid},
		{"usage --every 1h --from -60d", "1440 periods of 1h: invalid", "at most 1000: choose a shorter range, or 1d", cli.Invalid},
		{"usage --sort color", `sort by "color": invalid`, "sort by cpu, cores", cli.Invalid},
		{"usage --columns cpu,color", `column "color": invalid`, "columns are cpu, cores", cli.Invalid},
		{"runs a b", "", "mete runs --help", cli.Invalid},
		{"compare build@1", "", "mete compare --help", cli.Invalid},
		{"compare build@1 build@9", `run "build@9": the job has 8 runs in the range`, "--from looks further back", cli.NotFound},
		{"compare build@0 build@1", `run "build@0": invalid`, "write JOB@N with N from 1", cli.Invalid},
		{"compare build@1 BUILD", `run "BUILD": invalid`, "or as JOB@1", cli.Invalid},
		{"compare build@1 zzz", `run "zzz"`, "mete runs lists the runs", cli.NotFound},
		{"workloads --where x=y", `dimension "x": invalid`, "it is one of", cli.Invalid},
	} {
		_, err := mete(t, &book{}, strings.Fields(c.line)...)
		if err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(fault.Hint(err), c.hint) || cli.Code(err) != c.code {
			t.Errorf("mete %s: %v; %s (%d), want %s; %s (%d)", c.line, err, fault.Hint(err), cli.Code(err), c.err, c.hint, c.code)
		}
	}
}

// TestDefaultServer checks that the default server is that of mete up.
func TestDefaultServer(t *testing.T) {
	t.Setenv("METE_SERVER", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // nothing is sent
	cmd := usage.Nodes()
	cmd.SetContext(ctx)
	cmd.SetArgs([]string{})
	if err := cmd.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want canceled", err)
	}
}
