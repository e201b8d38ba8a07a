// Package capture implements the command mete capture: it records a machine's kernel files, to test
// mete and to reproduce bugs without access to that machine.
//
// A capture does not identify the machine: see the help of [Command] for what it omits and
// replaces.
package capture

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// Config controls a capture.
type Config struct {
	Root      string        // of the machine's files
	Groups    int           // maximum number per hierarchy
	Processes int           // maximum number
	Ticks     int           // number of readings
	Interval  time.Duration // between readings
}

// Default captures this machine once.
func Default() Config {
	return Config{Root: "/", Groups: 2000, Processes: 2000, Ticks: 1, Interval: time.Second}
}

// Validate reports invalid settings.
func (c Config) Validate() error {
	switch {
	case c.Groups < 1:
		return fmt.Errorf("--groups %d: below 1: %w", c.Groups, fault.ErrInvalid)
	case c.Processes < 1:
		return fmt.Errorf("--processes %d: below 1: %w", c.Processes, fault.ErrInvalid)
	case c.Ticks < 1 || c.Ticks > 9:
		return fmt.Errorf("--ticks %d: not 1 to 9: %w", c.Ticks, fault.ErrInvalid)
	case c.Interval < 0:
		return fmt.Errorf("--interval %v: negative: %w", c.Interval, fault.ErrInvalid)
	}
	return nil
}

const long = `Copy the files of /proc, /sys and the control groups that mete reads to FILE, or
to standard output, with names replaced. mete can be tested on the capture as if
it ran on this machine: attach it to a report of wrong figures.

Captured: mounts and trees of control groups with their counters and limits;
of processes their times, memory, I/O, groups and network namespace; CPU,
memory, disk and interface totals, CPU model, energy meters, clocks, kernel
release.

Replaced by pseudonyms of the same shape, the same throughout one capture and
different in the next: boot id, machine id, ids of pods and containers, IP and
MAC addresses, and every word in names of groups, units, mount points, disks,
interfaces and the kernel release that is not one of a list of well-known words
(system.slice, kubepods, sshd ...). Programs that are not on the list are called
p1, p2 and so on. The host name becomes "machine".

Left out: command lines, environments, memory addresses, open files, user
names, serial numbers, and mounts that do not lead to control groups. User ids,
process ids and numbers of up to seven digits in names stay as they are.

Standard error shows how much was captured, replaced and left out. Read the file
before you give it away: it is text.`

const examples = `  mete capture machine.txtar
  mete capture --ticks 2 --interval 1s machine.txtar
  mete capture | gzip > machine.txtar.gz`

// Command returns mete capture.
func Command() *cobra.Command {
	cfg := Default()
	cmd := &cobra.Command{
		Use:     "capture [FILE]",
		Short:   "Record this machine without names, for a bug report",
		Long:    long,
		Example: examples,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := "-"
			if len(args) > 0 {
				file = args[0]
			}
			return run(cmd.Context(), cfg, file, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Root, "root", cfg.Root, "read the machine whose proc and sys are in `DIR`")
	f.IntVar(&cfg.Groups, "groups", cfg.Groups, "at most `N` control groups of one hierarchy, those near the root first")
	f.IntVar(&cfg.Processes, "processes", cfg.Processes, "at most `N` processes, those with the lowest numbers first")
	f.IntVar(&cfg.Ticks, "ticks", cfg.Ticks, "read the machine `N` times; what changed is kept under tick2/ and so on")
	f.DurationVar(&cfg.Interval, "interval", cfg.Interval, "wait `DURATION` from one reading to the next")
	return cmd
}

// run captures the machine and writes it to file, or to stdout if that is "-".
func run(ctx context.Context, cfg Config, file string, stdout, stderr io.Writer) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	h, err := hostfs.Open(cfg.Root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()

	key := make([]byte, 32)
	rand.Read(key) // it cannot fail: crypto/rand
	m, err := Take(ctx, h, cfg, key)
	if err != nil {
		return err
	}
	if file == "-" {
		err = m.Write(stdout)
	} else {
		err = writeFile(file, m)
	}
	if err != nil {
		return err
	}
	_, err = io.WriteString(stderr, m.Summary())
	return err
}

// writeFile writes a temporary file and renames it, so that an incomplete capture is never visible.
// It writes a pipe or a device directly.
func writeFile(name string, m *Machine) error {
	if st, err := os.Stat(name); err == nil && st.IsDir() {
		return &fs.PathError{Op: "write", Path: name, Err: syscall.EISDIR}
	} else if err == nil && !st.Mode().IsRegular() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(m.Write(f), f.Close())
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".mete-*")
	if err != nil {
		return renameError(name, err)
	}
	err = errors.Join(m.Write(f), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		// The first error is more useful than that of the cleanup.
		_ = os.Remove(f.Name())
		return renameError(name, err)
	}
	return nil
}

// renameError replaces the temporary file's name in an error by name.
func renameError(name string, err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: "write", Path: name, Err: e.Err}
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return &fs.PathError{Op: "write", Path: name, Err: e.Err}
	}
	return fmt.Errorf("%s: %w", name, err)
}

// A Machine is a captured machine.
type Machine struct {
	first  *machine
	out    *archive
	ticks  int
	redact *redactor
}

// Take captures a machine, with pseudonyms derived from key.
func Take(ctx context.Context, h *hostfs.FS, cfg Config, key []byte) (*Machine, error) {
	r := newRedactor(key)
	limit := limits{cfg.Groups, cfg.Processes}
	first, err := read(h, r, limit)
	if err != nil {
		return nil, err
	}
	out := newArchive()
	maps.Copy(out.files, first.out.files)
	maps.Copy(out.links, first.out.links)
	for n, prev := 2, first.out; n <= cfg.Ticks; n++ {
		select {
		case <-time.After(cfg.Interval):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		next, err := read(h, r, limit)
		if err != nil {
			return nil, err
		}
		out.later(n, prev, next.out)
		prev = next.out
	}
	return &Machine{first, out, cfg.Ticks, r}, nil
}

const header = `A machine, captured by mete capture. Names, ids and addresses are pseudonyms;
command lines, users and serial numbers are left out.

`

// Write writes the capture in the txtar format, links as "-- a -> b --".
func (m *Machine) Write(w io.Writer) error { return m.out.write(w, header) }

// Summary lists for the user what the capture contains, replaces and omits.
func (m *Machine) Summary() string {
	var b strings.Builder
	if m.ticks > 1 {
		fmt.Fprintf(&b, "captured, %d times: ", m.ticks)
	} else {
		b.WriteString("captured: ")
	}
	c := m.first.counts
	for i, k := range []string{"hierarchies", "groups", "processes", "network namespaces", "block devices", "meters", "files"} {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d %s", c[k], k)
	}
	b.WriteString("\nreplaced: ")
	if len(m.redact.counts) == 0 {
		b.WriteString("nothing")
	}
	for i, k := range slices.Sorted(maps.Keys(m.redact.counts)) {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d %s", m.redact.counts[k], k)
	}
	b.WriteString("\nleft out: command lines, environments, addresses in memory, user names, serial numbers")
	for _, k := range []string{"mounts left out", "groups left out, at least", "processes left out"} {
		if c[k] > 0 {
			fmt.Fprintf(&b, "; %s: %d", k, c[k])
		}
	}
	if m.first.missing > 0 {
		fmt.Fprintf(&b, "; files that may not be read: %d", m.first.missing)
	}
	b.WriteString("\nread it before you give it away\n")
	return b.String()
}
