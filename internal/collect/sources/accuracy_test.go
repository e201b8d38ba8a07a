package sources_test

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestMain makes the test binary its own load, and the power simulator.
func TestMain(m *testing.M) {
	powersim.Main()
	if os.Getenv(burnEnv) != "" {
		burnLines()
		return
	}
	if os.Getenv(workerEnv) != "" {
		work()
		return
	}
	if kind := os.Getenv("METE_TEST_LOAD"); kind != "" {
		drive(kind)
		return
	}
	if d := os.Getenv("METE_TEST_BUSY"); d != "" {
		span, err := time.ParseDuration(d)
		if err != nil {
			panic(err)
		}
		for t := time.Now(); time.Since(t) < span; {
		}
		return
	}
	os.Exit(m.Run())
}

// accuracy skips the test unless the accuracy stage runs: it loads the machine.
func accuracy(t *testing.T, needs ...string) {
	t.Helper()
	testkit.Stage(t, "accuracy", "loads the machine")
	for _, n := range needs {
		hosttest.Need(t, n)
	}
}

// hierarchies returns the mount points in which to create test groups: all that count
// something. The first one counts CPU.
func hierarchies(t *testing.T) (mounts []string, usage string) {
	t.Helper()
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }() // nothing was written
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	usage = "cpu.stat"
	for _, y := range ys {
		if y.Has("cpuacct") {
			mounts, usage = slices.Insert(mounts, 0, y.Mount), "cpuacct.usage"
			continue
		}
		if y.V2 && len(y.Controllers) > 0 || y.Has("memory") || y.Has("pids") || y.Has("blkio") {
			mounts = append(mounts, y.Mount)
		}
	}
	return mounts, usage
}

// A shortLives creates short-lived groups and records what each used.
type shortLives struct {
	mounts []string
	usage  string
	top    string
	mu     sync.Mutex
	used   map[string]int64 // by group path, CPU ns of its own counter
}

func newShortLives(t *testing.T) *shortLives {
	b := &shortLives{used: map[string]int64{}, top: fmt.Sprintf("/mete-test-brood-%d", os.Getpid())}
	b.mounts, b.usage = hierarchies(t)
	for _, m := range b.mounts {
		if err := os.Mkdir(m+b.top, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(m + b.top); err != nil {
				t.Error(err)
			}
		})
	}
	return b
}

// run creates, uses and removes one group.
func (l *shortLives) run(i int, span time.Duration) error {
	p := fmt.Sprintf("%s/g%03d", l.top, i)
	for _, m := range l.mounts {
		if err := os.Mkdir(m+p, 0o755); err != nil {
			return err
		}
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "METE_TEST_BUSY="+span.String())
	if err := cmd.Start(); err != nil {
		return err
	}
	for _, m := range l.mounts {
		if err := os.WriteFile(filepath.Join(m+p, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			return err
		}
	}
	if err := cmd.Wait(); err != nil {
		return err
	}
	var ns int64
	for try := 0; ; try++ {
		raw, err := os.ReadFile(filepath.Join(l.mounts[0]+p, l.usage))
		if err != nil {
			return err
		}
		ns = usageOf(string(raw))
		failed := false
		for _, m := range slices.Backward(l.mounts) {
			if err := os.Remove(m + p); err != nil && !os.IsNotExist(err) {
				failed = true // the process is still exiting
			}
		}
		if !failed {
			break
		}
		if try > 1000 {
			return fmt.Errorf("%s cannot be removed", p)
		}
		time.Sleep(time.Millisecond)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used[p] = ns
	return nil
}

func usageOf(s string) int64 {
	if _, after, ok := strings.Cut(s, "usage_usec "); ok {
		us, _ := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
		return us * 1000
	}
	ns, _ := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	return ns
}

// Three hundred groups live and die while mete reads once a second: by BPF each one is
// found with all of its use, by files their use is in their parent, and in both cases the
// parts sum to the machine.
func TestAccuracyShortLives(t *testing.T) {
	for _, reader := range []string{sources.BPF, sources.Files} {
		t.Run(reader, func(t *testing.T) {
			accuracy(t, "root", "cgroup2")
			if reader == sources.BPF {
				hosttest.Need(t, "bpf")
			}
			b := newShortLives(t)
			booked := watch(t, reader, func() {
				seed := time.Now().UnixNano()
				t.Logf("seed %d", seed)
				rnd := rand.New(rand.NewPCG(uint64(seed), 0))
				spans := make(chan int)
				var wg sync.WaitGroup
				for range 6 {
					wg.Go(func() {
						for i := range spans {
							if err := b.run(i>>16, time.Duration(i&0xffff)*time.Millisecond); err != nil {
								t.Error(err)
							}
						}
					})
				}
				for i := range 300 {
					spans <- i<<16 | (30 + rnd.IntN(271))
				}
				close(spans)
				wg.Wait()
			})
			var want, got int64
			worst := 0.0
			for p, ns := range b.used {
				want += ns
				if reader == sources.BPF {
					off := float64(booked[p]-ns) / float64(ns)
					worst = max(worst, off, -off)
					if off < -0.001 || off > 0.001 {
						t.Errorf("%s: booked %d ns, its counter %d ns (%+.3f %%)", p, booked[p], ns, off*100)
					}
				}
			}
			for p, ns := range booked {
				if p == b.top || strings.HasPrefix(p, b.top+"/") {
					got += ns
				}
			}
			if len(b.used) != 300 {
				t.Errorf("%d groups lived, want 300", len(b.used))
			}
			off := float64(got-want) / float64(want)
			if off < -0.001 || off > 0.001 {
				t.Errorf("below %s: booked %d ns, the groups' own counters %d ns (%+.3f %%)", b.top, got, want, off*100)
			}
			t.Logf("%d groups, %.3f CPU s: sum off by %+.5f %%, worst group by %.5f %%", len(b.used), float64(want)/1e9, off*100, worst*100)
		})
	}
}

// watch measures the machine while f runs and returns the CPU ns booked by path. It checks
// the balance of every tick and window.
func watch(t *testing.T, reader string, f func()) map[string]int64 {
	t.Helper()
	m, err := sources.Open(sources.Config{Config: sampler.Config{Tick: time.Second, Window: time.Second}, Reader: reader, Slow: 5 * time.Second},
		slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	booked := map[string]int64{}
	tick := func() {
		b, err := m.Tick()
		if err != nil {
			t.Error(err)
		}
		for _, r := range usage.Wholes {
			if !b.IsBalanced(r) {
				t.Errorf("parts of %v do not sum to the whole: %+v", r, b)
			}
		}
		if b.Lost > 0 {
			t.Errorf("%d births or deaths were lost", b.Lost)
		}
	}
	tick()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-every.C:
		}
		tick()
		w := m.ClosedWindow()
		if w == nil {
			t.Fatal("the tick closed no window")
		}
		if w.Balance.Violations > 0 {
			t.Errorf("%d violations in a window: %+v", w.Balance.Violations, w.Balance)
		}
		for _, r := range w.Rows {
			booked[r.Workload.Path] += r.Usage.Amount[usage.CPU]
		}
	}
	return booked
}
