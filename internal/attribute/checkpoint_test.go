package attribute_test

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A recordLog keeps checkpoints like a spool.
type recordLog struct{ records [][]byte }

func (v *recordLog) save(acc *attribute.Accounts, full bool) {
	rec := acc.Checkpoint(nil, full)
	if rec[1] == 'F' {
		v.records = nil
	}
	v.records = append(v.records, rec)
	acc.MarkSaved()
}

func (v *recordLog) restore(t interface {
	Helper()
	Fatal(...any)
}) *attribute.Accounts {
	t.Helper()
	acc, err := attribute.Restore("n", v.records)
	if err != nil {
		t.Fatal(err)
	}
	return acc
}

// A source shows a forest: after a restart its slots differ, and it reports all groups as new and
// none as born.
type source struct {
	slots map[uint64]usage.Slot // by life
	base  usage.Slot
	fresh bool
}

func (s *source) restart() {
	*s = source{slots: map[uint64]usage.Slot{}, base: s.base + 3, fresh: true}
}

func (s *source) show(snap *usage.Snapshot) *usage.Snapshot {
	out := *snap
	out.Groups = nil
	slots := map[usage.Slot]usage.Slot{usage.NoSlot: usage.NoSlot}
	for _, g := range snap.Groups {
		to, ok := s.slots[g.Life.ID]
		if !ok {
			if to = s.base + usage.Slot(len(s.slots)); len(s.slots) == 0 || g.Slot == usage.Root {
				to = usage.Root
			}
			s.slots[g.Life.ID] = to
		}
		slots[g.Slot] = to
		c := *g
		c.Slot, c.Parent, c.MemoryParent = to, slots[g.Parent], slots[g.MemoryParent]
		if s.fresh {
			c.New, c.Born = true, false
		}
		out.Groups = append(out.Groups, &c)
	}
	s.fresh = false
	return &out
}

// counted is the part of a window's rows that must be equal with and without a restart.
type counted struct {
	Name        string
	Used, Total map[string]int64
	Ended       bool
}

func countedOf(w *usage.Window) map[workload.ID]counted {
	rows := map[workload.ID]counted{}
	for i := range w.Rows {
		r := &w.Rows[i]
		c := counted{r.Workload.Name, map[string]int64{}, map[string]int64{}, r.Ended}
		for _, res := range []usage.Resource{usage.CPU, usage.DiskWritten, usage.Processes} {
			c.Used[res.String()], c.Total[res.String()] = r.Usage.Amount[res], r.Total[res]
		}
		rows[r.Workload.ID] = c
	}
	return rows
}

// TestRestartsChangeNothing checks that restarts between two windows, whatever is born, ends and
// cannot be read meanwhile, change no amount booked to any workload in any window.
func TestRestartsChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &forest{t: t, used: map[string]int64{}, blurry: map[string]bool{}}
		f.use(f.add(nil, 0, false), 1e12)
		for range rapid.IntRange(0, 5).Draw(t, "groups") {
			g := f.add(f.groups[rapid.IntRange(0, len(f.groups)-1).Draw(t, "parent")], 0, false)
			f.use(g, rapid.Int64Range(0, 1e12).Draw(t, "past"))
		}
		straight, broken := attribute.New("n"), attribute.New("n")
		src := &source{slots: map[uint64]usage.Slot{}, base: 1}
		var v recordLog
		first := f.snapshot()
		straight.Tick(first)
		broken.Tick(src.show(first))
		resumed := false
		var want, got usage.Window
		for range rapid.IntRange(1, 25).Draw(t, "ticks") {
			f.calm = resumed
			f.step()
			snap := f.snapshot()
			straight.Tick(snap)
			bal := broken.Tick(src.show(snap))
			for _, r := range usage.Wholes {
				if !bal.IsBalanced(r) {
					t.Fatalf("parts of %v do not sum to the whole: %+v", r, bal)
				}
			}
			if resumed && rapid.Bool().Draw(t, "window goes on") || !resumed && rapid.Bool().Draw(t, "window goes on too") {
				resumed = false
				continue
			}
			straight.CloseWindow(&want)
			broken.CloseWindow(&got)
			if a, b := countedOf(&want), countedOf(&got); !reflect.DeepEqual(a, b) { // cmp.Diff takes longer
				t.Fatalf("window to %d, without restarts and with:\n%s", want.End, cmp.Diff(a, b))
			}
			if got.Balance.Violations > 0 || got.Start != want.Start || got.End != want.End {
				t.Fatalf("window from %d to %d, %d violations; want from %d to %d", got.Start, got.End, got.Balance.Violations, want.Start, want.End)
			}
			resumed = false
			switch rapid.IntRange(0, 3).Draw(t, "then") {
			case 0: // saving failed
				_ = broken.Checkpoint(nil, false)
			case 1:
				v.save(broken, rapid.Bool().Draw(t, "full"))
			case 2:
				v.save(broken, rapid.Bool().Draw(t, "full before the end"))
				checkSame(t, broken, v.restore(t))
				broken, resumed = v.restore(t), true
				src.restart()
			}
		}
	})
}

// checkSame checks that a full record and deltas restore the same accounts.
func checkSame(t *rapid.T, live, restored *attribute.Accounts) {
	t.Helper()
	again, err := attribute.Restore("n", [][]byte{live.Checkpoint(nil, true)})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.Checkpoint(nil, true), restored.Checkpoint(nil, true)) {
		t.Fatal("accounts restored from deltas differ from those restored from a full record")
	}
}

func TestRestoreRefuses(t *testing.T) {
	acc := attribute.New("n")
	var w usage.Window
	var recs [][]byte
	for i := range int64(3) {
		acc.Tick(two((i+1)*1e9, i*900, i*500, i*100))
		acc.CloseWindow(&w)
		recs = append(recs, acc.Checkpoint(nil, false))
		acc.MarkSaved()
	}
	restore := func(recs ...[]byte) error {
		_, err := attribute.Restore("n", recs)
		return err
	}
	if err := restore(recs...); err != nil {
		t.Fatal(err)
	}
	other := attribute.New("m")
	other.Tick(two(1e9, 1, 1, 1))
	for name, err := range map[string]error{
		"nothing":            restore(nil),
		"version":            restore([]byte{99, 'F'}),
		"kind":               restore([]byte{1, 'X'}),
		"delta first":        restore(recs[1]),
		"delta missing":      restore(recs[0], recs[2]),
		"delta twice":        restore(recs[0], recs[1], recs[1]),
		"cut short":          restore(recs[0][:len(recs[0])-3]),
		"more than a record": restore(append(bytes.Clone(recs[0]), 0)),
		"of another node":    restore(other.Checkpoint(nil, true)),
	} {
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if acc, err := attribute.Restore("n", nil); err != nil || acc == nil {
		t.Errorf("no records: %v", err)
	}
}

// TestRestoreFull checks that a full record replaces all records before it, also those of another boot
// that ran for longer.
func TestRestoreFull(t *testing.T) {
	var recs [][]byte
	for i, boot := range []string{"b", "c"} {
		acc := attribute.New("n")
		for at := range 9 - 5*int64(i) {
			s := two((at+1)*second, at*900, at*500, at*100)
			s.Boot = boot
			acc.Tick(s)
			acc.CloseWindow(&usage.Window{})
			recs = append(recs, acc.Checkpoint(nil, at%2 == 0))
			acc.MarkSaved()
		}
	}
	for i := range recs {
		acc, err := attribute.Restore("n", recs[:i+1])
		if err != nil {
			t.Fatalf("%d records: %v", i+1, err)
		}
		last := i // the latest full one
		for recs[last][1] != 'F' {
			last--
		}
		want, err := attribute.Restore("n", recs[last:i+1])
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(acc.Checkpoint(nil, true), want.Checkpoint(nil, true)) {
			t.Errorf("the first %d records restore other accounts than those from the latest full one", i+1)
		}
	}
}

// FuzzRestore checks that any bytes are either refused or give usable accounts.
func FuzzRestore(f *testing.F) {
	acc := attribute.New("n")
	acc.SetMeters(energy.New(packages))
	var w usage.Window
	for i := range int64(3) {
		s := two((i+1)*1e9, i*900, i*500, i*100)
		s.Groups[1].Put(usage.Memory, 1<<20)
		s.Groups[1].Put(usage.CPUUser, i*300)
		s.Groups[1].Put(usage.CPUSystem, i*200)
		s.Groups[2].Guest = &usage.Guest{UUID: "a", Name: "vm", VCPUs: 1}
		s.Before = []power.Reading{{At: s.At, Value: i * watt}}
		acc.Tick(s)
		acc.CloseWindow(&w)
		f.Add(acc.Checkpoint(nil, true), acc.Checkpoint(nil, false))
		acc.MarkSaved()
	}
	f.Fuzz(func(t *testing.T, full, delta []byte) {
		for _, recs := range [][][]byte{{full}, {full, delta}} {
			acc, err := attribute.Restore("n", recs)
			if err != nil {
				if !errors.Is(err, fault.ErrInvalid) {
					t.Fatal(err)
				}
				continue
			}
			rec := acc.Checkpoint(nil, true)
			again, err := attribute.Restore("n", [][]byte{rec})
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(again.Checkpoint(nil, true), rec) {
				t.Error("saving restored accounts changes them")
			}
			var w usage.Window
			acc.SetMeters(energy.New(energy.Config{Meters: append(allMeters[:1:1], power.Meter{Name: "host", Level: power.Box, Domain: power.Rest, Kind: power.Energy, From: power.Host})}))
			s := two(1<<40, 5000, 1000, 500)
			s.Groups[1].Guest = &usage.Guest{UUID: "b", VCPUs: 1}
			acc.Tick(s)
			acc.CloseWindow(&w)
		}
	})
}
