package attribute_test

import (
	"fmt"
	"testing"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// crowd returns a machine of n groups, a hundred below each slice.
func crowd(n int) *usage.Snapshot {
	s := &usage.Snapshot{Boot: "b", Node: usage.Node{CPUs: 64, MemTotal: 1 << 40, MemFree: 1 << 39}}
	for i := range n {
		g := &usage.Group{Slot: usage.Slot(i), Life: workload.Life{ID: uint64(i)}, Workload: workload.Workload{ID: workload.ID(fmt.Sprint(i))}}
		switch {
		case i == 0:
			g.Parent, g.MemoryParent = usage.NoSlot, usage.NoSlot
		case i%100 != 1:
			g.Parent = usage.Slot((i-1)/100*100 + 1)
			g.MemoryParent = g.Parent
		}
		for _, r := range []usage.Resource{usage.CPU, usage.CPUUser, usage.CPUSystem, usage.Memory, usage.PIDs, usage.DiskRead, usage.DiskWritten,
			usage.DiskReads, usage.DiskWrites, usage.Processes, usage.PressureCPU, usage.PressureMemory, usage.PressureIO} {
			g.Put(r, 0)
		}
		g.Own = usage.SetOf(usage.DiskRead, usage.DiskWritten, usage.DiskReads, usage.DiskWrites)
		s.Groups = append(s.Groups, g)
	}
	return s
}

// busy adds some use to every other group of a crowd.
func busy(s *usage.Snapshot) {
	for i := len(s.Groups) - 1; i >= 0; i-- {
		g := s.Groups[i]
		if i%2 == 1 && i%100 != 1 {
			continue
		}
		g.Has.Each(func(r usage.Resource) { g.Value[r] += int64(1000 + i) })
		for g.Parent > 0 {
			g = s.Groups[g.Parent]
			g.Value[usage.CPU] += int64(1000 + i)
			g.Value[usage.Memory] += int64(1000 + i)
		}
	}
}

// BenchmarkTick books a machine of 5000 groups.
func BenchmarkTick(b *testing.B) {
	s := crowd(5000)
	accounts := attribute.New("n")
	for b.Loop() {
		s.At += 1e9
		s.Mono += 1e9
		accounts.Tick(s)
	}
}

// BenchmarkCheckpoint closes a window of 500 groups, half of them inactive, and encodes a delta.
func BenchmarkCheckpoint(b *testing.B) {
	s := crowd(500)
	accounts := attribute.New("n")
	var w usage.Window
	var buf []byte
	for b.Loop() {
		b.StopTimer()
		for range 10 {
			s.At += 1e9
			s.Mono += 1e9
			busy(s)
			accounts.Tick(s)
		}
		b.StartTimer()
		accounts.CloseWindow(&w)
		buf = accounts.Checkpoint(buf[:0], false)
		accounts.MarkSaved()
	}
	b.ReportMetric(float64(len(buf)), "B/delta")
	b.ReportMetric(float64(len(accounts.Checkpoint(nil, true))), "B/full")
}

// BenchmarkRestore restores a full record of 500 groups and 100 deltas.
func BenchmarkRestore(b *testing.B) {
	s := crowd(500)
	accounts := attribute.New("n")
	var w usage.Window
	var recs [][]byte
	for range 100 {
		s.At += 1e9
		busy(s)
		accounts.Tick(s)
		accounts.CloseWindow(&w)
		recs = append(recs, accounts.Checkpoint(nil, false))
		accounts.MarkSaved()
	}
	for b.Loop() {
		if _, err := attribute.Restore("n", recs); err != nil {
			b.Fatal(err)
		}
	}
}

// guests puts virtual machines into some groups of a crowd.
func guests(s *usage.Snapshot, n int) {
	for i := range n {
		s.Groups[2+3*i].Guest = &usage.Guest{UUID: fmt.Sprint(i), Name: fmt.Sprint("vm", i), VCPUs: 4}
	}
}

// metered adds readings of a package meter.
func metered(s *usage.Snapshot) {
	s.Before[0].At, s.Before[0].Value = s.At, s.Before[0].Value+90*watt
}

// BenchmarkGuests books a machine of 500 groups, 20 of them virtual machines, and its energy.
func BenchmarkGuests(b *testing.B) {
	s := crowd(500)
	guests(s, 20)
	accounts := attribute.New("n")
	accounts.SetMeters(energy.New(packages))
	s.Before = []power.Reading{{}}
	for b.Loop() {
		s.At += 1e9
		s.Mono += 1e9
		busy(s)
		metered(s)
		accounts.Tick(s)
		if len(accounts.Guests()) > 20 {
			b.Fatal("too many")
		}
	}
}

// TestGuestAllocations checks that a tick with virtual machines allocates nothing, and a window
// once for each, for the shares of its handover.
func TestGuestAllocations(t *testing.T) {
	s := crowd(300)
	guests(s, 20)
	accounts := attribute.New("n")
	accounts.SetMeters(energy.New(packages))
	s.Before = []power.Reading{{}}
	var w usage.Window
	given := 0
	step := func() {
		for range 3 {
			s.At += 1e9
			s.Mono += 1e9
			busy(s)
			metered(s)
			accounts.Tick(s)
			given += len(accounts.Guests())
		}
		accounts.CloseWindow(&w)
	}
	step()
	given = 0
	step()
	if given != 3*20 || len(w.Handovers) != 20 {
		t.Errorf("%d shares and %d handovers, want 60 and 20", given, len(w.Handovers))
	}
	if n := testing.AllocsPerRun(20, step); n > 20 {
		t.Errorf("three ticks and a window of 20 virtual machines allocate %v times", n)
	}
}

// TestAllocations checks that ticks and closing a window allocate nothing once buffers have grown.
func TestAllocations(t *testing.T) {
	s := crowd(300)
	accounts := attribute.New("n")
	var w usage.Window
	var buf []byte
	step := func() {
		for range 3 {
			s.At += 1e9
			s.Mono += 1e9
			busy(s)
			accounts.Tick(s)
		}
		accounts.CloseWindow(&w)
		buf = accounts.Checkpoint(buf[:0], false)
		accounts.MarkSaved()
	}
	step()
	step()
	if n := testing.AllocsPerRun(20, step); n > 0 {
		t.Errorf("three ticks and a window allocate %v times", n)
	}
}
