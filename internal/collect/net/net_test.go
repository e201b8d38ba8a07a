package net_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/net"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// fake is a captured machine with cgroup v2 whose files the test writes.
type fake struct {
	t   testing.TB
	dir string
	ids map[string]uint64
}

const (
	hostSpace = 100
	heading   = "Inter-|   Receive                                                |  Transmit\n" +
		" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n"
)

// unified is the fake machine's hierarchy.
var unified = &hostfs.Hierarchy{V2: true, Mount: "/sys/fs/cgroup", Root: "/"}

func newFake(t testing.TB) *fake {
	f := &fake{t, t.TempDir(), map[string]uint64{}}
	f.write("mete/clocks", "boottime 100000000000\nmonotonic 100000000000\nrealtime 1700000000000000000\n")
	f.write("proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	f.write("proc/self/cgroup", "0::/\n")
	f.write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
	f.process(1, hostSpace, "/", dev("lo", 5, 5, "eth0", 1000, 2000, "veth1", 7, 8))
	f.link("sys/class/net/eth0", "../../devices/pci0000:00/net/eth0")
	f.link("sys/class/net/veth1", "../../devices/virtual/net/veth1")
	return f
}

func (f *fake) write(name, text string) {
	f.t.Helper()
	p := filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) link(name, to string) {
	f.t.Helper()
	p := filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Remove(p); err != nil && !os.IsNotExist(err) {
		f.t.Fatal(err)
	}
	if err := os.Symlink(to, p); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) remove(name string) {
	f.t.Helper()
	if err := os.RemoveAll(filepath.Join(f.dir, name)); err != nil {
		f.t.Fatal(err)
	}
}

// process creates a process in a namespace and a group.
func (f *fake) process(pid int, space uint64, group, netdev string) {
	f.t.Helper()
	dir := fmt.Sprintf("proc/%d/", pid)
	f.link(dir+"ns/net", fmt.Sprintf("net:[%d]", space))
	f.id("/"+dir+"ns/net", space)
	f.write(dir+"net/dev", netdev)
	f.write(dir+"cgroup", "0::"+group+"\n")
}

func (f *fake) id(name string, id uint64) {
	f.ids[name] = id
	var b strings.Builder
	for name, id := range f.ids {
		fmt.Fprintf(&b, "%d %s\n", id, name)
	}
	f.write("mete/ids", b.String())
}

// group creates a group with processes in it.
func (f *fake) group(path string, pids ...int) {
	f.t.Helper()
	f.write("sys/fs/cgroup"+path+"/cgroup.procs", strings.ReplaceAll(strings.Trim(fmt.Sprintln(pids), "[]\n"), " ", "\n")+"\n")
}

// dev formats net/dev: name, bytes received, bytes sent, and so on, with 10 bytes per
// packet.
func dev(v ...any) string {
	var b strings.Builder
	b.WriteString(heading)
	for i := 0; i < len(v); i += 3 {
		b.WriteString(fmt.Sprintf("%6s: %d %d 0 0 0 0 0 0 %d %d 0 0 0 0 0 0\n", v[i], v[i+1], v[i+1].(int)/10, v[i+2], v[i+2].(int)/10))
	}
	return b.String()
}

func count(rx, tx int64) net.Count { return net.Count{rx, tx, rx / 10, tx / 10} }

func open(t testing.TB, f *fake, cfg net.Config) *net.Table {
	t.Helper()
	h, err := hostfs.Open(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	tab, err := net.Open(h, nil, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tab.Close(); err != nil {
			t.Error(err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return tab
}

func read(t testing.TB, tab *net.Table, all bool) {
	t.Helper()
	if err := tab.Read(t.Context(), all); err != nil {
		t.Fatal(err)
	}
}

func want(t testing.TB, tab *net.Table, slot usage.Slot, source net.Source, c net.Count, reason string) {
	t.Helper()
	got := tab.Reading(slot)
	if got.Source != source || source != net.Unseen && got.Count != c || !strings.Contains(got.Reason, reason) || (reason == "") != (got.Reason == "") {
		t.Errorf("Reading(%d) = %+v, want %v %+v %q", slot, got, source, c, reason)
	}
}

func TestOwnNamespace(t *testing.T) {
	for _, descriptors := range []int{0, 10} {
		f := newFake(t)
		f.group("/pod")
		f.group("/pod/a", 7)
		f.group("/pod/b", 8)
		f.process(7, 200, "/pod/a", dev("lo", 900, 900, "eth0", 50, 60))
		f.process(8, 200, "/pod/b", dev("lo", 900, 900, "eth0", 50, 60))
		tab := open(t, f, net.Config{Descriptors: descriptors})
		tab.Track(net.Target{Hierarchy: unified, Slot: 1, Kind: workload.Pod, Path: "/pod"})
		tab.Track(net.Target{Hierarchy: unified, Slot: 2, Parent: 1, Kind: workload.Container, Path: "/pod/a"})
		tab.Track(net.Target{Hierarchy: unified, Slot: 3, Parent: 1, Kind: workload.Container, Path: "/pod/b"})
		read(t, tab, false)
		want(t, tab, 1, net.Interfaces, count(50, 60), "")
		want(t, tab, 2, net.Unseen, net.Count{}, "pod")
		want(t, tab, 3, net.Unseen, net.Count{}, "pod")

		// A second interface is added, the first is removed: nothing is lost.
		f.write("proc/7/net/dev", dev("lo", 999, 999, "eth0", 150, 160, "eth1", 10, 20))
		read(t, tab, false)
		want(t, tab, 1, net.Interfaces, count(160, 180), "")
		f.write("proc/7/net/dev", dev("lo", 999, 999, "eth1", 20, 30))
		read(t, tab, false)
		want(t, tab, 1, net.Interfaces, count(170, 190), "")
		// It returns and restarts from 0.
		f.write("proc/7/net/dev", dev("eth0", 10, 0, "eth1", 20, 30))
		read(t, tab, false)
		want(t, tab, 1, net.Interfaces, count(180, 190), "")
		// A malformed file makes the reading fail.
		f.write("proc/7/net/dev", heading+"eth0: what\n")
		if err := tab.Read(t.Context(), false); err == nil {
			t.Error("Read of garbage = nil")
		}
		want(t, tab, 1, net.Interfaces, count(180, 190), "")

		f.write("proc/7/net/dev", dev("eth0", 20, 10, "eth1", 20, 30))
		if got := tab.Forget(1); got.Count != count(190, 200) || got.Source != net.Interfaces {
			t.Errorf("Forget = %+v, want the last value 190, 200", got)
		}
		want(t, tab, 1, net.Unseen, net.Count{}, "not tracked")
	}
}

func TestNamespaceHolder(t *testing.T) {
	f := newFake(t)
	f.group("/a", 7)
	f.group("/b", 8)
	f.group("/host", 9)
	f.group("/old", 10)
	f.group("/new", 11)
	f.group("/hidden", 12)
	f.group("/empty")
	f.group("/deep")
	f.group("/deep/x/y", 13)
	f.group("/outer")
	f.group("/outer/inner.scope", 14)
	f.process(7, 200, "/a", dev("eth0", 1, 2))
	f.process(8, 200, "/b", dev("eth0", 1, 2))
	f.process(9, hostSpace, "/host", "")
	f.process(10, 300, "/old", dev("eth0", 500, 500))
	f.process(99, 300, "/elsewhere", dev("eth0", 500, 500))
	f.process(13, 500, "/deep/x/y", dev("eth0", 30, 40))
	f.process(14, 600, "/outer/inner.scope", dev("eth0", 50, 60))
	tab := open(t, f, net.Default())
	f.process(11, 400, "/new", dev("eth0", 10, 20))
	f.remove("proc/12")
	for i, path := range []string{"/a", "/b", "/host", "/old", "/new", "/hidden", "/empty", "/deep", "/outer", "/outer/inner.scope"} {
		tab.Track(net.Target{Hierarchy: unified, Slot: usage.Slot(i + 1), Kind: workload.Container, Path: path, Born: i >= 3 && i < 5})
	}
	read(t, tab, false)
	want(t, tab, 3, net.Unseen, net.Count{}, "not certain")
	read(t, tab, true)
	want(t, tab, 1, net.Interfaces, net.Count{RxBytes: 1, TxBytes: 2}, "")
	want(t, tab, 2, net.Unseen, net.Count{}, "counted at /a")
	want(t, tab, 3, net.Unseen, net.Count{}, "the machine's network namespace, and sockets are not counted: no BPF")
	want(t, tab, 4, net.Unseen, net.Count{}, "there before it")
	want(t, tab, 5, net.Interfaces, count(10, 20), "")
	want(t, tab, 6, net.Unseen, net.Count{}, "no process")
	want(t, tab, 7, net.Unseen, net.Count{}, "no process")
	want(t, tab, 8, net.Interfaces, count(30, 40), "")
	want(t, tab, 9, net.Unseen, net.Count{}, "no process")
	want(t, tab, 10, net.Interfaces, count(50, 60), "")
	// The process is first seen in the machine's namespace, then in its own.
	f.group("/slow", 20)
	f.process(20, hostSpace, "/slow", "")
	tab.Track(net.Target{Hierarchy: unified, Slot: 20, Kind: workload.Container, Path: "/slow", Born: true})
	read(t, tab, false)
	f.process(20, 700, "/slow", dev("eth0", 70, 80))
	read(t, tab, false)
	want(t, tab, 20, net.Interfaces, count(70, 80), "")
}

// TestNewSandbox replaces the namespace of a pod.
func TestNewSandbox(t *testing.T) {
	f := newFake(t)
	f.group("/pod/a", 7)
	f.process(7, 200, "/pod/a", dev("eth0", 50, 60))
	tab := open(t, f, net.Default())
	tab.Track(net.Target{Hierarchy: unified, Slot: 1, Kind: workload.Pod, Path: "/pod"})
	read(t, tab, false)
	f.write("proc/7/net/dev", dev("eth0", 60, 70)) // after the last reading
	f.remove("proc/7/ns")
	f.group("/pod/a", 8)
	f.process(8, 300, "/pod/a", dev("eth0", 1000, 2000))
	read(t, tab, true)
	want(t, tab, 1, net.Interfaces, net.Count{RxBytes: 1060, TxBytes: 2070, RxPackets: 106, TxPackets: 207}, "")
}

// A pod that starts while the table reads is in no snapshot yet: the slice above does not hold its namespace,
// even at the edge of a window. Nor does a group without a name hold that of the group below, which is a
// workload too.
func TestUntrackedBelow(t *testing.T) {
	f := newFake(t)
	const pods = "/kubepods/besteffort"
	const pod = pods + "/pod5b325f33-e3ae-4695-a183-eebc09c504e2"
	f.group("/a")
	f.group(pods)
	tab := open(t, f, net.Default())
	tab.Track(net.Target{Hierarchy: unified, Slot: 1, Kind: workload.Slice, Path: pods})
	tab.Track(net.Target{Hierarchy: unified, Slot: 2, Kind: workload.Path, Path: "/a"})
	read(t, tab, true)
	f.group(pod)
	f.group(pod+"/0123", 7)
	f.process(7, 200, pod+"/0123", dev("eth0", 50, 60))
	f.group("/a/b", 8)
	f.process(8, 300, "/a/b", dev("eth0", 70, 80))
	read(t, tab, true)
	want(t, tab, 1, net.Unseen, net.Count{}, "no process")
	want(t, tab, 2, net.Unseen, net.Count{}, "no process")
	tab.Track(net.Target{Hierarchy: unified, Slot: 3, Parent: 1, Kind: workload.Pod, Path: pod, Born: true})
	tab.Track(net.Target{Hierarchy: unified, Slot: 4, Parent: 2, Kind: workload.Path, Path: "/a/b", Born: true})
	read(t, tab, false)
	want(t, tab, 3, net.Interfaces, count(50, 60), "")
	want(t, tab, 4, net.Interfaces, count(70, 80), "")
}

// A pod's group may be there long before its sandbox. It is read again when a container starts, and when one
// ends, however quiet it is: its interfaces are removed soon.
func TestPodWithContainers(t *testing.T) {
	f := newFake(t)
	f.group("/pod")
	tab := open(t, f, net.Default())
	tab.Track(net.Target{Hierarchy: unified, Slot: 1, Kind: workload.Pod, Path: "/pod", Born: true})
	for range 20 {
		read(t, tab, false)
	}
	want(t, tab, 1, net.Unseen, net.Count{}, "no process")
	f.group("/pod/sandbox", 7)
	f.process(7, 200, "/pod/sandbox", dev("eth0", 50, 60))
	tab.Track(net.Target{Hierarchy: unified, Slot: 2, Parent: 1, Kind: workload.Container, Path: "/pod/sandbox", Born: true})
	tab.Track(net.Target{Hierarchy: unified, Slot: 3, Parent: 1, Kind: workload.Container, Path: "/pod/a", Born: true})
	for range 15 {
		read(t, tab, false)
	}
	want(t, tab, 1, net.Interfaces, count(50, 60), "")
	f.write("proc/7/net/dev", dev("eth0", 150, 260))
	read(t, tab, false)
	want(t, tab, 1, net.Interfaces, count(50, 60), "") // it is quiet, and not read in each tick
	tab.Forget(3)
	f.write("proc/7/net/dev", dev("lo", 0, 0))
	read(t, tab, false)
	want(t, tab, 1, net.Interfaces, count(150, 260), "")
}

// On a slow machine the first process of a pod, and that of each of its containers, may be in the machine's namespace for several
// readings, before it enters its own.
func TestPodOfSlowRuntime(t *testing.T) {
	f := newFake(t)
	f.group("/pod/sandbox", 7)
	f.process(7, hostSpace, "/pod/sandbox", dev("eth0", 1000, 2000))
	tab := open(t, f, net.Default())
	tab.Track(net.Target{Hierarchy: unified, Slot: 1, Kind: workload.Pod, Path: "/pod", Born: true})
	tab.Track(net.Target{Hierarchy: unified, Slot: 2, Parent: 1, Kind: workload.Container, Path: "/pod/sandbox", Born: true})
	for range 3 {
		read(t, tab, false)
	}
	want(t, tab, 1, net.Unseen, net.Count{}, "machine's")
	f.process(7, 200, "/pod/sandbox", dev("eth0", 50, 60))
	f.group("/pod/a", 8)
	f.process(8, hostSpace, "/pod/a", dev("eth0", 1000, 2000))
	tab.Track(net.Target{Hierarchy: unified, Slot: 3, Parent: 1, Kind: workload.Container, Path: "/pod/a", Born: true})
	read(t, tab, false)
	want(t, tab, 1, net.Interfaces, count(50, 60), "")
}

// A pod in the machine's namespace stays there, also if a process of one of its containers makes a namespace.
func TestPodOfMachineWithNamespace(t *testing.T) {
	f := newFake(t)
	f.group("/pod/sandbox", 7)
	f.process(7, hostSpace, "/pod/sandbox", dev("eth0", 1000, 2000))
	f.group("/pod/a", 9, 8)
	f.process(8, hostSpace, "/pod/a", dev("eth0", 1000, 2000))
	f.process(9, 200, "/pod/a", dev("eth0", 50, 60))
	tab := open(t, f, net.Default())
	tab.Track(net.Target{Hierarchy: unified, Slot: 1, Kind: workload.Pod, Path: "/pod", Born: true})
	tab.Track(net.Target{Hierarchy: unified, Slot: 2, Parent: 1, Kind: workload.Container, Path: "/pod/sandbox", Born: true})
	tab.Track(net.Target{Hierarchy: unified, Slot: 3, Parent: 1, Kind: workload.Container, Path: "/pod/a", Born: true})
	for range 4 {
		read(t, tab, false)
	}
	want(t, tab, 1, net.Unseen, net.Count{}, "machine's")
}

// Hierarchies may have a workload's group at different paths, as below a manager that has a group of its own
// in one of them.
func TestPathsOfHierarchies(t *testing.T) {
	f := newFake(t)
	f.write("proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpuacct\n31 1 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
	f.write("proc/self/cgroup", "2:memory:/deep\n1:cpuacct:/\n")
	const pod = "/kubepods/pod5b325f33-e3ae-4695-a183-eebc09c504e2"
	f.group("/cpu"+pod, 7)
	f.group("/memory/deep"+pod, 7)
	f.group("/memory/deep/job", 8)
	f.process(7, 200, pod, dev("eth0", 50, 60))
	f.process(8, 300, "/", dev("eth0", 70, 80))
	h, err := hostfs.Open(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }() // nothing was written
	ys, err := h.Hierarchies()
	if err != nil || len(ys) != 2 {
		t.Fatal(ys, err)
	}
	tab := open(t, f, net.Default())
	tab.Track(net.Target{Hierarchy: &ys[0], Slot: 1, Kind: workload.Slice, Path: "/kubepods"})
	tab.Track(net.Target{Hierarchy: &ys[1], Slot: 2, Kind: workload.Slice, Path: "/deep/kubepods"})
	tab.Track(net.Target{Hierarchy: &ys[1], Slot: 3, Parent: 2, Kind: workload.Pod, Path: "/deep" + pod})
	tab.Track(net.Target{Hierarchy: &ys[1], Slot: 4, Kind: workload.Path, Path: "/deep/job"}) // only memory has it
	read(t, tab, true)
	want(t, tab, 1, net.Unseen, net.Count{}, "no process")
	want(t, tab, 2, net.Unseen, net.Count{}, "no process")
	want(t, tab, 3, net.Interfaces, count(50, 60), "")
	want(t, tab, 4, net.Interfaces, count(70, 80), "")
}

// All processes of a job end while its group remains: its traffic remains, and its
// namespace is released at the edge of a window. Then other processes start in another
// namespace.
func TestEmptiedGroup(t *testing.T) {
	f := newFake(t)
	f.group("/a", 7)
	f.process(7, 200, "/a", dev("eth0", 50, 60))
	tab := open(t, f, net.Default())
	tab.Track(net.Target{Hierarchy: unified, Slot: 1, Path: "/a"})
	read(t, tab, true)
	f.write("proc/7/net/dev", dev("eth0", 60, 70)) // after the last reading
	f.remove("proc/7/ns")
	f.group("/a")
	read(t, tab, true)
	want(t, tab, 1, net.Interfaces, count(60, 70), "")
	f.write("proc/7/net/dev", dev("eth0", 600, 700)) // not the job's any more
	read(t, tab, true)
	want(t, tab, 1, net.Interfaces, count(60, 70), "")
	f.group("/a", 8)
	f.process(8, 200, "/a", dev("eth0", 100, 200)) // the namespace number is reused
	read(t, tab, true)
	want(t, tab, 1, net.Interfaces, count(160, 270), "")
	if got := tab.Forget(1); got.Count != count(160, 270) {
		t.Errorf("Forget = %+v", got)
	}
}

func TestQuietNamespace(t *testing.T) {
	f := newFake(t)
	f.group("/a", 7)
	f.process(7, 200, "/a", dev("eth0", 10, 10))
	tab := open(t, f, net.Default())
	tab.Track(net.Target{Hierarchy: unified, Slot: 1, Path: "/a"})
	for range 40 {
		read(t, tab, false)
	}
	f.write("proc/7/net/dev", dev("eth0", 20, 20))
	seen := 0
	for seen < 20 {
		if read(t, tab, false); tab.Reading(1).RxBytes == 20 {
			break
		}
		seen++
	}
	if seen == 0 || seen > 9 {
		t.Errorf("a quiet namespace was read after %d ticks, want 1 to 9", seen)
	}
	for range 40 {
		read(t, tab, false)
	}
	f.write("proc/7/net/dev", dev("eth0", 30, 30))
	read(t, tab, true)
	want(t, tab, 1, net.Interfaces, count(30, 30), "")
}

func TestNodeTraffic(t *testing.T) {
	f := newFake(t)
	tab := open(t, f, net.Default())
	if _, ok := tab.NodeTraffic(); ok {
		t.Error("NodeTraffic before a reading = true")
	}
	read(t, tab, false)
	if c, ok := tab.NodeTraffic(); !ok || c != count(1000, 2000) {
		t.Errorf("NodeTraffic() = %+v, %v, want the physical interface", c, ok)
	}
	f.remove("sys/class/net")
	tab = open(t, f, net.Default())
	read(t, tab, false)
	if c, ok := tab.NodeTraffic(); !ok || c.RxBytes != 1007 || c.TxBytes != 2008 {
		t.Errorf("NodeTraffic() = %+v, %v, want all interfaces but lo", c, ok)
	}
}
