package cgroup

import (
	"errors"
	"testing"

	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/host"
	"mete.dev/mete/internal/kernfmt"
	"mete.dev/mete/internal/meter"
)

// Each role is served by the hierarchy that has the controller, and what every
// group of version 2 shows by version 2, but not CPU time where v1 counts it.
func TestPick(t *testing.T) {
	v1 := func(mount string, controllers ...string) host.Hierarchy {
		return host.Hierarchy{ID: 1, Mount: mount, Controllers: controllers}
	}
	v2 := func(controllers ...string) host.Hierarchy {
		return host.Hierarchy{V2: true, Mount: "v2", Controllers: controllers}
	}
	for name, c := range map[string]struct {
		ys   []host.Hierarchy
		want [roles]string // CPU, memory, PIDs, I/O, limits, pressure
	}{
		"v2":       {[]host.Hierarchy{v2("cpu", "io", "memory", "pids")}, [roles]string{"v2", "v2", "v2", "v2", "v2", "v2"}},
		"v2 no io": {[]host.Hierarchy{v2("cpu", "memory")}, [roles]string{"v2", "v2", "", "", "v2", "v2"}},
		"v1":       {[]host.Hierarchy{v1("c", "cpu", "cpuacct"), v1("m", "memory"), v1("b", "blkio")}, [roles]string{"c", "m", "", "b", "c", ""}},
		"apart, bare v2": {[]host.Hierarchy{v2("hugetlb"), v1("c", "cpu"), v1("a", "cpuacct"), v1("m", "memory"), v1("b", "blkio"), v1("p", "pids")},
			[roles]string{"a", "m", "p", "b", "c", "v2"}},
		"memory moved to v2": {[]host.Hierarchy{v2("memory"), v1("a", "cpu", "cpuacct")}, [roles]string{"a", "v2", "", "", "a", "v2"}},
		"v1 without cpuacct": {[]host.Hierarchy{v2(), v1("m", "memory")}, [roles]string{"v2", "m", "", "", "", "v2"}},
	} {
		src, err := pick(c.ys)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for role, y := range src {
			got := ""
			if y != nil {
				got = y.Mount
			}
			if got != c.want[role] {
				t.Errorf("%s: role %d is served by %q, want %q", name, role, got, c.want[role])
			}
		}
	}
	if _, err := pick([]host.Hierarchy{v1("m", "memory")}); !errors.Is(err, fault.ErrUnsupported) || fault.Hint(err) == "" {
		t.Errorf("without any CPU counter: %v, want ErrUnsupported with a hint", err)
	}
}

func TestPutCPU(t *testing.T) {
	var r meter.Reading
	putCPU(&r, kernfmt.CPU{Usage: 30, HasUsage: true, User: 10, HasUser: true, System: 20, HasSystem: true, ThrottledTime: 5, HasThrottledTime: true}, true)
	if want := meter.SetOf(meter.CPU, meter.CPUUser, meter.CPUSystem, meter.CPUThrottled); r.Has != want || r.Value[meter.CPU] != 30 || r.Value[meter.CPUSystem] != 20 || r.Value[meter.CPUThrottled] != 5 {
		t.Errorf("a whole cpu.stat: %+v", r)
	}
	r = meter.Reading{}
	putCPU(&r, kernfmt.CPU{Usage: 30, HasUsage: true, User: 10, HasUser: true}, false)
	if r.Has != 0 {
		t.Errorf("user without system, for limits alone: %+v", r)
	}
}
