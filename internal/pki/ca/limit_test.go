package ca

import (
	"net/netip"
	"testing"
	"time"
)

func TestLimiter(t *testing.T) {
	var l limiter
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	take := func(addr string, want time.Duration) {
		t.Helper()
		if got := l.take(netip.MustParseAddr(addr), now); got != want {
			t.Errorf("%s at %s waits %v, want %v", addr, now.Format(time.TimeOnly), got, want)
		}
	}
	for range oneBurst {
		take("2001:db8::1", 0)
	}
	take("2001:db8::2", oneEvery) // the same network
	take("192.0.2.1", 0)
	now = now.Add(oneEvery - 1)
	take("2001:db8::1", 1)
	now = now.Add(1)
	take("2001:db8::1", 0)
	take("2001:db8::1", oneEvery)

	// The total is limited for new addresses too.
	now = now.Add(time.Hour)
	addr := netip.MustParseAddr("10.0.0.0")
	for n := range 10_000 {
		addr = addr.Next()
		if got, want := l.take(addr, now) > 0, n >= allBurst; got != want {
			t.Fatalf("address %d waits: %v, want %v", n, got, want)
		}
	}
	for n := range 2 * maxAddresses {
		addr, now = addr.Next(), now.Add(allEvery)
		if l.take(addr, now) > 0 {
			t.Fatalf("address %d waits", n)
		}
	}
	if len(l.one) > maxAddresses {
		t.Errorf("%d addresses are remembered", len(l.one))
	}
}
