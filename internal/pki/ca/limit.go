package ca

import (
	"net/netip"
	"sync"
	"time"
)

// How many wrong tokens are looked at, from one address and in all: a burst,
// and then one in so long. The secret of a token cannot be guessed at any rate;
// this keeps the ledger and the log from being filled. A token that is known
// to be right is never held up, so that many machines behind one address are
// not shut out by one of them.
const (
	oneBurst, oneEvery = 10, 10 * time.Second
	allBurst, allEvery = 100, time.Second

	maxAddresses = 4096
)

// A limiter holds up those who show wrong tokens.
type limiter struct {
	mu  sync.Mutex
	all bucket
	one map[netip.Prefix]bucket
}

// A bucket is when it will be full again: each drop taken puts that off.
type bucket struct{ full time.Time }

// wait is how long until there is a drop.
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

// take counts a token from an address, and says how long it has to wait before
// it is looked at; zero is now. One that waits is not counted.
func (l *limiter) take(from netip.Addr, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	bits := 32
	if from.Is6() {
		bits = 64 // what one customer of a network has
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

// prune drops addresses that are as good as new, or all where none is: l.all
// holds them up as well.
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
