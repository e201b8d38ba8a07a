package attribute_test

import (
	"math"
	"testing"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// TestTotalBeginsAnew checks that the total of a life continues modulo 2^63, instead of staying at
// the largest value.
func TestTotalBeginsAnew(t *testing.T) {
	t.Parallel()
	s := crowd(1)
	s.Node.MemTotal, s.Node.MemFree = 1<<42, 1<<41
	accounts := attribute.New("n")
	var w usage.Window
	var sum unit.Sum
	restarts, before := 0, int64(0)
	for range 15 { // of five days each
		s.At += 5 * 24 * 3600 * 1e9
		s.Mono = s.At
		accounts.Tick(s)
		accounts.CloseWindow(&w)
		row := w.Rows[len(w.Rows)-1] // idle
		sum = sum.Add(row.Usage.Amount[usage.Memory])
		if !row.Has.Has(usage.Memory) {
			continue // the first one
		}
		_, low := sum.Halves()
		got := row.Total[usage.Memory]
		if got != int64(low&math.MaxInt64) {
			t.Errorf("after %s byte-seconds the total is %d", sum, got)
		}
		if got < before {
			restarts++
			if got > row.Usage.Amount[usage.Memory] {
				t.Errorf("a total of %d restarted in a window of %d", got, row.Usage.Amount[usage.Memory])
			}
		}
		before = got
	}
	if restarts != 1 {
		t.Errorf("%d restarts in %s byte-seconds, want one", restarts, sum)
	}
}
