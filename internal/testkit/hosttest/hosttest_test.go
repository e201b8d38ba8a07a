package hosttest_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/testkit/hosttest"
)

var update = flag.Bool("update", false, "rewrite the constructed machines")

// capture formats a machine with both its ticks like mete capture.
func capture(m *machine) string {
	first, second := m.state(0), m.state(1)
	all := maps.Clone(first)
	var gone []string
	for name := range first {
		if _, ok := second[name]; !ok {
			name, _, _ = strings.Cut(name, " -> ")
			gone = append(gone, name)
		}
	}
	for name, text := range second {
		if old, ok := first[name]; !ok || old != text {
			all["tick2/"+name] = text
		}
	}
	// A recreated group has new files under the old names.
	for _, y := range m.hierarchies {
		m.root.each(1, func(g *group) {
			dir := strings.TrimPrefix(path.Join(y.mount, g.path), "/")
			if g.again == 0 || !g.isIn(y) {
				return
			}
			for name := range first {
				if path.Dir(name) == dir {
					gone = append(gone, name)
					all["tick2/"+name] = second[name]
				}
			}
		})
	}
	if len(gone) > 0 {
		slices.Sort(gone)
		all["tick2/mete/gone"] = strings.Join(gone, "\n") + "\n"
	}
	var b strings.Builder
	b.WriteString(m.header + "\n\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "-- %s --\n%s", name, all[name])
	}
	return b.String()
}

func TestConstructed(t *testing.T) {
	for _, m := range constructed() {
		file := "testdata/" + m.name + ".txtar"
		want := capture(m)
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, string(got)); d != "" {
			t.Errorf("%s is stale (-update rewrites it; -want +got):\n%.2000s", file, d)
		}
	}
}

func TestHierarchies(t *testing.T) {
	type row struct {
		ID          uint32
		V2          bool
		Name, Mount string
		Controllers string
	}
	want := map[string][]row{
		"vm-v1-apart": {{0, true, "", "/sys/fs/cgroup/unified", "hugetlb"}, {1, false, "", "/sys/fs/cgroup/cpu", "cpu"}, {2, false, "", "/sys/fs/cgroup/cpuacct", "cpuacct"},
			{3, false, "", "/sys/fs/cgroup/cpuset", "cpuset"}, {4, false, "", "/sys/fs/cgroup/memory", "memory"}, {5, false, "", "/sys/fs/cgroup/devices", "devices"},
			{6, false, "", "/sys/fs/cgroup/freezer", "freezer"}, {7, false, "", "/sys/fs/cgroup/blkio", "blkio"}, {8, false, "", "/sys/fs/cgroup/pids", "pids"},
			{9, false, "systemd", "/sys/fs/cgroup/systemd", ""}},
		"v2-systemd-containerd": {{0, true, "", "/sys/fs/cgroup", "cpu cpuset hugetlb io memory misc pids rdma"}},
		"slurm-v2":              {{0, true, "", "/sys/fs/cgroup", "cpu cpuset io memory pids"}},
		"v1-kubelet": {{1, false, "systemd", "/sys/fs/cgroup/systemd", ""}, {2, false, "", "/sys/fs/cgroup/cpu,cpuacct", "cpu cpuacct"},
			{3, false, "", "/sys/fs/cgroup/cpuset", "cpuset"}, {4, false, "", "/sys/fs/cgroup/memory", "memory"}, {5, false, "", "/sys/fs/cgroup/blkio", "blkio"},
			{6, false, "", "/sys/fs/cgroup/pids", "pids"}, {7, false, "", "/sys/fs/cgroup/devices", "devices"}, {8, false, "", "/sys/fs/cgroup/freezer", "freezer"},
			{9, false, "", "/sys/fs/cgroup/net_cls,net_prio", "net_cls net_prio"}, {10, false, "", "/sys/fs/cgroup/perf_event", "perf_event"}, {11, false, "", "/sys/fs/cgroup/hugetlb", "hugetlb"}},
		"hybrid": {{0, true, "", "/sys/fs/cgroup/unified", ""}, {1, false, "systemd", "/sys/fs/cgroup/systemd", ""}, {2, false, "", "/sys/fs/cgroup/cpu,cpuacct", "cpu cpuacct"},
			{3, false, "", "/sys/fs/cgroup/memory", "memory"}, {4, false, "", "/sys/fs/cgroup/blkio", "blkio"}, {5, false, "", "/sys/fs/cgroup/pids", "pids"},
			{6, false, "", "/sys/fs/cgroup/cpuset", "cpuset"}, {7, false, "", "/sys/fs/cgroup/freezer", "freezer"}, {8, false, "", "/sys/fs/cgroup/devices", "devices"}},
		"slurm-v1": {{1, false, "systemd", "/sys/fs/cgroup/systemd", ""}, {2, false, "", "/sys/fs/cgroup/cpu,cpuacct", "cpu cpuacct"},
			{3, false, "", "/sys/fs/cgroup/cpuset", "cpuset"}, {4, false, "", "/sys/fs/cgroup/memory", "memory"}, {5, false, "", "/sys/fs/cgroup/blkio", "blkio"},
			{6, false, "", "/sys/fs/cgroup/pids", "pids"}, {7, false, "", "/sys/fs/cgroup/devices", "devices"}, {8, false, "", "/sys/fs/cgroup/freezer", "freezer"}},
	}
	for _, name := range hosttest.Names(t) {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Open(t, name)
			ys, err := h.Hierarchies()
			if err != nil {
				t.Fatal(err)
			}
			var got []row
			for _, y := range ys {
				got = append(got, row{y.ID, y.V2, y.Name, y.Mount, strings.Join(y.Controllers, " ")})
				dir, ok := y.Dir(y.Self)
				if _, err := h.ReadDir(dir); !ok || y.Self == "" || err != nil {
					t.Errorf("%s: own group %q: %v", y.Mount, y.Self, err)
				}
				if id, err := h.ID(dir); id == 0 || err != nil {
					t.Errorf("ID(%s) = %d, %v", dir, id, err)
				}
			}
			if d := cmp.Diff(want[name], got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// Every file of every machine parses, at every tick.
func TestParse(t *testing.T) {
	for _, name := range hosttest.Names(t) {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Open(t, name)
			parse(t, h)
			before, err := h.Clocks()
			if err != nil {
				t.Fatal(err)
			}
			hosttest.Step(t, h)
			parse(t, h)
			after, err := h.Clocks()
			if err != nil || after.Boottime <= before.Boottime {
				t.Errorf("clocks %v, then %v, %v", before, after, err)
			}
		})
	}
}

func parse(t *testing.T, h *hostfs.FS) {
	t.Helper()
	files := 0
	err := walk(h, "/", func(p string, b []byte) {
		f, ok := parsers[path.Base(p)]
		if !ok || strings.HasPrefix(p, "/tick2") {
			return
		}
		if err := f(b); err != nil {
			t.Errorf("%s: %v", p, err)
		}
		files++
	})
	if err != nil || files < 100 {
		t.Errorf("%d files parsed, %v", files, err)
	}
	for _, read := range []func() error{
		func() error { _, err := h.BootID(); return err },
		func() error { _, err := h.MachineID(); return err },
		func() error { _, err := h.Hostname(); return err },
		func() error { _, err := h.Release(); return err },
	} {
		// A machine without systemd may have no machine id.
		if err := read(); err != nil && !strings.Contains(err.Error(), "machine-id") {
			t.Error(err)
		}
	}
}

// parsers has the parser of each file by name; if a name occurs twice, that of the file in
// /proc/PID or in the root of /proc.
var parsers = map[string]func([]byte) error{
	"cpu.stat":              func(b []byte) error { _, err := procfmt.CPUStat(b); return err },
	"cpuacct.usage":         integer,
	"cpuacct.stat":          func(b []byte) error { _, _, err := procfmt.CPUAcctStat(b); return err },
	"memory.stat":           func(b []byte) error { _, err := procfmt.MemoryStat(b); return err },
	"memory.current":        integer,
	"memory.max":            integer,
	"memory.usage_in_bytes": integer,
	"memory.limit_in_bytes": integer,
	"pids.current":          integer,
	"pids.max":              integer,
	"io.stat":               func(b []byte) error { return procfmt.IOStat(b, func(procfmt.Dev, procfmt.IO) {}) },
	"blkio.throttle.io_service_bytes_recursive": blkio,
	"blkio.throttle.io_serviced":                blkio,
	"cpu.pressure":                              pressured,
	"memory.pressure":                           pressured,
	"mountinfo":                                 func(b []byte) error { _, err := procfmt.Mountinfo(b); return err },
	"cgroup":                                    func(b []byte) error { _, err := procfmt.Cgroups(b); return err },
	"cgroups":                                   func(b []byte) error { _, err := procfmt.ProcCgroups(b); return err },
	"schedstat":                                 func(b []byte) error { _, _, err := procfmt.Schedstat(b); return err },
	"meminfo":                                   func(b []byte) error { _, err := procfmt.Meminfo(b); return err },
	"devices":                                   func(b []byte) error { _, err := procfmt.Devices(b); return err },
	"diskstats": func(b []byte) error {
		return procfmt.Diskstats(b, func(procfmt.Dev, string, procfmt.DiskIO) {})
	},
	"stat": func(b []byte) error {
		if strings.HasPrefix(string(b), "cpu") {
			_, err := procfmt.Stat(b)
			return err
		}
		_, err := procfmt.ProcStat(b)
		return err
	},
}

func integer(b []byte) error { _, err := procfmt.Int(b); return err }

func blkio(b []byte) error {
	_, err := procfmt.BlkioServiceBytes(b, func(procfmt.Dev, int64, int64) {})
	return err
}

func pressured(b []byte) error { _, _, err := procfmt.Pressure(b); return err }

// walk calls f for every file below dir.
func walk(h *hostfs.FS, dir string, f func(p string, b []byte)) error {
	es, err := h.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range es {
		p := path.Join(dir, e.Name())
		switch {
		case e.IsDir():
			err = walk(h, p, f)
		case e.Type().IsRegular():
			var b []byte
			if b, err = h.ReadFile(p); err == nil {
				f(p, b)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Counters of a group include those of the groups below it, and never decrease.
func TestCoherent(t *testing.T) {
	for _, m := range constructed() {
		t.Run(m.name, func(t *testing.T) {
			h := hosttest.Open(t, m.name)
			first := cpu(t, h)
			hosttest.Step(t, h)
			second := cpu(t, h)
			anew := ""
			m.root.each(1, func(g *group) {
				if g.again > 0 {
					anew = g.path
				}
			})
			for _, at := range []map[string]int64{first, second} {
				below := map[string]int64{}
				for dir, v := range at {
					below[path.Dir(dir)] += v
				}
				for dir, v := range at {
					if below[dir] > v {
						t.Errorf("%s: %d, and %d in the groups below", dir, v, below[dir])
					}
				}
			}
			for dir, v := range second {
				if v < first[dir] && (anew == "" || !strings.HasSuffix(dir, anew)) {
					t.Errorf("%s: %d, then %d", dir, first[dir], v)
				}
			}
		})
	}
}

// cpu reads the CPU time of all groups by directory.
func cpu(t *testing.T, h *hostfs.FS) map[string]int64 {
	t.Helper()
	got := map[string]int64{}
	err := walk(h, "/sys/fs/cgroup", func(p string, b []byte) {
		switch path.Base(p) {
		case "cpuacct.usage":
			v, err := procfmt.Int(b)
			if err != nil {
				t.Error(err)
			}
			got[path.Dir(p)] = v
		case "cpu.stat":
			c, err := procfmt.CPUStat(b)
			if err != nil {
				t.Error(err)
			}
			if c.HasUsage {
				got[path.Dir(p)] = c.Usage
			}
		}
	})
	if err != nil || len(got) < 10 {
		t.Fatalf("%d groups, %v", len(got), err)
	}
	return got
}

func TestStep(t *testing.T) {
	h := hosttest.Open(t, "v2-systemd-containerd")
	const cron = "/sys/fs/cgroup/system.slice/cron.service"
	open := func(p string) *hostfs.File {
		f, err := h.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
		return f
	}
	kept, anew := open("/sys/fs/cgroup/cpu.stat"), open(cron+"/cpu.stat")
	before, err := kept.ReadInto(nil)
	if err != nil {
		t.Fatal(err)
	}
	born, err := h.ID(cron)
	if err != nil {
		t.Fatal(err)
	}
	hosttest.Step(t, h)
	after, err := kept.ReadInto(nil)
	if err != nil || string(after) == string(before) {
		t.Errorf("a kept descriptor reads %q, then %q, %v", before, after, err)
	}
	if _, err := anew.ReadInto(nil); err != unix.ENODEV {
		t.Errorf("a descriptor of a recreated group: %v, want ENODEV", err)
	}
	again, err := h.ID(cron)
	if err != nil || again == born {
		t.Errorf("ID of a recreated group: %d, then %d, %v", born, again, err)
	}
}

func TestNeed(t *testing.T) {
	t.Setenv("METE_MUST", "psi,procfs")
	hosttest.Need(t, "procfs") // this is Linux
	skipped := t.Run("skip", func(t *testing.T) {
		t.Setenv("METE_MUST", "")
		if os.Geteuid() == 0 {
			hosttest.Need(t, "root")
			return
		}
		hosttest.Need(t, "root")
		t.Error("Need(root) did not skip for a user other than root")
	})
	if !skipped {
		t.Error("Need without METE_MUST failed the test")
	}
}
