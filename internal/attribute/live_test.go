package attribute_test

import (
	"encoding/json"
	"flag"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestLiveGolden compares the JSON of a machine's latest tick with a golden file, byte by byte.
func TestLiveGolden(t *testing.T) {
	s := crowd(30)
	guests(s, 2)
	s.Groups[7].Has &^= usage.SetOf(usage.DiskRead, usage.Memory, usage.PressureIO)
	s.Groups[9].Put(usage.NetworkRx, 0)
	s.Groups[9].Put(usage.NetworkTx, 0)
	s.Node.Total.Put(usage.NetworkRx, 0)
	s.Node.Total.Put(usage.NetworkTx, 0)
	accounts := attribute.New("n")
	accounts.SetMeters(energy.New(packages))
	s.Before = []power.Reading{{}}
	for range 4 {
		s.At += 1_012_345_678
		s.Mono = s.At
		busy(s)
		s.Groups[9].Value[usage.NetworkRx] += 123_457
		s.Groups[9].Value[usage.Memory] += 1 << 30
		s.Node.Total.Value[usage.NetworkRx] += 200_001
		metered(s)
		accounts.Tick(s)
	}
	m := accounts.Live()
	got, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(got), `{"id"`, "\n{\"id\"") + "\n"
	const path = "testdata/live.json"
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), text); d != "" {
		t.Errorf("the tick is not told as before (-want +got):\n%s", d)
	}
}

// TestLiveRates checks figures of a tick by numbers: before there is a tick, over two seconds, with
// traffic and meters that are not always there.
func TestLiveRates(t *testing.T) {
	board := energy.Config{Meters: []power.Meter{packages.Meters[0],
		{Name: "psys", Level: power.Board, Domain: power.Rest, Kind: power.Energy, From: power.Powercap}}, Static: packages.Static}
	acc := attribute.New("n")
	acc.SetMeters(energy.New(board))
	show := func(i, span int64, disk bool) *live.Machine {
		s := two(i*span, i*3*second, i*second)
		s.Node.Steal = i * second / 2
		s.Groups[1].CPULimit, s.Groups[1].MemoryLimit = second/2, 1<<30
		s.Groups[1].Put(usage.NetworkRx, i*200)
		s.Groups[1].Put(usage.NetworkTx, i*100)
		if disk {
			s.Node.Total.Put(usage.DiskRead, i*8192)
			s.Node.Total.Put(usage.DiskWritten, i*4096)
		}
		s.Before = []power.Reading{{Meter: 0, At: s.At, Value: i * 100 * watt}, {Meter: 1, At: s.At, Value: i * 160 * watt}}
		acc.Tick(s)
		return acc.Live()
	}
	m := show(1, 2*second, false)
	if m.CPU != (live.CPUParts{}) || m.Energy != nil || m.Disk != nil || m.Rows[0].CPU == nil || *m.Rows[0].CPU != 0 {
		t.Errorf("the first tick has %+v, %+v, %+v, %+v", m.CPU, m.Energy, m.Disk, m.Rows[0])
	}
	if _, ok := m.Rows[0].Quality[live.Power.String()]; ok || m.Rows[0].Power != nil || m.Rows[0].PowerError != nil {
		t.Errorf("power of a tick without energy: %+v", m.Rows[0])
	}
	show(2, 2*second, false)
	if m = show(3, 2*second, true); m.Disk != nil {
		t.Errorf("a rate of traffic that was not counted before: %+v", m.Disk)
	}
	m = show(4, 2*second, true)
	if want := (live.CPUParts{Whole: 1.75, Workloads: .5, System: 1, Idle: .25, Steal: .25}); m.CPU != want {
		t.Errorf("CPUs %+v, want %+v", m.CPU, want)
	}
	if m.Disk == nil || *m.Disk != (live.Flow{In: 4096, Out: 2048}) || m.Network != nil {
		t.Errorf("traffic %+v, %+v; want 4096 and 2048 B/s, and none", m.Disk, m.Network)
	}
	if e := m.Energy; e == nil || len(e.Domains) != 2 || e.Watts != 80 || e.Domains[0].Watts != 50 || e.Domains[0].Idle != 40 || e.Domains[1].Watts != 30 || len(e.Ratios) != 1 || e.Ratios["board"] != .625 {
		t.Errorf("energy %+v, want 50 W of packages, 40 of them idle, and 30 W, of a board that shows 80 W", m.Energy)
	}
	var off float64
	for _, r := range m.Rows {
		if r.PowerError != nil {
			off += *r.PowerError
		}
	}
	if e := m.Energy; off == 0 || math.Abs(e.Error-off) > 1e-9*off {
		t.Errorf("the power may be off by %v W, its rows by %v W together", e.Error, off)
	}
	row := m.Rows[0]
	if row.CPULimit == nil || *row.CPULimit != .5 || row.MemoryLimit == nil || *row.MemoryLimit != 1<<30 || row.CPU == nil || *row.CPU != .5 {
		t.Errorf("row %+v, want half a CPU of half a CPU, and a limit of 1 GiB", row)
	}
	if q := row.Quality[live.Power.String()]; row.Power == nil || *row.Power <= 0 || row.PowerError == nil || q != usage.Apportioned {
		t.Errorf("row %+v, want some power, apportioned", row)
	}
	if row.NetworkRx == nil || *row.NetworkRx != 100 || row.NetworkTx == nil || *row.NetworkTx != 50 {
		t.Errorf("row %+v, want 100 B/s received and 50 sent", row)
	}
	if root := m.Rows[len(m.Rows)-2]; root.CPULimit != nil || root.MemoryLimit != nil || root.DiskRead == nil || *root.DiskRead != 4096 {
		t.Errorf("row %+v, want no limits, and all traffic", root)
	}
	gone := two(10*second, 12*second, 4*second)
	gone.Node.Total.Put(usage.DiskRead, 0) // less than before
	gone.Node.Total.Put(usage.DiskWritten, 4*4096+2)
	gone.Groups[1].CPULimit, gone.Groups[1].MemoryLimit = 1, 1
	acc.Tick(gone)
	if row := acc.Live().Rows[0]; row.CPULimit == nil || *row.CPULimit != 1e-9 || row.MemoryLimit == nil || *row.MemoryLimit != 1 {
		t.Errorf("row %+v, want the smallest limits", row)
	}
	if m = acc.Live(); m.Disk == nil || *m.Disk != (live.Flow{Out: 1}) {
		t.Errorf("traffic %+v, want 0 and 1 B/s", m.Disk)
	}
	acc.SetMeters(nil)
	if m = acc.Live(); m.Energy != nil {
		t.Errorf("energy %+v without meters", m.Energy)
	}
}

// TestLiveAddsUp checks that the rows of each tick sum to the machine and the skew that the snapshot
// states: while hundreds of groups vanish and free memory is read after theirs, and in a tick that reads
// more CPU time than it had.
func TestLiveAddsUp(t *testing.T) {
	s := crowd(500)
	accounts := attribute.New("n")
	var skewed [2]bool
	for tick := range 12 {
		s.At += 1e9
		s.Mono = s.At
		busy(s)
		var held int64
		for i, g := range s.Groups[1:] {
			if g.Parent == usage.Root {
				g.Put(usage.Memory, 1<<20)
				held += 1 << 20
			}
			g.Final = tick == 8 && i >= 250
		}
		s.Node.MemTotal = held + 100<<20
		s.Node.MemFree = 50 << 20
		if tick >= 6 && tick <= 9 {
			s.Node.MemFree = 300 << 20 // freed since the groups were read
		}
		if tick == 5 { // read later than the clock, by which there are 64 s
			s.Groups[1].Value[usage.CPU] += 65e9
		}
		accounts.Tick(s)
		if tick == 8 {
			s.Groups = s.Groups[:251]
		}
		m := accounts.Live()
		var cpu float64
		var memory int64
		for _, r := range m.Rows {
			if r.CPU != nil {
				cpu += *r.CPU
			}
			if r.Memory != nil {
				memory += *r.Memory
			}
		}
		if memory != m.Memory.Whole+m.Memory.Skew {
			t.Errorf("tick %d: rows have %d B, the machine %d B and a skew of %d B", tick, memory, m.Memory.Whole, m.Memory.Skew)
		}
		if d := cpu - m.CPU.Whole - m.CPU.Skew; tick > 0 && (d > 1e-6 || d < -1e-6) {
			t.Errorf("tick %d: rows have %v cores, the machine %v and a skew of %v", tick, cpu, m.CPU.Whole, m.CPU.Skew)
		}
		skewed[0], skewed[1] = skewed[0] || m.CPU.Skew != 0, skewed[1] || m.Memory.Skew > 0
		if m.Balance.Violations > 0 {
			t.Errorf("tick %d: %d violations", tick, m.Balance.Violations)
		}
	}
	if !skewed[1] {
		t.Error("no tick had a skew of memory: it tests nothing")
	}
	if !skewed[0] {
		t.Error("no tick had a skew of CPU time: it tests nothing")
	}
}
