package wire_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	pb "mete.dev/mete/proto"
)

// drawPage draws a page that a ledger could make. Rows are in the order of their
// levels, as they come back.
func drawPage(t *rapid.T) *replica.Page {
	p := &replica.Page{From: replica.Mark{Sequence: rapid.Uint64().Draw(t, "sequence"), Position: "here"}, To: "there"}
	at := func() time.Time { return time.Unix(0, rapid.Int64Range(1, 1<<62).Draw(t, "at")).UTC() }
	for range rapid.IntRange(1, 3).Draw(t, "nodes") {
		p.Nodes = append(p.Nodes, replica.Node{
			Node: registry.Node{ID: "n", Cluster: "c", Name: "x", MachineID: "m", Boot: "b", At: at()}, Pool: "p",
			CPUs: rapid.IntRange(0, 1000).Draw(t, "cpus"), CPUMinute: 5, Revoked: at(), Through: at(),
		})
	}
	for range rapid.IntRange(1, 4).Draw(t, "workloads") {
		w := replica.Workload{Node: rapid.IntRange(0, len(p.Nodes)-1).Draw(t, "node"), Short: workload.ShortID(rapid.Uint64().Draw(t, "short"))}
		switch rapid.IntRange(0, 2).Draw(t, "name") {
		case 1:
			w.Name, w.Named = &batch.Name{}, at()
		case 2:
			id := workload.NewID("n", workload.Job, rapid.String().Draw(t, "key"))
			w.Short, _ = workload.ShortIDOf(id)
			w.Name, w.Named, w.Namespace = &batch.Name{ID: id, Kind: workload.Job, Name: "n", Labels: map[string]string{"a": "b"}}, at(), "ns"
		}
		p.Workloads = append(p.Workloads, w)
	}
	used := func() (u usage.Usage) {
		u.Covered = time.Duration(rapid.Int64Range(0, 1<<30).Draw(t, "covered")) * time.Millisecond
		for r := range usage.Metered.All() {
			if rapid.Bool().Draw(t, "present") {
				u.Put(r, rapid.Int64Range(0, 1<<62).Draw(t, "amount"), usage.Quality(rapid.IntRange(1, 3).Draw(t, "quality")))
			}
		}
		return u
	}
	for v := replica.Minute; v <= replica.Day; v++ {
		span := func() int64 { return rapid.Int64Range(0, 1000).Draw(t, "span") * v.Minutes() }
		for range rapid.IntRange(0, 3).Draw(t, "rows") {
			p.Rows = append(p.Rows, replica.Row{Resolution: v, Minute: span(), Workload: rapid.IntRange(0, len(p.Workloads)-1).Draw(t, "of"), Usage: used()})
		}
		for range rapid.IntRange(0, 3).Draw(t, "rows of nodes") {
			n := batch.NodeMinute{Minute: span(), CPUs: 3, Violations: 1, Lost: 2, Total: used()}
			n.Covered, n.Total.Covered = n.Total.Covered, 0
			n.Whole[1], n.Skew[1] = rapid.Int64Range(0, 1<<62).Draw(t, "whole"), rapid.Int64().Draw(t, "skew")
			p.NodeRows = append(p.NodeRows, replica.NodeRow{Resolution: v, Node: rapid.IntRange(0, len(p.Nodes)-1).Draw(t, "of"), NodeMinute: n})
		}
	}
	if rapid.Bool().Draw(t, "gap") {
		p.Gaps = []replica.Gap{{Gap: usage.Gap{From: at(), To: at(), Reason: usage.Rebooted, Detail: "d"}, Booked: at()}}
		p.Shifts = []replica.Shift{{Shift: batch.Shift{Boot: "b", At: at(), By: -5, From: at()}}}
	}
	if rapid.Bool().Draw(t, "nesting") {
		p.Nodes[0].Host = replica.Host{Node: "h", Workload: 7, Since: at(), Seen: at()}
		p.Nestings = []replica.Nesting{{Host: len(p.Nodes) - 1, Workload: len(p.Workloads) - 1, Minute: 2880}, {Host: -1, Workload: -1}}
	}
	return p
}

// TestStatesVersion: pages with rows within a node or with versions of workloads, which an older server would take for
// others of the same time, have a layout that it does not know. Other pages have not.
func TestStatesVersion(t *testing.T) {
	for version, p := range map[uint32]*replica.Page{
		1: {Within: true, Nodes: []replica.Node{{Node: registry.Node{ID: "n"}}}, NodeRows: []replica.NodeRow{{}}},
		2: {Within: true, Nodes: []replica.Node{{Node: registry.Node{ID: "n"}}}, NodeRows: []replica.NodeRow{{Within: 1}}},
		3: {Within: true, Nodes: []replica.Node{{Node: registry.Node{ID: "n"}}}, NodeRows: []replica.NodeRow{{Within: 1}}, Workloads: []replica.Workload{{Short: 1, Next: 15}}},
	} {
		sent, err := wire.EncodeStates(nil, p)
		if err != nil {
			t.Fatal(err)
		}
		d, err := zstd.NewReader(nil)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := d.DecodeAll(sent, nil)
		d.Close()
		var m pb.States
		if err := errors.Join(err, proto.Unmarshal(raw, &m)); err != nil || m.Version != version || !m.Within {
			t.Errorf("layout %d, %v; want %d", m.Version, err, version)
		}
	}
}

// TestStates: a page comes back as it was, and what is cut off anywhere does not.
func TestStates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPage(t)
		for i := range p.Workloads {
			if w := &p.Workloads[i]; w.Name != nil && rapid.Bool().Draw(t, "part of a run") {
				w.Run = workload.Run{ID: workload.NewRunID("c", "ns", "u"), Name: "r", Started: time.Unix(5, 0).UTC()}
				if rapid.Bool().Draw(t, "ended") {
					w.Run.Ended, w.Run.Exit = time.Unix(6, 7).UTC(), new(rapid.IntRange(0, 255).Draw(t, "exit"))
				}
			}
		}
		for i := range p.Workloads {
			if w := &p.Workloads[i]; rapid.Bool().Draw(t, "versions") {
				w.From = 15 * rapid.Int64Range(0, 1<<20).Draw(t, "from")
				w.Next = (w.From + 15*rapid.Int64Range(1, 1<<20).Draw(t, "later")) * rapid.Int64Range(0, 1).Draw(t, "has a next one")
			}
		}
		if p.Within = rapid.Bool().Draw(t, "says within"); p.Within {
			within := func() int { return max(0, rapid.IntRange(-3, len(p.Nodes)).Draw(t, "within")) }
			for i := range p.Rows {
				p.Rows[i].Within = within()
			}
			for i := range p.NodeRows {
				p.NodeRows[i].Within = within()
			}
		}
		for range rapid.IntRange(0, 3).Draw(t, "connections") {
			s := &connection.Sketch{Missed: rapid.Int64Range(0, 1000).Draw(t, "missed")}
			for range rapid.IntRange(0, 3).Draw(t, "edges") {
				peer := netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "peer")})
				s.Add(connection.Edge{Peer: peer, Port: rapid.Uint16().Draw(t, "port"), Protocol: 6, Class: 2}, connection.Traffic{RxBytes: 5, TxPackets: 1})
			}
			p.Connections = append(p.Connections, replica.Connections{Minute: 60 * rapid.Int64Range(0, 1000).Draw(t, "hour"), Workload: rapid.IntRange(0, len(p.Workloads)-1).Draw(t, "of"), Sketch: s})
		}
		sent, err := wire.EncodeStates(nil, p)
		if err != nil {
			t.Fatal(err)
		}
		got, err := wire.DecodeStates(sent, wire.Default())
		if diff := cmp.Diff(p, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Fatalf("%v, (-sent +got):\n%s", err, diff)
		}
		if _, err := wire.DecodeStates(sent[:rapid.IntRange(0, len(sent)-1).Draw(t, "cut")], wire.Default()); !errors.Is(err, fault.ErrInvalid) {
			t.Fatalf("cut off: %v", err)
		}
		l := wire.Default()
		if l.Rows = len(p.Rows) + len(p.NodeRows) - 1; l.Rows >= 0 {
			if _, err := wire.DecodeStates(sent, l); !errors.Is(err, fault.ErrInvalid) {
				t.Fatalf("too many rows: %v", err)
			}
		}
		l.Rows++
		if _, err := wire.DecodeStates(sent, l); err != nil {
			t.Fatalf("as many rows as are allowed: %v", err)
		}
	})
}

func TestDecodeStatesRefuses(t *testing.T) {
	used := func(of ...usage.Resource) (u usage.Usage) {
		for _, r := range of {
			u.Put(r, 5, usage.Apportioned)
		}
		return u
	}
	page := func() *replica.Page {
		p := &replica.Page{To: "there", Nodes: []replica.Node{{Node: registry.Node{ID: "n"}}}, Workloads: []replica.Workload{{Short: 1}}}
		p.Rows = []replica.Row{{Minute: 1, Usage: used(usage.CPU, usage.Memory)}, {Minute: 2, Usage: used(usage.CPU)}}
		p.NodeRows = []replica.NodeRow{{NodeMinute: batch.NodeMinute{Minute: 1, CPUs: 4, Violations: 1, Total: used(usage.DiskRead)}}}
		p.NodeRows[0].Whole[0], p.NodeRows[0].Skew[0] = 10, -3
		return p
	}
	column := func(list []*pb.StateTable, name string) *pb.StateColumn {
		for _, c := range list[0].Columns {
			if c.Name == name {
				return c
			}
		}
		t.Fatalf("no column %s", name)
		return nil
	}
	for name, spoil := range map[string]func(*pb.States){
		"number missing":           func(m *pb.States) { c := column(m.Rows, "cpu"); c.Values = c.Values[1:] },
		"number too many":          func(m *pb.States) { c := column(m.Rows, "cpu"); c.Values = append(c.Values, 0) },
		"no numbers":               func(m *pb.States) { column(m.Rows, "cpu").Values = nil },
		"negative amount":          func(m *pb.States) { column(m.Rows, "cpu").Values[1] = -1 },
		"amount of what is absent": func(m *pb.States) { column(m.Rows, "memory").Values[1] = 1 },
		"column twice":             func(m *pb.States) { m.Rows[0].Columns = append(m.Rows[0].Columns, m.Rows[0].Columns[0]) },
		"column of nodes":          func(m *pb.States) { column(m.Rows, "cpu").Name = "cpus" },
		"newer column":             func(m *pb.States) { column(m.Rows, "cpu").Name = "gravity" },
		"resource 0":               func(m *pb.States) { m.Rows[0].Present[0] |= 1 },
		"newer resource":           func(m *pb.States) { m.Rows[0].Present[0] |= 1 << usage.Limit },
		"quality of nothing":       func(m *pb.States) { m.Rows[0].Quality[1] |= 1 << (2 * usage.Memory) },
		"high quality of nothing":  func(m *pb.States) { m.Rows[0].QualityHigh = []uint64{0, 4} },
		"high qualities missing":   func(m *pb.States) { m.Rows[0].QualityHigh = []uint64{0} },
		"none: high qualities":     func(m *pb.States) { m.Rows[0].QualityHigh = []uint64{0, 0} },
		"covered":                  func(m *pb.States) { m.Rows[0].Covered[0] = 1 << 62 },
		"minute missing":           func(m *pb.States) { m.Rows[0].Minute = m.Rows[0].Minute[1:] },
		"level":                    func(m *pb.States) { m.Rows[0].Level = 3 },
		"CPUs":                     func(m *pb.States) { column(m.NodeRows, "cpus").Values[0] = 1 << 31 },
		"none: most CPUs":          func(m *pb.States) { column(m.NodeRows, "cpus").Values[0] = 1<<31 - 1 },
		"negative CPUs":            func(m *pb.States) { column(m.NodeRows, "cpus").Values[0] = -1 },
		"negative count":           func(m *pb.States) { column(m.NodeRows, "violations").Values[0] = -1 },
		"negative whole":           func(m *pb.States) { column(m.NodeRows, "whole_cpu").Values[0] = -1 },
		"none":                     func(m *pb.States) {},
	} {
		sent, err := wire.EncodeStates(nil, page())
		if err != nil {
			t.Fatal(err)
		}
		var m pb.States
		if err := proto.Unmarshal(content(t, sent), &m); err != nil {
			t.Fatal(err)
		}
		spoil(&m)
		raw, err := proto.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		_, err = wire.DecodeStates(frame(t, raw), wire.Default())
		want := fault.ErrInvalid
		switch {
		case strings.HasPrefix(name, "none"):
			want = nil
		case strings.HasPrefix(name, "newer") || name == "column of nodes":
			want = wire.ErrNewer
		}
		if !errors.Is(err, want) || want != nil && errors.Is(err, fault.ErrInvalid) == errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("%s: error %v, want %v", name, err, want)
		}
	}
}

// FuzzDecodeStates feeds messages in a frame of their own: what decodes is
// encoded to what decodes.
func FuzzDecodeStates(f *testing.F) {
	for i := range 3 {
		sent, err := wire.EncodeStates(nil, rapid.Custom(drawPage).Example(i))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content(f, sent))
	}
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithSingleSegment(true), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		f.Fatal(err)
	}
	l := wire.Default()
	l.Sent, l.Size, l.Rows = 64<<10, 64<<10, 1000
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := wire.DecodeStates(e.EncodeAll(raw, nil), l)
		if err != nil {
			if !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, wire.ErrNewer) {
				t.Errorf("error %v is neither fault.ErrInvalid nor ErrNewer", err)
			}
			return
		}
		again, err := wire.EncodeStates(nil, p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wire.DecodeStates(again, wire.Default()); err != nil {
			t.Errorf("its own words: %v", err)
		}
	})
}
