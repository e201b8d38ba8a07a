package power

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/collect/vm"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/x/sleep"
)

// readInterval is the time between the two readings.
const readInterval = time.Second

// show prints the listing as text or JSON.
func show(ctx context.Context, cfg sources.Config, form string, out io.Writer) error {
	if form != "text" && form != "json" {
		return fault.WithHint(fmt.Errorf("output %q: %w", form, fault.ErrInvalid), "it is text or json")
	}
	l, err := gather(ctx, cfg)
	if err != nil {
		return err
	}
	b := l.text()
	if form == "json" {
		if b, err = l.encode(); err != nil {
			return err
		}
	}
	_, err = out.Write(b)
	return err
}

// gather reads the machine twice. If it cannot read the control groups, it only reads the meters.
func gather(ctx context.Context, cfg sources.Config) (l *listing, err error) {
	cfg.Config = sampler.Config{Tick: readInterval, Window: time.Hour}
	m, err := sources.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return metersAlone(ctx, cfg, err)
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if _, err := m.Tick(); err != nil {
		return nil, err
	}
	before := append([]power.Reading{}, m.Snapshot().Before...)
	begun := m.Snapshot().At
	list := m.Guests()
	first := observe(ctx, m, list, nil)
	if err := sleep.For(ctx, readInterval); err != nil {
		return nil, err
	}
	if _, err := m.Tick(); err != nil {
		return nil, err
	}
	second := observe(ctx, m, list, first)
	l = listed(m.Power(), before, m.Snapshot().Before)
	l.Time, l.Over = m.Snapshot().Wall(), float64(m.Snapshot().At-begun)/1e9
	l.Machine = m.Live().Energy
	for i, v := range list {
		l.VMs = append(l.VMs, guestOf(v, &first[i], &second[i]))
	}
	return l, nil
}

// metersAlone is gather for a machine that cannot be read as a whole; why is the reason.
func metersAlone(ctx context.Context, cfg sources.Config, why error) (l *listing, err error) {
	h, err := hostfs.Open("/")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	p, err := sources.OpenPower(h, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Meters.Close()) }()
	begun := time.Now()
	before, err := p.Meters.Read(nil)
	if err != nil {
		return nil, err
	}
	if err := sleep.For(ctx, readInterval); err != nil {
		return nil, err
	}
	after, err := p.Meters.Read(nil)
	if err != nil {
		return nil, err
	}
	l = listed(p, before, after)
	l.Time, l.Over, l.VMsWhy = time.Now().UTC(), time.Since(begun).Seconds(), why.Error()
	return l, nil
}

// listed returns a listing without virtual machines.
func listed(p *sources.Power, before, after []power.Reading) *listing {
	return &listing{Processor: p.Processor, Meters: meters(p.Meters.Meters(), before, after), Refused: refusals(p.OpenErrors),
		Curve: curveOf(&p.Curve), VMs: []guest{}}
}

// observe reads the use of each virtual machine, and queries all of them concurrently for exits
// from guest mode: one that does not answer takes a second, and is not queried again.
func observe(ctx context.Context, m *sources.Machine, list []*vm.VM, before []observation) []observation {
	out := make([]observation, len(list))
	var all sync.WaitGroup
	for i, v := range list {
		s := &out[i]
		if s.times, s.timesErr = m.GuestTimes(v); before != nil && before[i].exitsErr != nil {
			s.exitsErr = before[i].exitsErr
			continue
		}
		all.Go(func() {
			s.exits, s.exitsErr = m.GuestExits(ctx, v)
			s.exitsAt = time.Now()
		})
	}
	all.Wait()
	return out
}
