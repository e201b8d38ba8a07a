package tsdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestFullDisk checks, on a disk that another program fills, that the store refuses samples before Prometheus's database
// fails, that finished chunks are still written, which would end the process otherwise, that what was refused is
// reported, and that samples are taken again when there is space.
func TestFullDisk(t *testing.T) {
	disk := hosttest.SmallDisk(t, "size=24m")
	playNow(t, func(c *scene) {
		c.close()
		c.cfg.Dir, c.cfg.Reserve = filepath.Join(disk, "metrics"), 1<<20
		c.open()
		const workloads = 50
		window := func(minute int) (w usage.Window) {
			var uses []use
			for i := range workloads {
				uses = append(uses, use{key: fmt.Sprint("w", i), res: usage.CPU, amount: 1e9, total: int64(minute+1) * 1e9})
			}
			return c.window(float64(minute*60), float64(minute*60+60), uses...)
		}
		for i := range workloads {
			c.fresh = append(c.fresh, c.name(fmt.Sprint("w", i), nil))
		}
		minute := 0
		for ; minute < 130; minute++ { // more than a chunk of each series
			c.put(window(minute))
		}

		filler := filepath.Join(disk, "filler")
		func() {
			c.s.space.mu.Lock() // a check would release the reserve while the disk is filled
			defer c.s.space.mu.Unlock()
			hosttest.FillDisk(t, filler)
		}()
		w := window(minute)
		if span, err := c.try(w); !errors.Is(err, fault.ErrUnavailable) || span.To.Sub(span.From).Seconds() != 60 {
			t.Fatalf("on a full disk: %v, %v", span, err)
		}
		c.s.db.ForceHeadMMap() // as the database does once a minute; it panics if it cannot write
		if err := appendOne(c.s.Samples(), c.at(7900)); !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("a sample of others on a full disk: %v", err)
		}
		// Alerts need the states of nodes: they use the space that was kept, until it is nearly full.
		if err := errors.Join(appendOne(c.s.Records(), c.at(7900)), c.s.State().Put(t.Context(), c.at(7900), []Sample{{Name: "mete_test"}})); err != nil {
			t.Errorf("records and states on a full disk: %v", err)
		}
		hosttest.FillDisk(t, filler)
		if err := c.s.State().Put(t.Context(), c.at(7910), []Sample{{Name: "mete_test"}}); !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("a state with the last space gone: %v", err)
		}
		if err := appendOne(c.s.Records(), c.at(7910)); !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("a record with the last space gone: %v", err)
		}
		st, err := os.Stat(filler)
		if err == nil {
			err = os.Truncate(filler, st.Size()-512<<10) // the end of the log is written at the close
		}
		if err != nil {
			t.Fatal(err)
		}
		c.close()
		c.open()
		if _, err := c.try(w); !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("on a full disk, after a restart: %v", err)
		}

		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		c.put(w)
		if _, err := os.Stat(c.s.reservePath()); err != nil {
			t.Errorf("no space is kept again: %v", err)
		}
		c.put(window(minute + 1))
	})
}

// appendOne appends one sample.
func appendOne(to storage.Appendable, at time.Time) error {
	app := to.Appender(context.Background())
	_, err := app.Append(0, labels.FromStrings(model.MetricNameLabel, "test"), at.UnixMilli(), 1)
	return errors.Join(err, app.Commit())
}
