package sources_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// Groups that exist in the memory hierarchy alone have the CPU time of their processes, apportioned,
// and what the kernel counted with them is booked once.
func TestUncountedGroups(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1", "memcg1")
	for _, reader := range []string{sources.BPF, sources.Files} {
		t.Run(reader, func(t *testing.T) {
			if reader == sources.BPF {
				hosttest.Need(t, "bpf")
			}
			at := groupMounts(t)
			top := fmt.Sprintf("/mete-uncounted-%d", os.Getpid())
			mkdir := func(dir string) {
				t.Helper()
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					testkit.Eventually(t, "the group is empty", func() bool {
						err := unix.Rmdir(dir)
						return err == nil || errors.Is(err, unix.ENOENT)
					})
				})
			}
			// The CPU time of the groups at top is counted, and not that of those below it, except for
			// one.
			mkdir(at["cpuacct"] + top)
			mkdir(at["memory"] + top)
			mkdir(at["cpuacct"] + top + "/counted")
			box := top + "/docker/" + hosttest.ContainerID(t)
			for _, g := range []string{top + "/docker", box} {
				mkdir(at["cpuacct"] + g)
				mkdir(at["memory"] + g)
			}
			mkdir(at["memory"] + box + "/part") // of the container, which is counted
			groups := []string{top + "/a", top + "/a/b", top + "/other"}
			for _, g := range groups {
				mkdir(at["memory"] + g)
			}
			cfg := everyTick(reader)
			cfg.Energy.NVML, cfg.Energy.Powercap = "off", t.TempDir()
			m, err := sources.Open(cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { mustClose(t, m) }()
			a, b, other, inBox := startBurner(t), startBurner(t), startBurner(t), startBurner(t)
			for _, l := range []*burner{a, b, other, inBox} {
				defer l.end()
			}
			a.enter(at["cpuacct"]+top, at["memory"]+groups[0])
			b.enter(at["cpuacct"]+top, at["memory"]+groups[1])
			// The kernel counts this one in another group.
			other.enter(at["cpuacct"]+top+"/counted", at["memory"]+groups[2])
			inBox.enter(at["cpuacct"]+box, at["memory"]+box+"/part")
			used := map[string]usage.Usage{}
			tick := func() {
				t.Helper()
				mustTickLost(t, m)
				w := m.ClosedWindow()
				if w == nil {
					return
				}
				for _, r := range w.Rows {
					sum := used[r.Workload.Path]
					sum.Add(&r.Usage)
					used[r.Workload.Path] = sum
				}
			}
			tick()
			mustTickLost(t, m)
			clear(used)
			start := counted(t, at["cpuacct"]+top)
			from := [4]int64{a.burn(0), b.burn(0), other.burn(0), inBox.burn(0)}
			var to [4]int64
			for range 2 {
				to = [4]int64{a.burn(30), b.burn(20), other.burn(10), inBox.burn(15)}
				tick()
			}
			const own = 20_000_000 // of the processes beside what they measure
			for i, p := range []string{groups[0], groups[1], top + "/counted", box} {
				q := usage.Apportioned
				if i >= 2 {
					q = usage.Measured
				}
				u, want := used[p], to[i]-from[i]
				if v := u.Amount[usage.CPU]; v < want-own/10 || v > want+own || u.Quality.Get(usage.CPU) != q {
					t.Errorf("%s: booked %d ns, %v; its process used %d", p, v, u.Quality.Get(usage.CPU), want)
				}
			}
			if u := used[groups[2]]; u.Amount[usage.CPU] != 0 {
				t.Errorf("%s: booked %d ns of a process that is counted elsewhere", groups[2], u.Amount[usage.CPU])
			}
			// A group that ends keeps what it used.
			ended := used[groups[1]].Amount[usage.CPU]
			b.enter(at["memory"] + top)
			testkit.Eventually(t, "the group is empty", func() bool { return unix.Rmdir(at["memory"]+groups[1]) == nil })
			b.burn(20)
			tick()
			tick()
			if v := used[groups[1]].Amount[usage.CPU]; v < ended || v > ended+own {
				t.Errorf("%s: booked %d ns until its end, and %d then", groups[1], ended, v)
			}
			if v := used[top].Amount[usage.CPU]; v < own {
				t.Errorf("%s: booked %d ns of a process that left a group below it", top, v)
			}
			sum := int64(0)
			for p, u := range used {
				if p == top || len(p) > len(top) && p[:len(top)+1] == top+"/" {
					sum += u.Amount[usage.CPU]
				}
			}
			if gained := counted(t, at["cpuacct"]+top) - start; sum > gained+own || sum < gained-own {
				t.Errorf("booked %d ns below %s, its counter gained %d", sum, top, gained)
			}

			// The group gets a counter.
			mkdir(at["cpuacct"] + groups[0])
			tick()
			tick()
			clear(used)
			last := a.burn(0)
			a.enter(at["cpuacct"] + groups[0])
			got := a.burn(20) - last
			tick()
			tick()
			if u := used[groups[0]]; u.Amount[usage.CPU] < got-own/10 || u.Amount[usage.CPU] > got+own || u.Quality.Get(usage.CPU) != usage.Measured {
				t.Errorf("with a counter: booked %d ns, %v; its process used %d", u.Amount[usage.CPU], u.Quality.Get(usage.CPU), got)
			}
			a.enter(at["cpuacct"]+top, at["memory"]+top)
			testkit.Eventually(t, "the group is empty", func() bool { return unix.Rmdir(at["cpuacct"]+groups[0]) == nil })
			testkit.Eventually(t, "the group is empty", func() bool { return unix.Rmdir(at["memory"]+groups[0]) == nil })
			tick()
			mkdir(at["memory"] + groups[0])
			a.enter(at["memory"] + groups[0])
			tick()

			// After a restart of the agent nothing is booked twice.
			saved := m.Accounts().Checkpoint(nil, true)
			mustClose(t, m)
			cfg.Checkpoint = [][]byte{saved}
			if m, err = sources.Open(cfg, slog.New(slog.DiscardHandler)); err != nil {
				t.Fatal(err)
			}
			clear(used)
			before := a.burn(0)
			mustTickLost(t, m)
			tick()
			after := a.burn(25)
			tick()
			if v := used[groups[0]].Amount[usage.CPU]; v < after-before-own || v > after-before+own {
				t.Errorf("after a restart: booked %d ns, its process used %d", v, after-before)
			}
		})
	}
}

// counted returns the CPU time that the kernel counted for a group of version 1, in ns.
func counted(t *testing.T, dir string) int64 {
	t.Helper()
	v, err := number(dir + "/cpuacct.usage")
	if err != nil {
		t.Fatal(err)
	}
	return v
}
