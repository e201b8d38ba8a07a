package usage_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestReserved checks that mete usage --reserved shows what pods of a ledger reserve, are limited to, and do not use; that
// the figure to sort by need not be shown; and that no list has what only reserves as a workload.
func TestReserved(t *testing.T) {
	l := openLedger(t)
	const id = "01K5X3V7QZ8R9S0T1V2W3X4Y5Z"
	if err := l.PutNode(t.Context(), registry.Node{ID: id, Cluster: "lab", Name: "worker-1", MachineID: "m", Boot: "b", At: noon.Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	const minutes = 60
	first := noon.Unix()/60 - minutes
	e := &batch.Entry{Node: id, Stream: batch.Stream{1}, Number: 1, Hash: batch.HashOf([]byte("1")), Sent: []byte("1"), Boot: "b", Through: noon}
	whole := usage.Shares{16 * 60e9, 60 * 64 << 30}
	left := whole
	use := func(kind workload.Kind, key string, milli, megabytes int64) {
		n := batch.Name{ID: workload.NewID(id, kind, key), Kind: kind, Key: key, Name: key}
		short, _ := workload.ShortIDOf(n.ID)
		e.Names = append(e.Names, n)
		u := usage.Usage{Covered: time.Minute}
		cpu, memory := milli*60e6, megabytes<<20*60
		if kind == workload.Idle {
			cpu, memory = left[0], left[1]
		}
		left[0], left[1] = left[0]-cpu, left[1]-memory
		u.Put(usage.CPU, cpu, usage.Measured)
		u.Put(usage.Memory, memory, usage.Measured)
		for m := range int64(minutes) {
			e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: first + m, Usage: u})
		}
	}
	var pods []pod.Pod
	for i, c := range []struct {
		job, name     string
		cpu, memory   int64 // thousandths of a CPU, MiB
		limit, ceil   int64
		used, charged int64
	}{
		{"shop/deployment/web", "web-5f-1", 2000, 2048, 4000, 4096, 310, 900}, {"shop/deployment/web", "web-5f-2", 2000, 2048, 4000, 4096, 2600, 1100},
		{"shop/deployment/search", "search-7c-1", 4000, 8192, pod.NoLimit, 8192, 900, 6100},
		{"data/statefulset/db", "db-0", 1000, 4096, pod.NoLimit, pod.NoLimit, 1400, 3900}, {"data/statefulset/db", "db-1", 1000, 4096, 2000, pod.NoLimit, 250, 3100},
		{"data/pod/debug", "debug", 0, 0, pod.NoLimit, pod.NoLimit, 20, 35},
	} {
		key := fmt.Sprintf("%02d%s", i, strings.Repeat("a", 62))
		namespace, _, _ := strings.Cut(c.job, "/")
		limit := pod.Levels{CPU: c.cpu, Memory: c.memory << 20, CPULimit: c.limit, MemoryLimit: c.ceil}
		if c.ceil > 0 {
			limit.MemoryLimit <<= 20
		}
		pods = append(pods, pod.Pod{UID: fmt.Sprintf("00000000-0000-0000-0000-%012d", i), Namespace: namespace, Name: c.name, Job: c.job, Node: "worker-1", Containers: map[string]string{key: "app"},
			Created: noon.Add(-2 * time.Hour), Scheduled: noon.Add(-time.Hour), Reserved: []pod.Reservation{{Container: "app", Levels: limit}}})
		use(workload.Container, key, c.used, c.charged)
	}
	use(workload.System, "system", 500, 2000)
	use(workload.Idle, "idle", 0, 0)
	for m := range int64(minutes) {
		e.Nodes = append(e.Nodes, batch.NodeMinute{Minute: first + m, Covered: time.Minute, CPUs: 16, Whole: whole})
	}
	if err := l.BookPods(t.Context(), pod.Lease{Cluster: "lab"}, pods, noon); err != nil {
		t.Fatal(err)
	}
	if r, err := l.Book(t.Context(), []*batch.Entry{e}); err != nil || r[0].Err != nil || r[0].Verdict != batch.Accepted {
		t.Fatalf("Book: %v, %v", r, err)
	}
	for done := false; !done; {
		var err error
		if _, done, err = l.PutReserved(t.Context(), pod.Lease{Cluster: "lab"}, noon, noon, 0); err != nil {
			t.Fatal(err)
		}
	}
	authorize := func(*http.Request) (query.Scope, error) { return query.Scope{All: true}, nil }
	s := httptest.NewServer(api.New(l, nil, nil, authorize, time.Now, slog.New(slog.NewTextHandler(t.Output(), nil))))
	defer s.Close()
	t.Setenv("METE_SERVER", s.URL)
	for line, want := range map[string]string{
		"usage --reserved": `2026-03-01 12:00:00 to 13:00:00 CET (1h)
JOB                      CORES  CORES RESERVED   CORES LIMIT  CORES UNUSED    MEMORY  MEMORY RESERVED    MEMORY LIMIT  MEMORY UNUSED
shop/deployment/search   0.900           4.000          none         3.100  5.96 GiB         8.00 GiB        8.00 GiB       2.04 GiB
shop/deployment/web      2.910           4.000         8.000         1.690  1.95 GiB         4.00 GiB        8.00 GiB       2.05 GiB
data/statefulset/db      1.650           2.000   2.000 (50%)         0.750  6.84 GiB         8.00 GiB            none       1.16 GiB
data/pod/debug           0.020           0.000          none             –  35.0 MiB              0 B            none              –
system                   0.500               –             –             –  1.95 GiB                –               –              –
idle                    10.020                                              47.3 GiB
------------------------------------------------------------------------------------------------------------------------------------
SUM                     16.000          10.000  10.000 (50%)         5.540  64.0 GiB         20.0 GiB  16.0 GiB (50%)       5.25 GiB
MACHINE HAD             16.000                                              64.0 GiB
the rows add up to the machine: nothing is lost and nothing counted twice
LIMIT is the sum over containers that had one: (N%) for that part of their time, none: no container had one
– under RESERVED, LIMIT and UNUSED: nothing is reserved, or it is not known
`,
		"usage --by workload --columns cpu,memory-unused --sort cpu-unused --limit 2": `2026-03-01 12:00:00 to 13:00:00 CET (1h)
WORKLOAD         CPU TIME  MEMORY UNUSED
search-7c-1/app     54m0s       2.04 GiB
web-5f-1/app       18m36s       1.12 GiB
4 others         4h16m12s       2.09 GiB
system              30m0s              –
idle             10h1m12s
----------------------------------------
SUM               16h0m0s       5.25 GiB
MACHINE HAD       16h0m0s
the rows add up to the machine: nothing is lost and nothing counted twice
– under RESERVED, LIMIT and UNUSED: nothing is reserved, or it is not known
`,
	} {
		out, err := run(append(strings.Fields(line), "--from", "2026-03-01T11:00:00Z", "--to", "2026-03-01T12:00:00Z")...)
		if err != nil || out != want {
			t.Errorf("mete %s: %v\n%s\nwant\n%s", line, err, out, want)
		}
	}
	for line, rows := range map[string][]string{
		"usage --by namespace --every 1h --columns cpu-unused,cpu-limit -o csv": {"shop,1,2026-03-01T11:00:00Z,2026-03-01T12:00:00Z,3600,28800,10800,7200,17244,", "data,1,2026-03-01T11:00:00Z,2026-03-01T12:00:00Z,3600,7200,10800,3600,2700,"},
		"workloads --where kind=container -o csv":                               {",db-0/app,", ",db-1/app,", ",debug/app,", ",search-7c-1/app,", ",web-5f-1/app,", ",web-5f-2/app,"},
	} {
		out, err := run(append(strings.Fields(line), "--from", "2026-03-01T11:00:00Z", "--to", "2026-03-01T12:00:00Z")...)
		for _, row := range rows {
			if err != nil || !strings.Contains(out, row) || strings.Contains(line, "workloads") && strings.Count(out, "\n") != 1+len(rows) {
				t.Errorf("mete %s: %v, no row %s, or others, in\n%s", line, err, row, out)
			}
		}
	}
}
