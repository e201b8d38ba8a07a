package attribute_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

const watt = int64(1_000_000)

// packages are metered, and draw 40 W when nothing runs.
var packages = energy.Config{Meters: allMeters[:1], Static: [power.DomainLimit]int64{power.Package: 40 * watt}}

// TestGuestsHaveIdle checks that each virtual machine gets its CPUs' part of 40 W of idle power, of
// all CPUs or of all virtual CPUs where those are more. One that appeared in this tick gets
// nothing.
func TestGuestsHaveIdle(t *testing.T) {
	for _, c := range []struct {
		vcpus [2]int
		late  bool
		want  [3]int64 // of the two, and of idle, in W
	}{
		{[2]int{1, 2}, false, [3]int64{10, 20, 10}},
		{[2]int{0, 2}, false, [3]int64{0, 20, 20}},
		{[2]int{1, 0}, false, [3]int64{10, 0, 30}},
		{[2]int{-1, 0}, false, [3]int64{0, 0, 40}},
		{[2]int{4, 4}, false, [3]int64{20, 20, 0}},
		{[2]int{3, 5}, false, [3]int64{15, 25, 0}},
		{[2]int{1 << 40, 1}, false, [3]int64{40, 0, 0}},
		{[2]int{1, 2}, true, [3]int64{10, 0, 30}},
	} {
		acc := attribute.New("n")
		acc.SetMeters(energy.New(packages))
		var w usage.Window
		for i := range int64(3) {
			s := two((i+1)*second, i*2*second, i*second, i*second/2)
			s.Node.CPUs = 4
			for j := range c.vcpus {
				if j == 0 || !c.late || i == 2 {
					s.Groups[j+1].Guest = &usage.Guest{UUID: fmt.Sprint("uuid ", j), Name: "vm", VCPUs: c.vcpus[j]}
				}
			}
			s.Before = []power.Reading{{At: s.At, Value: i * 100 * watt}}
			acc.CloseWindow(&w)
			if bal := acc.Tick(s); !bal.IsBalanced(usage.EnergyPackage) {
				t.Errorf("%v: the parts do not sum to the whole: %+v", c.vcpus, bal)
			}
		}
		acc.CloseWindow(&w)
		idle := map[string]int64{}
		var all int64
		for i := range w.Rows {
			u := &w.Rows[i].Usage
			idle[w.Rows[i].Workload.Name] = u.Amount[usage.EnergyIdle]
			all += u.Amount[usage.EnergyPackage]
			if u.Present.Has(usage.EnergyIdle) != (w.Rows[i].Workload.Name != "0") {
				t.Errorf("%v: row %q, idle energy is present: %v", c.vcpus, w.Rows[i].Workload.Name, u.Present.Has(usage.EnergyIdle))
			}
		}
		for i, name := range []string{"1", "2", "idle"} {
			if got, want := idle[name], c.want[i]*watt; got > want+watt/1000 || got < want-watt/1000 {
				t.Errorf("%v: %q has %d uJ of idle energy, want %d", c.vcpus, name, got, want)
			}
		}
		if got := idle["2"]; c.vcpus[0] == 1<<40 && got != 38 && got != 39 {
			t.Errorf("beside all CPUs that a machine can have, one has %d uJ of 40 J, want 38", got)
		}
		if all != 100*watt || w.Balance.Violations > 0 {
			t.Errorf("%v: %d uJ in all, %d violations", c.vcpus, all, w.Balance.Violations)
		}
	}
}

// TestGuestsHaveIdleError checks that the error of idle energy is divided likewise.
func TestGuestsHaveIdleError(t *testing.T) {
	acc := attribute.New("n")
	acc.SetMeters(energy.New(packages))
	for i := range int64(3) {
		s := two((i+1)*second, i*2*second, 0, 0) // without activity there is no other energy
		s.Node.CPUs = 4
		s.Groups[1].Guest, s.Groups[2].Guest = &usage.Guest{UUID: "a", VCPUs: 1}, &usage.Guest{UUID: "b", VCPUs: 2}
		s.Before = []power.Reading{{At: s.At, Value: i * 100 * watt}}
		acc.Tick(s)
	}
	var w usage.Window
	acc.CloseWindow(&w)
	off := map[string]int64{}
	for i := range w.Rows {
		off[w.Rows[i].Workload.Name] = w.Rows[i].Usage.Amount[usage.EnergyError]
	}
	one := off["idle"]
	if d1, d2 := off["1"]-one, off["2"]-2*one; one <= 0 || max(d1, -d1) > 2 || max(d2, -d2) > 4 {
		t.Errorf("errors of idle energy are %v, want 1 to 2 to 1", off)
	}
}

// TestGuestWithoutName checks that a delta with a new virtual machine is complete even if that has no
// name.
func TestGuestWithoutName(t *testing.T) {
	acc := attribute.New("n")
	acc.SetMeters(energy.New(packages))
	var v recordLog
	for i := range int64(3) {
		s := two((i+1)*second, i*2*second, i*second)
		if i > 0 {
			s.Groups[1].Guest = &usage.Guest{UUID: "a", VCPUs: 1}
		}
		s.Before = []power.Reading{{At: s.At, Value: i * 100 * watt}}
		acc.Tick(s)
		if i != 1 {
			v.save(acc, false)
		}
	}
	again := v.restore(t)
	if len(v.records) != 2 || !bytes.Equal(again.Checkpoint(nil, true), acc.Checkpoint(nil, true)) {
		t.Errorf("accounts restored from %d records differ from those saved", len(v.records))
	}
}

// TestEpochs checks that a virtual machine gets a new epoch whenever its count restarts, and keeps
// it when accounts are restored, even from before it was seen.
func TestEpochs(t *testing.T) {
	seen := map[string]string{}
	begin := func(boot string, at int64) *attribute.Accounts {
		acc := attribute.New("n")
		acc.SetMeters(energy.New(packages))
		s := two(at, 0, 0)
		s.Boot = boot
		acc.Tick(s)
		return acc
	}
	epoch := func(acc *attribute.Accounts, boot string, at int64, uuid string, life uint64) string {
		s := two(at, at, at/2)
		s.Boot, s.Groups[1].Life.ID, s.Groups[1].New = boot, life, life != 2
		s.Groups[1].Guest = &usage.Guest{UUID: uuid, VCPUs: 1}
		s.Before = []power.Reading{{At: at, Value: at / 1000}}
		acc.Tick(s)
		s.At, s.Mono, s.Before = s.At+second, s.Mono+second, []power.Reading{{At: at + second, Value: at/1000 + 9}}
		acc.Tick(s)
		return acc.Guests()[0].Share.Epoch
	}
	other := func(what, epoch string) {
		t.Helper()
		if was := seen[epoch]; was != "" || len(epoch) != 26 {
			t.Errorf("%s has the same epoch %q as %q", what, epoch, was)
		}
		seen[epoch] = what
	}
	acc := begin("b", second)
	var v recordLog
	v.save(acc, true)
	first := epoch(acc, "b", 2*second, "one", 2)
	other("the first", first)
	again := v.restore(t)
	again.SetMeters(energy.New(packages))
	if got := epoch(again, "b", 9*second, "one", 2); got != first {
		t.Errorf("epoch after a restart is %q, before %q", got, first)
	}
	other("another in its place", epoch(acc, "b", 4*second, "two", 2))
	other("the first in its place again", epoch(acc, "b", 6*second, "one", 2))
	other("another life", epoch(acc, "b", 8*second, "one", 7))
	other("another beginning", epoch(begin("b", second+1), "b", 2*second, "one", 2))
	other("another boot", epoch(begin("c", second), "c", 2*second, "one", 2))
	for i := range int64(2) { // the second time the first one's accounts were not saved
		booted := v.restore(t)
		booted.SetMeters(energy.New(packages))
		other(fmt.Sprintf("the boot after, at %d", 3+i), epoch(booted, "d", (3+i)*second, "one", 2))
	}
}

// A guestForest puts virtual machines into groups of a forest.
type guestForest struct {
	t      *rapid.T
	guests map[uint64]*usage.Guest // by life
	next   int
}

func (l *guestForest) show(s *usage.Snapshot) *usage.Snapshot {
	for _, g := range s.Groups[1:] {
		switch rapid.IntRange(0, 12).Draw(l.t, "guest") {
		case 0:
			l.next++
			l.guests[g.Life.ID] = &usage.Guest{UUID: fmt.Sprint("uuid ", l.next), Name: "vm", VCPUs: rapid.IntRange(-1, 6).Draw(l.t, "vcpus")}
		case 1: // hot plugged
			if was := l.guests[g.Life.ID]; was != nil {
				l.guests[g.Life.ID] = &usage.Guest{UUID: was.UUID, Name: "vm, renamed", VCPUs: rapid.IntRange(0, 6).Draw(l.t, "vcpus")}
			}
		case 2:
			continue // not detected this time
		}
		g.Guest = l.guests[g.Life.ID]
	}
	return s
}

// A guestTotal is what the accounts reported of one virtual machine.
type guestTotal struct {
	share  power.Share
	opened power.Share
	window int64 // uJ booked in it
}

// TestGuestsAreGivenWhatIsBooked checks, for any workloads, virtual machines, meters, failures and
// restarts between windows: the parts of each tick and window sum to the metered energy, a virtual
// machine is given in each tick what its row is booked, and a window hands over what its ticks
// gave.
func TestGuestsAreGivenWhatIsBooked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, p := &forest{t: t, used: map[string]int64{}, blurry: map[string]bool{}}, newMeterPanel(t, rapid.Bool().Draw(t, "sick"))
		f.use(f.add(nil, 0, false), 1e12)
		l := &guestForest{t: t, guests: map[uint64]*usage.Guest{}}
		blind := rapid.Bool().Draw(t, "no memory")
		show := func() *usage.Snapshot {
			s := l.show(p.show(f.snapshot()))
			if blind { // without memory no guest has a part of the idle energy
				s.Node.MemTotal, s.Node.MemFree = 0, 0
				for _, g := range s.Groups {
					g.Has &^= usage.SetOf(usage.Memory)
				}
			}
			return s
		}
		acc := attribute.New("n")
		acc.SetMeters(energy.New(p.config))
		src := &source{slots: map[uint64]usage.Slot{}, base: 1}
		acc.Tick(src.show(show()))
		var v recordLog
		var w usage.Window
		known, saved := map[string]guestTotal{}, map[string]guestTotal{} // by epoch
		var whole usage.Shares
		for range rapid.IntRange(1, 25).Draw(t, "ticks") {
			f.step()
			snap := src.show(show())
			bal := acc.Tick(snap)
			for i, r := range usage.Wholes {
				if whole[i] += bal.Whole[i]; !bal.IsBalanced(r) {
					t.Fatalf("%v: the parts do not sum to the whole: %+v", r, bal)
				}
			}
			checkGuests(t, acc, snap, known)
			if rapid.Bool().Draw(t, "window goes on") {
				continue
			}
			acc.CloseWindow(&w)
			sum := sumEnergies(t, &w)
			for i, r := range usage.Wholes {
				if r >= usage.EnergyPackage && (sum[r] != whole[i] || w.Balance.Violations > 0) {
					t.Fatalf("%v: the ticks of the window booked %d, its rows hold %d; %d violations", r, whole[i], sum[r], w.Balance.Violations)
				}
			}
			whole = usage.Shares{}
			checkHandovers(t, &w, known)
			switch rapid.IntRange(0, 3).Draw(t, "then") {
			case 0, 1:
				v.save(acc, rapid.Bool().Draw(t, "full"))
				saved = maps.Clone(known)
			case 2:
				if len(v.records) == 0 {
					continue
				}
				if rapid.Bool().Draw(t, "saved before") {
					v.save(acc, false)
					saved = maps.Clone(known)
					checkSame(t, acc, v.restore(t))
				}
				acc = v.restore(t)
				acc.SetMeters(energy.New(p.config))
				src.restart()
				known = maps.Clone(saved)
			}
		}
	})
}

// checkGuests compares what was given in a tick with what was booked in it.
func checkGuests(t *rapid.T, acc *attribute.Accounts, s *usage.Snapshot, known map[string]guestTotal) {
	slots := map[workload.ID]usage.Slot{}
	shown := 0
	for _, g := range s.Groups {
		slots[g.Workload.ID] = g.Slot
		if g.Guest != nil {
			shown++
		}
	}
	list := acc.Guests()
	if len(list) != 0 && len(list) != shown {
		t.Fatalf("%d virtual machines of %d", len(list), shown)
	}
	for _, g := range list {
		was, is := known[g.Share.Epoch], g.Share
		if is.Guest != g.Guest.UUID || is.Epoch == "" || is.At != s.At || is.N <= was.share.N || is.N < is.At/1e6 {
			t.Fatalf("share %+v of %+v after %+v", is, g.Guest, was.share)
		}
		u, ok := acc.Share(slots[g.Workload])
		if !ok { // it ended in this tick
			continue
		}
		if was.share.At != s.At-second {
			continue // not shown recently, or never
		}
		var all int64
		for _, r := range usage.Energies {
			all += u.Amount[r]
		}
		if got := is.Energy() - was.share.Energy(); got != all {
			t.Fatalf("%s was given %d uJ and is booked %d", is.Guest, got, all)
		}
		if got := is.Idle - was.share.Idle; got != u.Amount[usage.EnergyIdle] || got > all {
			t.Fatalf("%s was given %d uJ of idle energy and is booked %d of %d", is.Guest, got, u.Amount[usage.EnergyIdle], all)
		}
		if got := is.Error - was.share.Error; got != u.Amount[usage.EnergyError] {
			t.Fatalf("%s is off by %d uJ more and is booked %d", is.Guest, got, u.Amount[usage.EnergyError])
		}
		if got := is.Modelled - was.share.Modelled; got < 0 || got > all || got > 0 && all > 0 && worst(&u) != usage.Modelled {
			t.Fatalf("of %d uJ %d are modelled, and the row is %v", all, got, worst(&u))
		}
	}
	for _, g := range list {
		is := known[g.Share.Epoch]
		is.window += g.Share.Energy() - is.share.Energy()
		is.share = g.Share
		known[g.Share.Epoch] = is
	}
}

func worst(u *usage.Usage) (q usage.Quality) {
	for _, r := range usage.Energies {
		q = max(q, u.Quality.Get(r))
	}
	return q
}

// checkHandovers compares a window's handovers with what its ticks gave.
func checkHandovers(t *rapid.T, w *usage.Window, known map[string]guestTotal) {
	handed := map[string]bool{}
	for _, h := range w.Handovers {
		last := h.Shares[len(h.Shares)-1]
		k := known[last.Epoch]
		if handed[last.Epoch] || h.Guest != last.Guest || last.N < k.share.N || h.Workload == "" || h.Name == "" {
			t.Fatalf("handed over %+v, given %+v", h, k)
		}
		handed[last.Epoch] = true
		if h.Opened.Epoch != "" && (h.Opened.Epoch != last.Epoch || h.Opened != k.opened && k.opened.Epoch != "") {
			t.Fatalf("opened with %+v, the window before closed with %+v", h.Opened, k.opened)
		}
		if got := last.Energy() - h.Opened.Energy(); got != h.Booked {
			t.Fatalf("%d uJ more than before, but %d booked", got, h.Booked)
		}
		if k.share == last && h.Booked != k.window {
			t.Fatalf("%d uJ booked in the window, %d given", h.Booked, k.window)
		}
		if !slices.IsSortedFunc(h.Shares, func(a, b power.Share) int { return int(a.N - b.N) }) {
			t.Fatalf("shares out of order: %+v", h.Shares)
		}
		k.opened, k.share, k.window = last, last, 0
		known[last.Epoch] = k
	}
	for epoch, k := range known {
		if k.window != 0 {
			t.Fatalf("epoch %s was given %d uJ, but nothing was handed over", epoch, k.window)
		}
	}
}
