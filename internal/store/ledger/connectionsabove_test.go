package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// received returns connections with bytes received from some of 256 peers each.
func received(bytes int64, peers ...byte) *connection.Sketch {
	s := &connection.Sketch{}
	for _, n := range peers {
		s.Add(connection.Edge{Peer: netip.AddrFrom4([4]byte{10, 0, 0, n}), Port: 443, Protocol: 6}, connection.Traffic{RxBytes: bytes})
	}
	return s
}

// connections returns those of all nodes from a minute on, by node, version and hour.
func (s *side) connections(from int64) []string {
	s.t.Helper()
	return s.query("SELECT n.node_id, w.short, w.from_minute, c.minute, c.sketch FROM connections c JOIN workload w ON w.id = c.workload JOIN node n ON n.id = w.node WHERE c.minute >= $1", from)
}

// TestConnectionsAbove checks that servers above have the connections of hours that are folded, and of these each change, but for
// those that they have dropped.
func TestConnectionsAbove(t *testing.T) {
	ctx := t.Context()
	below, above := pair(t)
	_, top := pair(t)
	var marks [2]batch.Mark
	use := func(node int, minute int64, sketch *connection.Sketch) {
		t.Helper()
		below.useWith(&marks[node], []string{"a", "b"}[node], 0, func(e *batch.Entry) {
			row := batch.Minute{Workload: 7, Minute: first + minute}
			row.Usage.Put(usage.NetworkRx, sketch.Sum().RxBytes, usage.Measured)
			e.Minutes, e.Connections = []batch.Minute{row}, []batch.Connections{{Workload: 7, Minute: row.Minute - row.Minute%batch.Quarter, Sketch: sketch}}
		})
	}
	// send returns for how many hours connections were sent.
	send := func() (n int) {
		t.Helper()
		m, err := above.StatesMark(ctx, source)
		for err == nil {
			p, _ := below.page(m, replica.Offer{Rows: 3})
			if p.Empty() {
				return n
			}
			n += len(p.Connections)
			m, err = above.TakeStates(ctx, source, p, takenAt)
		}
		t.Fatal(err)
		return 0
	}
	fold := func(s *side, minute int64) {
		t.Helper()
		if err := s.Fold(ctx, at(minute)); err != nil {
			t.Fatal(err)
		}
	}
	same := func(what string, s *side) {
		t.Helper()
		if diff := cmp.Diff(below.connections(0), s.connections(0)); diff != "" {
			t.Errorf("%s (-below +there):\n%s", what, diff)
		}
		if findings, err := s.Check(context.Background()); err != nil || len(findings) > 0 {
			t.Errorf("%s: check: %v, %v", what, findings, err)
		}
	}
	use(0, 5, received(100, 1, 2))
	use(1, 5, received(100, 3))
	use(0, 65, received(100, 1))
	if n := send(); n != 0 || len(above.connections(0)) != 0 {
		t.Errorf("of open hours %d are sent, and %q are there", n, above.connections(0))
	}
	fold(below, 65) // the first hour
	if n := send(); n != 2 {
		t.Errorf("%d are sent of the first hour, want 2", n)
	}
	if n := len(above.connections(0)); n != 2 {
		t.Errorf("%d are there of the first hour, want 2", n)
	}
	use(0, 70, received(100, 4))
	use(1, 20, received(50, 3, 5)) // late
	if n := send(); n != 1 {
		t.Errorf("%d are sent after a late batch, want 1", n)
	}
	fold(below, 10*day)
	if n := send(); n != 1 {
		t.Errorf("%d are sent of the second hour, want 1", n)
	}
	same("above", above)
	if n := push(above, top, replica.Offer{Rows: 100}); n == 0 || len(top.connections(0)) != 0 {
		t.Errorf("top has %q before above has folded", top.connections(0))
	}
	fold(above, 10*day)
	push(above, top, replica.Offer{Rows: 100})
	same("top", top)

	// With pseudonyms, there is no address of a peer.
	_, masked := pair(t)
	push(below, masked, replica.Offer{Rows: 100, Masked: true})
	if len(masked.connections(0)) != len(below.connections(0)) || slices.ContainsFunc(masked.connections(0), func(line string) bool {
		return slices.ContainsFunc(below.connections(0), func(l string) bool { return l == line })
	}) {
		t.Errorf("with pseudonyms %q, below %q", masked.connections(0), below.connections(0))
	}
	for _, line := range masked.query("SELECT sketch FROM connections") {
		if want := "sketch=" + strings.TrimSuffix(fmt.Sprint([]byte{1, 0, 2, 0x20, 0x01, 0x0d, 0xb8}), "]"); !strings.HasPrefix(line, want) {
			t.Errorf("with pseudonyms: %q, want %q", line, want)
		}
	}

	// Of hours that are dropped above nothing is sent, nor taken.
	fold(above, 2900*day)
	if err := above.Retain(ctx, at(2900*day)); err != nil {
		t.Fatal(err)
	}
	use(0, 30, received(1, 1))
	use(0, 2899*day, received(1, 1))
	m, err := above.StatesMark(ctx, source)
	if err != nil || m.HourFloor == 0 {
		t.Fatalf("mark %+v, %v", m, err)
	}
	m.HourFloor = 0
	p, _ := below.page(m, replica.Offer{Rows: 100})
	p.Rows = nil // which are refused too
	if _, err := above.TakeStates(ctx, source, p, at(-61)); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("connections of the future: %v", err)
	}
	if _, err := above.TakeStates(ctx, source, p, takenAt); !errors.Is(err, fault.ErrConflict) || len(p.Connections) != 1 {
		t.Errorf("%d are sent of a dropped hour, %v; want 1", len(p.Connections), err)
	}
	use(0, 31, received(1, 1))
	if n := send(); n != 0 || len(above.connections(0)) != 0 {
		t.Errorf("%d are sent of dropped hours, and %q are there", n, above.connections(0))
	}
}

// TestConnectionsOfSlices checks that no connections are missed, or sent twice, while their hour is folded a part at a time.
func TestConnectionsOfSlices(t *testing.T) {
	ctx := t.Context()
	below, above := pair(t)
	below.close()
	cfg := ledger.Default()
	cfg.Slice, cfg.Upstream = 1, true
	var err error
	if below.Ledger, err = ledger.Open(ctx, below.dsn, cfg, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	const workloads = 5
	var m, other batch.Mark
	use := func(minute int64) {
		t.Helper()
		below.useWith(&m, "a", 0, func(e *batch.Entry) {
			e.Minutes = nil
			for w := workload.ShortID(1); w <= workloads; w++ {
				row := batch.Minute{Workload: w, Minute: first + minute}
				row.Usage.Put(usage.NetworkRx, 100, usage.Measured)
				e.Minutes = append(e.Minutes, row)
				e.Connections = append(e.Connections, batch.Connections{Workload: w, Minute: first, Sketch: received(100, byte(w))})
			}
		})
	}
	use(0)
	sent, slices := 0, 0
	send := func() {
		t.Helper()
		mark, err := above.StatesMark(ctx, source)
		for err == nil {
			p, _ := below.page(mark, replica.Offer{Rows: 2})
			if p.Empty() {
				return
			}
			sent += len(p.Connections)
			mark, err = above.TakeStates(ctx, source, p, takenAt)
		}
		t.Fatal(err)
	}
	send()
	for err := range below.Folding(ctx, at(65)) {
		if err != nil {
			t.Fatal(err)
		}
		slices++
		// All else is sent up to what is not over.
		below.useWith(&other, "b", 1, func(*batch.Entry) {}, 120)
		send()
	}
	if sent != workloads || slices < workloads {
		t.Errorf("%d are sent in %d slices, want %d", sent, slices, workloads)
	}
	use(1)
	if send(); sent != 2*workloads {
		t.Errorf("%d are sent after a late batch, want %d", sent, 2*workloads)
	}
	if diff := cmp.Diff(below.connections(0), above.connections(0)); diff != "" {
		t.Errorf("(-below +above):\n%s", diff)
	}
}
