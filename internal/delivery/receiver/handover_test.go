package receiver_test

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestHandovers checks that the handovers and connections of a window, and the figures of volumes at their own, are booked with the window's
// time, after the correction of the sender's clock.
func TestHandovers(t *testing.T) { synctest.Test(t, testHandovers) }

func testHandovers(t *testing.T) {
	l := newLedger()
	in := start(t, quick(), l)
	m := newMachine("b1", time.Minute, 1)
	quiet, w := m.window(10*time.Second), m.window(10*time.Second)
	share := power.Share{Epoch: "e", N: 7, Active: 5, Idle: 3}
	w.Handovers = []usage.Handover{
		{Guest: "00112233-4455-6677-8899-aabbccddeeff", Workload: workload.NewID("n1", workload.VM, "k"), Shares: []power.Share{share}, Booked: 8},
		{Guest: "00112233-4455-6677-8899-aabbccddee00", Shares: []power.Share{share}, Booked: 8},
	}
	w.Volumes = []usage.VolumeUse{{Pod: "a", Volume: "pv-1", At: w.Start + int64(3*time.Second), Used: 7}, {Pod: "b", Volume: "pv-2", At: w.End}}
	quiet.Volumes = []usage.VolumeUse{{Pod: "b", Volume: "pv-2", At: quiet.Start}}
	talks := &connection.Sketch{Entries: []connection.Entry{{Edge: connection.Edge{Peer: netip.MustParseAddr("10.0.0.1"), Port: 80, Protocol: 6}, Traffic: connection.Traffic{RxBytes: 5}}}}
	w.Rows[0].Usage.Put(usage.NetworkRx, 5, usage.Measured)
	w.Rows[0].Connections = talks
	quiet.Offset += int64(time.Hour)
	w.Offset += int64(time.Hour) // its wall clock is wrong
	offer(t, in, "n1", m.clock(), m.batch(t, quiet, w), batch.Accepted)
	var at []time.Duration
	volumes := l.taken()[0].Volumes
	for _, v := range volumes {
		at = append(at, v.At.Sub(m.began))
	}
	if !slices.Equal(at, []time.Duration{0, 13 * time.Second, 20 * time.Second}) || volumes[0].VolumeUse != quiet.Volumes[0] || volumes[1].VolumeUse != w.Volumes[0] {
		t.Errorf("volumes %+v at %v", volumes, at)
	}
	if cs := l.taken()[0].Connections; len(cs) != 1 || cs[0].Workload != w.Rows[0].ShortID || cs[0].Minute != m.began.Unix()/60/batch.Quarter*batch.Quarter || !slices.Equal(cs[0].Sketch.Entries, talks.Entries) {
		t.Errorf("connections %+v", cs)
	}
	hs := l.taken()[0].Handovers
	if len(hs) != 2 || hs[0].Workload == "" || hs[1].Workload != "" || hs[1].Shares[0] != share {
		t.Fatalf("handovers %+v", hs)
	}
	for _, h := range hs {
		if want := m.began.Add(10 * time.Second); !h.From.Equal(want) || h.To.Sub(h.From) != 10*time.Second {
			t.Errorf("from %v to %v, want ten seconds from %v", h.From, h.To, want)
		}
	}
}
