package main

import (
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An integral of a level over time, in byte-seconds, each step with the mean of the levels at both ends.
type integral struct {
	at    time.Time
	level int64
	sum   float64
}

func (i *integral) add(at time.Time, level int64) {
	if !i.at.IsZero() {
		i.sum += float64(i.level+level) / 2 * at.Sub(i.at).Seconds()
	}
	i.at, i.level = at, level
}

func hold(args []string) error {
	f := flag.NewFlagSet("hold", flag.ExitOnError)
	size := f.Int("bytes", 0, "memory to hold")
	during := f.Duration("for", 0, "how long until it shrinks again")
	// With ExitOnError it returns no error.
	_ = f.Parse(args)
	page := os.Getpagesize()
	*size = *size / page * page
	all, err := unix.Mmap(-1, 0, *size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	// With huge pages the first touch of a page takes 2 MiB.
	if err := unix.Madvise(all, unix.MADV_NOHUGEPAGE); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	var held, private integral
	// A step is small also where this process was not run for a while, so that a reader with long intervals sees its course too.
	step := max(*size/200/page, 1) * page
	have := 0 // bytes of all that are touched
	start := time.Now()
	for {
		held.add(time.Now(), int64(have))
		switch ending := time.Since(start) >= *during; {
		case ending && have == 0:
			return report{Held: int64(held.sum), Private: int64(private.sum)}.give()
		case ending:
			from := max(have-step, 0)
			if err := unix.Madvise(all[from:have], unix.MADV_DONTNEED); err != nil {
				return err
			}
			have = from
		case have < *size:
			for to := min(have+step, *size); have < to; have += page {
				all[have] = 1
			}
		}
		held.add(time.Now(), int64(have))
		own, err := ownMemory()
		if err != nil {
			return err
		}
		private.add(time.Now(), own)
		time.Sleep(50 * time.Millisecond)
	}
}

// ownMemory returns the bytes of anonymous memory of this process and of the tables of its pages, which are the kernel's.
func ownMemory() (own int64, err error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		if name != "RssAnon" && name != "VmPTE" {
			continue
		}
		var kib int64
		if _, err := fmt.Sscan(value, &kib); err != nil {
			return 0, err
		}
		own += kib << 10
	}
	return own, nil
}

func write(args []string) error {
	f := flag.NewFlagSet("write", flag.ExitOnError)
	size := f.Int("bytes", 0, "bytes to write")
	during := f.Duration("for", 0, "how long to write")
	direct := f.Bool("direct", false, "do not use the page cache")
	name := f.String("file", "/written", "file to write")
	// With ExitOnError it returns no error.
	_ = f.Parse(args)
	flags := os.O_CREATE | os.O_WRONLY
	if *direct {
		flags |= unix.O_DIRECT
	}
	file, err := os.OpenFile(*name, flags, 0o600)
	if err != nil {
		return err
	}
	const block = 4096
	b, err := unix.Mmap(-1, 0, *size/parts/block*block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	if _, err := rand.Read(b); err != nil {
		return err
	}
	r := report{}
	for range parts {
		time.Sleep(*during / parts)
		n, err := file.Write(b)
		if err := errors.Join(err, file.Sync()); err != nil {
			return err
		}
		r.Written += int64(n)
	}
	return errors.Join(file.Close(), r.give())
}
