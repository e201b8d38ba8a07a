package sources_test

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// The CPU time of a watched workload is broken down by process, until another one or none is watched.
func TestWatch(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1")
	for _, reader := range []string{sources.BPF, sources.Files} {
		t.Run(reader, func(t *testing.T) {
			if reader == sources.BPF {
				hosttest.Need(t, "bpf")
			}
			path := fmt.Sprintf("/mete-watch-%d", os.Getpid())
			dir := groupMounts(t)["cpuacct"] + path
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				testkit.Eventually(t, "the group is empty", func() bool { return unix.Rmdir(dir) == nil })
			})
			b := startBurner(t)
			defer b.end()
			b.enter(dir)
			cfg := everyTick(reader)
			cfg.Tick, cfg.Window = 100*time.Millisecond, 100*time.Millisecond
			cfg.Energy.NVML, cfg.Energy.Powercap = "off", t.TempDir()
			m, err := sources.Open(cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer mustClose(t, m)
			next := func() *live.Machine {
				t.Helper()
				b.burn(20)
				l, err := m.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			if l := next(); l.Breakdown != nil {
				t.Errorf("nothing is watched, and broken down is %+v", l.Breakdown)
			}
			groups := m.Snapshot().Groups
			i := slices.IndexFunc(groups, func(g *usage.Group) bool { return g.Workload.Path == path })
			if i < 0 {
				t.Fatalf("no group %s among %d", path, len(groups))
			}
			id := groups[i].Workload.ID
			m.Watch(id)
			next() // from here on
			var l *live.Machine
			testkit.Eventually(t, "a tick is not much longer than usual", func() bool {
				l = next()
				return l.Breakdown != nil
			})
			if l.Breakdown.Workload != id || len(l.Breakdown.Processes) == 0 {
				t.Fatalf("broken down is %+v", l.Breakdown)
			}
			if p := l.Breakdown.Processes[0]; int(p.PID) != b.cmd.Process.Pid || p.CPU <= 0 || p.RSS == nil || *p.RSS <= 0 || p.Threads == 0 || p.Name == "" {
				t.Errorf("the process is %+v, its id is %d", p, b.cmd.Process.Pid)
			}
			var sum float64
			for _, p := range l.Breakdown.Processes {
				sum += p.CPU
			}
			row := &l.Rows[slices.IndexFunc(l.Rows, func(r live.Row) bool { return r.ID == id })]
			if row.CPU == nil || math.Abs(sum-*row.CPU) > 1e-6*sum {
				t.Errorf("the processes used %v cores, the workload %+v", sum, row)
			}
			m.Watch("")
			if l := next(); l.Breakdown != nil {
				t.Errorf("nothing is watched any more, and broken down is %+v", l.Breakdown)
			}
		})
	}
}
