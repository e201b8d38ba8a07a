package tsdb_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// A counter whose total reaches 2^63 and restarts from zero shows what its workload uses, in each span:
// whatever the length of windows, and if the series begins with that window.
func TestTotalBeginsAnew(t *testing.T) {
	t.Parallel()
	for _, length := range []time.Duration{10 * time.Second, time.Minute, 9 * time.Minute} {
		for _, early := range []int{0, 1, 7} { // windows before the restart
			names := fakeRegistry{}
			short, id := names.put("a")
			s := openDB(t, t.TempDir(), names)
			begin := time.Now().Add(-10 * time.Hour).Truncate(time.Minute).Add(13 * time.Second)
			const held = 1 << 40 // bytes
			amount := held * int64(length/time.Second)
			total := uint64(1<<63) - uint64(early)*uint64(amount) - uint64(amount)/3
			var last time.Time
			for i := range early + 12 {
				total += uint64(amount)
				w := usage.Window{Boot: "b", Start: int64(i) * int64(length), End: int64(i+1) * int64(length), Offset: begin.UnixNano(), CPUs: 2}
				row := usage.Row{ShortID: short, Has: usage.SetOf(usage.Memory)}
				row.Usage.Covered = length
				row.Usage.Put(usage.Memory, amount, usage.Measured)
				row.Total[usage.Memory] = int64(total & math.MaxInt64)
				w.Rows = append(w.Rows, row)
				if _, err := s.Append(t.Context(), "n1", []batch.Name{names[short]}, cut(t, w)); err != nil {
					t.Fatal(err)
				}
				last = begin.Add(time.Duration(w.End))
			}
			// From the first to the last sample nothing is extrapolated.
			over := last.Sub(begin)
			query := fmt.Sprintf(`rate(mete_workload_memory_byte_seconds_total{workload=%q}[%dms])`, id, over.Milliseconds()+1)
			if v, ok := ask(t, s, query, last); !ok || math.Abs(v/held-1) > 0.001 {
				t.Errorf("windows of %v, %d before the restart: %v bytes held, want %v", length, early, v, float64(held))
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
