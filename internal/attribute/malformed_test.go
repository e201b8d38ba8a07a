package attribute

import (
	"encoding/binary"
	"errors"
	"runtime"
	"testing"
	"weak"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// threeGroups returns accounts of a root, a group below it and one below that, after some ticks. The
// lowest group is a virtual machine, the machine has a meter.
func threeGroups() *Accounts {
	acc := New("n")
	acc.SetMeters(energy.New(energy.Config{Meters: []power.Meter{{Name: "rapl", Level: power.Part, Domain: power.Package, Kind: power.Energy, From: power.Powercap}}}))
	for i := range int64(3) {
		s := &usage.Snapshot{Boot: "b", At: (i + 1) * 1e9, Mono: (i + 1) * 1e9, Node: usage.Node{CPUs: 2, MemTotal: 1 << 40, MemFree: 1 << 39, Tasks: 20}}
		s.Node.Total.Put(usage.DiskRead, i*4096)
		s.Before = []power.Reading{{At: s.At, Value: i * 1e6}}
		for j := range usage.Slot(3) {
			g := &usage.Group{Slot: j, Parent: j - 1, MemoryParent: j - 1, Life: workload.Life{ID: uint64(j + 1)}, Final: i == 2 && j == 2,
				Workload: workload.Workload{Kind: workload.Service, ID: workload.ID(rune('a' + j)), Key: "key", Name: "name", Path: "/path"}}
			g.Put(usage.CPU, i*1000)
			g.Put(usage.CPUUser, i*300)
			g.Put(usage.CPUSystem, i*200)
			g.Put(usage.Memory, 1<<20)
			if j == 2 {
				g.Guest = &usage.Guest{UUID: "uuid", Name: "vm", VCPUs: 1}
			}
			s.Groups = append(s.Groups, g)
		}
		acc.Tick(s)
		if i == 1 {
			acc.CloseWindow(&usage.Window{})
			acc.Checkpoint(nil, true)
			acc.MarkSaved()
		}
	}
	return acc
}

// TestRestoreRefusesPrefix checks that no record is accepted that ends early, wherever it ends.
func TestRestoreRefusesPrefix(t *testing.T) {
	acc := threeGroups()
	ends := acc.Ends(nil, nil)
	full := acc.Checkpoint(nil, true)
	for i := range full {
		if _, err := Restore("n", [][]byte{full[:i]}); !errors.Is(err, fault.ErrInvalid) {
			t.Fatalf("%d of %d bytes: %v", i, len(full), err)
		}
	}
	for i := range ends {
		if _, err := Restore("n", [][]byte{full, ends[:i]}); !errors.Is(err, fault.ErrInvalid) {
			t.Fatalf("ends, %d of %d bytes: %v", i, len(ends), err)
		}
	}
	if _, err := Restore("n", [][]byte{full, ends}); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore("n", [][]byte{full, append(ends, 0)}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("more than a record of ends: %v", err)
	}
}

// TestRestoreRefusesState spoils one value of accounts before they are saved.
func TestRestoreRefusesState(t *testing.T) {
	valid := map[string]bool{"nothing": true, "the most memory": true, "the largest share": true}
	for name, spoil := range map[string]func(acc *Accounts, root, upper *account){
		"nothing":                  func(*Accounts, *account, *account) {},
		"two roots":                func(_ *Accounts, _, upper *account) { upper.parent = nil },
		"no root":                  func(_ *Accounts, root, upper *account) { root.parent = upper },
		"a cycle":                  func(_ *Accounts, _, upper *account) { upper.parent = upper },
		"a cycle of memory":        func(_ *Accounts, _, upper *account) { upper.memory = upper },
		"a number not yet given":   func(acc *Accounts, _, upper *account) { upper.serial = acc.serial + 1 },
		"one number twice":         func(_ *Accounts, root, upper *account) { upper.serial = root.serial },
		"a time before the first":  func(acc *Accounts, _, _ *account) { acc.at = -1 },
		"negative memory":          func(acc *Accounts, _, _ *account) { acc.lastNode.MemFree = -1 },
		"the most memory":          func(acc *Accounts, _, _ *account) { acc.lastNode.MemTotal = 1<<53 - 1 },
		"too much memory":          func(acc *Accounts, _, _ *account) { acc.lastNode.MemTotal = 1 << 53 },
		"negative tasks":           func(acc *Accounts, _, _ *account) { acc.lastNode.Tasks = -1 },
		"energy of a group":        func(_ *Accounts, _, upper *account) { upper.reading.Has |= 1 << usage.EnergyPackage },
		"a negative level":         func(_ *Accounts, _, upper *account) { upper.level[levelSlot[usage.Memory]] = -1 },
		"a guest without an epoch": func(_ *Accounts, _, upper *account) { upper.guest = &guest{} },
		"a negative share":         func(_ *Accounts, _, upper *account) { upper.guest = &guest{share: power.Share{Epoch: "e", Idle: -1}} },
		"the largest share": func(_ *Accounts, _, upper *account) {
			upper.guest = &guest{share: power.Share{Epoch: "e", Active: 1<<61 - 1}}
		},
		"a share past all sums": func(_ *Accounts, _, upper *account) {
			upper.guest = &guest{share: power.Share{Epoch: "e", Active: 1<<61 + 1}}
		},
	} {
		acc := threeGroups()
		spoil(acc, acc.current[0], acc.current[1])
		if _, err := Restore("n", [][]byte{acc.Checkpoint(nil, true)}); (err == nil) != valid[name] || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Records of ends, and what no account can be made to write.
	for name, spoil := range map[string]func(a *account){
		"a negative amount": func(a *account) { a.window.Amount[usage.CPU] = -1 },
		"energy of a group": func(a *account) { a.reading.Apportioned |= 1 << usage.EnergyPackage },
	} {
		acc := threeGroups()
		spoil(acc.ended[0])
		if _, err := Restore("n", [][]byte{acc.Checkpoint(nil, true), acc.Ends(nil, nil)}); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("ends, %s: %v", name, err)
		}
	}
	for v, bad := range map[int64]bool{0: false, 1: true} {
		r := restorer{scanner: scanner{rest: binary.AppendVarint(nil, v)}}
		r.rest = append(r.rest, 0, 0)
		if r.resource(&restored{account: newAccount(account{})}, usage.EnergyRest); r.bad != bad {
			t.Errorf("a reading of %d uJ of a group is refused: %v", v, r.bad)
		}
	}
	for set, bad := range map[usage.Set]bool{usage.Metered: false, usage.Metered | 1: true, 1 << usage.CPUReserved: true, 1 << (usage.Limit % 64): true} {
		s := scanner{rest: binary.AppendUvarint(nil, uint64(set))}
		if s.set(); s.bad != bad {
			t.Errorf("a set of resources %b is refused: %v", set, s.bad)
		}
	}
	for hierarchy, bad := range map[uint64]bool{1<<32 - 1: false, 1 << 32: true} {
		s := scanner{rest: binary.AppendUvarint(binary.AppendUvarint(nil, hierarchy), 7)}
		if s.life(); s.bad != bad {
			t.Errorf("hierarchy %d is refused: %v", hierarchy, s.bad)
		}
		r := restorer{acc: New("n"), accounts: map[uint64]*restored{1: {account: newAccount(account{})}}, count: 1}
		r.rest = binary.AppendUvarint(binary.AppendUvarint(binary.AppendUvarint(nil, partHead), hierarchy), 7)
		r.rest = append(r.rest, byte(workload.Service), 0, 0, 0, 0)
		if r.account(1, 0); r.bad != bad {
			t.Errorf("hierarchy %d of an account is refused: %v", hierarchy, r.bad)
		}
	}
	acc := threeGroups()
	full := acc.Checkpoint(nil, true)
	twice := append(acc.appendAccount(full[:len(full)-1], acc.current[1], partAll, 0), 0)
	if _, err := Restore("n", [][]byte{twice}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("an account twice in a record: %v", err)
	}
}

// TestRestoreRefusesLongPause checks that a delta is refused if a level that it leaves out would have
// held too long for its integral.
func TestRestoreRefusesLongPause(t *testing.T) {
	for _, c := range []struct {
		seconds int64
		ok      bool
	}{{1 << 19, true}, {1 << 23, false}} {
		acc := threeGroups()
		acc.current[1].level[levelSlot[usage.Memory]] = 1 << 42
		records := [][]byte{acc.Checkpoint(nil, true)}
		acc.MarkSaved()
		acc.at += c.seconds * 1e9
		records = append(records, acc.Checkpoint(nil, false))
		if _, err := Restore("n", records); (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("4 TiB for %d s: %v", c.seconds, err)
		}
	}
}

// TestViolations checks that a window whose rows do not sum to its balance says so, for each
// resource.
func TestViolations(t *testing.T) {
	acc := threeGroups()
	acc.window.Whole[indexOf(usage.CPU)]++
	acc.window.Skew[indexOf(usage.Memory)]--
	var w usage.Window
	if acc.CloseWindow(&w); w.Balance.Violations != 2 {
		t.Errorf("%d violations, want 2", w.Balance.Violations)
	}
	if acc.CloseWindow(&w); w.Balance.Violations != 0 {
		t.Errorf("%d violations in the window after it, want none", w.Balance.Violations)
	}
}

// TestScan checks what is read of single values, and that after an error all are zero.
func TestScan(t *testing.T) {
	for in, want := range map[byte]bool{0: true, 1: true, 2: false} {
		s := scanner{rest: []byte{in}}
		if got := s.bool(); s.bad == want || want && got != (in == 1) {
			t.Errorf("bool of %d: %v, bad %v", in, got, s.bad)
		}
	}
	s := scanner{rest: []byte{1, 'a', 3, 'b', 'c'}}
	if got := s.string(); got != "a" || s.bad {
		t.Errorf("text: %q, bad %v", got, s.bad)
	}
	if got := s.string(); got != "" || !s.bad {
		t.Errorf("a text that is cut: %q, bad %v", got, s.bad)
	}
	if a, b, c, d, e := s.byte(), s.bool(), s.uint(), s.int(), s.string(); a != 0 || b || c != 0 || d != 0 || e != "" {
		t.Errorf("after an error: %v, %v, %v, %v, %q", a, b, c, d, e)
	}
	s = scanner{rest: []byte{2, 'x', 'y'}}
	if got := s.string(); got != "xy" || s.bad || len(s.rest) > 0 {
		t.Errorf("a text at the end: %q, bad %v", got, s.bad)
	}
	for _, halves := range [][2]uint64{{0, 0}, {0, 1}, {0, 1<<63 - 1}, {0, 1 << 63}, {0, 1<<64 - 1}, {1, 0}, {7, 1 << 63}, {1<<62 - 1, 1<<64 - 1}} {
		s := scanner{rest: appendSum(nil, unit.SumOf(halves[0], halves[1]))}
		hi, lo := s.sum().Halves()
		if hi != halves[0] || lo != halves[1] || s.bad || len(s.rest) > 0 {
			t.Errorf("sum %x is read as %x %x", halves, hi, lo)
		}
	}
	if n := len(appendSum(nil, unit.SumOf(0, 63))); n != 1 {
		t.Errorf("a small sum has %d bytes", n)
	}
}

// TestTotalAdd checks that amounts add up and peaks do not, and when presence or quality change.
func TestTotalAdd(t *testing.T) {
	var sum total
	for i, c := range []struct {
		cpu, peak int64
		q         usage.Quality
		changed   bool
		want      [2]int64
	}{
		{5, 7, usage.Measured, true, [2]int64{5, 7}},
		{5, 3, usage.Measured, false, [2]int64{10, 7}},
		{0, 9, usage.Apportioned, true, [2]int64{10, 9}},
		{1, 9, usage.Measured, false, [2]int64{11, 9}},
	} {
		var u usage.Usage
		u.Put(usage.CPU, c.cpu, c.q)
		u.Put(usage.MemoryPeak, c.peak, usage.Measured)
		changed := sum.add(&u)
		if got := [2]int64{sum.sum(usage.CPU).Int64(), sum.sum(usage.MemoryPeak).Int64()}; got != c.want || changed != c.changed {
			t.Errorf("%d: %v, changed %v; want %v, %v", i, got, changed, c.want, c.changed)
		}
	}
	var to [usage.Limit]int64
	if has := sum.row(&to); has != 1<<usage.CPU || to[usage.CPU] != 11 || to[usage.MemoryPeak] != 0 {
		t.Errorf("the row has %v of %b", to, has)
	}
}

// TestDeltaAtOnce checks that a delta of the same tick as the record before is accepted.
func TestDeltaAtOnce(t *testing.T) {
	acc := threeGroups()
	records := [][]byte{acc.Checkpoint(nil, true)}
	acc.MarkSaved()
	records = append(records, acc.Checkpoint(nil, false))
	if _, err := Restore("n", records); err != nil {
		t.Error(err)
	}
}

// TestForget checks that nothing holds an account that ended, or its handover, once its windows are
// closed.
func TestForget(t *testing.T) {
	acc := threeGroups()
	ended := weak.Make(acc.current[2])
	handed := weak.Make(&acc.current[2].guest.shares[0])
	var w usage.Window
	acc.CloseWindow(&w)
	w = usage.Window{}
	for i := range int64(2) {
		s := &usage.Snapshot{Boot: "b", At: (i + 4) * 1e9, Mono: (i + 4) * 1e9, Node: usage.Node{CPUs: 2, MemTotal: 1 << 40, MemFree: 1 << 39}}
		for j := range usage.Slot(2) { // those above live on
			g := &usage.Group{Slot: j, Parent: j - 1, MemoryParent: j - 1, Life: workload.Life{ID: uint64(j + 1)}}
			g.Put(usage.CPU, 9000)
			s.Groups = append(s.Groups, g)
		}
		acc.Tick(s)
		acc.CloseWindow(&w)
	}
	runtime.GC()
	if ended.Value() != nil || handed.Value() != nil {
		t.Errorf("an account is held: %v, and its shares: %v", ended.Value() != nil, handed.Value() != nil)
	}
	runtime.KeepAlive(acc)
}

// TestSavedBeforeTick checks that accounts without a tick cannot be the base of a delta.
func TestSavedBeforeTick(t *testing.T) {
	acc := New("n")
	acc.Checkpoint(nil, false)
	acc.MarkSaved()
	if acc.CanRecordEnds() {
		t.Error("ends can be recorded before the first tick")
	}
	acc.Tick(&usage.Snapshot{Boot: "b", At: 1e9, Mono: 1e9, Groups: []*usage.Group{{Parent: usage.NoSlot}}})
	if rec := acc.Checkpoint(nil, false); rec[1] != recordFull {
		t.Errorf("the first record of a boot is %q", rec[1])
	}
}
