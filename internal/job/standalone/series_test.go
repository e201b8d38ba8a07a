package standalone

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/timeline"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestSeries checks, for any figures of a job, that windows do not overlap, sum to the report, and
// balance without a whole.
func TestSeries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := series{boot: "b", began: 1e9, closed: 1e9}
		var m report.Measurement
		var sum usage.Usage
		at := hostfs.Clocks{Boottime: 1e9, Monotonic: 1e9, Realtime: 1e18}
		var cpu, disk int64
		end := s.closed
		for range rapid.IntRange(1, 12).Draw(t, "windows") {
			step := rapid.Int64Range(0, 3e10).Draw(t, "step")
			at.Boottime, at.Monotonic, at.Realtime = at.Boottime+step, at.Monotonic+step, at.Realtime+step
			cpu += rapid.Int64Range(0, 1e10).Draw(t, "cpu")
			disk += rapid.Int64Range(-5, 100).Draw(t, "disk") // it may fall
			m.Final.Put(usage.CPU, cpu)
			user := rapid.Int64Range(0, cpu).Draw(t, "user")
			m.Final.Put(usage.CPUUser, user)
			m.Final.Put(usage.CPUSystem, cpu-user)
			m.Final.Put(usage.DiskRead, max(0, disk))
			m.Memory.Add(at.Monotonic, rapid.Int64Range(0, 1<<40).Draw(t, "memory"))
			w := s.close(at, &m)
			if w.Start != end || w.End <= w.Start || w.Rows[0].Usage.Covered > w.Length() {
				t.Fatalf("window from %d to %d, covered %v, after one to %d", w.Start, w.End, w.Rows[0].Usage.Covered, end)
			}
			end = w.End
			for _, r := range usage.Wholes {
				if !w.Balance.IsBalanced(r) || w.Balance.Whole.Get(r) != 0 {
					t.Fatalf("%v: %+v", r, w.Balance)
				}
			}
			w.Rows[0].Usage.Present.Each(func(r usage.Resource) {
				if w.Rows[0].Usage.Amount[r] < 0 {
					t.Fatalf("%v of %d", r, w.Rows[0].Usage.Amount[r])
				}
			})
			sum.Add(&w.Rows[0].Usage)
			job := usage.NewRow(&usage.Identity{Workload: workload.Workload{ID: workload.NewID("n", workload.Job, "j")}})
			w.Rows[0].ShortID, w.Rows[0].Workload = job.ShortID, job.Workload
			cuts, err := timeline.Cut([]usage.Window{wire.Prepare(&w)}, []time.Duration{0})
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range cuts.Nodes {
				if n.Violations != 0 || n.Whole != (usage.Shares{}) || n.CPUs != 0 {
					t.Fatalf("the server computes %+v", n)
				}
			}
			if got, want := w.Rows[0].Total[usage.CPU], sum.Amount[usage.CPU]; got != want {
				t.Fatalf("total of %d, want %d", got, want)
			}
		}
		s.correctReport(&m)
		for _, r := range []usage.Resource{usage.CPU, usage.CPUUser, usage.CPUSystem, usage.DiskRead} {
			if got := sum.Amount[r]; got != m.Final.Value[r] {
				t.Fatalf("%v: windows of %d, report of %d", r, got, m.Final.Value[r])
			}
		}
		if got := m.Final.Value[usage.CPU]; got != cpu {
			t.Fatalf("CPU of %d, want %d", got, cpu)
		}
		if got := m.Final.Value[usage.CPUUser] + m.Final.Value[usage.CPUSystem]; got != cpu {
			t.Fatalf("user and system of %d, want %d", got, cpu)
		}
		if want, _ := m.Memory.Integral(); sum.Amount[usage.Memory] != want {
			t.Fatalf("memory of %d, want %d", sum.Amount[usage.Memory], want)
		}
		if v, _ := m.Memory.Peak(); sum.Amount[usage.MemoryPeak] != v {
			t.Fatalf("memory's peak of %d, want %d", sum.Amount[usage.MemoryPeak], v)
		}
	})
}

// TestDue checks that windows begin short and grow to their length.
func TestDue(t *testing.T) {
	s := series{began: 5e9, closed: 5e9}
	var got []time.Duration
	for at := (hostfs.Clocks{Boottime: s.began}); len(got) < 7; at.Boottime += int64(100 * time.Millisecond) {
		if s.isDue(at, 10*time.Second) {
			s.close(at, &report.Measurement{})
			got = append(got, time.Duration(s.closed-s.began)/time.Second)
		}
	}
	want := []time.Duration{1, 2, 4, 8, 16, 26, 36}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("windows close after %v seconds, want %v", got, want)
		}
	}
}
