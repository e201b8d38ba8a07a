package energy

import (
	"testing"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// TestCheckStep checks shares at the limits of what can follow an earlier one, of a host that gives
// 100 W at most.
func TestCheckStep(t *testing.T) {
	ms := meterState{Meter: power.Meter{Kind: power.Energy, Every: second, Step: 7, Most: 100e6}}
	from := power.Share{Epoch: "e", N: 5, At: 10 * second, Active: 400e9, Idle: 100e9, Error: 10}
	for _, c := range []struct {
		name   string
		change func(to *power.Share)
		step   Reason
		follow Reason
	}{
		{"nothing more", func(*power.Share) {}, OK, OK},
		{"as much as possible", func(to *power.Share) { to.Active += 200e6 + 7 }, OK, OK},
		{"more", func(to *power.Share) { to.Active += 200e6 + 8 }, Jumped, Jumped},
		{"more in both parts", func(to *power.Share) { to.Active, to.Idle = to.Active+100e6, to.Idle+100e6+8 }, Jumped, Jumped},
		{"as much error as possible", func(to *power.Share) { to.Error += 200e6 + 7 }, OK, OK},
		{"more error", func(to *power.Share) { to.Error += 200e6 + 8 }, Jumped, Jumped},
		{"the same number", func(to *power.Share) { to.N = from.N }, WentBack, WentBack},
		{"a nanosecond later", func(to *power.Share) { to.At = from.At + 1 }, OK, OK},
		{"the same time", func(to *power.Share) { to.At = from.At }, WentBack, WentBack},
		{"an earlier time", func(to *power.Share) { to.At = from.At - 1 }, WentBack, WentBack},
		{"an hour's energy less", func(to *power.Share) { to.Active -= 360e9 }, OK, OK},
		{"more than that less", func(to *power.Share) { to.Active -= 360e9 + 1 }, WentBack, WentBack},
		{"idle more", func(to *power.Share) { to.Idle++ }, OK, OK},
		{"idle less", func(to *power.Share) { to.Idle-- }, OK, OK},
		{"active less", func(to *power.Share) { to.Active-- }, OK, OK},
		{"both less", func(to *power.Share) { to.Active, to.Idle = to.Active-1, to.Idle-1 }, OK, OK},
		{"both more", func(to *power.Share) { to.Active, to.Idle = to.Active+1, to.Idle+1 }, OK, OK},
		{"idle became active", func(to *power.Share) { to.Active, to.Idle = to.Active+1, to.Idle-1 }, OK, WentBack},
		{"active became idle", func(to *power.Share) { to.Active, to.Idle = to.Active-1, to.Idle+1 }, OK, WentBack},
	} {
		to := from
		to.N, to.At = to.N+1, to.At+second
		c.change(&to)
		if step, follow := ms.checkStep(&from, &to), ms.checkFollows(&from, &to); step != c.step || follow != c.follow {
			t.Errorf("%s: %v and %v, want %v and %v", c.name, step, follow, c.step, c.follow)
		}
	}
	// A machine that drew next to nothing may have drawn a watt.
	ms.Most = 5
	for less, want := range map[int64]bool{3600e6: false, 3600e6 + 1: true} {
		if got := ms.lostTooMuch(&power.Share{Active: 5000e6}, &power.Share{Active: 5000e6 - less}); got != want {
			t.Errorf("%d uJ less is too much: %v", less, got)
		}
	}
}

// TestTakeHost checks which of two readings of a host counts, when a share is stale, and what starts
// over.
func TestTakeHost(t *testing.T) {
	first := power.Share{Guest: "g", Epoch: "e", N: 1, At: second, Active: 2e12 + 100e6, Idle: 50e6, Error: 9e6}
	next := first
	next.N, next.At, next.Active, next.Idle, next.Error = 2, 2*second, 2e12+120e6, 60e6, 10e6
	of := func(s power.Share, at int64) *power.Reading {
		return &power.Reading{At: at, Value: s.Energy(), Share: &s}
	}
	bad := &power.Reading{Err: "gone"}
	moved, anew := next, next
	moved.Guest, anew.Epoch = "h", "f"
	same := first
	same.N = 0
	for _, c := range []struct {
		name          string
		before, after *power.Reading
		at            int64
		energy        int64
		quality       usage.Quality
		reason        Reason
		n             int64 // of the share that is booked
		shares        int
		anew          bool // counting starts over
	}{
		{"the later one", of(first, 2*second), of(next, 2*second), 2 * second, 30e6, usage.Apportioned, OK, 2, 1, false},
		{"only before", of(next, 2*second), nil, 2 * second, 30e6, usage.Apportioned, OK, 2, 1, false},
		{"unreadable after", of(next, 2*second), bad, 2 * second, 30e6, usage.Apportioned, OK, 2, 1, false},
		{"unreadable before", bad, of(next, 2*second), 2 * second, 30e6, usage.Apportioned, OK, 2, 1, false},
		{"unreadable", bad, bad, 2 * second, 0, usage.Absent, Unreadable, 1, 0, false},
		{"nothing", nil, nil, 2 * second, 0, usage.Absent, Unreadable, 1, 0, false},
		{"not new", of(first, 6*second), nil, 6 * second, 0, usage.Apportioned, OK, 1, 0, false},
		{"stale", of(first, 6*second+1), nil, 6*second + 1, 0, usage.Absent, Stalled, 1, 0, false},
		{"another guest", of(moved, 2*second), nil, 2 * second, 0, usage.Absent, OK, 2, 1, true},
		{"another epoch", of(anew, 2*second), nil, 2 * second, 0, usage.Absent, OK, 2, 1, true},
		{"the same number, and all is lost", of(power.Share{Guest: "g", Epoch: "e", N: 1, At: 2 * second}, 2*second), nil, 2 * second, 0, usage.Absent, WentBack, 1, 0, false},
		{"a host that knows of nothing", of(power.Share{Guest: "g", Epoch: "e", N: 2, At: 2 * second}, 2*second), nil, 2 * second, 0, usage.Absent, OK, 2, 1, true},
		{"an older number", of(same, 2*second), nil, 2 * second, 0, usage.Absent, WentBack, 1, 0, false},
	} {
		ms := meterState{Meter: power.Meter{Kind: power.Energy, From: power.Host, Every: second}, host: &hostState{}}
		ms.takeHost(of(first, second), nil, &Interval{At: second})
		ms.host.shares = nil
		if c.anew {
			ms.surplus, ms.host.interval = 7, 7
		}
		got := ms.takeHost(c.before, c.after, &Interval{At: c.at, Elapsed: second, CPUs: 2, Load: power.PPM / 2})
		e, h := ms.latest, ms.host
		if e.energy != c.energy || e.quality != c.quality || ms.reason != c.reason || h.booked.N != c.n || len(h.shares) != c.shares {
			t.Errorf("%s: %+v, %v, booked up to %+v, %d shares", c.name, e, ms.reason, h.booked, len(h.shares))
		}
		if c.n == 1 && h.booked != first {
			t.Errorf("%s: booked up to %+v, want %+v", c.name, h.booked, first)
		}
		if c.anew && (ms.surplus != 0 || h.interval != 0) {
			t.Errorf("%s: a surplus of %d and an interval of %d are left", c.name, ms.surplus, h.interval)
		}
		if c.energy > 0 && (e.idle != 10e6 || e.otherError != 1e6 || e.misaligned || h.booked != next || h.interval != second || h.windowEnergy != c.energy || got.value != next.Energy() || got.shown != next.Energy()) {
			t.Errorf("%s: %+v, %+v, read %+v", c.name, e, h, got)
		}
	}
}

// TestTakeHostAgain checks that a share that did not change ends an outage, and any suspicion: a value
// that cannot follow it is not believed because it follows an earlier such value.
func TestTakeHostAgain(t *testing.T) {
	first := power.Share{Guest: "g", Epoch: "e", N: 1, At: second, Active: 100e6}
	absurd := first
	absurd.N, absurd.At, absurd.Active = 2, 2*second, 1e15
	later := absurd
	later.N, later.At, later.Active = 3, 3*second, 1e15+1e6
	ms := meterState{Meter: power.Meter{Kind: power.Energy, From: power.Host, Every: second}, host: &hostState{}}
	for i, c := range []struct {
		share *power.Share
		want  Reason
	}{{&first, OK}, {nil, Unreadable}, {&first, OK}, {&absurd, Jumped}, {&first, OK}, {&later, Jumped}, {&first, OK}, {&absurd, Jumped}, {&later, OK}} {
		at := int64(i+1) * second / 2
		r := power.Reading{At: at, Err: "gone"}
		if c.share != nil {
			r = power.Reading{At: at, Value: c.share.Energy(), Share: c.share}
		}
		ms.takeHost(&r, nil, &Interval{At: at, Elapsed: second / 2, Load: power.PPM / 2, CPUs: 2})
		if ms.reason != c.want {
			t.Errorf("reading %d: %v, want %v", i, ms.reason, c.want)
		}
	}
}

// TestBookShare checks what is booked of a share after a model stood in, and in what time it was given.
// The model expects 30 W.
func TestBookShare(t *testing.T) {
	for _, c := range []struct {
		name       string
		surplus    int64
		span       int64 // of the host, ms
		gained     [2]int64
		modelled   int64
		energy     int64
		idle, left int64
		off        int64
		quality    usage.Quality
		misaligned bool
	}{
		{"usual", 0, 1000, [2]int64{20e6, 10e6}, 0, 30e6, 10e6, 0, 5, usage.Apportioned, false},
		{"in half of the time more", 0, 1500, [2]int64{20e6, 10e6}, 0, 30e6, 10e6, 0, 5, usage.Apportioned, false},
		{"in more", 0, 1501, [2]int64{20e6, 10e6}, 0, 30e6, 10e6, 0, 5, usage.Apportioned, true},
		{"in half of the time", 0, 500, [2]int64{20e6, 10e6}, 0, 30e6, 10e6, 0, 5, usage.Apportioned, false},
		{"in less", 0, 499, [2]int64{20e6, 10e6}, 0, 30e6, 10e6, 0, 5, usage.Apportioned, true},
		{"modelled", 0, 1000, [2]int64{20e6, 10e6}, 1, 30e6, 10e6, 0, 5, usage.Modelled, false},
		{"a surplus", 6e6, 1000, [2]int64{20e6, 10e6}, 0, 24e6, 8e6, 0, 6e6 + 5, usage.Modelled, true},
		{"a large surplus", 60e6, 1000, [2]int64{20e6, 10e6}, 0, 15e6, 5e6, 45e6, 15e6 + 5, usage.Modelled, true},
		{"1 uJ of surplus", 1, 1000, [2]int64{20e6, 10e6}, 0, 30e6 - 1, 9_999_999, 0, 6, usage.Modelled, true},
		{"back", 0, 1000, [2]int64{-20e6, -10e6}, 0, 0, 0, 30e6, 5, usage.Modelled, true},
		{"back by 1 uJ", 0, 1000, [2]int64{0, -1}, 0, 0, 0, 1, 5, usage.Modelled, true},
		{"1 uJ of idle", 0, 1000, [2]int64{0, 1}, 0, 1, 1, 0, 5, usage.Apportioned, false},
		{"nothing", 0, 1000, [2]int64{0, 0}, 0, 0, 0, 0, 5, usage.Apportioned, false},
		{"idle became active", 0, 1000, [2]int64{20e6, -5e6}, 0, 15e6, 0, 0, 5, usage.Apportioned, false},
	} {
		last := power.Share{Guest: "g", Epoch: "e", N: 1, At: second, Active: 100e6, Idle: 50e6, Error: 10}
		ms := meterState{Meter: power.Meter{Kind: power.Energy, From: power.Host, Every: second}, surplus: c.surplus, seen: true, host: &hostState{received: last, booked: last}}
		for range 100 {
			ms.model.Add(.5, 30e6)
		}
		points := ms.model.points
		sh := last
		sh.N, sh.At, sh.Active, sh.Idle, sh.Error, sh.Modelled = 2, last.At+c.span*1e6, last.Active+c.gained[0], last.Idle+c.gained[1], last.Error+5, c.modelled
		ms.bookShare(&sh, 9*second, &Interval{At: 9 * second, Elapsed: second, CPUs: 2, Load: power.PPM / 2})
		e, h := ms.latest, ms.host
		if e.energy != c.energy || e.idle != c.idle || ms.surplus != c.left || e.otherError != c.off || e.quality != c.quality || e.misaligned != c.misaligned || !e.hasIdle {
			t.Errorf("%s: %+v, a surplus of %d", c.name, e, ms.surplus)
		}
		if got := h.booked.Energy() - last.Energy(); got != c.energy || h.booked.Idle-last.Idle != c.idle || h.booked.Error-last.Error != c.off || h.windowEnergy != c.energy || h.booked.N != 2 || h.received != sh || ms.changedAt != 9*second {
			t.Errorf("%s: booked %+v, received %+v", c.name, h.booked, h.received)
		}
		if learned := ms.model.points > points; learned != (!c.misaligned && c.gained[0]+c.gained[1] > 0) && c.surplus == 0 {
			t.Errorf("%s: learned from it: %v", c.name, learned)
		}
	}
}

// TestBookShareOfLessError checks that the error of what is booked is never negative.
func TestBookShareOfLessError(t *testing.T) {
	for off, want := range map[int64]int64{10: 0, 7: 0, 11: 1} {
		last := power.Share{Epoch: "e", N: 1, At: second, Active: 100, Error: 10}
		ms := meterState{Meter: power.Meter{Kind: power.Energy, From: power.Host, Every: second}, host: &hostState{received: last, booked: last}}
		ms.bookShare(&power.Share{Epoch: "e", N: 2, At: 2 * second, Active: 130, Error: off}, second, &Interval{Elapsed: second})
		if got := ms.latest.otherError; got != want {
			t.Errorf("an error of %d after 10: off by %d, want %d", off, got, want)
		}
	}
}

// TestRatio checks the ratio of energy inside a level to that of its meter: the first of two ticks
// counts by a 600th less.
func TestRatio(t *testing.T) {
	m := New(Config{})
	if ratio, ok := m.Ratio(power.Board); ok || ratio != 0 {
		t.Errorf("nothing compared: %d", ratio)
	}
	for _, c := range []struct {
		inside, meter [2]int64
		want          int64
		ok            bool
	}{
		{[2]int64{100, 300}, [2]int64{100, 100}, 2_000_834, true},
		{[2]int64{1, 1}, [2]int64{1, 1}, power.PPM, true},
		{[2]int64{0, 0}, [2]int64{1, 1}, 0, false},
		{[2]int64{1, 1}, [2]int64{0, 0}, 0, false},
	} {
		m := New(Config{})
		for i := range c.inside {
			m.ratios[power.Box].add(c.inside[i], c.meter[i])
		}
		if ratio, ok := m.Ratio(power.Box); ratio != c.want || ok != c.ok {
			t.Errorf("%v of %v: %d ppm, %v; want %d, %v", c.inside, c.meter, ratio, ok, c.want, c.ok)
		}
	}
}

// TestPositionsRefused checks which positions are resumed: none of unknown meters, sensors or with
// negative numbers, and shares only if they are valid.
func TestPositionsRefused(t *testing.T) {
	meters := []power.Meter{{Name: "counter", Kind: power.Energy}, {Name: "sensor", Kind: power.Power}, {Name: "host", Kind: power.Energy, From: power.Host}}
	share := power.Share{Guest: "g", Epoch: "e", N: 3, At: 4, Active: 5}
	bad := share
	bad.N = -1
	for _, c := range []struct {
		name   string
		p      Position
		seen   [3]bool
		booked bool
	}{
		{"a counter", Position{Meter: "counter", At: 1, Value: 2, ReadError: 3, Surplus: 4, PeakPower: 5}, [3]bool{true}, false},
		{"all zero", Position{Meter: "counter"}, [3]bool{true}, false},
		{"a sensor", Position{Meter: "sensor", At: 1, Value: 2}, [3]bool{}, false},
		{"unknown", Position{Meter: "other", At: 1, Value: 2}, [3]bool{}, false},
		{"negative time", Position{Meter: "counter", At: -1}, [3]bool{}, false},
		{"negative value", Position{Meter: "counter", Value: -1}, [3]bool{}, false},
		{"negative error", Position{Meter: "counter", ReadError: -1}, [3]bool{}, false},
		{"negative surplus", Position{Meter: "counter", Surplus: -1}, [3]bool{}, false},
		{"negative peak", Position{Meter: "counter", PeakPower: -1}, [3]bool{}, false},
		{"a host", Position{Meter: "host", Value: 5, Received: share, Booked: share}, [3]bool{2: true}, true},
		{"a host with a bad share", Position{Meter: "host", Value: 5, Received: bad, Booked: share}, [3]bool{2: true}, false},
		{"a host with a bad sum", Position{Meter: "host", Value: 5, Received: share, Booked: bad}, [3]bool{2: true}, false},
		{"a host without a share", Position{Meter: "host", Value: 5}, [3]bool{2: true}, false},
	} {
		m := New(Config{Meters: meters})
		m.Resume([]Position{c.p})
		for i := range m.meters {
			if m.meters[i].seen != c.seen[i] {
				t.Errorf("%s: meter %d is resumed: %v", c.name, i, m.meters[i].seen)
			}
		}
		if _, ok := m.BookedShare(); ok != c.booked {
			t.Errorf("%s: a share is resumed: %v", c.name, ok)
		}
		var want []Position
		if c.seen[0] || c.booked {
			want = []Position{c.p}
		}
		if got := m.Positions(); want != nil && (len(got) != 1 || got[0] != want[0]) {
			t.Errorf("%s: the positions are %+v", c.name, got)
		}
	}
	m := New(Config{Meters: meters})
	m.meters[0].peakPower = 7
	m.Resume([]Position{{Meter: "counter", PeakPower: 5}})
	if got := m.meters[0].peakPower; got != 7 {
		t.Errorf("a peak of 7 uW became %d", got)
	}
}
