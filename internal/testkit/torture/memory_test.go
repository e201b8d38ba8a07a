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

// Memory: groups that hold a known amount without processes. The kernel charges memory to the
// group in which it is touched first, also after the process has left. From then on the
// group's usage does not grow, and falls only by what the kernel charged in advance.

// A hold is the life of a group that holds memory.
type hold struct {
	path         string
	made, filled time.Time // before its creation, and after it was filled
	ended, gone  time.Time // before and after its removal
	lo, hi       int64     // least usage from filled to ended, and most at any time
}

// held are groups that hold memory from before the first agent's start until after the last
// one's end.
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

// newHeld creates three such groups. They are outside the fleet, because their use before the
// first agent's start is not booked.
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

// begin reads the groups' usage until end is called. The kernel has mostly released what it
// charged in advance before begin, so that lo and hi are close.
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

// end stops reading.
func (h *held) end() {
	h.once.Do(func() { close(h.stop) })
	h.running.Wait()
}

// look reads the usage of a group.
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
	defer func() { _ = h.Close() }() // only read
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

// touch allocates n bytes of memory and touches each page.
func touch(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	// A huge page would be charged to the group of the process at its creation.
	if err := unix.Madvise(b, unix.MADV_NOHUGEPAGE); err != nil {
		return nil, err
	}
	for i := 0; i < n; i += os.Getpagesize() {
		b[i] = 1
	}
	return b, nil
}

// keep creates groups that hold memory for some seconds, and removes them.
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

// take creates a group that holds memory.
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

// release removes a group that holds memory, and then frees the memory.
func (w *worker) release(one *hold) (err error) {
	// In a short life the maximum includes what the kernel charged in advance.
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

// remembered is the ledger's record of a group's memory.
type remembered struct {
	byteS   int64 // byte-seconds
	covered time.Duration
	peak    int64
	rough   bool // some of it is not measured
}

// longTick is the longest time between two readings that counts as covered: four of the
// agent's ticks.
const longTick = 400 * time.Millisecond

// memory compares memory over time by group: the booked integral lies between the least and
// the most usage times the covered time, and time that is not covered is flagged.
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

	// The total length of windows follows from the machine's memory, which is constant: to
	// the nanosecond, unlike the rounded milliseconds.
	total, err := memTotal()
	c.must(err)
	span := float64(c.sum1("SELECT CAST(sum(whole_memory) AS bigint) FROM "+c.all("node_"))) / float64(total)
	length := time.Duration(span * 1e9)
	covered := time.Duration(c.sum1("SELECT CAST(sum(m.covered_ms) AS bigint) FROM "+c.all("")+" JOIN workload w ON w.id = m.workload WHERE w.kind = 'idle'")) * time.Millisecond
	gone := time.Duration(c.sum1("SELECT CAST(coalesce(sum(to_ns - from_ns), 0) AS bigint) FROM gap WHERE reason = '" + usage.Unwatched.String() + "'"))
	// Parts of windows are rounded to milliseconds, and the length of gaps depends on the wall
	// clock.
	rounding := time.Duration(len(c.minutes)*60+int(span*2)) * time.Millisecond
	slow := length - gone - covered // ticks that came late
	c.t.Logf("memory: %v in windows, %v of it covered, %d gaps of %v, %v in late ticks", length, covered, len(away), gone, slow)
	if margin := rounding + time.Duration(len(away))*c.slack(); slow < -margin {
		c.t.Errorf("%v covered, but windows of %v less gaps of %v are shorter by %v", covered, length, gone, -slow)
	}
	// Averages are over all booked time, including gaps.
	if over := time.Duration(c.sum1("SELECT CAST(sum(covered_ms) AS bigint) FROM "+c.all("node_"))) * time.Millisecond; (over - length).Abs() > rounding {
		c.t.Errorf("averages are over %v, windows over %v", over, length)
	}
	slow = max(0, slow) + rounding
	for _, one := range c.fleet.held.groups {
		m, ok := sums[one.path]
		// The agent carries fractions of a byte-second over to later windows.
		lo, hi := int64(float64(one.lo)*span)-2, int64(float64(one.hi)*span)+2
		if !ok || m.byteS < lo || m.byteS > hi {
			c.t.Errorf("%s: %d byte-seconds booked; it held %d to %d bytes for %v: want %d to %d", one.path, m.byteS, one.lo, one.hi, length, lo, hi)
		}
		if (m.covered - covered).Abs() > rounding {
			c.t.Errorf("%s: %v covered, of the machine %v", one.path, m.covered, covered)
		}
		if m.rough != (len(away) > 0) {
			c.t.Errorf("%s: flagged: %v, with %d gaps", one.path, m.rough, len(away))
		}
		if m.peak < one.lo || m.peak > one.hi {
			c.t.Errorf("%s: peak %d, but it held %d to %d bytes", one.path, m.peak, one.lo, one.hi)
		}
	}
	c.holds(sums, away, slow)
}

// holds compares the groups with short lives. slow is the total time of late ticks.
func (c *checker) holds(sums map[string]remembered, away []span, slow time.Duration) {
	slack := c.slack()
	clear, bad := 0, 0
	for _, one := range c.fleet.holds {
		m := sums[one.path]
		life, full := one.gone.Sub(one.made), one.ended.Sub(one.filled)
		// In a gap the memory is known only if agents saw it full before and after.
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
		// Half of the first and of the last tick is booked, wherever in them the life began
		// and ended.
		atMost := seconds(one.hi, life+longTick+slow) + 2
		atLeast := max(seconds(one.lo, full-unknown-2*longTick-slow), seconds(one.lo, min(full, m.covered)-2*longTick)) - 2
		covers := full - overlaps(away, one.filled, one.ended, slack) - 2*longTick - slow
		if c.lost {
			atLeast, covers = 0, 0
		}
		switch {
		case m.byteS > atMost || m.byteS < atLeast:
			c.t.Errorf("%s: %d byte-seconds booked; it held %d to %d bytes, in full for %v of %v, of which %v are unknown: want %d to %d (%+v)",
				one.path, m.byteS, one.lo, one.hi, full, life, unknown, atLeast, atMost, m)
		case m.covered < covers || m.covered > life+2*longTick+slow:
			c.t.Errorf("%s: %v covered, but it held memory for %v in full and %v in total", one.path, m.covered, full, life)
		case m.peak > one.hi || m.peak < one.lo && atLeast > 0:
			c.t.Errorf("%s: peak %d; it held %d to %d bytes", one.path, m.peak, one.lo, one.hi)
		case m.rough && !touched:
			c.t.Errorf("%s: flagged, but an agent ran during its life", one.path)
		default:
			continue
		}
		if bad++; bad == 20 {
			break
		}
	}
	c.t.Logf("memory: %d groups held memory, %d of them only while an agent ran", len(c.fleet.holds), clear)
	if len(c.fleet.holds) < 10 && !c.v.clock {
		c.t.Error("too few groups that held memory")
	}
}

// seconds returns the byte-seconds of bytes held for d.
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

// overlaps returns the time from from to to that spans cover.
func overlaps(spans []span, from, to time.Time, slack time.Duration) (sum time.Duration) {
	for _, s := range spans {
		sum += overlap(s.from.Add(-slack), s.to.Add(slack), from, to)
	}
	return sum
}

// memTotal returns the machine's memory in bytes.
func memTotal() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	var kb int64
	_, err = fmt.Sscanf(string(b), "MemTotal: %d kB", &kb)
	return kb << 10, err
}
