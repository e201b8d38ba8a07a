package net_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	stdnet "net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/net"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

const payload = 11_000_000

// TestMain runs the tests, or one of the programs that they start.
func TestMain(m *testing.M) {
	var err error
	switch os.Getenv("METE_TEST_PROGRAM") {
	case "":
		os.Exit(m.Run())
	case "sink":
		err = sink()
	case "send":
		err = send()
	case "peer":
		err = peer()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// sink waits for a line, prints its address, reads everything from one connection, prints a
// line, and waits for the end of its input.
func sink() error {
	in := bufio.NewReader(os.Stdin)
	addr, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	l, err := stdnet.Listen("tcp", strings.TrimSpace(addr))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	c, err := l.Accept()
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, c)
	if err := errors.Join(err, c.Close(), l.Close()); err != nil {
		return err
	}
	fmt.Println(n)
	_, err = in.ReadString('\n')
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// send waits for a line, sends to the address in it, and ends like sink. It prints the
// maximum that it can have sent, including headers and retransmissions.
func send() error {
	in := bufio.NewReader(os.Stdin)
	addr, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	c, err := stdnet.Dial("tcp", strings.TrimSpace(addr))
	if err != nil {
		return err
	}
	if _, err := c.Write(make([]byte, payload)); err != nil {
		return err
	}
	most, err := mostSent(c.(*stdnet.TCPConn))
	if err := errors.Join(err, c.Close()); err != nil {
		return err
	}
	fmt.Println(most)
	_, err = in.ReadString('\n')
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// mostSent waits until everything is acknowledged, and returns how many bytes a connection
// sent at most: those in TCP_INFO, with the longest headers for each segment and for those
// that close it.
func mostSent(c *stdnet.TCPConn) (int64, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	for {
		var info *unix.TCPInfo
		failed := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
		if err := errors.Join(failed, err); err != nil {
			return 0, err
		}
		if info.Unacked == 0 && info.Notsent_bytes == 0 {
			const headers, end = 14 + 60 + 60, 100
			return int64(info.Bytes_sent) + (int64(info.Segs_out)+end)*headers, nil
		}
		time.Sleep(time.Millisecond)
	}
}

// A program is one of the programs above, running in a group.
type program struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// start starts a program in the groups at path, in its own network namespace or in this
// one.
func start(t testing.TB, name, path string, own bool, dirs []string) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, cmd: exec.Command(self)}
	p.cmd.Env = append(os.Environ(), "METE_TEST_PROGRAM="+name)
	p.cmd.Stderr = os.Stderr
	if own {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	}
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
	for _, dir := range dirs {
		if err := os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(p.cmd.Process.Pid)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p *program) say(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

func (p *program) hear(want string) {
	p.t.Helper()
	got, err := p.out.ReadString('\n')
	if err != nil || strings.TrimSpace(got) != want {
		p.t.Fatalf("program printed %q, %v, want %q", got, err, want)
	}
}

// number returns the next number that the program prints.
func (p *program) number() int64 {
	p.t.Helper()
	got, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(got), 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

func (p *program) end() {
	p.t.Helper()
	if err := errors.Join(p.in.Close(), p.cmd.Wait()); err != nil {
		p.t.Fatal(err)
	}
}

// groups creates a group in every hierarchy that the table reads.
func groups(t testing.TB, h *hostfs.FS, name string) (dirs []string) {
	t.Helper()
	ys, err := h.Hierarchies()
	if err != nil {
		t.Skip(err)
	}
	for _, y := range ys {
		dir, ok := y.Dir("/" + name)
		if !ok || !y.V2 && !y.Has("cpuacct") {
			continue
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { // the kernel may need a moment after the last process has ended
			testkit.Eventually(t, dir+" is removed", func() bool { return !errors.Is(os.Remove(dir), syscall.EBUSY) })
		})
		dirs = append(dirs, dir)
	}
	return dirs
}

func ip(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

// wire connects this namespace and a process's, and returns the address of each end and the
// name of the interface on this side.
func wire(t testing.TB, pid int) (here, there, name string) {
	t.Helper()
	name = fmt.Sprintf("mt%d", pid)
	ip(t, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(pid))
	t.Cleanup(func() {
		// The namespace removes it too, possibly after its end is visible.
		_ = exec.Command("ip", "link", "del", name).Run()
	})
	here, there = fmt.Sprintf("10.%d.%d.1", pid>>8&255, pid&255), fmt.Sprintf("10.%d.%d.2", pid>>8&255, pid&255)
	ip(t, "addr", "add", here+"/30", "dev", name)
	ip(t, "link", "set", name, "up")
	inside := []string{"-t", strconv.Itoa(pid), "-n", "ip"}
	for _, args := range [][]string{{"addr", "add", there + "/30", "dev", "eth0"}, {"link", "set", "eth0", "up"}, {"link", "set", "lo", "up"}} {
		if out, err := exec.Command("nsenter", append(inside, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("nsenter ip %v: %v: %s", args, err, out)
		}
	}
	return here, there, name
}

func live(t testing.TB, k *bpf.Kernel) (*hostfs.FS, *net.Table) {
	t.Helper()
	hosttest.Need(t, "root", "netns")
	if _, err := exec.LookPath("nsenter"); err != nil {
		t.Skip(err)
	}
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	tab, err := net.Open(h, k, net.Default())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(tab.Close(), h.Close()); err != nil {
			t.Error(err)
		}
	})
	return h, tab
}

// counter reads one counter of an interface of this namespace.
func counter(t testing.TB, name, what string) int64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/sys/class/net", name, "statistics", what))
	if err != nil {
		t.Fatal(err)
	}
	v, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Traffic after the last reading of a job that then ends is not lost, and the namespace is
// removed with the job.
func TestLiveOwnNamespace(t *testing.T) {
	hosttest.LockExclusive(t, "interfaces")
	h, tab := live(t, nil)
	name := fmt.Sprintf("mete-test-net-%d", os.Getpid())
	p := start(t, "sink", name, true, groups(t, h, name))
	_, there, veth := wire(t, p.cmd.Process.Pid)
	tab.Track(net.Target{Hierarchy: processes(t, h), Slot: 1, Path: "/" + name, Born: true})
	read(t, tab, false)
	if got := tab.Reading(1); got.Source != net.Interfaces {
		t.Fatalf("Reading = %+v, want interfaces", got)
	}

	p.say(there + ":7000")
	p.hear("ready")
	c, err := stdnet.Dial("tcp", there+":7000")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(make([]byte, payload)); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	p.hear(strconv.Itoa(payload))
	// The wire must be idle during a reading for exact figures.
	var wire [2]int64
	testkit.Eventually(t, "the wire is idle while the job is read", func() bool {
		wire = [2]int64{counter(t, veth, "tx_bytes"), counter(t, veth, "rx_bytes")}
		read(t, tab, true)
		return wire == [2]int64{counter(t, veth, "tx_bytes"), counter(t, veth, "rx_bytes")}
	})
	if got := tab.Reading(1); got.RxBytes != wire[0] || got.TxBytes != wire[1] || wire[0] < payload || wire[1] == 0 {
		t.Errorf("Reading = %+v, want the wire's %v, with %d and headers", got, wire, payload)
	}
	p.end()
	got := tab.Forget(1)
	if got.RxBytes < wire[0] || got.RxBytes > wire[0]+payload/100 || got.TxBytes == 0 || got.RxPackets == 0 {
		t.Errorf("Forget = %+v, want the wire's %v and at most the packets that close a connection", got, wire)
	}
	// This process does not keep the namespace.
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && strings.HasPrefix(to, fmt.Sprintf("/proc/%d/", p.cmd.Process.Pid)) {
			t.Errorf("%s is still open", to)
		}
	}
}

// TestLiveLastValue has all traffic between the last reading and the end.
func TestLiveLastValue(t *testing.T) {
	hosttest.LockExclusive(t, "interfaces")
	h, tab := live(t, nil)
	name := fmt.Sprintf("mete-test-net-%d", os.Getpid())
	p := start(t, "sink", name, true, groups(t, h, name))
	_, there, _ := wire(t, p.cmd.Process.Pid)
	tab.Track(net.Target{Hierarchy: processes(t, h), Slot: 1, Path: "/" + name})
	read(t, tab, true)
	before := tab.Reading(1)
	p.say(there + ":7000")
	p.hear("ready")
	c, err := stdnet.Dial("tcp", there+":7000")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Write(make([]byte, payload))
	if err := errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
	p.hear(strconv.Itoa(payload))
	p.end()
	if got := tab.Forget(1); got.RxBytes-before.RxBytes < payload {
		t.Errorf("Forget = %+v, before %+v, want %d more", got, before, payload)
	}
}

// A job in this namespace and in its own cgroup v2 group sends to a job with its own
// namespace.
func TestLiveSockets(t *testing.T) {
	hosttest.LockExclusive(t, "interfaces")
	cfg := bpf.Default()
	cfg.Parts, cfg.Groups = bpf.Net, 64
	hosttest.Need(t, "root", "bpf", "cgroup2")
	k, err := bpf.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	h, tab := live(t, k)
	if why := tab.UncountedReason(); why != "" {
		t.Fatal(why)
	}
	for i, short := range []bool{false, true} {
		to := start(t, "sink", "", true, nil)
		_, there, _ := wire(t, to.cmd.Process.Pid)
		name := fmt.Sprintf("mete-test-net-%d-%d", os.Getpid(), i)
		p := start(t, "send", name, false, groups(t, h, name))
		slot := usage.Slot(i + 1)
		tab.Track(net.Target{Hierarchy: processes(t, h), Slot: slot, Path: "/" + name, Born: true})
		read(t, tab, false)
		if !short {
			read(t, tab, false)
			want(t, tab, slot, net.Sockets, net.Count{}, "")
		}
		to.say(there + ":7000")
		to.hear("ready")
		p.say(there + ":7000")
		most := p.number()
		to.hear(strconv.Itoa(payload))
		p.end()
		to.end()
		read(t, tab, false)
		got := tab.Forget(slot)
		if got.Source != net.Sockets || got.TxBytes < payload || got.TxBytes > most || got.RxBytes == 0 || got.TxPackets == 0 {
			t.Errorf("short %v: Forget = %+v, want %d and headers, at most %d", short, got, payload, most)
		}
	}
}

// Traffic of a group below a job's own is found as soon as the job ran.
func TestLiveSubgroup(t *testing.T) {
	hosttest.LockExclusive(t, "interfaces")
	cfg := bpf.Default()
	cfg.Parts, cfg.Groups = bpf.Net, 64
	hosttest.Need(t, "root", "bpf", "cgroup2")
	k, err := bpf.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	h, tab := live(t, k)
	to := start(t, "sink", "", true, nil)
	_, there, _ := wire(t, to.cmd.Process.Pid)
	name := fmt.Sprintf("mete-test-net-%d-below", os.Getpid())
	p := start(t, "send", name, false, groups(t, h, name))
	tab.Track(net.Target{Hierarchy: processes(t, h), Slot: 1, Path: "/" + name, Born: true})
	read(t, tab, false)
	read(t, tab, false)
	want(t, tab, 1, net.Sockets, net.Count{}, "")
	tab.SetCPUTime(1, 1000)
	read(t, tab, true)

	unified, ok := v2(t, h).Dir("/" + name)
	if !ok {
		t.Fatal("no group in cgroup v2")
	}
	below := filepath.Join(unified, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(below, "cgroup.procs"), []byte(strconv.Itoa(p.cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	to.say(there + ":7000")
	to.hear("ready")
	p.say(there + ":7000")
	most := p.number()
	to.hear(strconv.Itoa(payload))
	p.end()
	to.end()
	for range 2 {
		tab.SetCPUTime(1, 1000) // as if it had not run
		read(t, tab, true)
		want(t, tab, 1, net.Sockets, net.Count{}, "")
	}
	tab.SetCPUTime(1, 2000)
	read(t, tab, true)
	if got := tab.Reading(1); got.TxBytes < payload || got.TxBytes > most {
		t.Errorf("Reading = %+v, want %d and headers, at most %d, sent from the subgroup", got, payload, most)
	}
	testkit.Eventually(t, below+" is removed", func() bool { return !errors.Is(os.Remove(below), syscall.EBUSY) })
}

// processes returns the hierarchy in which the table looks for processes.
func processes(t testing.TB, h *hostfs.FS) *hostfs.Hierarchy {
	t.Helper()
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for i, y := range ys {
		if y.Has("cpuacct") {
			return &ys[i]
		}
	}
	return &ys[0]
}

func v2(t testing.TB, h *hostfs.FS) hostfs.Hierarchy {
	t.Helper()
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, y := range ys {
		if y.V2 {
			return y
		}
	}
	t.Fatal("no cgroup v2")
	return hostfs.Hierarchy{}
}

// BenchmarkRead reads 50 namespaces, each with lo only.
func BenchmarkRead(b *testing.B) {
	h, tab := live(b, nil)
	const n = 50
	for i := range n {
		name := fmt.Sprintf("mete-test-net-%d-%d", os.Getpid(), i)
		start(b, "sink", name, true, groups(b, h, name))
		tab.Track(net.Target{Hierarchy: processes(b, h), Slot: usage.Slot(i + 1), Path: "/" + name})
	}
	read(b, tab, true)
	for _, all := range []bool{true, false} {
		b.Run(fmt.Sprintf("all=%v", all), func(b *testing.B) {
			before := cpu(b)
			for b.Loop() {
				read(b, tab, all)
			}
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N)/n, "cpu-ns/workload")
		})
	}
}

func cpu(t testing.TB) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
