package ca

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"
)

// TestPrune checks that addresses are kept while they have to wait, unless there are too many.
func TestPrune(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for n, want := range map[int]int{0: 0, 1: 1, maxAddresses - 1: maxAddresses - 1, maxAddresses: 0, maxAddresses + 1: 0} {
		l := limiter{one: map[netip.Prefix]bucket{}}
		add := func(i int, b bucket) {
			l.one[netip.PrefixFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(i)))), 32)] = b
		}
		for i := range n {
			add(i, bucket{now.Add(1)})
		}
		add(n, bucket{now})
		l.prune(now)
		if len(l.one) != want {
			t.Errorf("%d of %d addresses are kept, want %d", len(l.one), n, want)
		}
	}
}
