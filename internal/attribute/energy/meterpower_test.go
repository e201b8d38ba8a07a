package energy_test

import (
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
)

func TestPowerBetween(t *testing.T) {
	const second = 1_000_000_000
	rapl := power.Meter{Kind: power.Energy, Wrap: 1_000_000_000, Step: 61, Every: 1_000_000, ErrorPPM: 50_000}
	plug := power.Meter{Kind: power.Power, Step: 1_000_000, Every: second, ErrorPPM: 10_000}
	host := power.Meter{Kind: power.Energy, From: power.Host}
	at := func(s, uJ int64) power.Reading { return power.Reading{At: s * second, Value: uJ} }
	shared := func(epoch string, s, uJ, modelled int64) power.Reading {
		// The readings at one instant are of different times.
		return power.Reading{At: second, Value: uJ, Share: &power.Share{Epoch: epoch, At: s * second, Active: uJ, Error: uJ / 4, Modelled: modelled}}
	}
	for _, c := range []struct {
		name          string
		m             *power.Meter
		before, after power.Reading
		want          energy.MeterPower
	}{
		{"energy", &rapl, at(5, 100), at(7, 60_000_100), energy.MeterPower{Power: 30_000_000, Error: 1_500_000 + 61 + 15_000}},
		{"energy that wrapped", &rapl, at(1, 990_000_000), at(2, 20_000_000), energy.MeterPower{Power: 30_000_000, Error: 1_500_000 + 122 + 30_000}},
		{"nothing used", &rapl, at(1, 5), at(2, 5), energy.MeterPower{Error: 122}},
		{"nothing used of a share", &host, shared("e", 1, 5, 5), shared("e", 2, 5, 5), energy.MeterPower{}},
		{"negative power", &plug, at(1, 7), at(2, -200_000_000), energy.MeterPower{Power: -200_000_000, Error: 3_000_000}},
		{"no time", &rapl, at(1, 5), at(1, 9), energy.MeterPower{Reason: "nothing new"}},
		{"back in time", &rapl, at(2, 5), at(1, 9), energy.MeterPower{Reason: "nothing new"}},
		{"a short time", &rapl, at(0, 0), power.Reading{At: 500_000, Value: 15}, energy.MeterPower{Power: 30_000, Error: 1500 + 244_000 + 30_000}},
		{"power", &plug, at(1, 7), at(2, 200_000_000), energy.MeterPower{Power: 200_000_000, Error: 3_000_000}},
		{"a share", &host, shared("e", 1, 0, 5), shared("e", 3, 8_000_000, 5), energy.MeterPower{Power: 4_000_000, Error: 1_000_000}},
		{"a share that is modelled", &host, shared("e", 1, 0, 5), shared("e", 2, 8_000_000, 6), energy.MeterPower{Power: 8_000_000, Error: 2_000_000, Modelled: true}},
		{"another share", &host, shared("e", 1, 0, 5), shared("f", 2, 8_000_000, 6), energy.MeterPower{Reason: "the host restarted its count"}},
		{"the same share", &host, shared("e", 1, 0, 5), shared("e", 1, 0, 5), energy.MeterPower{Reason: "nothing new"}},
		{"a share that goes back", &host, shared("e", 1, 5, 5), shared("e", 2, 4, 5), energy.MeterPower{Reason: "it went back"}},
		{"a count that goes back", &host, at(1, 5), at(2, 4), energy.MeterPower{Reason: "it went back"}},
		{"what cannot be read", &rapl, at(1, 5), power.Reading{Err: "broken"}, energy.MeterPower{Reason: "broken"}},
		{"what could not be read", &rapl, power.Reading{Err: "was broken"}, at(2, 4), energy.MeterPower{Reason: "was broken"}},
		{"power, after an error", &plug, power.Reading{Err: "was broken"}, at(2, 4_000_000), energy.MeterPower{Power: 4_000_000, Error: 1_040_000}},
	} {
		if got := energy.PowerBetween(c.m, c.before, c.after); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
