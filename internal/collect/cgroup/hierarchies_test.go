package cgroup

import (
	"errors"
	"slices"
	"testing"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// Each role uses the hierarchy that has the controller, and for values in every group of
// version 2 that one, except CPU time if v1 counts it.
func TestChooseHierarchies(t *testing.T) {
	v1 := func(mount string, controllers ...string) hostfs.Hierarchy {
		return hostfs.Hierarchy{ID: 1, Mount: mount, Controllers: controllers}
	}
	v2 := func(controllers ...string) hostfs.Hierarchy {
		return hostfs.Hierarchy{V2: true, Mount: "v2", Controllers: controllers}
	}
	for name, c := range map[string]struct {
		ys   []hostfs.Hierarchy
		want [roleCount]string // CPU, memory, PIDs, I/O, limits, pressure
	}{
		"v2":       {[]hostfs.Hierarchy{v2("cpu", "io", "memory", "pids")}, [roleCount]string{"v2", "v2", "v2", "v2", "v2", "v2"}},
		"v2 no io": {[]hostfs.Hierarchy{v2("cpu", "memory")}, [roleCount]string{"v2", "v2", "", "", "v2", "v2"}},
		"v1":       {[]hostfs.Hierarchy{v1("c", "cpu", "cpuacct"), v1("m", "memory"), v1("b", "blkio")}, [roleCount]string{"c", "m", "", "b", "c", ""}},
		"apart, bare v2": {[]hostfs.Hierarchy{v2("hugetlb"), v1("c", "cpu"), v1("a", "cpuacct"), v1("m", "memory"), v1("b", "blkio"), v1("p", "pids")},
			[roleCount]string{"a", "m", "p", "b", "c", "v2"}},
		"memory moved to v2": {[]hostfs.Hierarchy{v2("memory"), v1("a", "cpu", "cpuacct")}, [roleCount]string{"a", "v2", "", "", "a", "v2"}},
		"v1 without cpuacct": {[]hostfs.Hierarchy{v2(), v1("m", "memory")}, [roleCount]string{"v2", "m", "", "", "", "v2"}},
	} {
		src, err := chooseHierarchies(c.ys)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for role, y := range src {
			got := ""
			if y != nil {
				got = y.Mount
			}
			if got != c.want[role] {
				t.Errorf("%s: role %d uses %q, want %q", name, role, got, c.want[role])
			}
		}
	}
	if _, err := chooseHierarchies([]hostfs.Hierarchy{v1("m", "memory")}); !errors.Is(err, fault.ErrUnsupported) || fault.Hint(err) == "" {
		t.Errorf("without any CPU counter: %v, want ErrUnsupported with a hint", err)
	}
}

// The BPF reader needs the events of the hierarchies that count what it reads, and of no others.
func TestFollowedByBPF(t *testing.T) {
	hosttest.Need(t, "cgroup1")
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	ys, err := h.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	ids, err := FollowedByBPF(h)
	if err != nil {
		t.Fatal(err)
	}
	for _, y := range ys {
		want := y.Has("cpuacct") || y.Has("memory") || y.Has("pids") || y.Has("blkio")
		if !y.V2 && slices.Contains(ids, y.ID) != want {
			t.Errorf("followed: %v; hierarchy %d with %v should be: %t", ids, y.ID, y.Controllers, want)
		}
	}
}

func TestPutCPU(t *testing.T) {
	var r usage.Reading
	putCPU(&r, procfmt.CPU{Usage: 30, HasUsage: true, User: 10, HasUser: true, System: 20, HasSystem: true, ThrottledTime: 5, HasThrottledTime: true}, true)
	if want := usage.SetOf(usage.CPU, usage.CPUUser, usage.CPUSystem, usage.CPUThrottled); r.Has != want || r.Value[usage.CPU] != 30 || r.Value[usage.CPUSystem] != 20 || r.Value[usage.CPUThrottled] != 5 {
		t.Errorf("a complete cpu.stat: %+v", r)
	}
	r = usage.Reading{}
	putCPU(&r, procfmt.CPU{Usage: 30, HasUsage: true, User: 10, HasUser: true}, false)
	if r.Has != 0 {
		t.Errorf("user without system, for limits only: %+v", r)
	}
}
