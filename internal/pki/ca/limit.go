package ca

import (
	"net/netip"
	"sync"
	"time"
)

// Rate limits of wrong tokens, for one address and in total: a burst, then one per interval.
// Secrets cannot be guessed at any rate; the limit protects the ledger and the log. Valid tokens
// are never limited, so that one of many machines behind an address cannot lock out the others.
const (
	oneBurst, oneEvery = 10, 10 * time.Second
	allBurst, allEvery = 100, time.Second

	maxAddresses = 4096
)

// A limiter limits the rate of wrong tokens.
type limiter struct {
	mu  sync.Mutex
	all bucket
	one map[netip.Prefix]bucket
}

// A bucket stores when it will be full again; each taken drop delays that.
type bucket struct{ full time.Time }

// wait returns the time until a drop is available.
func (b bucket) wait(now time.Time, burst int, every time.Duration) time.Duration {
	if !b.full.After(now) {
		return 0
	}
	return max(0, b.full.Sub(now)-time.Duration(burst-1)*every)
}

func (b bucket) take(now time.Time, every time.Duration) bucket {
	if b.full.Before(now) {
		b.full = now
	}
	return bucket{b.full.Add(every)}
}

// take counts a token from an address, and returns how long it must wait; zero is not at all. A
// waiting token is not counted.
func (l *limiter) take(from netip.Addr, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	bits := 32
	if from.Is6() {
		bits = 64 // a typical customer network
	}
	p, _ := from.Prefix(bits) // the zero Addr has the zero Prefix
	one := l.one[p]
	if wait := max(one.wait(now, oneBurst, oneEvery), l.all.wait(now, allBurst, allEvery)); wait > 0 {
		return wait
	}
	if l.one == nil || len(l.one) >= maxAddresses {
		l.prune(now)
	}
	l.one[p], l.all = one.take(now, oneEvery), l.all.take(now, allEvery)
	return 0
}

// prune drops addresses whose buckets are full, or all if none is: l.all limits them too.
func (l *limiter) prune(now time.Time) {
	kept := map[netip.Prefix]bucket{}
	for p, b := range l.one {
		if b.full.After(now) {
			kept[p] = b
		}
	}
	if len(kept) >= maxAddresses {
		kept = map[netip.Prefix]bucket{}
	}
	l.one = kept
}
