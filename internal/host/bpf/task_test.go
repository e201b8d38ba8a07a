package bpf_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/testkit"
)

// The rows of a stopped process match /proc.
func TestTasksMatchProc(t *testing.T) {
	h := hierarchy(t, "cpuacct")
	dir := group(t, mount(t, "cpuacct"))
	k := need(t, config(bpf.Tasks))
	kid := spawn(t, []string{dir}, nil, "memory", "8388608")
	kid.start()
	kid.answer()
	pid := kid.cmd.Process.Pid
	// Go's runtime threads are never idle.
	if err := kid.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Wait4(pid, nil, syscall.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		testkit.Eventually(t, "the thread is off its CPU, so that /proc shows its system call", func() bool {
			call, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/syscall", pid, e.Name()))
			return err == nil && !strings.HasPrefix(string(call), "running")
		})
	}

	threads := map[uint32]bpf.Task{}
	kernel, withRSS := 0, 0
	err = k.Tasks(func(task *bpf.Task) bool {
		if task.TGID == uint32(pid) {
			threads[task.PID] = *task
			withRSS += int(task.HasRSS)
		}
		if task.Flags&bpf.KernelThread != 0 {
			kernel++
			if task.HasRSS != 0 {
				t.Errorf("memory of kernel thread %s", task.Comm())
			}
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(threads) != len(entries) || len(entries) < 2 || withRSS != 1 || kernel == 0 {
		t.Fatalf("%d threads, want %d; %d have memory, want 1; %d kernel threads",
			len(threads), len(entries), withRSS, kernel)
	}
	for tid, task := range threads {
		of := func(file string) string {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/%s", pid, tid, file))
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		if want := strings.Fields(of("schedstat"))[0]; fmt.Sprint(task.CPU) != want {
			t.Errorf("thread %d: CPU %d, want %s", tid, task.CPU, want)
		}
		if want := strings.TrimSpace(of("comm")); task.Comm() != want {
			t.Errorf("thread %d: comm %q, want %q", tid, task.Comm(), want)
		}
		// Fields of proc_pid_stat(5) after the name: 4 is the parent, 22 the start in
		// ticks.
		_, rest, _ := strings.Cut(of("stat"), ") ")
		f := strings.Fields(rest)
		if got := fmt.Sprint(task.PPID, " ", task.Start/1e7); got != f[1]+" "+f[19] {
			t.Errorf("thread %d: parent and start %s, want %s %s", tid, got, f[1], f[19])
		}
		if task.Group != kernfsID(t, dir) || task.Hierarchy != h {
			t.Errorf("thread %d: group %d of %d, want %d of %d", tid, task.Group, task.Hierarchy, kernfsID(t, dir), h)
		}
		for line := range strings.Lines(of("io")) {
			for key, got := range map[string]uint64{"read_bytes": task.ReadBytes, "write_bytes": task.WrittenBytes} {
				if want, ok := strings.CutPrefix(strings.TrimSpace(line), key+": "); ok && fmt.Sprint(got) != want {
					t.Errorf("thread %d: %s %d, want %s", tid, key, got, want)
				}
			}
		}
		if task.HasRSS != 0 {
			_, text, _ := strings.Cut(of("status"), "VmRSS:")
			var kb uint64
			if _, err := fmt.Sscan(text, &kb); err != nil {
				t.Fatal(err)
			}
			if task.RSS != kb<<10 || kb < 8<<10 {
				t.Errorf("thread %d: %d bytes resident, want %d", tid, task.RSS, kb<<10)
			}
		}
	}
}

func TestTasksStops(t *testing.T) {
	k := need(t, config(bpf.Tasks))
	n := 0
	if err := k.Tasks(func(*bpf.Task) bool { n++; return n < 3 }); err != nil || n != 3 {
		t.Errorf("Tasks() = %v after %d tasks, want 3", err, n)
	}
}

func BenchmarkTasks(b *testing.B) {
	k := need(b, config(bpf.Tasks))
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n = 0
		if err := k.Tasks(func(*bpf.Task) bool { n++; return true }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/task")
}
