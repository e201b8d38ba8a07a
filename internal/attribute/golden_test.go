package attribute_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestWindowsGolden compares the windows of some drawn machines with a golden file: the sums of each
// workload by quality, gaps, handovers, and the sizes of records. Groups and virtual machines come and
// go and meters fail, while the agent restarts, is killed, and is late.
func TestWindowsGolden(t *testing.T) {
	var out strings.Builder
	for seed := range 2 {
		fmt.Fprintf(&out, "machine %d\n", seed)
		out.WriteString(rapid.Custom(history).Example(seed))
	}
	const path = "testdata/windows.golden"
	if *update {
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), out.String()); d != "" {
		t.Errorf("windows (-want +got):\n%s", d)
	}
}

// history returns what is in the windows of a drawn machine, as text.
func history(t *rapid.T) string {
	var out strings.Builder
	f, p := &forest{t: t, used: map[string]int64{}, blurry: map[string]bool{}}, newMeterPanel(t, rapid.Bool().Draw(t, "sick"))
	f.use(f.add(nil, 0, false), 1e12)
	l := &guestForest{t: t, guests: map[uint64]*usage.Guest{}}
	partial := rapid.Bool().Draw(t, "partial")
	src := &source{slots: map[uint64]usage.Slot{}, base: 1}
	show := func() *usage.Snapshot {
		s := l.show(p.show(f.snapshot()))
		s.Offset, s.Took, s.Node.Partial = 1000*second+f.now/1000, time.Millisecond, partial
		s.Node.Steal, s.Node.Idle, s.Node.Tasks = f.now/100, f.now*3, 50+f.now/second
		s.Node.MemFree -= f.now / 1e6
		s.Node.Total.Put(usage.DiskWritten, f.groups[0].disk+f.now/1000)
		s.Node.Total.Put(usage.NetworkRx, f.now/777)
		for i, g := range s.Groups {
			if i%3 == 1 {
				g.Workload.Kind = workload.Job
			}
			if g.Has.Has(usage.CPU) && i%4 != 2 {
				g.Put(usage.CPUUser, g.Value[usage.CPU]/3)
				g.Put(usage.CPUSystem, g.Value[usage.CPU]/5)
			}
			if i > 0 {
				g.Put(usage.PIDs, 2+f.now/second%3)
				g.Own |= usage.SetOf(usage.PIDs)
				g.Put(usage.NetworkRx, g.Value[usage.Processes]*77)
				g.Exact = g.Life.ID%2 == 0
				g.CPULimit, g.MemoryLimit = second, 1<<20
			}
		}
		return src.show(s)
	}
	var v recordLog
	restore := func() *attribute.Accounts {
		acc, err := attribute.Restore("n", v.records)
		if err != nil {
			t.Fatal(err)
		}
		acc.SetInterval(time.Second)
		acc.SetMeters(energy.New(p.config))
		return acc
	}
	acc := restore()
	acc.Tick(show())
	rows := ledger{}
	var w usage.Window
	for range 40 {
		f.step()
		if rapid.IntRange(0, 15).Draw(t, "late") == 0 {
			f.now += rapid.Int64Range(1, 9).Draw(t, "by") * second
		}
		b := acc.Tick(show())
		if b.Skew != (usage.Shares{}) {
			fmt.Fprintf(&out, "  skew %v\n", b.Skew)
		}
		then := rapid.IntRange(0, 9).Draw(t, "then")
		if rec := acc.Ends(nil, func(w *workload.Workload) bool { return then == 1 && len(w.Name)%2 == 0 }); len(rec) > 0 {
			fmt.Fprintf(&out, "  ends of %d bytes\n", len(rec))
			if then != 2 {
				v.records = append(v.records, rec)
				acc.MarkEndsSaved()
			}
		}
		switch {
		case then < 4:
		case then == 4 && len(v.records) > 0: // killed
			acc = restore()
			src.restart()
		default:
			acc.CloseWindow(&w)
			rows.addWindow(&w)
			full := then == 9
			fmt.Fprintf(&out, "%v to %v: %v, %d CPUs, %d bytes, full %v, handovers", time.Duration(w.Start), time.Duration(w.End), w.StartReason, w.CPUs, len(acc.Checkpoint(nil, full)), full)
			for _, h := range w.Handovers {
				fmt.Fprintf(&out, " %s %d uJ %d", h.Guest, h.Booked, len(h.Shares))
			}
			fmt.Fprintln(&out)
			for _, g := range w.Gaps {
				fmt.Fprintf(&out, "  gap %v to %v, %v %q\n", time.Duration(g.From.UnixNano()), time.Duration(g.To.UnixNano()), g.Reason, g.Detail)
			}
			if then > 5 {
				v.save(acc, full)
			}
			if then == 8 {
				acc = restore()
				src.restart()
			}
		}
	}
	return out.String() + rows.String()
}

// A ledger sums the rows of each workload, by the qualities of its amounts.
type ledger map[string]*[usage.Limit][usage.Modelled + 1]booking

// A booking is how often an amount was booked, and its sum.
type booking struct{ times, sum int64 }

func (l ledger) add(name string, u *usage.Usage) {
	if l[name] == nil {
		l[name] = &[usage.Limit][usage.Modelled + 1]booking{}
	}
	u.Present.Each(func(r usage.Resource) {
		b := &l[name][r][u.Quality.Get(r)]
		b.times, b.sum = b.times+1, b.sum+u.Amount[r]
	})
	c := &l[name][0][usage.Absent]
	c.times, c.sum = c.times+1, c.sum+int64(u.Covered)
}

func (l ledger) addWindow(w *usage.Window) {
	l.add("the machine", &w.Total)
	for i := range w.Rows {
		r := &w.Rows[i]
		l.add(fmt.Sprintf("%q in %q, life %d, ended %v", r.Workload.Name, r.Workload.Parent, r.Workload.Life.ID, r.Ended), &r.Usage)
	}
}

func (l ledger) String() string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(l)) {
		fmt.Fprintf(&out, "%s:", name)
		for r, qualities := range l[name] {
			for q, b := range qualities {
				switch {
				case b.times == 0:
				case r == 0:
					fmt.Fprintf(&out, " %v in %d", time.Duration(b.sum), b.times)
				default:
					fmt.Fprintf(&out, ", %v %.2v %d in %d", usage.Resource(r), usage.Quality(q), b.sum, b.times)
				}
			}
		}
		fmt.Fprintln(&out)
	}
	return out.String()
}
