package energy_test

import (
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
)

// TestNeverReported checks that a host that never gave anything is not reported as a missing meter,
// while one that stopped giving is, and its return too.
func TestNeverReported(t *testing.T) {
	m := energy.New(energy.Config{Meters: []power.Meter{{Name: "host", Level: power.Box, Domain: power.Rest, Kind: power.Energy, From: power.Host, Every: 1e9}}})
	var told []energy.Event
	at := int64(0)
	tick := func(share *power.Share) {
		at += 1e9
		r := power.Reading{At: at, Err: "no answer"}
		if share != nil {
			r = power.Reading{At: at, Value: share.Energy(), Share: share}
		}
		told = append(told, m.Tick(energy.Interval{At: at, Elapsed: 1e9, Load: 500_000, CPUs: 2}, []power.Reading{r}, []power.Reading{r}).Events...)
	}
	given := func(n int64) *power.Share {
		return &power.Share{Guest: "g", Epoch: "E", N: n * 1000, At: n * 1e9, Active: n * 5e6, Idle: n * 5e6}
	}
	for range 5 {
		tick(nil)
	}
	if len(told) > 0 || len(m.States()) > 0 {
		t.Errorf("%+v, %+v of a host that gives nothing", told, m.States())
	}
	for n := range int64(5) {
		tick(given(n + 1))
	}
	if s := m.States(); len(told) > 0 || len(s) != 1 || s[0].Reason != energy.OK {
		t.Errorf("%+v, %+v of one that gives", told, s)
	}
	tick(nil)
	if len(told) != 1 || told[0].Reason != energy.Unreadable || told[0].Detail != "no answer" {
		t.Errorf("%+v of one that ceased", told)
	}
	tick(given(20))
	if len(told) != 2 || told[1].To != at {
		t.Errorf("%+v of one that is back", told)
	}
}

// TestHostKnowsOfLess checks a killed host that returns with a little less than it gave, even if
// that is much compared with this machine's use so far: what was booked stays and is compensated
// later.
func TestHostKnowsOfLess(t *testing.T) {
	m := energy.New(energy.Config{Meters: []power.Meter{{Name: "host", Level: power.Box, Domain: power.Rest, Kind: power.Energy, From: power.Host, Every: 1e9}}})
	at := int64(5e9)
	tick := func(n, uj int64) int64 {
		at += 1e9
		s := &power.Share{Guest: "g", Epoch: "E", N: n, At: n * 1e9, Active: uj}
		r := []power.Reading{{At: at, Value: s.Energy(), Share: s}}
		return m.Tick(energy.Interval{At: at, Elapsed: 1e9, Load: 500_000, CPUs: 2}, r, r).Domain[power.Rest].Energy
	}
	tick(1, 188_500_000)
	sum := tick(2, 188_500_016) + tick(3, 188_500_032) + tick(4, 187_000_000)
	if b, ok := m.BookedShare(); !ok || b.Energy() != 188_500_032 {
		t.Errorf("booked %+v after the host went back by 1.5 J", b)
	}
	for n := int64(5); n < 40; n++ {
		sum += tick(n, 187_000_000+(n-4)*1_000_000)
	}
	b, ok := m.BookedShare()
	if want := int64(187_000_000 + 35*1_000_000); !ok || b.Energy() != want || sum != want-188_500_000 {
		t.Errorf("booked %d uJ, %d in all ticks; the host gave %d", b.Energy(), sum, want)
	}
}
