package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// smallest is the configuration with the least valid value of each field.
func smallest() ledger.Config {
	c := ledger.Config{Minutes: 1, MinuteBytes: 1, Hours: 1, Batches: 1, Every: 1, Slice: 1, ClusterNodes: 1, Grace: math.MinInt64}
	c.Quota.Workloads, c.Quota.Bytes, c.Quota.Streams, c.Quota.Batches, c.Quota.Ranges, c.Quota.Handovers = 1, 1, 1, 1, 1, 1
	return c
}

// Each field has a least value.
func TestLeastConfig(t *testing.T) {
	if err := smallest().Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*ledger.Config){
		"minutes": func(c *ledger.Config) { c.Minutes-- }, "bytes of minutes": func(c *ledger.Config) { c.MinuteBytes-- },
		"hours": func(c *ledger.Config) { c.Hours-- }, "batches": func(c *ledger.Config) { c.Batches-- },
		"interval": func(c *ledger.Config) { c.Every-- }, "slice": func(c *ledger.Config) { c.Slice-- },
		"workloads": func(c *ledger.Config) { c.Quota.Workloads-- }, "bytes": func(c *ledger.Config) { c.Quota.Bytes-- },
		"streams": func(c *ledger.Config) { c.Quota.Streams-- }, "batches of a node": func(c *ledger.Config) { c.Quota.Batches-- },
		"ranges": func(c *ledger.Config) { c.Quota.Ranges-- }, "handovers": func(c *ledger.Config) { c.Quota.Handovers-- },
		"nodes of a cluster":      func(c *ledger.Config) { c.ClusterNodes-- },
		"hours less than minutes": func(c *ledger.Config) { c.Minutes, c.Hours = 3, 2 },
	} {
		c := smallest()
		change(&c)
		err := c.Validate()
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := ledger.Open(t.Context(), ledgertest.SQLite(t), c, slog.New(slog.DiscardHandler)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: opened, %v", name, err)
		}
	}
}

// The defaults are those that the documents and the quotas' reasons name.
func TestDefault(t *testing.T) {
	const day = 24 * time.Hour
	want := ledger.Config{
		Minutes: 168 * time.Hour, MinuteBytes: 21474836480, Hours: 775 * day, Batches: 48 * time.Hour,
		Grace: 300 * time.Second, Every: 60 * time.Second, Slice: 262144, ClusterNodes: 100,
	}
	want.Quota.Workloads, want.Quota.Bytes, want.Quota.Streams = 200000, 67108864, 100000
	want.Quota.Batches, want.Quota.Ranges, want.Quota.Handovers = 1000000, 20000, 10000000
	if got := ledger.Default(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := ledger.Default().Validate(); err != nil {
		t.Error(err)
	}
}

// Run folds and drops at once and at each interval, until its context ends. It logs what fails, but
// not that it was ended.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := ledger.Default()
		c.Grace, c.Minutes = 0, 48*time.Hour
		l, err := ledger.Open(t.Context(), ledgertest.SQLite(t), c, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		ledgertest.Node(t, l, "a")
		hour := time.Now().Truncate(time.Hour) // of virtual time
		book := func(number uint64, minute int64) {
			t.Helper()
			e := ledgertest.Entry("a", batch.Stream{byte(number)}, batch.Mark{Next: 1}, 1, 5, minute)
			bookAll(t, l, e)
		}
		folded := func() int64 {
			t.Helper()
			s, err := l.Stats(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return s.Hours.Unix() / 3600
		}
		book(1, hour.Unix()/60)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		time.Sleep(time.Until(hour.Add(time.Hour)))
		go func() { ended <- l.Run(ctx) }()
		synctest.Wait()
		if got, want := folded(), hour.Unix()/3600+1; got != want {
			t.Errorf("folded up to hour %d at the start, want %d", got, want)
		}
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		if got, want := folded(), hour.Unix()/3600+2; got != want {
			t.Errorf("folded up to hour %d after an hour, want %d", got, want)
		}
		if log.Len() > 0 {
			t.Errorf("logged: %s", &log)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ended with %v", err)
		}
		if log.Len() > 0 {
			t.Errorf("logged at the end: %s", &log)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("closed again: %v", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Run(ctx); err != nil || !strings.Contains(log.String(), "folding or retention failed") {
			t.Errorf("after closing: %v, logged %q", err, log.String())
		}
	})
}
