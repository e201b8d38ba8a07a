package sources_test

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/hosttest"
)

func TestNewRefuses(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	h := hosttest.Open(t, "v1-kubelet")
	if _, err := sources.New(h, everyTick(sources.BPF), log); !errors.Is(err, fault.ErrUnsupported) || fault.Hint(err) == "" {
		t.Errorf("BPF on a captured machine: %v, want ErrUnsupported with a hint", err)
	}
	if _, err := sources.New(h, everyTick("guess"), log); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("an unknown reader: %v, want ErrInvalid", err)
	}
	cfg := everyTick(sources.Files)
	cfg.Scope = "some"
	if _, err := sources.New(h, cfg, log); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
		t.Errorf("an unknown scope: %v, want ErrInvalid with a hint", err)
	}
	cfg = everyTick(sources.Files)
	cfg.Tick = 0
	if _, err := sources.Open(cfg, log); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("no tick: %v, want ErrInvalid", err)
	}
	if err := os.RemoveAll(h.Path("/proc/self/mountinfo")); err != nil {
		t.Fatal(err)
	}
	if _, err := sources.New(h, everyTick(sources.Auto), log); err == nil {
		t.Error("a machine without mounts was opened")
	}
}

// Version 2 has no reliable counter of the root group: system is what its own tasks used.
func TestSystemOfV2(t *testing.T) {
	h := hosttest.Open(t, "v2-systemd-containerd")
	m, err := sources.New(h, everyTick(sources.Auto), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	mustTick(t, m)
	hosttest.Step(t, h)
	run(t, h, "/proc/14/stat", 50) // half a second in clock ticks
	mustTick(t, m)
	for _, r := range m.ClosedWindow().Rows {
		if r.Workload.Kind == workload.System && r.Usage.Amount[usage.CPU] != 5e8 {
			t.Errorf("system used %d ns, want half a second", r.Usage.Amount[usage.CPU])
		}
	}
	l := m.Live()
	if l.CPU.System != 0.5 || l.CPU.Whole != 8 || sum(l.CPU) != l.CPU.Whole {
		t.Errorf("CPU %+v, want half a core of system in a whole of 8", l.CPU)
	}
}

func sum(c live.CPUParts) float64 { return c.Workloads + c.System + c.Idle }

// run adds kernel CPU time to the stat file of a process.
func run(t *testing.T, h *hostfs.FS, file string, ticks int) {
	t.Helper()
	b, err := h.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const stime = 14 // of proc_pid_stat(5), from 0
	fields := strings.Fields(string(b))
	v, err := strconv.Atoi(fields[stime])
	if err != nil {
		t.Fatal(err)
	}
	fields[stime] = strconv.Itoa(v + ticks)
	if err := os.WriteFile(h.Path(file), []byte(strings.Join(fields, " ")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Groups count disk requests as they are submitted, so the whole has those too that the kernel merged
// with others before the device got them. Where no group counts requests it has those of the device.
func TestMergedRequests(t *testing.T) {
	for name, want := range map[string]int64{"v2-systemd-containerd": 12, "v1-kubelet": 12, "vm-v1-apart": 2} {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Open(t, name)
			m, err := sources.New(h, everyTick(sources.Auto), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer mustClose(t, m)
			mustTick(t, m)
			leaves, err := h.LeafDevices()
			if err != nil {
				t.Fatal(err)
			}
			b, err := h.ReadFile("/proc/diskstats")
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(string(b), "\n")
			for i, line := range lines {
				fields := strings.Fields(line)
				if len(fields) == 0 || !slices.Contains(slices.Collect(maps.Values(leaves)), fields[2]) {
					continue
				}
				const writes, merged = 7, 8 // of Documentation/admin-guide/iostats.rst, from 0
				for field, n := range map[int]int{writes: 2, merged: 10} {
					v, err := strconv.Atoi(fields[field])
					if err != nil {
						t.Fatal(err)
					}
					fields[field] = strconv.Itoa(v + n)
				}
				lines[i] = strings.Join(fields, " ")
				break
			}
			if err := os.WriteFile(h.Path("/proc/diskstats"), []byte(strings.Join(lines, "\n")), 0o644); err != nil {
				t.Fatal(err)
			}
			balance := mustTick(t, m)
			if got := balance.Whole.Get(usage.DiskWrites); got != want {
				t.Errorf("the machine wrote %d times, want %d", got, want)
			}
		})
	}
}
