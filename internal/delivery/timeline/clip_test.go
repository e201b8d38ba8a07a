package timeline_test

import (
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/timeline"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// The parts that are clipped off and the parts that are left sum to the windows, whatever is
// booked; no part that is left overlaps with it, and each is balanced.
func TestClipSumsToTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := drawWindows(t)
		first, last := ws[0].Start, ws[len(ws)-1].End
		var booked, rest []batch.Measured
		for at := first; at < last; {
			to := min(last, at+rapid.OneOf(rapid.Int64Range(1, 90e9), rapid.Int64Range(1, last-first)).Draw(t, "length"))
			m := batch.Measured{Boot: "b", Scope: usage.Machine, From: at, To: to}
			if rapid.Bool().Draw(t, "booked") {
				booked = append(booked, m)
			} else {
				rest = append(rest, m)
			}
			at = to
		}
		by := make([]time.Duration, len(ws))
		for i := range ws {
			ws[i].Scope = usage.Machine
			by[i] = time.Duration(i)
			for j := range ws[i].Rows {
				r := &ws[i].Rows[j]
				for k := range r.Usage.Amount {
					r.Has |= r.Usage.Present & usage.SetOf(usage.Resource(k))
					r.Total[k] = r.Usage.Amount[k] + 1000
				}
			}
		}
		kept, keptBy, _ := timeline.Clip(ws, by, nil, booked)
		off, _, _ := timeline.Clip(ws, by, nil, rest)
		if len(keptBy) != len(kept) {
			t.Fatalf("%d shifts of %d windows", len(keptBy), len(kept))
		}
		if err := timeline.Check(kept); err != nil {
			t.Fatal(err)
		}
		for i := range kept {
			for _, m := range booked {
				if kept[i].End > kept[i].Start && (batch.Measured{Boot: "b", Scope: usage.Machine, From: kept[i].Start, To: kept[i].End}).Overlaps(m) {
					t.Fatalf("window %d to %d overlaps with %v", kept[i].Start, kept[i].End, m)
				}
			}
		}
		type sums struct {
			Used    map[workload.ShortID][usage.Limit]int64
			Covered time.Duration
			Balance usage.Balance
			Length  int64
		}
		sumOf := func(lists ...[]usage.Window) sums {
			s := sums{Used: map[workload.ShortID][usage.Limit]int64{}}
			for _, list := range lists {
				for i := range list {
					w := &list[i]
					if w.Start == w.End {
						continue // in both lists, or in neither
					}
					s.Length += w.End - w.Start
					s.Balance.Add(&w.Balance)
					s.Covered += w.Total.Covered
					var rows usage.Shares
					for j := range w.Rows {
						r := &w.Rows[j]
						u := s.Used[r.ShortID]
						r.Usage.Present.Each(func(k usage.Resource) {
							if k.Detail().Kind != usage.Peak {
								u[k] += r.Usage.Amount[k]
							}
						})
						s.Used[r.ShortID] = u
						s.Covered += r.Usage.Covered
						for k, res := range usage.Wholes {
							rows[k] += r.Usage.Amount[res]
						}
					}
					for k := range usage.Wholes {
						b := &w.Balance
						if b.Whole[k]+b.Skew[k] != rows[k] {
							t.Fatalf("%s: whole %d + skew %d, rows %d", usage.Wholes[k], b.Whole[k], b.Skew[k], rows[k])
						}
					}
				}
			}
			// How skew and use of workloads are divided is a rounding.
			s.Balance.Workloads = usage.Shares{}
			return s
		}
		if d := gocmp.Diff(sumOf(ws), sumOf(kept, off)); d != "" {
			t.Fatalf("clipped %v:\n%s", booked, d)
		}
	})
}

// clipCase is 100 s of a machine, of which a workload used 200 ms of CPU by now.
func clipCase(reason usage.StartReason) usage.Window {
	w := usage.Window{Boot: "b", Scope: usage.Machine, Start: 100e9, End: 200e9, Offset: 1_700_000_000e9, CPUs: 2, StartReason: reason}
	r := usage.Row{ShortID: 1, Has: usage.SetOf(usage.CPU), Ended: true}
	r.Usage.Put(usage.CPU, 100e6, usage.Measured)
	r.Usage.Put(usage.MemoryPeak, 7, usage.Measured)
	r.Usage.Put(usage.EnergyRest, 1000, usage.Modelled)
	r.Total[usage.CPU] = 200e6
	w.Rows = []usage.Row{r}
	return w
}

func TestClip(t *testing.T) {
	wall := func(s int64) time.Time { return time.Unix(1_700_000_000+s, 0).UTC() }
	explained := []usage.Gap{{From: wall(50), To: wall(100), Reason: usage.Rebooted}, {From: wall(100), To: wall(199), Reason: usage.Unwatched}}
	other := usage.Gap{From: wall(10), To: wall(20), Reason: usage.Overflow}
	booked := func(scope usage.Scope, boot string, from, to int64) []batch.Measured {
		return []batch.Measured{{Boot: boot, Scope: scope, From: from * 1e9, To: to * 1e9}}
	}
	for _, c := range []struct {
		name   string
		reason usage.StartReason
		booked []batch.Measured
		want   [][2]int64
		gaps   []usage.Gap
	}{
		{"free", usage.StartResumed, booked("/", "b", 0, 100), [][2]int64{{100, 200}}, append(explained, other)},
		{"another kernel", usage.StartResumed, booked("/", "c", 0, 300), [][2]int64{{100, 200}}, append(explained, other)},
		{"another scope", usage.StartResumed, booked("cgroup:7", "b", 0, 300), [][2]int64{{100, 200}}, append(explained, other)},
		{"beginning", usage.StartContinued, booked("/", "b", 0, 130), [][2]int64{{130, 200}}, append(explained, other)},
		{"middle", usage.StartFirst, booked("/", "b", 130, 150), [][2]int64{{100, 130}, {150, 200}}, append(explained, other)},
		{"all", usage.StartContinued, booked("/", "b", 100, 200), nil, append(explained, other)},
		{"resumed", usage.StartResumed, booked("/", "b", 90, 130), nil, []usage.Gap{other, {From: wall(130), To: wall(200), Reason: usage.Overlapped}}},
		{"booted", usage.StartBooted, booked("/", "b", 150, 250), nil, []usage.Gap{other, {From: wall(100), To: wall(150), Reason: usage.Overlapped}}},
		{"resumed, all", usage.StartResumed, booked("/", "b", 0, 250), nil, []usage.Gap{other}},
	} {
		t.Run(c.name, func(t *testing.T) {
			gaps := append(append([]usage.Gap{}, explained...), other)
			ws, by, gaps := timeline.Clip([]usage.Window{clipCase(c.reason)}, []time.Duration{0}, gaps, c.booked)
			var got [][2]int64
			for _, w := range ws {
				got = append(got, [2]int64{w.Start / 1e9, w.End / 1e9})
			}
			if d := gocmp.Diff(c.want, got); d != "" || len(by) != len(ws) {
				t.Errorf("windows, %d shifts:\n%s", len(by), d)
			}
			if d := gocmp.Diff(c.gaps, gaps); d != "" {
				t.Errorf("gaps:\n%s", d)
			}
		})
	}
}

// A part has its portion, apportioned, and the totals that its workload had at its end.
func TestClipRow(t *testing.T) {
	ws, _, _ := timeline.Clip([]usage.Window{clipCase(usage.StartContinued)}, []time.Duration{0}, nil,
		[]batch.Measured{{Boot: "b", Scope: usage.Machine, From: 130e9, To: 150e9}})
	if len(ws) != 2 {
		t.Fatalf("%d windows", len(ws))
	}
	for i, want := range []struct {
		cpu, total int64
		ended      bool
	}{{30e6, 130e6, false}, {50e6, 200e6, true}} {
		r := &ws[i].Rows[0]
		cpu, _ := r.Usage.Get(usage.CPU)
		peak, _ := r.Usage.Get(usage.MemoryPeak)
		if cpu != want.cpu || r.Total[usage.CPU] != want.total || r.Ended != want.ended || peak != 7 {
			t.Errorf("part %d: %d ns of CPU, total %d, ended %v, peak %d; want %v", i, cpu, r.Total[usage.CPU], r.Ended, peak, want)
		}
		if q := r.Usage.Quality; q.Get(usage.CPU) != usage.Apportioned || q.Get(usage.EnergyRest) != usage.Modelled {
			t.Errorf("part %d: CPU is %s, energy %s", i, q.Get(usage.CPU), q.Get(usage.EnergyRest))
		}
	}
}
