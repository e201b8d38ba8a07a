package usage_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/api"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestConnections checks that mete connections shows the edges that a ledger has, the rest, and the sum that mete usage shows.
func TestConnections(t *testing.T) {
	l := openLedger(t)
	const id = "01K5X3V7QZ8R9S0T1V2W3X4Y5Z"
	if err := l.PutNode(t.Context(), registry.Node{ID: id, Cluster: "lab", Name: "worker-1", MachineID: "m", Boot: "b", At: noon.Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	minute := noon.Add(-time.Hour).Unix() / 60
	e := &batch.Entry{Node: id, Stream: batch.Stream{1}, Number: 1, Hash: batch.HashOf([]byte("1")), Sent: []byte("1"), Boot: "b", Through: noon}
	talk := func(name string, rx, tx int64, quality usage.Quality, missed int64, entries ...connection.Entry) {
		n := batch.Name{ID: workload.NewID(id, workload.Job, name), Kind: workload.Job, Key: name, Name: name, Job: name}
		short, _ := workload.ShortIDOf(n.ID)
		u := usage.Usage{Covered: time.Minute}
		u.Put(usage.NetworkRx, rx, quality)
		u.Put(usage.NetworkTx, tx, quality)
		e.Names = append(e.Names, n)
		e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: minute, Usage: u})
		if entries != nil {
			e.Connections = append(e.Connections, batch.Connections{Workload: short, Minute: minute, Sketch: &connection.Sketch{Missed: missed, Entries: entries}})
		}
	}
	const mib = 1 << 20
	edge := func(peer string, port uint16, protocol uint8, listens bool, class usage.NetworkClass, rx, tx, off int64) connection.Entry {
		return connection.Entry{Edge: connection.Edge{Peer: netip.MustParseAddr(peer), Port: port, Protocol: protocol, Listens: listens, Class: uint8(class)},
			Traffic: connection.Traffic{RxBytes: rx, TxBytes: tx, RxPackets: 1, TxPackets: 1}, Error: off}
	}
	talk("web", 70*mib, 900*mib, usage.Measured, 3*mib, edge("10.0.0.7", 443, 6, true, usage.ClassInternal, 40*mib, 800*mib, 0), edge("fd00::9", 53, 17, false, usage.Unclassified, 20*mib, mib, 2*mib))
	talk("ping", mib, mib, usage.Apportioned, 0, edge("192.0.2.1", 0, 1, false, usage.ClassInternet, mib, mib, 0))
	talk("old", 5*mib, mib, usage.Measured, 0)
	if r, err := l.Book(t.Context(), []*batch.Entry{e}); err != nil || r[0].Err != nil || r[0].Verdict != batch.Accepted {
		t.Fatalf("Book: %v, %v", r, err)
	}
	authorize := func(*http.Request) (query.Scope, error) { return query.Scope{All: true}, nil }
	s := httptest.NewServer(api.New(l, nil, nil, authorize, time.Now, slog.New(slog.NewTextHandler(t.Output(), nil))))
	defer s.Close()
	t.Setenv("METE_SERVER", s.URL)
	for line, want := range map[string]string{
		"connections": `2026-03-01 12:00:00 to 13:00:00 CET (1h)
JOB   DIRECTION  PEER       PORT     CLASS          RECEIVED      SENT  MAY BE MORE BY
web   inbound    10.0.0.7   tcp/443  internal       40.0 MiB   800 MiB             0 B
web   outbound   fd00::9    udp/53   unclassified   20.0 MiB  1.00 MiB        2.00 MiB
ping  outbound   192.0.2.1  icmp     internet       1.00 MiB  1.00 MiB             0 B
--------------------------------------------------------------------------------------
rest                                               ~15.0 MiB  ~100 MiB
SUM                                                ~76.0 MiB  ~902 MiB
rest: smaller rows, each of at most 3.00 MiB, and traffic of which no connections are recorded
~ a measured total, apportioned
`,
		"connections --by node,job --limit 1 --ascii --where job=ping": `2026-03-01 12:00:00 to 13:00:00 CET (1h)
NODE      JOB   DIRECTION  PEER       PORT  CLASS      RECEIVED       SENT  MAY BE MORE BY
worker-1  ping  outbound   192.0.2.1  icmp  internet   1.00 MiB   1.00 MiB             0 B
------------------------------------------------------------------------------------------
rest                                                       ~0 B       ~0 B
SUM                                                   ~1.00 MiB  ~1.00 MiB
rest: traffic of which no connections are recorded
~ a measured total, apportioned
`,
		"connections --where job=old": `2026-03-01 12:00:00 to 13:00:00 CET (1h)
no connections are recorded in this range: mete-agent and mete up record them with --connections auto
`,
		"connections --limit 1 -o csv": `job,peer,port,protocol,direction,class,network_rx_bytes,network_tx_bytes,network_rx_packets,network_tx_packets,error_bytes,from,to
web,10.0.0.7,443,tcp,inbound,internal,41943040,838860800,1,1,0,2026-03-01T11:00:00Z,2026-03-01T12:00:00Z
,,,,,,37748736,106954752,,,,2026-03-01T11:00:00Z,2026-03-01T12:00:00Z
`,
		"connections --limit 1 -o json --by kind": `{"from":"2026-03-01T11:00:00Z","to":"2026-03-01T12:00:00Z","by":["kind"],"connections":[
{"kind":"job","peer":"10.0.0.7","port":443,"protocol":"tcp","direction":"inbound","class":"internal","network_rx_bytes":41943040,"network_tx_bytes":838860800,"network_rx_packets":1,"network_tx_packets":1,"error_bytes":0}
],"others_at_most_bytes":24117248,
"rest":{"network_rx_bytes":37748736,"network_tx_bytes":106954752,"covered_seconds":180,"quality":{"network_rx_bytes":"apportioned","network_tx_bytes":"apportioned"}},
"total":{"network_rx_bytes":79691776,"network_tx_bytes":945815552,"covered_seconds":180,"quality":{"network_rx_bytes":"apportioned","network_tx_bytes":"apportioned"}}}
`,
	} {
		out, err := run(append(strings.Fields(line), "--from", "2026-03-01T11:15:00Z", "--to", "2026-03-01T11:45:00Z")...)
		if err != nil || out != want {
			t.Errorf("mete %s: %v\n%s\nwant\n%s", line, err, out, want)
		}
	}
	for _, line := range []string{"connections --by color", "connections --limit 0", "connections --where x", "connections -o xml", "connections more"} {
		if out, err := run(strings.Fields(line)...); err == nil {
			t.Errorf("mete %s:\n%s", line, out)
		}
	}
}
