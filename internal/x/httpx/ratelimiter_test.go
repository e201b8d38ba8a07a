package httpx

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestRateLimiter checks that a client gets at most its burst plus its rate times the elapsed time, whatever others take, and
// all of that if it waits as long as Take returns.
func TestRateLimiter(t *testing.T) {
	begin := time.Unix(1e9, 0)
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Float64Range(0.1, 50).Draw(t, "rate")
		burst := rapid.IntRange(1, 20).Draw(t, "burst")
		l := NewRateLimiter(rate, burst)
		now, given := begin, 0
		for range 200 {
			now = now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond)
			for range rapid.IntRange(0, 2).Draw(t, "others") {
				l.Take("other", now)
			}
			if wait := l.Take("one", now); wait > 0 {
				now = now.Add(wait + time.Microsecond)
				if again := l.Take("one", now); again > 0 {
					t.Fatalf("it said %v, and then %v", wait, again)
				}
			}
			given++
			if most := float64(burst) + now.Sub(begin).Seconds()*rate + 0.001; float64(given) > most {
				t.Fatalf("gave %d in %v, at most %f", given, now.Sub(begin), most)
			}
		}
	})
}

// TestRateLimiterTimes checks the moment from which on a client may send again, also after its clock went back.
func TestRateLimiterTimes(t *testing.T) {
	begin := time.Unix(1e9, 0)
	l := NewRateLimiter(0.5, 2)
	for _, c := range []struct{ at, want time.Duration }{
		{0, 0}, {0, 0}, {0, 2 * time.Second}, {time.Second, time.Second}, {3 * time.Second / 2, time.Second / 2}, {2 * time.Second, 0},
		{time.Second, 2 * time.Second},                               // the clock went back by a second
		{2 * time.Second, time.Second},                               // what passes from there on counts
		{time.Hour, 0}, {time.Hour, 0}, {time.Hour, 2 * time.Second}, // no more than the burst
	} {
		if got := l.Take("x", begin.Add(c.at)); got != c.want {
			t.Errorf("at %v: wait for %v, want %v", c.at, got, c.want)
		}
	}
}

// TestRateLimiterSlightlyLess checks that a client with slightly less than one token waits.
func TestRateLimiterSlightlyLess(t *testing.T) {
	now := time.Unix(1e9, 0)
	l := NewRateLimiter(1, 12)
	l.buckets["x"] = bucket{1 - 0x1p-53, now}
	if l.Take("x", now) <= 0 {
		t.Error("it gives a token while there is less than one")
	}
}

// TestRateLimiterForgets checks that clients that are silent take no room, and that this gives nothing to one that is not.
func TestRateLimiterForgets(t *testing.T) {
	begin := time.Unix(1e9, 0)
	l := NewRateLimiter(0.01, 2)
	for i := range 1000 {
		l.Take(fmt.Sprint(i), begin)
	}
	for range 3 {
		l.Take("busy", begin)
	}
	if l.Take("x", begin.Add(99*time.Second)); len(l.buckets) != 1002 {
		t.Errorf("%d clients before their buckets are full", len(l.buckets))
	}
	if l.Take("x", begin.Add(158*time.Second)); len(l.buckets) != 1002 {
		t.Errorf("%d clients less than a minute after the latest look", len(l.buckets))
	}
	if l.Take("x", begin.Add(159*time.Second)); len(l.buckets) != 2 { // x, and busy
		t.Errorf("%d clients after all but one were silent", len(l.buckets))
	}
	if l.Take("busy", begin.Add(159*time.Second)) != 0 || l.Take("busy", begin.Add(159*time.Second)) == 0 {
		t.Error("a client that took all has not one token after the time of one")
	}
}
