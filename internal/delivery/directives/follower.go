// Package directives takes directives from a server: it waits for changes, verifies each section, gives it to the part of the agent
// that follows it, and keeps it on disk until it expires.
package directives

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/directive"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/text"
)

// A Server has directives for this machine.
type Server interface {
	// Directives returns what holds for this machine once that has another tag than tag, but after wait at the latest;
	// changed is false if it has not. rejected are the names of sections that this machine cannot follow. An error that
	// wraps fault.ErrUnsupported says that the server is older and has none.
	Directives(ctx context.Context, tag string, wait time.Duration, rejected []string) (l directive.List, newTag string, changed bool, err error)
	// Section returns the content of a section by its hash. It need not check it.
	Section(ctx context.Context, hash string) ([]byte, error)
}

// A Config configures a Follower.
type Config struct {
	// File keeps the sections; "" keeps them in memory only. Node is the id for which they hold.
	File, Node string
	// Wait is how long the server may wait with an answer if nothing changes.
	Wait time.Duration
	// MinBackoff and MaxBackoff bound the delay after an error, which doubles with each.
	MinBackoff, MaxBackoff time.Duration
	// Again is when to try a server again that has no directives.
	Again time.Duration
}

// Default waits five minutes for a change.
func Default() Config {
	return Config{Wait: 5 * time.Minute, MinBackoff: time.Second, MaxBackoff: 5 * time.Minute, Again: time.Hour}
}

// Validate returns an error that wraps fault.ErrInvalid if c cannot work.
func (c Config) Validate() error {
	if c.Wait < 0 || c.MinBackoff <= 0 || c.MaxBackoff < c.MinBackoff || c.Again <= 0 {
		return fmt.Errorf("directives: wait %v, delays %v to %v, %v: %w", c.Wait, c.MinBackoff, c.MaxBackoff, c.Again, fault.ErrInvalid)
	}
	return nil
}

// An Apply makes the machine follow the content of a section, nil if none holds. It checks the whole content before it changes
// anything; after an error the previous content holds.
type Apply func(content []byte) error

// held is a section that was taken.
type held struct {
	directive.Section
	content []byte // nil if it expired
	until   int64  // of CLOCK_BOOTTIME in ns, when it expires
}

// requestTimeout limits requests beyond the time that the server may wait.
const requestTimeout = 30 * time.Second

// expireEvery is how often expired sections are looked for.
const expireEvery = 15 * time.Second

// A Follower takes directives.
type Follower struct {
	cfg    Config
	server Server
	apply  map[string]Apply
	clock  func() (batch.Clock, error)
	log    *slog.Logger

	// Of Run's goroutine only.
	savedAt int64 // when the file was written, of CLOCK_BOOTTIME in ns
	stale   bool  // the file is of another boot
	unsaved bool  // the file could not be written
	delay   time.Duration

	mu       sync.Mutex // held while a section is applied
	tag      string     // of the list that was taken; "" if a section of it has to be taken again
	sections map[string]*held
	failing  bool                 // the latest request failed
	listed   map[string]bool      // the sections that the server has, as its latest list says
	rejected map[string]rejection // by section
}

// New returns a follower and applies the sections in its file that have not expired. Sections that apply does not have are
// refused by name.
func New(cfg Config, server Server, apply map[string]Apply, clock func() (batch.Clock, error), log *slog.Logger) *Follower {
	f := &Follower{cfg: cfg, server: server, apply: apply, clock: clock, log: log, sections: map[string]*held{}, rejected: map[string]rejection{}}
	f.load()
	return f
}

// Run follows the server until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	expiring, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { f.expireUntil(expiring) })
	defer running.Wait()
	defer stop()
	for {
		err := f.poll(ctx)
		if ctx.Err() != nil {
			return nil
		}
		f.report(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.pause(err)):
		}
	}
}

// minPause is the least time between two requests, whatever the server answers.
const minPause = time.Second

// pause returns how long to wait before the next request. Agents that got the same error at the same time wait for
// between half the delay and all of it, so that they do not come back at once.
func (f *Follower) pause(err error) time.Duration {
	switch {
	case err == nil:
		f.delay = 0
		return minPause + rand.N(minPause)
	case errors.Is(err, fault.ErrUnsupported):
		f.delay = f.cfg.Again
	default:
		f.delay = min(max(2*f.delay, f.cfg.MinBackoff), f.cfg.MaxBackoff)
	}
	after, _ := fault.RetryAfter(err)
	return after + time.Duration(float64(f.delay)*(1-rand.Float64()/2))
}

// report logs when the directives begin to be late and when they are not any more.
func (f *Follower) report(err error) {
	f.mu.Lock()
	failed := f.failing
	f.failing = err != nil
	f.mu.Unlock()
	switch {
	case errors.Is(err, fault.ErrUnsupported):
		f.log.Debug("the server has no directives", "err", err)
	case err != nil && !failed:
		f.log.Info("cannot get directives; the previous ones hold until they expire", "err", err)
	case err == nil && failed:
		f.log.Info("directives come again")
	}
}

// poll asks the server once, and takes what changed.
func (f *Follower) poll(ctx context.Context) error {
	// The server's answer confirms what holds when it began to wait, at least.
	began, err := f.clock()
	if err != nil {
		return err
	}
	tag, wait := f.request()
	asked, cancel := context.WithTimeout(ctx, wait+requestTimeout)
	list, tag, changed, err := f.server.Directives(asked, tag, wait, f.Rejected())
	cancel()
	if err != nil {
		return err
	}
	if !changed {
		f.confirm(began)
		f.save(began, false)
		return nil
	}
	f.begin(list)
	var errs []error
	dirty := false
	for _, s := range list.Sections {
		took, err := f.take(ctx, s, began)
		dirty = dirty || took
		errs = append(errs, err)
	}
	err = errors.Join(errs...)
	if err == nil {
		f.complete(tag)
	}
	f.save(began, dirty)
	return err
}

// request returns the tag for the next request, and how long the server may wait. After an error it answers at once, as
// something in between may end requests that wait; and each section is confirmed several times within its life.
func (f *Follower) request() (tag string, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if wait = f.cfg.Wait; f.failing {
		wait = 0
	}
	for _, h := range f.sections {
		if h.content != nil {
			wait = min(wait, h.Lifetime()/3)
		}
	}
	return f.tag, wait
}

// begin notes which sections the server has. All are requested again until complete is called.
func (f *Follower) begin(l directive.List) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tag, f.listed = "", map[string]bool{}
	for _, s := range l.Sections {
		f.listed[s.Name] = true
	}
	maps.DeleteFunc(f.rejected, func(name string, _ rejection) bool { return !f.listed[name] })
}

// complete notes the tag of a list that was taken as a whole.
func (f *Follower) complete(tag string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, h := range f.sections {
		if _, rejected := f.rejected[name]; f.listed[name] && h.content == nil && !rejected {
			return // it expired meanwhile
		}
	}
	f.tag = tag
}

// take takes a section if it is not outdated. It returns whether something changed that belongs on disk.
func (f *Follower) take(ctx context.Context, s directive.Section, now batch.Clock) (changed bool, err error) {
	if done, changed := f.judge(s, now); done {
		return changed, nil
	}
	content, err := f.fetch(ctx, s)
	if err != nil {
		return false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.apply[s.Name](content); err != nil {
		f.reject(s.Name, rejection{why: err.Error()})
		return false, nil
	}
	f.sections[s.Name] = &held{s, content, now.Boottime + int64(s.Lifetime())}
	delete(f.rejected, s.Name)
	f.log.Info("directive taken", "section", s.Name, "epoch", s.Epoch, "bytes", len(content))
	return true, nil
}

// judge refuses a section, or confirms that its content holds. If it does neither, done is false. changed says that something
// changed that belongs on disk.
func (f *Follower) judge(s directive.Section, now batch.Clock) (done, changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.sections[s.Name]
	switch {
	case f.apply[s.Name] == nil:
		f.reject(s.Name, rejection{why: "this program does not know it"})
		return true, false
	case old == nil:
		return false, false
	case s.Epoch < old.Epoch && !old.isForgotten(now):
		f.reject(s.Name, rejection{why: fmt.Sprintf("epoch %d is older than %d, which was taken: the server is outdated", s.Epoch, old.Epoch), outdated: true})
		return true, false
	case old.Hash == s.Hash && old.content != nil:
		delete(f.rejected, s.Name)
		changed = old.Section != s
		old.Section, old.until = s, now.Boottime+int64(s.Lifetime())
		return true, changed
	}
	return false, false
}

// isForgotten reports whether a section expired so long ago that its epoch does not count any more: a clock that was far ahead
// once would otherwise refuse each later epoch for as long.
func (h *held) isForgotten(now batch.Clock) bool {
	return h.content == nil && now.Boottime-h.until > int64(h.Lifetime())
}

// fetch returns the content of a section.
func (f *Follower) fetch(ctx context.Context, s directive.Section) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	content, err := f.server.Section(ctx, s.Hash)
	if err == nil && directive.HashOf(content) != s.Hash {
		err = fmt.Errorf("the content has another hash: %w", fault.ErrUnavailable)
	}
	if err != nil {
		return nil, fmt.Errorf("section %s: %w", s.Name, err)
	}
	return content, nil
}

// A rejection is why a section is not followed.
type rejection struct {
	why      string
	outdated bool // the server has not what another one has: it may get it soon
}

// maxWhy is how many bytes of a reason are kept: a server chooses some of them.
const maxWhy = 200

// reject notes that a section is not followed. The previous one holds until it expires. The caller holds mu.
func (f *Follower) reject(name string, r rejection) {
	r.why = text.Cut(r.why, maxWhy)
	if f.rejected[name] != r {
		level := slog.LevelWarn
		if r.outdated {
			level = slog.LevelInfo
		}
		f.log.Log(context.Background(), level, "directive refused", "section", name, "why", r.why)
	}
	f.rejected[name] = r
}

// Rejected returns the names of the sections that this program cannot follow, sorted.
func (f *Follower) Rejected() (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, r := range f.rejected {
		if !r.outdated {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// confirm extends what holds: the server had the same list.
func (f *Follower) confirm(now batch.Clock) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, h := range f.sections {
		if _, rejected := f.rejected[name]; h.content != nil && !rejected && f.listed[name] {
			h.until = now.Boottime + int64(h.Lifetime())
		}
	}
}

// expireUntil ends sections that expire, until ctx ends.
func (f *Follower) expireUntil(ctx context.Context) {
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		if now, err := f.clock(); err == nil {
			f.expire(now)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
