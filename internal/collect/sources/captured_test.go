package sources_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// everyTick closes a window at each tick.
func everyTick(reader string) sources.Config {
	return sources.Config{Config: sampler.Config{Tick: time.Second, Window: time.Second}, Reader: reader}
}

// In every captured machine each workload is found once, below the right parent, and is
// booked its exclusive use by the capture's counters.
func TestCaptured(t *testing.T) {
	for _, name := range hosttest.Names(t) {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Open(t, name)
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
			before := rawCounters(t, h)
			hosttest.Step(t, h)
			mustTick(t, m)
			w := m.ClosedWindow()
			after := rawCounters(t, h)
			checkCPU(t, w, before, after)
			checkMemory(t, m, after)
			golden(t, "testdata/"+name+".txt", describe(m, w))
		})
	}
}

// mustTick takes a tick of a captured machine, checks the balance, and that no birth or death is lost.
func mustTick(t *testing.T, m *sources.Machine) usage.Balance {
	t.Helper()
	b := liveTick(t, m)
	if b.Lost > 0 {
		t.Errorf("%d births or deaths lost", b.Lost)
	}
	return b
}

// liveTick takes a tick and checks the balance. On this machine other programs may make and remove a group of one name
// between two ticks, which counts as lost.
func liveTick(t *testing.T, m *sources.Machine) usage.Balance {
	t.Helper()
	b, err := m.Tick()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range usage.Wholes {
		if !b.IsBalanced(r) {
			t.Errorf("parts of %v do not sum to the whole: %+v", r, b)
		}
	}
	if w := m.ClosedWindow(); w != nil && w.Balance.Violations > 0 {
		t.Errorf("%d violations: %+v", w.Balance.Violations, w.Balance)
	}
	return b
}

// raw holds the counters of each group, read without the code under test: CPU ns and
// memory, both with all groups below.
type raw struct {
	cpu, memory map[string]int64
	ids         map[string]uint64 // in the hierarchy that counts CPU
}

func rawCounters(t *testing.T, h *hostfs.FS) raw {
	t.Helper()
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	r := raw{map[string]int64{}, map[string]int64{}, map[string]uint64{}}
	counted := false
	for _, y := range slices.Backward(ys) { // v2 last
		switch {
		case y.Has("cpuacct"):
			counted = true
			each(t, h, y, "/", func(p, dir string) {
				r.cpu[p] = usageOf(string(content(h, dir+"/cpuacct.usage")))
				r.ids[p], _ = h.ID(dir)
			})
		case y.V2 && !counted:
			each(t, h, y, "/", func(p, dir string) {
				if p != "/" {
					r.cpu[p] = usageOf(string(content(h, dir+"/cpu.stat")))
					r.ids[p], _ = h.ID(dir)
				}
			})
		}
		if y.Has("memory") {
			each(t, h, y, "/", func(p, dir string) {
				b := append(content(h, dir+"/memory.usage_in_bytes"), content(h, dir+"/memory.current")...)
				if v, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64); err == nil && p != "/" {
					r.memory[p] = v
				}
			})
		}
	}
	return r
}

func each(t *testing.T, h *hostfs.FS, y hostfs.Hierarchy, p string, f func(p, dir string)) {
	t.Helper()
	dir := path.Join(y.Mount, p)
	es, err := h.ReadDir(dir)
	if errors.Is(err, fault.ErrNotFound) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	f(p, dir)
	for _, e := range es {
		if e.IsDir() {
			each(t, h, y, path.Join(p, e.Name()), f)
		}
	}
}

func content(h *hostfs.FS, p string) []byte {
	b, _ := h.ReadFile(p) // a missing file is empty
	return b
}

// isBelow reports whether the group at p is top or below it.
func isBelow(p, top string) bool { return top == "/" || p == top || strings.HasPrefix(p, top+"/") }

// checkCPU compares the CPU time booked to each group and all groups below it with the
// increase of its counter.
func checkCPU(t *testing.T, w *usage.Window, before, after raw) {
	t.Helper()
	for p, now := range after.cpu {
		want := now
		if before.ids[p] == after.ids[p] && p != "/" || p == "/" {
			want -= before.cpu[p]
		}
		got, ended := int64(0), false
		for _, r := range w.Rows {
			if r.Workload.Path != "" && isBelow(r.Workload.Path, p) {
				// An earlier life under the same path.
				if ended = r.Ended && r.Workload.Path == p; !ended {
					got += r.Usage.Amount[usage.CPU]
				}
			}
		}
		named := slices.ContainsFunc(w.Rows, func(r usage.Row) bool { return r.Workload.Path == p })
		if named && got != want {
			t.Errorf("%s and below: booked %d ns, its counter gained %d", p, got, want)
		}
	}
}

// checkMemory does the same for the present memory.
func checkMemory(t *testing.T, m *sources.Machine, after raw) {
	t.Helper()
	l := m.Live()
	for p, want := range after.memory {
		got, named := int64(0), false
		for _, r := range l.Rows {
			if r.Path != "" && isBelow(r.Path, p) && r.Memory != nil {
				got += *r.Memory
				named = named || r.Path == p
			}
		}
		if named && got != want {
			t.Errorf("%s and below: %d bytes, its counter shows %d", p, got, want)
		}
	}
}

// describe formats a window: the quality of each resource, and a line for every row.
func describe(m *sources.Machine, w *usage.Window) string {
	var b strings.Builder
	for _, n := range m.Live().Notes {
		fmt.Fprintf(&b, "note %s\n", n)
	}
	names := map[string]string{}
	for _, r := range w.Rows {
		names[string(r.Workload.ID)] = r.Workload.Name
	}
	var lines []string
	for _, r := range w.Rows {
		var l strings.Builder
		fmt.Fprintf(&l, "%s %q", r.Workload.Kind, r.Workload.Name)
		if r.Workload.Parent != "" {
			fmt.Fprintf(&l, " in %q", names[string(r.Workload.Parent)])
		}
		if r.Ended {
			l.WriteString(" ended")
		}
		r.Usage.Present.Each(func(res usage.Resource) {
			fmt.Fprintf(&l, " %v=%s", res, res.Detail().Unit.Decimal(r.Usage.Amount[res]))
			if q := r.Usage.Quality.Get(res); q != usage.Measured {
				fmt.Fprintf(&l, "(%v)", q)
			}
		})
		lines = append(lines, r.Workload.Path+"\x00"+l.String())
	}
	slices.Sort(lines)
	for _, l := range lines {
		_, l, _ = strings.Cut(l, "\x00")
		fmt.Fprintln(&b, l)
	}
	for i, r := range usage.Wholes {
		d := r.Detail().Unit
		fmt.Fprintf(&b, "%v: whole %s = workloads %s + system %s + idle %s - skew %s\n", r, d.Decimal(w.Balance.Whole[i]),
			d.Decimal(w.Balance.Workloads[i]), d.Decimal(w.Balance.System[i]), d.Decimal(w.Balance.Idle[i]), d.Decimal(w.Balance.Skew[i]))
	}
	return b.String()
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(path.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("%s (-want +got; -update writes it):\n%s", file, d)
	}
}
