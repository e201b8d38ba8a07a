package attribute

import (
	"errors"
	"testing"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestDeltaHoldsChanges checks that a delta holds what changed of an account in the tick since the
// record before, and nothing else: most groups do nothing most of the time.
func TestDeltaHoldsChanges(t *testing.T) {
	const nested = 1<<usage.CPU | 1<<usage.DiskRead // what the group below shows
	for _, c := range []struct {
		name   string
		change func(root, upper, lower *usage.Group)
		upper  dirty
		lower  dirty
	}{
		{"nothing", func(_, _, _ *usage.Group) {}, dirty{}, dirty{}},
		{"CPU time", func(root, upper, _ *usage.Group) {
			root.Value[usage.CPU] += 9
			upper.Value[usage.CPU] += 5
		}, dirty{set: 1 << usage.CPU}, dirty{}},
		{"CPU time below", func(root, upper, lower *usage.Group) {
			root.Value[usage.CPU] += 9
			upper.Value[usage.CPU] += 5
			lower.Value[usage.CPU] += 5
		}, dirty{set: 1 << usage.CPU}, dirty{set: 1<<usage.CPU | 1<<usage.CPUUser | 1<<usage.CPUSystem}},
		{"traffic", func(_, upper, _ *usage.Group) { upper.Value[usage.NetworkRx] += 5 }, dirty{set: 1 << usage.NetworkRx}, dirty{}},
		{"a counter that restarted", func(_, upper, _ *usage.Group) { upper.Value[usage.NetworkRx] = 1 }, dirty{set: 1 << usage.NetworkRx}, dirty{}},
		{"a counter that dips", func(_, upper, _ *usage.Group) { upper.Value[usage.NetworkRx]-- }, dirty{set: 1 << usage.NetworkRx}, dirty{}},
		{"more memory", func(_, _, lower *usage.Group) { lower.Value[usage.Memory]++ }, dirty{set: 1 << usage.Memory}, dirty{set: 1<<usage.Memory | 1<<usage.MemoryPeak}},
		{"less memory", func(_, _, lower *usage.Group) { lower.Value[usage.Memory]-- }, dirty{set: 1<<usage.Memory | 1<<usage.MemoryPeak}, dirty{set: 1 << usage.Memory}},
		{"less memory of its own", func(_, upper, _ *usage.Group) { upper.Value[usage.Memory]-- }, dirty{set: 1 << usage.Memory}, dirty{}},
		{"another level", func(_, upper, _ *usage.Group) { upper.Value[usage.MemoryFile]-- }, dirty{set: 1 << usage.MemoryFile}, dirty{}},
		{"a level unseen", func(_, upper, _ *usage.Group) { upper.Has &^= 1 << usage.MemoryFile }, dirty{sets: true, set: 1 << usage.MemoryFile}, dirty{}},
		{"a counter unseen", func(_, upper, _ *usage.Group) { upper.Has &^= 1 << usage.NetworkRx }, dirty{sets: true, set: 1 << usage.NetworkRx}, dirty{}},
		{"a counter seen", func(_, upper, _ *usage.Group) { upper.Put(usage.NetworkTx, 3) }, dirty{sets: true, set: 1 << usage.NetworkTx}, dirty{}},
		{"a counter of its own", func(_, upper, _ *usage.Group) { upper.Own |= 1 << usage.NetworkRx }, dirty{sets: true}, dirty{}},
		{"a counter apportioned", func(_, upper, _ *usage.Group) { upper.Apportioned |= 1 << usage.NetworkRx }, dirty{sets: true}, dirty{}},
		{"a counter of the meter", func(_, upper, _ *usage.Group) { upper.Counted |= 1 << usage.NetworkRx }, dirty{sets: true}, dirty{}},
		{"a device removed", func(_, upper, lower *usage.Group) {
			for _, g := range []*usage.Group{upper, lower} {
				g.Value[usage.DiskRead] -= 40
				g.Removed = map[usage.Resource]int64{usage.DiskRead: 40}
			}
		}, dirty{set: 1 << usage.DiskRead}, dirty{set: 1 << usage.DiskRead}},
		{"a device removed from the lower", func(_, _, lower *usage.Group) {
			lower.Value[usage.DiskRead] -= 40
			lower.Removed = map[usage.Resource]int64{usage.DiskRead: 40}
		}, dirty{set: 1 << usage.DiskRead}, dirty{set: 1 << usage.DiskRead}},
		{"user time", func(_, _, lower *usage.Group) { lower.Value[usage.CPUUser]++ }, dirty{}, dirty{split: true, set: 1 << usage.CPUUser}},
		{"a name", func(_, upper, _ *usage.Group) { upper.Workload.Name = "other" }, dirty{head: true}, dirty{}},
		{"a place", func(_, _, lower *usage.Group) { lower.MemoryParent = usage.Root }, dirty{set: 1<<usage.Memory | 1<<usage.MemoryPeak}, dirty{links: true}},
		{"an end", func(_, _, lower *usage.Group) { lower.Final = true }, dirty{set: nested | 1<<usage.Memory | 1<<usage.MemoryPeak}, dirty{set: 1<<usage.Memory | 1<<usage.MemoryFile}},
		{"a limit", func(_, upper, _ *usage.Group) { upper.CPULimit, upper.MemoryLimit = 7, 8 }, dirty{}, dirty{}},
	} {
		acc := New("n")
		show := func(i int64, change func(root, upper, lower *usage.Group)) {
			s := &usage.Snapshot{Boot: "b", At: i * 1e9, Mono: i * 1e9, Node: usage.Node{CPUs: 2, MemTotal: 1 << 30, MemFree: 1 << 29}}
			for j := range usage.Slot(3) {
				g := &usage.Group{Slot: j, Parent: j - 1, MemoryParent: j - 1, Life: workload.Life{ID: uint64(j + 1)}, Exact: true, Workload: workload.Workload{ID: workload.ID(rune('a' + j))}}
				g.Put(usage.CPU, 3000-1000*int64(j))
				if j > 0 {
					g.Put(usage.DiskRead, 500-100*int64(j))
					g.Put(usage.NetworkRx, 100)
					g.Put(usage.Memory, 500-100*int64(j))
					g.Put(usage.MemoryFile, 50)
				}
				if j == 2 {
					g.Put(usage.CPUUser, 300)
					g.Put(usage.CPUSystem, 200)
				}
				s.Groups = append(s.Groups, g)
			}
			change(s.Groups[0], s.Groups[1], s.Groups[2])
			acc.Tick(s)
		}
		for i := range int64(4) {
			show(i+1, func(_, _, _ *usage.Group) {})
			acc.CloseWindow(&usage.Window{})
			acc.Checkpoint(nil, false)
			acc.MarkSaved()
		}
		upper, lower := acc.current[1], acc.current[2]
		full := acc.Checkpoint(nil, true)
		show(5, c.change)
		r := restorer{acc: New("n")}
		if err := errors.Join(r.record(full), r.record(acc.Checkpoint(nil, false))); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		for name, a := range map[string]*account{"upper": upper, "lower": lower} {
			if has := r.accounts[a.serial]; has != nil && (has.last == 2) != (a.dirty != dirty{known: true}) {
				t.Errorf("%s: the %s group is in the delta: %v", c.name, name, has.last == 2)
			}
		}
		c.upper.known, c.lower.known = true, true
		if upper.dirty != c.upper || lower.dirty != c.lower {
			t.Errorf("%s: of the upper group %+v and of the lower %+v are in a delta, want %+v and %+v", c.name, upper.dirty, lower.dirty, c.upper, c.lower)
		}
	}
}
