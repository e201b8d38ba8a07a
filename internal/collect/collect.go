// Package collect reads a machine once a tick and keeps its books.
package collect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/meter"
)

// A Source reads one kind of meter.
type Source interface {
	// Read adds to s what the source sees now. An error wrapping
	// fault.ErrUnsupported says that the machine has no such meter, and the
	// sampler asks no more; any other error costs this tick only.
	Read(s *meter.Snapshot) error
}

// A Clock tells the machine's time: it is the host.
type Clock interface {
	// Clocks returns CLOCK_BOOTTIME, CLOCK_MONOTONIC and CLOCK_REALTIME in ns.
	Clocks() (boot, mono, wall int64, err error)
}

// A Config says how often to read.
type Config struct {
	Tick   time.Duration // between snapshots
	Window time.Duration // a window's usual length
}

// Default is a tick of a second and a window of ten.
func Default() Config { return Config{Tick: time.Second, Window: 10 * time.Second} }

// Validate reports what is wrong with c.
func (c Config) Validate() error {
	switch {
	case c.Tick < 10*time.Millisecond:
		return fmt.Errorf("tick %v is shorter than 10ms: %w", c.Tick, fault.ErrInvalid)
	case c.Tick > time.Minute:
		return fmt.Errorf("tick %v is longer than a minute: %w", c.Tick, fault.ErrInvalid)
	case c.Window < c.Tick:
		return fmt.Errorf("window %v is shorter than the tick of %v: %w", c.Window, c.Tick, fault.ErrInvalid)
	}
	return nil
}

// Ticks returns how many ticks a window has, at least one.
func (c Config) Ticks() int { return max(1, int(c.Window/c.Tick)) }

// clockStep is by how much the wall clock may be off before windows take a new
// offset.
const clockStep = 500 * time.Millisecond

// A Sampler takes snapshots and keeps the books. One goroutine uses it.
type Sampler struct {
	cfg     Config
	boot    string
	clock   Clock
	sources []Source
	gone    []bool // sources that the machine does not have
	books   *attribute.Books
	log     *slog.Logger

	snapshot meter.Snapshot
	offset   int64 // wall minus boottime that windows are stamped with, ns
	started  bool
	ticks    int
}

// NewSampler returns a sampler that has read nothing yet. The first source
// names the groups, the root first.
func NewSampler(cfg Config, node, boot string, clock Clock, sources []Source, log *slog.Logger) *Sampler {
	return &Sampler{cfg: cfg, boot: boot, clock: clock, sources: sources,
		gone: make([]bool, len(sources)), books: attribute.New(node), log: log}
}

// Books returns the books, for reading between ticks.
func (s *Sampler) Books() *attribute.Books { return s.books }

// Snapshot returns the latest snapshot. It is good until the next tick.
func (s *Sampler) Snapshot() *meter.Snapshot { return &s.snapshot }

// Tick takes a snapshot and books it.
func (s *Sampler) Tick() (meter.Balance, error) {
	boot, mono, wall, err := s.clock.Clocks()
	if err != nil {
		return meter.Balance{}, err
	}
	offset := wall - boot
	if d := offset - s.offset; !s.started || d > int64(clockStep) || d < -int64(clockStep) {
		if s.started {
			s.log.Info("wall clock moved", "by", time.Duration(d))
		}
		s.offset = offset
	}
	snap := &s.snapshot
	*snap = meter.Snapshot{Boot: s.boot, At: boot, Mono: mono, Offset: s.offset, Groups: snap.Groups[:0]}
	for i, src := range s.sources {
		if s.gone[i] {
			continue
		}
		err := src.Read(snap)
		switch {
		case errors.Is(err, fault.ErrUnsupported):
			s.gone[i] = true
			s.log.Info("source not there", "source", fmt.Sprintf("%T", src), "err", err)
		case err != nil:
			return meter.Balance{}, err
		}
	}
	if end, _, _, err := s.clock.Clocks(); err == nil {
		snap.Took = time.Duration(end - boot)
	}
	s.started = true
	return s.books.Tick(snap), nil
}

// Run ticks until ctx ends. After each tick it calls tick, and at the end of
// each window window with the closed one, which is good until the next; either
// may be nil. A tick that fails is logged and made up for by the next: all
// counters are cumulative.
func (s *Sampler) Run(ctx context.Context, tick func(), window func(*meter.Window)) error {
	t := time.NewTicker(s.cfg.Tick)
	defer t.Stop()
	var w meter.Window
	failing := false
	for {
		_, err := s.Tick()
		switch {
		case err == nil:
			failing = false
			if tick != nil {
				tick()
			}
			if s.ticks++; s.ticks > s.cfg.Ticks() {
				s.ticks = 1
				s.books.Close(&w)
				if window != nil {
					window(&w)
				}
			}
		case !s.started:
			return err
		case !failing:
			failing = true
			s.log.Warn("tick failed; the next one makes up for it", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}
