package launch

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/usage"
)

// write creates the files below a new directory.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func machine(t *testing.T) *hostfs.FS {
	t.Helper()
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// values returns the amounts of a reading by name.
func values(r *usage.Reading) map[string]int64 {
	m := map[string]int64{}
	r.Has.Each(func(res usage.Resource) { m[res.String()] = r.Value[res] })
	return m
}

// TestSources checks the values from the files of each kind of hierarchy, and that v2 takes
// precedence over v1.
func TestSources(t *testing.T) {
	v2 := map[string]string{
		"job/cpu.stat":       "usage_usec 3000\nuser_usec 2000\nsystem_usec 1000\nnr_periods 5\nnr_throttled 2\nthrottled_usec 40\n",
		"job/memory.current": "5000\n", "job/memory.peak": "9000\n", "job/memory.stat": "anon 3000\nfile 1500\n",
		"job/memory.events": "low 0\noom 2\noom_kill 1\n", "job/pids.current": "3\n", "job/pids.peak": "2\n",
		"job/io.stat": "8:0 rbytes=100 wbytes=200 rios=1 wios=2 dbytes=0 dios=0\n253:0 rbytes=100 wbytes=200 rios=1 wios=2 dbytes=0 dios=0\n",
	}
	v1 := map[string]string{
		"job/cpuacct.usage": "3000000\n", "job/cpuacct.stat": "user 1\nsystem 3\n", "job/cpu.stat": "nr_periods 5\nnr_throttled 2\nthrottled_time 40000\n",
		"job/memory.usage_in_bytes": "5000\n", "job/memory.max_usage_in_bytes": "9000\n",
		"job/memory.stat": "cache 1\nrss 2\ntotal_cache 1500\ntotal_rss 3000\n", "job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"job/pids.current": "3\n", "job/pids.peak": "2\n",
		"job/blkio.throttle.io_service_bytes_recursive": "8:0 Read 100\n8:0 Write 200\n8:0 Total 300\nTotal 300\n",
		"blkio.throttle.io_service_bytes":               "8:0 Read 100\n8:0 Write 200\n8:0 Total 300\nTotal 300\n",
	}
	all := hostfs.Hierarchy{Controllers: []string{"blkio", "cpu", "cpuacct", "memory", "pids"}}
	bare := map[string]string{"job/cpu.stat": "usage_usec 7000\nuser_usec 7000\nsystem_usec 0\n"}
	idle := map[string]string{"job/blkio.throttle.io_service_bytes_recursive": "Total 0\n", "blkio.throttle.io_service_bytes": "Total 0\n"}
	for name, c := range map[string]struct {
		trees []map[string]string
		ys    []hostfs.Hierarchy
		want  map[string]int64
	}{
		"v2": {[]map[string]string{v2}, []hostfs.Hierarchy{{V2: true}}, map[string]int64{
			"cpu": 3e6, "cpu_user": 2e6, "cpu_system": 1e6, "cpu_throttled": 40e3, "memory": 5000, "memory_peak": 9000,
			"memory_anon": 3000, "memory_file": 1500, "oom_kills": 1, "pids": 3, "pids_peak": 2, "disk_read": 100, "disk_written": 200}},
		// The start's own 1 ms is subtracted; the two tasks may be one and the starting thread.
		"v1": {[]map[string]string{v1}, []hostfs.Hierarchy{all}, map[string]int64{
			"cpu": 2e6, "cpu_user": 1e7, "cpu_system": 3e7, "cpu_throttled": 40e3, "memory": 5000, "memory_peak": 9000,
			"memory_anon": 3000, "memory_file": 1500, "oom_kills": 1, "pids": 3, "disk_read": 100, "disk_written": 200}},
		"hybrid": {[]map[string]string{bare, v1}, []hostfs.Hierarchy{{V2: true}, all}, map[string]int64{
			"cpu": 7e6, "cpu_user": 7e6, "cpu_system": 0, "cpu_throttled": 40e3, "memory": 5000, "memory_peak": 9000,
			"memory_anon": 3000, "memory_file": 1500, "oom_kills": 1, "pids": 3, "disk_read": 100, "disk_written": 200}},
		// If v1 counts no block I/O, it is absent rather than zero.
		"not counting": {[]map[string]string{idle}, []hostfs.Hierarchy{{Controllers: []string{"blkio"}}}, map[string]int64{}},
		"malformed": {[]map[string]string{{"job/cpu.stat": "usage_usec x\n", "job/memory.current": "", "job/memory.stat": "anon -\n"}},
			[]hostfs.Hierarchy{{V2: true}}, map[string]int64{}},
	} {
		g := &Group{h: machine(t), own: 1e6, leaves: map[procfmt.Dev]bool{{Major: 8}: true, {Major: 253}: false}}
		for i, files := range c.trees {
			dir := write(t, files)
			c.ys[i].Mount = dir
			p := &part{y: c.ys[i], dir: dir + "/job", lock: -1}
			p.open(g)
			g.parts = append(g.parts, p)
		}
		var r usage.Reading
		g.Read(&r)
		if d := cmp.Diff(c.want, values(&r)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		for _, p := range g.parts {
			p.close()
		}
	}
}

// TestDetachedDevice checks that a job keeps the I/O of a device that was removed, whose line goes
// with it.
func TestDetachedDevice(t *testing.T) {
	for name, c := range map[string]struct {
		y              hostfs.Hierarchy
		file           string
		line           func(dev string, read, written int) string
		malformed, end string
	}{
		"v2": {hostfs.Hierarchy{V2: true}, "io.stat", func(dev string, read, written int) string {
			return fmt.Sprintf("%s rbytes=%d wbytes=%d rios=1 wios=1 dbytes=0 dios=0\n", dev, read, written)
		}, "8:0 rbytes=x\n", ""},
		"v1": {hostfs.Hierarchy{Controllers: []string{"blkio"}}, "blkio.throttle.io_service_bytes_recursive", func(dev string, read, written int) string {
			return fmt.Sprintf("%[1]s Read %[2]d\n%[1]s Write %[3]d\n%[1]s Total %[4]d\n", dev, read, written, read+written)
		}, "x", "Total 1\n"},
	} {
		root, volume, stacked := c.line("8:0", 100, 200), c.line("8:16", 40, 50), c.line("253:0", 7, 7)
		dir := write(t, map[string]string{"job/" + c.file: root + c.end, "blkio.throttle.io_service_bytes": "8:0 Total 1\nTotal 1\n"})
		g := &Group{h: machine(t), leaves: map[procfmt.Dev]bool{{Major: 8}: true, {Major: 8, Minor: 16}: true, {Major: 253}: false}}
		c.y.Mount = dir
		p := &part{y: c.y, dir: dir + "/job", lock: -1}
		p.open(g)
		g.parts = append(g.parts, p)
		for i, step := range []struct {
			text          string
			read, written int64 // -1: absent
		}{
			{root, 100, 200},
			{root + volume + stacked, 140, 250},
			{root, 140, 250},                             // detached
			{c.line("8:0", 105, 200) + volume, 185, 300}, // attached again
			{c.line("8:0", 105, 200) + c.malformed, -1, -1},
			{c.line("8:0", 105, 210) + volume, 185, 310},
			{"", 185, 310}, // the last device too
		} {
			if err := os.WriteFile(filepath.Join(dir, "job", c.file), []byte(step.text+c.end), 0o644); err != nil {
				t.Fatal(err)
			}
			var r usage.Reading
			g.Read(&r)
			want := map[string]int64{}
			if step.read >= 0 {
				want = map[string]int64{"disk_read": step.read, "disk_written": step.written}
			}
			if d := cmp.Diff(want, values(&r)); d != "" {
				t.Errorf("%s, reading %d (-want +got):\n%s", name, i, d)
			}
		}
		p.close()
	}
}

// TestAttachedDevice checks that a device counts that was attached after the job's start, and not one that
// is built on another.
func TestAttachedDevice(t *testing.T) {
	line := func(dev string) string { return dev + " rbytes=3 wbytes=5 rios=1 wios=1 dbytes=0 dios=0\n" }
	dir := write(t, map[string]string{"mete/clocks": "boottime 1\nmonotonic 1\nrealtime 1\n", "proc/devices": "Block devices:\n  8 sd\n", "sys/block/sda/dev": "8:0\n", "job/io.stat": line("8:0")})
	h, err := hostfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }() // nothing was written
	g := &Group{h: h}
	g.listDevices()
	p := &part{y: hostfs.Hierarchy{V2: true}, dir: "/job", lock: -1}
	p.open(g)
	defer p.close()
	g.parts = append(g.parts, p)
	for name, text := range map[string]string{"sys/block/sdb/dev": "8:16\n", "sys/block/dm-0/dev": "8:32\n", "sys/block/dm-0/slaves/sdb": "", "job/io.stat": line("8:0") + line("8:16") + line("8:32")} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var r usage.Reading
	g.Read(&r)
	if d := cmp.Diff(map[string]int64{"disk_read": 6, "disk_written": 10}, values(&r)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestPlace checks that a job is placed where its figures and limits are, and never outside the
// caller's limits.
func TestPlace(t *testing.T) {
	if isSystemdManaged(machine(t)) {
		t.Skip("systemd's presence changes the answers")
	}
	free := map[string]string{"a/cgroup.procs": "", "a/cgroup.subtree_control": "cpu memory\n", "a/b/memory.max": "max\n", "a/b/cpu.max": "max 100000\n", "a/b/io.max": ""}
	with := func(more ...string) map[string]string {
		files := map[string]string{}
		maps.Copy(files, free)
		for i := 0; i < len(more); i += 2 {
			files[more[i]] = more[i+1]
		}
		return files
	}
	for name, c := range map[string]struct {
		files map[string]string
		y     hostfs.Hierarchy
		want  string
	}{
		"v1":             {free, hostfs.Hierarchy{Self: "/a/b"}, "/a/b"},
		"sibling":        {free, hostfs.Hierarchy{V2: true, Self: "/a/b"}, "/a"},
		"limited memory": {with("a/b/memory.max", "4096\n"), hostfs.Hierarchy{V2: true, Self: "/a/b"}, "/a/b"},
		"limited CPU":    {with("a/b/cpu.max", "50000 100000\n"), hostfs.Hierarchy{V2: true, Self: "/a/b"}, "/a/b"},
		"limited disk":   {with("a/b/io.max", "8:0 wbps=1\n"), hostfs.Hierarchy{V2: true, Self: "/a/b"}, "/a/b"},
		"own children":   {with("a/b/cgroup.subtree_control", "memory\n"), hostfs.Hierarchy{V2: true, Self: "/a/b"}, "/a/b"},
		"no controllers": {with("a/cgroup.subtree_control", "\n"), hostfs.Hierarchy{V2: true, Self: "/a/b"}, "/a/b"},
		"the root":       {free, hostfs.Hierarchy{V2: true, Self: "/"}, ""},
		"read-only":      {free, hostfs.Hierarchy{V2: true, Self: "/a/b", ReadOnly: true}, "-"},
		"unknown":        {free, hostfs.Hierarchy{V2: true}, "-"},
	} {
		c.y.Mount, c.y.Root = write(t, c.files), "/"
		got, err := parentDir(machine(t), c.y)
		if c.want == "-" {
			if err == nil {
				t.Errorf("%s: place = %s, want an error", name, got)
			}
			continue
		}
		if err != nil || got != c.y.Mount+c.want {
			t.Errorf("%s: place = %s, %v, want %s", name, got, err, c.y.Mount+c.want)
		}
	}
}

// TestHoldings checks that memory of unreadable processes is absent rather than zero.
func TestHoldings(t *testing.T) {
	h, err := hostfs.Open(write(t, map[string]string{
		"mete/clocks": "boottime 2\nmonotonic 1\nrealtime 3\n", "proc/7/statm": "900 30 10 1 0 80 0\n", "proc/8/statm": "0 0 0 0 0 0 0\n",
	}))
	if err != nil {
		t.Fatal(err)
	}
	var none usage.Reading
	addMemory(h, nil, &none)
	addMemory(h, []Member{{PID: 8}, {PID: 9}}, &none)
	if none != (usage.Reading{}) {
		t.Errorf("without processes: %+v", none)
	}
	var r usage.Reading
	addMemory(h, []Member{{PID: 7}, {PID: 8}}, &r)
	page := int64(os.Getpagesize())
	if r.Value[usage.Memory] != 30*page || r.Value[usage.MemoryAnon] != 20*page || r.Value[usage.MemoryFile] != 10*page || r.Apportioned != r.Has {
		t.Errorf("30 pages, 10 of files: %+v", r)
	}
}

// TestLivingOf checks that processes that end while they are listed do not hide those that they started,
// and that ones that stay listed after their end do not delay the result.
func TestLivingOf(t *testing.T) {
	const ended = 1 << 22 // above all process IDs
	me := os.Getpid()
	for _, c := range []struct {
		lists []map[int]bool // the last one stays
		found bool
		calls int
	}{
		{[]map[int]bool{{}}, false, 1},
		{[]map[int]bool{{me: true, ended: true}}, true, 1},
		{[]map[int]bool{{ended: true}, {}}, false, 2},
		{[]map[int]bool{{ended: true}}, false, 2},
		{[]map[int]bool{{ended: true}, {me: true}}, true, 2},
		{[]map[int]bool{{ended: true}, {ended: true, ended + 1: true}, {ended: true, ended + 1: true, me: true}}, true, 3},
	} {
		calls := 0
		ms := livingOf(machine(t), func() map[int]bool {
			calls++
			return c.lists[min(calls, len(c.lists))-1]
		})
		if len(ms) > 1 || len(ms) == 1 != c.found || c.found && ms[0].PID != me || calls != c.calls {
			t.Errorf("%v: %v after %d lists, want one: %v, after %d", c.lists, ms, calls, c.found, c.calls)
		}
	}
	calls := 0
	ms := livingOf(machine(t), func() map[int]bool { calls++; return map[int]bool{ended + calls: true} })
	if len(ms) != 0 || calls != maxLists {
		t.Errorf("%v after %d lists, want none after %d", ms, calls, maxLists)
	}
}

// TestTreeOfEnding checks that a process that ends after the processes of a tree were listed does not hide the
// one that it started, which is an orphan then.
func TestTreeOfEnding(t *testing.T) {
	own := fmt.Sprintf("proc/%d/task/%[1]d/children", os.Getpid())
	dir := write(t, map[string]string{"mete/clocks": "boottime 2\nmonotonic 1\nrealtime 3\n", own: "7\n", own + ".new": "8\n"})
	for pid, name := range map[int]string{7: "parent", 8: "orphan"} {
		stat, err := os.ReadFile("/proc/self/stat")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(stat), ")")
		file := filepath.Join(dir, fmt.Sprintf("proc/%d/stat", pid))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, fmt.Appendf(nil, "%d (%s)%s", pid, name, rest), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	h, err := hostfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	was := listed
	defer func() { listed = was }()
	listed = func() {
		listed = was
		if err := errors.Join(os.Rename(filepath.Join(dir, own+".new"), filepath.Join(dir, own)), os.RemoveAll(filepath.Join(dir, "proc/7"))); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]Member{{8, "orphan"}}, (&Tree{h: h}).Members()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
