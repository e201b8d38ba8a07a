package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"mete.dev/mete/internal/x/atomicfile"
)

// zones is a tree of moving counters like /sys/class/powercap: packages, each with its
// memory.
type zones struct {
	dir   string
	files []string
	stop  chan struct{}
	err   chan error
}

// zoneEvery is the update interval of the counters.
const zoneEvery = 20 * time.Millisecond

// createZones creates a tree of n packages in a directory, and updates it until it is
// closed. It does not follow the machine's load, since the cost of an agent does not depend
// on the numbers.
func createZones(dir string, n int) (*zones, error) {
	z := &zones{dir: dir, stop: make(chan struct{}), err: make(chan error, 1)}
	for i := range n {
		id := filepath.Join(dir, fmt.Sprintf("intel-rapl:%d", i))
		for id, name := range map[string]string{id: fmt.Sprintf("package-%d\n", i), id + ":0": "dram\n"} {
			err := errors.Join(os.MkdirAll(id, 0o755), os.WriteFile(filepath.Join(id, "name"), []byte(name), 0o644),
				os.WriteFile(filepath.Join(id, "max_energy_range_uj"), []byte("262143328850\n"), 0o644))
			if err != nil {
				return nil, err
			}
			z.files = append(z.files, filepath.Join(id, "energy_uj"))
		}
	}
	if err := z.write(0); err != nil {
		return nil, err
	}
	go z.count()
	return z, nil
}

// count advances the counters at 40 W each.
func (z *zones) count() {
	start := time.Now()
	t := time.NewTicker(zoneEvery)
	defer t.Stop()
	for {
		select {
		case <-z.stop:
			z.err <- nil
			return
		case <-t.C:
		}
		if err := z.write(time.Since(start).Microseconds() * 40); err != nil {
			z.err <- err
			return
		}
	}
}

func (z *zones) write(uJ int64) error {
	for _, file := range z.files { // a reader may see a part of what is written into an open file
		if err := atomicfile.Overwrite(file, fmt.Appendf(nil, "%d\n", uJ)); err != nil {
			return err
		}
	}
	return nil
}

// close stops the counters.
func (z *zones) close() error {
	close(z.stop)
	return <-z.err
}
