package unit_test

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/unit"
)

// TestSum compares Sum with math/big.
func TestSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s, before unit.Sum
		want := new(big.Int)
		for _, v := range rapid.SliceOf(rapid.Int64Range(0, math.MaxInt64)).Draw(t, "amounts") {
			before, s = s, s.Add(v)
			want.Add(want, big.NewInt(v))
			if c := s.Compare(before); c != min(1, int(min(v, 1))) {
				t.Fatalf("Compare after adding %d = %d", v, c)
			}
			if s.Max(before) != s || before.Max(s) != s {
				t.Fatalf("the larger of %v and %v is %v", s, before, s.Max(before))
			}
			if got := s.Add(-v); got != before {
				t.Fatalf("%v - %d = %v, want %v", s, v, got, before)
			}
		}
		if s.String() != want.String() {
			t.Fatalf("sum %v, want %v", s, want)
		}
		if got := s.Decimal(unit.ByteSecond); got != want.String() {
			t.Fatalf("Decimal = %s, want %s", got, want)
		}
		r, ok := new(big.Rat).SetString(s.Decimal(unit.Nanosecond))
		if !ok || r.Cmp(new(big.Rat).SetFrac(want, big.NewInt(1e9))) != 0 {
			t.Fatalf("Decimal of %v ns = %s s", want, s.Decimal(unit.Nanosecond))
		}
	})
}

func TestSumDecimal(t *testing.T) {
	s := unit.Sum{}.Add(math.MaxInt64).Add(1)
	for _, c := range []struct {
		unit unit.Unit
		want string
	}{{unit.Count, "9223372036854775808"}, {unit.Nanosecond, "9223372036.854775808"}, {unit.Microjoule, "9223372036854.775808"}} {
		if got := s.Decimal(c.unit); got != c.want {
			t.Errorf("2^63 %v = %s, want %s", c.unit, got, c.want)
		}
	}
	if got := (unit.Sum{}).Add(5).Decimal(unit.Nanosecond); got != "0.000000005" {
		t.Errorf("5 ns = %s", got)
	}
}
