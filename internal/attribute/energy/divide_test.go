package energy_test

import (
	"math"
	"math/big"
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"pgregory.net/rapid"
)

func TestDivideIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.Custom(func(t *rapid.T) int64 {
			return rapid.Int64Range(0, math.MaxInt64).Draw(t, "v") >> rapid.IntRange(0, 63).Draw(t, "bits")
		})
		total := amount.Draw(t, "total")
		weights := rapid.SliceOfN(amount, 0, 40).Draw(t, "weights")
		out := make([]int64, len(weights))
		given := energy.Divide(total, weights, out)
		all := new(big.Int)
		for _, w := range weights {
			all.Add(all, big.NewInt(w))
		}
		if given != (all.Sign() > 0) {
			t.Fatalf("Divide returned %v for weights that sum to %v", given, all)
		}
		want := total
		if !given {
			want = 0
		}
		left := want
		for i, o := range out {
			left -= o
			if o < 0 || weights[i] == 0 && o != 0 {
				t.Fatalf("part %d of weight %d is %d", i, weights[i], o)
			}
			if all.BitLen() > 64 || !given {
				continue // weights are shifted
			}
			exact := new(big.Int).Mul(big.NewInt(total), big.NewInt(weights[i]))
			exact.Div(exact, all)
			if off := new(big.Int).Sub(big.NewInt(o), exact); !off.IsInt64() || off.Int64() < -1 || off.Int64() > 1 {
				t.Fatalf("part %d is %d, exact is %v", i, o, exact)
			}
		}
		if left != 0 {
			t.Fatalf("parts sum to %d of %d", want-left, want)
		}
	})
}

func TestPoliciesAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		idle := rapid.Int64Range(0, 1e15).Draw(t, "idle")
		amount := rapid.Int64Range(0, 1e14)
		claims := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) energy.Claim {
			return energy.Claim{Present: amount.Draw(t, "present"), Reserved: amount.Draw(t, "reserved"), Used: amount.Draw(t, "used")}
		}), 0, 20).Draw(t, "claims")
		p := rapid.SampledFrom([]power.Policy{power.None, power.Equal, power.Reserved, power.Used}).Draw(t, "policy")
		out := make([]int64, len(claims))
		for i := range out {
			out[i] = amount.Draw(t, "of before")
		}
		left := energy.DivideIdle(p, idle, claims, out)
		if got := left + sum(out); got != idle {
			t.Fatalf("%v gives %d of %d", p, got, idle)
		}
		if p == power.None && left != idle {
			t.Fatalf("none leaves %d of %d", left, idle)
		}
	})
}

func TestPolicies(t *testing.T) {
	claims := []energy.Claim{{Present: 60, Reserved: 100, Used: 0}, {Present: 60, Reserved: 300, Used: 30}, {Present: 30, Reserved: 0, Used: 10}}
	for _, tc := range []struct {
		policy power.Policy
		want   [3]int64
		left   int64
	}{
		{power.None, [3]int64{}, 1000},
		{power.Equal, [3]int64{400, 400, 200}, 0},
		{power.Reserved, [3]int64{250, 750, 0}, 0},
		{power.Used, [3]int64{0, 750, 250}, 0},
	} {
		var out [3]int64
		if left := energy.DivideIdle(tc.policy, 1000, claims, out[:]); left != tc.left || out != tc.want {
			t.Errorf("%v: %v and %d left, want %v and %d", tc.policy, out, left, tc.want, tc.left)
		}
		var back power.Policy
		text, err := tc.policy.MarshalText()
		if err != nil || back.UnmarshalText(text) != nil || back != tc.policy {
			t.Errorf("%v does not round-trip through %q", tc.policy, text)
		}
	}
	var p power.Policy
	if p.UnmarshalText([]byte("fair")) == nil {
		t.Error("an unknown policy is accepted")
	}
}
