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

// every is how often samples are made durable and minutes are settled.
const every = 5 * time.Second

// most is how many samples of a meter wait at most for a ledger that is away.
const most = 100_000

// A Keeper reads meters outside the machines, and books them.
type Keeper struct {
	specs   []external.Spec
	meters  []external.Meter
	sources []source
	ledger  *ledger.Ledger
	log     *slog.Logger

	// kept and next are the settling loop's own.
	kept map[string][]external.Sample // that the ledger has, by name
	next map[string]int64             // the first minute of each that is not settled
	told map[string]string            // what was last said of a set of meters that waits

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

// New makes a keeper of meters. It reads their secrets, and starts nothing.
func New(specs []external.Spec, l *ledger.Ledger, log *slog.Logger) (*Keeper, error) {
	k := &Keeper{specs: specs, ledger: l, log: log, told: map[string]string{}, fresh: map[string][]external.Sample{}, states: map[string]*State{}}
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
func (k *Keeper) Run(ctx context.Context) error {
	if len(k.meters) == 0 {
		return nil
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	for i := range k.sources {
		wait.Go(func() { k.sources[i].Run(ctx, k.taker(k.meters[i].Name)) })
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for failing := false; ; {
		err := k.step(ctx, time.Now())
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

// taker takes what a meter shows.
func (k *Keeper) taker(name string) taker {
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
		if len(k.fresh[name]) < most {
			k.fresh[name] = append(k.fresh[name], external.Sample{At: at.UnixNano(), Value: value})
		}
	}
}

// fail notes that a meter cannot be read, once.
func (k *Keeper) fail(s *State, at time.Time, why string) {
	if s.Failing.IsZero() {
		s.Failing = at
		k.log.Warn("a meter outside the machines cannot be read", "meter", s.Name, "err", why)
	}
	s.Err = why
}

// States are how the meters are doing, by name.
func (k *Keeper) States() (out []State) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(k.states)) {
		out = append(out, *k.states[name])
	}
	return out
}

// step makes durable what was read, and settles the minutes that are over.
func (k *Keeper) step(ctx context.Context, now time.Time) error {
	if k.next == nil {
		if err := k.recall(ctx, now); err != nil {
			return err
		}
	}
	if err := k.flush(ctx); err != nil {
		return err
	}
	k.silent(now)
	ids := map[string]string{}
	missing := map[string]error{}
	for i := range k.meters {
		for _, n := range k.meters[i].Nodes {
			if ids[n] != "" || missing[n] != nil {
				continue
			}
			id, err := k.ledger.OuterNode(ctx, n)
			if err != nil {
				missing[n] = err
				id = "?" + n // of its own
			}
			ids[n] = id
		}
	}
	var errs []error
	for _, set := range external.Together(k.meters, func(n string) string { return ids[n] }) {
		errs = append(errs, k.settle(ctx, set, ids, missing, now))
		if k.next == nil {
			break // another server settles here too: all is recalled first
		}
	}
	return errors.Join(errs...)
}

// recall takes up what the ledger keeps of the meters.
func (k *Keeper) recall(ctx context.Context, now time.Time) error {
	kept, err := k.ledger.OuterMeters(ctx, k.meters, now)
	if err != nil {
		return err
	}
	k.kept, k.next = map[string][]external.Sample{}, map[string]int64{}
	for name, m := range kept {
		k.kept[name], k.next[name] = m.Samples, m.Next
	}
	return nil
}

// flush makes durable what was read.
func (k *Keeper) flush(ctx context.Context) error {
	k.mu.Lock()
	fresh := k.fresh
	k.fresh = map[string][]external.Sample{}
	k.mu.Unlock()
	if len(fresh) == 0 {
		return nil
	}
	for name, list := range fresh {
		if old := k.kept[name]; len(old) > 0 {
			// The clock may have been set back.
			list = slices.DeleteFunc(list, func(s external.Sample) bool { return s.At <= old[len(old)-1].At })
		}
		slices.SortFunc(list, func(a, b external.Sample) int { return int(a.At - b.At) })
		fresh[name] = list
	}
	if err := k.ledger.PutOuterSamples(ctx, fresh); err != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		for name, list := range fresh {
			k.fresh[name] = append(list, k.fresh[name]...)
		}
		return err
	}
	for name, list := range fresh {
		if k.kept != nil {
			k.kept[name] = append(k.kept[name], list...)
		}
	}
	return nil
}

// silent notes meters of which nothing comes any more without an error: those that
// publish by themselves.
func (k *Keeper) silent(now time.Time) {
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

// settle books the minutes of a set of meters that are decided.
func (k *Keeper) settle(ctx context.Context, set []int, ids map[string]string, missing map[string]error, now time.Time) error {
	minutes := map[string][]external.Minute{}
	for _, i := range set {
		m := &k.meters[i]
		minutes[m.Name] = external.Minutes(m, k.kept[m.Name], k.next[m.Name], now)
	}
	for {
		b, wait := k.bill(set, minutes, ids)
		if b == nil {
			return nil
		}
		ready, err := k.ready(ctx, b, wait, missing, set, now)
		if err != nil || !ready {
			return err
		}
		out, done, err := k.ledger.SettleOuter(ctx, b)
		if err != nil {
			return err
		}
		if !done { // another one did
			k.next = nil
			return nil
		}
		k.settled(b, out, minutes)
	}
}

// bill is the first minute of a set of meters that is not settled, or nil where it is
// not decided yet. It waits for nodes for as long as the most patient meter says. A
// meter that began later has no part in it.
func (k *Keeper) bill(set []int, minutes map[string][]external.Minute, ids map[string]string) (*external.Bill, time.Duration) {
	first := k.next[k.meters[set[0]].Name]
	for _, i := range set {
		first = min(first, k.next[k.meters[i].Name])
	}
	b := &external.Bill{Minute: first, Since: map[string]int64{}, Failed: map[string]string{}}
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
		c := external.Charge{Meter: m.Name, Energy: v.Energy, Error: v.Error}
		for _, n := range m.Nodes {
			if !slices.Contains(c.Nodes, ids[n]) {
				c.Nodes = append(c.Nodes, ids[n])
			}
		}
		if v.Reason != energy.Fine {
			b.Failed[m.Name] = v.Reason.String()
		}
		b.Charges = append(b.Charges, c)
		b.Since[m.Name] = external.Since(m, k.kept[m.Name], first+1)
		wait = max(wait, m.Wait)
	}
	return b, wait
}

// ready reports whether the nodes of a bill have told all of the minute. One that is
// not there fails the bill when it was waited for long enough: what it draws is not
// to be booked to others.
func (k *Keeper) ready(ctx context.Context, b *external.Bill, wait time.Duration, missing map[string]error, set []int, now time.Time) (bool, error) {
	if len(b.Failed) > 0 {
		return true, nil
	}
	for _, i := range set {
		for _, n := range k.meters[i].Nodes {
			err := missing[n]
			if err == nil {
				continue
			}
			if k.told[n] != err.Error() {
				k.told[n] = err.Error()
				k.log.Warn("a meter waits for a node", "meter", k.meters[i].Name, "err", err)
			}
			if now.Sub(time.Unix(0, external.Start(b.Minute+1))) <= wait {
				return false, nil
			}
			b.Failed[k.meters[i].Name] = err.Error()
		}
	}
	if len(b.Failed) > 0 {
		return true, nil
	}
	nodes, err := k.ledger.OuterNodes(ctx, b.Nodes(), b.Minute, now)
	if err != nil {
		return false, err
	}
	for i := range nodes {
		if !nodes[i].Ready(b.Minute, wait, now) {
			return false, nil
		}
	}
	return true, nil
}

// settled moves on after a bill.
func (k *Keeper) settled(b *external.Bill, out []external.Outcome, minutes map[string][]external.Minute) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range b.Charges {
		k.next[c.Meter] = b.Minute + 1
		minutes[c.Meter] = minutes[c.Meter][1:]
		k.kept[c.Meter] = slices.DeleteFunc(k.kept[c.Meter], func(s external.Sample) bool { return s.At < b.Since[c.Meter] })
		s := k.states[c.Meter]
		if _, failed := b.Failed[c.Meter]; failed {
			s.Gaps++
			continue
		}
		if len(b.Failed) == 0 {
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
