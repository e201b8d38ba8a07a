package sources_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/testkit"
)

// workerEnv is set in the processes of startWorker.
const workerEnv = "METE_TEST_WORKER"

// work does what each line of its input says, and answers with a line: "done", or the error.
func work() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		name, rest, _ := strings.Cut(in.Text(), " ")
		do, ok := works[name]
		err := errors.New("unknown work")
		if ok {
			err = do(strings.Fields(rest))
		}
		if err != nil {
			fmt.Println(in.Text()+":", err)
			continue
		}
		fmt.Println("done")
	}
}

// works are the kinds of work, by name.
var works = map[string]func(args []string) error{
	// burn MS uses CPU time.
	"burn": func(args []string) error {
		burnThread(integer(args[0]))
		return nil
	},
	// spin uses CPU time from now on.
	"spin": func([]string) error {
		go func() {
			for {
				burnThread(1000)
			}
		}()
		return nil
	},
	// fork N runs processes, one after another.
	"fork": func(args []string) error {
		for range integer(args[0]) {
			if err := exec.Command("/proc/self/exe").Run(); err != nil { // its input is empty
				return err
			}
		}
		return nil
	},
	// anon BYTES holds anonymous memory.
	"anon": func(args []string) error {
		b, err := pages(integer(args[0]))
		for i := 0; i < len(b); i += os.Getpagesize() {
			b[i] = 1
		}
		return err
	},
	// write FILE OFFSET BYTES writes through the page cache to the disk.
	"write": func(args []string) error { return writeAt(args, 0, true) },
	// direct-write FILE OFFSET BYTES writes without the page cache.
	"direct-write": func(args []string) error { return writeAt(args, unix.O_DIRECT, false) },
	// read FILE OFFSET BYTES reads into the page cache, and nothing ahead.
	"read": func(args []string) error { return readAt(args, 0) },
	// direct-read FILE OFFSET BYTES reads without the page cache.
	"direct-read": func(args []string) error { return readAt(args, unix.O_DIRECT) },
	// thread DIR MS uses CPU time in a thread in a threaded group.
	"thread": func(args []string) error {
		ended := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			ended <- func() error {
				file := filepath.Join(args[0], "cgroup.threads")
				if err := os.WriteFile(file, fmt.Append(nil, unix.Gettid()), 0); err != nil {
					return err
				}
				burnThread(integer(args[1]))
				return nil
			}()
		}()
		return <-ended
	},
}

// burnThread uses CPU time in this thread.
func burnThread(ms int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() int64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
			panic(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	for end := used() + int64(ms)*1e6; used() < end; {
	}
}

func integer(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

// pages returns memory in small pages, which is aligned and not counted before it is written.
func pages(size int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE) // kernels without huge pages reject it
	return b, nil
}

func writeAt(args []string, flags int, sync bool) (err error) {
	f, err := os.OpenFile(args[0], os.O_WRONLY|flags, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err := pages(integer(args[2]))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Munmap(b)) }()
	if _, err = f.WriteAt(b, int64(integer(args[1]))); err == nil && sync {
		err = f.Sync()
	}
	return err
}

func readAt(args []string, flags int) (err error) {
	f, err := os.OpenFile(args[0], os.O_RDONLY|flags, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		return err
	}
	b, err := pages(integer(args[2]))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Munmap(b)) }()
	_, err = f.ReadAt(b, int64(integer(args[1])))
	return err
}

// A worker is a process that works on request.
type worker struct {
	t   *testing.T
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Reader
}

// startWorker starts a worker and moves it into the group with a directory.
func startWorker(t *testing.T, dir string) *worker {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	in, out := testkit.StartPiped(t, cmd)
	w := &worker{t: t, cmd: cmd, in: in.(*os.File), out: bufio.NewReader(out)}
	t.Cleanup(w.end)
	w.do("burn 0") // it has started
	w.do("fork 1") // before its first process the Go runtime starts another
	w.enter(dir)
	return w
}

// enter moves the process into the group with a directory.
func (w *worker) enter(dir string) {
	w.t.Helper()
	put(w.t, dir+"/cgroup.procs", fmt.Sprint(w.cmd.Process.Pid))
}

// do sends a line of work.
func (w *worker) do(format string, args ...any) {
	w.t.Helper()
	if _, err := fmt.Fprintf(w.in, format+"\n", args...); err != nil {
		w.t.Fatal(err)
	}
	if text, err := w.out.ReadString('\n'); err != nil || text != "done\n" {
		w.t.Fatalf("a worker says %q, %v", text, err)
	}
}

// stop stops the process, so that it uses nothing.
func (w *worker) stop() {
	w.t.Helper()
	if err := w.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		w.t.Fatal(err)
	}
	testkit.Eventually(w.t, "a worker is stopped", func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", w.cmd.Process.Pid))
		if err != nil {
			w.t.Fatal(err)
		}
		for _, file := range tasks {
			if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), ") T ") {
				return false
			}
		}
		return len(tasks) > 0
	})
}

func (w *worker) resume() {
	w.t.Helper()
	if err := w.cmd.Process.Signal(unix.SIGCONT); err != nil {
		w.t.Fatal(err)
	}
}

// end ends the process, if it has not ended.
func (w *worker) end() {
	if w.in == nil {
		return
	}
	_ = w.in.Close()
	w.in = nil
	_ = w.cmd.Process.Kill() // it may be stopped, spinning or gone
	_ = w.cmd.Wait()         // it was killed
}

// put writes a file of a group.
func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

// waitFor waits until a file of a group has a line.
func waitFor(t *testing.T, file, line string) {
	t.Helper()
	testkit.Eventually(t, file+" has "+line, func() bool {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains("\n"+string(b), "\n"+line+"\n")
	})
}
