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

// The load: groups that are born, use CPU time and die, and the kernel's own
// count of what each used, read where it does not change any more.

// A life is a group that is gone, or at the end of the test is still there.
type life struct {
	path     string
	from, to time.Time // between them it was removed; zero where it was not
	ns       int64     // its own counter: CPU time, that of the groups below included
}

// A fleet is the groups below one that the test makes, and who works in them.
type fleet struct {
	mounts  []string // of the hierarchies; the first counts CPU time
	top     string
	parents []string // they live all the time, and nobody works in them
	stayers []string // they live all the time too
	disk    string   // a directory upon a disk; "" where there is none
	held    *held

	stop    chan struct{}
	once    sync.Once
	running sync.WaitGroup
	mu      sync.Mutex
	lives   []life
	births  []time.Time // of groups, each when it was there
	ops     []op        // on the disk
	holds   []*hold     // memory
	failed  error
}

// hierarchies lists where groups are made: one that counts CPU time first.
func hierarchies(t *testing.T) (mounts []string) {
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }() // it was only read
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

// home is where who works is in between.
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

// lasting are the groups that are there until the end.
func (f *fleet) lasting() []string {
	return slices.Concat([]string{f.top, f.home()}, f.parents, f.stayers)
}

// usage is a group's own counter of CPU time in ns.
func (f *fleet) usage(group string) (int64, error) {
	b, err := os.ReadFile(filepath.Join(f.mounts[0]+group, "cpuacct.usage"))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// unmake removes a group in which nobody is, in the hierarchy that counts last.
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
		time.Sleep(time.Millisecond) // a process that ended is still on its way out
	}
}

// removeBelow removes a group and all that is left below it.
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

// start has so many workers make, use and remove groups until end is called,
// and one more groups that hold memory.
func (f *fleet) start(t *testing.T, workers int, seed uint64) {
	t.Cleanup(func() { _ = f.end() }) // where the test has failed meanwhile
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

// end stops the workers and takes down what the groups that are left used.
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

// A worker is a process that goes into groups, uses CPU time there, and comes
// out again: once it is out the group's counter stands still.
type worker struct {
	f     *fleet
	id    int
	rnd   *rand.Rand
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *json.Decoder
	alive []string // groups that it made, parents first
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

// An order is what a worker's process is to do in a group.
type order struct {
	Group  string
	CPU    time.Duration // to use
	Blocks int           // to write to the disk and to read again
	Hold   int           // bytes of memory, from now on
	Free   bool          // what it holds in the group, which may be gone: nothing else
}

// done is the answer: what the process read and wrote on the disk, in bytes.
type done struct{ Read, Written int64 }

// work is the process of a worker.
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

// do has the process carry out an order.
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

// use uses CPU time in a group, and sometimes the disk.
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

// run makes, uses and removes groups.
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

// act makes, uses or removes one group.
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

// bear makes a group, and mostly uses it at once. Some have the path of one that
// is gone.
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

// bury removes one of the groups that has none below.
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

// bury removes a group in which nobody is, and takes down what it used.
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

// rest takes down what the groups that are left used.
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
