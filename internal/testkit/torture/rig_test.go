package torture

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/ledgertest"
	"mete.dev/mete/internal/testkit/netfault"
)

// The failpoints, with the highest visit at which a program is killed: it reaches that visit
// within a second or two.
var (
	agentPoints = map[string]int{"ship.sent": 2, "spool.written": 4, "spool.window-synced": 3, "spool.note-synced": 3, "spool.batch-synced": 2,
		"spool.merged": 1, "spool.acked": 2}
	serverPoints = map[string]int{"ingest.decoded": 2, "ledger.before-commit": 4, "ledger.committed": 4, "ledger.folding": 5}
	corePoints   = map[string]int{"upstream.before-commit": 1, "upstream.committed": 1}
	// lossPoints are reached when batches are lost: see reign.
	lossPoints = []string{"ledger.lost", "ship.lost"}
)

// upPoint is reached when a server has sent rows to the one above it.
const upPoint = "upstream.sent"

// A rig is a server, an agent, their network and disks, and the faults of these.
type rig struct {
	t             *testing.T
	v             variant
	rnd           *rand.Rand
	bin, dir      string
	fleet         *fleet
	server, agent *child
	core          *child // the server above, or nil
	proxy         *netfault.Proxy
	status        string // URL of the agent's status listener
	dsn, coreDSN  string // data sources of the ledgers
	token         string

	offset   int64 // wall time minus CLOCK_BOOTTIME at the start, ns
	began    time.Time
	end      time.Time
	calm     bool      // no more faults
	ahead    bool      // the server folds a day ahead
	copied   bool      // an older copy of the server's state exists
	reign    reign     // use of a much older copy
	clock    wallClock // clock of the agent's machine
	stores   map[*child]*store
	told     map[string]int64 // next batch number of each stream in the server's ledger, as last read
	heard    heard
	owed     map[string]int64 // highest next batch number of each stream so far
	fair     bool             // the network has no faults
	down     []span
	faults   map[string]int
	restarts [3]time.Time // times of the next starts of server, agent and core
	weather  time.Time    // time of the next fault
	course   *used        // of the lasting groups, or nil

	other      bool // the agent's next lives are another identity
	otherToken string
	outage     time.Time // end of the network outage
}

type span struct{ from, to time.Time }

func newRig(t *testing.T, v variant, bin string, seed uint64) *rig {
	r := &rig{t: t, v: v, rnd: rand.New(rand.NewPCG(seed, 1)), bin: bin, dir: place(t, v.name), faults: map[string]int{}, stores: map[*child]*store{}, told: map[string]int64{}, owed: map[string]int64{}, offset: offset()}
	r.fleet = newFleet(t)
	if !v.drill {
		r.fleet.held = newHeld(t, r.fleet)
	}
	r.mount()
	serverStore := newStore(t, filepath.Dir(r.state()), filepath.Join(r.ram(), "server"))
	agentStore := newStore(t, r.disk(), filepath.Join(r.ram(), "agent"))
	at, status := address(t), address(t)
	r.status = "http://" + status
	args := []string{filepath.Join(bin, "mete"), "server", "--listen", at, "--state", r.state()}
	r.dsn = filepath.Join(r.state(), "ledger.db")
	if v.postgres {
		r.dsn = ledgertest.PostgreSQL(t)
		args = append(args, "--database", r.dsn)
	}
	points := maps.Clone(serverPoints)
	if v.upstream {
		at := r.newCore()
		args = append(args, "--upstream", "https://"+at, "--upstream-token", r.makeToken(r.core, filepath.Join(r.dir, "core"), "upstream"))
		points[upPoint] = 1
	}
	var err error
	if r.proxy, err = netfault.Open(at, seed); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	r.server = newChild(t, r.dir, "server", points, args...)
	r.server.env = r.serverEnv
	r.stores[r.server] = serverStore
	window := "500ms"
	if v.drill {
		window = "300ms"
	}
	r.agent = newChild(t, r.dir, "agent", agentPoints, filepath.Join(bin, "mete-agent"), "-server", "https://"+r.proxy.Addr(),
		"-state", r.disk(), "-socket", "", "-status", status, "-tick", "100ms", "-window", window, "-reader", v.reader)
	r.agent.env = r.agentEnv
	r.stores[r.agent] = agentStore
	r.clock.path = filepath.Join(r.dir, "clock")
	r.setClock(0)
	return r
}

// newCore starts the server above, and returns its address.
func (r *rig) newCore() (addr string) {
	addr = address(r.t)
	state := filepath.Join(r.dir, "core")
	r.coreDSN = filepath.Join(state, "ledger.db")
	args := []string{filepath.Join(r.bin, "mete"), "server", "--listen", addr, "--state", state}
	if r.v.postgres {
		r.coreDSN = ledgertest.PostgreSQL(r.t)
		args = append(args, "--database", r.coreDSN)
	}
	r.core = newChild(r.t, r.dir, "core", corePoints, args...)
	r.core.env = r.serverEnv
	r.must(r.core.start(""))
	return addr
}

func (r *rig) state() string { return filepath.Join(r.dir, "server", "state") }
func (r *rig) disk() string  { return filepath.Join(r.dir, "disk") }

// ram returns a directory in memory, which mount mounts.
func (r *rig) ram() string { return filepath.Join(r.dir, "memory") }

// mount mounts a tmpfs at ram.
func (r *rig) mount() {
	r.must(os.Mkdir(r.ram(), 0o700))
	r.must(syscall.Mount("tmpfs", r.ram(), "tmpfs", 0, ""))
	r.t.Cleanup(func() {
		if err := unmount(r.ram()); err != nil {
			r.t.Error(err)
		}
	})
}

// offset returns wall time minus CLOCK_BOOTTIME in ns.
func offset() int64 {
	var boot unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) // every Linux has it
	return time.Now().UnixNano() - boot.Nano()
}

// ports counts the ports that address has returned.
var ports atomic.Int64

// address returns an address for a program to listen on. It stays free while the program is
// dead: only this process uses the host part, and the port is below the ephemeral range.
func address(t *testing.T) string {
	a := fmt.Sprintf("%s:%d", testkit.Loopback(), 10000+ports.Add(1))
	ln, err := net.Listen("tcp", a)
	if err == nil {
		err = ln.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// late reports whether the run is in its second half, in which the server is restored from
// older copies. In the first half the agent's disk runs full. The two exclude each other: on
// a full disk the agent deletes batches that the server has, which a restored server lacks.
func (r *rig) late() bool { return !r.v.drill && time.Since(r.began) > r.end.Sub(r.began)/2 }

// serverEnv makes the server fold a day ahead in the second half of the run, and replicate
// every 200 ms.
func (r *rig) serverEnv() []string {
	env := []string{"METE_TORTURE_UPSTREAM=200ms"}
	if r.late() || r.ahead {
		env = append(env, "METE_TORTURE_FOLD=25h")
	}
	return env
}

// agentEnv makes the agent lose unsynced data in half of its lives.
func (r *rig) agentEnv() []string {
	env := []string{"METE_TOKEN=" + r.token, "METE_TORTURE_SEGMENT=6000", "METE_TORTURE_BACKOFF=50ms", "METE_TORTURE_CLOCK=" + r.clock.path}
	if r.other {
		env[0] = "METE_TOKEN=" + r.otherToken
	}
	if s := r.stores[r.agent]; r.rnd.IntN(2) > 0 {
		s.forgets = true
		env = append(env, "METE_TORTURE_DROP=1")
	}
	return env
}

// run injects faults for a duration, longer if some were too few, and then settles.
func (r *rig) run(long time.Duration) {
	r.began = time.Now()
	r.end = r.began.Add(long)
	r.must(r.server.start(""))
	r.token = r.makeToken(r.server, r.state(), "agent")
	if r.v.again {
		// An agent that is killed while it enrolls needs another use.
		r.otherToken = r.makeToken(r.server, r.state(), "agent", "--uses", "100")
		r.course = r.observe(r.t)
	}
	r.fleet.held.begin()
	r.must(r.agent.start(""))
	testkit.Eventually(r.t, "the agent keeps and sends a window", func() bool { return r.metric("mete_agent_sent_batches_total") > 0 })
	r.fleet.start(r.t, 3, r.rnd.Uint64())
	r.began = time.Now()
	r.end = r.began.Add(long)
	for late := false; ; {
		if now := time.Now(); now.After(r.end) {
			lacks := append(r.missed(), r.scarce()...)
			if len(lacks) == 0 {
				lacks = r.unbooked()
			}
			if len(lacks) == 0 || now.After(r.end.Add(max(long, 4*time.Minute))) {
				break
			}
			if !late {
				late = true
				r.t.Logf("longer than %v, for %v", long, lacks)
			}
		}
		r.listen()
		r.revive()
		r.harm()
		time.Sleep(20 * time.Millisecond)
	}
	r.settle()
}

// makeToken creates a token at a server.
func (r *rig) makeToken(c *child, state, role string, more ...string) (token string) {
	r.t.Helper()
	testkit.Eventually(r.t, "the "+c.name+" makes a token", func() bool {
		if c.look() {
			r.t.Fatalf("the %s ended\n%s", c.name, c.tail())
		}
		var out bytes.Buffer
		cmd := exec.Command(filepath.Join(r.bin, "mete"), append([]string{"token", "create", "--role", role, "--state", state}, more...)...)
		cmd.Stdout = &out
		err := cmd.Run()
		token = strings.TrimSpace(out.String())
		return err == nil
	})
	return token
}

// children returns the programs, in the order of restarts.
func (r *rig) children() []*child {
	all := []*child{r.server, r.agent}
	if r.core != nil {
		all = append(all, r.core)
	}
	return all
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// revive restarts dead programs that are due, and kills those that reach their limit.
func (r *rig) revive() {
	for i, c := range r.children() {
		if c.look() {
			kind := "ended"
			if c.armed != "" {
				kind = "crash"
			}
			if strings.HasPrefix(c.armed, "spool.merged") && time.Now().After(r.end) && time.Now().Before(r.outage) {
				r.outage = time.Now() // the outage has served its purpose
			}
			r.died(i, c, kind)
		}
		if c.up && !r.calm && time.Since(c.began) > c.limit {
			sig := syscall.SIGKILL
			if r.rnd.IntN(5) == 0 {
				sig = syscall.SIGTERM
			}
			c.kill(sig)
			r.died(i, c, sig.String())
		}
		if c.up || time.Now().Before(r.restarts[i]) {
			continue
		}
		r.cut(c)
		if c == r.server {
			r.swap()
		}
		point := ""
		c.limit = time.Duration(500+r.rnd.IntN(3000)) * time.Millisecond
		switch {
		case r.reign.lasts():
			point, c.limit = r.reign.arm(r, c), time.Minute
		case !r.calm && time.Now().After(r.end) && !r.lacks(c):
			c.limit = 5 * time.Second // leave time for the failpoints of the others
		case !r.calm && r.rnd.IntN(8) > 0:
			// Leave time to reach the failpoint on a busy machine.
			point, c.limit = c.arm(r.rnd, r.skipped, r.v.points), c.limit+1500*time.Millisecond
			if time.Now().After(r.end) {
				c.limit *= 2
			}
		}
		if c == r.agent {
			r.goBack()
			if r.v.clock && !r.calm && r.rnd.IntN(3) == 0 {
				r.misdate()
			}
			r.down = append(r.down, span{c.ended, time.Now()})
		}
		if strings.HasPrefix(point, "spool.merged") {
			c.limit = 1500 * time.Millisecond // it merges at its start, or has too few windows
			if time.Now().After(r.end) {
				c.limit *= 2
			}
		}
		r.must(c.start(point))
	}
}

// skipped reports whether a failpoint cannot be reached at present.
func (r *rig) skipped(point string) bool {
	out := time.Now().Before(r.outage)
	switch point {
	case "spool.merged":
		return !out
	case "ledger.folding":
		return !r.late()
	}
	if _, ok := agentPoints[point]; out && ok && r.agent.hits()["spool.merged"] < 3 {
		return true // leave the agent's starts to spool.merged
	}
	return out && (point == "ship.sent" || point == "spool.acked" || point == "spool.batch-synced")
}

// died schedules the restart of a dead program, mostly soon.
func (r *rig) died(i int, c *child, kind string) {
	r.faults[c.name+" "+kind]++
	pause := time.Duration(r.rnd.IntN(200)) * time.Millisecond
	if r.rnd.IntN(10) == 0 {
		pause += time.Duration(r.rnd.IntN(3000)) * time.Millisecond
	}
	if r.calm {
		pause = 0
	}
	r.restarts[i] = time.Now().Add(pause)
}

// harm injects faults at random times.
func (r *rig) harm() {
	now := time.Now()
	if !r.outage.IsZero() && now.After(r.outage) && r.outage.After(r.weather) {
		r.weather = now
	}
	for _, s := range r.stores {
		if s.full && now.After(s.emptied) {
			r.must(s.empty())
		}
	}
	if r.v.clock && now.After(r.clock.due) {
		r.turn()
	}
	r.rule()
	if now.Before(r.weather) {
		return
	}
	r.weather = now.Add(time.Duration(100+r.rnd.IntN(500)) * time.Millisecond)
	over := now.After(r.end) // only failpoints are still missing; no other faults
	switch n := r.rnd.IntN(10); {
	case over && now.After(r.outage) && !r.fair:
		r.blow()
	case n < 1 && !over:
		r.pause([]*child{r.server, r.agent}[r.rnd.IntN(2)])
	case n < 3 && !over:
		r.fill()
	case (n < 4 || over) && !r.v.upstream && now.After(r.outage.Add(5*time.Second)) && r.agent.hits()["spool.merged"] < 3:
		// Long enough for a starting agent to merge the waiting windows.
		r.faults["outage"]++
		r.outage = now.Add(time.Duration(4500+r.rnd.IntN(1500)) * time.Millisecond)
		if over {
			r.outage = now.Add(20 * time.Second) // or until the merge
		}
		r.agent.limit = now.Sub(r.agent.began) + 2500*time.Millisecond
		r.fair = false
		r.proxy.Set(netfault.Conditions{Down: true})
	case !over && now.After(r.outage):
		r.blow()
	}
}

// blow changes the conditions of the network.
func (r *rig) blow() {
	if r.fair = !r.fair; r.fair {
		r.proxy.Set(netfault.Conditions{})
		return
	}
	r.faults["network"]++
	w := netfault.Conditions{Delay: time.Duration(r.rnd.IntN(50)) * time.Millisecond, Cut: 0.2, Lose: 0.3, Repeat: 0.2,
		Hold: time.Duration(r.rnd.IntN(200)) * time.Millisecond}
	n := r.rnd.IntN(5)
	if r.v.upstream {
		n = -1 // replication needs a connection
	}
	switch n {
	case 0:
		w = netfault.Conditions{Down: true}
	case 1:
		w = netfault.Conditions{Silent: true}
	case 2:
		w.Rate = 8<<10 + r.rnd.IntN(1<<20)
	}
	r.proxy.Set(w)
}

// pause stops a program for a moment.
func (r *rig) pause(c *child) {
	if !c.up {
		return
	}
	r.faults[c.name+" paused"]++
	_ = c.cmd.Process.Signal(syscall.SIGSTOP) // fails if it has ended
	time.Sleep(time.Duration(100+r.rnd.IntN(600)) * time.Millisecond)
	_ = c.cmd.Process.Signal(syscall.SIGCONT)
}

// fill fills a disk for a moment, mostly the agent's.
func (r *rig) fill() {
	c := r.agent
	if r.rnd.IntN(4) == 0 {
		c = r.server
	}
	s := r.stores[c]
	if s.full || c == r.agent && r.late() {
		return
	}
	r.faults[c.name+" disk full"]++
	r.must(s.fill(time.Duration(200+r.rnd.IntN(1500)) * time.Millisecond))
	if c == r.agent {
		r.copied = false // the agent may have deleted batches that the copy lacks
	}
}

// swap copies the state of the stopped server, or replaces it by the older copy.
func (r *rig) swap() {
	if r.v.postgres || r.v.again || r.calm || r.stores[r.agent].full || r.stores[r.server].full || r.reign.lasts() {
		return
	}
	older := filepath.Join(r.dir, "older")
	switch n := r.rnd.IntN(6); {
	case !r.reign.ready:
		r.reign.ready = true
		r.copy(r.state(), r.ancient())
	case n == 0 || !r.copied:
		r.copy(r.state(), older)
		r.copied = true
	case n < 3 && r.late() && r.due() == "":
		r.faults["restore"]++
		r.putBack(older)
	}
}

// copy replaces a directory by a copy of another one.
func (r *rig) copy(from, to string) {
	r.t.Helper()
	r.must(os.RemoveAll(to))
	r.must(tool("cp", "-a", from, to))
}

// putBack restores the stopped server from a copy.
func (r *rig) putBack(from string) {
	r.t.Helper()
	for stream, next := range r.told {
		r.owed[stream] = max(r.owed[stream], next)
	}
	clear(r.told)
	r.must(r.stores[r.server].empty())
	r.copy(from, r.state())
	r.must(r.stores[r.server].sync())
}

// settle ends all faults and waits until the ledger has all use.
func (r *rig) settle() {
	r.calm = true
	r.proxy.Set(netfault.Conditions{})
	for _, s := range r.stores {
		r.must(s.empty())
	}
	r.endReign()
	r.setClock(0)
	// End the lives with an armed failpoint.
	for _, c := range r.children() {
		c.kill(syscall.SIGKILL)
	}
	r.restarts = [3]time.Time{}
	r.revive()
	r.must(r.fleet.end())
	r.sent()
	// Restart the agent once more, to include its work at start and the backlog.
	r.agent.kill(syscall.SIGTERM)
	r.restarts = [3]time.Time{}
	r.revive()
	r.sent()
	r.agent.kill(syscall.SIGTERM)
	r.agent.look()
}

// sent waits until the agent has stored four more windows and sent all.
func (r *rig) sent() {
	from := 0.0
	testkit.Eventually(r.t, "all is sent", func() bool {
		r.revive()
		windows := r.metric("mete_agent_windows_total")
		if from == 0 {
			from = max(windows, 1)
		}
		return windows >= from+4 && r.metric("mete_agent_spool_windows") == 0 && r.metric("mete_agent_connected") == 1
	})
}

// metric reads a metric of the agent, or returns -1.
func (r *rig) metric(name string) float64 {
	resp, err := http.Get(r.status + "/metrics")
	if err != nil {
		return -1
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // only read
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				r.t.Fatal(err)
			}
			return v
		}
	}
	return -1
}

// describe summarizes the faults.
func (r *rig) describe() string {
	total := 0
	for _, n := range r.faults {
		total += n
	}
	births, deaths := r.unseen()
	return fmt.Sprintf("%d faults: %v; %d lives of the agent, %d of the server; crashes %v; %d births and %d deaths while no agent ran; network %+v",
		total, r.faults, r.agent.lives, r.server.lives, r.hits(), births, deaths, r.proxy.Stats())
}
