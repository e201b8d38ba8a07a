package walltime_test

import (
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// A window that overlaps with nothing that is booked stays as it is; of the others all time that is not
// booked is a gap.
func TestClipDrawn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := drawWindows(t)
		first, last := ws[0].Start, ws[len(ws)-1].End
		var booked []batch.Measured
		for at := first; at < last; {
			to := min(last, at+rapid.OneOf(rapid.Int64Range(1, 90e9), rapid.Int64Range(1, last-first)).Draw(t, "length"))
			if rapid.Bool().Draw(t, "booked") {
				booked = append(booked, batch.Measured{Boot: "b", Extent: usage.Extent{Scope: usage.Machine}, From: at, To: to})
			}
			at = to
		}
		by := make([]time.Duration, len(ws))
		var want []usage.Window
		var wantBy []time.Duration
		var lost time.Duration
		for i := range ws {
			ws[i].Scope, by[i] = usage.Machine, time.Duration(i)
			free, overlaps := ws[i].End-ws[i].Start, false
			for _, m := range booked {
				if both := min(m.To, ws[i].End) - max(m.From, ws[i].Start); both > 0 {
					overlaps = true
					free -= both
				}
			}
			if overlaps {
				lost += time.Duration(free)
				continue
			}
			want, wantBy = append(want, ws[i]), append(wantBy, by[i])
		}
		kept, keptBy, gaps := walltime.Clip(ws, by, nil, booked)
		if d := gocmp.Diff(want, kept); d != "" || !slices.Equal(wantBy, keptBy) {
			t.Fatalf("booked %v, shifts %v, want %v:\n%s", booked, keptBy, wantBy, d)
		}
		for _, g := range gaps {
			if g.Reason != usage.Overlapped {
				t.Fatalf("gap %v", g)
			}
			lost -= g.To.Sub(g.From)
		}
		if lost != 0 {
			t.Fatalf("booked %v: the gaps %v lack %v", booked, gaps, lost)
		}
	})
}

// clipCase is 100 s of a machine, of which a workload used 200 ms of CPU by now.
func clipCase(reason usage.StartReason) usage.Window {
	w := usage.Window{Boot: "b", Extent: usage.Extent{Scope: usage.Machine}, Start: 100e9, End: 200e9, Offset: 1_700_000_000e9, CPUs: 2, StartReason: reason}
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
		return []batch.Measured{{Boot: boot, Extent: usage.Extent{Scope: scope}, From: from * 1e9, To: to * 1e9}}
	}
	overlapped := func(from, to int64) usage.Gap {
		return usage.Gap{From: wall(from), To: wall(to), Reason: usage.Overlapped}
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
		{"beginning", usage.StartContinued, booked("/", "b", 0, 130), nil, append(explained, other, overlapped(130, 200))},
		{"middle", usage.StartFirst, booked("/", "b", 130, 150), nil, append(explained, other, overlapped(100, 130), overlapped(150, 200))},
		{"all", usage.StartContinued, booked("/", "b", 100, 200), nil, append(explained, other)},
		{"resumed", usage.StartResumed, booked("/", "b", 90, 130), nil, []usage.Gap{other, overlapped(130, 200)}},
		{"booted", usage.StartBooted, booked("/", "b", 150, 250), nil, []usage.Gap{other, overlapped(100, 150)}},
		{"resumed, all", usage.StartResumed, booked("/", "b", 0, 250), nil, []usage.Gap{other}},
	} {
		t.Run(c.name, func(t *testing.T) {
			gaps := append(append([]usage.Gap{}, explained...), other)
			ws, by, gaps := walltime.Clip([]usage.Window{clipCase(c.reason)}, []time.Duration{0}, gaps, c.booked)
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
