package meterreader

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

// collectInterval is the interval of storing samples and booking minutes.
const collectInterval = 5 * time.Second

// maxUnstored limits the samples of a meter that wait in memory for the ledger.
const maxUnstored = 100_000

// A Collector reads external meters and books their energy.
type Collector struct {
	specs   []external.Spec
	meters  []external.Meter
	sources []source
	ledger  *ledger.Ledger
	log     *slog.Logger

	// Only the goroutine of Run accesses stored, next and warned.
	stored map[string][]external.Sample // samples in the ledger, by meter
	next   map[string]int64             // first unbooked minute, by meter
	warned map[string]string            // last logged error, by missing node

	mu     sync.Mutex
	fresh  map[string][]external.Sample // samples not in the ledger yet, by meter
	states map[string]*State
}

// A State is the state of a meter. It counts from the server's start on.
type State struct {
	Name     string
	Samples  int64     // successful readings
	Failures int64     // failed readings
	Last     time.Time // of the latest sample; zero if there is none
	Watts    float64   // latest power; of a counter, the average of its latest minute
	Failing  time.Time // start of the current failure; zero if there is none
	Err      string    // error of the latest reading or of the current failure
	Minutes  int64     // minutes booked
	Gaps     int64     // minutes without usable energy
	began    time.Time
	interval time.Duration
}

// New returns a collector of meters. It reads their secrets but connects to none.
func New(specs []external.Spec, l *ledger.Ledger, log *slog.Logger) (*Collector, error) {
	c := &Collector{specs: specs, ledger: l, log: log, warned: map[string]string{}, fresh: map[string][]external.Sample{}, states: map[string]*State{}}
	var errs []error
	for i := range specs {
		s, err := open(&specs[i])
		errs = append(errs, err)
		c.sources, c.meters = append(c.sources, s), append(c.meters, specs[i].Meter)
		c.states[specs[i].Name] = &State{Name: specs[i].Name, began: time.Now(), interval: specs[i].Interval}
	}
	return c, errors.Join(errs...)
}

// Run reads the meters and books their energy until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	if len(c.meters) == 0 {
		return nil
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	for i := range c.sources {
		wait.Go(func() { c.sources[i].Run(ctx, c.recorder(c.meters[i].Name)) })
	}
	tick := time.NewTicker(collectInterval)
	defer tick.Stop()
	for failing := false; ; {
		err := c.collect(ctx, time.Now())
		if err != nil && ctx.Err() == nil && !failing {
			c.log.Warn("cannot book external meters; retrying", "err", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			if err := c.flush(context.WithoutCancel(ctx)); err != nil {
				c.log.Warn("cannot store the last samples of external meters", "err", err)
			}
			return nil
		case <-tick.C:
		}
	}
}

// recorder returns the function that records the samples of a meter.
func (c *Collector) recorder(name string) recordFunc {
	return func(at time.Time, value int64, err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		s := c.states[name]
		if err != nil {
			s.Failures++
			s.Err = err.Error()
			// A single failed reading loses nothing and is not logged.
			if s.Last.IsZero() || at.Sub(s.Last) >= 3*s.interval {
				c.fail(s, at, s.Err)
			}
			return
		}
		if !s.Failing.IsZero() {
			c.log.Info("external meter is readable again", "meter", name, "took", at.Sub(s.Failing).Round(time.Second))
			s.Failing = time.Time{}
		}
		s.Samples++
		s.Last, s.Err = at, ""
		if i := slices.IndexFunc(c.meters, func(m external.Meter) bool { return m.Name == name }); c.meters[i].Kind == power.Power {
			s.Watts = float64(value) / 1e6
		}
		if len(c.fresh[name]) < maxUnstored {
			c.fresh[name] = append(c.fresh[name], external.Sample{At: at.UnixNano(), Value: value})
		}
	}
}

// fail records that a meter cannot be read, and logs the first failure of a series.
func (c *Collector) fail(s *State, at time.Time, why string) {
	if s.Failing.IsZero() {
		s.Failing = at
		c.log.Warn("cannot read external meter", "meter", s.Name, "err", why)
	}
	s.Err = why
}

// States returns the states of the meters, sorted by name.
func (c *Collector) States() (out []State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.states)) {
		out = append(out, *c.states[name])
	}
	return out
}

// collect stores the samples read so far and books the complete minutes.
func (c *Collector) collect(ctx context.Context, now time.Time) error {
	if c.next == nil {
		if err := c.load(ctx, now); err != nil {
			return err
		}
	}
	if err := c.flush(ctx); err != nil {
		return err
	}
	c.checkSilent(now)
	ids := map[string]string{}
	missing := map[string]error{}
	for i := range c.meters {
		for _, n := range c.meters[i].Nodes {
			if ids[n] != "" || missing[n] != nil {
				continue
			}
			id, err := c.ledger.MeterNode(ctx, n)
			if err != nil {
				missing[n] = err
				id = "?" + n // a placeholder that equals no other node
			}
			ids[n] = id
		}
	}
	var errs []error
	for _, set := range external.GroupConnected(c.meters, func(n string) string { return ids[n] }) {
		errs = append(errs, c.bookMinutes(ctx, set, ids, missing, now))
		if c.next == nil {
			break // another server books these meters too: reload first
		}
	}
	return errors.Join(errs...)
}

// load reads the stored samples and the booking positions of the meters from the ledger.
func (c *Collector) load(ctx context.Context, now time.Time) error {
	kept, err := c.ledger.ExternalMeters(ctx, c.meters, now)
	if err != nil {
		return err
	}
	c.stored, c.next = map[string][]external.Sample{}, map[string]int64{}
	for name, m := range kept {
		c.stored[name], c.next[name] = m.Samples, m.Next
	}
	return nil
}

// flush stores the samples read so far in the ledger.
func (c *Collector) flush(ctx context.Context) error {
	c.mu.Lock()
	fresh := c.fresh
	c.fresh = map[string][]external.Sample{}
	c.mu.Unlock()
	if len(fresh) == 0 {
		return nil
	}
	for name, list := range fresh {
		if old := c.stored[name]; len(old) > 0 {
			// The clock may have been set back: drop samples that are not newer.
			list = slices.DeleteFunc(list, func(s external.Sample) bool { return s.At <= old[len(old)-1].At })
		}
		slices.SortFunc(list, func(a, b external.Sample) int { return int(a.At - b.At) })
		fresh[name] = list
	}
	if err := c.ledger.PutMeterSamples(ctx, fresh); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		for name, list := range fresh {
			c.fresh[name] = append(list, c.fresh[name]...)
		}
		return err
	}
	for name, list := range fresh {
		if c.stored != nil {
			c.stored[name] = append(c.stored[name], list...)
		}
	}
	return nil
}

// checkSilent marks meters as failing whose latest sample is older than their stale time: an
// MQTT meter may fall silent without an error.
func (c *Collector) checkSilent(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.meters {
		m := &c.meters[i]
		s := c.states[m.Name]
		since := s.began
		if s.Last.After(since) {
			since = s.Last
		}
		if age := now.Sub(since); age > m.Stale {
			c.fail(s, now, cmp.Or(s.Err, fmt.Sprintf("no sample for %v", age.Round(time.Second))))
		}
	}
}

// bookMinutes books the complete minutes of a set of meters that share nodes.
func (c *Collector) bookMinutes(ctx context.Context, set []int, ids map[string]string, missing map[string]error, now time.Time) error {
	minutes := map[string][]external.MeterMinute{}
	for _, i := range set {
		m := &c.meters[i]
		minutes[m.Name] = external.Minutes(m, c.stored[m.Name], c.next[m.Name], now)
	}
	for {
		b, wait := c.nextMinute(set, minutes, ids)
		if b == nil {
			return nil
		}
		ready, err := c.isReady(ctx, b, wait, missing, set, now)
		if err != nil || !ready {
			return err
		}
		out, done, err := c.ledger.BookMeterMinute(ctx, b)
		if err != nil {
			return err
		}
		if !done { // another server booked the minute
			c.next = nil
			return nil
		}
		c.advance(b, out, minutes)
	}
}

// nextMinute returns the first unbooked minute of a set of meters, or nil if a meter has not
// completed it, and the longest time that one of its meters waits for nodes. Meters that
// started later are not part of it.
func (c *Collector) nextMinute(set []int, minutes map[string][]external.MeterMinute, ids map[string]string) (*external.GroupMinute, time.Duration) {
	first := c.next[c.meters[set[0]].Name]
	for _, i := range set {
		first = min(first, c.next[c.meters[i].Name])
	}
	b := &external.GroupMinute{Minute: first, NeededFrom: map[string]int64{}, Failures: map[string]string{}}
	var wait time.Duration
	for _, i := range set {
		m := &c.meters[i]
		if c.next[m.Name] != first {
			continue
		}
		if len(minutes[m.Name]) == 0 {
			return nil, 0
		}
		v := minutes[m.Name][0]
		e := external.MeterEnergy{Meter: m.Name, Energy: v.Energy, Error: v.Error}
		for _, n := range m.Nodes {
			if !slices.Contains(e.Nodes, ids[n]) {
				e.Nodes = append(e.Nodes, ids[n])
			}
		}
		if v.Reason != energy.OK {
			b.Failures[m.Name] = v.Reason.String()
		}
		b.Meters = append(b.Meters, e)
		b.NeededFrom[m.Name] = external.NeededFrom(m, c.stored[m.Name], first+1)
		wait = max(wait, m.Wait)
	}
	return b, wait
}

// isReady reports whether the nodes of a minute have sent all of it. A node that is still
// missing after wait makes the minute fail, so that its energy is not booked to other nodes.
func (c *Collector) isReady(ctx context.Context, b *external.GroupMinute, wait time.Duration, missing map[string]error, set []int, now time.Time) (bool, error) {
	if len(b.Failures) > 0 {
		return true, nil
	}
	for _, i := range set {
		for _, n := range c.meters[i].Nodes {
			err := missing[n]
			if err == nil {
				continue
			}
			if c.warned[n] != err.Error() {
				c.warned[n] = err.Error()
				c.log.Warn("external meter waits for a node", "meter", c.meters[i].Name, "err", err)
			}
			if now.Sub(time.Unix(0, external.MinuteStart(b.Minute+1))) <= wait {
				return false, nil
			}
			b.Failures[c.meters[i].Name] = err.Error()
		}
	}
	if len(b.Failures) > 0 {
		return true, nil
	}
	nodes, err := c.ledger.MeterNodes(ctx, b.Nodes(), b.Minute, now)
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

// advance moves the meters past a booked minute and updates their states.
func (c *Collector) advance(b *external.GroupMinute, out []external.Adjustment, minutes map[string][]external.MeterMinute) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range b.Meters {
		c.next[e.Meter] = b.Minute + 1
		minutes[e.Meter] = minutes[e.Meter][1:]
		c.stored[e.Meter] = slices.DeleteFunc(c.stored[e.Meter], func(s external.Sample) bool { return s.At < b.NeededFrom[e.Meter] })
		s := c.states[e.Meter]
		if _, failed := b.Failures[e.Meter]; failed {
			s.Gaps++
			continue
		}
		if len(b.Failures) == 0 {
			s.Minutes++
		}
		i := slices.IndexFunc(c.meters, func(m external.Meter) bool { return m.Name == e.Meter })
		if c.meters[i].Kind == power.Energy {
			s.Watts = float64(e.Energy) / 60e6
		}
	}
	for i := range out {
		if o := &out[i]; o.Measured > o.Meter {
			c.log.Debug("node measured more energy than its external meters", "node", o.Node, "minute", o.Minute, "machine_uj", o.Measured, "meter_uj", o.Meter)
		}
	}
}
