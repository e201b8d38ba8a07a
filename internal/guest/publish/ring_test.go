package publish

import (
	"math/rand/v2"
	"testing"

	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/model/power"
)

// TestRing compares a ring with a map, for the last ten minutes and one epoch.
func TestRing(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	for range 20 {
		var ring ring
		known := map[int64]int64{}
		epoch, n, energy := "A", int64(0), int64(0)
		step := []int64{10, 1000, 60_000}[r.IntN(3)]
		for range 10_000 {
			n += 1 + r.Int64N(2*step)
			energy += r.Int64N(3)
			if r.IntN(5000) == 0 {
				epoch += "A"
				clear(known)
			}
			known[n] = energy
			ring.put(&power.Share{Epoch: epoch, N: n, Active: energy})
			if len(ring.list) > 2*ringMax+64 {
				t.Fatalf("%d shares are kept", len(ring.list))
			}
			at := n - r.Int64N(20*step)
			a := energyshare.Ack{Epoch: epoch, N: at, Energy: known[at] + r.Int64N(2)}
			want := unknown
			if e, ok := known[at]; ok && at >= n-ringMillis && len(ring.list)-ring.first < ringMax {
				if want = differing; e == a.Energy {
					want = equal
				}
			} else if ok {
				continue // it may be dropped
			}
			if got := ring.compare(a); got != want {
				t.Fatalf("%+v of the share at %d: %d, want %d", a, n, got, want)
			}
			a.Epoch += "x"
			if got := ring.compare(a); got != unknown {
				t.Fatalf("another epoch: %d", got)
			}
		}
	}
}
