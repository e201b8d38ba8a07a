package unit_test

import (
	"errors"
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/unit"
)

func TestDecimal(t *testing.T) {
	for _, c := range []struct {
		unit   unit.Unit
		amount int64
		want   string
	}{
		{unit.Nanosecond, 0, "0"},
		{unit.Nanosecond, 1, "0.000000001"},
		{unit.Nanosecond, 1500000000, "1.5"},
		{unit.Nanosecond, -20, "-0.00000002"},
		{unit.Nanosecond, math.MinInt64, "-9223372036.854775808"},
		{unit.Microjoule, 2000001, "2.000001"},
		{unit.Byte, 1000, "1000"},
		{unit.Count, -3, "-3"},
	} {
		if got := c.unit.Decimal(c.amount); got != c.want {
			t.Errorf("%v.Decimal(%d) = %q, want %q", c.unit, c.amount, got, c.want)
		}
	}
}

func TestDecimalParsesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := unit.Unit(rapid.IntRange(int(unit.Count), int(unit.Microjoule)).Draw(t, "unit"))
		v := rapid.Int64().Draw(t, "amount")
		got, err := u.Parse(u.Decimal(v))
		if err != nil || got != v {
			t.Errorf("%v.Parse(%q) = %d, %v, want %d", u, u.Decimal(v), got, err, v)
		}
	})
}

func TestParseRefuses(t *testing.T) {
	for _, s := range []string{"", "x", "1.2.3", "0.0000000001", "9223372037", "1e9", " 1"} {
		if v, err := unit.Nanosecond.Parse(s); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("Parse(%q) = %d, %v, want ErrInvalid", s, v, err)
		}
	}
}

// TestIntegralLosesNothing checks that an integral is exact and rounded down once, however a span
// is cut.
func TestIntegralLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var i unit.Integral
		var got int64
		exact := new(big.Int)
		for range rapid.IntRange(1, 50).Draw(t, "ticks") {
			a := rapid.Int64Range(0, 1<<45).Draw(t, "a")
			b := rapid.Int64Range(0, 1<<45).Draw(t, "b")
			ns := rapid.Int64Range(0, 60e9).Draw(t, "ns")
			got += i.Add(a, b, ns)
			exact.Add(exact, new(big.Int).Mul(big.NewInt(a+b), big.NewInt(ns)))
		}
		if want := exact.Div(exact, big.NewInt(2e9)).Int64(); got != want {
			t.Errorf("integral is %d, want %d", got, want)
		}
	})
}

func TestHuman(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{unit.Bytes(0), "0 B"},
		{unit.Bytes(512), "512 B"},
		{unit.Bytes(1536), "1.50 KiB"},
		{unit.Bytes(1023.9 * 1024), "1.00 MiB"},
		{unit.Bytes(10 << 30), "10.0 GiB"},
		{unit.Number(950), "950"},
		{unit.Number(1200), "1.20 k"},
		{unit.Joules(0), "0 J"},
		{unit.Joules(0.0000125), "12.5 uJ"},
		{unit.Joules(999.7), "1.00 kJ"},
		{unit.Joules(3.6e6), "3.60 MJ"},
		{unit.WattHours(1200), "1.20 kWh"},
		{unit.WattHours(0.0125), "12.5 mWh"},
		{unit.Watts(0.0123), "12.3 mW"},
		{unit.Watts(57.24), "57.2 W"},
		{unit.Watts(-0.5), "-500 mW"},
		{unit.Seconds(0), "0 s"},
		{unit.Seconds(900 * time.Nanosecond), "0.90 us"},
		{unit.Seconds(999900 * time.Nanosecond), "1.00 ms"},
		{unit.Seconds(999900 * time.Microsecond), "1.000 s"},
		{unit.Seconds(12340 * time.Millisecond), "12.340 s"},
		{unit.Seconds(62 * time.Minute), "1h2m0s"},
	} {
		if c.got != c.want {
			t.Errorf("wrote %q, want %q", c.got, c.want)
		}
	}
}
