package sources_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// The network of a pod is the pod's, not that of the slice above or of its sandbox, if the hierarchy for memory
// has the groups at other paths than that for CPU time, and gets them first.
func TestPodInHierarchies(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1", "memcg1", "netns")
	for _, reader := range []string{sources.BPF, sources.Files} {
		for _, order := range []string{"memory first", "memory a tick earlier"} {
			t.Run(reader+", "+order, func(t *testing.T) {
				if reader == sources.BPF {
					hosttest.Need(t, "bpf")
				}
				at := groupMounts(t)
				top := fmt.Sprintf("/mete-pod-%d", os.Getpid())
				below := []string{top + "/kubepods", "/besteffort", "/pod5b325f33-e3ae-4695-a183-eebc09c504e2", "/" + hosttest.ContainerID(t)}
				mkdir := func(dir string) {
					t.Helper()
					if err := os.Mkdir(dir, 0o755); err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() {
						testkit.Eventually(t, "the group is empty", func() bool { return !errors.Is(unix.Rmdir(dir), unix.EBUSY) })
					})
				}
				memory, cpu := at["memory"]+top+"/manager", at["cpuacct"]
				mkdir(at["memory"] + top)
				mkdir(memory)
				mkdir(memory + top)
				mkdir(cpu + top)
				var dirs [2][]string
				for i := range below {
					p := strings.Join(below[:i+1], "")
					dirs[0], dirs[1] = append(dirs[0], memory+p), append(dirs[1], cpu+p)
				}
				for i := range 2 { // slices
					mkdir(dirs[0][i])
					mkdir(dirs[1][i])
				}
				cfg := everyTick(reader)
				cfg.Energy.NVML, cfg.Energy.Powercap = "off", t.TempDir()
				m, err := sources.Open(cfg, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				defer mustClose(t, m)
				mustTickLost(t, m)
				b := startBurnerIn(t, unix.CLONE_NEWNET)
				defer b.end()
				for i := range 2 { // the pod and its sandbox
					mkdir(dirs[i][2])
					mkdir(dirs[i][3])
					b.enter(dirs[i][3])
					if i == 1 || order == "memory a tick earlier" {
						mustTickLost(t, m)
					}
				}
				mustTickLost(t, m)
				pods := 0
				for _, g := range m.Snapshot().Groups {
					switch w := g.Workload; {
					case !strings.HasPrefix(w.Path, top+"/"):
					case w.Kind == workload.Pod:
						if pods++; !g.Has.Has(usage.NetworkRx) {
							t.Errorf("no network of %s", w.Path)
						}
						if want := strings.Join(below[:3], ""); order == "memory first" && w.Path != want {
							t.Errorf("the pod is at %s, want %s", w.Path, want)
						}
					case g.Has.Has(usage.NetworkRx):
						t.Errorf("%v %s has network", w.Kind, w.Path)
					}
				}
				if pods != 1 {
					t.Errorf("%d pods", pods)
				}
			})
		}
	}
}
