package attribute_test

import (
	"math/rand/v2"
	"testing"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A container is what an agent sees of a machine of which it sees a part: the container's own
// groups, and the machine's idle time.
type container struct {
	t            *testing.T
	acc          *attribute.Accounts
	v            recordLog
	w            usage.Window
	at, cpu      int64            // of the container
	idle, system int64            // booked
	quality      [2]usage.Quality // of system and of idle
}

func (c *container) tick(root uint64, elapsed, cpu, idle int64) usage.Balance {
	c.t.Helper()
	c.at, c.cpu = c.at+elapsed, cpu
	g := &usage.Group{Slot: 0, Parent: usage.NoSlot, Life: workload.Life{ID: root}, Workload: workload.Workload{ID: "s", Kind: workload.System}}
	g.Put(usage.CPU, cpu)
	s := &usage.Snapshot{Boot: "b", At: c.at, Mono: c.at, Groups: []*usage.Group{g},
		Node: usage.Node{CPUs: 2, MemTotal: 10, MemFree: 5, Idle: idle, Partial: true}}
	b := c.acc.Tick(s)
	if !b.IsBalanced(usage.CPU) {
		c.t.Errorf("the parts do not sum to the whole: %+v", b)
	}
	c.acc.CloseWindow(&c.w)
	if c.w.Balance.Violations > 0 {
		c.t.Errorf("%d violations", c.w.Balance.Violations)
	}
	c.idle += b.Idle.Get(usage.CPU)
	c.system += b.System.Get(usage.CPU)
	for _, r := range c.w.Rows {
		switch q := r.Usage.Quality.Get(usage.CPU); r.Workload.Kind {
		case workload.System:
			c.quality[0] = q
		case workload.Idle:
			c.quality[1] = q
		}
	}
	return b
}

// Use that an agent in a container cannot see counts for system: the idle time of the kernel alone is
// idle, also after the agent was away.
func TestPartial(t *testing.T) {
	c := &container{t: t, acc: attribute.New("n")}
	c.tick(7, second, 5*second, 100*second)
	// In a second of two CPUs the container used 0.2 s, and the machine was idle for 0.5 s.
	c.tick(7, second, 5*second+second/5, 100*second+second/2)
	if c.system != second*3/2 || c.idle != second/2 || c.quality != [2]usage.Quality{usage.Apportioned, usage.Apportioned} {
		t.Errorf("system %d ns, idle %d, %v; want 1.5 s and 0.5 s, both apportioned", c.system, c.idle, c.quality)
	}
	c.v.save(c.acc, true)
	c.acc = c.v.restore(t)
	c.system, c.idle = 0, 0
	b := c.tick(7, 10*second, 6*second, 108*second)
	if want := second * 15 / 2; c.idle != want || b.Whole.Get(usage.CPU) != 20*second {
		t.Errorf("over a pause: idle %d ns of %d, want %d", c.idle, b.Whole.Get(usage.CPU), want)
	}
}

// The kernel shows idle time in steps: over time idle is what it shows, however the ticks fall.
func TestPartialSteps(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	c := &container{t: t, acc: attribute.New("n")}
	idle, cpu := 50*second, int64(0)
	c.tick(7, second, 0, idle)
	for i := range 1000 {
		used := rnd.Int64N(second / 2)
		outside := rnd.Int64N(second) * int64(i%2)
		cpu, idle = cpu+used, idle+2*second-used-outside
		c.tick(7, second, cpu, idle/10_000_000*10_000_000)
	}
	if off := c.idle - (idle - 50*second); off > 40_000_000 || off < -40_000_000 {
		t.Errorf("idle %d ns, the kernel shows %d", c.idle, idle-50*second)
	}
}

// An agent whose container was replaced, or that sees more of the machine than before, starts
// over: what the groups used before is not booked to the pause.
func TestOtherGroups(t *testing.T) {
	c := &container{t: t, acc: attribute.New("n")}
	c.tick(7, second, 5*second, 100*second)
	c.tick(7, second, 6*second, 101*second)
	c.v.save(c.acc, true)
	c.acc = c.v.restore(t)
	b := c.tick(1, 5*second, 90*second, 102*second)
	if b != (usage.Balance{}) {
		t.Errorf("booked %+v for a time in which other groups were seen", b)
	}
	if len(c.w.Gaps) != 1 || c.w.Gaps[0].Reason != usage.StateLost || c.w.Gaps[0].To.Sub(c.w.Gaps[0].From) != 5e9 {
		t.Errorf("gaps %+v, want the time in which other groups were seen", c.w.Gaps)
	}
	if b := c.tick(1, second, 91*second, 102*second); b.System.Get(usage.CPU) != 2*second {
		t.Errorf("afterwards: %+v, want 2 s of system", b)
	}
}

// A checkpoint of a version that knew no idle time does not say what was idle during the pause: then
// nothing that the container cannot see counts for system.
func TestPartialResumedFromOlder(t *testing.T) {
	c := &container{t: t, acc: attribute.New("n")}
	c.tick(7, second, 5*second, 0)
	c.v.save(c.acc, true)
	c.acc = c.v.restore(t)
	c.tick(7, 10*second, 6*second, 100*second)
	if c.system != second || c.idle != 19*second {
		t.Errorf("over a pause: system %d ns, idle %d; want 1 s of the container, and 19 s", c.system, c.idle)
	}
	c.tick(7, second, 6*second, 101*second)
	if c.system != 2*second || c.idle != 20*second {
		t.Errorf("a second later: system %d ns, idle %d; want 2 s and 20 s", c.system, c.idle)
	}
}

// Of the CPU time that an agent in a container cannot see, what was booked to system too early is made
// up exactly, up to two steps of each CPU.
func TestPartialMadeUp(t *testing.T) {
	const ms = second / 1000
	acc := attribute.New("n")
	at, cpu, idle := second, int64(0), 500*second
	for i, c := range []struct{ used, idle, want int64 }{
		{0, 2000, 0},
		{400, 1500, 500}, // of 2 s
		{400, 1600, 400}, // neither more nor less than there was
		{0, 2030, 0},     // 30 ms too much
		{0, 1900, 70},    // are made up
		{0, 2100, 0},     // 100 ms too much: 40 of them count
		{0, 1930, 30},    // and are made up
		{0, 1999, 1},     // nothing is left of them
		{100, -50, 2000}, // it went back
		{0, 2000, 0},
	} {
		at, cpu, idle = at+second, cpu+c.used*ms, idle+c.idle*ms
		g := &usage.Group{Parent: usage.NoSlot, Life: workload.Life{ID: 7}}
		g.Put(usage.CPU, cpu)
		g.Put(usage.CPUUser, cpu/4)
		g.Put(usage.CPUSystem, cpu/4)
		b := acc.Tick(&usage.Snapshot{Boot: "b", At: at, Mono: at, Groups: []*usage.Group{g}, Node: usage.Node{CPUs: 2, MemTotal: 10, MemFree: 5, Idle: idle, Partial: true}})
		if i == 0 {
			continue // counting begins
		}
		u, _ := acc.Share(usage.Root)
		if got := b.System.Get(usage.CPU); got != c.want*ms || !b.IsBalanced(usage.CPU) || u.Amount[usage.CPUUser]+u.Amount[usage.CPUSystem] != got {
			t.Errorf("tick %d: system has %d ns, %d and %d of them user and system time; want %d ms", i, got, u.Amount[usage.CPUUser], u.Amount[usage.CPUSystem], c.want)
		}
	}
}

// A root group is another one if both have an id of the kernel, and these differ.
func TestOtherRoots(t *testing.T) {
	const fake = 1 << 63
	for _, c := range []struct {
		before, now uint64
		other       bool
	}{{1, 7, true}, {7, 7, false}, {0, 7, false}, {7, fake, false}, {fake, 7, false}, {7, fake - 1, true}} {
		p := &container{t: t, acc: attribute.New("n")}
		p.tick(c.before, second, 5*second, 100*second)
		p.v.save(p.acc, true)
		p.acc = p.v.restore(t)
		p.tick(c.now, second, 6*second, 101*second)
		if other := p.w.StartReason == usage.StartFirst; other != c.other {
			t.Errorf("id %d after %d: other groups %v, want %v", c.now, c.before, other, c.other)
		}
	}
}
