package server_test

import (
	"net/url"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/pki/enroll"
)

// TestBootsAcrossRestart checks that the server knows after a restart in which boot a machine was
// booked: a copy of its disk that sends first is the clone, not the machine.
func TestBootsAcrossRestart(t *testing.T) {
	state := t.TempDir()
	var id *enroll.Identity
	up := time.Hour // since both machines started
	send := func(t *testing.T, b *bench, boot string, stream byte, number uint64, previous batch.Hash) (batch.Verdict, batch.Hash) {
		t.Helper()
		up += time.Minute
		w := usage.Window{Boot: boot, Start: int64(up) - 10e9, End: int64(up), Offset: time.Now().UnixNano() - int64(up), CPUs: 1}
		sent, err := wire.Encode(nil, &batch.Batch{Stream: batch.Stream{stream}, Number: number, Previous: previous, Windows: []usage.Window{wire.Prepare(&w)}})
		if err != nil {
			t.Fatal(err)
		}
		base, err := url.Parse(b.url)
		if err != nil {
			t.Fatal(err)
		}
		r, err := sender.NewHTTP(base, id.Client(), "test").Offer(t.Context(), batch.Clock{Boot: boot, Boottime: int64(up), Wall: time.Now().UnixNano()}, sent)
		if err != nil {
			t.Fatal(err)
		}
		return r.Verdict, batch.HashOf(sent)
	}
	var last batch.Hash
	t.Run("before", func(t *testing.T) {
		b := open(t, state, nil)
		id = b.enroll(t, registry.Agent, "m")
		var v batch.Verdict
		if v, last = send(t, b, "machine", 1, 1, batch.Hash{}); v != batch.Accepted {
			t.Fatalf("the machine: %v", v)
		}
	})
	t.Run("after", func(t *testing.T) {
		b := open(t, state, nil)
		v1, copied := send(t, b, "copy", 2, 1, batch.Hash{})
		v2, last := send(t, b, "machine", 1, 2, last)
		v3, _ := send(t, b, "copy", 2, 2, copied)
		v4, _ := send(t, b, "machine", 1, 3, last)
		if v1 != batch.Accepted || v2 != batch.Accepted || v3 != batch.Clone || v4 != batch.Accepted {
			t.Errorf("copy %v, machine %v, copy %v, machine %v; want the copy refused as a clone", v1, v2, v3, v4)
		}
	})
}
