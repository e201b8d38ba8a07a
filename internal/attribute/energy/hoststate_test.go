package energy_test

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

var hostMeter = power.Meter{Name: "host", Level: power.Box, Domain: power.Rest, Kind: power.Energy, From: power.Host, Every: second}

var guess = power.Curve{Domain: power.Rest, Points: []power.Point{{Load: 0, Power: 20 * watt}, {Load: power.PPM, Power: 20 * watt}}, Source: "a curve"}

// A hostRig is a machine with a host that gives it 30 W, 10 of them idle.
type hostRig struct {
	*energy.Meters
	at  int64
	now power.Share
	log []string
}

func newHostRig(c energy.Config) *hostRig {
	c.Meters = append(c.Meters, hostMeter)
	l := &hostRig{Meters: energy.New(c), now: power.Share{Guest: "uuid", Epoch: "first", N: 1000, At: 77 * second}}
	l.tick(0, l.now)
	return l
}

// host advances the host by seconds.
func (l *hostRig) host(seconds int64) {
	l.now.N, l.now.At = l.now.N+1000*seconds, l.now.At+seconds*second
	l.now.Active, l.now.Idle = l.now.Active+20*watt*seconds, l.now.Idle+10*watt*seconds
	l.now.Error += 3 * watt * seconds
}

// tick advances by ns and reads a share.
func (l *hostRig) tick(ns int64, sh power.Share) *energy.Tick {
	return l.read(ns, power.Reading{Value: sh.Energy(), Share: &sh})
}

func (l *hostRig) read(ns int64, r power.Reading) *energy.Tick {
	l.at += ns
	r.At = l.at
	t := l.Tick(energy.Interval{At: l.at, Elapsed: ns, Load: 500_000, CPUs: 2}, []power.Reading{r}, nil)
	for _, e := range t.Events {
		word := e.Reason.String()
		if e.To != 0 {
			word = "fine"
		}
		l.log = append(l.log, word)
	}
	return t
}

// calm runs for seconds in which nothing special happens.
func (l *hostRig) calm(seconds int) (booked int64) {
	for range seconds {
		l.host(1)
		booked += l.tick(second, l.now).Domain[power.Rest].Energy
	}
	return booked
}

// TestHostGives checks that a host's energy, idle part, error and quality are booked as given.
func TestHostGives(t *testing.T) {
	l := newHostRig(energy.Config{})
	l.calm(3)
	for _, modelled := range []bool{false, true} {
		l.host(1)
		quality := usage.Apportioned
		if modelled {
			l.now.Modelled += 5
			quality = usage.Modelled
		}
		a := &l.tick(second, l.now).Domain[power.Rest]
		if a.Energy != 30*watt || a.Idle != 10*watt || a.Error != 3*watt || a.IdleError+a.ActiveError != a.Error || a.Quality != quality {
			t.Errorf("booked %+v, want 30 J, 10 of them idle, off by 3, %v", a, quality)
		}
	}
	if a := &l.tick(second, l.now).Domain[power.Rest]; a.Energy != 0 || a.Quality != usage.Modelled {
		t.Errorf("no new share, but booked %+v", a)
	}
	l.host(2)
	if a := &l.tick(second, l.now).Domain[power.Rest]; a.Energy != 60*watt || a.Idle != 20*watt {
		t.Errorf("after two ticks booked %+v", a)
	}
	if got, ok := l.BookedShare(); !ok || got != l.now {
		t.Errorf("booked up to %+v, given is %+v", got, l.now)
	}
	h, ok := l.TakeHandover()
	if !ok || h.Guest != "uuid" || h.Opened.Epoch != "" || len(h.Shares) != 7 || h.Shares[6] != l.now || h.Booked != l.now.Energy() {
		t.Errorf("handed over %+v", h)
	}
	if h, ok := l.TakeHandover(); ok {
		t.Errorf("handed over again: %+v", h)
	}
	last := l.now
	l.calm(100)
	if h, _ := l.TakeHandover(); h.Opened != last || len(h.Shares) < 30 || len(h.Shares) > usage.MaxShares || h.Shares[len(h.Shares)-1] != l.now || h.Booked != l.now.Energy()-last.Energy() {
		t.Errorf("handed over %d shares, %d uJ, opened with %+v", len(h.Shares), h.Booked, h.Opened)
	}
	if l.Source(power.Rest) != "host" {
		t.Errorf("energy is from %q", l.Source(power.Rest))
	}
}

// TestHostTrouble breaks a host's share in each way. In the end the booked energy equals the given
// energy, unless counting restarted.
func TestHostTrouble(t *testing.T) {
	rest := func(t *energy.Tick) int64 { return t.Domain[power.Rest].Energy }
	gone := power.Reading{Err: "no host answers"}
	for _, c := range []struct {
		name   string
		do     func(l *hostRig) (booked int64)
		anew   bool // a model substituted for a part
		events string
	}{
		{"late and twice as much", func(l *hostRig) int64 {
			old := l.now
			l.host(2)
			return rest(l.tick(second, old)) + rest(l.tick(second, l.now))
		}, false, ""},
		{"stale", func(l *hostRig) (booked int64) {
			old := l.now
			for range 20 {
				l.host(1)
				booked += rest(l.tick(second, old))
			}
			return booked
		}, false, "stalled fine"},
		{"gone", func(l *hostRig) (booked int64) {
			for range 20 {
				l.host(1)
				booked += rest(l.read(second, gone))
			}
			return booked
		}, false, "gone fine"},
		{"host away, and back with all", func(l *hostRig) (booked int64) {
			for range 20 {
				booked += rest(l.read(second, gone))
			}
			l.host(20)
			return booked
		}, false, "gone fine"},
		{"host killed", func(l *hostRig) int64 {
			l.now.Active, l.now.Idle, l.now.Error = l.now.Active-70*watt, l.now.Idle-20*watt, l.now.Error-watt
			l.now.N, l.now.At = l.now.N+1000, l.now.At+second
			b := rest(l.tick(second, l.now))
			if b != 0 {
				return math.MinInt64
			}
			return b
		}, false, ""},
		{"host killed, and idle is another part", func(l *hostRig) int64 {
			l.host(5)
			l.now.Active, l.now.Idle = l.now.Active-200*watt, l.now.Idle+110*watt
			return rest(l.tick(second, l.now))
		}, false, "went back fine"},
		{"paused for a day", func(l *hostRig) int64 {
			l.host(86400)
			return rest(l.tick(second, l.now))
		}, false, ""},
		{"once absurd", func(l *hostRig) int64 {
			sh := l.now
			sh.N, sh.At, sh.Active = sh.N+1, sh.At+second, 1e18
			return rest(l.tick(second, sh))
		}, false, "jumped fine"},
		{"twice absurd, and less the second time", func(l *hostRig) int64 {
			l.host(1)
			sh := l.now
			sh.N, sh.At, sh.Active = sh.N+1, sh.At+second, 1e18
			b := rest(l.tick(second, sh))
			sh.N, sh.At, sh.Active = sh.N+1, sh.At+second, 9e17
			l.host(1)
			return b + rest(l.tick(second, sh))
		}, false, "jumped fine"},
		{"once negative", func(l *hostRig) int64 {
			sh := l.now
			sh.N, sh.At, sh.Idle = sh.N+1, sh.At+second, -5
			return rest(l.tick(second, sh))
		}, false, "jumped fine"},
		{"once past all sums", func(l *hostRig) int64 {
			sh := l.now
			sh.N, sh.At, sh.Active, sh.Idle = sh.N+1, sh.At+second, math.MaxInt64, math.MaxInt64
			return rest(l.tick(second, sh))
		}, false, "jumped fine"},
		{"more modelled than there is", func(l *hostRig) int64 {
			sh := l.now
			sh.N, sh.At, sh.Modelled = sh.N+1, sh.At+second, sh.Energy()+1
			return rest(l.tick(second, sh))
		}, false, "jumped fine"},
		{"absurd error", func(l *hostRig) int64 {
			sh := l.now
			sh.N, sh.At, sh.Error = sh.N+1, sh.At+second, 1e17
			return rest(l.tick(second, sh))
		}, false, "jumped fine"},
		{"an older share", func(l *hostRig) int64 {
			old := l.now
			l.host(1)
			b := rest(l.tick(second, l.now))
			return b + rest(l.tick(second, old))
		}, false, "went back fine"},
		{"the same number with more", func(l *hostRig) int64 {
			sh := l.now
			sh.Active += watt
			return rest(l.tick(second, sh))
		}, false, "went back fine"},
		{"another host", func(l *hostRig) int64 {
			l.now.Epoch, l.now.N, l.now.At, l.now.Active = "second", 5, 8*second, 1e15
			return rest(l.tick(second, l.now))
		}, true, ""},
		{"a host that knows of nothing", func(l *hostRig) int64 {
			l.now.N, l.now.At = l.now.N+1, l.now.At+second
			l.now.Active, l.now.Idle, l.now.Error = 0, 0, 0
			return rest(l.tick(second, l.now))
		}, true, ""},
		{"absurd from now on", func(l *hostRig) int64 {
			l.host(1)
			l.now.Active += 1e15
			b := rest(l.tick(second, l.now))
			l.host(1)
			return b + rest(l.tick(second, l.now))
		}, true, "jumped fine"},
	} {
		for _, learned := range []int{1, 90} {
			l := newHostRig(energy.Config{Curve: guess})
			l.host(100_000) // to have something to go back from
			l.tick(0, l.now)
			from := l.now
			booked := l.calm(learned)
			l.log = nil
			booked += c.do(l)
			booked += l.calm(40)
			got, _ := l.BookedShare()
			if got.Energy() != l.now.Energy() || got.N != l.now.N || got.Epoch != l.now.Epoch {
				t.Errorf("%s, %d s learned: booked up to %+v, given is %+v", c.name, learned, got, l.now)
			}
			want := l.now.Energy() - from.Energy()
			if c.anew {
				want = (int64(learned) + 40) * 30 * watt
				if booked < want+20*watt/2 || booked > want+4*30*watt {
					t.Errorf("%s, %d s learned: %d uJ booked, want a little more than %d", c.name, learned, booked, want)
				}
			} else if booked != want {
				t.Errorf("%s, %d s learned: %d uJ booked, %d were given", c.name, learned, booked, want)
			}
			if got := strings.Join(l.log, " "); got != c.events {
				t.Errorf("%s, %d s learned: events %q, want %q", c.name, learned, got, c.events)
			}
		}
	}
}

// TestHostHandsOverAcross checks that handovers continue after a restart where the saved state
// ended, and that with another host they include the substitute of the first tick.
func TestHostHandsOverAcross(t *testing.T) {
	l := newHostRig(energy.Config{})
	l.calm(10)
	was := l.now
	again := energy.New(energy.Config{Meters: []power.Meter{hostMeter}})
	again.Resume(l.Positions())
	l.Meters = again
	l.calm(2)
	if h, ok := l.TakeHandover(); !ok || h.Opened != was || h.Booked != 60*watt || len(h.Shares) != 2 {
		t.Errorf("handed over %+v, saved %+v", h, was)
	}
	was = l.now
	l.now.Epoch = "second"
	l.host(1)
	stood := l.tick(second, l.now).Domain[power.Rest].Energy
	if h, ok := l.TakeHandover(); !ok || h.Opened != was || stood == 0 || h.Booked != stood || h.Shares[0] != l.now {
		t.Errorf("handed over %+v, a model substituted %d uJ", h, stood)
	}
}

// TestHostSubstitutedByCurve checks what a curve books while a host gives nothing: all of it is
// modelled, none is idle.
func TestHostSubstitutedByCurve(t *testing.T) {
	l := newHostRig(energy.Config{Curve: guess})
	l.read(second, power.Reading{Err: "gone"})
	want := l.now
	want.Active, want.Modelled = want.Active+20*watt, want.Modelled+20*watt
	if got, ok := l.BookedShare(); !ok || got != want {
		t.Errorf("booked %+v, want %+v", got, want)
	}
}

// TestHostPlain checks that a counter without a share, from another tool, is an ordinary counter
// until shares appear, and that counting then restarts.
func TestHostPlain(t *testing.T) {
	l := newHostRig(energy.Config{Curve: guess})
	l.calm(3)
	l.TakeHandover()
	value := int64(5e12)
	plain := func() int64 {
		value += 12 * watt
		return l.read(second, power.Reading{Value: value}).Domain[power.Rest].Energy
	}
	plain()
	for range 3 {
		if got := plain(); got != 12*watt {
			t.Errorf("booked %d uJ, want 12 J", got)
		}
	}
	if got, ok := l.BookedShare(); ok {
		t.Errorf("booked up to %+v without a share", got)
	}
	l.calm(2)
	if got, ok := l.BookedShare(); !ok || got != l.now {
		t.Errorf("booked up to %+v, given is %+v", got, l.now)
	}
}

// TestHostBesideOthers checks that a machine with its own sensors still books what the host gives,
// and that what its parts show is included.
func TestHostBesideOthers(t *testing.T) {
	m := energy.New(energy.Config{Meters: []power.Meter{sensor("acpi", power.Box, power.Hwmon, 10_000), counter("rapl", power.Part, power.Package), hostMeter}})
	sh := power.Share{Guest: "uuid", Epoch: "first", N: 1, At: second}
	for i := range int64(5) {
		at := (i + 1) * second
		sh.N, sh.At, sh.Active, sh.Idle = sh.N+1, sh.At+second, sh.Active+20*watt, sh.Idle+10*watt
		now := sh
		tick := m.Tick(energy.Interval{At: at, Elapsed: min(i, 1) * second, Load: 1e5, CPUs: 2},
			[]power.Reading{{Meter: 0, At: at, Value: 90 * watt}, {Meter: 1, At: at, Value: i * 5 * watt}, {Meter: 2, At: at, Value: now.Energy(), Share: &now}}, nil)
		if rest, parts := tick.Domain[power.Rest], tick.Domain[power.Package]; i > 1 && (rest.Energy != 25*watt || rest.Idle != 10*watt || parts.Energy != 5*watt) {
			t.Errorf("booked %+v beside %+v", rest, parts)
		}
	}
}

// TestHostWhatever checks that with any shares energy is never negative and its parts sum to it,
// and that the booked energy of an epoch continues over restarts.
func TestHostWhatever(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newHostRig(energy.Config{Curve: guess})
		number := rapid.OneOf(rapid.Int64Range(-5, 100*watt), rapid.Int64Range(1e15, math.MaxInt64))
		for range rapid.IntRange(1, 40).Draw(t, "ticks") {
			l.host(rapid.Int64Range(0, 3).Draw(t, "host"))
			sh := l.now
			r := power.Reading{Value: sh.Energy(), Share: &sh}
			switch rapid.IntRange(0, 5).Draw(t, "trouble") {
			case 0:
				*rapid.SampledFrom([]*int64{&sh.N, &sh.At, &sh.Active, &sh.Idle, &sh.Error, &sh.Modelled}).Draw(t, "field") = number.Draw(t, "v")
			case 1:
				r.Err = "gone"
			case 2:
				sh.Epoch = rapid.SampledFrom([]string{"", "first", "second"}).Draw(t, "epoch")
			case 3:
				r.Share = nil
			}
			a := &l.read(rapid.Int64Range(0, 3*second).Draw(t, "ns"), r).Domain[power.Rest]
			if min(a.Energy, a.Idle, a.Error, a.IdleError, a.ActiveError, a.Active()) < 0 {
				t.Fatalf("booked %+v", a)
			}
			if rapid.IntRange(0, 5).Draw(t, "restart") == 0 {
				was, had := l.BookedShare()
				again := energy.New(energy.Config{Meters: []power.Meter{hostMeter}, Curve: guess})
				again.Resume(l.Positions())
				l.Meters = again
				if got, ok := l.BookedShare(); got != was || ok != had {
					t.Fatalf("after a restart booked %+v, before %+v", got, was)
				}
			}
		}
		l.calm(300)
		if got, ok := l.BookedShare(); !ok || got.Energy() != l.now.Energy() {
			t.Fatalf("booked up to %+v, given is %+v", got, l.now)
		}
	})
}
