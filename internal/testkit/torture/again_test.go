package torture

import (
	"errors"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/usage"
)

// Faults after which a kernel's time is measured twice: the agent's state or identity of earlier
// comes back, or two agents measure at once. The ledger books each time once. Then no group has more
// than the kernel counted, and what it lacks lies within the gaps that the ledger names.

// A used is the use of the lasting groups over time, by the kernel's counters.
type used struct {
	mu      sync.Mutex
	samples []usedSample
}

type usedSample struct {
	from, to time.Time // of reading
	ns       map[string]int64
}

// observe reads the counters of the lasting groups until the test ends.
func (r *rig) observe(t *testing.T) *used {
	u, stop := &used{}, make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for {
			s := usedSample{from: time.Now(), ns: map[string]int64{}}
			for _, g := range r.fleet.lasting() {
				ns, err := r.fleet.usage(g)
				if err != nil {
					return // the groups are removed
				}
				s.ns[g] = ns
			}
			s.to = time.Now()
			u.mu.Lock()
			u.samples = append(u.samples, s)
			u.mu.Unlock()
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond): // a later sample makes bounds wider, never wrong
			}
		}
	})
	t.Cleanup(func() { close(stop); done.Wait() })
	return u
}

// within returns the most that a group used between two instants.
func (u *used) within(group string, from, to time.Time) int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	least, most := int64(0), int64(math.MaxInt64)
	for _, s := range u.samples {
		if s.to.Before(from) {
			least = s.ns[group]
		}
		if s.from.After(to) {
			most = s.ns[group]
			break
		}
	}
	return most - least
}

// mayLack returns how much of a group's CPU time the ledger's gaps explain: what the group used
// within those after which the counters were not booked.
func (c *checker) mayLack(group string) (ns int64) {
	if c.course == nil {
		return 0
	}
	slack := c.slack()
	for _, s := range c.overlapped() {
		ns += c.course.within(group, s.from.Add(-slack), s.to.Add(slack))
	}
	return ns
}

// overlapped returns the gaps of time that is not booked since its window covered booked time too.
func (c *checker) overlapped() (list []span) {
	c.rows(func(scan func(...any) error) {
		var from, to int64
		_ = scan(&from, &to)
		list = append(list, span{time.Unix(0, from), time.Unix(0, to)})
	}, "SELECT from_ns, to_ns FROM gap WHERE reason = '"+usage.Overlapped.String()+"' ORDER BY from_ns")
	return list
}

// once checks that the machine has no more CPU time than its CPUs, and that each of the faults was
// noticed: an overlapped gap, and a node of its own for each identity, with a name of its own.
func (c *checker) once() {
	whole := c.sum1("SELECT CAST(sum(whole_cpu) AS bigint) FROM " + c.all("node_"))
	if most := int64(time.Since(c.began)+time.Minute) * int64(runtime.NumCPU()); whole > most {
		c.t.Errorf("%d ns of CPU time booked, and the machine had at most %d", whole, most)
	}
	booked := c.sum1("SELECT CAST(sum(to_ns - from_ns) AS bigint) FROM booked")
	if most := booked * int64(runtime.NumCPU()) * 101 / 100; whole > most { // the CPUs' clocks are not exact
		c.t.Errorf("%d ns of CPU time in %d ns of booked time", whole, booked)
	}
	nodes, names := c.count("node"), c.sum1("SELECT count(DISTINCT name) FROM node")
	if nodes < leastNodes || c.v.drill && nodes < 3 || names != int64(nodes) {
		c.t.Errorf("%d nodes with %d names, want one for each agent, each with its own", nodes, names)
	}
	gaps := c.overlapped()
	if len(gaps) < leastOverlapped {
		c.t.Errorf("%d overlapped gaps, want one for each return of an earlier state", len(gaps))
	}
	lacks := int64(0)
	for _, s := range gaps {
		lacks += int64(s.to.Sub(s.from))
	}
	c.t.Logf("%d nodes, %d overlapped gaps of %v, %v booked", nodes, len(gaps), time.Duration(lacks), time.Duration(booked))
}

// overlaps counts the ledger's overlapped gaps.
func (d *drill) overlaps() (n int) {
	db := d.open(d.readOnly())
	defer func() { _ = db.Close() }() // only read
	d.wait("the ledger can be read", func() bool {
		return db.QueryRow("SELECT count(*) FROM gap WHERE reason = '"+usage.Overlapped.String()+"'").Scan(&n) == nil
	})
	return n
}

// back waits until the agent, which has a state of before, has booked again.
func (d *drill) back(what string, before int) {
	d.t.Helper()
	d.amid(func() {
		d.live(d.agent, "")
		d.wait("a window of "+what+" is removed", func() bool { return d.overlaps() > before })
	})
	d.recover(what)
}

// Faults of the agent's state.
const (
	restored = "agent restored"
	putBack  = "identity put back"
)

// goBack changes the state of the stopped agent at random: to a copy of earlier, to that of another
// identity, or back to the first one.
func (r *rig) goBack() {
	switch {
	case !r.v.again:
		return
	case r.calm: // the first identity sends what it has, and the ledger names what no agent sends
		r.other = false
		r.agent.setState(r.disk())
		return
	case r.stores[r.agent].full:
		return
	}
	older := filepath.Join(r.dir, "older-agent")
	switch n := r.rnd.IntN(5); {
	case r.other && n < 3:
		r.faults[putBack]++
		r.other = false
		r.agent.setState(r.disk())
	case r.other:
	case n == 0:
		r.other = true
		r.agent.setState(filepath.Join(r.dir, "another"))
	case n == 1 || !r.copied:
		r.must(os.MkdirAll(older, 0o700))
		r.replace(older, r.disk())
		r.copied = true
	case n == 2:
		r.faults[restored]++
		r.replace(r.disk(), older)
		r.must(r.stores[r.agent].sync())
	}
}

// replace makes a directory, which may be a mount point, a copy of another one.
func (r *rig) replace(dir, from string) {
	r.t.Helper()
	r.must(tool("find", dir, "-mindepth", "1", "-delete"))
	r.must(tool("cp", "-a", from+"/.", dir))
}

// setState makes the agent's next lives use a state directory.
func (c *child) setState(dir string) {
	c.args = slices.Clone(c.args)
	c.args[slices.Index(c.args, "-state")+1] = dir
}

// stateBack restores the agent's state from a copy that was made while it ran.
func (d *drill) stateBack() {
	d.t.Helper()
	older := filepath.Join(d.dir, "older-agent")
	d.must(d.agent.cmd.Process.Signal(syscall.SIGSTOP)) // a copy of one instant
	d.must(os.MkdirAll(older, 0o700))
	d.replace(older, d.disk())
	d.must(d.agent.cmd.Process.Signal(syscall.SIGCONT))
	d.amid(func() {})
	d.recover("copy of the agent's state")
	before := d.overlaps()
	d.amid(func() { d.kill(d.agent, syscall.SIGKILL) })
	d.replace(d.disk(), older)
	d.faults[restored]++
	d.back("the agent's state of earlier", before)
}

// identityBack lets the machine be another node for a while.
func (d *drill) identityBack() {
	d.t.Helper()
	before := d.overlaps()
	d.kill(d.agent, syscall.SIGTERM)
	d.agent.setState(filepath.Join(d.dir, "another"))
	d.token = d.makeToken(d.server, d.state(), "agent")
	d.recover("another identity")
	d.amid(func() {})
	d.recover("more as another identity")
	d.kill(d.agent, syscall.SIGTERM)
	d.agent.setState(d.disk())
	d.faults[putBack]++
	d.back("the first identity", before)
}

// measuredAgain injects the faults after which time is measured twice.
func (d *drill) measuredAgain() {
	d.stateBack()
	d.identityBack()
	d.ahead = true
	d.kill(d.server, syscall.SIGTERM)
	d.recover("server terminated")
	d.twoAgents()
}

// twoAgents runs a second agent in a network namespace of its own, in which it does not see the
// first one's claim, until the server has refused it.
func (d *drill) twoAgents() {
	d.t.Helper()
	away := newAway(d.t)
	server := "https://" + away.relay(d.proxy.Addr())
	second := newChild(d.t, d.dir, "second", nil, d.agent.args...)
	second.setState(filepath.Join(d.dir, "second"))
	second.args[slices.Index(second.args, "-server")+1] = server
	token := d.makeToken(d.server, d.state(), "agent")
	second.env = func() []string { return []string{"METE_TOKEN=" + token} }
	second.begin = func(cmd *exec.Cmd) (err error) {
		away.do(func() { err = cmd.Start() })
		return err
	}
	// If the second agent is ahead of the first one, a window of the first is clipped in proportion to
	// time. So the groups use nothing meanwhile.
	for _, w := range d.workers() {
		d.must(w.cmd.Process.Signal(syscall.SIGSTOP))
	}
	d.must(second.start(""))
	d.wait("the server refuses the second agent", func() bool {
		if second.look() {
			d.t.Fatalf("the second agent ended\n%s", second.tail())
		}
		return strings.Contains(second.tail(), "measures this machine already")
	})
	second.kill(syscall.SIGTERM)
	for _, w := range d.workers() {
		d.must(w.cmd.Process.Signal(syscall.SIGCONT))
	}
	d.faults["second agent"]++
	d.recover("a second agent")
}

// An away is a network namespace of its own, which ends with the test.
type away struct {
	t    *testing.T
	jobs chan func()
}

func newAway(t *testing.T) *away {
	t.Helper()
	a := &away{t, make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and with it the namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = exec.Command("ip", "link", "set", "lo", "up").Run()
		}
		ready <- err
		for f := range a.jobs {
			f()
		}
	}()
	err := <-ready
	t.Cleanup(func() { close(a.jobs) })
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// do runs f on the thread in the namespace.
func (a *away) do(f func()) {
	done := make(chan struct{})
	a.jobs <- func() { defer close(done); f() }
	<-done
}

// relay returns an address in the namespace that leads to one outside of it.
func (a *away) relay(to string) string {
	a.t.Helper()
	var l net.Listener
	var err error
	a.do(func() { l, err = net.Listen("tcp4", "127.0.0.1:0") })
	if err != nil {
		a.t.Fatal(err)
	}
	var all sync.WaitGroup
	a.t.Cleanup(func() { _ = l.Close(); all.Wait() }) // the agent has ended: see twoAgents
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return // closed
			}
			all.Go(func() {
				out, err := net.Dial("tcp4", to)
				if err != nil {
					_ = in.Close() // the agent tries again
					return
				}
				var both sync.WaitGroup
				for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
					both.Go(func() {
						_, _ = io.Copy(way[0], way[1])                  // one side has ended
						_ = errors.Join(way[0].Close(), way[1].Close()) // and so does the other
					})
				}
				both.Wait()
			})
		}
	})
	return l.Addr().String()
}
