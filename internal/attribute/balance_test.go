package attribute_test

import (
	"bytes"
	"testing"
	"time"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/model/usage"
)

// TestCPUsChangedUnwatched checks CPUs that were added or removed while the meter was away, or
// late: the smaller number counts, but at least what was used, and idle is apportioned.
func TestCPUsChangedUnwatched(t *testing.T) {
	const hour = 3600 * second
	for name, c := range map[string]struct {
		from, to   int
		used       int64
		late       bool // without a restart
		short      bool // a second instead of an hour
		want, idle int64
		quality    usage.Quality
	}{
		"added":               {from: 4, to: 64, used: hour, want: 4 * hour, idle: 3 * hour, quality: usage.Apportioned},
		"added, late":         {from: 4, to: 64, used: hour, late: true, want: 4 * hour, idle: 3 * hour, quality: usage.Apportioned},
		"added to one":        {from: 1, to: 4, used: hour / 2, want: hour, idle: hour / 2, quality: usage.Apportioned},
		"removed":             {from: 64, to: 4, used: hour, want: 4 * hour, idle: 3 * hour, quality: usage.Apportioned},
		"removed after use":   {from: 64, to: 4, used: 50 * hour, want: 50 * hour, quality: usage.Apportioned},
		"unchanged":           {from: 4, to: 4, used: hour, want: 4 * hour, idle: 3 * hour, quality: usage.Measured},
		"added while watched": {from: 2, to: 4, used: second, late: true, short: true, want: 4 * second, idle: 3 * second, quality: usage.Measured},
	} {
		t.Run(name, func(t *testing.T) {
			acc := attribute.New("n")
			at := int64(0)
			tick := func(span int64, cpus int, used int64) usage.Balance {
				at += span
				s := two(at, used)
				s.Node.CPUs = cpus
				return acc.Tick(s)
			}
			acc.SetInterval(1e9)
			tick(second, c.from, 0)
			tick(second, c.from, 0)
			var w usage.Window
			acc.CloseWindow(&w)
			span := hour
			if c.short {
				span = second
			}
			if !c.late {
				var v recordLog
				v.save(acc, true)
				acc = v.restore(t)
				acc.SetInterval(1e9)
			}
			b := tick(span, c.to, c.used)
			acc.CloseWindow(&w)
			idle := w.Rows[len(w.Rows)-1]
			if b.Whole.Get(usage.CPU) != c.want || b.Idle.Get(usage.CPU) != c.idle || b.Skew.Get(usage.CPU) != 0 || idle.Usage.Quality.Get(usage.CPU) != c.quality {
				t.Errorf("the machine has %d ns, %d of them idle and %v, skew %d; want %d, %d and %v, none", b.Whole.Get(usage.CPU), b.Idle.Get(usage.CPU),
					idle.Usage.Quality.Get(usage.CPU), b.Skew.Get(usage.CPU), c.want, c.idle, c.quality)
			}
			if b := tick(second, c.to, c.used); b.Idle.Get(usage.CPU) != int64(c.to)*second {
				t.Errorf("a second without use has %d ns idle, want %d", b.Idle.Get(usage.CPU), int64(c.to)*second)
			}
		})
	}
}

// TestSkewCarried checks that use beyond the whole of a tick, as counters are read one after
// another, is made up for in the next ticks: the sums of all ticks are exact. A total of
// the machine that falls causes no skew.
func TestSkewCarried(t *testing.T) {
	acc := attribute.New("n")
	tick := func(at, cpu, disk, whole int64) usage.Balance {
		s := two(at*second, cpu, cpu)
		s.Groups[1].Put(usage.DiskRead, disk)
		s.Node.Total.Put(usage.DiskRead, whole)
		return acc.Tick(s)
	}
	tick(1, 0, 0, 0)
	for i, c := range []struct {
		cpu, disk, whole             int64
		idle, skew, system, diskSkew int64
	}{
		{cpu: 25 * second / 10, disk: 150, whole: 100, idle: 0, skew: second / 2, system: 0, diskSkew: 50},
		{cpu: 43 * second / 10, disk: 170, whole: 150, idle: 0, skew: -second / 5, system: 0, diskSkew: -30},
		{cpu: 43 * second / 10, disk: 170, whole: 250, idle: 17 * second / 10, skew: -3 * second / 10, system: 80, diskSkew: -20},
		{cpu: 44 * second / 10, disk: 180, whole: 270, idle: 19 * second / 10, skew: 0, system: 10, diskSkew: 0},
		{cpu: 44 * second / 10, disk: 187, whole: 270, idle: 2 * second, skew: 0, system: 0, diskSkew: 7},
		{cpu: 44 * second / 10, disk: 187, whole: 280, idle: 2 * second, skew: 0, system: 3, diskSkew: -7},
		{cpu: 44 * second / 10, disk: 192, whole: 50, idle: 2 * second, skew: 0, system: 0, diskSkew: 0},
		{cpu: 44 * second / 10, disk: 192, whole: 60, idle: 2 * second, skew: 0, system: 10, diskSkew: 0},
	} {
		b := tick(int64(i)+2, c.cpu, c.disk, c.whole)
		if b.Idle.Get(usage.CPU) != c.idle || b.Skew.Get(usage.CPU) != c.skew || b.System.Get(usage.DiskRead) != c.system || b.Skew.Get(usage.DiskRead) != c.diskSkew {
			t.Errorf("tick %d: idle %d ns, skew %d; system read %d, skew %d; want %d, %d; %d, %d", i,
				b.Idle.Get(usage.CPU), b.Skew.Get(usage.CPU), b.System.Get(usage.DiskRead), b.Skew.Get(usage.DiskRead), c.idle, c.skew, c.system, c.diskSkew)
		}
	}
}

// TestMemoryAfterLongAbsence checks that memory is unknown after so long a time without ticks that its
// integral is beyond an int64, that it counts on from there, and that checkpoints hold that.
func TestMemoryAfterLongAbsence(t *testing.T) {
	const day, tib = 24 * 3600 * second, 1 << 40
	for _, c := range []struct {
		days  int64
		late  bool // without a restart
		known bool
	}{{days: 12, known: true}, {days: 12, late: true, known: true}, {days: 13}, {days: 24}, {days: 24, late: true}, {days: 49}, {days: 49, late: true}} {
		acc := attribute.New("n")
		var v recordLog
		at := int64(0)
		tick := func(span int64) usage.Balance {
			t.Helper()
			at += span
			s := two(at, 0, 0, 0)
			s.Node.MemTotal, s.Node.MemFree = 4*tib, tib
			s.Groups[1].Put(usage.Memory, 2*tib)
			b := acc.Tick(s)
			if !b.IsBalanced(usage.Memory) || b.Skew.Get(usage.Memory) != 0 {
				t.Errorf("%+v: %+v", c, b)
			}
			return b
		}
		tick(second)
		tick(second)
		tick(second)
		acc.CloseWindow(&usage.Window{})
		v.save(acc, true)
		if !c.late {
			acc = v.restore(t)
		}
		b := tick(c.days * day)
		whole, held := b.Whole.Get(usage.Memory), b.Workloads.Get(usage.Memory)
		if seconds := c.days * day / second; c.known && (whole != 4*tib*seconds || held != 2*tib*seconds) || !c.known && (whole != 0 || held != 0) {
			t.Errorf("%+v: %d byte-seconds, %d of them held by groups", c, whole, held)
		}
		if b = tick(second); b.Whole.Get(usage.Memory) != 4*tib || b.System.Get(usage.Memory) != tib || b.Workloads.Get(usage.Memory) != 2*tib {
			t.Errorf("%+v: a second after it %+v", c, b)
		}
		var w usage.Window
		acc.CloseWindow(&w)
		if covered := w.Total.Covered > time.Second; w.Balance.Violations > 0 || covered != c.known {
			t.Errorf("%+v: %d violations, %v covered", c, w.Balance.Violations, w.Total.Covered)
		}
		v.save(acc, false)
		if again, full := v.restore(t).Checkpoint(nil, true), acc.Checkpoint(nil, true); !bytes.Equal(again, full) {
			t.Errorf("%+v: accounts restored from a delta differ", c)
		}
	}
}

// TestSystemDiskQuality checks that system's part of the disk traffic, the rest of the machine's, is
// apportioned where it includes that of a group that ended unseen, or where the machine's is not known.
func TestSystemDiskQuality(t *testing.T) {
	const r = usage.DiskRead
	for _, c := range []struct {
		name   string
		upper  bool // the group ends below another one
		shows  bool // which has a counter
		own    bool // that excludes those below it
		ends   bool
		falls  bool // after a restart, what the machine read is less than before
		want   usage.Quality
		system int64
	}{
		{name: "nothing ends", upper: true, shows: true, system: 40, want: usage.Measured},
		{name: "below the root", ends: true, system: 60, want: usage.Apportioned},
		{name: "below a group that includes it", upper: true, shows: true, ends: true, system: 40, want: usage.Measured},
		{name: "below a group that excludes it", upper: true, shows: true, own: true, ends: true, system: 40, want: usage.Apportioned},
		{name: "below a group without a counter", upper: true, ends: true, system: 60, want: usage.Apportioned},
		{name: "a device was removed", falls: true, system: 0, want: usage.Apportioned},
	} {
		acc := attribute.New("n")
		tick := func(at, whole, read int64, ends bool) {
			s := two(at*second, 0, 0, 0)
			s.Node.Total.Put(r, whole)
			if c.shows {
				s.Groups[1].Put(r, read*2)
			}
			if c.own {
				s.Groups[1].Own |= usage.SetOf(r)
			}
			s.Groups[2].Put(r, read)
			if !c.upper {
				s.Groups[2].Parent, s.Groups[2].MemoryParent = usage.Root, usage.Root
			}
			if ends {
				s.Groups = s.Groups[:2]
			}
			acc.Tick(s)
		}
		row := func() (int64, usage.Quality) {
			var w usage.Window
			acc.CloseWindow(&w)
			u := &w.Rows[len(w.Rows)-2].Usage
			return u.Amount[r], u.Quality.Get(r)
		}
		tick(1, 1000, 100, false)
		if got, q := row(); got != 0 || q != usage.Measured {
			t.Errorf("%s: at first %d bytes, %v", c.name, got, q)
		}
		whole := int64(1060)
		if c.falls {
			var v recordLog
			v.save(acc, true)
			acc, whole = v.restore(t), 900
		}
		tick(2, whole, 110, c.ends)
		if got, q := row(); got != c.system || q != c.want {
			t.Errorf("%s: %d bytes, %v; want %d, %v", c.name, got, q, c.system, c.want)
		}
		tick(3, whole+7, 110, c.ends)
		if _, q := row(); q != usage.Measured {
			t.Errorf("%s: %v in the next tick, want measured", c.name, q)
		}
	}
}
