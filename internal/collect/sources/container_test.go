package sources_test

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// Environment of the processes of TestContainer.
const (
	insideEnv = "METE_TEST_INSIDE" // the case, in the meter's process
	burnEnv   = "METE_TEST_BURN"   // in the load's
)

// burnLines uses CPU time for each line of its input, in ms, and answers with the CPU time that
// this process has used since its start, in ns.
func burnLines() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		ms, _ := strconv.Atoi(in.Text())
		for end := spent() + int64(ms)*1e6; spent() < end; {
		}
		fmt.Println(spent())
	}
}

func spent() int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// A meter in a container, in a control group namespace and with mounts of its own: if it can
// open the machine's root group it names all groups; otherwise it measures its own, and what is
// used outside counts for system, never for idle.
func TestContainer(t *testing.T) {
	if text := os.Getenv(insideEnv); text != "" {
		measureInside(t, strings.Split(text, ","))
		return
	}
	hosttest.Need(t, "root", "cgroup1", "memcg1", "cgroup2")
	for _, version := range []string{"v1", "v2"} {
		for _, reader := range []string{sources.BPF, sources.Files} {
			ways := []string{"allowed", "denied"}
			switch version + reader {
			case "v1" + sources.BPF, "v2" + sources.Files:
				ways = append(ways, "mounted", "pids")
			case "v1" + sources.Files, "v2" + sources.BPF:
				ways = append(ways, "own")
			}
			for _, how := range ways {
				t.Run(version+" "+reader+" "+how, func(t *testing.T) {
					if reader == sources.BPF {
						hosttest.Need(t, "bpf")
					}
					runInContainer(t, version, reader, how)
				})
			}
		}
	}
}

// groupMounts returns the mount points of the hierarchies that the test uses, by controller.
func groupMounts(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	ms, err := procfmt.Mountinfo(b)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, m := range ms {
		switch {
		case m.Type == "cgroup2":
			found["v2"] = m.Point
		case m.Type == "cgroup" && procfmt.Has(m.Super, "cpuacct"):
			found["cpuacct"] = m.Point
		case m.Type == "cgroup" && procfmt.Has(m.Super, "memory"):
			found["memory"] = m.Point
		}
	}
	return found
}

// runInContainer runs the meter in a group of its own, beside a load in another one.
func runInContainer(t *testing.T, version, reader, how string) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	top := fmt.Sprintf("/mete-container-%d", os.Getpid())
	var enter [2]string // commands that move a process into the container, and into the group beside it
	for _, m := range groupMounts(t) {
		for i, g := range []string{"", "/box", "/outside"} {
			dir := m + top + g
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				testkit.Eventually(t, "the groups are empty", func() bool {
					err := unix.Rmdir(dir)
					return err == nil || errors.Is(err, unix.ENOENT)
				})
			})
			if i > 0 {
				enter[i-1] += "echo $$ >" + dir + "/cgroup.procs && "
			}
		}
	}
	load := exec.CommandContext(t.Context(), "sh", "-c", enter[1]+`exec "$@"`, "sh", exe)
	load.Env = append(os.Environ(), burnEnv+"=1")
	in, out := testkit.StartPiped(t, load)
	spaces := "-C -m"
	if how == "pids" {
		spaces = "-C -m -p -f --mount-proc"
	}
	args := []string{"-c", enter[0] + "exec unshare " + spaces + ` -- "$@"`, "sh"}
	if how == "denied" {
		args = append(args, "setpriv", "--bounding-set", "-dac_read_search", "--inh-caps", "-dac_read_search", "--")
	}
	cmd := exec.CommandContext(t.Context(), "sh", append(args, exe, "-test.run=^TestContainer$", "-test.v", "-test.count=1")...)
	cmd.Env = append(os.Environ(), insideEnv+"="+strings.Join([]string{version, reader, how, top}, ","))
	cmd.ExtraFiles = []*os.File{in.(*os.File), out.(*os.File)}
	b, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(b), "--- PASS: TestContainer ") {
		t.Errorf("in the container: %v\n%s", err, b)
	}
	if err := errors.Join(in.Close(), load.Wait()); err != nil {
		t.Error(err)
	}
}

// A burner is a process that uses CPU time on request.
type burner struct {
	t   *testing.T
	cmd *exec.Cmd // nil if another process started it
	in  *os.File
	out *bufio.Reader
}

// startBurner starts a burner in the groups of this process.
func startBurner(t *testing.T) *burner {
	t.Helper()
	return startBurnerIn(t, 0)
}

// startBurnerIn starts a burner in new namespaces too.
func startBurnerIn(t *testing.T, namespaces uintptr) *burner {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: namespaces}
	cmd.Env = append(os.Environ(), burnEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := &burner{t, cmd, in.(*os.File), bufio.NewReader(out)}
	b.burn(0) // it has started
	return b
}

// enter moves the process into the groups with these directories.
func (b *burner) enter(dirs ...string) {
	b.t.Helper()
	for _, dir := range dirs {
		if err := os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(b.cmd.Process.Pid)), 0); err != nil {
			b.t.Fatal(err)
		}
	}
}

// end ends the process.
func (b *burner) end() {
	b.t.Helper()
	if err := errors.Join(b.in.Close(), b.cmd.Wait()); err != nil {
		b.t.Error(err)
	}
}

// burn makes the process use ms of CPU time, and returns what it has used since its start, in ns.
func (b *burner) burn(ms int) int64 {
	b.t.Helper()
	if _, err := fmt.Fprintln(b.in, ms); err != nil {
		b.t.Fatal(err)
	}
	text, err := b.out.ReadString('\n')
	if err != nil {
		b.t.Fatal(err)
	}
	v, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

// mountAnew replaces the mounts of control groups by mounts that this namespace makes, as a
// container's runtime does.
func mountAnew(t *testing.T, version string) {
	t.Helper()
	at := groupMounts(t)
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	ms, err := procfmt.Mountinfo(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		if m.Type == "cgroup" || m.Type == "cgroup2" {
			if err := unix.Unmount(m.Point, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
		}
	}
	if version == "v2" {
		if err := unix.Mount("none", at["v2"], "cgroup2", 0, ""); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, c := range []string{"cpuacct", "memory"} {
		if err := unix.Mount("none", at[c], "cgroup", 0, c); err != nil {
			t.Fatal(err)
		}
	}
}

// measureInside is the part of TestContainer in the container.
func measureInside(t *testing.T, args []string) {
	version, reader, how, top := args[0], args[1], args[2], args[3]
	at := groupMounts(t)
	cpu := at["cpuacct"]
	switch {
	case how != "mounted":
		mountAnew(t, version)
		if version == "v2" {
			cpu = at["v2"]
		}
	case version == "v2":
		for c, m := range at {
			if c != "v2" {
				if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
					t.Fatal(err)
				}
			}
		}
		cpu = at["v2"]
	}
	inner := cpu + "/inner"
	if how == "mounted" {
		inner = cpu + top + "/box/inner"
	}
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	outside := &burner{t: t, in: os.NewFile(3, "in"), out: bufio.NewReader(os.NewFile(4, "out"))}
	inside := startBurner(t)
	inside.enter(inner)
	outside.burn(0) // it has started
	defer func() {
		inside.end()
		testkit.Eventually(t, "the group is empty", func() bool { return unix.Rmdir(inner) == nil })
	}()

	var log strings.Builder
	cfg := everyTick(reader)
	cfg.Energy.NVML, cfg.Energy.Powercap = "off", t.TempDir()
	if how == "own" {
		cfg.Scope = sources.ScopeOwn
	}
	m, err := sources.Open(cfg, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, m)
	wholly := how == "allowed" || how == "mounted" || how == "pids"
	extent := m.Extent()
	if (extent == usage.Extent{Scope: usage.Machine}) != wholly || (extent.Ancestors == "") != wholly || !extent.Ancestors.IsValid() || extent.Scope != m.Scope() ||
		(m.Partial() == "") != wholly || strings.Contains(log.String(), "not all groups") == wholly {
		t.Errorf("scope %q, %q, log:\n%s", m.Scope(), m.Partial(), &log)
	}
	if how == "denied" && !strings.Contains(log.String(), "CAP_DAC_READ_SEARCH") {
		t.Errorf("the log does not say what is missing:\n%s", &log)
	}

	if wholly {
		checkPaths(t, version, top)
	}

	used := map[string]usage.Usage{}
	var idle, system int64
	var quality usage.Quality
	balance := usage.Balance{}
	tick := func() {
		t.Helper()
		b := mustTickLost(t, m)
		balance.Add(&b)
		w := m.ClosedWindow()
		if w == nil {
			return
		}
		for _, r := range w.Rows {
			sum := used[r.Workload.Path]
			sum.Add(&r.Usage)
			used[r.Workload.Path] = sum
			switch r.Workload.Kind {
			case workload.Idle:
				idle += r.Usage.Amount[usage.CPU]
			case workload.System:
				system += r.Usage.Amount[usage.CPU]
				quality = max(quality, r.Usage.Quality.Get(usage.CPU))
				if u := &r.Usage; u.Present.Has(usage.CPUUser) && u.Amount[usage.CPUUser]+u.Amount[usage.CPUSystem] != u.Amount[usage.CPU] {
					t.Errorf("user and system time of system do not sum to %d: %d, %d", u.Amount[usage.CPU], u.Amount[usage.CPUUser], u.Amount[usage.CPUSystem])
				}
			}
		}
	}
	first := idleTime(t)
	mustTickLost(t, m)
	from := [2]int64{outside.burn(0), inside.burn(0)}
	var got [2]int64
	for range 3 {
		got[0] = outside.burn(60) - from[0]
		got[1] = inside.burn(40) - from[1]
		tick()
	}
	tick() // what the groups used until they slept
	names := [2]string{top + "/outside", "/inner"}
	if wholly {
		names[1] = top + "/box/inner"
	}
	if reader == sources.BPF { // a group that lives between two ticks
		if err := os.Mkdir(inner+"/late", 0o755); err != nil {
			t.Fatal(err)
		}
		inside.enter(inner + "/late")
		before := inside.burn(0)
		after := inside.burn(20)
		inside.enter(inner)
		if err := os.Remove(inner + "/late"); err != nil {
			t.Fatal(err)
		}
		tick()
		if u := used[names[1]+"/late"]; u.Amount[usage.CPU] < after-before || u.Quality.Get(usage.CPU) != usage.Measured {
			t.Errorf("the short group: booked %+v, want at least %d ns, measured", u, after-before)
		}
	}
	// The group also used what its process did before and after its own measurement.
	const own = 20_000_000
	for i, p := range names {
		u, ok := used[p]
		switch v := u.Amount[usage.CPU]; {
		case i == 0 && !wholly:
			if ok {
				t.Errorf("%s has a row: %+v", p, u)
			}
		case v < got[i]-own || v > got[i]+4*own || u.Quality.Get(usage.CPU) != usage.Measured:
			t.Errorf("%s: booked %d ns, %v; its process used %d", p, v, u.Quality.Get(usage.CPU), got[i])
		}
	}
	// In another PID namespace, files do not show the tasks in the machine's root group.
	unseen := how == "pids" && version == "v2" && reader == sources.Files
	if wholly && !unseen {
		return
	}
	if quality != usage.Apportioned {
		t.Errorf("the CPU time of system is %v", quality)
	}
	if unseen {
		checkIdle(t, idle, first)
		return
	}
	// A reading of the kernel's idle time that came late is made up by the next one.
	testkit.Eventually(t, "system has what was used outside", func() bool {
		if system >= got[0]-own {
			return true
		}
		tick()
		return false
	})
	checkIdle(t, idle, first)
	i := 0 // CPU, the first of the wholes
	if balance.Whole[i]+balance.Skew[i] != balance.Workloads[i]+balance.System[i]+balance.Idle[i] || balance.System[i] != system {
		t.Errorf("the parts do not sum to the whole: %+v", balance)
	}
}

// checkPaths checks the paths of processes, which the kernel shows relative to the namespace.
func checkPaths(t *testing.T, version, top string) {
	t.Helper()
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }() // nothing was written
	ys, err := h.Hierarchies()
	if err == nil {
		err = h.ShowRoots()
	}
	if err != nil {
		t.Fatal(err)
	}
	before := ys
	if ys, err = h.Hierarchies(); err != nil {
		t.Fatal(err)
	}
	for i, y := range ys {
		if y.V2 != (version == "v2") || !y.V2 && !y.Has("cpuacct") {
			continue
		}
		other := y.Absolute("/../outside")
		if dir, ok := y.Dir(other); before[i].Self != "/" || y.Self != top+"/box" || other != top+"/outside" || !ok || dir != y.Mount+other {
			t.Errorf("this process is in %q, in the namespace in %q; the other one is in %q: %q", y.Self, before[i].Self, other, dir)
		}
		if whole, err := h.ShowsRoot(y); !whole || err != nil {
			t.Errorf("%s does not show the root: %v", y.Mount, err)
		}
	}
}

// checkIdle checks that no more idle time was booked than the kernel shows since it showed first.
func checkIdle(t *testing.T, booked, first int64) {
	t.Helper()
	const slack = 80 * time.Millisecond // two of the steps in which the kernel shows it, of each CPU
	if shown := time.Duration(idleTime(t) - first); time.Duration(booked) > shown+slack {
		t.Errorf("booked %v of idle time, the kernel shows %v", time.Duration(booked), shown)
	}
}

// mustTickLost is mustTick where other tests make groups at the same time.
func mustTickLost(t *testing.T, m *sources.Machine) usage.Balance {
	t.Helper()
	b, err := m.Tick()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range usage.Wholes {
		if !b.IsBalanced(r) {
			t.Errorf("parts of %v do not sum to the whole: %+v", r, b)
		}
	}
	if w := m.ClosedWindow(); w != nil && w.Balance.Violations > 0 {
		t.Errorf("%d violations: %+v", w.Balance.Violations, w.Balance)
	}
	return b
}

// idleTime returns the machine's idle time in ns.
func idleTime(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	s, err := procfmt.Stat(b)
	if err != nil {
		t.Fatal(err)
	}
	return s.Idle + s.IOWait
}
