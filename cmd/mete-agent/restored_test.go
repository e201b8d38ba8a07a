package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/testkit/hosttest"
)

// A usedSince compares what the ledger of a site has of the machine's CPU time since an instant
// with the most that the machine can have used.
type usedSince struct {
	s        *site
	booked   float64 // CPU seconds
	boottime float64 // seconds
}

// since returns the present state. No agent may be measuring: what one books between the two readings
// would count without its time.
func (s *site) since() usedSince { return usedSince{s, s.whole(), boottime(s.t)} }

// whole returns the CPU seconds that the machine had, as booked.
func (s *site) whole() float64 {
	s.t.Helper()
	if a := s.ask(); a.Whole != nil {
		return a.Whole.CPU
	}
	return 0
}

func boottime(t *testing.T) float64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		t.Fatal(err)
	}
	return float64(ts.Nano()) / 1e9
}

// check checks that no CPU time is booked twice: the agents have ended.
func (u usedSince) check(what string) {
	u.s.t.Helper()
	booked, most := u.s.whole()-u.booked, float64(runtime.NumCPU())*(boottime(u.s.t)-u.boottime)
	if booked > most {
		u.s.t.Errorf("%s: booked %.2f s of CPU time, and the machine had at most %.2f s", what, booked, most)
	}
	u.s.t.Logf("%s: booked %.2f of %.2f s", what, booked, most)
	u.s.checkBooked() // the rows sum to the machine
}

// awaitBooked waits until this much more CPU time is booked.
func (s *site) awaitBooked(seconds float64) {
	s.t.Helper()
	want := s.whole() + seconds
	s.node.await("CPU time, booked", func() bool { return s.whole() >= want })
}

// gaps returns the reasons of the gaps.
func (s *site) gaps() string {
	s.t.Helper()
	var a struct{ Gaps []struct{ Reason string } }
	out := s.run("gaps", "-o", "json", "--server", s.url, "--token", s.viewer, "--from", "-2h")
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	var reasons []string
	for _, g := range a.Gaps {
		reasons = append(reasons, g.Reason)
	}
	return strings.Join(reasons, " ")
}

// copyState copies the agent's state to a directory, or back.
func copyState(t *testing.T, from, to string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	// Files of keys are for their owner only.
	err := filepath.WalkDir(to, func(p string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Stat(filepath.Join(from, strings.TrimPrefix(p, to)))
		if err != nil {
			return err
		}
		return os.Chmod(p, info.Mode())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A state of the agent that comes back from a backup measures no time twice: what it covers of
// booked time is removed, and the rest of that window is a gap.
func TestRestoredState(t *testing.T) {
	hosttest.Need(t, "procfs")
	t.Parallel()
	s := newSite(t)
	s.serve()
	u := s.since()
	s.measure("-reader", "files")
	s.awaitBooked(0.5)
	s.node.stop()
	state, backup := filepath.Join(s.dir, "agent"), filepath.Join(s.dir, "backup")
	copyState(t, state, backup)

	s.measure("-reader", "files")
	s.awaitBooked(6)
	s.node.stop()
	copyState(t, backup, state)

	s.measure("-reader", "files")
	s.node.await("a window is removed", func() bool { return strings.Contains(s.gaps(), "overlapped") })
	s.awaitBooked(0.5)
	s.node.stop()
	u.check("a restored state")
}

// A machine that was another node for a while, and gets its identity back, has that time once.
func TestIdentityPutBack(t *testing.T) {
	hosttest.Need(t, "procfs")
	t.Parallel()
	s := newSite(t)
	s.serve()
	u := s.since()
	s.measure("-reader", "files")
	s.awaitBooked(0.5)
	s.node.stop()
	state, first := filepath.Join(s.dir, "agent"), filepath.Join(s.dir, "first")
	if err := os.Rename(state, first); err != nil {
		t.Fatal(err)
	}

	s.measure("-reader", "files", "-state", filepath.Join(s.dir, "second"))
	s.awaitBooked(6)
	s.node.stop()
	if err := os.Rename(first, state); err != nil {
		t.Fatal(err)
	}

	s.measure("-reader", "files")
	s.node.await("a window is removed", func() bool { return strings.Contains(s.gaps(), "overlapped") })
	s.awaitBooked(0.5)
	s.node.stop()
	u.check("two identities in turn")
}

// Two agents of one machine in two network namespaces, which do not see each other, book its time
// once together.
func TestAgentsApart(t *testing.T) {
	hosttest.Need(t, "procfs", "root")
	t.Parallel()
	s := newSite(t)
	s.serve()
	u := s.since()
	s.measure("-reader", "files")
	s.awaitBooked(0.5)

	away := newElsewhere(t, "elsewhere")
	url := s.url
	s.url = "https://" + away.reach(strings.TrimPrefix(url, "https://"))
	dir := filepath.Join(s.dir, "away")
	c := s.agent("-reader", "files", "-state", dir, "-socket", "")
	s.url = url
	c.Env = append(c.Env, "METE_TOKEN="+s.token)
	second := s.start("agent apart", away.command(c))
	second.waitOutput("msg=measuring")
	s.awaitBooked(6)
	second.stop()
	s.node.stop()
	u.check("two agents")
}

// A job does not send its figures itself while an agent that measured the machine is down, also
// one without a socket: the agent books them when it is back.
func TestJobWhileAgentIsDown(t *testing.T) {
	hosttest.Need(t, "procfs")
	t.Parallel()
	s := newSite(t)
	s.serve()
	u := s.since()
	s.measure("-reader", "files", "-socket", "")
	s.awaitBooked(0.5)
	s.node.stop()

	c := s.command("mete", "run", "-q", "--server", s.url, "--server-wait", "1000h", "--", "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
	c.Env = append(c.Env, "METE_TOKEN="+s.token)
	job := s.start("job", c)
	job.waitOutput("the agent that measures this machine for it is down")
	job.wait()

	s.measure("-reader", "files", "-socket", "")
	s.awaitBooked(0.5)
	s.node.stop()
	u.check("a job while the agent was down")
}
