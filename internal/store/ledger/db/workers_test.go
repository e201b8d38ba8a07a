package db_test

import (
	"runtime"
	"testing"

	"mete.dev/mete/internal/store/ledger/db"
)

// A scan has a helper for each core beyond the first, and at most three.
func TestMaxWorkers(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for cores, want := range map[int]int{1: 0, 2: 1, 3: 2, 4: 3, 5: 3, 64: 3} {
		runtime.GOMAXPROCS(cores)
		if got := db.MaxWorkers(); got != want {
			t.Errorf("%d cores: %d helpers, want %d", cores, got, want)
		}
	}
}
