package wire_test

import "testing"

// A sample is one amount of one row. A live batch is of one window, and the
// most that is said again in each; of a backlog much can be predicted.
func TestSize(t *testing.T) {
	for _, tt := range []struct {
		rows, windows, batches int
		most                   float64 // bytes a sample
	}{
		{20, 1, 30, 5}, {100, 1, 10, 4}, {500, 1, 3, 3.5},
		{20, 360, 1, 2}, {100, 60, 1, 2}, {500, 12, 1, 2},
	} {
		m, sent, samples := newMachine(1, tt.rows), 0, 0
		for range tt.batches {
			b, n := m.batch(tt.windows)
			sent, samples = sent+len(encode(t, b)), samples+n
		}
		each := float64(sent) / float64(samples)
		t.Logf("%d rows x %d windows: %d bytes for %d samples, %.2f each", tt.rows, tt.windows, sent/tt.batches, samples/tt.batches, each)
		if each > tt.most {
			t.Errorf("%d rows x %d windows: %.2f bytes a sample, want %.2f at most", tt.rows, tt.windows, each, tt.most)
		}
	}
}

func BenchmarkEncode(b *testing.B) { eachSize(b, benchEncode) }
func BenchmarkDecode(b *testing.B) { eachSize(b, benchDecode) }

// eachSize runs a benchmark with a live batch and with one of a backlog.
func eachSize(b *testing.B, run func(b *testing.B, rows, windows int)) {
	b.Run("live", func(b *testing.B) { run(b, 500, 1) })
	b.Run("backlog", func(b *testing.B) { run(b, 100, 60) })
}
