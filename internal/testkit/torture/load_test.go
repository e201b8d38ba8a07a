package torture

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
)

// The load: groups that are created, use CPU time and are removed, and the kernel's final
// counters of them.

// A life is a group that was removed, or that remains at the end of the test.
type life struct {
	path     string
	from, to time.Time // before and after its removal; zero if it remains
	ns       int64     // kernel's counter of CPU time, including groups below
}

// A fleet is a tree of groups and the workers in them.
type fleet struct {
	mounts  []string // mount points of the hierarchies; the first counts CPU time
	top     string
	parents []string // permanent groups without workers
	stayers []string // permanent groups with workers
	disk    string   // directory on a physical disk, or ""
	held    *held

	stop    chan struct{}
	once    sync.Once
	running sync.WaitGroup
	mu      sync.Mutex
	lives   []life
	births  []time.Time // times at which groups were created
	ops     []op        // uses of the disk
	holds   []*hold     // groups that held memory
	failed  error
}

// hierarchies returns the mount points in which to create groups, first the one that counts
// CPU time.
func hierarchies(t *testing.T) (mounts []string) {
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }() // only read
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, y := range ys {
		switch {
		case y.Has("cpuacct"):
			mounts = slices.Insert(mounts, 0, y.Mount)
		case y.V2 || y.Has("memory") || y.Has("blkio"):
			mounts = append(mounts, y.Mount)
		}
	}
	return mounts
}

func newFleet(t *testing.T) *fleet {
	f := &fleet{mounts: hierarchies(t), disk: upon(t), top: fmt.Sprintf("/mete-test-torture-%d", os.Getpid()), stop: make(chan struct{})}
	t.Cleanup(func() { removeBelow(t, f.mounts, f.top) })
	f.mustMake(t, f.top)
	f.mustMake(t, f.home())
	for i := range 3 {
		p := fmt.Sprintf("%s/p%d", f.top, i)
		f.parents = append(f.parents, p)
		f.stayers = append(f.stayers, p+"/stays")
		f.mustMake(t, p)
		f.mustMake(t, p+"/stays")
	}
	return f
}

// home is the group of idle workers.
func (f *fleet) home() string { return f.top + "/home" }

func (f *fleet) mustMake(t *testing.T, group string) {
	t.Helper()
	if err := f.make(group); err != nil {
		t.Fatal(err)
	}
}

func (f *fleet) make(group string) error {
	for _, m := range f.mounts {
		if err := os.Mkdir(m+group, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// lasting returns the permanent groups.
func (f *fleet) lasting() []string {
	return slices.Concat([]string{f.top, f.home()}, f.parents, f.stayers)
}

// usage returns the kernel's counter of a group's CPU time in ns.
func (f *fleet) usage(group string) (int64, error) {
	b, err := os.ReadFile(filepath.Join(f.mounts[0]+group, "cpuacct.usage"))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// unmake removes an empty group, last in the hierarchy that counts CPU time.
func (f *fleet) unmake(group string) error {
	for {
		var failed error
		for _, m := range slices.Backward(f.mounts) {
			if err := os.Remove(m + group); err != nil && !errors.Is(err, os.ErrNotExist) {
				failed = err
			}
		}
		if !errors.Is(failed, syscall.EBUSY) {
			return failed
		}
		time.Sleep(time.Millisecond) // an ended process is still exiting
	}
}

// removeBelow removes a group and all groups below it.
func removeBelow(t *testing.T, mounts []string, top string) {
	for _, m := range mounts {
		var dirs []string
		_ = filepath.WalkDir(m+top, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		for _, d := range slices.Backward(dirs) {
			if err := os.Remove(d); err != nil {
				t.Error(err)
			}
		}
	}
}

// start starts workers that create, use and remove groups until end is called, and one for
// groups that hold memory.
func (f *fleet) start(t *testing.T, workers int, seed uint64) {
	t.Cleanup(func() { _ = f.end() }) // in case the test fails
	for i := range workers + 1 {
		w := &worker{f: f, id: i, rnd: rand.New(rand.NewPCG(seed, uint64(i)))}
		w.open(t, f.home())
		f.running.Go(func() {
			var err error
			if i < workers {
				err = w.run()
			} else {
				err = w.keep()
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.failed = errors.Join(f.failed, err, w.close())
		})
	}
}

// end stops the workers, which record the use of the remaining groups.
func (f *fleet) end() error {
	f.once.Do(func() { close(f.stop) })
	f.running.Wait()
	return f.failed
}

func (f *fleet) note(l life) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lives = append(f.lives, l)
}

func (f *fleet) born() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.births = append(f.births, time.Now())
}

// A worker is a process that enters groups, uses CPU time there and leaves them. After it has
// left, the group's counter is constant.
type worker struct {
	f     *fleet
	id    int
	rnd   *rand.Rand
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *json.Decoder
	alive []string // groups that it created, parents first
	made  int
	ended bool // close was called
}

// The environment of a worker's process.
const (
	workHome   = "METE_TORTURE_HOME"
	workMounts = "METE_TORTURE_MOUNTS"
	workFile   = "METE_TORTURE_FILE"
)

func (w *worker) open(t *testing.T, home string) {
	w.cmd = exec.Command("/proc/self/exe")
	w.cmd.Env = append(os.Environ(), workHome+"="+home, workMounts+"="+strings.Join(w.f.mounts, "\n"), workFile+"="+w.f.file(t), "GOMAXPROCS=1")
	w.cmd.Stderr = os.Stderr
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.out = json.NewDecoder(out)
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

// close ends the process, once.
func (w *worker) close() error {
	if w.ended {
		return nil
	}
	w.ended = true
	return errors.Join(w.in.Close(), w.cmd.Wait())
}

// An order tells a worker's process what to do in a group.
type order struct {
	Group  string
	CPU    time.Duration // CPU time to use
	Blocks int           // blocks to write to the disk and read again
	Hold   int           // bytes of memory to hold from now on
	Free   bool          // only free the memory held in the group, which may be removed
}

// done is the answer: bytes read and written on the disk.
type done struct{ Read, Written int64 }

// work runs a worker's process.
func work(home string, mounts []string, file string) error {
	enter := func(group string) error {
		for _, m := range mounts {
			if err := os.WriteFile(filepath.Join(m+group, "cgroup.procs"), []byte("0"), 0); err != nil {
				return err
			}
		}
		return nil
	}
	if err := enter(home); err != nil {
		return err
	}
	disk, err := openDirect(file)
	if err != nil {
		return err
	}
	held := map[string][]byte{}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := in.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var d done
		if o.Free {
			err = unix.Munmap(held[o.Group])
			delete(held, o.Group)
		} else if err = enter(o.Group); err == nil {
			if o.Hold > 0 {
				held[o.Group], err = touch(o.Hold)
			}
			if o.Blocks > 0 && err == nil {
				d, err = disk.exercise(o.Blocks)
			}
			for t := time.Now(); time.Since(t) < o.CPU; {
			}
			err = errors.Join(err, enter(home))
		}
		if err = errors.Join(err, out.Encode(d)); err != nil {
			return err
		}
	}
}

// do makes the process carry out an order.
func (w *worker) do(o order) error {
	from := time.Now()
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err := w.in.Write(b); err != nil {
		return err
	}
	var d done
	if err := w.out.Decode(&d); err != nil {
		return fmt.Errorf("worker %d: %w", w.id, err)
	}
	if o.Blocks > 0 {
		w.f.mu.Lock()
		defer w.f.mu.Unlock()
		w.f.ops = append(w.f.ops, op{path: o.Group, from: from, to: time.Now(), done: d})
	}
	return nil
}

// use uses CPU time and sometimes the disk in a group.
func (w *worker) use(group string) error {
	o := order{Group: group, CPU: time.Duration(1+w.rnd.IntN(25)) * time.Millisecond}
	if w.rnd.IntN(20) == 0 {
		o.CPU *= 8
	}
	if w.f.disk != "" && w.rnd.IntN(3) == 0 {
		o.Blocks = 1 + w.rnd.IntN(8)
	}
	return w.do(o)
}

// run creates, uses and removes groups until the fleet stops.
func (w *worker) run() error {
	for {
		select {
		case <-w.f.stop:
			return w.rest()
		case <-time.After(time.Duration(w.rnd.IntN(60)) * time.Millisecond):
		}
		if err := w.act(); err != nil {
			return err
		}
	}
}

// act creates, uses or removes one group.
func (w *worker) act() error {
	switch n := w.rnd.IntN(10); {
	case n == 0:
		return w.use(w.f.stayers[w.rnd.IntN(len(w.f.stayers))])
	case n < 5 && len(w.alive) < 5:
		return w.bear()
	case n < 7 && len(w.alive) > 0:
		return w.use(w.alive[w.rnd.IntN(len(w.alive))])
	case len(w.alive) > 0:
		return w.bury()
	}
	return nil
}

// bear creates a group and mostly uses it at once. Some groups reuse the path of a removed
// one.
func (w *worker) bear() error {
	under := w.f.parents[w.rnd.IntN(len(w.f.parents))]
	if len(w.alive) > 0 && w.rnd.IntN(3) == 0 {
		under = w.alive[w.rnd.IntN(len(w.alive))]
	}
	w.made++
	group := fmt.Sprintf("%s/w%dg%d", under, w.id, w.made)
	if again := fmt.Sprintf("%s/w%dagain", under, w.id); w.rnd.IntN(6) == 0 && !slices.Contains(w.alive, again) {
		group = again
	}
	if err := w.f.make(group); err != nil {
		return err
	}
	w.alive = append(w.alive, group)
	w.f.born()
	if w.rnd.IntN(8) == 0 {
		return nil
	}
	return w.use(group)
}

// bury removes one of the groups without children.
func (w *worker) bury() error {
	i := w.rnd.IntN(len(w.alive))
	group := w.alive[i]
	for slices.ContainsFunc(w.alive, func(g string) bool { return strings.HasPrefix(g, group+"/") }) {
		i = slices.IndexFunc(w.alive, func(g string) bool { return strings.HasPrefix(g, group+"/") })
		group = w.alive[i]
	}
	if err := w.f.bury(group); err != nil {
		return err
	}
	w.alive = slices.Delete(w.alive, i, i+1)
	return nil
}

// bury removes an empty group and records its use.
func (f *fleet) bury(group string) error {
	ns, err := f.usage(group)
	if err != nil {
		return err
	}
	l := life{path: group, ns: ns, from: time.Now()}
	if err := f.unmake(group); err != nil {
		return err
	}
	l.to = time.Now()
	f.note(l)
	return nil
}

// rest records the use of the remaining groups.
func (w *worker) rest() error {
	for _, g := range w.alive {
		ns, err := w.f.usage(g)
		if err != nil {
			return err
		}
		w.f.note(life{path: g, ns: ns})
	}
	return nil
}
