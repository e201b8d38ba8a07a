package usage_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestNetwork checks that mete usage --network shows the classes of traffic that a ledger has, without columns for others, and
// what has no class: the total less the sum of the classes, as the answer has it.
func TestNetwork(t *testing.T) {
	l := openLedger(t)
	const id = "01K5X3V7QZ8R9S0T1V2W3X4Y5Z"
	if err := l.PutNode(t.Context(), registry.Node{ID: id, Cluster: "lab", Name: "worker-1", MachineID: "m", Boot: "b", At: noon.Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	minute := noon.Add(-time.Hour).Unix() / 60
	e := &batch.Entry{Node: id, Stream: batch.Stream{1}, Number: 1, Hash: batch.HashOf([]byte("1")), Sent: []byte("1"), Boot: "b", Through: noon,
		Nodes: []batch.NodeMinute{{Minute: minute, Covered: time.Minute, CPUs: 1, Whole: usage.Shares{60e9}}}}
	use := func(kind workload.Kind, name string, cpu int64, quality usage.Quality, bytes map[usage.Resource]int64) {
		n := batch.Name{ID: workload.NewID(id, kind, name), Kind: kind, Key: name, Name: name, Job: name}
		short, _ := workload.ShortIDOf(n.ID)
		u := usage.Usage{Covered: time.Minute}
		u.Put(usage.CPU, cpu, usage.Measured)
		for r, v := range bytes {
			u.Put(r, v, usage.Measured)
			if usage.Classified.Has(r) {
				u.Quality.Worsen(r, quality)
			}
		}
		e.Names = append(e.Names, n)
		e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: minute, Usage: u})
	}
	const mib = 1 << 20
	use(workload.Job, "mirror", 20e9, usage.Measured, map[usage.Resource]int64{usage.NetworkRx: 900 * mib, usage.NetworkRxInternet: 700 * mib, usage.NetworkRxNode: 150 * mib, usage.NetworkTx: 40 * mib, usage.NetworkTxInternet: 40 * mib})
	use(workload.Job, "join", 10e9, usage.Apportioned, map[usage.Resource]int64{usage.NetworkRx: 64 * mib, usage.NetworkRxNode: 60 * mib, usage.NetworkTx: 64 * mib, usage.NetworkTxNode: 60 * mib})
	use(workload.Job, "old", 10e9, usage.Measured, map[usage.Resource]int64{usage.NetworkRx: 8 * mib, usage.NetworkTx: 2 * mib}) // without classes
	use(workload.System, "system", 5e9, usage.Measured, nil)
	use(workload.Idle, "idle", 15e9, usage.Measured, nil)
	if r, err := l.Book(t.Context(), []*batch.Entry{e}); err != nil || r[0].Err != nil || r[0].Verdict != batch.Accepted {
		t.Fatalf("Book: %v, %v", r, err)
	}
	authorize := func(*http.Request) (query.Scope, error) { return query.Scope{All: true}, nil }
	s := httptest.NewServer(api.New(l, nil, nil, authorize, time.Now, slog.New(slog.NewTextHandler(t.Output(), nil))))
	defer s.Close()
	t.Setenv("METE_SERVER", s.URL)
	for line, want := range map[string]string{
		"usage --network": `2026-03-01 12:00:00 to 13:00:00 CET (1h), averages over 1m with data
JOB          RECEIVED  FROM NODE  FROM INTERNET  FROM UNCLASSIFIED      SENT    TO NODE  TO INTERNET  TO UNCLASSIFIED
mirror        900 MiB    150 MiB        700 MiB           50.0 MiB  40.0 MiB          –     40.0 MiB              0 B
join         64.0 MiB  ~60.0 MiB              –          ~4.00 MiB  64.0 MiB  ~60.0 MiB            –        ~4.00 MiB
old          8.00 MiB          –              –           8.00 MiB  2.00 MiB          –            –         2.00 MiB
system              –          –              –                  –         –          –            –                –
idle
---------------------------------------------------------------------------------------------------------------------
SUM           972 MiB   ~210 MiB        700 MiB          ~62.0 MiB   106 MiB  ~60.0 MiB     40.0 MiB        ~6.00 MiB
MACHINE HAD
the rows add up to the machine: nothing is lost and nothing counted twice
~ a measured total, apportioned   – not measured (not zero)   – under FROM and TO: no traffic of this class is known
`,
		"usage --columns received,received-box,sent-unclassified --sort sent-unclassified --limit 1": `2026-03-01 12:00:00 to 13:00:00 CET (1h), averages over 1m with data
JOB          RECEIVED  FROM BOX  TO UNCLASSIFIED
join         64.0 MiB         –        ~4.00 MiB
2 others      908 MiB         –         2.00 MiB
system              –         –                –
idle
------------------------------------------------
SUM           972 MiB         –        ~6.00 MiB
MACHINE HAD
the rows add up to the machine: nothing is lost and nothing counted twice
~ a measured total, apportioned   – not measured (not zero)   – under FROM and TO: no traffic of this class is known
`,
	} {
		out, err := run(append(strings.Fields(line), "--from", "2026-03-01T11:00:00Z", "--to", "2026-03-01T12:00:00Z")...)
		if err != nil || out != want {
			t.Errorf("mete %s: %v\n%s\nwant\n%s", line, err, out, want)
		}
	}
	for line, parts := range map[string][]string{
		"usage --network -o json": {`{"job":"mirror",`, `"network_rx_bytes":943718400,`, `"network_rx_node_bytes":157286400,`, `"network_rx_box_bytes":null,`, `"network_rx_internet_bytes":734003200,`, `"network_rx_unclassified_bytes":52428800,"network_tx_unclassified_bytes":0,`,
			`"network_rx_unclassified_bytes":"apportioned"`, `"network_rx_unclassified_bytes":8388608,`},
		"usage --network -o csv": {"job,nodes,first_at,last_at,wall_seconds,network_rx_bytes,network_tx_bytes,network_rx_node_bytes,network_tx_node_bytes,network_rx_box_bytes,", "\nmirror,1,2026-03-01T11:00:00Z,2026-03-01T11:01:00Z,60,943718400,41943040,157286400,,,,,,,,,,734003200,41943040,52428800,0,60,"},
	} {
		out, err := run(append(strings.Fields(line), "--from", "2026-03-01T11:00:00Z", "--to", "2026-03-01T12:00:00Z")...)
		for _, p := range parts {
			if err != nil || !strings.Contains(out, p) {
				t.Errorf("mete %s: %v, no %s in\n%s", line, err, p, out)
			}
		}
	}
}
