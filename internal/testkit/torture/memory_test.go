package torture

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
)

// Memory: groups that hold a known amount while nobody is in them. It is charged
// to the group in which it is touched first, and stays charged there when the
// process has left. From then on a group's usage does not grow, and falls only by
// what the kernel charged ahead.

// A hold is a life of a group that holds memory.
type hold struct {
	path         string
	made, filled time.Time // before it was made, and after it was filled
	ended, gone  time.Time // before and after it was removed
	lo, hi       int64     // the least that it held from filled to ended, and the most at all
}

// held is groups that hold memory from before the first agent began until after
// the last one ended.
type held struct {
	f      *fleet
	mount  string // of the hierarchy that charges memory
	top    string
	groups []*hold

	stop    chan struct{}
	once    sync.Once
	running sync.WaitGroup
	failed  error
}

// newHeld makes three such groups. They stand beside the fleet, as what they used
// before the first agent began is not booked.
func newHeld(t *testing.T, f *fleet) *held {
	h := &held{f: f, mount: chargesMemory(t), top: fmt.Sprintf("/mete-test-held-%d", os.Getpid()), stop: make(chan struct{})}
	t.Cleanup(func() { removeBelow(t, f.mounts, h.top) })
	f.mustMake(t, h.top)
	f.mustMake(t, h.top+"/home")
	w := &worker{f: f, id: -1}
	w.open(t, h.top+"/home")
	t.Cleanup(func() {
		h.end()
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	for i := range 3 {
		one := &hold{path: fmt.Sprintf("%s/h%d", h.top, i), lo: math.MaxInt64}
		f.mustMake(t, one.path)
		if err := w.do(order{Group: one.path, Hold: (i + 1) * 5 << 20}); err != nil {
			t.Fatal(err)
		}
		h.groups = append(h.groups, one)
	}
	return h
}

// begin looks at the groups until end is called. By then what the kernel had
// charged ahead is mostly given back, so that least and most are close.
func (h *held) begin() {
	h.running.Go(func() {
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			for _, one := range h.groups {
				h.failed = errors.Join(h.failed, h.look(one))
			}
			select {
			case <-h.stop:
				return
			case <-tick.C:
			}
		}
	})
}

// end stops looking at the groups.
func (h *held) end() {
	h.once.Do(func() { close(h.stop) })
	h.running.Wait()
}

// look reads what a group holds.
func (h *held) look(one *hold) error {
	now, err := h.number(one.path, "memory.usage_in_bytes")
	one.lo, one.hi = min(one.lo, now), max(one.hi, now)
	return err
}

func (h *held) number(group, file string) (int64, error) {
	b, err := os.ReadFile(filepath.Join(h.mount+group, file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// chargesMemory finds the hierarchy that charges memory.
func chargesMemory(t *testing.T) string {
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }() // it was only read
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, y := range ys {
		if !y.V2 && y.Has("memory") {
			return y.Mount
		}
	}
	t.Fatal("no hierarchy of version 1 charges memory")
	return ""
}

// touch takes so many bytes of memory, in pages that stay as they are.
func touch(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	// A huge page would be charged to where the process is when it is made.
	if err := unix.Madvise(b, unix.MADV_NOHUGEPAGE); err != nil {
		return nil, err
	}
	for i := 0; i < n; i += os.Getpagesize() {
		b[i] = 1
	}
	return b, nil
}

// keep makes groups that hold memory for some seconds, and removes them.
func (w *worker) keep() error {
	var alive []*hold
	until := map[*hold]time.Time{}
	for {
		last := false
		select {
		case <-w.f.stop:
			last = true
		case <-time.After(time.Duration(20+w.rnd.IntN(100)) * time.Millisecond):
		}
		for i := len(alive) - 1; i >= 0; i-- {
			one := alive[i]
			if err := w.f.held.look(one); err != nil {
				return err
			}
			if !last && time.Now().Before(until[one]) {
				continue
			}
			if err := w.release(one); err != nil {
				return err
			}
			alive = append(alive[:i], alive[i+1:]...)
		}
		if last {
			return nil
		}
		if len(alive) == 4 {
			continue
		}
		one, err := w.take()
		if err != nil {
			return err
		}
		alive = append(alive, one)
		until[one] = one.filled.Add(time.Duration(300+w.rnd.IntN(7000)) * time.Millisecond)
	}
}

// take makes a group and has it hold memory.
func (w *worker) take() (*hold, error) {
	w.made++
	one := &hold{path: fmt.Sprintf("%s/k%d", w.f.parents[w.rnd.IntN(len(w.f.parents))], w.made), made: time.Now(), lo: math.MaxInt64}
	if err := w.f.make(one.path); err != nil {
		return nil, err
	}
	w.f.born()
	err := w.do(order{Group: one.path, Hold: (1 + w.rnd.IntN(1000)) * 4 << 10})
	one.filled = time.Now()
	return one, err
}

// release removes a group that holds memory, and then gives that back.
func (w *worker) release(one *hold) (err error) {
	// In a life of a second or two it shows what the kernel charged ahead.
	if one.hi, err = w.f.held.number(one.path, "memory.max_usage_in_bytes"); err != nil {
		return err
	}
	one.ended = time.Now()
	if err := w.f.bury(one.path); err != nil {
		return err
	}
	one.gone = time.Now()
	w.f.mu.Lock()
	w.f.holds = append(w.f.holds, one)
	w.f.mu.Unlock()
	return w.do(order{Group: one.path, Free: true})
}

// remembered is what the ledger has of a group's memory.
type remembered struct {
	byteS   int64 // byte-seconds
	covered time.Duration
	peak    int64
	rough   bool // some of it is not measured
}

// longTick is the longest time between two readings that counts as read: four
// of the agent's ticks. What is longer is not covered.
const longTick = 400 * time.Millisecond

// memory compares memory over time by group: what a group held is between the
// least and the most that its own usage showed, over the time that is covered,
// and what is not covered is flagged.
func (c *checker) memory(away []span) {
	c.fleet.held.end()
	c.must(c.fleet.held.failed)
	sums := map[string]remembered{}
	c.rows(func(scan func(...any) error) {
		var path string
		var ms int64
		var rough int
		var m remembered
		_ = scan(&path, &m.byteS, &ms, &m.peak, &rough)
		m.covered, m.rough = time.Duration(ms)*time.Millisecond, rough > 0
		sums[path] = m
	}, fmt.Sprintf("SELECT w.path, CAST(sum(m.memory) AS bigint), CAST(sum(m.covered_ms) AS bigint), max(m.memory_peak), max((m.rough >> %d) & 3) FROM %s JOIN workload w ON w.id = m.workload WHERE w.path LIKE '/mete-test-%%' GROUP BY w.path",
		2*usage.Memory, c.all("")))

	// How long there are windows of, by the machine's memory, which is the same
	// all the time: to the nanosecond, where milliseconds are rounded.
	total, err := memTotal()
	c.must(err)
	span := float64(c.sum1("SELECT CAST(sum(whole_memory) AS bigint) FROM "+c.all("node_"))) / float64(total)
	length := time.Duration(span * 1e9)
	covered := time.Duration(c.sum1("SELECT CAST(sum(m.covered_ms) AS bigint) FROM "+c.all("")+" JOIN workload w ON w.id = m.workload WHERE w.kind = 'idle'")) * time.Millisecond
	gone := time.Duration(c.sum1("SELECT CAST(coalesce(sum(to_ns - from_ns), 0) AS bigint) FROM gap WHERE reason = '" + usage.Unwatched.String() + "'"))
	// Each part of a window is rounded to a millisecond, and each gap is as long
	// as the wall clock says.
	rounding := time.Duration(len(c.minutes)*60+int(span*2)) * time.Millisecond
	slow := length - gone - covered // ticks that came late
	c.t.Logf("memory: %v in windows, %v of it covered, in %d gaps %v, in late ticks %v", length, covered, len(away), gone, slow)
	if margin := rounding + time.Duration(len(away))*c.slack(); slow < -margin {
		c.t.Errorf("%v are covered, of %v less %v in gaps: too much by %v", covered, length, gone, -slow)
	}
	// Averages are over what is booked, an agent's absence included.
	if over := time.Duration(c.sum1("SELECT CAST(sum(covered_ms) AS bigint) FROM "+c.all("node_"))) * time.Millisecond; (over - length).Abs() > rounding {
		c.t.Errorf("averages are over %v, there are windows of %v", over, length)
	}
	slow = max(0, slow) + rounding
	for _, one := range c.fleet.held.groups {
		m, ok := sums[one.path]
		// The agent carries what is below a byte-second along.
		lo, hi := int64(float64(one.lo)*span)-2, int64(float64(one.hi)*span)+2
		if !ok || m.byteS < lo || m.byteS > hi {
			c.t.Errorf("%s: %d byte-seconds are booked; it held %d to %d bytes for %v: %d to %d", one.path, m.byteS, one.lo, one.hi, length, lo, hi)
		}
		if (m.covered - covered).Abs() > rounding {
			c.t.Errorf("%s: %v are covered, of the machine %v", one.path, m.covered, covered)
		}
		if m.rough != (len(away) > 0) {
			c.t.Errorf("%s: it is flagged: %v; there are %d gaps", one.path, m.rough, len(away))
		}
		if m.peak < one.lo || m.peak > one.hi {
			c.t.Errorf("%s: the peak is %d, it held %d to %d bytes", one.path, m.peak, one.lo, one.hi)
		}
	}
	c.holds(sums, away, slow)
}

// holds compares the groups that lived for a while. slow is how long in all the
// agents were late.
func (c *checker) holds(sums map[string]remembered, away []span, slow time.Duration) {
	slack := c.slack()
	clear, bad := 0, 0
	for _, one := range c.fleet.holds {
		m := sums[one.path]
		life, full := one.gone.Sub(one.made), one.ended.Sub(one.filled)
		// In a gap it is known only if it was seen before and after, full.
		var unknown time.Duration
		touched := false
		for _, s := range away {
			from, to := s.from.Add(-slack), s.to.Add(slack)
			touched = touched || one.gone.After(from) && one.made.Before(to)
			if from.Before(one.filled) || to.After(one.ended) {
				unknown += overlap(from, to, one.filled, one.ended)
			}
		}
		if !touched {
			clear++
		}
		// The first tick and the last are booked by half, wherever in them it
		// began and ended.
		atMost := seconds(one.hi, life+longTick+slow) + 2
		atLeast := max(seconds(one.lo, full-unknown-2*longTick-slow), seconds(one.lo, min(full, m.covered)-2*longTick)) - 2
		covers := full - overlaps(away, one.filled, one.ended, slack) - 2*longTick - slow
		if c.lost {
			atLeast, covers = 0, 0
		}
		switch {
		case m.byteS > atMost || m.byteS < atLeast:
			c.t.Errorf("%s: %d byte-seconds are booked; it held %d to %d bytes, in full for %v of %v, of which %v are not known: %d to %d (%+v)",
				one.path, m.byteS, one.lo, one.hi, full, life, unknown, atLeast, atMost, m)
		case m.covered < covers || m.covered > life+2*longTick+slow:
			c.t.Errorf("%s: %v are covered, it held memory for %v in full and %v in all", one.path, m.covered, full, life)
		case m.peak > one.hi || m.peak < one.lo && atLeast > 0:
			c.t.Errorf("%s: the peak is %d; it held %d to %d bytes", one.path, m.peak, one.lo, one.hi)
		case m.rough && !touched:
			c.t.Errorf("%s: it is flagged, and lived while an agent looked", one.path)
		default:
			continue
		}
		if bad++; bad == 20 {
			break
		}
	}
	c.t.Logf("memory: %d groups held some for a while, %d of them all while an agent looked", len(c.fleet.holds), clear)
	if len(c.fleet.holds) < 10 && !c.v.clock {
		c.t.Error("too few to judge by")
	}
}

// seconds is bytes held for so long.
func seconds(bytes int64, d time.Duration) int64 { return int64(float64(bytes) * d.Seconds()) }

func overlap(from, to, a, b time.Time) time.Duration {
	if from.Before(a) {
		from = a
	}
	if to.After(b) {
		to = b
	}
	return max(0, to.Sub(from))
}

// overlaps is how much of a span others take.
func overlaps(spans []span, from, to time.Time, slack time.Duration) (sum time.Duration) {
	for _, s := range spans {
		sum += overlap(s.from.Add(-slack), s.to.Add(slack), from, to)
	}
	return sum
}

// memTotal is the machine's memory in bytes.
func memTotal() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	var kb int64
	_, err = fmt.Sscanf(string(b), "MemTotal: %d kB", &kb)
	return kb << 10, err
}
