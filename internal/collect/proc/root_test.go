package proc_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/proc"
	"mete.dev/mete/internal/model/fault"
)

func openRoot(t testing.TB, f fake, descriptors int) *proc.Members {
	t.Helper()
	r, err := proc.OpenRoot(open(t, f.dir), descriptors)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestRoot(t *testing.T) {
	for _, descriptors := range []int{0, 1, 100} {
		f := newFake(t)
		const list = "sys/fs/cgroup/cgroup.procs"
		f.write(list, "2\n3\n4\n0\n")
		f.process(2, 100, 0, "/")
		f.process(3, 10, 0, "/")
		f.process(4, 0, 0, "/")
		f.write("proc/4/stat", "garbage")
		r := openRoot(t, f, descriptors)
		check := func(what string, ticks int64) {
			t.Helper()
			if got := r.CPU(); got != ticks*int64(tick) {
				t.Errorf("%d descriptors: %s: CPU() = %d ticks, want %d", descriptors, what, got/int64(tick), ticks)
			}
		}
		check("at first", 110)
		if r.Unreadable != 2 {
			t.Errorf("Unreadable = %d, want the garbage and the outsider", r.Unreadable)
		}
		refresh := func() {
			t.Helper()
			if err := r.Refresh(); err != nil {
				t.Fatal(err)
			}
		}
		f.process(2, 105, 0, "/")
		check("one ran", 115)
		f.remove("proc/3")
		check("one ended", 115)
		f.process(5, 7, 20000, "/")   // started since
		f.process(6, 50, 1000, "/")   // entered from a group
		f.process(3, 2, 20000, "/")   // the PID is reused
		f.write(list, "2\n3\n5\n6\n") // 4 is gone
		refresh()
		check("three entered", 115+7+2)
		f.process(6, 60, 1000, "/")
		check("the one that entered ran", 115+7+2+10)
		f.process(5, 1, 30000, "/") // another process
		check("a PID was reused", 115+7+2+10)
		f.write(list, "3\n")
		refresh()
		f.process(2, 999, 0, "/") // in another group
		check("all but one left", 115+7+2+10)
		f.remove("sys/fs/cgroup/cgroup.procs")
		if err := r.Refresh(); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("Refresh without a list = %v, want not found", err)
		}
		check("no list", 115+7+2+10)
	}
}

func TestRootNeedsV2(t *testing.T) {
	f := newFake(t)
	f.write("proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n")
	f.write("proc/self/cgroup", "2:cpuacct:/\n")
	if _, err := proc.OpenRoot(open(t, f.dir), 0); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("OpenRoot = %v, want not supported", err)
	}
}

// The root group's sum grows with the work of this process, if it is in the root group.
func TestRootLive(t *testing.T) {
	r, err := proc.OpenRoot(open(t, "/"), 100)
	if errors.Is(err, fault.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil || !strings.Contains(string(b), "0::/\n") {
		t.Skip("this process is not in the root group")
	}
	before := r.CPU()
	from := self(t)
	for self(t)-from < 50_000_000 {
	}
	if got := r.CPU() - before; got < 50_000_000 {
		t.Errorf("CPU grew by %d, want 50 ms and more", got)
	}
	last := int64(0)
	for range 100 {
		now := r.CPU()
		if now < last {
			t.Fatalf("CPU decreased from %d to %d", last, now)
		}
		last = now
	}
}

func BenchmarkRoot(b *testing.B) {
	r, err := proc.OpenRoot(open(b, "/"), 100)
	if err != nil {
		b.Skip(err)
	}
	defer func() { _ = r.Close() }()
	for b.Loop() {
		r.CPU()
	}
}
