package attribute_test

import (
	"fmt"
	"testing"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/workload"
)

// BenchmarkTick books a machine of 5000 groups, a hundred below each slice.
func BenchmarkTick(b *testing.B) {
	const n = 5000
	s := &meter.Snapshot{Boot: "b", Node: meter.Node{CPUs: 64, MemTotal: 1 << 40, MemFree: 1 << 39}}
	for i := range n {
		g := &meter.Group{Slot: meter.Slot(i), Life: workload.Life{ID: uint64(i)}, Workload: workload.Workload{ID: workload.ID(fmt.Sprint(i))}}
		switch {
		case i == 0:
			g.Parent, g.MemoryParent = meter.NoSlot, meter.NoSlot
		case i%100 != 1:
			g.Parent = meter.Slot((i-1)/100*100 + 1)
			g.MemoryParent = g.Parent
		}
		for _, r := range []meter.Resource{meter.CPU, meter.CPUUser, meter.CPUSystem, meter.Memory, meter.PIDs, meter.DiskRead, meter.DiskWritten,
			meter.DiskReads, meter.DiskWrites, meter.Processes, meter.PressureCPU, meter.PressureMemory, meter.PressureIO} {
			g.Put(r, 0)
		}
		g.Own = meter.SetOf(meter.DiskRead, meter.DiskWritten, meter.DiskReads, meter.DiskWrites)
		s.Groups = append(s.Groups, g)
	}
	books := attribute.New("n")
	for b.Loop() {
		s.At += 1e9
		s.Mono += 1e9
		books.Tick(s)
	}
}
