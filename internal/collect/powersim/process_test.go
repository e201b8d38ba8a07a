package powersim_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

func TestMain(m *testing.M) {
	powersim.Main()
	os.Exit(m.Run())
}

// start starts a simulator of a server for the loads.
func start(t *testing.T, loads []powersim.Load, whole string) (*powersim.Process, powersim.Config) {
	t.Helper()
	dir := t.TempDir()
	cfg := powersim.Default()
	cfg.Dir, cfg.Truth = filepath.Join(dir, "powercap"), filepath.Join(dir, "truth")
	cfg.Zones = server(powersim.PowerModel{Idle: 10 * watt, Core: 20 * watt})
	cfg.Loads, cfg.Whole = loads, whole
	p, err := powersim.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p, cfg
}

// meters opens the tree like an agent.
func meters(t *testing.T, dir string) *energy.Source {
	t.Helper()
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	var cfg energy.Config
	cfg.Powercap = dir
	s, err := energy.Open(h, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// used returns the CPU time of this process, ns.
func used(t *testing.T) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano()
}

// boottime returns the time in ns since boot.
func boottime(t *testing.T) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano()
}

// TestProcess simulates meters for the load of this test, and compares their readings with
// the truth.
func TestProcess(t *testing.T) {
	began := used(t)
	p, cfg := start(t, []powersim.Load{{Name: "this", PID: os.Getpid()}}, "")
	ready := used(t)
	s := meters(t, cfg.Dir)
	var names []string
	for _, m := range s.Meters() {
		names = append(names, m.Name)
	}
	if got := strings.Join(names, " "); got != "rapl/package-0 rapl/package-0/dram rapl/psys" {
		t.Fatalf("meters %s", got)
	}
	last := make([]power.Reading, len(names))
	var rs []power.Reading
	var err error
	var read int64 // when the last reading was done
	for end := used(t) + 200e6; used(t) < end; {
		if rs, err = s.Read(rs[:0]); err != nil {
			t.Fatal(err)
		}
		read = boottime(t)
		for i, r := range rs {
			if r.Err != "" || r.Value < last[i].Value || r.At < last[i].At {
				t.Fatalf("%+v after %+v", r, last[i])
			}
			last[i] = r
		}
	}
	done := used(t)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	truth, err := p.Truth()
	if err != nil {
		t.Fatal(err)
	}
	now := truth.Records[len(truth.Records)-1]
	// The last step was between done and here, the first reading between began and ready.
	if cpu := now.CPU[0]; cpu < done-ready || cpu > used(t)-began {
		t.Errorf("%d ns of CPU, want %d to %d", cpu, done-ready, used(t)-began)
	}
	if uJ, want := now.Active[0][power.Package], now.CPU[0]/50; !near(uJ, want, 2) {
		t.Errorf("took %d uJ, want 20 W for each ns: %d", uJ, want)
	}
	if others := now.CPU[1]; others != 0 {
		t.Errorf("others used %d ns on a machine that runs only the loads", others)
	}
	if rs, err = s.Read(rs[:0]); err != nil {
		t.Fatal(err)
	}
	if uJ := now.Total(power.Package); !near(rs[0].Value, uJ, 4) {
		t.Errorf("the meter shows %d uJ, and %d were used", rs[0].Value, uJ)
	}
	// In between it also shows the use until the latest step.
	at := slices.IndexFunc(truth.Records, func(r powersim.Record) bool { return r.At > last[0].At })
	if at < 0 {
		t.Fatalf("no record at %d", last[0].At)
	}
	// The counter shows a step some time after its instant, but before the next step.
	after := at + slices.IndexFunc(truth.Records[at:], func(r powersim.Record) bool { return r.At > read })
	if after < at {
		t.Fatalf("no record at %d", read)
	}
	if v := last[0].Value; v > 0 && !slices.ContainsFunc(truth.Records[max(0, at-2):after+1], func(r powersim.Record) bool { return near(v, r.Total(power.Package), 4) }) {
		t.Errorf("showed %d uJ, want what was used until the latest step: %d", v, truth.Records[max(0, at-1)].Total(power.Package))
	}
}

// groups returns the directories of a cpuacct group and of its root.
func groups(t *testing.T) (root, dir string) {
	t.Helper()
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, y := range ys {
		if y.Has("cpuacct") && !y.V2 {
			return y.Mount, filepath.Join(y.Mount, fmt.Sprintf("mete-test-powersim-%d", os.Getpid()))
		}
	}
	t.Fatal("no cpuacct")
	return "", ""
}

// TestGroup simulates meters for a group created after the start, with children that live
// for milliseconds.
func TestGroup(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1")
	root, dir := groups(t)
	p, _ := start(t, []powersim.Load{{Name: "forks", Group: dir}, {Name: "never", Group: dir + "-never"}}, root)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the kernel may need a moment after the last process has ended
		testkit.Eventually(t, dir+" is removed", func() bool { return !errors.Is(os.Remove(dir), unix.EBUSY) })
	})
	cmd := exec.Command("sh", "-c", `echo $$ >"$0"/cgroup.procs; for i in 1 2 3 4 5 6 7 8 9 10; do sh -c 'i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done'; done`, dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	usage := func() (ns int64) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, "cpuacct.usage"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(string(b), &ns); err != nil {
			t.Fatal(err)
		}
		return ns
	}
	// A process that was waited for may still be on its CPU.
	low := usage()
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	high := usage()
	truth, err := p.Truth()
	if err != nil {
		t.Fatal(err)
	}
	now := truth.Records[len(truth.Records)-1]
	if now.CPU[0] < low || now.CPU[0] > high || low == 0 {
		t.Errorf("%d ns, and the kernel counted %d to %d", now.CPU[0], low, high)
	}
	if now.CPU[1] != 0 || now.Active[1][power.Package] != 0 {
		t.Errorf("a group that never existed used %d ns", now.CPU[1])
	}
	if others := now.CPU[2]; others <= 0 {
		t.Errorf("others used %d ns, want what the simulator and this test did", others)
	}
	longest := time.Duration(0)
	for i, r := range truth.Records[1:] {
		longest = max(longest, time.Duration(r.At-truth.Records[i].At))
	}
	t.Logf("%d steps, the longest of %v; %v of CPU", len(truth.Records), longest, time.Duration(now.CPU[0]))
}

func TestStartFails(t *testing.T) {
	cfg := powersim.Default()
	cfg.Whole = "/no/such/group"
	if _, err := powersim.Start(cfg); err == nil || !strings.Contains(err.Error(), "/no/such/group/cpu.stat") {
		t.Errorf("Start() = %v, want an error that names the group", err)
	}
}

func TestTruthAt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "truth")
	text := `{"Loads":["a"]}
{"At":100,"Idle":[0,10,0,0,0],"Active":[[0,1,0,0,0],[0,0,0,0,0]],"CPU":[5,0]}
{"At":200,"Idle":[0,30,0,0,0],"Active":[[0,2,0,0,0],[0,0,0,0,0]],"CPU":[15,0]}
{"At":300,"Id`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	truth, err := powersim.ReadTruth(file)
	if err != nil || len(truth.Records) != 2 || truth.Loads[0] != "a" {
		t.Fatalf("%+v, %v, want two records of a", truth, err)
	}
	for at, want := range map[int64]int64{100: 10, 150: 20, 175: 25, 200: 30} {
		r, ok := truth.At(at)
		if !ok || r.At != at || r.Idle[power.Package] != want {
			t.Errorf("At(%d) = %+v, %v, want %d", at, r, ok, want)
		}
	}
	for _, at := range []int64{99, 201} {
		if r, ok := truth.At(at); ok {
			t.Errorf("At(%d) = %+v, want nothing", at, r)
		}
	}
	a, _ := truth.At(100)
	b, _ := truth.At(200)
	if d := b.Since(a); d.Idle[power.Package] != 20 || d.CPU[0] != 10 || d.Active[0][power.Package] != 1 {
		t.Errorf("Since = %+v", d)
	}
}
