package meter

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/launch"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A fake is a job whose readings the test sets.
type fake struct{ now usage.Reading }

func (f *fake) Read(r *usage.Reading) { *r = f.now }

func (f *fake) ReadLevels(r *usage.Reading) {
	for res := range (f.now.Has & levelSet).All() {
		r.Put(res, f.now.Value[res])
	}
}

func open(t testing.TB, job Job) *Meter {
	t.Helper()
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	m, err := Open(h, job, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// Whatever a job shows, its windows follow one another, balance without a whole, and sum to what is reported: the last
// value of each counter, or the highest, if it fell.
func TestWindows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var job fake
		m := open(t, &job)
		if err := m.Begin(); err != nil {
			rt.Fatal(err)
		}
		var sum usage.Usage
		var cpu, disk, mostDisk, user int64
		end := m.started
		for range rapid.IntRange(1, 8).Draw(rt, "windows") {
			for range rapid.IntRange(1, 3).Draw(rt, "samples") {
				cpu += rapid.Int64Range(0, 1e10).Draw(rt, "cpu")
				disk = max(0, disk+rapid.Int64Range(-5, 100).Draw(rt, "disk"))
				user = rapid.Int64Range(0, cpu).Draw(rt, "user")
				job.now.Put(usage.CPU, cpu)
				job.now.Put(usage.CPUUser, user)
				job.now.Put(usage.CPUSystem, cpu-user)
				job.now.Put(usage.DiskRead, disk)
				job.now.Put(usage.Memory, rapid.Int64Range(0, 1<<40).Draw(rt, "memory"))
				moment := rapid.SampledFrom([]launch.Moment{launch.Early, launch.Full}).Draw(rt, "moment")
				if !m.Sample(moment) {
					rt.Fatal("the job could not be read")
				}
				if moment == launch.Full {
					mostDisk = max(mostDisk, disk)
				}
			}
			mostDisk = max(mostDisk, disk)
			if !m.Sample(launch.Full) {
				rt.Fatal("the job could not be read")
			}
			w := m.CloseWindow()
			if w.Start != end || w.End <= w.Start || len(w.Rows) != 1 || w.Rows[0].Usage.Covered > w.Length() {
				rt.Fatalf("window from %d to %d of %d rows, after one to %d", w.Start, w.End, len(w.Rows), end)
			}
			end = w.End
			row := &w.Rows[0]
			for res := range row.Usage.Present.All() {
				if row.Usage.Amount[res] < 0 {
					rt.Fatalf("%v of %d", res, row.Usage.Amount[res])
				}
			}
			sum.Add(&row.Usage)
			if got, want := row.Total[usage.CPU], sum.Amount[usage.CPU]; got != want {
				rt.Fatalf("total of %d, want %d", got, want)
			}
			row.Workload = &usage.Identity{Workload: workload.Workload{ID: workload.NewID("n", workload.Job, "j")}}
			row.ShortID, _ = workload.ShortIDOf(row.Workload.ID)
			cuts, err := walltime.Cut([]usage.Window{wire.Prepare(&w)}, []time.Duration{0})
			if err != nil {
				rt.Fatal(err)
			}
			for _, n := range cuts.Nodes {
				if n.Violations != 0 || n.Whole != (usage.Shares{}) || n.CPUs != 0 {
					rt.Fatalf("the server computes %+v", n)
				}
			}
		}
		got := m.Metered()
		for res := range (sum.Present | got.Use.Present).All() {
			if sum.Amount[res] != got.Use.Amount[res] {
				rt.Fatalf("%v: %d in windows, %d reported", res, sum.Amount[res], got.Use.Amount[res])
			}
		}
		use := &got.Use.Amount
		if use[usage.CPU] != cpu || use[usage.CPUUser]+use[usage.CPUSystem] != cpu && cpu > 0 || use[usage.DiskRead] != mostDisk {
			rt.Fatalf("CPU %d = %d + %d, want %d; disk %d, want %d", use[usage.CPU], use[usage.CPUUser], use[usage.CPUSystem], cpu, use[usage.DiskRead], mostDisk)
		}
		if got.Span != end-m.started || got.CPUs < 1 || got.MachineCPU < 1 {
			rt.Fatalf("span %d, %d CPUs with %d ns", got.Span, got.CPUs, got.MachineCPU)
		}
	})
}

// A job that cannot be read any more, as its group was removed, keeps its last figures.
func TestGone(t *testing.T) {
	var job fake
	m := open(t, &job)
	if err := m.Begin(); err != nil {
		t.Fatal(err)
	}
	job.now.Put(usage.CPU, 70)
	job.now.Put(usage.Memory, 1<<20)
	if !m.Sample(launch.Full) {
		t.Error("the job could not be read")
	}
	job.now = usage.Reading{}
	if m.Sample(launch.Full) || m.Sample(launch.Last) {
		t.Error("nothing was read, and nothing says so")
	}
	m.CloseWindow()
	got := m.Metered()
	if got.Use.Amount[usage.CPU] != 70 || got.Use.Amount[usage.MemoryPeak] != 1<<20 {
		t.Errorf("CPU %d, memory's peak %d", got.Use.Amount[usage.CPU], got.Use.Amount[usage.MemoryPeak])
	}
}

// Windows begin short and grow to their length.
func TestDue(t *testing.T) {
	m := open(t, &fake{})
	snap := m.sampler.Snapshot()
	m.started, m.closed = 5e9, 5e9
	var got []time.Duration
	for snap.At = m.started; len(got) < 7; snap.At += int64(100 * time.Millisecond) {
		if m.IsDue(10 * time.Second) {
			m.closed = snap.At
			got = append(got, time.Duration(snap.At-m.started)/time.Second)
		}
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 26, 36} {
		if got[i] != want {
			t.Fatalf("windows close after %v seconds", got)
		}
	}
}

// Levels are integrated from sample to sample: a level begins with its first sample, one that a sample lacks
// stays, and at the end the last sample counts.
func TestLevels(t *testing.T) {
	const s = int64(time.Second)
	sample := func(at, memory, anon int64) (r usage.Reading, ns int64) {
		if memory >= 0 {
			r.Put(usage.Memory, memory)
		}
		if anon >= 0 {
			r.Put(usage.MemoryAnon, anon)
		}
		return r, at * s
	}
	l := levelSums{at: 10 * s}
	add := func(at, memory, anon int64) {
		r, ns := sample(at, memory, anon)
		l.add(&r, ns)
	}
	add(12, 100, 7)  // 200: it is taken to have been there since the start
	add(14, 300, -1) // a straight line: 400
	add(13, 350, -1) // time does not go back, but the level counts for the peak
	l.hold(16 * s)   // 700
	var g usage.Group
	l.put(&g)
	if g.Held[usage.Memory] != 1300 || g.Held[usage.MemoryAnon] != 6*7 || g.Value[usage.Memory] != 350 {
		t.Errorf("%v byte-seconds, at last %d", g.Held, g.Value[usage.Memory])
	}
	if l.peak(usage.Memory) != 350 || l.peak(usage.MemoryAnon) != 7 || g.Value[usage.MemoryPeak] != 350 {
		t.Errorf("peaks of %d and %d, mark of %d", l.peak(usage.Memory), l.peak(usage.MemoryAnon), g.Value[usage.MemoryPeak])
	}
	if g.Has.Has(usage.PIDs) || g.Has.Has(usage.PIDsPeak) {
		t.Error("a level that no sample had")
	}
	l.reset()
	add(18, 0, -1) // from 350 to 0: 350
	g = usage.Group{}
	g.Put(usage.MemoryPeak, 900) // the kernel's
	l.put(&g)
	if g.Held[usage.Memory] != 350 || g.Held[usage.MemoryAnon] != 14 || g.Value[usage.MemoryPeak] != 900 {
		t.Errorf("%v byte-seconds, mark of %d", g.Held, g.Value[usage.MemoryPeak])
	}
}

// noMeters is a machine without meters of energy.
type noMeters struct{}

func (noMeters) Read(into []power.Reading) ([]power.Reading, error) { return into, nil }

// Where the use of the rest of the machine is known by clock ticks only, the job's energy has that error too, and a window's
// total is the sum of all windows.
func TestEnergyOfPart(t *testing.T) {
	for _, partial := range []bool{false, true} {
		var job fake
		m := open(t, &job)
		if m.job.partial = partial; partial {
			m.job.root.Reading = usage.Reading{}
		}
		known := energy.New(energy.Config{Curve: power.Curve{Domain: power.Rest, Points: []power.Point{{Load: 0, Power: 10e6}, {Load: power.PPM, Power: 1000e6}}, ErrorPPM: 100_000}})
		m.SetPower(noMeters{}, known)
		if err := m.Begin(); err != nil {
			t.Fatal(err)
		}
		var sum usage.Usage
		for range 3 {
			for have, n := int64(0), 0; have < 1000; n++ {
				if n == 100_000 {
					t.Fatalf("%d uJ", have)
				}
				job.now.Put(usage.CPU, job.now.Value[usage.CPU]+1e6)
				if !m.Sample(launch.Full) {
					t.Fatal("the job could not be read")
				}
				u, _ := m.sampler.Accounts().Share(jobSlot)
				have += u.Amount[usage.EnergyRest]
			}
			w := m.CloseWindow()
			row := &w.Rows[0]
			sum.Add(&row.Usage)
			if row.Total[usage.EnergyError] != sum.Amount[usage.EnergyError] {
				t.Errorf("partial %v: total error %d, the windows have %d", partial, row.Total[usage.EnergyError], sum.Amount[usage.EnergyError])
			}
		}
		got := m.Metered()
		uJ, off := got.Use.Amount[usage.EnergyRest], got.Use.Amount[usage.EnergyError]
		if uJ < 3000 || got.Use.Quality.Get(usage.EnergyRest) != usage.Modelled || got.IdleEnergy <= 0 || got.IdleEnergyError <= 0 {
			t.Errorf("partial %v: %d uJ, %+v", partial, uJ, got)
		}
		if more := m.statError; (more > 0) != partial || partial && (more < uJ*29/1000 || off <= more) {
			t.Errorf("partial %v: error %d of %d uJ, of which %d for clock ticks", partial, off, uJ, more)
		}
	}
}
