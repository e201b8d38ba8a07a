package meters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/store/ledger"
)

// collectInterval is how often samples are made durable and minutes are booked.
const collectInterval = 5 * time.Second

// maxFresh is how many samples of a meter wait at most for a ledger that is away.
const maxFresh = 100_000

// A Collector reads meters outside the machines, and books them.
type Collector struct {
	specs   []external.Spec
	meters  []external.Meter
	sources []source
	ledger  *ledger.Ledger
	log     *slog.Logger

	// stored and next are the collecting loop's own.
	stored map[string][]external.Sample // that the ledger has, by name
	next   map[string]int64             // the first minute of each that is not booked
	warned map[string]string            // what was last said of a set of meters that waits

	mu     sync.Mutex
	fresh  map[string][]external.Sample // that the ledger does not have yet
	states map[string]*State
}

// A State is how a meter is doing.
type State struct {
	Name     string
	Samples  int64     // that were taken since the server's start
	Failures int64     // readings that failed
	Last     time.Time // of the latest sample; zero is none
	Watts    float64   // that it showed last: of a counter, in its latest minute
	Failing  time.Time // since when it cannot be read; zero where it can
	Err      string    // why, or why the latest reading failed
	Minutes  int64     // that were booked since the server's start
	Gaps     int64     // minutes in which it could not be used
	began    time.Time
	interval time.Duration
}

// New makes a collector of meters. It reads their secrets, and starts nothing.
func New(specs []external.Spec, l *ledger.Ledger, log *slog.Logger) (*Collector, error) {
	k := &Collector{specs: specs, ledger: l, log: log, warned: map[string]string{}, fresh: map[string][]external.Sample{}, states: map[string]*State{}}
	var errs []error
	for i := range specs {
		s, err := open(&specs[i])
		errs = append(errs, err)
		k.sources, k.meters = append(k.sources, s), append(k.meters, specs[i].Meter)
		k.states[specs[i].Name] = &State{Name: specs[i].Name, began: time.Now(), interval: specs[i].Interval}
	}
	return k, errors.Join(errs...)
}

// Run reads and books until ctx ends.
func (k *Collector) Run(ctx context.Context) error {
	if len(k.meters) == 0 {
		return nil
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	for i := range k.sources {
		wait.Go(func() { k.sources[i].Run(ctx, k.recorder(k.meters[i].Name)) })
	}
	tick := time.NewTicker(collectInterval)
	defer tick.Stop()
	for failing := false; ; {
		err := k.collect(ctx, time.Now())
		if err != nil && ctx.Err() == nil && !failing {
			k.log.Warn("meters outside the machines cannot be booked", "err", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			// What was read last is not to be lost.
			if err := k.flush(context.WithoutCancel(ctx)); err != nil {
				k.log.Warn("the last samples of meters are lost", "err", err)
			}
			return nil
		case <-tick.C:
		}
	}
}

// recorder takes what a meter shows.
func (k *Collector) recorder(name string) recordFunc {
	return func(at time.Time, value int64, err error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		s := k.states[name]
		if err != nil {
			s.Failures++
			s.Err = err.Error()
			// One reading that fails costs nothing and is no news.
			if s.Last.IsZero() || at.Sub(s.Last) >= 3*s.interval {
				k.fail(s, at, s.Err)
			}
			return
		}
		if !s.Failing.IsZero() {
			k.log.Info("a meter outside the machines is read again", "meter", name, "took", at.Sub(s.Failing).Round(time.Second))
			s.Failing = time.Time{}
		}
		s.Samples++
		s.Last, s.Err = at, ""
		if i := slices.IndexFunc(k.meters, func(m external.Meter) bool { return m.Name == name }); k.meters[i].Kind == power.Power {
			s.Watts = float64(value) / 1e6
		}
		if len(k.fresh[name]) < maxFresh {
			k.fresh[name] = append(k.fresh[name], external.Sample{At: at.UnixNano(), Value: value})
		}
	}
}

// fail notes that a meter cannot be read, once.
func (k *Collector) fail(s *State, at time.Time, why string) {
	if s.Failing.IsZero() {
		s.Failing = at
		k.log.Warn("a meter outside the machines cannot be read", "meter", s.Name, "err", why)
	}
	s.Err = why
}

// States are how the meters are doing, by name.
func (k *Collector) States() (out []State) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(k.states)) {
		out = append(out, *k.states[name])
	}
	return out
}

// collect makes durable what was read, and books the minutes that are over.
func (k *Collector) collect(ctx context.Context, now time.Time) error {
	if k.next == nil {
		if err := k.load(ctx, now); err != nil {
			return err
		}
	}
	if err := k.flush(ctx); err != nil {
		return err
	}
	k.checkSilent(now)
	ids := map[string]string{}
	missing := map[string]error{}
	for i := range k.meters {
		for _, n := range k.meters[i].Nodes {
			if ids[n] != "" || missing[n] != nil {
				continue
			}
			id, err := k.ledger.MeterNode(ctx, n)
			if err != nil {
				missing[n] = err
				id = "?" + n // of its own
			}
			ids[n] = id
		}
	}
	var errs []error
	for _, set := range external.GroupConnected(k.meters, func(n string) string { return ids[n] }) {
		errs = append(errs, k.bookMinutes(ctx, set, ids, missing, now))
		if k.next == nil {
			break // another server books here too: all is loaded first
		}
	}
	return errors.Join(errs...)
}

// load takes up what the ledger keeps of the meters.
func (k *Collector) load(ctx context.Context, now time.Time) error {
	kept, err := k.ledger.ExternalMeters(ctx, k.meters, now)
	if err != nil {
		return err
	}
	k.stored, k.next = map[string][]external.Sample{}, map[string]int64{}
	for name, m := range kept {
		k.stored[name], k.next[name] = m.Samples, m.Next
	}
	return nil
}

// flush makes durable what was read.
func (k *Collector) flush(ctx context.Context) error {
	k.mu.Lock()
	fresh := k.fresh
	k.fresh = map[string][]external.Sample{}
	k.mu.Unlock()
	if len(fresh) == 0 {
		return nil
	}
	for name, list := range fresh {
		if old := k.stored[name]; len(old) > 0 {
			// The clock may have been set back.
			list = slices.DeleteFunc(list, func(s external.Sample) bool { return s.At <= old[len(old)-1].At })
		}
		slices.SortFunc(list, func(a, b external.Sample) int { return int(a.At - b.At) })
		fresh[name] = list
	}
	if err := k.ledger.PutMeterSamples(ctx, fresh); err != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		for name, list := range fresh {
			k.fresh[name] = append(list, k.fresh[name]...)
		}
		return err
	}
	for name, list := range fresh {
		if k.stored != nil {
			k.stored[name] = append(k.stored[name], list...)
		}
	}
	return nil
}

// checkSilent notes meters of which nothing comes any more without an error: those that
// publish by themselves.
func (k *Collector) checkSilent(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.meters {
		m := &k.meters[i]
		s := k.states[m.Name]
		since := s.began
		if s.Last.After(since) {
			since = s.Last
		}
		if age := now.Sub(since); age > m.Stale {
			k.fail(s, now, cmp.Or(s.Err, fmt.Sprintf("nothing came of it for %v", age.Round(time.Second))))
		}
	}
}

// bookMinutes books the minutes of a set of meters that are decided.
func (k *Collector) bookMinutes(ctx context.Context, set []int, ids map[string]string, missing map[string]error, now time.Time) error {
	minutes := map[string][]external.MeterMinute{}
	for _, i := range set {
		m := &k.meters[i]
		minutes[m.Name] = external.Minutes(m, k.stored[m.Name], k.next[m.Name], now)
	}
	for {
		b, wait := k.nextBill(set, minutes, ids)
		if b == nil {
			return nil
		}
		ready, err := k.isReady(ctx, b, wait, missing, set, now)
		if err != nil || !ready {
			return err
		}
		out, done, err := k.ledger.BookMeterMinute(ctx, b)
		if err != nil {
			return err
		}
		if !done { // another one did
			k.next = nil
			return nil
		}
		k.advance(b, out, minutes)
	}
}

// nextBill is the first minute of a set of meters that is not booked, or nil where it is
// not decided yet. It waits for nodes for as long as the most patient meter says. A
// meter that began later has no part in it.
func (k *Collector) nextBill(set []int, minutes map[string][]external.MeterMinute, ids map[string]string) (*external.GroupMinute, time.Duration) {
	first := k.next[k.meters[set[0]].Name]
	for _, i := range set {
		first = min(first, k.next[k.meters[i].Name])
	}
	b := &external.GroupMinute{Minute: first, NeededFrom: map[string]int64{}, Failures: map[string]string{}}
	var wait time.Duration
	for _, i := range set {
		m := &k.meters[i]
		if k.next[m.Name] != first {
			continue
		}
		if len(minutes[m.Name]) == 0 {
			return nil, 0
		}
		v := minutes[m.Name][0]
		c := external.MeterEnergy{Meter: m.Name, Energy: v.Energy, Error: v.Error}
		for _, n := range m.Nodes {
			if !slices.Contains(c.Nodes, ids[n]) {
				c.Nodes = append(c.Nodes, ids[n])
			}
		}
		if v.Reason != energy.OK {
			b.Failures[m.Name] = v.Reason.String()
		}
		b.Meters = append(b.Meters, c)
		b.NeededFrom[m.Name] = external.NeededFrom(m, k.stored[m.Name], first+1)
		wait = max(wait, m.Wait)
	}
	return b, wait
}

// isReady reports whether the nodes of a bill have told all of the minute. One that is
// not there fails the bill when it was waited for long enough: what it draws is not
// to be booked to others.
func (k *Collector) isReady(ctx context.Context, b *external.GroupMinute, wait time.Duration, missing map[string]error, set []int, now time.Time) (bool, error) {
	if len(b.Failures) > 0 {
		return true, nil
	}
	for _, i := range set {
		for _, n := range k.meters[i].Nodes {
			err := missing[n]
			if err == nil {
				continue
			}
			if k.warned[n] != err.Error() {
				k.warned[n] = err.Error()
				k.log.Warn("a meter waits for a node", "meter", k.meters[i].Name, "err", err)
			}
			if now.Sub(time.Unix(0, external.MinuteStart(b.Minute+1))) <= wait {
				return false, nil
			}
			b.Failures[k.meters[i].Name] = err.Error()
		}
	}
	if len(b.Failures) > 0 {
		return true, nil
	}
	nodes, err := k.ledger.MeterNodes(ctx, b.Nodes(), b.Minute, now)
	if err != nil {
		return false, err
	}
	for i := range nodes {
		if !nodes[i].IsComplete(b.Minute, wait, now) {
			return false, nil
		}
	}
	return true, nil
}

// advance moves on after a bill.
func (k *Collector) advance(b *external.GroupMinute, out []external.Adjustment, minutes map[string][]external.MeterMinute) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range b.Meters {
		k.next[c.Meter] = b.Minute + 1
		minutes[c.Meter] = minutes[c.Meter][1:]
		k.stored[c.Meter] = slices.DeleteFunc(k.stored[c.Meter], func(s external.Sample) bool { return s.At < b.NeededFrom[c.Meter] })
		s := k.states[c.Meter]
		if _, failed := b.Failures[c.Meter]; failed {
			s.Gaps++
			continue
		}
		if len(b.Failures) == 0 {
			s.Minutes++
		}
		i := slices.IndexFunc(k.meters, func(m external.Meter) bool { return m.Name == c.Meter })
		if k.meters[i].Kind == power.Energy {
			s.Watts = float64(c.Energy) / 60e6
		}
	}
	for i := range out {
		if o := &out[i]; o.Measured > o.Meter {
			k.log.Debug("a machine measured more than its meters", "node", o.Node, "minute", o.Minute, "machine_uj", o.Measured, "meter_uj", o.Meter)
		}
	}
}
