package metrics

import (
	"testing"
	"time"

	"mete.dev/mete/internal/batch"
)

// What lived for less than a window has no series of its own; what rested until after
// the hole, or was seen again, has one.
func TestShort(t *testing.T) {
	const at = int64(1000) // minute
	end := time.UnixMilli((at + 1) * minute)
	for name, c := range map[string]struct {
		track track
		ended time.Time
		want  bool
	}{
		"one window":         {track{first: at, last: at, covered: 10 * time.Second}, end.Add(-5 * time.Second), true},
		"over an edge":       {track{first: at - 1, last: at, covered: 11 * time.Second}, end.Add(-50 * time.Second), true},
		"told a bit late":    {track{first: at, last: at, covered: 10 * time.Second}, end.Add(9 * time.Second), true},
		"several windows":    {track{first: at, last: at, covered: 20 * time.Second}, end.Add(-5 * time.Second), false},
		"rested, then ended": {track{first: at, last: at, covered: 10 * time.Second}, end.Add(time.Minute), false},
		"it lives":           {track{first: at, last: at, covered: 10 * time.Second}, time.Time{}, false},
		"it has samples":     {track{first: at, last: at, covered: 10 * time.Second, seen: true}, end.Add(-5 * time.Second), false},
	} {
		if got := c.track.short(&batch.Name{Ended: c.ended}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
