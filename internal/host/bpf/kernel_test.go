package bpf_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit"
)

// childEnv makes the test binary a child that joins groups and then does one action; see
// child.
const childEnv = "METE_TEST_BPF_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		if err := child(what, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// need opens the given parts. If the kernel lacks or denies them it skips the test, or
// fails it if METE_MUST names bpf.
func need(t testing.TB, cfg bpf.Config) *bpf.Kernel {
	t.Helper()
	k, err := bpf.Open(cfg)
	if err == nil {
		t.Cleanup(func() {
			if err := k.Close(); err != nil {
				t.Errorf("Close() = %v", err)
			}
		})
		if k.WorkingParts() == cfg.Parts {
			return k
		}
		for p := bpf.Part(1); p < bpf.All; p <<= 1 {
			if cfg.Parts&p != 0 {
				err = errors.Join(err, k.Err(p))
			}
		}
	}
	lacking(t, err)
	return nil
}

// lacking skips the test because of err, unless METE_MUST names bpf or err is not a missing
// feature of the machine.
func lacking(t testing.TB, err error) {
	t.Helper()
	for must := range strings.SplitSeq(os.Getenv("METE_MUST"), ",") {
		if must == "bpf" {
			t.Fatal(err)
		}
	}
	if errors.Is(err, fault.ErrDenied) || errors.Is(err, fault.ErrUnsupported) {
		t.Skip(err)
	}
	t.Fatal(err)
}

func config(parts bpf.Part) bpf.Config {
	cfg := bpf.Default()
	cfg.Parts = parts
	return cfg
}

// mount returns the mount point of the hierarchy with the version 1 controller, or of the
// default hierarchy for "". It skips the test if it is not mounted, or if the controller is
// in the default hierarchy.
func mount(t testing.TB, controller string) string {
	t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer close(t, f)
	for s := bufio.NewScanner(f); s.Scan(); {
		before, after, _ := strings.Cut(s.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 5 || len(right) < 3 {
			continue
		}
		if controller == "" && right[0] == "cgroup2" {
			return left[4]
		}
		if right[0] == "cgroup" && controller != "" {
			for o := range strings.SplitSeq(right[2], ",") {
				if o == controller {
					return left[4]
				}
			}
		}
	}
	t.Skipf("no hierarchy with %q is mounted", controller)
	return ""
}

// hierarchy returns the number of the hierarchy that has the controller.
func hierarchy(t testing.TB, controller string) uint32 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(line, ":", 3)
		if len(f) == 3 && f[1] == controller {
			n, err := strconv.ParseUint(f[0], 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			return uint32(n)
		}
	}
	t.Skipf("no hierarchy has %q", controller)
	return 0
}

func close(t testing.TB, c io.Closer) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// group makes a group that is removed at the end of the test.
func group(t testing.TB, parent string) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "mete-test-")
	if errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.EROFS) {
		lacking(t, fmt.Errorf("%w: %w", err, fault.ErrDenied))
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, dir) })
	return dir
}

// remove removes a group, which may still hold exiting processes.
func remove(t testing.TB, dir string) {
	t.Helper()
	testkit.Eventually(t, dir+" is removed", func() bool {
		err := os.Remove(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.EBUSY) {
			t.Error(err)
		}
		return !errors.Is(err, syscall.EBUSY)
	})
}

func kernfsID(t testing.TB, dir string) uint64 {
	t.Helper()
	st, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	return st.Sys().(*syscall.Stat_t).Ino
}

// number reads a file with one number, or the number after key in it.
func number(t testing.TB, file, key string) uint64 {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if key != "" {
		_, text, _ = strings.Cut("\n"+text, "\n"+key+" ")
		text, _, _ = strings.Cut(text, "\n")
	}
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A childProcess is a child process in groups of its own.
type childProcess struct {
	t   testing.TB
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Reader
}

// spawn starts a child that joins the groups and then waits for start.
func spawn(t testing.TB, groups []string, attr *syscall.SysProcAttr, what string, args ...string) *childProcess {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", append([]string{strings.Join(groups, ":")}, args...)...)
	// With the race detector a process would sleep before it exits.
	cmd.Env = append(os.Environ(), childEnv+"="+what, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	stdin, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout = stdin, stdout
	err = cmd.Start()
	close(t, stdin)
	close(t, stdout)
	if err != nil {
		lacking(t, fmt.Errorf("%w: %w", err, fault.ErrDenied))
	}
	k := &childProcess{t, cmd, in, bufio.NewReader(out)}
	t.Cleanup(func() {
		close(t, out)
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			close(t, in)
		}
	})
	k.answer()
	return k
}

// answer returns the next line of the child.
func (c *childProcess) answer() string {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatalf("child: %v", err)
	}
	return strings.TrimSpace(line)
}

// start lets the child go on.
func (c *childProcess) start() {
	c.t.Helper()
	if _, err := c.in.WriteString("\n"); err != nil {
		c.t.Fatal(err)
	}
}

// leave moves the child out of its group below the mount, because its exit may count for
// the group long after the parent has seen it.
func (c *childProcess) leave(mount string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(mount, "cgroup.procs"), []byte(strconv.Itoa(c.cmd.Process.Pid)), 0); err != nil {
		c.t.Fatal(err)
	}
}

// end waits for the child to exit with success.
func (c *childProcess) end() {
	c.t.Helper()
	close(c.t, c.in)
	if err := c.cmd.Wait(); err != nil {
		c.t.Fatalf("child: %v", err)
	}
}

// child joins the groups, prints a line, waits for a line, does the action and prints its
// result.
func child(what string, args []string) error {
	if what == "forks" {
		// os/exec starts one extra process the first time, to probe the kernel.
		if _, err := forks([]string{"1"}); err != nil {
			return err
		}
	}
	for dir := range strings.SplitSeq(args[0], ":") {
		if dir != "" {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
				return err
			}
		}
	}
	wait := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	if _, err := wait.ReadString('\n'); err != nil {
		return nil // the parent has ended
	}
	answer, err := actions[what](args[1:])
	if err != nil {
		return err
	}
	fmt.Println(answer)
	_, _ = wait.ReadString('\n') // until start or end
	return nil
}
