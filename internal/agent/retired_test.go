package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/faultfs"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/syncbuf"
)

// spoolOf creates the spool of a node with a window that ended at a time, acknowledged if sent.
func spoolOf(t *testing.T, parent, node string, end time.Time, sent bool) {
	t.Helper()
	cfg := spool.Default()
	cfg.Dir = filepath.Join(parent, node)
	s, err := spool.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w := usage.Window{Boot: "b", Start: 10e9, End: 20e9, Offset: end.UnixNano() - 20e9}
	out := wire.Prepare(&w)
	if err := s.Append(&out, nil, nil, func(bool) []byte { return nil }, nil); err != nil {
		t.Fatal(err)
	}
	if sent {
		st := s.Streams()[0].Stream
		o, ok, err := s.NextOffer(st)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		if _, err := s.ApplyReply(st, batch.Reply{Verdict: batch.Accepted, Next: o.Number + 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRetiredSpools checks that recent data of former node ids is kept, and that expired data
// becomes a gap and is removed once the gap is stored.
func TestRetiredSpools(t *testing.T) {
	hosttest.Need(t, "procfs")
	parent := t.TempDir()
	now := time.Now().UTC()
	old := now.Add(-31 * 24 * time.Hour)
	spoolOf(t, parent, "young", now.Add(-29*24*time.Hour), false)
	spoolOf(t, parent, "old", old, false)
	spoolOf(t, parent, "sent", old, true)
	spoolOf(t, parent, "own", old, false)
	spoolOf(t, parent, "live", old, false)
	if err := os.Mkdir(filepath.Join(parent, "other"), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := spool.Default()
	cfg.Dir = filepath.Join(parent, "live")
	live, err := spool.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = live.Close() }()
	var said syncbuf.Buffer
	cfg.Dir = filepath.Join(parent, "own")
	past := FindRetiredSpools(cfg, now, slog.New(slog.NewTextHandler(&said, nil)))
	there := func() (names []string) {
		entries, err := os.ReadDir(parent)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	if got := there(); len(got) != 6 {
		t.Errorf("before the gap is stored there is %v, want all", got)
	}
	for _, want := range []string{"is kept for 30 days\" node=young", "it becomes a gap\" node=old"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("no %s in\n%s", want, &said)
		}
	}
	if n := strings.Count(said.String(), "\n"); n != 2 {
		t.Errorf("%d lines, want 2:\n%s", n, &said)
	}

	fs := faultfs.New(func(int) int { return 0 })
	b := open(t, fs, &taker{})
	b.retired = past
	b.tick(t)
	fs.SetFree(0)
	b.tick(t)
	if got := there(); len(got) != 6 {
		t.Errorf("while storing fails there is %v, want all", got)
	}
	fs.SetFree(-1)
	b.tick(t)
	if got := there(); !slices.Equal(got, []string{"live", "other", "own", "young"}) {
		t.Errorf("after the gap is stored there is %v", got)
	}
	b.tick(t)
	var gaps []usage.Gap
	st := b.Spool.Streams()[0].Stream
	o, ok, err := b.Spool.NextOffer(st)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	got, err := wire.Decode(o.Bytes, wire.Default())
	if err != nil {
		t.Fatal(err)
	}
	gaps = slices.DeleteFunc(got.Gaps, func(g usage.Gap) bool { return g.Reason != usage.Forgotten })
	if len(gaps) != 1 || !gaps[0].To.Equal(old) || gaps[0].To.Sub(gaps[0].From) != 10*time.Second || !strings.Contains(gaps[0].Detail, "node old") {
		t.Errorf("gaps %+v, want the one of the old node", gaps)
	}
	b.close(t, false)
}

// TestCloseWhileFull checks that an agent closes without an error while its disk is full, and
// recovers after the next start.
func TestCloseWhileFull(t *testing.T) {
	hosttest.Need(t, "procfs")
	fs, server := faultfs.New(func(int) int { return 0 }), &taker{}
	b := open(t, fs, server)
	b.tick(t)
	b.tick(t)
	b.tick(t)
	if err := b.Sender.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	fs.SetFree(0)
	b.close(t, false) // fails the test on an error
	if !strings.Contains(b.log.String(), "the disk is full; acknowledged batches are offered again") {
		t.Errorf("the log lacks the warning:\n%s", b.log)
	}
	fs.SetFree(-1)
	b = open(t, fs, server)
	offered := len(server.windows)
	b.tick(t)
	b.tick(t)
	if err := b.Sender.Flush(t.Context()); err != nil || len(server.windows) <= offered {
		t.Errorf("afterwards: %v, %d windows", err, len(server.windows)-offered)
	}
	b.close(t, false)
}
