package ledger

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/schema"
)

// TestFull checks that nothing changes while the disk is full, and that refused entries are booked
// once there is space.
func TestFull(t *testing.T) {
	ctx := t.Context()
	l, err := Open(ctx, filepath.Join(t.TempDir(), "l.db"), Default(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := l.PutNode(ctx, registry.Node{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	var pages int64
	if err := l.db.Conn.QueryRowContext(ctx, "PRAGMA page_count").Scan(&pages); err != nil {
		t.Fatal(err)
	}
	limit := func(n int64) {
		t.Helper()
		if _, err := l.db.Conn.ExecContext(ctx, fmt.Sprintf("PRAGMA max_page_count = %d", n)); err != nil {
			t.Fatal(err)
		}
	}
	limit(pages + 20)
	const day = 29_000_160 // midnight
	mark := batch.Mark{Next: 1}
	refused := 0
	for range 50 {
		e := &batch.Entry{Node: "a", Stream: batch.Stream{1}, Number: mark.Next, Previous: mark.Last, Hash: batch.Hash{byte(mark.Next)}}
		for w := range workload.ShortID(40) {
			var u usage.Usage
			u.Put(usage.CPU, 1, usage.Measured)
			e.Minutes = append(e.Minutes, batch.Minute{Workload: w, Minute: day + int64(mark.Next), Usage: u})
		}
		results, err := l.Book(ctx, []*batch.Entry{e})
		if err != nil {
			refused++
			if !errors.Is(err, fault.ErrUnavailable) || fault.Hint(err) == "" {
				t.Fatalf("disk full: %v", err)
			}
			if got, err := l.Mark(ctx, "a", e.Stream); err != nil || got != mark {
				t.Fatalf("the mark is %v, %v; want %v", got, err, mark)
			}
			limit(pages + 10_000)
			if results, err = l.Book(ctx, []*batch.Entry{e}); err != nil {
				t.Fatal(err)
			}
		}
		if results[0].Verdict != batch.Accepted {
			t.Fatal(results)
		}
		mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
	}
	if refused != 1 {
		t.Errorf("refused %d times, want once", refused)
	}
	var sum int64
	if err := l.db.Reader.QueryRowContext(ctx, "SELECT sum(cpu) FROM "+schema.UsageMinuteTable(day)).Scan(&sum); err != nil || sum != 50*40 {
		t.Errorf("booked %d, %v; want %d", sum, err, 50*40)
	}
}

func TestConfig(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"none": func(c *Config) { *c = Config{} }, "less": func(c *Config) { c.Hours = time.Hour },
	} {
		c := Default()
		change(&c)
		if err := c.Validate(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, dsn := range []string{"mysql://x", "sqlite:", ""} {
		if _, err := Open(t.Context(), dsn, Default(), slog.New(slog.DiscardHandler)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%q: %v", dsn, err)
		}
	}
}
