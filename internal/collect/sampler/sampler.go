// Package sampler reads a machine once a tick and keeps its accounts.
package sampler

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// A Source reads one kind of meter.
type Source interface {
	// Read adds to s what the source sees now. An error wrapping
	// fault.ErrUnsupported says that the machine has no such meter, and the
	// sampler asks no more; any other error costs this tick only.
	Read(s *usage.Snapshot) error
}

// Meters are what shows the machine's energy. They are read around all else, as
// close to it as can be.
type Meters interface {
	// Read appends a reading of each meter to into.
	Read(into []power.Reading) ([]power.Reading, error)
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

// minRequestGap is the shortest time between a tick and one that is asked for.
const minRequestGap = 20 * time.Millisecond

// A Sampler takes snapshots and keeps the accounts. One goroutine uses it; any may
// call RequestTick.
type Sampler struct {
	cfg         Config
	boot        string
	clock       Clock
	sources     []Source
	unsupported []bool                // sources that the machine does not have
	meters      Meters                // nil without
	notices     map[meterFault]notice // of energy meters
	accounts    *attribute.Accounts
	log         *slog.Logger

	snapshot usage.Snapshot
	offset   int64 // wall minus boottime that windows are stamped with, ns
	started  bool
	ticks    int // in the open window, the one that opened it included
	window   usage.Window
	closed   bool // by the latest tick

	requests chan chan<- error // who wants a tick now
	ended    chan struct{}     // closed when Run has returned
	waiting  []chan<- error    // for the next tick
}

// NewSampler returns a sampler that has read nothing yet, and goes on with the
// accounts. The first source names the groups, the root first, and no tick can do
// without it.
func NewSampler(cfg Config, accounts *attribute.Accounts, boot string, clock Clock, sources []Source, log *slog.Logger) *Sampler {
	accounts.SetInterval(cfg.Tick)
	return &Sampler{cfg: cfg, boot: boot, clock: clock, sources: sources, unsupported: make([]bool, len(sources)), accounts: accounts, log: log,
		requests: make(chan chan<- error), ended: make(chan struct{})}
}

// SetMeters says what shows the machine's energy, before the first tick. The accounts
// know what it is: see attribute.Accounts.SetMeters.
func (s *Sampler) SetMeters(m Meters) { s.meters = m }

// Accounts returns the accounts: for reading between ticks, and for a checkpoint of
// them when a window was closed.
func (s *Sampler) Accounts() *attribute.Accounts { return s.accounts }

// Snapshot returns the latest snapshot. It is good until the next tick.
func (s *Sampler) Snapshot() *usage.Snapshot { return &s.snapshot }

// ClosedWindow returns the window that the latest tick closed, nil if it closed none.
// It is good until the next one is closed.
func (s *Sampler) ClosedWindow() *usage.Window {
	if !s.closed {
		return nil
	}
	return &s.window
}

// Tick takes a snapshot and books it, and at the end of a window closes that.
// After an error nothing is booked: the next tick makes up for it, as all
// counters are cumulative.
func (s *Sampler) Tick() (usage.Balance, error) {
	b, wall, err := s.sample()
	if err != nil {
		return b, err
	}
	if s.ticks++; s.ticks > s.cfg.Ticks() {
		s.ticks = 1
		s.accounts.CloseWindow(&s.window)
		s.closed = true
		s.updateOffset(wall)
	}
	return b, nil
}

// sample takes a snapshot and books it. It returns what the wall clock is ahead
// of CLOCK_BOOTTIME too.
func (s *Sampler) sample() (_ usage.Balance, offset int64, err error) {
	s.closed = false
	boot, mono, wall, err := s.clock.Clocks()
	if err != nil {
		return usage.Balance{}, 0, err
	}
	offset = wall - boot
	if !s.started {
		s.offset = offset
		if kept, ok := s.accounts.Offset(s.boot); ok && time.Duration(kept-offset).Abs() <= clockStep {
			s.offset = kept // so that windows meet in wall time too
		}
	}
	snap := &s.snapshot
	*snap = usage.Snapshot{Boot: s.boot, At: boot, Mono: mono, Offset: s.offset, Groups: snap.Groups[:0],
		Before: s.readMeters(snap.Before[:0]), After: snap.After}
	if err := s.read(snap); err != nil {
		return usage.Balance{}, 0, err
	}
	snap.After = s.readMeters(snap.After[:0])
	if end, _, _, err := s.clock.Clocks(); err == nil {
		snap.Took = time.Duration(end - boot)
	}
	s.started = true
	b := s.accounts.Tick(snap)
	s.logMeterEvents()
	return b, offset, nil
}

// repeatInterval is after how long the same fault of a meter is told of again.
const repeatInterval = time.Hour

// A meterFault is what happened to an energy meter.
type meterFault struct {
	meter  string
	reason energy.Reason
}

// A notice is that a fault was told of.
type notice struct {
	at   int64 // ns of CLOCK_BOOTTIME
	open bool  // its end was not
}

// logMeterEvents logs what happened to energy meters in the latest tick: the same fault
// once an hour, as one that comes and goes would fill the log.
func (s *Sampler) logMeterEvents() {
	for _, e := range s.accounts.Events() {
		about := meterFault{e.Meter, e.Reason}
		n, known := s.notices[about]
		switch {
		case e.To != 0 && n.open:
			s.log.Info("energy meter is used again", "meter", e.Meter, "was", e.Reason.String(), "for", time.Duration(e.To-e.From))
			n.open = false
		case e.To != 0, known && s.snapshot.At-n.at < int64(repeatInterval):
			continue
		default:
			s.log.Warn("energy meter is not used; a model stands in for it", "meter", e.Meter, "why", e.Reason.String(), "err", e.Detail, "hint", e.Reason.Hint())
			n = notice{s.snapshot.At, true}
		}
		if s.notices == nil {
			s.notices = map[meterFault]notice{}
		}
		s.notices[about] = n
	}
}

// readMeters reads the energy meters. Where they cannot be read at all the accounts
// go by what they learned of them.
func (s *Sampler) readMeters(into []power.Reading) []power.Reading {
	if s.meters == nil {
		return into
	}
	into, err := s.meters.Read(into)
	if err != nil {
		s.log.Debug("energy meters", "err", err)
	}
	return into
}

// read asks all sources. Without the first there is nothing to add to; where
// another one fails the rest still learn which groups came and went.
func (s *Sampler) read(snap *usage.Snapshot) error {
	var failed error
	for i, src := range s.sources {
		if s.unsupported[i] {
			continue
		}
		err := src.Read(snap)
		switch {
		case err == nil:
		case i == 0:
			return err
		case errors.Is(err, fault.ErrUnsupported):
			s.unsupported[i] = true
			s.log.Info("source not there", "source", fmt.Sprintf("%T", src), "err", err)
		default:
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// updateOffset takes a new offset for the windows to come, where the wall clock was
// set. Within a window it stays, so that its two ends have the length between.
func (s *Sampler) updateOffset(offset int64) {
	d := time.Duration(offset - s.offset)
	if d.Abs() > clockStep {
		s.log.Info("wall clock moved", "by", d)
		s.offset = offset
	}
}
