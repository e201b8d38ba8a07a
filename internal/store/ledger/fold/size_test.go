package fold

import (
	"testing"
	"time"
)

// A slice shrinks in proportion when it takes too long, down to minSlice rows or the limit, and
// doubles up to the limit when a full one is quick.
func TestNextSize(t *testing.T) {
	const hold = 150 * time.Millisecond
	for _, c := range []struct {
		size  int64
		took  time.Duration
		full  bool
		limit int64
		want  int64
	}{
		{4096, 50*time.Millisecond - 1, true, 1 << 20, 8192},
		{4096, 50*time.Millisecond - 1, false, 1 << 20, 4096},
		{4096, 50 * time.Millisecond, true, 1 << 20, 4096},
		{4096, hold, true, 1 << 20, 4096},
		{3000, 0, true, 4096, 4096},
		{2048, 0, true, 4096, 4096},
		{1, 0, true, 1, 1},
		{1 << 16, 2 * hold, true, 1 << 20, 1 << 15},
		{1 << 16, 2 * hold, false, 1 << 20, 1 << 15},
		{3 << 14, 3 * hold / 2, true, 1 << 20, 1 << 15},
		{2048, 3 * hold, true, 1 << 20, 1024},
		{40, 2 * hold, true, 40, 40},
	} {
		if got := nextSize(c.size, c.took, hold, c.full, c.limit); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestFromMinute(t *testing.T) {
	if got := fromMinute(0); !got.IsZero() {
		t.Errorf("no mark is %v", got)
	}
	if got, want := fromMinute(1), time.Date(1970, 1, 1, 0, 1, 0, 0, time.UTC); got != want {
		t.Errorf("minute 1 is %v", got)
	}
}
