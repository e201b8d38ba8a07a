package attribute_test

import (
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// allMeters are the meters that a random machine may have.
var allMeters = []power.Meter{
	{Name: "rapl/package-0", Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Powercap, Wrap: 262_143_328_851, Step: 61, ErrorPPM: 50_000},
	{Name: "rapl/package-1", Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Powercap, Wrap: 100_000_000_000, Step: 61, ErrorPPM: 50_000},
	{Name: "rapl/package-0/dram", Level: power.Part, Domain: power.DRAM, Kind: power.Energy, From: power.Powercap, Wrap: 65_712_999_613, Step: 15, ErrorPPM: 200_000},
	{Name: "gpu", Level: power.Part, Domain: power.GPU, Kind: power.Power, From: power.NVML, Step: 1000, ErrorPPM: 50_000},
	{Name: "rapl/psys", Level: power.Board, Domain: power.Rest, Kind: power.Energy, From: power.Powercap, Wrap: 262_143_328_851, Step: 61, ErrorPPM: 100_000},
	{Name: "dcmi", Level: power.Box, Domain: power.Rest, Kind: power.Power, From: power.IPMI, Step: 1_000_000, ErrorPPM: 100_000},
}

// A meterPanel is the meters of a machine, and their true counts.
type meterPanel struct {
	t      *rapid.T
	config energy.Config
	sick   bool // they fail in every way
	value  []int64
	now    []power.Reading
}

func newMeterPanel(t *rapid.T, sick bool) *meterPanel {
	p := &meterPanel{t: t, sick: sick}
	for _, m := range allMeters {
		if rapid.Bool().Draw(t, m.Name) {
			p.config.Meters = append(p.config.Meters, m)
			start := rapid.Int64Range(0, 900_000_000).Draw(t, "start")
			if m.Wrap > 0 && rapid.Bool().Draw(t, "near its end") {
				start = m.Wrap - 1 - start
			}
			p.value = append(p.value, start)
		}
	}
	if rapid.Bool().Draw(t, "curve") {
		p.config.Curve = power.Curve{Domain: power.Rest, Points: []power.Point{{Load: 0, Power: 20_000_000}, {Load: power.PPM, Power: 90_000_000}}, ErrorPPM: 400_000, Source: "a curve"}
	}
	if rapid.Bool().Draw(t, "static") {
		p.config.Static[power.Package] = rapid.Int64Range(1, 200_000_000).Draw(t, "W")
	}
	return p
}

// show adds readings to a snapshot, after a second in which the meters counted on.
func (p *meterPanel) show(s *usage.Snapshot) *usage.Snapshot {
	t := p.t
	for i, m := range p.config.Meters {
		if m.Kind == power.Power {
			p.value[i] = rapid.Int64Range(1_000_000, 100_000_000).Draw(t, "uW")
		} else {
			p.value[i] += rapid.Int64Range(1_000_000, 100_000_000).Draw(t, "uJ")
		}
	}
	s.Before, s.After = p.read(s.At), p.read(s.At+1e5)
	return s
}

// read returns the readings at an instant.
func (p *meterPanel) read(at int64) (rs []power.Reading) {
	t := p.t
	for i, m := range p.config.Meters {
		r := power.Reading{Meter: i, At: at, Value: p.value[i]}
		if m.Kind == power.Energy {
			r.Value %= m.Wrap
		}
		if p.sick {
			switch rapid.IntRange(0, 12).Draw(t, "trouble") {
			case 0:
				r.Err = "permission denied"
			case 1:
				r.Value = rapid.Int64().Draw(t, "anything")
			case 2:
				r.Value = 0
			case 3:
				continue
			case 4:
				p.value[i] -= rapid.Int64Range(0, p.value[i]).Draw(t, "back")
			case 5:
				r.Value = math.MaxInt64
			case 6, 7:
				if len(p.now) > i {
					r.Value = p.now[i].Value // stalled
				}
			}
		}
		rs = append(rs, r)
	}
	p.now = rs
	return rs
}

// sumEnergies sums the rows of a window by resource, and checks that none is negative.
func sumEnergies(t *rapid.T, w *usage.Window) (sum map[usage.Resource]int64) {
	t.Helper()
	sum = map[usage.Resource]int64{}
	for i := range w.Rows {
		u := &w.Rows[i].Usage
		for _, r := range append(usage.Energies[:], usage.EnergyError) {
			if u.Amount[r] < 0 || u.Amount[r] != 0 && !u.Present.Has(r) {
				t.Fatalf("%q: %d of %v, present %v", w.Rows[i].Workload.Name, u.Amount[r], r, u.Present.Has(r))
			}
			sum[r] += u.Amount[r]
		}
	}
	return sum
}

// TestEnergyIsDividedWhole checks, for any readings, groups and restarts, that in each tick and
// window the shares of each domain sum exactly to its booked energy and none is negative. With
// working meters the packages are booked what they counted, including over restarts after which
// windows are measured again.
func TestEnergyIsDividedWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sick := rapid.Bool().Draw(t, "sick")
		f, p := &forest{t: t, used: map[string]int64{}, blurry: map[string]bool{}}, newMeterPanel(t, sick)
		f.use(f.add(nil, 0, false), 1e12)
		acc := attribute.New("n")
		known := energy.New(p.config)
		acc.SetMeters(known)
		src := &source{slots: map[uint64]usage.Slot{}, base: 1}
		var v recordLog
		var w usage.Window
		var whole, booked usage.Shares // of the open window; of all that was saved
		acc.Tick(src.show(p.show(f.snapshot())))
		first := append([]int64{}, p.value...)
		saved, held := first, usage.Shares{}
		for range rapid.IntRange(1, 25).Draw(t, "ticks") {
			f.step()
			snap := src.show(p.show(f.snapshot()))
			bal := acc.Tick(snap)
			for _, r := range usage.Energies {
				if !bal.IsBalanced(r) || bal.Skew.Get(r) != 0 || min(bal.Whole.Get(r), bal.Workloads.Get(r), bal.System.Get(r), bal.Idle.Get(r)) < 0 {
					t.Fatalf("%v: %d are %d, %d and %d, skew %d", r, bal.Whole.Get(r), bal.Workloads.Get(r), bal.System.Get(r), bal.Idle.Get(r), bal.Skew.Get(r))
				}
			}
			for i := range bal.Whole {
				whole[i] += bal.Whole[i]
			}
			system, _ := acc.Share(usage.Root)
			for _, r := range usage.Energies {
				if bal.System.Get(r) != system.Amount[r] {
					t.Fatalf("%v: system has %d, its account %d", r, bal.System.Get(r), system.Amount[r])
				}
			}
			if rapid.Bool().Draw(t, "window goes on") {
				continue
			}
			acc.CloseWindow(&w)
			if w.Balance.Violations > 0 {
				t.Fatalf("%d violations", w.Balance.Violations)
			}
			sum := sumEnergies(t, &w)
			for i, r := range usage.Wholes {
				if r >= usage.EnergyPackage && sum[r] != whole[i] {
					t.Fatalf("%v: the ticks of the window booked %d, its rows hold %d", r, whole[i], sum[r])
				}
				held[i] += whole[i]
			}
			whole = usage.Shares{}
			then := rapid.IntRange(0, 3).Draw(t, "then")
			if then != 0 { // what could not be saved is still to come after a restart
				v.save(acc, rapid.Bool().Draw(t, "full"))
				for i := range held {
					booked[i] += held[i]
				}
				held, saved = usage.Shares{}, append([]int64{}, p.value...)
			}
			if len(v.records) > 0 && then < 2 {
				laws := known.EncodeModels("m")
				acc, known = v.restore(t), energy.New(p.config)
				if rapid.Bool().Draw(t, "laws") {
					if err := known.RestoreModels("m", laws); err != nil {
						t.Fatal(err)
					}
				}
				acc.SetMeters(known)
				src.restart()
				held = usage.Shares{}
				for range rapid.IntRange(0, 2).Draw(t, "away") {
					f.step()
					p.show(f.snapshot())
				}
			}
		}
		if sick {
			return
		}
		want, metered := int64(0), false
		for i, m := range p.config.Meters {
			if m.Domain == power.Package && m.Kind == power.Energy {
				want, metered = want+saved[i]-first[i], true
			}
		}
		if got := booked.Get(usage.EnergyPackage); metered && got != want {
			t.Fatalf("booked %d uJ to the packages, the meters counted %d", got, want)
		}
	})
}

// TestRestoredTwice checks that accounts saved again before the first tick lose no energy.
func TestRestoredTwice(t *testing.T) {
	at := func(i int64) *usage.Snapshot {
		s := two(i*second, i*900, i*500)
		s.Before = []power.Reading{{At: s.At, Value: i * 10_000_000}}
		return s
	}
	acc := attribute.New("n")
	var v recordLog
	var w usage.Window
	acc.SetMeters(energy.New(packages))
	acc.Tick(at(1))
	acc.CloseWindow(&w)
	for range 2 {
		v.save(acc, true)
		acc = v.restore(t)
		acc.SetMeters(energy.New(packages))
	}
	acc.Tick(at(5))
	acc.CloseWindow(&w)
	if got := w.Balance.Whole.Get(usage.EnergyPackage); got != 40_000_000 {
		t.Errorf("%d uJ booked of 40 J", got)
	}
}

// TestRestoredInOutage checks that a checkpoint holds what a model booked in the present outage: the
// counter stood still, so what it gains after a restart is booked in full.
func TestRestoredInOutage(t *testing.T) {
	acc, known := attribute.New("n"), energy.New(packages)
	acc.SetMeters(known)
	at, value := int64(0), int64(0)
	tick := func(gain int64, why string) int64 {
		at += second
		value += gain
		s := two(at, at, at)
		s.Before = []power.Reading{{At: at, Value: value, Err: why}}
		b := acc.Tick(s)
		return b.Whole.Get(usage.EnergyPackage)
	}
	for range 60 {
		tick(10_000_000, "")
	}
	for range 10 {
		tick(0, "permission denied")
	}
	var v recordLog
	acc.CloseWindow(&usage.Window{})
	v.save(acc, true)
	acc = v.restore(t)
	learned := known.EncodeModels("m")
	known = energy.New(packages)
	if err := known.RestoreModels("m", learned); err != nil {
		t.Fatal(err)
	}
	acc.SetMeters(known)
	for range 3 {
		if got := tick(10_000_000, ""); got != 10_000_000 {
			t.Errorf("%d uJ booked of 10 J", got)
		}
	}
}

// TestRestoreOlder checks that accounts of each version, some without energy, virtual machines, idle time or the peaks of CPU time, continue,
// and have all energy from then on.
func TestRestoreOlder(t *testing.T) {
	for version, was := range map[byte]int64{1: 0, 2: 20_000_000, 3: 20_000_000, 4: 20_000_000, 5: 20_000_000, 6: 20_000_000} {
		acc := older(t, version)
		since := int64(second)
		if version < 3 { // these do not say since when they count
			since = 3 * second
		}
		if got := acc.First(); got != since {
			t.Errorf("version %d: counting began at %d, want %d", version, got, since)
		}
		acc.SetMeters(energy.New(energy.Config{Meters: allMeters[:1]}))
		var w usage.Window
		// The machine continues as when the checkpoint was made.
		for i := int64(3); i < 6; i++ {
			s := two((i+1)*1e9, i*900, i*500, i*100)
			s.Groups[1].Guest = &usage.Guest{UUID: "a", VCPUs: 1}
			s.Before = []power.Reading{{Meter: 0, At: s.At, Value: i * 10_000_000}}
			acc.Tick(s)
		}
		given := acc.Guests()
		acc.CloseWindow(&w)
		var cpu, uJ, total int64
		for i := range w.Rows {
			r := &w.Rows[i]
			uJ += r.Usage.Amount[usage.EnergyPackage]
			total += r.Total[usage.EnergyPackage]
			if r.Workload.Name == "1" {
				cpu = r.Usage.Amount[usage.CPU]
				if total := r.Total[usage.CPU]; total != 5*400 {
					t.Errorf("version %d: total of 1 is %d ns, want 2000", version, total)
				}
				all := r.Usage.Amount[usage.EnergyPackage]
				if version > 3 { // the virtual machine was there before
					all = r.Total[usage.EnergyPackage]
				}
				if len(given) != 1 || given[0].Share.Energy() != all || given[0].Share.Idle == 0 {
					t.Errorf("version %d: %+v given, the row has %d uJ", version, given, all)
				}
			}
		}
		want := int64(20_000_000) // the first tick has no energy
		if version > 1 {
			want = 30_000_000
		}
		if w.Start != 3e9 || cpu != 3*400 || uJ != want || total != was+want || w.Balance.Violations > 0 {
			t.Errorf("version %d: window from %d: 1 used %d ns, all %d uJ and %d in all, %d violations; want 3e9, 1200, %d and %d, 0",
				version, w.Start, cpu, uJ, total, w.Balance.Violations, want, was+want)
		}
		var v recordLog
		v.save(acc, true)
		if again := v.restore(t); again == nil {
			t.Error("cannot be restored again")
		}
	}
}

// TestCheckpointFormat compares records with those in the file of the present version. A change of
// the format needs a new version, with a file of its own, and leaves that of the old one as it is.
func TestCheckpointFormat(t *testing.T) {
	acc := attribute.New("n")
	acc.SetMeters(energy.New(energy.Config{Meters: allMeters[:1]}))
	var v recordLog
	for i := range int64(3) {
		s := two((i+1)*1e9, i*900, i*500, i*100)
		s.Node.Idle = i * 1e9
		s.Groups[1].Guest = &usage.Guest{UUID: "a", VCPUs: 1}
		s.Before = []power.Reading{{Meter: 0, At: s.At, Value: i * 10_000_000}}
		acc.Tick(s)
		acc.CloseWindow(&usage.Window{})
		v.save(acc, false)
	}
	acc = v.restore(t)
	for i := range int64(2) { // after a boot
		s := two((i+1)*1e9, i*90, i*50)
		s.Boot, s.Groups[1].Final = "c", i == 1
		acc.Tick(s)
	}
	var text strings.Builder
	for _, rec := range append(v.records, acc.Ends(nil, nil)) {
		fmt.Fprintf(&text, "%x\n", rec)
	}
	const path = "testdata/checkpoint-v7.hex"
	if *update {
		if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), text.String()); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
}

// older restores accounts saved by an older version of the program.
func older(t *testing.T, version byte) *attribute.Accounts {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("testdata/checkpoint-v%d.hex", version))
	if err != nil {
		t.Fatal(err)
	}
	var recs [][]byte
	for line := range strings.FieldsSeq(string(text)) {
		rec, err := hex.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		if rec[0] != version {
			t.Fatalf("version %d, want %d", rec[0], version)
		}
		recs = append(recs, rec)
	}
	acc, err := attribute.Restore("n", recs)
	if err != nil {
		t.Fatal(err)
	}
	return acc
}
