package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// zones is a tree of moving counters like /sys/class/powercap: packages, each with its
// memory.
type zones struct {
	dir   string
	files []*os.File
	stop  chan struct{}
	err   chan error
}

// zoneEvery is the update interval of the counters.
const zoneEvery = 20 * time.Millisecond

// maxZone is the highest number of a counter, in uJ; the next one is 0.
const maxZone = 262143328850

// createZones creates a tree of n packages in a directory, and updates it until it is
// closed. It does not follow the machine's load, since the cost of an agent does not depend
// on the numbers.
func createZones(dir string, n int) (*zones, error) {
	z := &zones{dir: dir, stop: make(chan struct{}), err: make(chan error, 1)}
	for i := range n {
		id := filepath.Join(dir, fmt.Sprintf("intel-rapl:%d", i))
		for id, name := range map[string]string{id: fmt.Sprintf("package-%d\n", i), id + ":0": "dram\n"} {
			err := errors.Join(os.MkdirAll(id, 0o755), os.WriteFile(filepath.Join(id, "name"), []byte(name), 0o644),
				os.WriteFile(filepath.Join(id, "max_energy_range_uj"), fmt.Appendf(nil, "%d\n", maxZone), 0o644))
			if err != nil {
				return nil, errors.Join(err, z.closeFiles())
			}
			f, err := os.Create(filepath.Join(id, "energy_uj"))
			if err != nil {
				return nil, errors.Join(err, z.closeFiles())
			}
			z.files = append(z.files, f)
		}
	}
	if err := z.write(0); err != nil {
		return nil, errors.Join(err, z.closeFiles())
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

// write sets the counters. As in the kernel's tree, the files stay: an agent that had to open new ones
// would cost more. All numbers have the same width, so that no reader sees a number cut off; one that
// reads while the number changes may see some digits of each.
func (z *zones) write(uJ int64) error {
	text := fmt.Appendf(nil, "%012d\n", uJ%(maxZone+1))
	for _, f := range z.files {
		if _, err := f.WriteAt(text, 0); err != nil {
			return err
		}
	}
	return nil
}

// close stops the counters.
func (z *zones) close() error {
	close(z.stop)
	return errors.Join(<-z.err, z.closeFiles())
}

func (z *zones) closeFiles() (err error) {
	for _, f := range z.files {
		err = errors.Join(err, f.Close())
	}
	return err
}
