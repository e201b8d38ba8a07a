package usage_test

import (
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/usage"
)

// possible holds all resources for which there is room.
const possible = ^usage.Set(1)

// drawQualities draws qualities of resources in of.
func drawQualities(t *rapid.T, of usage.Set) (present usage.Set, q usage.Qualities) {
	of.Each(func(r usage.Resource) {
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
		present, q := drawQualities(t, usage.All)
		measured, apportioned, modelled := q.Sets()
		if got, ok := usage.QualitiesOfSets(measured, apportioned, modelled); !ok || got != q {
			t.Fatalf("%x as sets came back as %x, %v", q, got, ok)
		}
		if all := measured | apportioned | modelled; all != present {
			t.Fatalf("sets of %x, want %x", all, present)
		}
		present, q = drawQualities(t, possible)
		if got := q.Uncertainty(present).Qualities(present); got != q {
			t.Fatalf("%x as uncertainty came back as %x", q, got)
		}
		some, _ := drawQualities(t, possible)
		if q.Uncertainty(present).Only(some).Qualities(present&some) != q.Only(some) {
			t.Fatalf("%x only of %x is uncertain by %x", q, some, q.Uncertainty(present).Only(some))
		}
		if without := q.Without(some.Mask()); without != q.Only(^some) {
			t.Fatalf("%x without %x is %x", q, some, without)
		}
		if q.Only(present) != q {
			t.Fatalf("%x is not only of %x", q, present)
		}
	})
}

// The OR of the ledger's bits is the worse of each quality.
func TestUncertainty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, p := drawQualities(t, possible)
		b, q := drawQualities(t, possible)
		if got, want := p.Uncertainty(a).Or(q.Uncertainty(b)).Qualities(a|b), p.Worst(q); got != want {
			t.Fatalf("the worse of %x and %x is %x, want %x", p, q, got, want)
		}
		possible.Each(func(r usage.Resource) {
			if got, want := p.Worst(q).Get(r), max(p.Get(r), q.Get(r)); got != want {
				t.Fatalf("of resource %d, the worse of %v and %v is %v", r, p.Get(r), q.Get(r), got)
			}
		})
		sum, more := usage.Usage{Present: a & usage.All, Quality: p.Only(usage.All)}, usage.Usage{Present: b & usage.All, Quality: q.Only(usage.All)}
		if sum.Add(&more); sum.Quality != p.Worst(q).Only(usage.All) {
			t.Fatalf("the sum is %x, want %x", sum.Quality, p.Worst(q))
		}
	})
	if got := (usage.Qualities{}).Uncertainty(usage.SetOf(usage.CPU, 32, 63)); got != (usage.Uncertainty{3 << (2 * usage.CPU), -1<<62 | 3}) {
		t.Errorf("amounts without a quality are not taken as the worst: %x", got)
	}
	for q, want := range map[usage.Quality]int64{usage.Measured: 0, usage.Apportioned: 1, usage.Modelled: 3} {
		var of usage.Qualities
		of.Set(usage.Memory, q)
		if got := of.Uncertainty(usage.SetOf(usage.Memory)); got != (usage.Uncertainty{want << (2 * usage.Memory)}) {
			t.Errorf("%v is stored as %x", q, got)
		}
	}
}

// Forms that existed when there were 31 resources have a second word only for others.
func TestWords(t *testing.T) {
	if len(usage.Qualities{}) != 2 || len(usage.Uncertainty{}) != 2 {
		t.Error("a ledger and a checkpoint have two words")
	}
	for s, want := range map[usage.Set]int{0: 1, usage.SetOf(1, 31): 1, usage.SetOf(32): 2, usage.SetOf(1, 63): 2} {
		if got := s.Words(); got != want {
			t.Errorf("the qualities of %x need %d words, want %d", s, got, want)
		}
	}
}

func TestQualitiesOfSetsRefuses(t *testing.T) {
	cpu := usage.SetOf(usage.CPU)
	for _, c := range [][3]usage.Set{{cpu, cpu, 0}, {cpu, 0, cpu}, {0, cpu, cpu}, {1, 0, 0}, {0, ^usage.All &^ 1, 0}} {
		if q, ok := usage.QualitiesOfSets(c[0], c[1], c[2]); ok {
			t.Errorf("%x is %x", c, q)
		}
	}
}

// TestQualityText checks the words of qualities, and that no other word is one.
func TestQualityText(t *testing.T) {
	for q, word := range map[usage.Quality]string{usage.Absent: "absent", usage.Measured: "measured", usage.Apportioned: "apportioned", usage.Modelled: "modelled"} {
		text, err := q.MarshalText()
		if err != nil || string(text) != word {
			t.Errorf("quality %d is %q, %v, want %q", q, text, err, word)
		}
		var got usage.Quality
		if err := got.UnmarshalText([]byte(word)); err != nil || got != q {
			t.Errorf("%q is quality %d, %v, want %d", word, got, err, q)
		}
	}
	for _, word := range []string{"", "Measured", "guessed"} {
		q := usage.Modelled
		if err := q.UnmarshalText([]byte(word)); err == nil || q != usage.Modelled {
			t.Errorf("%q is %v, %v", word, q, err)
		}
	}
}
