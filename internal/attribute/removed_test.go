package attribute_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestAccountsDevicesRemoved checks a volume that is attached, written and removed three times
// beside a disk that stays: all of it is booked, to the group below another one that wrote it.
func TestAccountsDevicesRemoved(t *testing.T) {
	const gb = 1e9
	acc := attribute.New("n")
	at, base := int64(0), int64(100*gb)
	booked := map[string]int64{}
	tick := func(volume, removed int64) {
		at += second
		s := two(at, 0, 0, 0)
		for _, g := range s.Groups[1:] {
			g.Put(usage.DiskWritten, base+volume)
			if removed > 0 {
				g.Removed = map[usage.Resource]int64{usage.DiskWritten: removed}
			}
		}
		s.Node.Total.Put(usage.DiskWritten, base+volume+5)
		s.Node.Removed = s.Groups[2].Removed
		b := acc.Tick(s)
		if !b.IsBalanced(usage.DiskWritten) {
			t.Errorf("%d s: %+v", at/second, b)
		}
		var w usage.Window
		acc.CloseWindow(&w)
		for _, r := range w.Rows {
			booked[r.Workload.Name] += r.Usage.Amount[usage.DiskWritten]
		}
		booked["machine"] += w.Total.Amount[usage.DiskWritten]
	}
	tick(0, 0)
	for range 3 {
		tick(25*gb, 0)
		tick(40*gb, 0)
		base += gb // the disk that stays
		tick(0, 40*gb)
	}
	if want := int64(123 * gb); booked["2"] != want || booked["1"] != 0 || booked["0"] != 0 || booked["machine"] != want {
		t.Errorf("booked %v, want %d to the lower group and the machine", booked, want)
	}
}

// TestAccountsDeviceRemovedEarly checks a device that was removed after a group was born, before
// the group was in a booked snapshot: its use is booked once, above the group.
func TestAccountsDeviceRemovedEarly(t *testing.T) {
	acc := attribute.New("n")
	show := func(at, upper, lower, upperLost, lowerLost int64) *usage.Snapshot {
		s := two(at, 0, 0, 0)
		s.Groups[1].Put(usage.DiskRead, upper)
		s.Groups[2].Put(usage.DiskRead, lower)
		s.Groups[1].Removed = map[usage.Resource]int64{usage.DiskRead: upperLost}
		s.Groups[2].Removed = map[usage.Resource]int64{usage.DiskRead: lowerLost}
		return s
	}
	first := show(1*second, 100, 0, 0, 0)
	first.Groups = first.Groups[:2]
	acc.Tick(first)
	shares(acc, usage.DiskRead)
	s := show(2*second, 130, 20, 50, 40) // the lower group read 20, and 40 from the device; the upper one 10 from each
	s.Groups[2].New, s.Groups[2].Born = true, true
	acc.Tick(s)
	if got := shares(acc, usage.DiskRead); !slices.Equal(got, []int64{0, 60, 20}) {
		t.Errorf("booked %v, want 60 to the upper group and 20 to the lower", got)
	}
}

// TestAccountsDeviceRemovedAsMuch checks a group that was idle and then read from one device as much as
// another one, which was removed, takes out of its counter.
func TestAccountsDeviceRemovedAsMuch(t *testing.T) {
	acc := attribute.New("n")
	for i := range int64(5) {
		s := two((i+1)*second, 0, 0)
		s.Groups[1].Put(usage.DiskRead, 100)
		if i == 4 {
			s.Groups[1].Removed = map[usage.Resource]int64{usage.DiskRead: 40}
		}
		acc.Tick(s)
		if i == 3 && acc.DormantAccounts() != 1 {
			t.Fatalf("%d accounts are dormant, want 1", acc.DormantAccounts())
		}
	}
	if got := shares(acc, usage.DiskRead); !slices.Equal(got, []int64{0, 40}) {
		t.Errorf("booked %v, want 40 to the group", got)
	}
}

// A rack is a machine with groups below each other and block devices that come and go.
type rack struct {
	t       *rapid.T
	groups  []*writer // parents before children
	lives   uint64
	now     int64
	removed []int // devices
	fresh   bool  // the agent has just started
	used    map[string]int64
	all     int64 // written in this step
}

type writer struct {
	name      string
	life      uint64
	slot      usage.Slot
	parent    *writer
	written   [3]int64 // by device, with all groups below, ended ones too
	shown     [3]int64
	everShown bool
	dead      bool
}

func (r *rack) add(parent *writer) *writer {
	r.lives++
	w := &writer{name: fmt.Sprintf("g%d", r.lives), life: r.lives, parent: parent}
	for slices.ContainsFunc(r.groups, func(o *writer) bool { return o.slot == w.slot }) {
		w.slot++
	}
	r.groups = append(r.groups, w)
	return w
}

// step lets groups be born and end, devices be removed, and the others be written.
func (r *rack) step() {
	t := r.t
	r.now += second
	r.removed, r.all = nil, 0
	for dev := 1; dev < 3 && !r.fresh; dev++ {
		if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
			r.removed = append(r.removed, dev)
			for _, w := range r.groups {
				w.written[dev] = 0
			}
		}
	}
	if rapid.Bool().Draw(t, "birth") && len(r.groups) < 8 {
		r.add(r.groups[rapid.IntRange(0, len(r.groups)-1).Draw(t, "parent")])
	}
	for _, w := range r.groups {
		leaf := !slices.ContainsFunc(r.groups, func(o *writer) bool { return o.parent == w })
		if w.parent != nil && leaf && rapid.IntRange(0, 4).Draw(t, "ends") == 0 {
			w.dead = true // with its latest reading
			if w.everShown {
				continue
			}
		}
		dev, n := rapid.IntRange(0, 2).Draw(t, "device"), rapid.Int64Range(0, 1000).Draw(t, "bytes")
		r.used[w.name] += n
		r.all += n
		for up := w; up != nil; up = up.parent {
			up.written[dev] += n
		}
	}
}

func (r *rack) show() *usage.Snapshot {
	s := &usage.Snapshot{Boot: "b", At: r.now, Mono: r.now, Node: usage.Node{CPUs: 2, MemTotal: 1 << 40, MemFree: 1 << 39}}
	for i, w := range r.groups {
		g := &usage.Group{Slot: w.slot, Parent: usage.NoSlot, MemoryParent: usage.NoSlot, New: r.fresh || !w.everShown, Born: !r.fresh && !w.everShown, Life: workload.Life{ID: w.life},
			Workload: workload.Workload{ID: workload.ID(w.name), Name: w.name}, Final: w.dead, Exact: true}
		g.Put(usage.CPU, 0)
		to, removed := &g.Reading, &g.Removed
		if i == 0 { // the root
			to, removed = &s.Node.Total, &s.Node.Removed
		} else {
			g.Parent, g.MemoryParent = w.parent.slot, w.parent.slot
		}
		s.Groups = append(s.Groups, g)
		if w.dead && w.everShown {
			to.Put(usage.DiskWritten, w.shown[0]+w.shown[1]+w.shown[2])
			continue
		}
		to.Put(usage.DiskWritten, w.written[0]+w.written[1]+w.written[2])
		for _, dev := range r.removed {
			if w.shown[dev] > 0 {
				if *removed == nil {
					*removed = map[usage.Resource]int64{}
				}
				(*removed)[usage.DiskWritten] += w.shown[dev]
			}
		}
		w.shown, w.everShown = w.written, true
	}
	r.groups = slices.DeleteFunc(r.groups, func(w *writer) bool { return w.dead })
	r.fresh = false
	return s
}

// TestAccountsBookRemovedDevices checks that each group is booked exactly what it wrote, and the
// machine the sum, while groups and devices come and go and the agent restarts.
func TestAccountsBookRemovedDevices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &rack{t: t, used: map[string]int64{}}
		r.add(nil)
		for range 3 {
			r.add(r.groups[rapid.IntRange(0, len(r.groups)-1).Draw(t, "parent")])
		}
		acc := attribute.New("n")
		r.fresh = true
		r.step()
		acc.Tick(r.show())
		clear(r.used)
		var v recordLog
		booked := map[string]int64{}
		for range rapid.IntRange(1, 20).Draw(t, "ticks") {
			if rapid.IntRange(0, 4).Draw(t, "restart") == 0 {
				v.save(acc, rapid.Bool().Draw(t, "full"))
				acc, r.fresh = v.restore(t), true
			}
			r.step()
			acc.Tick(r.show())
			var w usage.Window
			acc.CloseWindow(&w)
			if got := w.Total.Amount[usage.DiskWritten]; got != r.all || w.Balance.Violations > 0 {
				t.Fatalf("booked %d bytes to the machine, %d were written; %d violations", got, r.all, w.Balance.Violations)
			}
			for _, row := range w.Rows {
				booked[row.Workload.Name] += row.Usage.Amount[usage.DiskWritten]
			}
		}
		for name, want := range r.used {
			if booked[name] != want {
				t.Errorf("%s: booked %d bytes, wrote %d", name, booked[name], want)
			}
		}
	})
}

// TestAccountsDeviceRemovedWhileAway checks groups of which a device was removed while the agent was
// away: what they wrote to others is not booked again, and what they write then is.
func TestAccountsDeviceRemovedWhileAway(t *testing.T) {
	for _, c := range []struct {
		name             string
		upper, lower     int64 // of both devices before: 400 and 300
		quality          usage.Quality
		wantUp, wantDown int64
	}{
		{"most of it", 150, 61, usage.Apportioned, 0, 0},
		{"less than half", 240, 180, usage.Apportioned, 0, 0},
		{"of the lower group alone, and the upper one wrote as well", 170, 61, usage.Apportioned, 9, 0},
		{"less than the groups between them wrote", 410, 180, usage.Measured, 130, 0},
		{"nothing", 430, 310, usage.Measured, 20, 10},
	} {
		acc := attribute.New("n")
		at, whole := int64(0), int64(10_000)
		tick := func(upper, lower int64) {
			at += second
			whole += 1000
			s := two(at, 0, 0, 0)
			s.Groups[1].Put(usage.DiskWritten, upper)
			s.Groups[2].Put(usage.DiskWritten, lower)
			s.Node.Total.Put(usage.DiskWritten, whole)
			if b := acc.Tick(s); !b.IsBalanced(usage.DiskWritten) {
				t.Errorf("%s: %+v", c.name, b)
			}
		}
		tick(390, 290)
		tick(400, 300)
		shares(acc, usage.DiskWritten)
		var v recordLog
		v.save(acc, true)
		acc = v.restore(t)
		tick(c.upper, c.lower)
		var w usage.Window
		acc.CloseWindow(&w)
		for i, want := range []int64{c.wantDown, c.wantUp} {
			u := &w.Rows[i].Usage
			q := c.quality
			if i == 0 && want == 0 {
				q = usage.Apportioned
			}
			if got := u.Amount[usage.DiskWritten]; got != want || u.Quality.Get(usage.DiskWritten) != q {
				t.Errorf("%s: booked %d bytes to %s, %v; want %d, %v", c.name, got, w.Rows[i].Workload.Name, u.Quality.Get(usage.DiskWritten), want, q)
			}
		}
		tick(c.upper+25, c.lower+20)
		if got := shares(acc, usage.DiskWritten); got[1] != 5 || got[2] != 20 {
			t.Errorf("%s: then booked %v, want 5 to the upper group and 20 to the lower", c.name, got)
		}
	}
}
