package tsdb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestFullDisk checks, on a disk that another program fills, that the store refuses samples before Prometheus's database
// fails, that finished chunks are still written, which would end the process otherwise, that what was refused is
// reported, and that samples are taken again when there is space.
func TestFullDisk(t *testing.T) {
	hosttest.Need(t, "root")
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=24m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
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
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		w := window(minute)
		if span, err := c.try(w); !errors.Is(err, fault.ErrUnavailable) || span.To.Sub(span.From).Seconds() != 60 {
			t.Fatalf("on a full disk: %v, %v", span, err)
		}
		c.s.db.ForceHeadMMap() // as the database does once a minute; it panics if it cannot write
		if err := c.s.State().Put(t.Context(), c.at(8000), []Sample{{Name: "mete_test"}}); !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("a state on a full disk: %v", err)
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
