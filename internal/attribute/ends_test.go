package attribute_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestKilledKnowsEnds kills the meter at any tick, and lets it restore the last checkpoint and the
// records of ends since: all windows that were saved sum to what the root's counter gained. If every
// group is readable, each has exactly its own use, whether it lives or its end was seen before the
// kill.
func TestKilledKnowsEnds(t *testing.T) {
	kills, ends := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		f := &forest{t: t, used: map[string]int64{}, blurry: map[string]bool{}, calm: true, plain: rapid.Bool().Draw(t, "plain")}
		root := f.add(nil, 0, false)
		f.use(root, 1e12)
		for range rapid.IntRange(0, 5).Draw(t, "groups") {
			g := f.add(f.groups[rapid.IntRange(0, len(f.groups)-1).Draw(t, "parent")], 0, false)
			f.use(g, rapid.Int64Range(0, 1e12).Draw(t, "past"))
		}
		acc, src := attribute.New("n"), &source{slots: map[uint64]usage.Slot{}, base: 1}
		acc.Tick(src.show(f.snapshot()))
		if !acc.IsFirst() {
			t.Fatal("the first tick is not the first")
		}
		records := [][]byte{acc.Checkpoint(nil, true)}
		acc.MarkSaved()
		clear(f.used)
		clear(f.blurry)
		from := root.cpu
		booked, sum := map[string]int64{}, int64(0)
		var w usage.Window
		tick := func() {
			t.Helper()
			bal := acc.Tick(src.show(f.snapshot()))
			for _, r := range usage.Wholes {
				if !bal.IsBalanced(r) {
					t.Fatalf("parts of %v do not sum to the whole: %+v", r, bal)
				}
			}
			if rec := acc.Ends(nil, nil); len(rec) > 0 {
				ends++
				records = append(records, rec)
				acc.MarkEndsSaved()
			}
		}
		save := func() {
			t.Helper()
			acc.CloseWindow(&w)
			if w.Balance.Violations != 0 {
				t.Fatalf("%d violations", w.Balance.Violations)
			}
			for _, r := range w.Rows {
				booked[r.Workload.Name] += r.Usage.Amount[usage.CPU]
			}
			sum += w.Balance.Workloads[0] + w.Balance.System[0]
			full := rapid.Bool().Draw(t, "full")
			rec := acc.Checkpoint(nil, full)
			if full {
				records = nil
			}
			records = append(records, rec)
			acc.MarkSaved()
		}
		for range rapid.IntRange(1, 25).Draw(t, "ticks") {
			f.step()
			tick()
			switch rapid.IntRange(0, 3).Draw(t, "then") {
			case 0:
				save()
			case 1:
				kills++
				for range rapid.IntRange(0, 2).Draw(t, "ticks away") {
					f.step()
					for _, g := range f.groups {
						if g.dead {
							f.blur(g) // its end was not seen
						}
					}
					f.snapshot()
				}
				var err error
				if acc, err = attribute.Restore("n", records); err != nil {
					t.Fatal(err)
				}
				src.restart()
				for _, g := range f.groups {
					g.shown = false // so that it is readable: a use booked above it is made up for later only
				}
			}
		}
		for _, g := range f.groups {
			f.use(g, 1e9) // makes up for what was booked above groups that could not be read
		}
		f.now += 1e9
		tick()
		save()
		f.use(root, 1e9)
		f.now += 1e9
		tick()
		save()
		if got, want := sum, root.cpu-from; got != want {
			t.Errorf("windows have %d ns, the root's counter gained %d", got, want)
		}
		for name, want := range f.used {
			if f.plain && !f.blurry[name] && booked[name] != want {
				t.Errorf("%s: booked %d ns, used %d", name, booked[name], want)
			}
		}
	})
	if kills < 20 || ends < 20 {
		t.Errorf("%d kills and %d records: too few", kills, ends)
	}
}

// job makes a group of a scenario a job.
func job(g *usage.Group) { g.Workload.Kind = workload.Job }

// TestEndsOfJob checks the record of an ending job, whose group is removed after it: it applies once
// the group is gone, and to its own window only.
func TestEndsOfJob(t *testing.T) {
	for _, c := range []struct {
		name   string
		lives  bool // the job's group is there after the restart
		closed bool // a window with all of it was saved after the record
		cpu    int64
		up     int64 // of the group above
	}{
		{"gone", false, false, 250, 60},
		{"lives", true, false, 260, 50},
		{"in a later window", false, true, 250, 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScenario(t)
			up := func(cpu int64) namedGroup { return namedGroup{name: "up", life: 2, cpu: cpu, mem: 10} }
			s.tick(10*second, 1000, up(1000))
			s.v.save(s.acc, true)
			s.tick(11*second, 1100, up(1100), namedGroup{name: "job", up: "up", life: 5, cpu: 50, mem: 30, born: true, also: job})
			s.tick(12*second, 1300, up(1300), namedGroup{name: "job", up: "up", life: 5, cpu: 250, mem: 30, also: job})
			if len(s.acc.Ends(nil, nil)) > 0 {
				t.Error("a record without an end")
			}
			rec := s.acc.Ends(nil, func(w *workload.Workload) bool { return w.Key == "key of job" })
			if len(rec) == 0 {
				t.Fatal("no record")
			}
			s.v.records = append(s.v.records, rec)
			s.acc.MarkEndsSaved()
			total := int64(0)
			if c.closed {
				s.close()
				total = s.row("job").Usage.Amount[usage.CPU]
				s.v.save(s.acc, false)
			}
			// Killed, and restarted.
			s.acc = s.v.restore(t)
			clear(s.known)
			groups := []namedGroup{up(1310)}
			if c.lives {
				groups = append(groups, namedGroup{name: "job", up: "up", life: 5, cpu: 260, mem: 30, also: job})
			}
			s.tick(20*second, 1310, groups...)
			s.close()
			if c.closed {
				if total != c.cpu {
					t.Errorf("the window before has %d ns of the job, want %d", total, c.cpu)
				}
				for _, r := range s.w.Rows {
					if r.Workload.Name == "job" && (r.Usage.Amount[usage.CPU] > 0 || r.Usage.Amount[usage.Memory] > 0) {
						t.Errorf("booked twice: %+v", r.Usage)
					}
				}
				return
			}
			s.want("job", usage.CPU, c.cpu, usage.Measured)
			if got := s.row("up").Usage.Amount[usage.CPU]; got != c.up {
				t.Errorf("the group above has %d ns, want %d", got, c.up)
			}
			if !c.lives {
				// A line from 0 to 30 bytes in the tick of its birth, then 30 for a second.
				s.want("job", usage.Memory, 15+30, usage.Measured)
			}
			if s.row("job").Ended == c.lives {
				t.Errorf("ended: %v", !c.lives)
			}
		})
	}
}

// TestEndsOnce checks that the end of a job's group is recorded after that of the job only if it used
// CPU time in between, and again after a record that was not saved.
func TestEndsOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		saved bool
		last  int64
		again bool
	}{
		{"same", true, 250, false},
		{"more", true, 251, true},
		{"not saved", false, 250, true},
		{"unreadable", true, -1, false},
		{"unreadable and not saved", false, -1, true},
	} {
		s := newScenario(t)
		s.tick(10*second, 1000)
		s.v.save(s.acc, true)
		s.tick(11*second, 1300, namedGroup{name: "job", life: 5, cpu: 250, mem: 30, born: true, also: job})
		s.acc.Ends(nil, func(*workload.Workload) bool { return true })
		if c.saved {
			s.acc.MarkEndsSaved()
		}
		s.tick(12*second, 1310, namedGroup{name: "job", life: 5, cpu: c.last, final: true, also: job})
		rec := s.acc.Ends(nil, nil)
		if again := len(rec) > 0; again != c.again {
			t.Errorf("%s: recorded again %v, want %v", c.name, again, c.again)
		}
		if c.again {
			s.v.records = append(s.v.records, rec)
			s.acc = s.v.restore(t)
			s.tick(20*second, 1310)
			s.close()
			s.want("job", usage.CPU, max(250, c.last), usage.Measured)
		}
	}
}

// TestEndsAfterReboot checks ends in a window that began with a boot, of which no checkpoint is
// durable; and that ends of the boot before are dropped, as its counters are gone.
func TestEndsAfterReboot(t *testing.T) {
	s := newScenario(t)
	show := func(boot string, at, cpu int64, final bool, jobs ...int64) {
		t.Helper()
		snap := two(at, cpu)
		snap.Boot = boot
		for _, v := range jobs {
			g := &usage.Group{Slot: 1, Life: workload.Life{ID: 9}, Workload: workload.Workload{ID: "j", Name: "j"}, New: true, Born: true, Final: final, Exact: true}
			g.Put(usage.CPU, v)
			snap.Groups = append(snap.Groups, g)
		}
		s.show(snap)
	}
	show("b", 10*second, 100, false)
	s.v.save(s.acc, true)
	show("b", 11*second, 200, true, 70)
	s.v.records = append(s.v.records, s.acc.Ends(nil, nil))

	s.acc = s.v.restore(t)
	show("c", 5*second, 50, false)
	s.close()
	for _, r := range s.w.Rows {
		if r.Workload.Name == "j" {
			t.Errorf("a group of the boot before: %+v", r.Usage)
		}
	}
	s.acc = s.v.restore(t)
	show("c", 5*second, 50, false)
	show("c", 6*second, 90, true, 30)
	if !s.acc.CanRecordEnds() {
		t.Fatal("no record in the first window of a boot")
	}
	s.v.records = append(s.v.records, s.acc.Ends(nil, nil))
	s.acc = s.v.restore(t)
	show("c", 7*second, 95, false)
	s.close()
	s.want("j", usage.CPU, 30, usage.Measured)
	s.want("0", usage.CPU, 65, usage.Apportioned)
}

// TestEndsRefused checks when there is no record: none could be applied.
func TestEndsRefused(t *testing.T) {
	acc := attribute.New("n")
	acc.Tick(two(second, 1, 1, 1))
	if acc.CanRecordEnds() {
		t.Error("without a checkpoint")
	}
	acc.Checkpoint(nil, true)
	acc.MarkSaved()
	if !acc.CanRecordEnds() {
		t.Error("no record after a checkpoint")
	}
	acc.Tick(two(2*second, 2, 2, 2))
	var w usage.Window
	acc.CloseWindow(&w)
	if acc.CanRecordEnds() {
		t.Error("after a window that was not saved")
	}
}

// TestEndsSplit checks that user and system time of a recorded end sum to its CPU time.
func TestEndsSplit(t *testing.T) {
	for _, c := range []struct{ user, system, want int64 }{{30, 10, 150}, {10, 30, 50}, {5, 0, 200}, {0, 5, 0}} {
		s := newScenario(t)
		s.tick(10*second, 1000)
		s.v.save(s.acc, true)
		split := func(g *usage.Group) {
			g.Put(usage.CPUUser, c.user)
			g.Put(usage.CPUSystem, c.system)
		}
		s.tick(11*second, 1300, namedGroup{name: "a", life: 5, cpu: 200, born: true, final: true, also: split})
		s.v.records = append(s.v.records, s.acc.Ends(nil, nil))
		s.acc = s.v.restore(t)
		s.tick(20*second, 1310)
		s.close()
		s.want("a", usage.CPU, 200, usage.Measured)
		s.want("a", usage.CPUUser, c.want, usage.Apportioned)
		s.want("a", usage.CPUSystem, 200-c.want, usage.Apportioned)
	}
}

// TestEndsOfKnown checks the recorded end of a group that the checkpoint has: it holds no memory any
// more, and its end is not recorded again.
func TestEndsOfKnown(t *testing.T) {
	s := newScenario(t)
	a := namedGroup{name: "a", life: 5, cpu: 200, mem: 30}
	s.tick(10*second, 1000, a)
	s.tick(11*second, 1000, a)
	s.close()
	s.v.save(s.acc, true)
	a.cpu, a.final = 250, true
	s.tick(12*second, 1060, a)
	s.v.records = append(s.v.records, s.acc.Ends(nil, nil))
	s.acc = s.v.restore(t)
	s.tick(20*second, 1100)
	if rec := s.acc.Ends(nil, nil); len(rec) > 0 {
		t.Errorf("an end is recorded again: %d bytes", len(rec))
	}
	if got := s.acc.Live().Memory.System; got != 6000 {
		t.Errorf("system holds %d bytes, want 6000", got)
	}
	s.close()
	s.want("a", usage.CPU, 50, usage.Measured)
	s.want("", usage.CPU, 50, usage.Apportioned)
	if !s.row("a").Ended {
		t.Error("it has not ended")
	}
	s.tick(21*second, 1100)
	s.close()
	for _, r := range s.w.Rows {
		if r.Workload.Name == "a" {
			t.Errorf("a row after its end: %+v", r.Usage)
		}
	}
}

// TestEndsOfSubstitutes checks ends of groups whose kernel id is unavailable: another run of the meter
// gives them other ids, so their workload says whether they live.
func TestEndsOfSubstitutes(t *testing.T) {
	const fake = 1 << 63
	for _, c := range []struct {
		name     string
		id, now  uint64 // of the group; of a group after the restart
		workload string
		ended    bool
	}{
		{"lives", fake, fake + 1, "a", false},
		{"lives, with its first id", fake + 1, fake, "a", false},
		{"its id is another's", fake, fake, "b", true},
		{"its id is another's, later", fake + 3, fake + 3, "b", true},
		{"the kernel's id", 7, 7, "b", false},
		{"the kernel's id, another life", 7, 8, "a", true},
		{"the largest id of the kernel", fake - 1, fake - 1, "b", false},
	} {
		s := newScenario(t)
		a := namedGroup{name: "a", life: c.id, cpu: 100}
		s.tick(10*second, 1000, a)
		s.close()
		s.v.save(s.acc, true)
		a.cpu, a.final = 150, true
		s.tick(11*second, 1100, a)
		for range 2 { // written again, as the first time was not acknowledged
			s.v.records = append(s.v.records, s.acc.Ends(nil, nil))
		}
		s.acc = s.v.restore(t)
		clear(s.known)
		s.tick(20*second, 1100, namedGroup{name: c.workload, life: c.now, cpu: 0})
		s.close()
		ended := 0
		for _, r := range s.w.Rows {
			if r.Workload.Name == "a" && r.Ended && r.Usage.Amount[usage.CPU] == 50 {
				ended++
			}
		}
		if ended != map[bool]int{true: 1}[c.ended] {
			t.Errorf("%s: %d ends with 50 ns are booked, want one: %v", c.name, ended, c.ended)
		}
	}
}

// TestEndsOfNestedJobs checks that a group within two ending jobs is recorded once, and that the end of
// a group is recorded although a record with it was made, if that was not saved.
func TestEndsOfNestedJobs(t *testing.T) {
	s := newScenario(t)
	outer := namedGroup{name: "outer", life: 5, cpu: 300, also: job}
	inner := namedGroup{name: "inner", up: "outer", life: 6, cpu: 100, also: job}
	s.tick(10*second, 1000, outer, inner)
	s.close()
	s.v.save(s.acc, true)
	s.tick(11*second, 1000, outer, inner)
	is := func(names string) func(*workload.Workload) bool {
		return func(w *workload.Workload) bool { return strings.Contains(names, w.Name) }
	}
	both, one := s.acc.Ends(nil, is("outer inner")), s.acc.Ends(nil, is("outer"))
	if len(both) != len(one) || len(one) == 0 {
		t.Errorf("a record of %d bytes if both end, of %d if the outer one does; want the same", len(both), len(one))
	}
	if only := s.acc.Ends(nil, is("inner")); len(only) >= len(one) || len(only) == 0 {
		t.Errorf("a record of %d bytes for the inner one, of %d for both", len(only), len(one))
	}
	s.acc.MarkEndsSaved() // of the inner one
	outer.final, inner.final = true, true
	s.tick(12*second, 1000, outer, inner)
	rec := s.acc.Ends(nil, nil)
	s.v.records = append(s.v.records, rec)
	s.acc = s.v.restore(t)
	s.tick(20*second, 1000)
	s.close()
	if !s.row("outer").Ended || len(rec) >= len(one) || len(rec) == 0 {
		t.Errorf("the record of the ends has %d bytes, want that of the outer group only", len(rec))
	}
}

// TestEndsOfRuns checks ends that two runs of the meter recorded, both of which were killed. They are of
// the same group if the kernel's id says so; where it is unavailable, if the workload does: the runs give
// other ids to groups, and the same id to different ones.
func TestEndsOfRuns(t *testing.T) {
	const fake = 1 << 63
	for _, c := range []struct {
		name  string
		first namedGroup
		then  namedGroup
		want  [2]int64 // of "a" and "b"
	}{
		{"two lives of a workload", namedGroup{name: "a", life: 5, cpu: 50}, namedGroup{name: "a", life: 6, cpu: 30}, [2]int64{50 + 30, 0}},
		{"a life", namedGroup{name: "a", life: 5, cpu: 50}, namedGroup{name: "a", life: 5, cpu: 80}, [2]int64{80, 0}},
		{"a workload", namedGroup{name: "a", life: fake | 1, cpu: 50}, namedGroup{name: "a", life: fake | 2, cpu: 80}, [2]int64{80, 0}},
		{"a workload with the kernel's id", namedGroup{name: "a", life: fake | 1, cpu: 50}, namedGroup{name: "a", life: 5, cpu: 80}, [2]int64{80, 0}},
		{"two workloads", namedGroup{name: "a", life: fake, cpu: 50}, namedGroup{name: "b", life: fake, cpu: 30}, [2]int64{50, 30}},
	} {
		s := newScenario(t)
		s.tick(10*second, 1000)
		s.v.save(s.acc, true)
		for i, g := range []namedGroup{c.first, c.then} {
			g.born, g.also = true, job
			g.final = i > 0 // the first record is of an ending job
			s.tick(11*second+int64(i)*second, 1200, g)
			s.v.records = append(s.v.records, s.acc.Ends(nil, func(*workload.Workload) bool { return true }))
			s.acc = s.v.restore(t)
			clear(s.known)
		}
		s.tick(20*second, 1200)
		s.close()
		var got [2]int64
		for _, r := range s.w.Rows {
			for i, name := range []string{"a", "b"} {
				if r.Workload.Name == name {
					got[i] += r.Usage.Amount[usage.CPU]
				}
			}
		}
		if got != c.want {
			t.Errorf("%s: booked %v ns, want %v", c.name, got, c.want)
		}
	}
}

// TestEndsEnergy checks that the energy of a recorded end is that of the tick which books it: a model
// that replaced the meter before is not in it.
func TestEndsEnergy(t *testing.T) {
	s := newScenario(t)
	show := func(at, uJ int64, groups ...namedGroup) {
		t.Helper()
		s.before = []power.Reading{{At: at, Value: uJ}}
		if uJ < 0 {
			s.before[0].Err = "permission denied"
		}
		s.tick(at, 1000*at, groups...)
	}
	s.acc.SetMeters(energy.New(packages))
	for i := range int64(5) {
		show((i+6)*second, i*50*watt)
	}
	s.close()
	s.v.save(s.acc, true)
	show(11*second, -1, namedGroup{name: "a", life: 5, cpu: 500 * second, born: true, final: true})
	s.v.records = append(s.v.records, s.acc.Ends(nil, nil))
	s.close()
	if q := s.row("a").Usage.Quality.Get(usage.EnergyPackage); q != usage.Modelled {
		t.Fatalf("without its meter energy is %v", q)
	}
	s.acc = s.v.restore(t)
	s.acc.SetMeters(energy.New(packages))
	show(20*second, 900*watt)
	s.close()
	if u := s.row("a").Usage; u.Amount[usage.EnergyPackage] == 0 || u.Quality.Get(usage.EnergyPackage) != usage.Apportioned {
		t.Errorf("with its meter again: %d uJ, %v; want some, apportioned", u.Amount[usage.EnergyPackage], u.Quality.Get(usage.EnergyPackage))
	}
}

// TestEndsQuality checks that what a recorded end used is not of better quality than recorded: a child that
// vanished is in it, of which the restored accounts do not know.
func TestEndsQuality(t *testing.T) {
	s := newScenario(t)
	s.tick(10*second, 1000*second)
	s.close()
	s.v.save(s.acc, true)
	a := namedGroup{name: "a", life: 5, cpu: 100 * second, born: true}
	s.tick(11*second, 1200*second, a, namedGroup{name: "b", up: "a", life: 6, cpu: 40 * second, born: true})
	a.cpu, a.final = 200*second, true
	s.tick(12*second, 1400*second, a)
	s.v.records = append(s.v.records, s.acc.Ends(nil, nil))
	s.close()
	want := s.row("a").Usage
	if want.Quality.Get(usage.CPU) != usage.Apportioned {
		t.Fatalf("with a child that vanished CPU time is %v", want.Quality.Get(usage.CPU))
	}
	s.acc = s.v.restore(t)
	s.tick(20*second, 1500*second)
	s.close()
	got := s.row("a").Usage
	if got.Amount[usage.CPU] != 200*second || got.Quality.Get(usage.CPU) != usage.Apportioned {
		t.Errorf("%d ns of CPU time, %v; before %d ns, apportioned", got.Amount[usage.CPU], got.Quality.Get(usage.CPU), want.Amount[usage.CPU])
	}
}
