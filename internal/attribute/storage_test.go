package attribute_test

import (
	"slices"
	"testing"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// holding gives a group disk space.
func holding(bytes int64) func(*usage.Group) {
	return func(g *usage.Group) {
		job(g)
		g.Storage = usage.KnownLevel(bytes)
	}
}

// TestStorage checks that the disk space that is known at the end of a window counts for as long as the group was seen in it, and
// that it is absent otherwise.
func TestStorage(t *testing.T) {
	s := newScenario(t)
	s.tick(0, 1000)
	s.close()
	for i := range int64(10) { // it is known from the 7th tick on, and the group does nothing
		a := namedGroup{name: "a", life: 5, cpu: 50, mem: 30, born: i == 0, also: job}
		if i > 6 {
			a.also = holding(3 << 40)
		}
		s.tick((i+1)*second, 1000+i, a)
	}
	s.close()
	s.want("a", usage.Storage, 30<<40, usage.Measured)
	s.tick(12*second, 1200, namedGroup{name: "a", life: 5, cpu: 60, mem: 30, also: holding(0)})
	s.close()
	s.want("a", usage.Storage, 0, usage.Measured)
	s.tick(14*second, 1400, namedGroup{name: "a", life: 5, cpu: 60, mem: 30, also: job})
	s.close()
	if row := s.row("a"); row.Usage.Present.Has(usage.Storage) || row.Total[usage.Storage] != 30<<40 {
		t.Errorf("%d, in all %d", row.Usage.Amount[usage.Storage], row.Total[usage.Storage])
	}
	s.tick(15*second, 1500, namedGroup{name: "a", life: 5, cpu: 60, mem: 30, also: holding(7)})
	s.tick(17*second, 1600, namedGroup{name: "a", life: 5, cpu: 60, mem: 30, final: true, also: holding(7)})
	s.tick(24*second, 1700)
	s.close()
	s.want("a", usage.Storage, 21, usage.Measured)
	for i := range s.w.Rows {
		if r := &s.w.Rows[i]; r.Workload.Name != "a" && r.Usage.Present.Has(usage.Storage) {
			t.Errorf("%s has disk space", r.Workload.Name)
		}
	}
}

// TestStorageTooLarge checks that an impossible figure is absent.
func TestStorageTooLarge(t *testing.T) {
	s := newScenario(t)
	s.tick(0, 1000)
	s.close()
	s.tick(second, 1000, namedGroup{name: "a", life: 5, cpu: 50, mem: 30, born: true, also: holding(1 << 62)})
	s.close()
	if s.row("a").Usage.Present.Has(usage.Storage) {
		t.Error("it is booked")
	}
}

// TestCheckpointKeepsStorage checks that totals of disk space survive a restart, in full records and in deltas, also of a group that does
// nothing.
func TestCheckpointKeepsStorage(t *testing.T) {
	for _, full := range []bool{false, true} {
		s := newScenario(t)
		s.tick(0, 1000)
		s.close()
		s.v.save(s.acc, true)
		for i := range int64(4) {
			s.tick((i+1)*second, 1000, namedGroup{name: "a", life: 5, cpu: 50, mem: 30, born: i == 0, also: holding(100)})
			s.close()
			s.v.save(s.acc, full)
		}
		s.acc = s.v.restore(t)
		clear(s.known)
		for i := range int64(2) {
			s.tick((i+5)*second, 1000, namedGroup{name: "a", life: 5, cpu: 50, mem: 30, also: holding(100)})
		}
		s.close()
		// The tick after the restart covers no time.
		if row := s.row("a"); row.Total[usage.Storage] != 500 || row.Usage.Amount[usage.Storage] != 100 {
			t.Errorf("full %v: %d, in all %d", full, row.Usage.Amount[usage.Storage], row.Total[usage.Storage])
		}
	}
}

// TestEndsKeepStorage checks that the record of the end of a group has its disk space.
func TestEndsKeepStorage(t *testing.T) {
	for _, bytes := range []int64{0, 100} {
		s := newScenario(t)
		s.tick(10*second, 1000)
		s.v.save(s.acc, true)
		s.tick(11*second, 1100, namedGroup{name: "job", life: 5, cpu: 50, mem: 30, born: true, also: holding(bytes)})
		s.tick(12*second, 1300, namedGroup{name: "job", life: 5, cpu: 250, mem: 30, final: true, also: holding(bytes)})
		rec := s.acc.Ends(nil, func(*workload.Workload) bool { return false })
		if len(rec) == 0 {
			t.Fatal("no record")
		}
		s.v.records = append(s.v.records, rec)
		s.acc.MarkEndsSaved()
		killed := s.acc
		s.acc = s.v.restore(t)
		clear(s.known)
		s.tick(20*second, 1310)
		for range 2 {
			s.close()
			s.want("job", usage.Storage, 2*bytes, usage.Measured)
			s.acc = killed
		}
	}
}

// TestVolumes checks that the latest figures of volumes are in the window in which they were measured, and in no other.
func TestVolumes(t *testing.T) {
	s := newScenario(t)
	s.tick(0, 1000)
	s.close()
	s.volumes = []usage.VolumeUse{{Pod: "a", Volume: "x", Used: 1}, {Pod: "a", Volume: "y", Used: 2}}
	s.tick(second, 1000)
	s.volumes = []usage.VolumeUse{{Pod: "a", Volume: "y", Used: 3}}
	s.tick(2*second, 1000)
	s.volumes = nil
	s.tick(3*second, 1000)
	s.close()
	if want := []usage.VolumeUse{{Pod: "a", Volume: "x", Used: 1}, {Pod: "a", Volume: "y", Used: 3}}; !slices.Equal(s.w.Volumes, want) {
		t.Errorf("%v, want %v", s.w.Volumes, want)
	}
	s.tick(4*second, 1000)
	s.close()
	if len(s.w.Volumes) > 0 {
		t.Errorf("%v in the next window", s.w.Volumes)
	}
}
