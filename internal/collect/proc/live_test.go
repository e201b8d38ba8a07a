package proc_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"mete.dev/mete/internal/collect/perprocess"
	"mete.dev/mete/internal/collect/proc"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/testkit"
)

// TestMain runs the tests, or one of the programs that they start.
func TestMain(m *testing.M) {
	if os.Getenv("METE_TEST_PROGRAM") == "" {
		os.Exit(m.Run())
	}
	if err := burn(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// burn reads lines with the ms of CPU time to use itself and in children; it does so,
// prints what its children used, in ns, and sleeps.
func burn() error {
	if ms, err := strconv.Atoi(os.Getenv("METE_TEST_BURN")); err == nil {
		spin(time.Duration(ms) * time.Millisecond)
		return nil
	}
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var self, children int
		if _, err := fmt.Sscan(line, &self, &children); err != nil {
			return err
		}
		spin(time.Duration(self) * time.Millisecond)
		for ; children > 0; children -= 20 {
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			c := exec.Command(exe)
			c.Env = append(os.Environ(), "METE_TEST_BURN=20")
			if err := c.Run(); err != nil {
				return err
			}
		}
		fmt.Println(used(syscall.RUSAGE_CHILDREN))
	}
}

func spin(d time.Duration) {
	for end := used(syscall.RUSAGE_SELF) + d.Nanoseconds(); used(syscall.RUSAGE_SELF) < end; {
		x := 0.0
		for i := range 10000 {
			x += math.Sqrt(float64(i))
		}
	}
}

func used(who int) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// program is burn, running in a group of its own.
type program struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	path string // of its group
	dir  string
	v2   bool
}

func start(t testing.TB, tab *proc.Table) *program {
	t.Helper()
	p := &program{t: t, path: fmt.Sprintf("/mete-test-proc-%d", os.Getpid()), v2: tab.Hierarchy().V2}
	dir, ok := tab.Hierarchy().Dir(p.path)
	if !ok {
		t.Skip("groups cannot be made here")
	}
	p.dir = dir
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { // the kernel may need a moment to let the last process go
		testkit.Eventually(t, dir+" is removed", func() bool { return !errors.Is(os.Remove(dir), syscall.EBUSY) })
	})
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(exe)
	p.cmd.Env = append(os.Environ(), "METE_TEST_PROGRAM=burn")
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
	if err := os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(p.cmd.Process.Pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

// burn makes the program use CPU time, and returns what its children used so far by its own
// account.
func (p *program) burn(self, children time.Duration) (childCPU int64) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, self.Milliseconds(), children.Milliseconds()); err != nil {
		p.t.Fatal(err)
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := fmt.Sscan(line, &childCPU); err != nil {
		p.t.Fatal(err)
	}
	return childCPU
}

// rest reads the table and the group's counter while the program is idle, and returns the
// CPU time of the program itself and of the whole group.
func (p *program) rest(tab *proc.Table) (own, total int64) {
	p.t.Helper()
	testkit.Eventually(p.t, "the program is idle while it is read", func() bool {
		var before, after int64
		var err error
		if before, err = proc.CPUTime(int32(p.cmd.Process.Pid)); err != nil {
			p.t.Fatal(err)
		}
		read(p.t, tab)
		total = p.total()
		if after, err = proc.CPUTime(int32(p.cmd.Process.Pid)); err != nil {
			p.t.Fatal(err)
		}
		own = after
		return before == after
	})
	return own, total
}

// total returns the group's own counter in ns.
func (p *program) total() int64 {
	p.t.Helper()
	name, by := "/cpuacct.usage", int64(1)
	if p.v2 {
		name, by = "/cpu.stat", 1000
	}
	b, err := os.ReadFile(p.dir + name)
	if err != nil {
		p.t.Fatal(err)
	}
	text := strings.Fields(strings.TrimPrefix(string(b), "usage_usec "))[0]
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return v * by
}

func shares(ps []proc.Process) (out []perprocess.Process) {
	for _, p := range ps {
		out = append(out, p.Process)
	}
	return out
}

// A job works itself and in children that it waits for: the lines sum to the group's
// counter, the job's line is the increase of its clock, and Exited has the rest: the rusage
// of the children and what they used later while exiting.
func TestLiveBreakdown(t *testing.T) {
	for _, name := range []string{"files", "bpf"} {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() != 0 {
				t.Skip("not root")
			}
			tab := reader(t, name)
			p := start(t, tab)
			childCPU := p.burn(0, 0)
			own, before := p.rest(tab)
			a := perprocess.New(shares(tab.Processes(p.path)))
			for _, c := range []struct{ self, children time.Duration }{
				{200 * time.Millisecond, 0}, {0, 200 * time.Millisecond}, {100 * time.Millisecond, 100 * time.Millisecond},
			} {
				childCPU2 := p.burn(c.self, c.children)
				own2, now := p.rest(tab)
				lines := a.Split(now-before, shares(tab.Processes(p.path)))
				if len(lines) != 2 || lines[0].ID.PID != int32(p.cmd.Process.Pid) {
					t.Fatalf("lines = %+v, want the job's and exited", lines)
				}
				if sum := lines[0].CPU + lines[1].CPU; sum != now-before {
					t.Errorf("lines sum to %d, want %d", sum, now-before)
				}
				if lines[0].CPU != own2-own || own2-own < c.self.Nanoseconds() {
					t.Errorf("%v: job's line = %d, its clock gained %d", c, lines[0].CPU, own2-own)
				}
				const rounding = 4_000 // rusage consists of two numbers in us
				if lines[1].CPU < childCPU2-childCPU-rounding || childCPU2-childCPU < c.children.Nanoseconds()-rounding {
					t.Errorf("%v: exited = %d, rusage of children %d", c, lines[1].CPU, childCPU2-childCPU)
				}
				own, childCPU, before = own2, childCPU2, now
			}
			if a.Discarded != 0 {
				t.Errorf("Discarded = %d, want 0", a.Discarded)
			}
		})
	}
}

// asleep waits until a sleeper sleeps and is off its CPU: the file syscall shows a call
// only then.
func asleep(t *testing.T, pid int) {
	t.Helper()
	testkit.Eventually(t, "the child sleeps", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		p, err := procfmt.ProcStat(stat)
		if err != nil {
			t.Fatal(err)
		}
		call, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
		return err == nil && !strings.HasPrefix(string(call), "running") && p.State == 'S' && string(p.Comm) == "sleep"
	})
}

// TestLiveReadersAgree reads one sleeping process by both readers.
func TestLiveReadersAgree(t *testing.T) {
	child := sleeper(t)
	asleep(t, child.Process.Pid)
	var got [2]proc.Process
	for i, name := range []string{"files", "bpf"} {
		tab := reader(t, name)
		read(t, tab)
		p := find(tab, child.Process.Pid)
		if p == nil {
			t.Fatalf("%s: no such process", name)
		}
		got[i] = *p
	}
	const step = 10_000_000
	if d := got[1].ID.Start - got[0].ID.Start; d < 0 || d >= step {
		t.Errorf("start %d by files, %d by bpf", got[0].ID.Start, got[1].ID.Start)
	}
	got[1].ID, got[1].Entered = got[0].ID, got[0].Entered
	// Each CPU keeps up to a batch of pages of each of three kinds, which files do not show
	// (lib/percpu_counter.c).
	most := int64(3 * runtime.NumCPU() * max(32, 2*runtime.NumCPU()) * os.Getpagesize())
	if d := got[1].RSS - got[0].RSS; d < -most || d > most {
		t.Errorf("RSS %d by files, %d by bpf", got[0].RSS, got[1].RSS)
	}
	got[1].RSS = got[0].RSS
	if got[0] != got[1] {
		t.Errorf("files: %+v\nbpf:   %+v", got[0], got[1])
	}
}

// TestLiveChurn reads while processes come and go as fast as possible.
func TestLiveChurn(t *testing.T) {
	for _, name := range []string{"files", "bpf"} {
		t.Run(name, func(t *testing.T) {
			tab := reader(t, name)
			churn := exec.Command("sh", "-c", "while :; do /bin/true; done")
			if err := churn.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = churn.Process.Kill(); _ = churn.Wait() }()
			last, unreadable := map[perprocess.ID]int64{}, math.MaxInt
			for range 200 {
				read(t, tab)
				unreadable = min(unreadable, tab.Unreadable)
				for _, p := range tab.All() {
					if p.CPU < last[p.ID] {
						t.Fatalf("%+v decreased from %d", p, last[p.ID])
					}
					last[p.ID] = p.CPU
					if p.Group == "" || p.Group[0] != '/' {
						t.Fatalf("%+v has no group", p)
					}
				}
			}
			// A process may end during a reading, but not in each one.
			if unreadable > 0 {
				t.Errorf("Unreadable = %d and more in each of 200 readings", unreadable)
			}
		})
	}
}
