package schema

import (
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/usage"
)

// TestUncertainty: bits and qualities are the same, and the OR of bits is the worse.
func TestUncertainty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func() (u usage.Usage) {
			for r := usage.Resource(1); r < usage.Limit; r++ {
				if q := usage.Quality(rapid.IntRange(0, 3).Draw(t, "quality")); q != usage.Absent {
					u.Put(r, 1, q)
				}
			}
			return u
		}
		a, b := draw(), draw()
		x, y := EncodeQualities(a.Present, a.Quality), EncodeQualities(b.Present, b.Quality)
		if got := DecodeQualities(a.Present, x); got != a.Quality {
			t.Fatalf("qualities %x came back as %x", a.Quality, got)
		}
		sum := a
		sum.Add(&b)
		if got := DecodeQualities(sum.Present, x|y); got != sum.Quality {
			t.Fatalf("the sum's qualities are %x, want %x", got, sum.Quality)
		}
	})
	if EncodeQualities(usage.SetOf(usage.CPU), 0) != 3<<(2*usage.CPU) {
		t.Error("an amount without a quality is not taken as the worst")
	}
}
