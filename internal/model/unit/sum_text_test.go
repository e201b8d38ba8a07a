package unit_test

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/unit"
)

func TestSumParsesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := unit.Unit(rapid.IntRange(int(unit.Count), int(unit.Millicore)).Draw(t, "unit"))
		var a, b unit.Sum
		for _, v := range rapid.SliceOfN(rapid.Int64Min(0), 0, 9).Draw(t, "amounts") {
			a, b = a.Add(v), b.Add(v/2)
		}
		for _, s := range []unit.Sum{a, a.Plus(b), a.Plus(a).Plus(a)} {
			got, err := unit.ParseSum(s.Decimal(u), u)
			if err != nil || got != s {
				t.Fatalf("ParseSum(%q) = %v, %v, want %v", s.Decimal(u), got, err, s)
			}
		}
	})
}

func TestSumPlus(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOf(rapid.Int64Min(0)).Draw(t, "amounts")
		n := rapid.IntRange(0, len(all)).Draw(t, "cut")
		var want, a, b unit.Sum
		for i, v := range all {
			want = want.Add(v)
			if i < n {
				a = a.Add(v)
			} else {
				b = b.Add(v)
			}
		}
		if got := a.Plus(b); got != want {
			t.Fatalf("%v + %v = %v, want %v", a, b, got, want)
		}
	})
}

func TestSumFloat(t *testing.T) {
	s := unit.Sum{}.Add(math.MaxInt64).Add(math.MaxInt64).Add(2) // 2^64
	if got := s.Float(unit.Byte); got != 1<<64 {
		t.Errorf("Float = %v, want 2^64", got)
	}
	if got := (unit.Sum{}).Add(1_500_000_000).Float(unit.Nanosecond); got != 1.5 {
		t.Errorf("Float = %v, want 1.5 s", got)
	}
}

func TestParseSumRefuses(t *testing.T) {
	for _, s := range []string{"", ".", ".5", "-1", "+1", "x", "1.0000000001", "1e9", " 1", "170141183460469231731687303716"} {
		if v, err := unit.ParseSum(s, unit.Nanosecond); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("ParseSum(%q) = %v, %v, want invalid", s, v, err)
		}
	}
	if _, err := unit.ParseSum("170141183460469231731687303715884105727", unit.Count); err != nil {
		t.Errorf("2^127-1: %v", err)
	}
	if _, err := unit.ParseSum("170141183460469231731687303715884105728", unit.Count); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("2^127: %v, want invalid", err)
	}
}
