package attribute

import (
	"maps"
	"math"

	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// A total is everything booked to an account. It does not overflow.
type total struct {
	// rare has the sums that few groups have: those of usage.Apart, and those of more than 64 bits.
	rare    map[usage.Resource]unit.Sum
	present usage.Set
	quality usage.Qualities
	amount  [usage.ReadingLimit]uint64 // of the resources that are not in rare
}

// sum returns the amount of a resource.
func (t *total) sum(r usage.Resource) unit.Sum {
	if v, ok := t.rare[r]; ok || r >= usage.ReadingLimit {
		return v
	}
	return unit.SumOf(0, t.amount[r])
}

// set sets the amount of a resource.
func (t *total) set(r usage.Resource, v unit.Sum) {
	if hi, lo := v.Halves(); hi == 0 && r < usage.ReadingLimit {
		t.amount[r] = lo
		delete(t.rare, r)
		return
	}
	if t.rare == nil {
		t.rare = map[usage.Resource]unit.Sum{}
	}
	t.rare[r] = v
}

// clone returns a copy that shares nothing with t.
func (t *total) clone() total {
	c := *t
	c.rare = maps.Clone(t.rare)
	return c
}

// add adds the use of a window; of peaks the larger stays. It reports whether presence or quality
// changed.
func (t *total) add(u *usage.Usage) (other bool) {
	present, quality := t.present, t.quality
	t.quality = quality.Worst(u.Quality.Only(u.Present))
	for r := range u.Present.All() {
		v := unit.Sum{}.Add(u.Amount[r])
		if r.Detail().Kind != usage.Peak {
			v = t.sum(r).Add(u.Amount[r])
		} else if t.present.Has(r) && t.sum(r).Compare(v) > 0 {
			v = t.sum(r)
		}
		t.set(r, v)
	}
	t.present |= u.Present
	return t.present != present || t.quality != quality
}

// row writes the total of everything but peaks, modulo 2^63, and returns the resources that have one.
func (t *total) row(to *[usage.Limit]int64) (has usage.Set) {
	for r := range t.present.All() {
		if r.Detail().Kind != usage.Peak {
			_, low := t.sum(r).Halves()
			to[r] = int64(low & math.MaxInt64)
			has |= 1 << r
		}
	}
	return has
}
