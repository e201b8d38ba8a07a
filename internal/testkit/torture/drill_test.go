package torture

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/netfault"
)

// The short form: a list of faults in a fixed order. Each begins after the programs have
// recovered from the previous one, so that a slow machine has the same faults.

// drillSeed seeds the jobs of the short form.
const drillSeed = 1

var drills = []struct {
	variant
	list func(*drill)
}{
	{variant{name: "short-bpf", reader: "bpf", drill: true}, (*drill).oneServer},
	{variant{name: "short-upstream-files", reader: "files", drill: true, upstream: true}, (*drill).twoServers},
	{variant{name: "short-again-bpf", reader: "bpf", drill: true, again: true}, (*drill).measuredAgain},
}

// TestTortureShort injects each fault of a list and compares the ledger with the kernel's
// counters of the jobs: no nanosecond is missing or booked twice.
func TestTortureShort(t *testing.T) {
	testkit.Stage(t, "torture-short", "kills real processes for a minute")
	hosttest.Need(t, "root", "cgroup1", "loop", "bpf")
	bin := build(t, false)
	for _, one := range drills {
		t.Run(one.name, func(t *testing.T) {
			d := newDrill(t, one.variant, bin)
			one.list(d)
			d.rest()
			d.check()
		})
	}
}

// A drill is a rig with a fixed list of faults.
type drill struct {
	*rig
	watched  *worker   // its jobs end while an agent runs
	restless []*worker // their jobs run during faults
	exact    map[string]bool
	made     int
	early    string // latest file of batches soon after the oldest copy was made
	forgets  bool   // the syncs of the agent's life are fake
}

// workers returns all workers.
func (d *drill) workers() []*worker { return append([]*worker{d.watched}, d.restless...) }

func newDrill(t *testing.T, v variant, bin string) *drill {
	d := &drill{rig: newRig(t, v, bin, drillSeed), exact: map[string]bool{}}
	d.fleet.disk = "" // jobs use CPU time only
	d.agent.env = func() []string {
		env := []string{"METE_TOKEN=" + d.token, "METE_TORTURE_SEGMENT=6000", "METE_TORTURE_BACKOFF=50ms"}
		if d.forgets {
			env = append(env, "METE_TORTURE_DROP=1")
		}
		return env
	}
	d.began = time.Now()
	d.must(d.server.start(""))
	d.token = d.makeToken(d.server, d.state(), "agent")
	d.must(d.agent.start(""))
	// Use before the first agent's start is not booked.
	d.wait("the agent keeps a window", func() bool { return d.metric("mete_agent_windows_total") > 0 })
	for i := range 3 {
		w := &worker{f: d.fleet, id: i, rnd: rand.New(rand.NewPCG(drillSeed, uint64(i)))}
		w.open(t, d.fleet.home())
		d.restless = append(d.restless, w)
		t.Cleanup(func() { _ = w.close() }) // in case the test fails
	}
	d.watched, d.restless = d.restless[0], d.restless[1:]
	if v.again {
		d.course = d.observe(t)
	}
	d.recover("the start")
	return d
}

// wait waits for a condition. Meanwhile programs may die only at failpoints.
func (d *drill) wait(what string, ok func() bool) {
	d.t.Helper()
	testkit.Eventually(d.t, what, func() bool {
		for _, c := range d.children() {
			if c.armed == "" && c.look() {
				d.t.Fatalf("the %s ended without a fault while waiting for: %s\n%s", c.name, what, c.tail())
			}
		}
		return ok()
	})
}

// live begins the next life of a program, which ends at a failpoint or, if point is "", when
// it is killed.
func (d *drill) live(c *child, point string) {
	d.t.Helper()
	if c == d.agent {
		d.forgets = !d.forgets && !strings.Contains(point, "merged")
	}
	if c == d.agent {
		d.down = append(d.down, span{c.ended, time.Now()})
	}
	d.must(c.start(point))
}

// kill ends a program with a signal.
func (d *drill) kill(c *child, sig syscall.Signal) {
	d.t.Helper()
	d.faults[c.name+" "+sig.String()]++
	c.kill(sig)
	d.dead(c)
}

// dead completes the fake syncs of an ended agent.
func (d *drill) dead(c *child) {
	if c == d.agent && d.forgets {
		d.must(d.stores[c].sync())
	}
}

// amid runs jobs during a fault.
func (d *drill) amid(fault func()) {
	d.t.Helper()
	var running sync.WaitGroup
	failed := make([]error, len(d.restless))
	for i, w := range d.restless {
		running.Go(func() {
			for range 6 {
				if failed[i] = w.act(); failed[i] != nil {
					return
				}
			}
		})
	}
	defer func() {
		running.Wait()
		for _, err := range failed {
			d.must(err)
		}
	}()
	fault()
}

// recover starts all programs, and waits until the agent stores windows and the server
// accepts them. Jobs that run meanwhile must be exact by path.
func (d *drill) recover(after string) {
	d.t.Helper()
	d.proxy.Set(netfault.Conditions{})
	for _, s := range d.stores {
		d.must(s.empty())
	}
	for _, c := range d.children() {
		if !c.up {
			d.live(c, "")
		}
	}
	d.wait("the agent keeps windows after "+after, func() bool { return d.metric("mete_agent_windows_total") > 0 })
	d.job(3)
	told, err := marks(d.readOnly())
	windows, sent := d.metric("mete_agent_windows_total"), d.metric("mete_agent_sent_batches_total")
	d.wait("the server takes windows after "+after, func() bool {
		return d.metric("mete_agent_windows_total") >= windows+2 && d.metric("mete_agent_sent_batches_total") > sent &&
			d.metric("mete_agent_connected") == 1
	})
	// The server has continued since the marks were read, so they are durable.
	if err == nil && !d.v.postgres {
		for stream, next := range told {
			d.told[stream] = max(d.told[stream], next)
		}
	}
	d.t.Logf("%v: %s", time.Since(d.began).Round(100*time.Millisecond), after)
}

// job runs n jobs in sequence, each in its own group. recover waits until the agent has stored
// a window that ends after them.
func (d *drill) job(n int) {
	d.t.Helper()
	for i := range n {
		group := d.bear(d.fleet.parents[i%len(d.fleet.parents)])
		d.must(d.fleet.bury(group))
		d.exact[group] = true
	}
}

// bear creates the group of a job and uses CPU time in it.
func (d *drill) bear(below string) (group string) {
	d.t.Helper()
	d.made++
	group = fmt.Sprintf("%s/job%d", below, d.made)
	d.must(d.fleet.make(group))
	d.must(d.watched.do(order{Group: group, CPU: time.Duration(1+d.made%9) * time.Millisecond}))
	return group
}

// crash makes a program die at a visit of a failpoint.
func (d *drill) crash(c *child, point string, visit int) {
	d.t.Helper()
	d.kill(c, syscall.SIGKILL)
	d.armed(c, fmt.Sprintf("%s@%d", point, visit))
	d.recover(point)
}

// armed begins a life of a program and waits for its end at a failpoint.
func (d *drill) armed(c *child, point string) {
	d.t.Helper()
	d.amid(func() {
		d.live(c, point)
		d.wait("the "+c.name+" dies at "+point, c.look)
	})
	d.dies(c, point)
}

// dies checks that a program died at its failpoint.
func (d *drill) dies(c *child, point string) {
	d.t.Helper()
	name, _, _ := strings.Cut(point, "@")
	if c.armed != point || c.hits()[name] == 0 {
		d.t.Fatalf("the %s ended elsewhere than at %s\n%s", c.name, point, c.tail())
	}
	d.faults["crash"]++
	d.dead(c)
}

// away runs jobs while no agent runs: one begins and ends, one ends that began before, and one
// begins that ends later.
func (d *drill) away(sig syscall.Signal) {
	d.t.Helper()
	old := d.bear(d.fleet.parents[0])
	d.recover("a job began")
	d.amid(func() {
		d.kill(d.agent, sig)
		short, next := d.bear(d.fleet.parents[1]), d.bear(d.fleet.parents[2])
		d.must(d.watched.do(order{Group: old, CPU: time.Millisecond}))
		d.must(d.fleet.bury(short))
		d.must(d.fleet.bury(old))
		d.live(d.agent, "")
		d.wait("the agent keeps windows", func() bool { return d.metric("mete_agent_windows_total") > 0 })
		d.must(d.fleet.bury(next))
		d.exact[next] = true
	})
	d.recover("agent " + sig.String())
}

// blackout kills a program and cuts the power of its disk.
func (d *drill) blackout(c *child) {
	d.t.Helper()
	if d.forgets && c == d.agent {
		// The syncs of this life are fake.
		d.kill(c, syscall.SIGKILL)
		d.recover("agent killed")
	}
	d.amid(func() { d.kill(c, syscall.SIGKILL) })
	d.power(c)
	d.recover(c.name + " power")
}

// waiting waits until n windows wait in the agent's spool.
func (d *drill) waiting(n float64) {
	d.t.Helper()
	d.wait("windows wait at the agent", func() bool { return d.metric("mete_agent_spool_windows") >= n })
}

// network injects each fault of the network.
func (d *drill) network() {
	d.t.Helper()
	d.amid(func() {
		d.proxy.Set(netfault.Conditions{Silent: true})
		d.waiting(2)
		d.proxy.Set(netfault.Conditions{Down: true}) // drops the data in flight
	})
	d.recover("connection cut")
	d.amid(func() {
		d.proxy.Set(netfault.Conditions{Silent: true})
		d.waiting(2)
	})
	d.recover("silence")
	for what, w := range map[string]netfault.Conditions{"answers lost": {Lose: 1}, "requests repeated": {Repeat: 1}} {
		before := d.proxy.Stats()
		d.proxy.Set(w)
		d.proxy.CutAll()
		d.wait(what, func() bool {
			now := d.proxy.Stats()
			if w.Repeat > 0 {
				d.proxy.CutAll() // the proxy repeats a connection at its end
			}
			return now.Lost >= before.Lost+2 && w.Lose > 0 || now.Repeated >= before.Repeated+2 && w.Repeat > 0
		})
		d.recover(what)
	}
	d.faults["network"] += 4
}

// merge kills the agent after it merged windows that waited during an outage.
func (d *drill) merge() {
	d.t.Helper()
	d.faults["outage"]++
	d.proxy.Set(netfault.Conditions{Down: true})
	d.waiting(10)
	const point = "spool.merged@1"
	d.kill(d.agent, syscall.SIGKILL)
	for died := false; !died; {
		d.live(d.agent, point)
		// It merges at its start, unless there are too few windows.
		more := -1.0
		d.wait("the agent merges windows", func() bool {
			if died = d.agent.look(); died {
				return true
			}
			now := d.metric("mete_agent_windows_total")
			if more < 0 {
				more = now
			}
			return now >= max(more, 0)+4
		})
		if !died {
			d.kill(d.agent, syscall.SIGKILL)
		}
	}
	d.dies(d.agent, point)
	d.recover(point)
}

// full fills the server's disk until it has refused something.
func (d *drill) full() {
	d.t.Helper()
	d.faults["server disk full"]++
	d.must(d.stores[d.server].fill(0))
	retries := d.metric("mete_agent_send_retries_total")
	d.amid(func() {
		d.wait("the server refuses a batch for want of room", func() bool { return d.metric("mete_agent_send_retries_total") > retries })
	})
	d.recover("server disk full")
}

// paused stops a program while jobs run.
func (d *drill) paused(c *child) {
	d.t.Helper()
	d.faults[c.name+" paused"]++
	d.must(c.cmd.Process.Signal(syscall.SIGSTOP))
	d.amid(func() { d.job(2) })
	d.must(c.cmd.Process.Signal(syscall.SIGCONT))
	d.recover(c.name + " paused")
}

// forget fills the agent's disk until the agent deletes the batches that the server had when
// the oldest copy was made.
func (d *drill) forget() {
	d.t.Helper()
	d.faults["agent disk full"]++
	d.amid(func() {
		d.wait("the agent deletes batches for want of room", func() bool {
			d.must(d.stores[d.agent].fill(0)) // also takes the room of deleted batches
			now := d.batches()
			return len(now) > 0 && now[0] > d.early
		})
	})
	d.recover("agent disk full")
}

// batches returns the agent's files of batches, the oldest first.
func (d *drill) batches() []string {
	d.t.Helper()
	names, err := filepath.Glob(filepath.Join(d.disk(), "spool", "*", "batches", "*.seg"))
	d.must(err)
	slices.Sort(names)
	return names
}

// lost runs the server with a copy that lacks batches that the agent has deleted, makes a
// program die when they are reported lost, and restores the rightful state.
func (d *drill) lost(c *child, point string) {
	d.t.Helper()
	d.faults["reign"]++
	d.reign.n++
	d.kill(d.server, syscall.SIGKILL)
	d.kill(d.agent, syscall.SIGKILL)
	d.copy(d.state(), d.rightful())
	d.putBack(d.ancient())
	for _, p := range []*child{d.server, d.agent} {
		if p != c {
			d.live(p, "")
		}
	}
	d.armed(c, point+"@1")
	d.kill(d.server, syscall.SIGKILL)
	d.putBack(d.rightful())
	d.recover(point)
}

// restore runs the server with an older copy of its state, and waits until it has all batches
// again.
func (d *drill) restore() {
	d.t.Helper()
	older := filepath.Join(d.dir, "older")
	d.kill(d.server, syscall.SIGKILL)
	d.copy(d.state(), older)
	d.recover("copy")
	d.faults["restore"]++
	d.amid(func() {
		d.kill(d.server, syscall.SIGKILL)
		d.putBack(older)
		d.live(d.server, "")
		d.wait("the server has all batches again", func() bool {
			now, err := marks(d.readOnly())
			if err == nil {
				d.told = now
			}
			return err == nil && !d.owes()
		})
	})
	d.recover("restore")
}

// oneServer injects the faults of an agent and a server.
func (d *drill) oneServer() {
	d.away(syscall.SIGKILL)
	d.amid(func() { d.kill(d.server, syscall.SIGKILL) })
	d.copy(d.state(), d.ancient())
	d.recover("server killed")
	// The server has accepted more since, so one of these holds the copy's next batch.
	early := d.batches()
	d.early = early[len(early)-1]
	for i, point := range []string{"ship.sent", "spool.written", "spool.window-synced", "spool.batch-synced", "spool.acked"} {
		d.crash(d.agent, point, 1+i%2)
	}
	for i, point := range []string{"ingest.decoded", "ledger.before-commit", "ledger.committed"} {
		d.crash(d.server, point, 2+i%2)
	}
	d.network()
	d.merge()
	d.blackout(d.agent)
	d.blackout(d.server)
	d.full()
	d.paused(d.server)
	d.paused(d.agent)
	d.away(syscall.SIGTERM)
	d.forget()
	d.lost(d.server, "ledger.lost")
	d.lost(d.agent, "ship.lost")
	d.ahead = true
	d.crash(d.server, "ledger.folding", 2)
	d.restore()
	d.blackout(d.server)
	d.restore()
	d.amid(func() {
		d.kill(d.server, syscall.SIGKILL)
		d.kill(d.agent, syscall.SIGKILL)
	})
	d.recover("both killed")
	d.away(syscall.SIGKILL)
}

// twoServers injects the faults between a server and the one above it.
func (d *drill) twoServers() {
	d.crash(d.core, "upstream.before-commit", 1)
	d.crash(d.core, "upstream.committed", 1)
	d.crash(d.server, upPoint, 1)
	d.amid(func() { d.kill(d.core, syscall.SIGKILL) })
	d.recover("core killed")
	d.amid(func() { d.kill(d.server, syscall.SIGKILL) })
	d.recover("server killed")
	d.away(syscall.SIGKILL)
	d.ahead = true
	d.kill(d.core, syscall.SIGKILL)
	d.kill(d.server, syscall.SIGTERM)
	d.recover("core and server killed")
}

// rest ends the jobs and waits until the ledger has all their use.
func (d *drill) rest() {
	for _, w := range d.workers() {
		d.must(w.rest())
		d.must(w.close())
	}
	// An exiting process uses CPU time too, so wait until the counters are stable while the
	// agent runs.
	for before := ""; ; {
		d.recoverAll()
		now := d.counters()
		if now == before {
			return
		}
		before = now
	}
}

// recoverAll waits until the agent has sent all windows so far.
func (d *drill) recoverAll() {
	windows := d.metric("mete_agent_windows_total")
	d.wait("all is sent", func() bool {
		return d.metric("mete_agent_windows_total") >= windows+2 && d.metric("mete_agent_spool_windows") == 0 && d.metric("mete_agent_connected") == 1
	})
}

// counters returns the kernel's counters of all remaining groups.
func (d *drill) counters() string {
	var b strings.Builder
	for _, g := range d.fleet.lasting() {
		ns, err := d.fleet.usage(g)
		d.must(err)
		fmt.Fprintln(&b, g, ns)
	}
	return b.String()
}

// check compares the ledger with the kernel's counters and checks its consistency.
func (d *drill) check() {
	d.kill(d.agent, syscall.SIGTERM)
	defer func() { d.t.Log(d.describe()) }()
	db := d.open(d.dsn)
	defer func() { _ = db.Close() }() // only read
	c := &checker{rig: d.rig, db: db}
	d.folded(db)
	c.tables()
	c.balance()
	// A group that remains may lack its use in gaps, which its parents show.
	exact := func(l life) bool {
		return l.from.IsZero() && !d.v.again || d.v.reader != "files" && d.exact[l.path]
	}
	c.cpu(exact)
	c.folds()
	c.streams()
	c.caused()
	if d.v.again {
		c.once()
	}
	d.verify(d.dsn)
	if d.core != nil {
		d.above(c, exact)
		d.verify(d.coreDSN)
	}
	c.defects()
}

// caused checks that the gaps have causes, with at most one per absence of the agent.
func (c *checker) caused() {
	n := 0
	c.rows(func(scan func(...any) error) {
		var reason, detail string
		_ = scan(&reason, &detail)
		switch {
		case reason == usage.Unwatched.String() || reason == usage.Overlapped.String() && c.v.again:
			n++
		case reason != usage.Forgotten.String() || c.reign.n == 0:
			c.t.Errorf("gap without a cause: %s %s", reason, detail)
		}
	}, "SELECT reason, detail FROM gap")
	if n == 0 || n >= c.agent.lives {
		c.t.Errorf("%d gaps, but the agent started %d times", n, c.agent.lives)
	}
}

// defects checks that the logs have no messages that only defects cause. Other errors are
// normal, because programs log the faults of others.
func (c *checker) defects() {
	for _, p := range c.children() {
		b, err := os.ReadFile(p.log.Name())
		c.must(err)
		for line := range strings.Lines(string(b)) {
			for _, bad := range []string{"panic:", "fatal error:", "spool is damaged", "conservation check failed"} {
				if strings.Contains(line, bad) {
					c.t.Errorf("%s: %s", p.name, line)
				}
			}
		}
	}
}
