package energy_test

import (
	"testing"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
)

// BenchmarkTick is a machine of two packages with memory and a board meter.
func BenchmarkTick(b *testing.B) {
	r := newRig(energy.Config{Meters: []power.Meter{
		counter("rapl/package-0", power.Part, power.Package), counter("rapl/package-1", power.Part, power.Package),
		counter("rapl/dram-0", power.Part, power.DRAM), counter("rapl/dram-1", power.Part, power.DRAM),
		counter("rapl/psys", power.Board, power.Rest)}})
	before, after := r.read(), r.read()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		load := int64(i*37%100) * 10_000
		at := int64(i+1) * second
		for j := range before {
			for _, rs := range [][]power.Reading{before, after} {
				rs[j].At, rs[j].Value = at, (rs[j].Value+int64(20+10*j)*watt+10*load)%wrap
			}
		}
		r.Tick(energy.Interval{At: at, Elapsed: second, Load: load, CPUs: 64}, before, after)
	}
}
