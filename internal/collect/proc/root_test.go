package proc_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

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

// A process that does not count is checked again after some lists, and one that has its PID at once if
// it was not in the list between.
func TestMembersOthers(t *testing.T) {
	f := newFake(t)
	const list = "sys/fs/cgroup/cgroup.procs"
	f.write(list, "2\n3\n")
	f.process(2, 5, 20000, "/")
	f.process(3, 5, 20000, "/")
	checked := map[int32]int{}
	spare := 0
	r := proc.NewMembers(open(t, f.dir), "/sys/fs/cgroup", int64(100*time.Second), func(pid int32) bool {
		checked[pid]++
		return checked[pid] == 4
	}, &spare)
	read := func(list bool, want int64) {
		t.Helper()
		if got, err := r.Read(int64(100*time.Second), list); err != nil || got != want*int64(tick) {
			t.Fatalf("Read() = %d ticks, %v, want %d", got/int64(tick), err, want)
		}
	}
	read(true, 0)
	for range 5 { // listed while they are new, without anything that asks for it
		read(false, 0)
	}
	if checked[2] != 3 || checked[3] != 3 {
		t.Errorf("checked %v times, want each three times", checked)
	}
	for range 8 {
		read(true, 0)
	}
	if checked[2] != 3 || checked[3] != 3 {
		t.Errorf("checked %v times, want each three times", checked)
	}
	read(true, 10)
	f.write(list, "3\n4\n")
	f.process(4, 5, 20000, "/")
	for range 3 {
		read(true, 10)
	}
	f.write(list, "3\n")
	read(true, 10)
	f.write(list, "3\n4\n")
	read(true, 15)
	if checked[2] != 4 || checked[3] != 4 || checked[4] != 4 {
		t.Errorf("checked %v times, want each four times", checked)
	}
}

// The processes of a group are listed where it is due, or after one of them ran or ended.
func TestMembers(t *testing.T) {
	for _, descriptors := range []int{0, 1, 100} {
		f := newFake(t)
		const list = "sys/fs/cgroup/cgroup.procs"
		f.write(list, "2\n3\n4\n")
		f.process(2, 100, 0, "/")
		f.process(3, 10, 10001, "/") // started since
		f.process(4, 50, 0, "/")
		spare, now := descriptors, int64(100*time.Second)
		r := proc.NewMembers(open(t, f.dir), "/sys/fs/cgroup", int64(100*time.Second), func(pid int32) bool { return pid != 4 }, &spare)
		check := func(what string, due bool, ticks int64) {
			t.Helper()
			got, err := r.Read(now, due)
			if err != nil || got != ticks*int64(tick) {
				t.Errorf("%d descriptors: %s: Read(%t) = %d ticks, %v, want %d", descriptors, what, due, got/int64(tick), err, ticks)
			}
		}
		check("not listed yet", false, 0)
		check("at first", true, 10)
		for range 2 {
			check("another process is new", false, 10)
		}
		f.process(5, 7, 20000, "/")
		f.write(list, "2\n3\n4\n5\n")
		check("none ran", false, 10)
		check("due", true, 17)
		f.process(6, 8, 20000, "/")
		f.write(list, "2\n3\n4\n5\n6\n")
		f.process(4, 90, 0, "/")
		check("one ran that does not count", false, 17)
		f.process(2, 105, 0, "/")
		check("one ran", false, 30)
		f.write(list, "2\n3\n4\n5\n6\n9\n")
		f.process(9, 1, 20000, "/")
		check("none ran since the list", false, 30)
		f.process(7, 9, 20000, "/")
		f.process(3, 20, 10001, "/")
		if got := r.CPU(); got != 40*int64(tick) {
			t.Errorf("%d descriptors: CPU() = %d ticks, want 40", descriptors, got/int64(tick))
		}
		f.write(list, "2\n3\n4\n5\n6\n7\n")
		check("one ran before that", false, 49)
		f.process(8, 3, 20000, "/")
		f.write(list, "2\n3\n4\n7\n8\n")
		f.remove("proc/5")
		check("one ended", false, 52)
		now = int64(300 * time.Second)
		f.process(7, 29, 20000, "/")
		f.write(list, "2\n3\n8\n")
		check("one ran elsewhere", false, 52)
		f.process(7, 39, 20000, "/")
		f.write(list, "2\n3\n7\n8\n")
		check("it is back", true, 52)
		f.process(7, 40, 20000, "/")
		check("it ran after that", false, 53)
		f.remove(list)
		f.process(7, 41, 20000, "/")
		if got, err := r.Read(now, false); got != 54*int64(tick) || !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("%d descriptors: Read without a list = %d ticks, %v, want 54 and not found", descriptors, got/int64(tick), err)
		}
		if err := r.Close(); err != nil || spare != descriptors {
			t.Errorf("Close() = %v, %d descriptors left, want %d", err, spare, descriptors)
		}
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
