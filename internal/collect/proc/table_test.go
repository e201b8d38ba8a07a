package proc_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/proc"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/testkit/hosttest"
)

func open(t testing.TB, root string) *hostfs.FS {
	t.Helper()
	h, err := hostfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func table(t testing.TB, h *hostfs.FS, cfg proc.Config) *proc.Table {
	t.Helper()
	tab, err := proc.Open(h, nil, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tab.Close(); err != nil {
			t.Error(err)
		}
	})
	return tab
}

// reader opens a table of this machine with the named reader.
func reader(t testing.TB, name string) *proc.Table {
	t.Helper()
	var k *bpf.Kernel
	if name == "bpf" {
		var err error
		cfg := bpf.Default()
		cfg.Parts = bpf.Tasks
		hosttest.Need(t, "root", "bpf")
		if k, err = bpf.Open(cfg); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := k.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	tab, err := proc.Open(open(t, "/"), k, proc.Default())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tab.Close(); err != nil {
			t.Error(err)
		}
	})
	if tab.Reader() != name {
		t.Fatalf("Reader() = %s, want %s", tab.Reader(), name)
	}
	return tab
}

func read(t testing.TB, tab *proc.Table) {
	t.Helper()
	if err := tab.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func find(tab *proc.Table, pid int) *proc.Process {
	for _, p := range tab.All() {
		if p.ID.PID == int32(pid) {
			return &p
		}
	}
	return nil
}

// A fake is a captured machine without processes, to which tests add some.
type fake struct {
	t   testing.TB
	dir string
}

func newFake(t testing.TB) fake {
	f := fake{t, t.TempDir()}
	f.write("mete/clocks", "boottime 100000000000\nmonotonic 100000000000\nrealtime 1700000000000000000\n")
	f.write("proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	f.write("proc/self/cgroup", "0::/\n")
	f.write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
	f.write("sys/fs/cgroup/cgroup.procs", "")
	return f
}

func (f fake) write(name, text string) {
	f.t.Helper()
	p := filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f fake) remove(name string) {
	f.t.Helper()
	if err := os.RemoveAll(filepath.Join(f.dir, name)); err != nil {
		f.t.Fatal(err)
	}
}

// process writes the files of a process with the given CPU time and start after boot, both
// in clock ticks of 10 ms.
func (f fake) process(pid, ticks, start int, group string) {
	f.t.Helper()
	dir := fmt.Sprintf("proc/%d/", pid)
	f.write(dir+"stat", fmt.Sprintf("%d (a (b) c) S 1 1 1 0 -1 4194560 0 0 0 0 %d 0 0 0 20 0 3 0 %d 48001024 10 18446744073709551615\n", pid, ticks, start))
	f.write(dir+"cgroup", "3:cpu:/elsewhere\n0::"+group+"\n")
	f.write(dir+"io", "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n")
}

const tick = 10 * time.Millisecond

func TestReadCaptured(t *testing.T) {
	f := newFake(t)
	f.process(7, 250, 1000, "/job/a")
	f.process(8, 1, 1000, "/job")
	f.process(9, 2, 1000, "/job-b")
	tab := table(t, open(t, f.dir), proc.Default())
	read(t, tab)
	p := find(tab, 7)
	if p == nil {
		t.Fatal("no process 7")
	}
	want := proc.Process{Parent: 1, Name: "a (b) c", Group: "/job/a", Threads: 3,
		RSS: 10 * int64(os.Getpagesize()), Read: 4096, Written: 8192, HasIO: true}
	want.ID.PID, want.ID.Start = 7, int64(1000*tick)
	want.CPU, want.Entered = int64(250*tick), int64(250*tick)
	if *p != want {
		t.Errorf("process = %+v, want %+v", *p, want)
	}
	for _, c := range []struct {
		name string
		got  []proc.Process
		want []int32
	}{
		{"Processes(/job)", tab.Processes("/job"), []int32{8}},
		{"Below(/job)", tab.ProcessesBelow("/job"), []int32{7}},
		{"Below(/)", tab.ProcessesBelow("/"), []int32{8, 9, 7}},
		{"Processes(/none)", tab.Processes("/none"), nil},
		{"All", tab.All(), []int32{8, 9, 7}},
	} {
		if len(c.got) != len(c.want) {
			t.Errorf("%s has %d processes, want %v", c.name, len(c.got), c.want)
			continue
		}
		for i, p := range c.got {
			if p.ID.PID != c.want[i] {
				t.Errorf("%s[%d] = %d, want %v", c.name, i, p.ID.PID, c.want)
			}
		}
	}
}

// Processes that cannot be read, for every reason, do not affect the others.
func TestReadUnreadable(t *testing.T) {
	f := newFake(t)
	f.process(7, 5, 1000, "/job")
	for pid, stat := range map[int]string{
		20: "", 21: "garbage", 22: "22 (x) S 1 2", 23: "99 (another) S 1 1 1 0 -1 0 0 0 0 0 1 0 0 0 20 0 3 0 5 6 7 8\n",
		24: "24 (x) S a b c d e f g h i j k l m n o p q r s t u v w\n", 25: "\x00\xff\x00",
	} {
		f.process(pid, 1, 1, "/job")
		f.write(fmt.Sprintf("proc/%d/stat", pid), stat)
	}
	f.process(30, 1, 1, "/job")
	f.write("proc/30/cgroup", "3:cpu:/elsewhere\n")
	f.process(31, 1, 1, "/job")
	f.write("proc/31/io", "what\n")
	f.process(32, 1, 1, "/job")
	f.remove("proc/32/io")
	f.process(33, 1, 1, "/job")
	f.remove("proc/33/stat")
	tab := table(t, open(t, f.dir), proc.Config{})
	read(t, tab)
	if got := len(tab.Processes("/job")); got != 3 {
		t.Errorf("%d processes, want 7, 31 and 32: %v", got, tab.Processes("/job"))
	}
	for _, pid := range []int{31, 32} {
		if p := find(tab, pid); p == nil || p.HasIO {
			t.Errorf("process %d = %+v, want one without I/O", pid, p)
		}
	}
	// Processes whose stat is gone or of another process have ended, which is not an error.
	// The other six are unreadable.
	if tab.Unreadable != 6 {
		t.Errorf("Unreadable = %d, want 6", tab.Unreadable)
	}
}

// TestReadFollows sees processes start, move and end, and a PID reused.
func TestReadFollows(t *testing.T) {
	f := newFake(t)
	f.process(7, 100, 1000, "/job")
	f.process(8, 50, 1000, "/job")
	tab := table(t, open(t, f.dir), proc.Config{Descriptors: 2})
	read(t, tab)
	f.process(7, 130, 1000, "/other") // moved
	f.process(9, 4, 10001, "/job")    // started since
	f.process(10, 40, 1000, "/job")   // existed before, but was missed
	f.process(11, 3, 20000, "/job")   // its PID will be reused
	f.remove("proc/8")                // ended
	read(t, tab)
	for _, c := range []struct {
		pid          int
		cpu, entered time.Duration
		group        string
	}{
		{7, 130 * tick, 100 * tick, "/other"},
		{9, 4 * tick, 0, "/job"},
		{10, 40 * tick, 40 * tick, "/job"},
		{11, 3 * tick, 0, "/job"},
	} {
		p := find(tab, c.pid)
		if p == nil || p.CPU != int64(c.cpu) || p.Entered != int64(c.entered) || p.Group != c.group {
			t.Errorf("process %d = %+v, want %+v", c.pid, p, c)
		}
	}
	if p := find(tab, 8); p != nil {
		t.Errorf("process 8 has ended and is still listed: %+v", p)
	}
	f.process(11, 2, 30000, "/job")
	read(t, tab)
	if p := find(tab, 11); p == nil || p.ID.Start != int64(30000*tick) || p.CPU != int64(2*tick) || p.Entered != 0 {
		t.Errorf("reused PID = %+v, want a new process", p)
	}
}

// sleeper starts a child that sleeps until the end of the test.
func sleeper(t testing.TB) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "infinity")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// TestReadLive compares a process with its own figures.
func TestReadLive(t *testing.T) {
	for _, name := range []string{"files", "bpf"} {
		t.Run(name, func(t *testing.T) {
			tab := reader(t, name)
			for range 3 {
				before := self(t)
				read(t, tab)
				after := self(t)
				p := find(tab, os.Getpid())
				if p == nil {
					t.Fatal("this process is missing")
				}
				if p.CPU < before || p.CPU > after {
					t.Errorf("CPU = %d, want %d to %d", p.CPU, before, after)
				}
				if p.RSS < 1<<20 || !p.HasIO || p.Threads < 1 || p.Parent != int32(os.Getppid()) {
					t.Errorf("process = %+v", p)
				}
			}
			child := sleeper(t)
			read(t, tab)
			if p := find(tab, child.Process.Pid); p == nil || p.Entered != 0 || p.Parent != int32(os.Getpid()) {
				t.Errorf("child = %+v, want one started since", p)
			}
		})
	}
}

// self returns the CPU ns of this process.
func self(t testing.TB) int64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano()
}

func BenchmarkRead(b *testing.B) {
	for _, name := range []string{"files", "bpf"} {
		b.Run(name, func(b *testing.B) {
			tab := reader(b, name)
			for range 200 {
				sleeper(b)
			}
			read(b, tab)
			start := self(b)
			for b.Loop() {
				read(b, tab)
			}
			b.ReportMetric(float64(self(b)-start)/float64(b.N)/float64(len(tab.All())), "cpu-ns/process")
		})
	}
}
