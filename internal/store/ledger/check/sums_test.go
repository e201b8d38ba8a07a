package check

import (
	"fmt"
	"math"
	"testing"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/schema"
)

// Sums of any amounts are exact, and have one form.
func TestWideInt(t *testing.T) {
	const most, least = math.MaxInt64, math.MinInt64
	half := func(v int64) wideInt { return wideInt{v >> 32, v & math.MaxUint32} }
	for _, c := range []struct {
		sum  []int64
		want string
		fits bool
	}{
		{nil, "0", true},
		{[]int64{math.MaxUint32, 1}, "4294967296", true},
		{[]int64{-1, 1}, "0", true},
		{[]int64{-1, -math.MaxUint32}, "-4294967296", true},
		{[]int64{most}, "9223372036854775807", true},
		{[]int64{most, 1}, "2147483648 * 2^32 + 0", false},
		{[]int64{most, most, 3}, "4294967296 * 2^32 + 1", false},
		{[]int64{least}, "-9223372036854775808", true},
		{[]int64{least, -1}, "-2147483649 * 2^32 + 4294967295", false},
	} {
		var sum wideInt
		for _, v := range c.sum {
			sum = sum.add(half(v))
		}
		if _, fits := sum.toInt64(); sum.String() != c.want || fits != c.fits {
			t.Errorf("%v: %v, %t; want %s", c.sum, sum, fits, c.want)
		}
	}
	// A sum of halves that SQL added, of which the lower one is larger than 32 bits.
	if got := newWideInt(1, 5<<32+7); got != (wideInt{6, 7}) {
		t.Errorf("%+v", got)
	}
}

// A total adds amounts, keeps the largest peak, and combines bits.
func TestTotal(t *testing.T) {
	cols := []schema.Column{{Name: "sum"}, {Name: "peak", Merge: schema.MergeMax}}
	var sum total
	if sum.isSaturated(0) {
		t.Error("no rows are saturated")
	}
	for _, row := range [][]int64{{0, 3, 1, 5}, {1, 4, 1, 4}, {0, 0, 0, 9}} {
		sum.add(cols, 1<<row[1], usage.Uncertainty{2, 4}, row)
	}
	if got, want := fmt.Sprintf("%+v", sum), "{rows:3 present:25 rough:[2 4] amounts:[{hi:1 lo:7} {hi:1 lo:5}]}"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for v, want := range map[wideInt]bool{{math.MaxInt32, math.MaxUint32}: true, {math.MaxInt32, math.MaxUint32 - 1}: false, {math.MaxInt32 + 1, 0}: true} {
		sum.amounts[1] = v
		if sum.isSaturated(1) != want || sum.isSaturated(0) {
			t.Errorf("%v is saturated: %t", v, !want)
		}
	}
}

// All findings are counted, and the first of each kind are listed.
func TestListed(t *testing.T) {
	c := &checkRun{result: &Result{Counts: map[string]int{}}}
	var found faults
	for i := range maxListed + 3 {
		c.add(Finding{Kind: "gap", Warning: i%2 == 0})
		found.add(int64(i), Finding{Kind: "hour"})
		if want := min(i+1, maxListed); len(c.result.Findings) != want || len(found.list) != want || len(found.list)+found.more != i+1 {
			t.Fatalf("%d findings: %d and %d are listed, and %d more", i+1, len(c.result.Findings), len(found.list), found.more)
		}
	}
	c.add(Finding{Kind: "name"})
	if r := c.result; r.Counts["gap"] != maxListed+3 || r.Total() != maxListed+4 || r.Defects != (maxListed+3)/2+1 || len(r.Findings) != maxListed+1 {
		t.Errorf("%d listed of %d, %d defects: %v", len(r.Findings), r.Total(), r.Defects, r.Counts)
	}
}

// A finding is one line with what it is about.
func TestFinding(t *testing.T) {
	for want, f := range map[string]Finding{
		"k: x":                            {Kind: "k", Text: "x"},
		"k: node n: x":                    {Kind: "k", Node: "n", Text: "x"},
		"k: node a (n), workload 0f: x":   {Kind: "k", Node: "n", Name: "a", Workload: "0f", Text: "x"},
		"k: 1970-01-01T00:00Z: x":         {Kind: "k", To: 1, Text: "x"},
		"k: node n: 1970-01-01T01:01Z: x": {Kind: "k", Node: "n", From: 61, To: 62, Text: "x"},
	} {
		if got := f.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
