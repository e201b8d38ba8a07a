package storage

import (
	"bufio"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// The main thread is kept for TestMain: it would outlive a goroutine that changed its mount namespace, and /proc/self has the mounts of
// the main thread.
func init() { runtime.LockOSThread() }

// TestMain runs the tests, or the first process of a container that they start.
func TestMain(m *testing.M) {
	text := os.Getenv("METE_TEST_CONTAINER")
	if text == "" {
		os.Exit(m.Run())
	}
	if err := contain(text); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// A rootfs says what a container's root is.
type rootfs struct {
	Dir     string // of the overlay: lower, upper, work and merged are in it
	Options string // of the overlay; "" are the usual ones
	// Fake is a path that the container makes a directory of its own at, for another overlay that becomes its root.
	Fake string
	// Child says that the process starts another one, of the program /init, and ends with it.
	Child bool
	// Users says that the process has a user namespace of its own.
	Users bool
	// Mounts is how many more mounts there are, with names of odd bytes.
	Mounts int
}

// contain changes the root of this process to that of a container, says so, and waits for the end of its input. It is in
// a mount namespace of its own.
func contain(text string) error {
	var r rootfs
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return err
	}
	if r.Dir != "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if r.Options == "" {
			r.Options = "lowerdir=" + r.Dir + "/lower,upperdir=" + r.Dir + "/upper,workdir=" + r.Dir + "/work"
		}
		if err := os.Chdir(r.Dir); err != nil {
			return err
		}
		if err := unix.Mount("overlay", "merged", "overlay", 0, r.Options); err != nil {
			return err
		}
		if err := enterRoot("merged"); err != nil {
			return err
		}
	}
	if r.Fake != "" {
		top := "/" + strings.Split(r.Fake, "/")[1]
		err := errors.Join(os.MkdirAll(top, 0o755), unix.Mount("tmpfs", top, "tmpfs", 0, ""), os.MkdirAll(r.Fake, 0o755), os.MkdirAll(r.Fake+"-work", 0o755), os.MkdirAll("/fake", 0o755),
			unix.Mount("overlay", "/fake", "overlay", 0, "lowerdir=/,upperdir="+r.Fake+",workdir="+r.Fake+"-work"))
		if err != nil {
			return err
		}
		if err := enterRoot("/fake"); err != nil {
			return err
		}
	}
	for i := range r.Mounts {
		at := fmt.Sprintf("/%d / - overlay \xff\\,upperdir=", i) + strings.Repeat("\n", 200)
		if err := errors.Join(os.MkdirAll(at, 0o755), unix.Mount("tmpfs", at, "tmpfs", 0, "size=4k")); err != nil {
			return err
		}
	}
	if r.Child {
		cmd := exec.Command("/init")
		cmd.Env = []string{"METE_TEST_CONTAINER={}"}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stdout
		return cmd.Run()
	}
	fmt.Println("ready", os.Getpid())
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// enterRoot makes a mount the root directory.
func enterRoot(dir string) error {
	return errors.Join(os.Chdir(dir), unix.PivotRoot(".", "."), unix.Unmount(".", unix.MNT_DETACH), os.Chdir("/"))
}

// A container is a process with a root of its own in a control group of its own.
type container struct {
	Target
	rootfs
	group string // directory
	pid   int    // of the process, or of its child
	cmd   *exec.Cmd
	input io.WriteCloser
}

// overlay returns the directories of an overlay on a disk.
func overlay(t *testing.T) rootfs {
	t.Helper()
	dir := diskDir(t)
	for _, d := range []string{"lower", "upper", "work", "merged"} {
		must(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	return rootfs{Dir: dir}
}

// start starts a container in a slot, with a group of that name.
func start(t *testing.T, h *hostfs.FS, slot usage.Slot, name string, r rootfs) *container {
	t.Helper()
	hosttest.Need(t, "root")
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	y := ys[0]
	for _, one := range ys {
		if one.Has("cpuacct") {
			y = one
		}
	}
	c := &container{rootfs: r, Target: Target{Slot: slot, Kind: workload.Container, Key: name, Hierarchy: y, Path: "/" + name}}
	dir, _ := y.Dir(c.Path)
	c.group = h.Path(dir)
	must(t, os.Mkdir(c.group, 0o755))
	t.Cleanup(func() {
		c.end(t)
	})
	if c.ID, err = h.ID(dir); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	c.cmd = exec.Command("/proc/self/exe")
	c.cmd.Env = append(os.Environ(), "METE_TEST_CONTAINER="+string(text))
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if r.Users {
		a := c.cmd.SysProcAttr
		a.Cloneflags |= unix.CLONE_NEWUSER
		a.UidMappings, a.GidMappings = []syscall.SysProcIDMap{{Size: 1}}, []syscall.SysProcIDMap{{Size: 1}}
	}
	if c.input, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	must(t, c.cmd.Start(), os.WriteFile(filepath.Join(c.group, "cgroup.procs"), []byte(strconv.Itoa(c.cmd.Process.Pid)), 0o644))
	line, err := bufio.NewReader(out).ReadString('\n')
	if _, scanErr := fmt.Sscanf(line, "ready %d", &c.pid); err != nil || scanErr != nil {
		t.Fatalf("the container says %q, %v", line, err)
	}
	return c
}

// end ends the container and removes its group.
func (c *container) end(t *testing.T) {
	t.Helper()
	if c.cmd != nil && c.cmd.Process != nil {
		if err := errors.Join(c.input.Close(), c.cmd.Wait()); err != nil {
			t.Error(err) // and the group is removed
		}
	}
	c.cmd = nil
	if err := os.Remove(c.group); err != nil && !errors.Is(err, os.ErrNotExist) {
		testkit.Eventually(t, "the group is empty", func() bool { return os.Remove(c.group) == nil })
	}
}

// root returns the device number of the container's root.
func (c *container) root(t *testing.T) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(fmt.Sprintf("/proc/%d/root", c.cmd.Process.Pid), &st))
	return st.Dev
}

func thisHost(t *testing.T) *hostfs.FS {
	t.Helper()
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, h.Close()) })
	return h
}

// newTable returns a table whose turns the test takes. Directories of the machine are in dir.
func newTable(t *testing.T, h *hostfs.FS, dir string) *Table {
	t.Helper()
	cfg := Default()
	cfg.Kubelet, cfg.Logs, cfg.Docker = filepath.Join(dir, "kubelet"), filepath.Join(dir, "log"), filepath.Join(dir, "docker")
	tab, err := Open(h, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if why := tab.Reason(); why != "" {
		t.Skip(why)
	}
	tab.ended, tab.shortFiles = make(chan struct{}), 2*turnFiles
	tab.volumes.podTime, tab.volumes.lookTime = time.Hour, time.Hour // the machine may be slow
	close(tab.ended)                                                 // no goroutine
	t.Cleanup(func() {
		must(t, tab.Close())
		tab.closeWalks()
	})
	return tab
}

// track tracks a workload that is due now.
func (t *Table) track(x Target) *target {
	t.Track(x)
	one := t.bySlot[x.Slot]
	one.pause = 0
	return one
}

// takeTurns takes turns until none is due.
func (t *Table) takeTurns() (files int) {
	for w, _ := t.nextTurn(); w != nil; w, _ = t.nextTurn() {
		n, _ := t.take(w)
		files += n
	}
	return files
}

// TestContainer measures the writable layer and the logs of containers.
func TestContainer(t *testing.T) {
	h, dir := thisHost(t), diskDir(t)
	tab := newTable(t, h, dir)
	id := hosttest.ContainerID(t)
	c := start(t, h, 3, id, overlay(t))
	const uid = "12fdc709-933e-41d0-917f-cd84de9afa94"
	c.Pod = uid
	write(t, filepath.Join(c.Dir, "lower", "image"), 1<<20)
	upper := filepath.Join(c.Dir, "upper")
	write(t, filepath.Join(upper, "a", "b"), 300_000)
	x := tab.track(c.Target)
	if bytes, ok := tab.Use(3, Sign{}, x.tried); ok {
		t.Errorf("%d bytes before a walk", bytes)
	}
	files := tab.takeTurns()
	want := du(t, upper)
	if bytes, ok := tab.Use(3, Sign{}, x.tried); !ok || bytes != want {
		t.Errorf("%d bytes, %v, want %d", bytes, ok, want)
	}
	if most := locateCost + 20; files > most {
		t.Errorf("%d files looked at, at most %d", files, most)
	}

	// Logs of the kubelet and of Docker.
	pod := "ns_web_" + uid
	logs := filepath.Join(dir, "log", "pods", pod, "main")
	write(t, filepath.Join(logs, "0.log"), 50_000)
	write(t, filepath.Join(logs, "0.log.20261130-174500"), 20_000)
	docker := filepath.Join(dir, "docker", "containers", id)
	write(t, filepath.Join(docker, id+"-json.log"), 30_000)
	write(t, filepath.Join(docker, "config.v2.json"), 30_000)
	must(t, os.MkdirAll(filepath.Join(dir, "log", "containers"), 0o755),
		os.Symlink("/var/log/pods/"+pod+"/main/0.log", filepath.Join(dir, "log", "containers", "web_ns_main-"+id+".log")))
	unix.Sync()
	x.pause, tab.logsAt = 0, -1<<60
	tab.Use(3, Sign{CPU: int64(leastCPU)}, x.tried)
	tab.takeTurns()
	want += 53248 + 20480 + 32768
	if bytes, ok := tab.Use(3, Sign{}, x.tried); !ok || bytes != want {
		t.Errorf("with logs: %d bytes, %v, want %d", bytes, ok, want)
	}
	if _, ok := tab.Use(3, Sign{}, x.at+int64(maxAge)+1); ok {
		t.Error("a figure that is too old")
	}
	tab.Forget(3)
	if _, ok := tab.Use(3, Sign{}, x.tried); ok || len(tab.claims) > 0 {
		t.Error("a figure of a workload that is forgotten")
	}
}

// TestNoLayer checks containers whose writable layer is not certain.
func TestNoLayer(t *testing.T) {
	h := thisHost(t)
	victim := start(t, h, 1, "mete-victim-"+hosttest.ContainerID(t), overlay(t))
	relative, readOnly, twice := overlay(t), overlay(t), overlay(t)
	relative.Options = "lowerdir=lower,upperdir=upper,workdir=work"
	readOnly.Options = "lowerdir=lower:upper"
	must(t, os.Mkdir(filepath.Join(twice.Dir, "x,upperdir="+strings.ReplaceAll(victim.Dir, "/", "_")), 0o755))
	twice.Options = "lowerdir=lower:x\\,upperdir=" + strings.ReplaceAll(victim.Dir, "/", "_") + ",upperdir=upper,workdir=work"
	volume := overlay(t)
	fake, many, one, users := overlay(t), overlay(t), overlay(t), overlay(t)
	fake.Fake = filepath.Join(victim.Dir, "upper")
	many.Mounts, one.Mounts, users.Users = 400, 1, true
	for i, c := range []struct {
		name string
		r    rootfs
		want error
	}{
		{"the machine's root", rootfs{}, errNoOverlay},
		{"relative", relative, errRelative},
		{"read-only", readOnly, errNoOverlay},
		{"two paths", twice, errNoOverlay},
		{"another one's path", fake, errNotLayer},
		{"a volume", volume, errNotLayer},
		{"a user namespace", users, errUsers},
		{"odd names", one, nil},
		{"many mounts", many, errTooLong},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := start(t, h, usage.Slot(i+2), fmt.Sprintf("mete-%d-%s", i, hosttest.ContainerID(t)), c.r)
			l := &locator{cfg: Default(), host: h, enter: func(string) error { return nil }}
			l.cfg.Kubelet = volume.Dir
			f, err := l.locate(&k.Target, "")
			if !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if err != nil {
				return
			}
			if f.layer.upper != filepath.Join(c.r.Dir, "upper") {
				t.Errorf("the layer is %s", f.layer.upper)
			}
			must(t, f.close())
		})
	}
}

// TestSameRoot checks that of two containers with one root only the first has the layer.
func TestSameRoot(t *testing.T) {
	h := thisHost(t)
	a := start(t, h, 1, "mete-a-"+hosttest.ContainerID(t), overlay(t))
	write(t, filepath.Join(a.Dir, "upper", "file"), 10_000)
	tab := newTable(t, h, t.TempDir())
	x := tab.track(a.Target)
	tab.takeTurns()
	if _, ok := tab.Use(1, Sign{}, x.tried); !ok {
		t.Fatal("no figure")
	}
	b := start(t, h, 2, "mete-b-"+hosttest.ContainerID(t), rootfs{})
	// A process of the first container enters the group of the second one.
	must(t, os.WriteFile(filepath.Join(b.group, "cgroup.procs"), []byte(strconv.Itoa(a.cmd.Process.Pid)), 0o644))
	b.leave(t)
	y := tab.track(b.Target)
	tab.takeTurns()
	if bytes, ok := tab.Use(2, Sign{}, y.tried); ok {
		t.Errorf("%d bytes of the other one's layer", bytes)
	}
	if tab.bySlot[1].claim == (fileID{}) || len(tab.claims) != 1 {
		t.Errorf("claims %v", tab.claims)
	}
	must(t, os.WriteFile(filepath.Join(a.group, "cgroup.procs"), []byte(strconv.Itoa(a.cmd.Process.Pid)), 0o644))
}

// TestParentsRoot checks that a process with the root of its parent, as before a runtime changes it, does not get the layer of the parent's
// container.
func TestParentsRoot(t *testing.T) {
	program, err := elf.Open("/proc/self/exe")
	must(t, err)
	defer func() { must(t, program.Close()) }()
	if slices.ContainsFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Skip("this program needs a dynamic loader, as with -race")
	}
	h, r := thisHost(t), overlay(t)
	r.Child = true
	b, err := os.ReadFile("/proc/self/exe")
	must(t, err, os.WriteFile(filepath.Join(r.Dir, "lower", "init"), b, 0o755))
	inner := start(t, h, 2, "mete-i-"+hosttest.ContainerID(t), rootfs{})
	inner.leave(t)
	outer := start(t, h, 3, "mete-o-"+hosttest.ContainerID(t), r)
	must(t, os.WriteFile(filepath.Join(inner.group, "cgroup.procs"), []byte(strconv.Itoa(outer.pid)), 0o644))
	l := &locator{cfg: Default(), host: h, enter: func(string) error { return nil }}
	if _, err := l.locate(&inner.Target, ""); !errors.Is(err, errNotYet) {
		t.Errorf("%v, want %v", err, errNotYet)
	}
	f, err := l.locate(&outer.Target, "")
	must(t, err, f.close())
}

// leave ends the process, but keeps the group.
func (c *container) leave(t *testing.T) {
	t.Helper()
	must(t, c.input.Close(), c.cmd.Wait())
	c.cmd = nil
}

// TestReplaced ends a container while it is measured, and starts another one in a group of the same name with an overlay of the same device
// number: the second one never gets what the first one wrote.
func TestReplaced(t *testing.T) {
	h := thisHost(t)
	name := "mete-" + hosttest.ContainerID(t)
	tab := newTable(t, h, t.TempDir())
	a := start(t, h, 1, name, overlay(t))
	write(t, filepath.Join(a.Dir, "upper", "large"), 3<<20)
	for i := range 2 * turnFiles {
		write(t, filepath.Join(a.Dir, "upper", fmt.Sprint(i)), 1)
	}
	tab.track(a.Target)
	for range 2 { // it found the directory, and walks
		w, _ := tab.nextTurn()
		tab.take(w)
	}
	if tab.short == nil || tab.short.bytes+tab.short.tree.bytes == 0 {
		t.Fatal("no walk in between")
	}
	dev := a.root(t)
	a.end(t)
	b := start(t, h, 1, name, overlay(t))
	if b.root(t) != dev {
		t.Log("the device number is another one")
	}
	first := tab.bySlot[1]
	tab.takeTurns() // before anything is known of the end
	if first.at != 0 || len(tab.claims) > 0 {
		t.Errorf("%d bytes are booked to the ended one", first.bytes)
	}
	x := tab.track(b.Target)
	tab.takeTurns()
	if bytes, ok := tab.Use(1, Sign{}, x.tried); !ok || bytes != du(t, filepath.Join(b.Dir, "upper")) {
		t.Errorf("%d bytes, %v", bytes, ok)
	}
}
