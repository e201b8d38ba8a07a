package usage_test

import (
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/usage"
)

func drawQualities(t *rapid.T) (present usage.Set, q usage.Qualities) {
	usage.All.Each(func(r usage.Resource) {
		if v := usage.Quality(rapid.IntRange(0, 3).Draw(t, "quality")); v != usage.Absent {
			present |= usage.SetOf(r)
			q.Set(r, v)
		}
	})
	return present, q
}

// TestQualityForms checks that qualities survive the conversion to each form and back.
func TestQualityForms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		present, q := drawQualities(t)
		measured, apportioned, modelled := q.Sets()
		if got, ok := usage.QualitiesOfSets(measured, apportioned, modelled); !ok || got != q {
			t.Fatalf("%x as sets came back as %x, %v", q, got, ok)
		}
		if all := measured | apportioned | modelled; all != present {
			t.Fatalf("sets of %x, want %x", all, present)
		}
		if got := usage.QualitiesOfUncertainty(present, q.Uncertainty(present)); got != q {
			t.Fatalf("%x as uncertainty came back as %x", q, got)
		}
		if q.Only(present) != q {
			t.Fatalf("%x is not only of %x", q, present)
		}
	})
}

// The OR of the ledger's bits is the worse of each quality.
func TestUncertainty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, p := drawQualities(t)
		b, q := drawQualities(t)
		if got, want := usage.QualitiesOfUncertainty(a|b, p.Uncertainty(a)|q.Uncertainty(b)), p.Worst(q); got != want {
			t.Fatalf("the worse of %x and %x is %x, want %x", p, q, got, want)
		}
		sum, more := usage.Usage{Present: a, Quality: p}, usage.Usage{Present: b, Quality: q}
		if sum.Add(&more); sum.Quality != p.Worst(q) {
			t.Fatalf("the sum is %x, want %x", sum.Quality, p.Worst(q))
		}
	})
	if usage.Qualities(0).Uncertainty(usage.SetOf(usage.CPU)) != 3<<(2*usage.CPU) {
		t.Error("an amount without a quality is not taken as the worst")
	}
	for q, want := range map[usage.Quality]int64{usage.Measured: 0, usage.Apportioned: 1, usage.Modelled: 3} {
		var of usage.Qualities
		of.Set(usage.Memory, q)
		if got := of.Uncertainty(usage.SetOf(usage.Memory)); got != want<<(2*usage.Memory) {
			t.Errorf("%v is stored as %x", q, got>>(2*usage.Memory))
		}
	}
}

func TestQualitiesOfSetsRefuses(t *testing.T) {
	cpu := usage.SetOf(usage.CPU)
	for _, c := range [][3]usage.Set{{cpu, cpu, 0}, {cpu, 0, cpu}, {0, cpu, cpu}, {1, 0, 0}, {0, 1 << 40, 0}} {
		if q, ok := usage.QualitiesOfSets(c[0], c[1], c[2]); ok {
			t.Errorf("%x is %x", c, q)
		}
	}
}
