package storage

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// uidOf is the UID of a pod.
func uidOf(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", i) }

// pod returns a pod in a slot, whose emptyDir volumes are below volumes.
func pod(t *testing.T, dir string, slot int) (x Target, volumes string) {
	t.Helper()
	volumes = filepath.Join(dir, "kubelet", "pods", uidOf(slot), "volumes", "kubernetes.io~empty-dir")
	must(t, os.MkdirAll(volumes, 0o755))
	return Target{Slot: usage.Slot(slot), Kind: workload.Pod, Key: uidOf(slot), Path: "/" + uidOf(slot)}, volumes
}

// TestPod measures the emptyDir volumes of pods, without those in memory.
func TestPod(t *testing.T) {
	h, dir := thisHost(t), diskDir(t)
	tab := newTable(t, h, dir)
	with, volumes := pod(t, dir, 1)
	write(t, filepath.Join(volumes, "cache", "a"), 100_000)
	write(t, filepath.Join(volumes, "data", "b", "c"), 50_000)
	must(t, os.Symlink("/", filepath.Join(volumes, "data", "root")))
	static, staticVolumes := pod(t, dir, 2)
	write(t, filepath.Join(staticVolumes, "a", "b"), 1000)
	pods := filepath.Join(dir, "kubelet", "pods")
	must(t, os.Rename(filepath.Join(pods, static.Key), filepath.Join(pods, strings.ReplaceAll(static.Key, "-", ""))))
	without, none := pod(t, dir, 3)
	must(t, os.Remove(none))
	unknown, elsewhere := pod(t, dir, 4)
	must(t, os.RemoveAll(filepath.Dir(filepath.Dir(elsewhere))))
	linked, empty := pod(t, dir, 5)
	must(t, os.Remove(empty), os.Symlink(volumes, empty))
	for _, x := range []Target{with, static, without, unknown, linked} {
		tab.track(x)
	}
	tab.takeTurns()
	want := map[usage.Slot]int64{1: du(t, volumes), 2: du(t, filepath.Join(pods, strings.ReplaceAll(static.Key, "-", ""), "volumes", "kubernetes.io~empty-dir")), 3: 0}
	for slot := usage.Slot(1); slot <= 5; slot++ {
		bytes, ok := tab.Use(slot, Sign{}, tab.bySlot[slot].tried)
		if n, known := want[slot]; ok != known || bytes != n {
			t.Errorf("pod %d: %d bytes, %v, want %d, %v", slot, bytes, ok, n, known)
		}
	}
	if s := tab.Survey(); s.Found != 3 || s.All != 5 || s.Reasons[fault.ErrNotFound.Error()] != 2 {
		t.Errorf("%+v", s)
	}
}

// TestFairTurns checks that a huge tree takes a part of the turns only, and that its position is kept.
func TestFairTurns(t *testing.T) {
	h, dir := thisHost(t), diskDir(t)
	tab := newTable(t, h, dir)
	huge, volumes := pod(t, dir, 1)
	for i := range 4 * tab.shortFiles {
		p := filepath.Join(volumes, fmt.Sprint("d", i%100))
		if i < 100 {
			must(t, os.Mkdir(p, 0o755))
		}
		must(t, os.WriteFile(filepath.Join(p, fmt.Sprint(i)), nil, 0o644))
	}
	tab.track(huge)
	turns := 0
	take := func() {
		w, _ := tab.nextTurn()
		if w == nil {
			t.Fatal("no walk is due")
		}
		if n, _ := tab.take(w); n > turnFiles+100 {
			t.Errorf("a turn looked at %d files", n)
		}
		turns++
	}
	for len(tab.long) == 0 {
		take()
	}
	// The others are done while the huge one goes on.
	for i := range 2 {
		x, small := pod(t, dir, i+2)
		write(t, filepath.Join(small, "a"), 5000)
		one, before := tab.track(x), turns
		for one.at == 0 {
			take()
		}
		if turns-before > 6 {
			t.Errorf("pod %d took %d turns", i, turns-before)
		}
	}
	if tab.bySlot[1].at != 0 || len(tab.long) != 1 {
		t.Fatal("the huge one is done already")
	}
	tab.takeTurns()
	if bytes, ok := tab.Use(1, Sign{}, tab.bySlot[1].tried); !ok || bytes != du(t, volumes) || !tab.bySlot[1].large {
		t.Errorf("%d bytes, %v", bytes, ok)
	}
	if len(tab.long) > 0 || tab.short != nil {
		t.Error("walks go on")
	}
}

// TestManyHuge checks how many large walks there are at once, and that others go on with all of them.
func TestManyHuge(t *testing.T) {
	h, dir := thisHost(t), diskDir(t)
	tab := newTable(t, h, dir)
	now, err := h.Boottime()
	must(t, err)
	many := t.TempDir() // more than a turn looks at
	for i := range turnFiles {
		must(t, os.WriteFile(filepath.Join(many, fmt.Sprint(i)), nil, 0o644))
	}
	for range maxLong {
		tr, err := newTree(openDir(t, many), false)
		must(t, err)
		tab.long = append(tab.long, &walk{x: &target{}, started: now, found: &found{}, tree: tr, files: 1 << 20})
	}
	huge, volumes := pod(t, dir, 1)
	for i := range 2 * tab.shortFiles {
		must(t, os.WriteFile(filepath.Join(volumes, fmt.Sprint(i)), nil, 0o644))
	}
	x, small := pod(t, dir, 2)
	write(t, filepath.Join(small, "a"), 5000)
	one, other := tab.track(huge), tab.track(x)
	for range 200 {
		if w, _ := tab.nextTurn(); w == tab.short && w != nil {
			tab.take(w)
		}
	}
	if one.at != 0 || !one.large || one.busy || other.at == 0 {
		t.Errorf("%+v, %+v", one, other)
	}
	tab.long[0].started = now - int64(maxAge) - 1
	x0 := tab.long[0]
	tab.take(x0)
	if len(tab.long) != maxLong-1 || x0.x.at != 0 {
		t.Error("a walk takes longer than a figure holds")
	}
	one.pause = 0
	tab.takeSome(2000)
	if one.at == 0 {
		t.Error("the large one has no place that became free")
	}
}

// takeSome takes turns of walks that end.
func (t *Table) takeSome(n int) {
	for range n {
		if w, _ := t.nextTurn(); w != nil && w.x.Kind == workload.Pod {
			t.take(w)
		}
	}
}

// TestDue checks when a workload is walked again.
func TestDue(t *testing.T) {
	for _, c := range []struct {
		name string
		x    target
		want time.Duration
	}{
		{"never walked", target{pause: firstPause}, firstPause},
		{"did nothing", target{at: 1, tried: 1, pause: minPause, sign: Sign{CPU: 999_999}}, restPause},
		{"used CPU time", target{at: 1, tried: 1, pause: minPause, sign: Sign{CPU: 1_000_000}}, minPause},
		{"wrote", target{at: 1, tried: 1, pause: maxPause, sign: Sign{Written: 1}}, maxPause},
		{"failed since", target{at: 0, tried: 1, pause: retryPause}, retryPause},
	} {
		if got := time.Duration(c.x.due() - c.x.tried); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// silence mounts a file system that does not answer over a directory, until answer is called.
func silence(t *testing.T, dir string) (answer func()) {
	t.Helper()
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs FUSE: %v", err)
	}
	must(t, unix.Mount("fuse", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse)))
	return sync.OnceFunc(func() { must(t, unix.Close(fuse), unix.Unmount(dir, unix.MNT_DETACH)) }) // what waits fails
}

// TestCloseWhileHung ends a table that waits for a file system that does not answer.
func TestCloseWhileHung(t *testing.T) {
	hosttest.Need(t, "root")
	h, dir := thisHost(t), diskDir(t)
	tab, err := Open(h, Config{Mode: Auto, Rate: MaxRate, Kubelet: filepath.Join(dir, "kubelet"), Logs: dir, Docker: dir}, slog.New(slog.DiscardHandler))
	must(t, err)
	x, _ := pod(t, dir, 1)
	defer silence(t, filepath.Join(dir, "kubelet"))()
	tab.Track(x)
	testkit.Eventually(t, "a walk", func() bool {
		tab.mu.Lock()
		defer tab.mu.Unlock()
		return tab.bySlot[1].busy
	})
	must(t, tab.Close())
	if _, ok := tab.Use(1, Sign{}, 1<<60); ok || len(tab.hung) > 0 {
		t.Errorf("a figure, or a turn that hangs: %v", tab.hung)
	}
}

// TestPodEnds checks that the volumes of a pod that ends have their last figure, and not a part of it or zero.
func TestPodEnds(t *testing.T) {
	h, dir := thisHost(t), diskDir(t)
	tab := newTable(t, h, dir)
	x, volumes := pod(t, dir, 1)
	write(t, filepath.Join(volumes, "a", "b"), 100_000)
	one := tab.track(x)
	tab.takeTurns()
	want := du(t, volumes)
	check := func(when string) {
		t.Helper()
		if bytes, ok := tab.Use(1, Sign{CPU: int64(time.Hour)}, one.tried); !ok || bytes != want {
			t.Errorf("%s: %d bytes, %v, want %d", when, bytes, ok, want)
		}
		one.pause = 0
	}
	check("at first")
	for _, w := tab.nextTurn(); tab.short == nil || tab.short.found == nil; _, w = tab.nextTurn() {
		if tab.take(tab.short); w > 0 {
			t.Fatal("no walk is due")
		}
	}
	must(t, os.RemoveAll(volumes))
	tab.takeTurns()
	check("removed during a walk")
	tab.takeTurns()
	check("removed")
	must(t, os.RemoveAll(filepath.Join(dir, "kubelet", "pods", x.Key)))
	tab.takeTurns()
	check("removed with the pod's directory")
}

// TestLongTurns checks which long walk has the next turn, and which none.
func TestLongTurns(t *testing.T) {
	tab := &Table{hung: map[string]int{"hangs": 1}}
	for _, w := range []walk{{files: 1, base: "hangs"}, {files: 9, base: "first"}, {files: 4, base: "fewest"}, {files: 7, base: "last"}} {
		tab.long = append(tab.long, &w)
	}
	var got []string
	for range 4 {
		tab.turns++
		got = append(got, tab.nextLong().base)
	}
	if want := "fewest first first fewest"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}

// TestBegin checks that no walk begins while too many turns hang, nor a second long one of a pod, and for how long a workload rests.
func TestBegin(t *testing.T) {
	h, dir := thisHost(t), diskDir(t)
	tab := newTable(t, h, dir)
	x, volumes := pod(t, dir, 1)
	write(t, filepath.Join(volumes, "a"), 1000)
	one := tab.track(x)
	tab.hangs = maxHung + 1
	if w, wait := tab.nextTurn(); w != nil || wait <= 0 {
		t.Errorf("a walk begins while %d turns hang, or there is no pause: %v", tab.hangs, wait)
	}
	tab.hangs, one.large = 0, true
	tab.long = []*walk{{x: &target{Target: Target{Key: "container", Pod: x.Key}}, base: "a", found: &found{}}}
	if tab.begin(); tab.short != nil {
		t.Error("a second long walk of the pod begins")
	}
	tab.long = nil
	if tab.begin(); tab.short == nil {
		t.Fatal("no walk begins")
	}
	tab.short.started -= int64(time.Hour)
	tab.takeTurns()
	if one.at == 0 || one.pause < restWalks*time.Hour || time.Duration(one.due()-one.tried) != one.pause {
		t.Errorf("a walk of an hour is followed by a pause of %v, and due after %v", one.pause, time.Duration(one.due()-one.tried))
	}
}

// TestHang measures on while the file system of the kubelet's directory does not answer, and again once it does.
func TestHang(t *testing.T) {
	hosttest.Need(t, "root")
	h, dir := thisHost(t), diskDir(t)
	tab := newTable(t, h, dir)
	tab.patience = 5 * time.Second // long enough for a turn that does not hang, also on a busy machine
	c := start(t, h, 9, hosttest.ContainerID(t), overlay(t))
	var all []*target
	for i := range maxHung + 2 {
		x, _ := pod(t, dir, i)
		all = append(all, tab.track(x))
	}
	kubelet := filepath.Join(dir, "kubelet")
	answer := silence(t, kubelet)
	defer answer()
	layer := tab.track(c.Target)
	tab.takeTurns()
	if layer.at == 0 {
		t.Error("nothing else is measured")
	}
	tab.mu.Lock()
	if tab.hangs != 1 || tab.hung[tab.cfg.Kubelet] != 1 {
		t.Errorf("%d turns hang: %v", tab.hangs, tab.hung)
	}
	tab.mu.Unlock()
	answer()
	testkit.Eventually(t, "the turn ends", func() bool {
		tab.mu.Lock()
		defer tab.mu.Unlock()
		return tab.hangs == 0 && len(tab.hung) == 0
	})
	tab.mu.Lock()
	for _, x := range all {
		x.pause = 0
	}
	tab.mu.Unlock()
	tab.takeTurns()
	for i, x := range all {
		if x.at == 0 || x.busy {
			t.Errorf("pod %d is not measured again: %+v", i, x)
		}
	}
}

// TestRun runs the goroutine, and ends it.
func TestRun(t *testing.T) {
	h, dir := thisHost(t), diskDir(t)
	tab := newTable(t, h, dir)
	tab.ended = nil
	x, volumes := pod(t, dir, 1)
	write(t, filepath.Join(volumes, "a"), 5000)
	tab.Track(x)
	testkit.Eventually(t, "a figure", func() bool {
		now, err := h.Boottime()
		bytes, ok := tab.Use(1, Sign{}, now)
		return err == nil && ok && bytes > 5000
	})
}

// TestReason checks when nothing is measured.
func TestReason(t *testing.T) {
	cfg := Default()
	cfg.Mode = Off
	tab, err := Open(&hostfs.FS{}, cfg, nil)
	if err != nil || tab.Reason() == "" {
		t.Errorf("%v, %q", err, tab.Reason())
	}
	tab.Track(Target{Slot: 1})
	if tab.ended != nil || len(tab.bySlot) > 0 {
		t.Error("it measures")
	}
	must(t, tab.Close())
	for _, change := range []func(*Config){func(c *Config) { c.Mode = "on" }, func(c *Config) { c.Rate = 0 }, func(c *Config) { c.Rate = MaxRate + 1 }} {
		cfg := Default()
		if change(&cfg); !errors.Is(cfg.Validate(), fault.ErrInvalid) {
			t.Errorf("%+v is valid", cfg)
		}
	}
}

// TestLogDir checks the targets of the links of logs.
func TestLogDir(t *testing.T) {
	const uid = "12fdc709-933e-41d0-917f-cd84de9afa94"
	for log, want := range map[string]string{
		"/var/log/pods/ns_web_" + uid + "/main/0.log":                          "ns_web_" + uid + "/main",
		"/var/log/pods/ns_web_12fdc709933e41d0917fcd84de9afa94/main/3.log":     "ns_web_12fdc709933e41d0917fcd84de9afa94/main",
		"/var/log/pods/ns_web_12fdc709-933e-41d0-917f-cd84de9afa95/main/0.log": "",
		"/var/log/pods/ns_web_" + uid + "/../ns_other_" + uid + "x/main/0.log": "",
		"/var/log/pods/ns_web_" + uid + "/0.log":                               "",
		"0.log":                                                                "", "": "", "/": "",
		"/var/log/pods/" + uid + "/main/0.log": "",
	} {
		if got := logDir(log, uid); got != want {
			t.Errorf("%s: %q, want %q", log, got, want)
		}
	}
}
