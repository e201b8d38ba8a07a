package cgroup_test

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/cgroup"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// Machines with a group whose files are complete: the same values in version 1 and in version 2.
const (
	slowDevices = `-- mete/clocks --
boottime 1000000000
monotonic 1000000000
realtime 1700000000000000000
-- proc/devices --
Block devices:
  8 sd
-- proc/diskstats --
   8       0 sda 5 0 8 0 5 0 8 0 0 0 0
-- sys/block/sda/dev --
8:0
`
	slowV1 = slowDevices + `-- mete/ids --
-- proc/self/cgroup --
4:blkio:/
3:pids:/
2:memory:/
1:cpu,cpuacct:/
-- proc/self/mountinfo --
1 0 0:1 / /cpu rw - cgroup cgroup rw,cpu,cpuacct
2 0 0:2 / /memory rw - cgroup cgroup rw,memory
3 0 0:3 / /pids rw - cgroup cgroup rw,pids
4 0 0:4 / /blkio rw - cgroup cgroup rw,blkio
-- cpu/cpuacct.usage --
99000000000
-- cpu/cpuacct.stat --
user 500
system 600
-- cpu/cpu.stat --
nr_periods 1
nr_throttled 1
throttled_time 1
-- memory/memory.usage_in_bytes --
5000
-- memory/memory.stat --
rss 500
cache 600
-- memory/memory.limit_in_bytes --
7000
-- pids/pids.current --
12
-- cpu/a.service/cpuacct.usage --
7000000000
-- cpu/a.service/cpuacct.stat --
user 300
system 400
-- cpu/a.service/cpu.stat --
nr_periods 5
nr_throttled 2
throttled_time 6000000000
-- cpu/a.service/cpu.cfs_quota_us --
50000
-- cpu/a.service/cpu.cfs_period_us --
100000
-- memory/a.service/memory.usage_in_bytes --
1000
-- memory/a.service/memory.stat --
rss 100
cache 200
inactive_file 300
-- memory/a.service/memory.max_usage_in_bytes --
2000
-- memory/a.service/memory.failcnt --
9
-- memory/a.service/memory.oom_control --
oom_kill_disable 0
oom_kill 1
-- memory/a.service/memory.limit_in_bytes --
4096
-- pids/a.service/pids.current --
11
-- blkio/blkio.throttle.io_service_bytes_recursive --
8:0 Read 4096
8:0 Write 4096
Total 8192
-- blkio/a.service/blkio.throttle.io_service_bytes_recursive --
8:0 Read 21
8:0 Write 22
7:0 Read 99
7:0 Write 99
Total 241
-- blkio/a.service/blkio.throttle.io_serviced_recursive --
7:0 Read 99
7:0 Write 99
8:0 Read 23
8:0 Write 24
Total 245
`
	slowV2 = slowDevices + `-- mete/ids --
101 /cg/a.service
-- proc/self/cgroup --
0::/
-- proc/self/mountinfo --
1 0 0:1 / /cg rw - cgroup2 cgroup2 rw
-- cg/cgroup.controllers --
cpu io memory pids
-- cg/cpu.stat --
usage_usec 99000000
nr_periods 1
nr_throttled 1
throttled_usec 1
-- cg/memory.stat --
anon 500
file 600
-- cg/cpu.pressure --
some avg10=0.00 avg60=0.00 avg300=0.00 total=34
-- cg/a.service/cpu.stat --
usage_usec 7000000
user_usec 3000000
system_usec 4000000
nr_periods 5
nr_throttled 2
throttled_usec 6000000
-- cg/a.service/cpu.max --
50000 100000
-- cg/a.service/memory.current --
1000
-- cg/a.service/memory.stat --
anon 100
file 200
inactive_file 300
-- cg/a.service/memory.peak --
2000
-- cg/a.service/memory.events.local --
high 8
max 9
oom_kill 1
-- cg/a.service/memory.max --
4096
-- cg/a.service/pids.current --
11
-- cg/a.service/cpu.pressure --
some avg10=0.00 avg60=0.00 avg300=0.00 total=31
full avg10=0.00 avg60=0.00 avg300=0.00 total=1
-- cg/a.service/memory.pressure --
some avg10=0.00 avg60=0.00 avg300=0.00 total=32
-- cg/a.service/io.pressure --
some avg10=0.00 avg60=0.00 avg300=0.00 total=33
-- cg/a.service/io.stat --
7:0 rbytes=99 wbytes=99 rios=99 wios=99
8:0 rbytes=21 wbytes=22 rios=23 wios=24
`
)

// A slowMachine is a captured machine that is read in windows of one tick.
type slowMachine struct {
	t     *testing.T
	h     *hostfs.FS
	table *cgroup.Table
	cpu   int64
	root  usage.Group // in the latest tick
}

func openSlow(t *testing.T, capture string) *slowMachine {
	t.Helper()
	h := hosttest.Unpack(t, []byte(capture))
	table, err := cgroup.OpenFiles(h, cgroup.Config{Node: "n", Boot: "b", Every: 1, Files: 20}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	})
	return &slowMachine{t: t, h: h, table: table, cpu: 7_000_000}
}

// write writes a file, or removes it where text is empty.
func (m *slowMachine) write(file, text string) {
	m.t.Helper()
	var err error
	if text == "" {
		err = os.Remove(m.h.Path(file))
	} else {
		err = os.WriteFile(m.h.Path(file), []byte(text), 0o644)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// work lets the group use CPU time, so that its files are read in the next tick.
func (m *slowMachine) work() {
	m.cpu++
	if _, err := os.Stat(m.h.Path("/cg")); err != nil {
		m.write("/cpu/a.service/cpuacct.usage", fmt.Sprintln(m.cpu*1000))
		return
	}
	m.write("/cg/a.service/cpu.stat", fmt.Sprintf("usage_usec %d\n", m.cpu))
}

// read returns the group in the next tick.
func (m *slowMachine) read() usage.Group {
	m.t.Helper()
	var s usage.Snapshot
	if err := m.table.Read(&s); err != nil {
		m.t.Fatal(err)
	}
	m.table.Booked()
	m.root = *s.Groups[0]
	for _, g := range s.Groups {
		if g.Workload.Path == "/a.service" {
			return *g
		}
	}
	m.t.Fatal("there is no group")
	return usage.Group{}
}

func valuesOf(g *usage.Group) map[usage.Resource]int64 {
	values := map[usage.Resource]int64{}
	g.Has.Each(func(r usage.Resource) { values[r] = g.Value[r] })
	return values
}

// TestSlowFiles checks what the files of a group say in both versions, and that what a file says is absent without it.
func TestSlowFiles(t *testing.T) {
	base := map[usage.Resource]int64{
		usage.CPU: 7e9, usage.CPUUser: 3e9, usage.CPUSystem: 4e9, usage.CPUPeriods: 5, usage.CPUThrottledPeriods: 2, usage.CPUThrottled: 6e9,
		usage.Memory: 1000, usage.MemoryAnon: 100, usage.MemoryFile: 200, usage.MemoryWorking: 700, usage.MemoryPeak: 2000, usage.OOMKills: 1, usage.MemoryMaxEvents: 9,
		usage.PIDs: 11, usage.DiskRead: 21, usage.DiskWritten: 22, usage.DiskReads: 23, usage.DiskWrites: 24,
	}
	more := map[usage.Resource]int64{usage.MemoryHighEvents: 8, usage.PressureCPU: 31000, usage.PressureMemory: 32000, usage.PressureIO: 33000}
	disks := usage.SetOf(usage.DiskRead, usage.DiskWritten, usage.DiskReads, usage.DiskWrites)
	for name, c := range map[string]struct {
		capture string
		want    map[usage.Resource]int64
		without map[string]usage.Set // of a file that is missing when the group is found
	}{
		"v1": {slowV1, base, map[string]usage.Set{
			"cpu/a.service/cpuacct.stat":                                usage.SetOf(usage.CPUUser, usage.CPUSystem),
			"cpu/a.service/cpu.stat":                                    usage.SetOf(usage.CPUPeriods, usage.CPUThrottledPeriods, usage.CPUThrottled),
			"memory/a.service/memory.usage_in_bytes":                    usage.SetOf(usage.Memory, usage.MemoryWorking),
			"memory/a.service/memory.stat":                              usage.SetOf(usage.MemoryAnon, usage.MemoryFile, usage.MemoryWorking),
			"memory/a.service/memory.max_usage_in_bytes":                usage.SetOf(usage.MemoryPeak),
			"memory/a.service/memory.failcnt":                           usage.SetOf(usage.MemoryMaxEvents),
			"memory/a.service/memory.oom_control":                       usage.SetOf(usage.OOMKills),
			"pids/a.service/pids.current":                               usage.SetOf(usage.PIDs),
			"blkio/a.service/blkio.throttle.io_service_bytes_recursive": disks,
			"blkio/a.service/blkio.throttle.io_serviced_recursive":      disks,
			"blkio/blkio.throttle.io_service_bytes_recursive":           disks,
			"proc/diskstats":                                            disks,
		}},
		"v2": {slowV2, func() map[usage.Resource]int64 {
			all := maps.Clone(base)
			maps.Copy(all, more)
			return all
		}(), map[string]usage.Set{
			"cg/a.service/memory.current":      usage.SetOf(usage.Memory, usage.MemoryWorking),
			"cg/a.service/memory.stat":         usage.SetOf(usage.MemoryAnon, usage.MemoryFile, usage.MemoryWorking),
			"cg/a.service/memory.peak":         usage.SetOf(usage.MemoryPeak),
			"cg/a.service/memory.events.local": usage.SetOf(usage.OOMKills, usage.MemoryHighEvents, usage.MemoryMaxEvents),
			"cg/a.service/pids.current":        usage.SetOf(usage.PIDs),
			"cg/a.service/cpu.pressure":        usage.SetOf(usage.PressureCPU, usage.PressureMemory, usage.PressureIO), // others are not looked for
			"cg/a.service/io.pressure":         usage.SetOf(usage.PressureIO),
			"cg/a.service/io.stat":             disks,
		}},
	} {
		m := openSlow(t, c.capture)
		g := m.read()
		if got := valuesOf(&g); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		// The files of the machine's root group say less than other sources.
		root := map[usage.Resource]int64{}
		if name == "v1" {
			root = map[usage.Resource]int64{usage.CPU: 99e9, usage.CPUUser: 5e9, usage.CPUSystem: 6e9}
		}
		if got := valuesOf(&m.root); !maps.Equal(got, root) || m.root.CPULimit != 0 || m.root.MemoryLimit != 0 {
			t.Errorf("%s: the root has %v, want %v; limits %d and %d", name, got, root, m.root.CPULimit, m.root.MemoryLimit)
		}
		if g.CPULimit != 500e6 || g.MemoryLimit != 4096 {
			t.Errorf("%s: limits %d and %d", name, g.CPULimit, g.MemoryLimit)
		}
		if !m.table.CountsMergedRequests() {
			t.Errorf("%s: requests are not those of the files: %v", name, m.table.Notes())
		}
		for file, absent := range c.without {
			g := openSlow(t, strings.Replace(c.capture, "-- "+file+" --\n", "-- else --\n", 1)).read()
			want := maps.Clone(c.want)
			maps.DeleteFunc(want, func(r usage.Resource, _ int64) bool { return absent.Has(r) })
			if got := valuesOf(&g); !maps.Equal(got, want) {
				t.Errorf("%s without %s: %v, want %v", name, file, got, want)
			}
		}
	}
}

// TestLevelsEnd checks that levels which a group had are absent once their files are gone or the group has children, and
// that a group is read again only if it did something.
func TestLevelsEnd(t *testing.T) {
	m := openSlow(t, slowV2)
	m.read()
	m.write("/cg/a.service/memory.stat", "anon 101\nfile 201\n")
	if g := m.read(); g.Value[usage.MemoryAnon] != 100 {
		t.Errorf("a group that did nothing was read: %v", valuesOf(&g))
	}
	m.work()
	if g := m.read(); g.Value[usage.MemoryAnon] != 101 || g.Value[usage.MemoryFile] != 201 {
		t.Errorf("a group that did something was not read: %v", valuesOf(&g))
	}
	m.write("/cg/a.service/pids.current", "")
	if g := m.read(); g.Has.Has(usage.PIDs) || !g.Has.Has(usage.MemoryAnon) {
		t.Errorf("without pids.current: %v", valuesOf(&g))
	}
	if err := os.Mkdir(m.h.Path("/cg/a.service/b.service"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.work()
	m.read()
	m.work()
	if g := m.read(); g.Has&usage.SetOf(usage.MemoryAnon, usage.MemoryFile, usage.MemoryWorking) != 0 || !g.Has.Has(usage.MemoryPeak) {
		t.Errorf("with a child: %v", valuesOf(&g))
	}
}

// TestLimits checks the limits of CPU time, in ns a second, and of memory; 0 is none.
func TestLimits(t *testing.T) {
	v1, v2 := openSlow(t, slowV1), openSlow(t, slowV2)
	for _, c := range []struct {
		m     *slowMachine
		files []string // and their texts
		want  [2]int64
	}{
		{v2, []string{"cpu.max", "max 100000\n", "memory.max", "max\n"}, [2]int64{0, 0}},
		{v2, []string{"cpu.max", "200000 100000\n", "memory.max", "0\n"}, [2]int64{2e9, 0}},
		{v2, []string{"cpu.max", "9223372036854775 1\n", "memory.max", "4611686018427387903\n"}, [2]int64{0, 1<<62 - 1}},
		{v2, []string{"cpu.max", "9223372036854775 1000000\n", "memory.max", "4611686018427387904\n"}, [2]int64{1 << 62, 0}},
		{v2, []string{"cpu.max", "1 1000000\n", "memory.max", "4096\n"}, [2]int64{1000, 4096}},
		{v2, []string{"cpu.max", "", "memory.max", ""}, [2]int64{0, 0}},
		{v1, []string{"cpu.cfs_quota_us", "-1\n", "memory.limit_in_bytes", "9223372036854771712\n"}, [2]int64{0, 0}},
		{v1, []string{"cpu.cfs_quota_us", "0\n", "memory.limit_in_bytes", "8192\n"}, [2]int64{0, 8192}},
		{v1, []string{"cpu.cfs_quota_us", "300000\n"}, [2]int64{3e9, 8192}},
		{v1, []string{"cpu.cfs_period_us", "0\n"}, [2]int64{0, 8192}},
		{v1, []string{"cpu.cfs_period_us", "150000\n"}, [2]int64{2e9, 8192}},
		{v1, []string{"cpu.cfs_period_us", ""}, [2]int64{0, 8192}},
		{v1, []string{"cpu.cfs_quota_us", ""}, [2]int64{0, 8192}},
	} {
		for i := 0; i < len(c.files); i += 2 {
			dir := "/cg/a.service/"
			if c.m == v1 {
				dir, _, _ = strings.Cut(c.files[i], ".")
				dir = "/" + dir + "/a.service/"
			}
			c.m.write(dir+c.files[i], c.files[i+1])
		}
		c.m.work()
		if g := c.m.read(); [2]int64{g.CPULimit, g.MemoryLimit} != c.want {
			t.Errorf("%q: limits %d and %d, want %d", c.files, g.CPULimit, g.MemoryLimit, c.want)
		}
	}
}

// TestFewControllers checks that a machine without controllers has CPU time only, and says what is absent.
func TestFewControllers(t *testing.T) {
	capture := strings.NewReplacer("cpu io memory pids\n", "hugetlb\n").Replace(slowV2)
	for _, file := range []string{"memory.current", "memory.stat", "pids.current", "io.stat", "cpu.max", "memory.max"} {
		capture = strings.Replace(capture, "-- cg/a.service/"+file+" --\n", "-- else --\n", 1)
	}
	m := openSlow(t, capture)
	g := m.read()
	want := map[usage.Resource]int64{
		usage.CPU: 7e9, usage.CPUUser: 3e9, usage.CPUSystem: 4e9, usage.CPUPeriods: 5, usage.CPUThrottledPeriods: 2, usage.CPUThrottled: 6e9,
		usage.PressureCPU: 31000, usage.PressureMemory: 32000, usage.PressureIO: 33000,
	}
	if got := valuesOf(&g); !maps.Equal(got, want) || g.CPULimit != 0 || g.MemoryLimit != 0 {
		t.Errorf("%v, want %v; limits %d and %d", got, want, g.CPULimit, g.MemoryLimit)
	}
	if other := openSlow(t, strings.Replace(slowV1, "8:0 Read 4096\n8:0 Write 4096\n", "8:16 Read 4096\n", 1)); other.table.CountsMergedRequests() {
		t.Error("files that do not list a disk which did I/O count")
	}
	if notes := fmt.Sprint(m.table.Notes()); !strings.Contains(notes, "disk: no io controller") || m.table.CountsMergedRequests() {
		t.Errorf("notes %s", notes)
	}
}

// TestUnifiedID checks the id of a group in version 2, alone and beside version 1.
func TestUnifiedID(t *testing.T) {
	beside := strings.NewReplacer("-- mete/ids --\n", "-- mete/ids --\n101 /cg/a.service\n", "4 0 0:4 / /blkio", "5 0 0:5 / /cg rw - cgroup2 cgroup2 rw\n4 0 0:4 / /blkio",
		"1:cpu,cpuacct:/\n", "1:cpu,cpuacct:/\n0::/\n").Replace(slowV1) + "-- cg/cgroup.controllers --\n-- cg/a.service/cgroup.procs --\n"
	for name, c := range map[string]struct {
		capture string
		want    uint64
		unified bool
	}{
		"v2": {slowV2, 101, true}, "v1": {slowV1, 0, false}, "beside": {beside, 101, true},
		"missing": {strings.Replace(beside, "101 /cg/a.service\n", "", 1), 0, true},
	} {
		m := openSlow(t, c.capture)
		slot := m.read().Slot
		if got := m.table.UnifiedID(slot); got != c.want || m.table.HasUnified() != c.unified || m.table.UnifiedID(slot+9) != 0 {
			t.Errorf("%s: id %d, want %d; version 2 is there: %t", name, got, c.want, m.table.HasUnified())
		}
	}
}
