package usage_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// handovers draws windows of a host with two guests, each of which may be away or restart, with a
// share for about each second.
func handovers(t *rapid.T) (ws []usage.Window) {
	at := int64(0)
	var open [2]power.Share
	for range rapid.IntRange(2, 8).Draw(t, "windows") {
		length := int64(rapid.SampledFrom([]int{1, 10, 90}).Draw(t, "seconds"))
		w := usage.Window{Start: at * 1e9, End: (at + length) * 1e9}
		for g := range open {
			if rapid.IntRange(0, 3).Draw(t, "away") == 0 {
				continue
			}
			h := usage.Handover{Guest: string(rune('a' + g)), Workload: "w", Opened: open[g]}
			epoch := rapid.SampledFrom([]string{"e", "e", "e", "f"}).Draw(t, "epoch")
			for s := at; s < at+length; s++ {
				h.Shares = append(h.Shares, power.Share{Epoch: epoch, N: s*1000 + rapid.Int64Range(0, 999).Draw(t, "ms"), Active: s})
			}
			open[g] = h.Shares[len(h.Shares)-1]
			h.Booked = rapid.Int64Range(0, 1000).Draw(t, "booked")
			w.Handovers = append(w.Handovers, h)
		}
		at += length
		ws = append(ws, w)
	}
	return ws
}

// However windows are merged, of each guest the first share, the last one and the
// sum stay, and the same ones between: few, and spread over the span.
func TestMergeHandovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := handovers(t)
		keep := make([]*usage.Window, len(ws))
		for i := range ws {
			keep[i] = ws[i].Clone()
		}
		left := ws[0].Clone()
		for i := range ws[1:] {
			left.Merge(&ws[1+i])
		}
		right := ws[len(ws)-1].Clone()
		for _, w := range slices.Backward(ws[:len(ws)-1]) {
			sum := w.Clone()
			sum.Merge(right)
			right = sum
		}
		for i := range ws {
			if d := cmp.Diff(keep[i], &ws[i]); d != "" {
				t.Fatalf("what was merged changed:\n%s", d)
			}
		}
		same := cmpopts.SortSlices(func(a, b usage.Handover) bool { return a.Guest < b.Guest })
		if d := cmp.Diff(left.Handovers, right.Handovers, same, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("(a+b)+c against a+(b+c):\n%s", d)
		}
		for _, h := range left.Handovers {
			var all []power.Share
			var booked int64
			opened, found := power.Share{}, false
			for i := range ws {
				for _, o := range ws[i].Handovers {
					if o.Guest != h.Guest {
						continue
					}
					if !found {
						opened, found = o.Opened, true
					}
					all, booked = append(all, o.Shares...), booked+o.Booked
				}
			}
			if h.Opened != opened || h.Booked != booked || h.Shares[len(h.Shares)-1] != all[len(all)-1] {
				t.Fatalf("%+v of shares from %v to %v", h, opened, all[len(all)-1])
			}
			if n := len(h.Shares); n > usage.MaxShares || n < min(len(all), 20) && left.End-left.Start == int64(len(all))*1e9 && !slices.ContainsFunc(all, func(s power.Share) bool { return s.Epoch != all[0].Epoch }) {
				t.Fatalf("%d shares of %d", n, len(all))
			}
			rest := all
			for _, s := range h.Shares {
				i := slices.Index(rest, s)
				if i < 0 {
					t.Fatalf("%v is none of the shares, or out of order", s)
				}
				rest = rest[i+1:]
			}
		}
	})
}

// TestMergedHandoversMeet checks that the ticks of a host and the closing shares of its guest have
// numbers in common, however both were merged. Otherwise the server could not compare them after an
// outage.
func TestMergedHandoversMeet(t *testing.T) {
	const hour = 3600
	merged := func(window int64, closing bool) []power.Share {
		var sum usage.Window
		for at := int64(0); at < hour; at += window {
			h := usage.Handover{Guest: "g"}
			for s := at; s < at+window; s++ {
				h.Shares = append(h.Shares, power.Share{Epoch: "e", N: s*1003 + 7})
			}
			if closing {
				h.Shares = h.Shares[window-1:]
			}
			w := usage.Window{Start: at * 1e9, End: (at + window) * 1e9, Handovers: []usage.Handover{h}}
			if at == 0 {
				sum = w
				continue
			}
			sum.Merge(&w)
		}
		return sum.Handovers[0].Shares
	}
	host, guest := merged(10, false), merged(10, true)
	common := 0
	for _, s := range guest {
		if slices.Contains(host, s) {
			common++
		}
	}
	if len(host) > usage.MaxShares || len(guest) > usage.MaxShares || common < 3 {
		t.Errorf("%d of the host's and %d of the guest's shares have %d in common", len(host), len(guest), common)
	}
}

func TestCloneHandovers(t *testing.T) {
	w := usage.Window{Handovers: []usage.Handover{{Guest: "g", Shares: []power.Share{{N: 1}}}}}
	c := w.Clone()
	c.Handovers[0].Shares[0].N, c.Handovers[0].Guest = 2, "h"
	if h := w.Handovers[0]; h.Guest != "g" || h.Shares[0].N != 1 {
		t.Errorf("the clone's change is in %+v", h)
	}
}

// A window that goes on and on keeps few shares, the last one among them, and a host
// and a guest that looks later keep some of the same.
func TestAddShare(t *testing.T) {
	for _, every := range []int64{100, 1000, 7000} { // ms
		var host, guest []power.Share
		for i := range int64(5000) {
			s := power.Share{Epoch: "e", N: 123_456 + i*every}
			s.At = s.N * 1e6
			if host = usage.AddShare(host, &s); i > 70 {
				guest = usage.AddShare(guest, &s)
			}
			if len(host) > usage.MaxShares || host[len(host)-1] != s {
				t.Fatalf("%d shares, the last %+v, want %+v", len(host), host[len(host)-1], s)
			}
			same := 0
			for _, g := range guest {
				if slices.Contains(host, g) {
					same++
				}
			}
			if same < 1+len(guest)/8 && len(guest) > 0 {
				t.Fatalf("every %d ms: of %d and %d shares %d are the same", every, len(host), len(guest), same)
			}
		}
	}
}

// TestMergedShares checks how many shares of a merged handover stay: all of up to a minute, and of more the last one of
// each stretch of seconds, of which a span has at most sixty.
func TestMergedShares(t *testing.T) {
	for _, c := range []struct {
		seconds, each int64 // of the span, and shares in each second
		kept          int
		second        int64 // number of the second share that is kept, in ms
	}{
		{2, 1, 2, 1000}, {2, 4, 8, 250}, {60, 1, 60, 1000}, {16, 4, 64, 250}, {16, 5, 16, 1800}, {61, 1, 31, 3000}, {120, 1, 60, 3000}, {121, 1, 31, 7000}, {240, 1, 60, 7000},
	} {
		window := func(from, to int64) *usage.Window {
			h := usage.Handover{Guest: "g"}
			for at := from * 1000; at < to*1000; at += 1000 / c.each {
				h.Shares = append(h.Shares, power.Share{Epoch: "e", N: at})
			}
			return &usage.Window{Start: from * 1e9, End: to * 1e9, Handovers: []usage.Handover{h}}
		}
		w := window(0, c.seconds/2)
		w.Merge(window(c.seconds/2, c.seconds))
		s := w.Handovers[0].Shares
		if last := c.seconds*1000 - 1000/c.each; len(s) != c.kept || s[1].N != c.second || s[len(s)-1].N != last {
			t.Errorf("%d shares a second for %d s: %d are kept, want %d; the second is %d, want %d; the last is %d, want %d",
				c.each, c.seconds, len(s), c.kept, s[1].N, c.second, s[len(s)-1].N, last)
		}
	}
}

// TestAddManyShares checks that of more than one share a second the latest stay.
func TestAddManyShares(t *testing.T) {
	var got []power.Share
	for i := range int64(200) {
		got = usage.AddShare(got, &power.Share{Epoch: "e", N: 100 * i, At: 1e8 * i})
	}
	for i, s := range got {
		if want := 100 * int64(200-usage.MaxShares+i); s.N != want {
			t.Fatalf("share %d of %d is %d, want %d", i, len(got), s.N, want)
		}
	}
	if len(got) != usage.MaxShares {
		t.Errorf("%d shares, want %d", len(got), usage.MaxShares)
	}
}

// TestAddedSpan checks that shares are thinned by the time since the first one: after a minute, to one in two seconds.
func TestAddedSpan(t *testing.T) {
	for ms, want := range map[int64]int{60_000: usage.MaxShares, 60_001: 18} {
		var got []power.Share
		for i := range int64(usage.MaxShares) {
			at := 10_000 + i*500
			if i == 0 {
				at = 0
			}
			got = usage.AddShare(got, &power.Share{Epoch: "e", N: at, At: at * 1e6})
		}
		got = usage.AddShare(got, &power.Share{Epoch: "e", N: ms, At: ms * 1e6})
		if len(got) != want || (got[0].N == 0) != (want < usage.MaxShares) || got[len(got)-1].N != ms {
			t.Errorf("after %d ms %d shares from %d ms on, want %d", ms, len(got), got[0].N, want)
		}
	}
}

// TestMergedName checks that the latest name of a virtual machine stays, and that a window without one says nothing
// of it.
func TestMergedName(t *testing.T) {
	for _, c := range [][3]string{{"a", "b", "b"}, {"a", "", "a"}, {"", "b", "b"}} {
		got := usage.MergeHandovers([]usage.Handover{{Guest: "g", Name: c[0]}}, []usage.Handover{{Guest: "g", Name: c[1]}}, 1e9)
		if len(got) != 1 || got[0].Name != c[2] {
			t.Errorf("%q, then %q: %+v", c[0], c[1], got)
		}
	}
}
