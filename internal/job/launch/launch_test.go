package launch_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/launch"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestLook compares LookPath with bash.
func TestLook(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"good": 0o755, "plain": 0o644, "other/good": 0o644, "other/late": 0o755} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	path := dir + "/other:" + dir + ":/nonexistent"
	for name, want := range map[string]string{
		"good": dir + "/good", "late": dir + "/other/late", dir + "/good": dir + "/good",
	} {
		if got, err := launch.LookPath(name, path); got != want || err != nil {
			t.Errorf("Look(%q) = %q, %v, want %q", name, got, err, want)
		}
	}
	for name, code := range map[string]int{
		"": 127, "nosuch": 127, dir + "/nosuch": 127, dir + "/good/x": 126,
		"plain": 126, dir + "/plain": 126, dir: 126, "other": 127,
	} {
		_, err := launch.LookPath(name, path)
		if e, ok := errors.AsType[*launch.StartError](err); !ok || e.Code != code {
			t.Errorf("Look(%q) = %v, want code %d", name, err, code)
		}
		out, err := exec.Command(bash, "-c", `PATH=$1; "$2"`, "sh", path, name).CombinedOutput()
		if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != code {
			t.Errorf("bash has %v for %q: %s", err, name, out)
		}
	}
}

// TestLookUnseen checks that a directory of PATH without search permission hides its files, and
// that a broken link does not count as a file: the command is not found, as in bash.
func TestLookUnseen(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/closed", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/closed/hidden", []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", dir+"/loop"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir+"/closed", 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Chmod(dir+"/closed", 0o700); err != nil {
			t.Error(err)
		}
	})
	ordinary := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		ordinary.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	for _, name := range []string{"hidden", "loop"} {
		path := dir + ":" + dir + "/closed"
		_, err := asNobody(func() (string, error) { return launch.LookPath(name, path) })
		if e, ok := errors.AsType[*launch.StartError](err); !ok || e.Code != 127 || e.Error() != name+": command not found" {
			t.Errorf("Look(%q) = %v, want code 127", name, err)
		}
		cmd := exec.Command(bash, "-c", `PATH=$1; "$2"`, "sh", path, name)
		cmd.SysProcAttr, cmd.Dir = ordinary, "/"
		out, err := cmd.CombinedOutput()
		if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != 127 {
			t.Errorf("bash has %v for %q: %s", err, name, out)
		}
	}
	_, err = asNobody(func() (string, error) { return launch.LookPath(dir+"/closed/hidden", "") })
	if e, ok := errors.AsType[*launch.StartError](err); !ok || e.Code != 126 {
		t.Errorf("Look of a path = %v, want code 126", err)
	}
}

// asNobody calls f without root's capabilities, on a thread that ends with it.
func asNobody(f func() (string, error)) (file string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if os.Geteuid() == 0 {
			if err = unix.Setfsuid(65534); err != nil {
				return
			}
		}
		file, err = f()
	}()
	<-done
	return file, err
}

// open creates a job in these hierarchies, removed with the test.
func open(t *testing.T, limits launch.Limits, use func(hostfs.Hierarchy) bool) (*hostfs.FS, *launch.Group) {
	t.Helper()
	hosttest.Need(t, "root")
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	all, err := h.Hierarchies()
	if err != nil {
		t.Skip(err)
	}
	var ys []hostfs.Hierarchy
	for _, y := range all {
		if use == nil || use(y) {
			ys = append(ys, y)
		}
	}
	g, err := launch.Open(h, ys, report.NewID(time.Now().UnixMilli(), [10]byte{0: byte(time.Now().Nanosecond())}), limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !g.Remove() {
			t.Error("groups are left")
		}
	})
	return h, g
}

func v1(y hostfs.Hierarchy) bool { return !y.V2 }
func v2(y hostfs.Hierarchy) bool { return y.V2 }

// output returns an empty file for the output of a command.
func output(t *testing.T) *os.File {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := out.Close(); err != nil {
			t.Error(err)
		}
	})
	return out
}

// sh returns a shell script as a command, with its output in a file.
func sh(t *testing.T, script string, args ...string) (launch.Command, *os.File) {
	t.Helper()
	out := output(t)
	return launch.Command{
		Path: "/bin/sh", Args: append([]string{"sh", "-c", script, "sh"}, args...), Env: os.Environ(),
		Files: []uintptr{0, out.Fd(), out.Fd()},
	}, out
}

func read(t *testing.T, f *os.File) string {
	t.Helper()
	b, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// measured is what a run of a job was, and its last reading.
type measured struct {
	*report.Measurement
	Final usage.Reading
}

func run(t *testing.T, h *hostfs.FS, j launch.Job, c launch.Command, w launch.Watch) (m measured, e launch.Exit) {
	t.Helper()
	also := w.Sample
	w.Sample = func(at launch.Moment) bool {
		if also != nil {
			also(at)
		}
		var r usage.Reading
		j.Read(&r)
		if r.Has.Has(usage.CPU) {
			m.Final = r
		}
		return r.Has.Has(usage.CPU)
	}
	var err error
	if m.Measurement, e, err = launch.Run(h, j, c, w); err != nil {
		t.Fatal(err)
	}
	return m, e
}

// TestGroup checks that the command and its descendants are in the group from their first
// instruction, and nothing of this process is.
func TestGroup(t *testing.T) {
	for name, use := range map[string]func(hostfs.Hierarchy) bool{"all": nil, "v1": v1, "v2": v2} {
		t.Run(name, func(t *testing.T) {
			if use != nil {
				hosttest.Need(t, map[string]string{"v1": "cgroup1", "v2": "cgroup2"}[name])
			}
			h, g := open(t, launch.Limits{}, use)
			c, out := sh(t, "cat /proc/self/cgroup")
			m, e := run(t, h, g, c, launch.Watch{})
			if e.Code() != 0 {
				t.Fatalf("exit %d: %s", e.Code(), read(t, out))
			}
			base := filepath.Base(g.Path())
			in, wanted := strings.Count(strings.ReplaceAll(read(t, out), "/job\n", "\n"), "/"+base+"\n"), 0
			g.EachGroup(func(_ uint32, dir string) {
				if filepath.Base(dir) == base {
					wanted++
				}
			})
			if in != wanted || in == 0 {
				t.Errorf("in %d groups of %s, want %d:\n%s", in, base, wanted, read(t, out))
			}
			user, sys := e.CPU()
			// TestAccuracyCPU checks the accuracy; here nothing of this process is included.
			if v := m.Final.Value[usage.CPU]; !m.Final.Has.Has(usage.CPU) || v < (user+sys)/2 || v > user+sys+100e6 {
				t.Errorf("CPU %d ns, its rusage says %d", v, user+sys)
			}
			mine, err := os.ReadFile("/proc/self/cgroup")
			if err != nil || strings.Contains(string(mine), base) {
				t.Errorf("this process is in the job's group: %v\n%s", err, mine)
			}
		})
	}
}

func TestExit(t *testing.T) {
	for script, want := range map[string]struct {
		code   int
		signal string
	}{
		"exit 0":        {0, ""},
		"exit 3":        {3, ""},
		"exit 255":      {255, ""},
		"kill -9 $$":    {137, "SIGKILL"},
		"kill -TERM $$": {143, "SIGTERM"},
	} {
		h, g := open(t, launch.Limits{}, nil)
		c, _ := sh(t, script)
		if _, e := run(t, h, g, c, launch.Watch{}); e.Code() != want.code || e.Signal() != want.signal {
			t.Errorf("%q: exit %d, signal %q, want %v", script, e.Code(), e.Signal(), want)
		}
	}
}

// TestNotRun checks that a command that cannot be executed fails as in a shell, and leaves no
// group.
func TestNotRun(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for file, code := range map[string]int{
		dir + "/nosuch":                  127,
		write("lost", "#!/no/such/sh\n"): 126,
	} {
		h, g := open(t, launch.Limits{}, nil)
		_, _, err := launch.Run(h, g, launch.Command{Path: file, Args: []string{file}, Files: []uintptr{0, 1, 2}}, launch.Watch{})
		if e, ok := errors.AsType[*launch.StartError](err); !ok || e.Code != code {
			t.Errorf("%s: %v, want code %d", file, err, code)
		}
	}
	// A script without #! is run by sh.
	h, g := open(t, launch.Limits{}, nil)
	file := write("script", "exit 7\n")
	if _, e := run(t, h, g, launch.Command{Path: file, Args: []string{file}, Files: []uintptr{0, 1, 2}}, launch.Watch{}); e.Code() != 7 {
		t.Errorf("a script without #!: exit %d, want 7", e.Code())
	}
}

// TestInherit checks that descriptors beyond the standard ones are inherited.
func TestInherit(t *testing.T) {
	h, g := open(t, launch.Limits{}, nil)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	c, _ := sh(t, "echo hello >&3")
	c.Files = append(c.Files, w.Fd())
	run(t, h, g, c, launch.Watch{})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(r); err != nil || b.String() != "hello\n" {
		t.Errorf("descriptor 3 gave %q, %v", b.String(), err)
	}
}

// double leaves a process behind that no parent waits for, in its own session, for some time.
const double = `(setsid sleep $1 &)`

func TestLivesOn(t *testing.T) {
	h, g := open(t, launch.Limits{}, nil)
	// The process is not waited for: that would never end.
	c, out := sh(t, double, "1000000")
	m, _ := run(t, h, g, c, launch.Watch{})
	if len(m.LivesOn) != 1 {
		t.Fatalf("lives on: %v, want one\n%s", m.LivesOn, read(t, out))
	}
	if g.Remove() {
		t.Error("the group was removed although it has a process")
	}
	if err := syscall.Kill(m.LivesOn[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the group is empty", func() bool { return len(g.Members()) == 0 })
}

func TestWaitAll(t *testing.T) {
	h, g := open(t, launch.Limits{}, nil)
	c, _ := sh(t, double+"; (setsid sh -c 'sleep 0.1; while [ $((i=i+1)) -lt 100000 ]; do :; done' &)", "0.2")
	m, e := run(t, h, g, c, launch.Watch{WaitAll: true})
	if len(m.LivesOn) != 0 || m.Wall < 200e6 || e.Code() != 0 {
		t.Errorf("%d live on after %d ns, exit %d", len(m.LivesOn), m.Wall, e.Code())
	}
	// The use of orphans is counted, although no parent waits for them.
	user, sys := e.CPU()
	if v := m.Final.Value[usage.CPU]; v < user+sys+1e6 {
		t.Errorf("CPU %d ns, no more than the command's own %d", v, user+sys)
	}
}

// TestWaitAllSignal checks that a signal which asks to end, and no other, ends waiting for other processes, but not these processes.
func TestWaitAllSignal(t *testing.T) {
	h, g := open(t, launch.Limits{}, nil)
	c, _ := sh(t, double, "1000000")
	signals, ended := make(chan os.Signal), make(chan struct{})
	var sender sync.WaitGroup
	send := sync.OnceFunc(func() {
		sender.Go(func() {
			for { // those that come before the command has ended are not passed
				for _, s := range []syscall.Signal{syscall.SIGWINCH, syscall.SIGALRM, syscall.SIGIO, syscall.SIGUSR1, syscall.SIGCONT, syscall.SIGINT} {
					select {
					case signals <- s:
					case <-ended:
						return
					}
				}
			}
		})
	})
	m, _ := run(t, h, g, c, launch.Watch{WaitAll: true, Signals: signals, NeedsSignal: func(os.Signal) bool { return false },
		Sample: func(launch.Moment) bool { send(); return true }})
	close(ended)
	sender.Wait()
	if want := "stopped waiting for what was left running: interrupt"; len(m.LivesOn) == 0 || !slices.Equal(m.Notes, []string{want}) {
		t.Errorf("lives on %v, notes %q, want one of each, %q", m.LivesOn, m.Notes, want)
	}
	for _, p := range m.LivesOn {
		if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	testkit.Eventually(t, "the group is empty", func() bool { return len(g.Members()) == 0 })
}

func TestSignals(t *testing.T) {
	h, g := open(t, launch.Limits{}, nil)
	c, out := sh(t, `trap "exit 40" USR1; trap "exit 41" USR2; echo ready; while :; do sleep 0.01; done`)
	signals := make(chan os.Signal, 2)
	go func() {
		for { // until it has its traps
			if b, _ := os.ReadFile(out.Name()); len(b) > 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		signals <- syscall.SIGUSR2 // not passed on
		signals <- syscall.SIGUSR1
	}()
	_, e := run(t, h, g, c, launch.Watch{Signals: signals, NeedsSignal: func(s os.Signal) bool { return s != syscall.SIGUSR2 }})
	if e.Code() != 40 {
		t.Errorf("exit %d, want 40", e.Code())
	}
}

// TestSignalBefore checks that a command does not start after a signal that asks to end.
func TestSignalBefore(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		h, g := open(t, launch.Limits{}, nil)
		c, out := sh(t, "echo started")
		signals := make(chan os.Signal, 2)
		signals <- syscall.SIGWINCH
		c.Before = func() error { signals <- s; return nil } // the last moment
		_, _, err := launch.Run(h, g, c, launch.Watch{Signals: signals, NeedsSignal: func(os.Signal) bool { return false }})
		want := fmt.Sprintf("/bin/sh: not started: %s came first", unix.SignalName(s))
		if e, ok := errors.AsType[*launch.StartError](err); !ok || e.Code != 128+int(s) || e.Error() != want || launch.IsGroupError(err) {
			t.Errorf("after %v: %v, want code %d, %q", s, err, 128+s, want)
		}
		if text := read(t, out); text != "" {
			t.Errorf("after %v the command has printed %q", s, text)
		}
	}
}

// A jobWithSignal is a job during whose start a signal comes.
type jobWithSignal struct {
	launch.Job
	signals chan<- os.Signal
	signal  os.Signal
}

func (j jobWithSignal) Start(c launch.Command) (*launch.Process, error) {
	p, err := j.Job.Start(c)
	j.signals <- j.signal
	return p, err
}

// TestSignalDuringStart checks that the command gets signals that came before it existed, although the
// terminal sends them to all its processes.
func TestSignalDuringStart(t *testing.T) {
	for _, x := range []struct{ before, during, end syscall.Signal }{
		{syscall.SIGWINCH, syscall.SIGINT, syscall.SIGINT},
		{syscall.SIGUSR1, syscall.SIGWINCH, syscall.SIGUSR1},
		{syscall.SIGPIPE, syscall.SIGTERM, syscall.SIGTERM}, // SIGPIPE is of the output of this process
	} {
		h, g := open(t, launch.Limits{}, nil)
		signals := make(chan os.Signal, 2)
		signals <- x.before
		c := launch.Command{Path: "/bin/sleep", Args: []string{"sleep", "60"}, Files: []uintptr{0, 1, 2}}
		_, e := run(t, h, jobWithSignal{g, signals, x.during}, c, launch.Watch{Signals: signals, NeedsSignal: func(os.Signal) bool { return false }})
		if e.Code() != 128+int(x.end) {
			t.Errorf("%v before and %v during the start: exit %d, want %d", x.before, x.during, e.Code(), 128+x.end)
		}
	}
}

// TestNested checks that groups created by the job are counted with it and removed.
func TestNested(t *testing.T) {
	h, g := open(t, launch.Limits{}, nil)
	dir, _ := g.Dir("cpuacct")
	c, out := sh(t, `mkdir -p $1/a/b && echo 0 > $1/a/b/cgroup.procs && i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done`, dir)
	m, e := run(t, h, g, c, launch.Watch{})
	if e.Code() != 0 {
		t.Fatalf("exit %d: %s", e.Code(), read(t, out))
	}
	user, sys := e.CPU()
	if v := m.Final.Value[usage.CPU]; v < (user+sys)*9/10 {
		t.Errorf("CPU %d ns of %d", v, user+sys)
	}
	if !g.Remove() {
		t.Error("nested groups are left")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", dir, err)
	}
}

// TestSweepOfNew checks that jobs that create their groups long after their IDs have them, although other
// jobs end meanwhile and sweep.
func TestSweepOfNew(t *testing.T) {
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	y := hostfs.Hierarchy{V2: true, Mount: t.TempDir(), Root: "/", Self: "/"}
	if err := os.WriteFile(y.Mount+"/cgroup.procs", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for i := range 200 {
				g, err := launch.Open(h, []hostfs.Hierarchy{y}, report.NewID(1, [10]byte{byte(n), byte(i)}), launch.Limits{})
				if err != nil {
					t.Error(err)
					return
				}
				dir, _ := g.DirV2()
				if _, err := os.Stat(dir); err != nil {
					t.Error(err)
				}
				if !g.Remove() {
					t.Error("the group is left")
				}
			}
		})
	}
	all.Wait()
}

// TestStrayed checks that a note reports a job that leaves its groups, and a group that vanishes.
func TestStrayed(t *testing.T) {
	h, g := open(t, launch.Limits{}, nil)
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for _, y := range ys {
		if d, ok := y.Dir(y.Self); ok {
			dirs = append(dirs, d)
		}
	}
	// Samples are taken before and after the groups are removed.
	c, out := sh(t, `for d; do echo $$ > $d/cgroup.procs; done; await() { >$1; until [ -e $2 ]; do sleep 0.05; done; }; cd $AT; await moved seen; rmdir $GROUPS_OF_JOB; await removed seen2`, dirs...)
	var mine []string
	g.EachGroup(func(_ uint32, dir string) { mine = append(mine, dir) })
	at := t.TempDir()
	c.Env = append(c.Env, "GROUPS_OF_JOB="+strings.Join(mine, " "), "AT="+at)
	looks := map[string]int{}
	m, e := run(t, h, g, c, launch.Watch{Sample: func(moment launch.Moment) bool {
		if moment != launch.Full {
			return true
		}
		for done, seen := range map[string]string{"moved": "seen", "removed": "seen2"} {
			if _, err := os.Stat(filepath.Join(at, done)); err != nil {
				continue
			}
			// The sample in progress may have begun before.
			if looks[done]++; looks[done] == 3 {
				if err := os.WriteFile(filepath.Join(at, seen), nil, 0o600); err != nil {
					t.Error(err)
				}
			}
		}
		return true
	}})
	notes := strings.Join(m.Notes, "\n")
	if e.Code() != 0 || !strings.Contains(notes, "moved out") || !strings.Contains(notes, "removed while it ran") {
		t.Errorf("exit %d, notes:\n%s\n%s", e.Code(), notes, read(t, out))
	}
}

func TestLimits(t *testing.T) {
	hosttest.Need(t, "memcg1")
	// So little that it is throttled even on a slow machine.
	h, g := open(t, launch.Limits{CPUs: 0.01, Memory: 32 << 20}, nil)
	c, _ := sh(t, `i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done`)
	m, _ := run(t, h, g, c, launch.Watch{})
	cpu := m.Final.Value[usage.CPU]
	if float64(cpu) > 0.1*float64(m.Wall)+30e6 || m.Final.Value[usage.CPUThrottled] == 0 {
		t.Errorf("CPU %d ns in %d ns, throttled %d", cpu, m.Wall, m.Final.Value[usage.CPUThrottled])
	}

	h, g = open(t, launch.Limits{Memory: 32 << 20}, nil)
	c, _ = sh(t, `head -c 100000000 /dev/zero | tail | wc -c`)
	m, _ = run(t, h, g, c, launch.Watch{})
	if m.Final.Value[usage.OOMKills] == 0 || m.Final.Value[usage.MemoryPeak] > 32<<20 {
		t.Errorf("OOM kills %d, peak %d", m.Final.Value[usage.OOMKills], m.Final.Value[usage.MemoryPeak])
	}
}

// TestLimitTight checks that a memory limit within which no command can start is refused, before this process tries.
func TestLimitTight(t *testing.T) {
	hosttest.Need(t, "memcg1")
	h, g := open(t, launch.Limits{Memory: 1 << 20}, nil)
	c, _ := sh(t, "exit 0")
	if _, _, err := launch.Run(h, g, c, launch.Watch{}); err != nil {
		t.Errorf("within 1 MiB: %v", err)
	}
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, bytes := range []int64{1, 20 << 10, 1<<20 - 1} {
		_, err := launch.Open(h, ys, report.NewID(2, [10]byte{}), launch.Limits{Memory: bytes})
		e, ok := errors.AsType[*launch.LimitError](err)
		if want := fmt.Sprintf("limit of memory: %d bytes are too few to start a command", bytes); !ok || e.Error() != want || fault.Hint(err) == "" {
			t.Errorf("within %d bytes: %v, want %q with a hint", bytes, err, want)
		}
	}
}

// TestLimitAbove checks that an error says how many CPUs the groups above leave, where the kernel refuses more.
func TestLimitAbove(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1")
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(ys, func(y hostfs.Hierarchy) bool { return v1(y) && y.Has("cpu") })
	if i < 0 {
		t.Skip("no v1 hierarchy has the controller cpu")
	}
	y := &ys[i]
	for _, name := range []string{fmt.Sprintf("mete-limit-above-%d", os.Getpid()), "below"} { // the second one has no limit of its own
		y.Self = path.Join(y.Self, name)
		dir, _ := y.Dir(y.Self)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		if name == "below" {
			continue
		}
		if err := os.WriteFile(dir+"/cpu.cfs_quota_us", []byte("2500"), 0); err != nil {
			t.Fatal(err)
		}
	}
	for cpus, want := range map[float64]string{0.025: "", 0.5: "limit of cpus: the groups above have 0.025 CPUs: invalid"} {
		g, err := launch.Open(h, ys, report.NewID(2, [10]byte{}), launch.Limits{CPUs: cpus})
		if err == nil && !g.Remove() {
			t.Error("groups are left")
		}
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want || fault.Hint(err) != "give --cpus 0.025 or less, or none") {
			t.Errorf("%g CPUs: %v, %s; want %q", cpus, err, fault.Hint(err), want)
		}
	}
}

// TestLimitRefused checks that a limit that no group supports is an error and leaves nothing.
func TestLimitRefused(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1", "cgroup2")
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	id := report.NewID(1, [10]byte{})
	_, err = launch.Open(h, ys[:1], id, launch.Limits{CPUs: 1})
	if e, ok := errors.AsType[*launch.LimitError](err); !ok || e.Limit != "cpus" || !errors.Is(err, fault.ErrUnsupported) || launch.IsGroupError(err) {
		t.Errorf("Open = %v, want a LimitError of cpus", err)
	}
	dir, _ := ys[0].Dir(ys[0].Self)
	if _, err := os.Stat(dir + "/" + launch.Prefix + id); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the group is left: %v", err)
	}
}

func TestReadOnly(t *testing.T) {
	hosttest.Need(t, "root")
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	ys, err := h.Hierarchies()
	if err != nil {
		t.Skip(err)
	}
	for i := range ys {
		ys[i].ReadOnly = true
	}
	if _, err := launch.Open(h, ys, report.NewID(1, [10]byte{}), launch.Limits{}); !errors.Is(err, fault.ErrDenied) || !launch.IsGroupError(err) {
		t.Errorf("Open = %v, want denied", err)
	}
	if _, err := launch.Open(h, nil, report.NewID(1, [10]byte{}), launch.Limits{}); !errors.Is(err, fault.ErrUnsupported) || !launch.IsGroupError(err) {
		t.Errorf("Open of nothing = %v, want unsupported", err)
	}
}

// TestTree runs in a separate process: a subreaper stays one.
func TestTree(t *testing.T) {
	if os.Getenv("METE_TEST_TREE") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestTree$", "-test.v")
		cmd.Env = append(os.Environ(), "METE_TEST_TREE=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	tree, err := launch.OpenTree(h)
	if err != nil {
		t.Fatal(err)
	}
	// A child, a waited-for child, and an orphan each use some 300 ms; the last one prints how
	// much. The command is sampled once more while another orphan lives.
	spin := `i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done`
	c, out := sh(t, fmt.Sprintf(`mkfifo "$1"; (setsid sh -c '%s; cat /proc/$$/schedstat; echo >"$1"' sh "$1" &); sh -c '%[1]s'; %[1]s; read x <"$1"; (setsid sleep 1000000 &); sleep 1.2`, spin),
		filepath.Join(t.TempDir(), "fifo"))
	var peak int64
	m, e := run(t, h, tree, c, launch.Watch{Sample: func(launch.Moment) bool {
		var r usage.Reading
		tree.Read(&r)
		peak = max(peak, r.Value[usage.Memory])
		return true
	}})
	if len(m.LivesOn) != 1 || m.LivesOn[0].Name != "sleep" {
		t.Errorf("lives on: %v, want sleep: %s", m.LivesOn, read(t, out))
	}
	user, sys := e.CPU()
	own, all := user+sys, m.Final.Value[usage.CPU]
	var orphan int64
	if _, err := fmt.Sscan(read(t, out), &orphan); err != nil {
		t.Fatalf("%v: %q", err, read(t, out))
	}
	if all < own+orphan-50e6 || all > own+orphan+own/3 {
		t.Errorf("CPU %d ns, the command and its child %d, the orphan %d", all, own, orphan)
	}
	for _, r := range []usage.Resource{usage.CPU, usage.Memory, usage.MemoryAnon, usage.DiskRead} {
		if !m.Final.Has.Has(r) || !m.Final.Apportioned.Has(r) {
			t.Errorf("%s: there %v, apportioned %v", r, m.Final.Has.Has(r), m.Final.Apportioned.Has(r))
		}
	}
	for _, r := range []usage.Resource{usage.NetworkRx, usage.Processes, usage.CPUThrottled} {
		if m.Final.Has.Has(r) {
			t.Errorf("%s is there, which a tree cannot see", r)
		}
	}
	if peak < 1<<20 {
		t.Errorf("memory peak %d", peak)
	}
	for _, p := range m.LivesOn {
		if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
}

func TestWaitGone(t *testing.T) {
	start := time.Now()
	launch.WaitGone([]launch.Member{{PID: unix.Getpid()}}, 50*time.Millisecond)
	if d := time.Since(start); d < 50*time.Millisecond {
		t.Errorf("this process is gone after %v", d)
	}
	launch.WaitGone([]launch.Member{{PID: 1 << 22}}, 1000*time.Hour) // it does not exist
}

// nestedEnv names the role of this program in TestUnifiedNested.
const nestedEnv = "METE_TEST_NESTED"

// TestUnifiedNested checks that a job within a job has its own figures, that the outer job's figures
// have them too, and that no group is left.
func TestUnifiedNested(t *testing.T) {
	switch os.Getenv(nestedEnv) {
	case "inner":
		h, err := hostfs.Open("/")
		if err != nil {
			t.Fatal(err)
		}
		for cpu := int64(0); cpu < 350e6; cpu, _ = launch.SelfUsage(h) {
		}
		return
	case "outer":
		h, g := open(t, launch.Limits{Memory: 256 << 20}, nil)
		m, e := run(t, h, g, nested("inner", 1, 2), launch.Watch{})
		if e.Code() != 0 {
			t.Fatalf("inner job: exit %d", e.Code())
		}
		fmt.Printf("inner job: %s %d %d\n", g.Path(), m.Final.Value[usage.CPU], m.Final.Value[usage.MemoryPeak])
		if exact := usage.SetOf(usage.CPU, usage.MemoryPeak, usage.PIDsPeak); m.Final.Has&exact != exact || m.Final.Apportioned&exact != 0 {
			t.Errorf("inner job: figures %v, apportioned %v", m.Final.Has, m.Final.Apportioned)
		}
		return
	}
	hosttest.Need(t, "root", "unified")
	out := output(t)
	h, g := open(t, launch.Limits{}, nil)
	dir, _ := g.DirV2()
	m, e := run(t, h, g, nested("outer", out.Fd(), out.Fd()), launch.Watch{})
	if e.Code() != 0 {
		t.Fatalf("outer job: exit %d:\n%s", e.Code(), read(t, out))
	}
	var inner string
	var cpu, peak int64
	_, rest, _ := strings.Cut(read(t, out), "inner job: ")
	if n, err := fmt.Sscan(rest, &inner, &cpu, &peak); n != 3 || err != nil {
		t.Fatalf("%v:\n%s", err, read(t, out))
	}
	if filepath.Dir(inner) != g.Path() {
		t.Errorf("the inner job's group is %s, want one in %s", inner, g.Path())
	}
	if v := m.Final.Value[usage.CPU]; cpu < 300e6 || v < cpu {
		t.Errorf("CPU %d ns of the outer job, %d ns of the inner one", v, cpu)
	}
	if v := m.Final.Value[usage.MemoryPeak]; peak == 0 || v < peak {
		t.Errorf("memory peak %d B of the outer job, %d B of the inner one", v, peak)
	}
	if !g.Remove() {
		t.Error("groups are left")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", dir, err)
	}
}

// nested returns this program in a role of TestUnifiedNested as a command.
func nested(role string, stdout, stderr uintptr) launch.Command {
	// Of two variables with a name the first counts.
	return launch.Command{
		Path: os.Args[0], Args: []string{os.Args[0], "-test.run=^TestUnifiedNested$"}, Env: append([]string{nestedEnv + "=" + role}, os.Environ()...),
		Files: []uintptr{0, stdout, stderr},
	}
}

func TestInJob(t *testing.T) {
	id := launch.Prefix + report.NewID(1, [10]byte{})
	for group, want := range map[string]bool{
		"/": false, "/a/" + id: true, "/a/" + id + "/job": true, "/a/" + id + "/job/x.scope": true,
		"/a/" + launch.Prefix + "x": false, "/a/x" + id: false, "/mete-" + report.NewID(1, [10]byte{}) + ".scope/meter": false,
	} {
		if got := launch.InJob(group); got != want {
			t.Errorf("InJob(%s) = %t, want %t", group, got, want)
		}
	}
}
