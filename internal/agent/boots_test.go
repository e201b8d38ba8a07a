package agent

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestEarlierBoots checks that an agent states with its clock which windows of earlier boots its
// spool held, and none of the present boot.
func TestEarlierBoots(t *testing.T) {
	hosttest.Need(t, "procfs")
	cfg := Default()
	cfg.Machine.Reader, cfg.Projects = sources.Files, ""
	cfg.Spool.Dir = t.TempDir()
	log := slog.New(slog.DiscardHandler)
	first, err := Open(cfg, "n", &taker{}, log)
	if err != nil {
		t.Fatal(err)
	}
	present := first.Machine.Boot()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := spool.Open(cfg.Spool, log)
	if err != nil {
		t.Fatal(err)
	}
	for i, boot := range []string{"one", "one", "two", present} {
		w := usage.Window{Boot: boot, Start: int64(i), End: int64(i + 1), Offset: int64(10 * i)}
		if err := s.Append(&w, nil, nil, func(bool) []byte { return nil }, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	a, err := Open(cfg, "n", &taker{}, log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}()
	c, err := a.clock()
	want := []batch.BootEnd{{Boot: "one", End: 2, Offset: 10}, {Boot: "two", End: 3, Offset: 20}}
	if err != nil || cmp.Diff(want, c.Earlier) != "" {
		t.Errorf("states %+v, %v, want %+v", c.Earlier, err, want)
	}
}
