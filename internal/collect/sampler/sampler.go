// Package sampler reads a machine once per tick and keeps its accounts.
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
	// Read adds the source's readings to s. An error wrapping fault.ErrUnsupported means
	// that the machine has no such meter, and the sampler stops reading it; any other error
	// affects this tick only.
	Read(s *usage.Snapshot) error
}

// A Booker is a source that shows changes, such as the birth of a group, in one booked
// snapshot only.
type Booker interface {
	// Booked says that the snapshot of the latest Read was booked. Without it the next
	// snapshot must show the same changes.
	Booked()
}

// Meters reads the machine's energy. The sampler reads it just before and after all else.
type Meters interface {
	// Read appends a reading of each meter to into.
	Read(into []power.Reading) ([]power.Reading, error)
}

// A Clock reads the machine's clocks.
type Clock interface {
	// Clocks returns CLOCK_BOOTTIME, CLOCK_MONOTONIC and CLOCK_REALTIME in ns.
	Clocks() (boot, mono, wall int64, err error)
}

// Limits of a tick.
const (
	MinTick = 10 * time.Millisecond
	MaxTick = time.Minute
)

// A Config sets how often to read.
type Config struct {
	Tick   time.Duration // between snapshots
	Window time.Duration // usual length of a window
}

// Default returns a tick of a second and a window of ten.
func Default() Config { return Config{Tick: time.Second, Window: 10 * time.Second} }

// Validate returns an error wrapping fault.ErrInvalid if c cannot work.
func (c Config) Validate() error {
	switch {
	case c.Tick < MinTick:
		return fmt.Errorf("tick %v is shorter than 10ms: %w", c.Tick, fault.ErrInvalid)
	case c.Tick > MaxTick:
		return fmt.Errorf("tick %v is longer than a minute: %w", c.Tick, fault.ErrInvalid)
	case c.Window < c.Tick:
		return fmt.Errorf("window %v is shorter than the tick of %v: %w", c.Window, c.Tick, fault.ErrInvalid)
	}
	return nil
}

// Ticks returns the number of ticks per window, at least one.
func (c Config) Ticks() int { return max(1, int(c.Window/c.Tick)) }

// clockStep is how much the wall clock may deviate before windows take a new offset.
const clockStep = 500 * time.Millisecond

// minRequestGap is the minimum time between a tick and a requested one.
const minRequestGap = 20 * time.Millisecond

// A Sampler takes snapshots and keeps the accounts. Only one goroutine may use it, but any
// may call RequestTick.
type Sampler struct {
	cfg         Config
	boot        string
	clock       Clock
	sources     []Source
	unsupported []bool                // sources that the machine lacks
	meters      Meters                // nil if there are none
	notices     map[meterFault]notice // of energy meters
	accounts    *attribute.Accounts
	log         *slog.Logger

	snapshot usage.Snapshot
	offset   int64 // wall minus boottime for the stamps of windows, ns
	wall     int64 // wall minus boottime at the latest snapshot, ns
	started  bool
	ticks    int // in the open window, including the one that opened it
	window   usage.Window
	closed   bool // the latest tick closed it

	requests chan request                // for a tick
	ended    chan struct{}               // closed when Run has returned
	waiting  []request                   // that the next tick answers
	onBooked func(ending []string) error // may be nil
}

// NewSampler returns a sampler that continues the accounts. The first source provides the
// groups, the root first; every tick needs it.
func NewSampler(cfg Config, accounts *attribute.Accounts, boot string, clock Clock, sources []Source, log *slog.Logger) *Sampler {
	accounts.SetInterval(cfg.Tick)
	return &Sampler{cfg: cfg, boot: boot, clock: clock, sources: sources, unsupported: make([]bool, len(sources)), accounts: accounts, log: log,
		requests: make(chan request), ended: make(chan struct{})}
}

// SetMeters sets the energy meters, before the first tick. Call
// attribute.Accounts.SetMeters too.
func (s *Sampler) SetMeters(m Meters) { s.meters = m }

// Accounts returns the accounts. Read them between ticks, and checkpoint them when a window
// was closed.
func (s *Sampler) Accounts() *attribute.Accounts { return s.accounts }

// Snapshot returns the latest snapshot. It is valid until the next tick.
func (s *Sampler) Snapshot() *usage.Snapshot { return &s.snapshot }

// ClosedWindow returns the window that the latest tick closed, nil if it closed none. It is
// valid until the next window closes.
func (s *Sampler) ClosedWindow() *usage.Window {
	if !s.closed {
		return nil
	}
	return &s.window
}

// Tick takes a snapshot and books it, and closes the window at its end. After an error
// nothing is booked: the next tick makes up for it, since all counters are cumulative.
func (s *Sampler) Tick() (usage.Balance, error) {
	closing := s.ticks >= s.cfg.Ticks()
	b, err := s.sample(closing)
	if err != nil {
		return b, err
	}
	if s.ticks++; closing {
		s.CloseWindow()
	}
	return b, nil
}

// CloseWindow closes the window at the latest snapshot and returns it, for callers that end windows
// by another rule than Tick. It is valid until the next window closes.
func (s *Sampler) CloseWindow() *usage.Window {
	s.ticks = 1
	s.accounts.CloseWindow(&s.window)
	s.closed = true
	s.updateOffset(s.wall)
	return &s.window
}

// Sample takes a snapshot and books it, and leaves the window open. After an error nothing is booked,
// as after one of Tick.
func (s *Sampler) Sample() (usage.Balance, error) { return s.sample(false) }

func (s *Sampler) sample(closing bool) (_ usage.Balance, err error) {
	s.closed = false
	boot, mono, wall, err := s.clock.Clocks()
	if err != nil {
		return usage.Balance{}, err
	}
	s.wall = wall - boot
	if !s.started {
		s.offset = s.wall
		if kept, ok := s.accounts.Offset(s.boot); ok && time.Duration(kept-s.wall).Abs() <= clockStep {
			s.offset = kept // so that windows are contiguous in wall time too
		}
	}
	snap := &s.snapshot
	*snap = usage.Snapshot{Boot: s.boot, At: boot, Mono: mono, Offset: s.offset, Closing: closing, Groups: snap.Groups[:0], Ending: s.endingJobs(snap.Ending[:0]),
		Before: s.readMeters(snap.Before[:0]), After: snap.After}
	if err := s.read(snap); err != nil {
		return usage.Balance{}, err
	}
	snap.After = s.readMeters(snap.After[:0])
	if end, _, _, err := s.clock.Clocks(); err == nil {
		snap.Took = time.Duration(end - boot)
	}
	s.started = true
	b := s.accounts.Tick(snap)
	for _, src := range s.sources {
		if src, ok := src.(Booker); ok {
			src.Booked()
		}
	}
	s.logMeterEvents()
	return b, nil
}

// repeatInterval is the time after which the same fault of a meter is logged again.
const repeatInterval = time.Hour

// A meterFault identifies a fault of an energy meter.
type meterFault struct {
	meter  string
	reason energy.Reason
}

// A notice records that a fault was logged.
type notice struct {
	at   int64 // ns of CLOCK_BOOTTIME
	open bool  // its end was not logged yet
}

// logMeterEvents logs the events of energy meters in the latest tick, and the same fault
// once an hour at most, because a recurring one would fill the log.
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

// readMeters reads the energy meters. If that fails the accounts use the learned models.
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

// read reads all sources. It gives up if the first fails; if another fails, the rest are
// still read.
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
			s.log.Info("source not available", "source", fmt.Sprintf("%T", src), "err", err)
		default:
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// updateOffset sets a new offset for later windows if the wall clock was set. The offset is
// constant within a window, so that the length of the window is right.
func (s *Sampler) updateOffset(offset int64) {
	d := time.Duration(offset - s.offset)
	if d.Abs() > clockStep {
		s.log.Info("wall clock moved", "by", d)
		s.offset = offset
	}
}
