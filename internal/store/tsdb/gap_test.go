package tsdb

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestGapUse checks in which part of a gap the use of a minute counts.
func TestGapUse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		g    gap
		add  [][2]int64 // minute and use
		want string
	}{
		{gap{cut: true, hasEnd: true}, [][2]int64{{9, 1}, {10, 2}, {10, 1}, {11, 4}, {13, 8}, {14, 16}}, "head 3 tail 8 sum 4 from 10 to 13"},
		{gap{}, [][2]int64{{10, 2}, {13, 8}}, "head 0 tail 0 sum 10 from 10 to 13"},
		{gap{cut: true, hasEnd: true}, [][2]int64{{12, 1}, {10, 0}, {11, 1}}, "head 0 tail 0 sum 2 from 11 to 12"},
		{gap{}, [][2]int64{{10, 0}}, "head 0 tail 0 sum 0 from 0 to 0"},
	} {
		g := c.g
		g.first, g.last = 10, 13
		for _, a := range c.add {
			g.addUse(a[0], a[1])
		}
		if got := fmt.Sprintf("head %d tail %d sum %d from %d to %d", g.head, g.tail, g.sum, g.begin, g.end); got != c.want {
			t.Errorf("%v: %s, want %s", c.add, got, c.want)
		}
	}
}

// TestCloseGaps checks what remains of the use of gaps after the use that samples show.
func TestCloseGaps(t *testing.T) {
	t.Parallel()
	const cpu = usage.CPU
	for name, c := range map[string]struct {
		list []gap
		want string
	}{
		"shown in both ends":     {[]gap{{res: cpu, head: 10, shownHead: 4, tail: 8, shownTail: 5, sum: 1}}, "10: 6+3"},
		"shown more than used":   {[]gap{{res: cpu, head: 1, shownHead: 4, tail: 2, shownTail: 5, sum: 1}}, "1: 0+0"},
		"without use":            {[]gap{{res: cpu, head: 1, shownHead: 1}, {res: cpu, sum: 2}}, "2: 0+0"},
		"minute of two":          {[]gap{{res: cpu, hasEnd: true, last: 5, startValue: 10, endValue: 17, sum: 1, tail: 9}, {res: cpu, cut: true, first: 5, shownHead: 2, head: 9}}, "7: 0+6 1: 1+0"},
		"minute of two, used up": {[]gap{{res: cpu, hasEnd: true, last: 5, startValue: 10, endValue: 90, sum: 1, tail: 9}, {res: cpu, cut: true, first: 5, shownHead: 2, sum: 3, head: 9}}, "8: 0+7 3: 0+0"},
		"minute of two, shown":   {[]gap{{res: cpu, hasEnd: true, last: 5, startValue: 10, endValue: 90, sum: 1, tail: 2}, {res: cpu, cut: true, first: 5, shownHead: 5, head: 2}}, "1: 0+0"},
		"minute of two, reset":   {[]gap{{res: cpu, hasEnd: true, last: 5, startValue: 10, endValue: 3, sum: 1, tail: 9}, {res: cpu, cut: true, first: 5, head: 9}}, "1: 0+0 9: 9+0"},
		"minutes of two":         {[]gap{{res: cpu, hasEnd: true, last: 5, endValue: 90, tail: 9}, {res: cpu, cut: true, first: 6, head: 9}}, "9: 0+9 9: 9+0"},
		"two resources":          {[]gap{{res: cpu, hasEnd: true, last: 5, endValue: 90, tail: 9}, {res: usage.Memory, cut: true, first: 5, head: 9}}, "9: 0+9 9: 9+0"},
		"no cut":                 {[]gap{{res: cpu, hasEnd: true, last: 5, endValue: 90, tail: 9}, {res: cpu, first: 5, head: 9}}, "9: 0+9 9: 9+0"},
		"no end":                 {[]gap{{res: cpu, last: 5, endValue: 90, tail: 9}, {res: cpu, cut: true, first: 5, head: 9}}, "9: 0+9 9: 9+0"},
	} {
		var got strings.Builder
		for _, g := range closeGaps(c.list) {
			fmt.Fprintf(&got, " %d: %d+%d", g.sum, g.head, g.tail)
		}
		if got.String() != " "+c.want {
			t.Errorf("%s: %s, want %s", name, got.String(), c.want)
		}
	}
}

// TestGapPlan checks how the value grows in a gap: from base, with a reset after some use.
func TestGapPlan(t *testing.T) {
	t.Parallel()
	const large = int64(1) << 46
	for name, c := range map[string]struct {
		g           gap
		othersReset bool
		base, after int64 // after < 0: no reset
		must        bool
	}{
		"no end":                       {gap{hasStart: true, startValue: 5, sum: 9}, false, 5, -1, false},
		"as expected":                  {gap{hasStart: true, hasEnd: true, startValue: 5, sum: 4, endValue: 9}, false, 5, -1, false},
		"use is not booked yet":        {gap{hasStart: true, hasEnd: true, startValue: 5, sum: 1, endValue: 9}, false, 5, -1, false},
		"within the tolerance":         {gap{hasStart: true, hasEnd: true, startValue: 5, sum: 5, endValue: 9}, false, 5, -1, false},
		"above the tolerance":          {gap{hasStart: true, hasEnd: true, startValue: 5, sum: 6, endValue: 9}, false, 5, -1, true},
		"another life":                 {gap{hasStart: true, hasEnd: true, startValue: 5, sum: 12, endValue: 9}, false, 5, 3, true},
		"another life from the start":  {gap{hasStart: true, hasEnd: true, startValue: 50, sum: 9, endValue: 9}, false, 50, 0, true},
		"the ledger lacks use":         {gap{hasStart: true, hasEnd: true, startValue: 50, sum: 3, endValue: 9}, false, 50, 0, true},
		"as much as one rounding":      {gap{hasStart: true, hasEnd: true, startValue: 1, sum: 9, endValue: 9}, false, 1, -1, false},
		"another life of all use":      {gap{hasStart: true, hasEnd: true, startValue: 5, sum: 9, endValue: 9}, false, 5, 0, true},
		"started in it, a rounding":    {gap{hasEnd: true, sum: 10, endValue: 9}, false, 0, -1, false},
		"large values":                 {gap{hasStart: true, hasEnd: true, startValue: 2 * large, sum: 3, endValue: 2 * large}, false, 2 * large, -1, false},
		"large values, another life":   {gap{hasStart: true, hasEnd: true, startValue: 2 * large, sum: 4, endValue: 2 * large}, false, 2 * large, -1, true},
		"started before":               {gap{hasEnd: true, sum: 4, endValue: 9}, false, 5, -1, false},
		"started in it":                {gap{hasEnd: true, sum: 9, endValue: 9}, false, 0, -1, false},
		"started in it, another life":  {gap{hasEnd: true, sum: 12, endValue: 9}, false, 0, 3, false},
		"energy of external meters":    {gap{res: usage.EnergyRest, hasStart: true, hasEnd: true, startValue: 5, sum: 12, endValue: 9}, false, 5, -1, false},
		"energy, others were reset":    {gap{res: usage.EnergyRest, hasStart: true, hasEnd: true, startValue: 5, sum: 12, endValue: 9}, true, 5, 3, false},
		"energy fell":                  {gap{res: usage.EnergyError, hasStart: true, hasEnd: true, startValue: 10, sum: 12, endValue: 9}, false, 10, 3, false},
		"energy as before":             {gap{res: usage.EnergyError, hasStart: true, hasEnd: true, startValue: 9, sum: 12, endValue: 9}, false, 9, -1, false},
		"energy of a life in the gap":  {gap{res: usage.EnergyError, hasEnd: true, sum: 12, endValue: 9}, false, 0, 3, false},
		"a fall to a value as the use": {gap{hasStart: true, hasEnd: true, startValue: 9, sum: 7, endValue: 8}, false, 9, 0, true},
	} {
		if c.g.res == 0 {
			c.g.res = usage.CPU
		}
		if got := c.g.mustReset(); got != c.must {
			t.Errorf("%s: another life must have begun: %v", name, got)
		}
		after := c.after
		if after < 0 {
			after = never
		}
		if c.g.plan(c.othersReset); c.g.base != c.base || c.g.resetAfter != after {
			t.Errorf("%s: from %d, reset after %d, want %d, %d", name, c.g.base, c.g.resetAfter, c.base, after)
		}
	}
}

// TestGapAdvance checks the value of a gap after each minute, and the place of a reset.
func TestGapAdvance(t *testing.T) {
	t.Parallel()
	const m10 = 10 * minute
	for name, c := range map[string]struct {
		g    gap
		use  []int64 // of the minutes from 9
		want string  // value after each minute, with "at:last" of a reset
	}{
		"grows":                         {gap{base: 5, resetAfter: never, first: 10, last: 12, to: never}, []int64{1, 2, 3, 4, 5}, "5 7 10 14 14"},
		"up to the sample after it":     {gap{base: 5, resetAfter: never, hasEnd: true, endValue: 9, first: 10, last: 12, to: never, tail: 1}, []int64{0, 2, 3, 4}, "5 7 9 9"},
		"less than in whole minutes":    {gap{base: 0, resetAfter: never, cut: true, hasEnd: true, endValue: 90, first: 10, last: 11, head: 3, tail: 2, to: never}, []int64{0, 2, 2, 9}, "0 2 4 4"},
		"several rows":                  {gap{base: 0, resetAfter: never, cut: true, first: 10, last: 10, head: 3, to: never}, []int64{0, 2, 0}, "0 2 2"},
		"reset":                         {gap{base: 5, resetAfter: 3, hasEnd: true, endValue: 20, first: 10, last: 13, from: m10 - 1, to: never}, []int64{0, 3, 2, 4}, "5 8 690000:8 2 6"},
		"reset at once":                 {gap{base: 5, resetAfter: 0, hasEnd: true, endValue: 20, first: 10, last: 13, from: m10 + 20_000, to: never}, []int64{0, 3, 2}, "5 640000:5 3 5"},
		"reset by the least use":        {gap{base: 5, resetAfter: 3, hasEnd: true, endValue: 20, first: 10, last: 13, from: m10 - 1, to: never}, []int64{0, 3, 1}, "5 8 690000:8 1"},
		"reset from one":                {gap{base: 1, resetAfter: 0, hasEnd: true, endValue: 20, first: 10, last: 13, from: m10, to: never}, []int64{0, 3}, "1 630000:1 3"},
		"reset from zero":               {gap{base: 0, resetAfter: 0, first: 10, last: 13, to: never}, []int64{0, 3}, "0 3"},
		"first life ends with the gap":  {gap{base: 5, resetAfter: 3, hasEnd: true, endValue: 0, first: 10, last: 10, tail: 3, from: m10, to: m10 + 30_000}, []int64{0, 3}, "5 615000:8 8"},
		"no room for a sample":          {gap{base: 5, resetAfter: 0, hasEnd: true, endValue: 9, first: 10, last: 10, tail: 3, from: m10, to: m10 + 2}, []int64{0, 3}, "5 3"},
		"just room for two samples":     {gap{base: 5, resetAfter: 0, hasEnd: true, endValue: 9, first: 10, last: 10, tail: 3, from: m10, to: m10 + 3}, []int64{0, 3}, "5 600001:5 3"},
		"no room before":                {gap{base: 5, resetAfter: 0, hasEnd: true, endValue: 9, first: 10, last: 10, tail: 3, from: m10, to: m10 + 1}, []int64{0, 3}, "5 3"},
		"the value is not fallen after": {gap{base: 5, resetAfter: 2, hasEnd: true, endValue: 3, first: 10, last: 12, from: m10, to: never}, []int64{0, 9}, "5 630000:7 3"},
		"without use in the last":       {gap{base: 5, resetAfter: 3, hasEnd: true, endValue: 0, first: 10, last: 11, from: m10, to: never, tail: 1}, []int64{0, 3, 0}, "5 8 8"},
	} {
		var got strings.Builder
		for i, v := range c.use {
			if at, last, reset := c.g.advance(9+int64(i), v); reset {
				fmt.Fprintf(&got, " %d:%d", at, last)
			} else if at+1 < at {
				t.Error(name)
			}
			fmt.Fprintf(&got, " %d", c.g.value())
		}
		if got.String() != " "+c.want {
			t.Errorf("%s:%s, want %s", name, got.String(), c.want)
		}
	}
}

// TestGapSamples checks the edges at which a gap gets samples.
func TestGapSamples(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		g    gap
		want []int64
	}{
		"between two samples":    {gap{hasStart: true, hasEnd: true, from: 10 * minute, to: 13 * minute}, []int64{11, 12}},
		"just after and before":  {gap{hasStart: true, hasEnd: true, from: 10*minute - 1, to: 13*minute + 1}, []int64{10, 11, 12, 13}},
		"from the first use":     {gap{hasEnd: true, to: 13 * minute, begin: 11}, []int64{11, 12}},
		"to the last use":        {gap{hasStart: true, from: 10 * minute, end: 12}, []int64{11, 12, 13}},
		"from first to last use": {gap{begin: 11, end: 11}, []int64{11, 12}},
	} {
		var got []int64
		for e := int64(8); e < 16; e++ {
			if c.g.hasSample(e) {
				got = append(got, e)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestIncrease(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]int64{{5, 9, 4}, {5, 5, 0}, {9, 5, 5}} {
		if got := increase(c[0], c[1]); got != c[2] {
			t.Errorf("increase(%d, %d) = %d, want %d", c[0], c[1], got, c[2])
		}
	}
	for v, want := range map[int64]int64{0: 1, 1<<46 - 1: 1, 1 << 46: 2, math.MaxInt64: 1 << 17} {
		if got := tolerance(v); got != want {
			t.Errorf("tolerance(%d) = %d, want %d", v, got, want)
		}
	}
}

// TestSeriesScan checks the gaps of a series from minute 10 to 15. Times are in ms, amounts follow "=".
func TestSeriesScan(t *testing.T) {
	t.Parallel()
	const ended = int64(-1)
	for name, c := range map[string]struct {
		samples []point
		spans   []span
		want    string
	}{
		"no gap":                {[]point{{600_000, 1}, {660_000, 2}, {720_000, 3}, {780_000, 3}, {840_000, 3}, {900_000, 3}, {960_000, 3}}, []span{{17, 19}}, ""},
		"an edge of the node":   {[]point{{600_000, 1}, {690_000, 2}, {750_000, 5}, {840_000, 6}, {900_000, 6}, {960_000, 3}}, []span{{12, 12}}, "690000=2 to 750000=5, minutes 11 to 12, shown 1 and 0"},
		"not at an edge":        {[]point{{600_000, 1}, {661_000, 2}, {719_999, 5}, {840_000, 6}, {900_000, 6}, {960_000, 3}}, []span{{11, 11}}, "600000=1 to 661000=2, minutes 10 to 11, shown 0 and 3"},
		"just after an edge":    {[]point{{600_000, 1}, {660_001, 2}, {780_000, 5}, {840_000, 6}, {900_000, 6}, {960_000, 6}}, []span{{12, 12}}, "660001=2 to 780000=5, minutes 11 to 12, shown 1 and 0"},
		"exactly a pause":       {[]point{{600_000, 1}, {780_000, 2}, {960_000, 3}}, nil, ""},
		"longer than a pause":   {[]point{{600_000, 1}, {780_001, 2}, {960_000, 3}}, nil, "600000=1 to 780001=2, minutes 10 to 13, shown 0 and 0"},
		"a life that ended":     {[]point{{600_000, 1}, {610_000, ended}, {810_000, 2}, {830_000, 4}, {960_000, 3}}, nil, "610000 to 810000=2, minutes 10 to 13, shown 0 and 2"},
		"a life after another":  {[]point{{600_000, 1}, {610_000, ended}, {620_000, 2}, {810_000, 3}, {900_000, 3}, {960_000, 3}}, nil, "620000=2 to 810000=3, minutes 10 to 13, shown 2 and 0"},
		"begins late":           {[]point{{810_000, 2}, {900_000, 3}, {960_000, 3}}, nil, "599999 to 810000=2, minutes 9 to 13, shown 0 and 0"},
		"begins early":          {[]point{{300_000, 2}, {900_000, 3}, {960_000, 3}}, nil, "300000=2 to 900000=3, minutes 5 to 14, shown 0 and 0"},
		"ends early":            {[]point{{600_000, 2}, {610_000, 4}}, nil, "610000=4, minutes 10 to 15, shown 2 and 0"},
		"after the range":       {[]point{{600_000, 2}, {780_000, 2}, {960_000, 2}, {1_140_000, 9}, {2_000_000, 9}}, nil, ""},
		"gap after the range":   {[]point{{600_000, 2}, {780_000, 2}, {960_000, 2}, {970_000, 3}, {1_200_000, 9}}, nil, ""},
		"ends within the range": {[]point{{600_000, 2}, {780_000, 2}, {959_999, 2}, {1_200_000, 9}}, nil, ""},
		"first edge":            {[]point{{590_000, 1}, {610_000, 4}, {780_000, 4}, {960_000, 4}}, []span{{10, 10}}, "590000=1 to 610000=4, minutes 9 to 10, shown 0 and 0"},
		"ends with the range":   {[]point{{600_000, 1}, {960_000, 5}}, nil, "600000=1 to 960000=5, minutes 10 to 15, shown 0 and 0"},
		"just after the range":  {[]point{{600_000, 1}, {970_000, 5}}, nil, "600000=1, minutes 10 to 15, shown 0 and 0"},
		"pause at the end":      {[]point{{600_000, 1}, {780_000, 2}, {850_000, 3}}, nil, ""},
		"long pause at the end": {[]point{{600_000, 1}, {780_000, 2}, {839_999, 3}}, nil, "839999=3, minutes 13 to 15, shown 1 and 0"},
		"last edge":             {[]point{{600_000, 2}, {780_000, 2}, {890_000, 3}, {900_500, 4}, {961_000, 9}}, []span{{15, 15}}, "890000=3 to 900500=4, minutes 14 to 15, shown 1 and 0"},
	} {
		s := seriesScan{res: usage.DiskRead, within: span{10, 15}, spans: c.spans}
		for _, p := range c.samples {
			v := float64(p.v)
			if p.v == ended {
				v = staleMarker
			}
			if !s.add(p.at, v) {
				break
			}
		}
		s.close(never)
		var got strings.Builder
		for _, g := range s.gaps {
			got.WriteString(fmt.Sprint(g.from))
			if g.hasStart {
				got.WriteString(fmt.Sprint("=", g.startValue))
			} else if g.startValue != 0 {
				t.Errorf("%s: no start, but value %d", name, g.startValue)
			}
			if g.hasEnd {
				fmt.Fprintf(&got, " to %d=%d", g.to, g.endValue)
			} else if g.to != never {
				t.Errorf("%s: no end, but at %d", name, g.to)
			}
			if g.cut == (g.from == 599_999) || g.res != usage.DiskRead {
				t.Errorf("%s: cut %v, %v", name, g.cut, g.res)
			}
			fmt.Fprintf(&got, ", minutes %d to %d, shown %d and %d; ", g.first, g.last, g.shownHead, g.shownTail)
		}
		if want := c.want; want != "" && got.String() != want+"; " || want == "" && got.String() != "" {
			t.Errorf("%s: %s, want %s", name, got.String(), want)
		}
	}
}

// TestUnsampledSpans checks the edges at which a node has no sample, in minutes since the begin.
func TestUnsampledSpans(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		system []float64 // times of samples of the row of the system, in minutes
		others []float64
		stale  float64 // a stale marker of the system
		within span
		end    int64
		want   []span
	}{
		"none":                     {within: span{1, 3}, end: 3, want: []span{{1, 3}}},
		"all":                      {system: []float64{1, 2, 3}, within: span{1, 3}, end: 3},
		"some":                     {system: []float64{1, 3, 6}, within: span{0, 6}, end: 6, want: []span{{0, 0}, {2, 2}, {4, 5}}},
		"the last edge":            {system: []float64{1, 2}, within: span{1, 3}, end: 3, want: []span{{3, 3}}},
		"beyond the range":         {system: []float64{1, 5}, within: span{1, 2}, end: 6, want: []span{{2, 4}}},
		"begins after the range":   {system: []float64{1, 2}, within: span{1, 2}, end: 6},
		"not at an edge":           {system: []float64{1, 2.5, 3}, within: span{1, 3}, end: 3, want: []span{{2, 2}}},
		"stale":                    {system: []float64{1, 3}, stale: 2, within: span{1, 3}, end: 3, want: []span{{2, 2}}},
		"others do not count":      {system: []float64{1, 3}, others: []float64{2}, within: span{1, 3}, end: 3, want: []span{{2, 2}}},
		"others, without residual": {others: []float64{1, 3}, within: span{1, 3}, end: 3, want: []span{{2, 2}}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				n, err := s.s.node(s.Context(), "n1")
				if err != nil {
					s.Fatal(err)
				}
				first := s.begin.UnixMilli() / minute
				app := s.s.db.Appender(s.Context())
				add := func(key string, minutes float64, v float64) {
					_, name := s.idOf(key)
					if _, err := app.Append(0, n.workloadLabels(metric.FamilyOf(usage.CPU), name.ID), s.at(minutes*60).UnixMilli(), v); err != nil {
						s.Fatal(err)
					}
				}
				for _, at := range c.system {
					add("system", at, 1)
				}
				for _, at := range c.others {
					add("a", at, 1)
				}
				if c.stale > 0 {
					add("system", c.stale, staleMarker)
				}
				if err := app.Commit(); err != nil {
					s.Fatal(err)
				}
				got, err := s.s.unsampledSpans(s.Context(), n, span{first + c.within.first, first + c.within.last}, first+c.end)
				for i := range got {
					got[i].first, got[i].last = got[i].first-first, got[i].last-first
				}
				if err != nil || !slices.Equal(got, c.want) {
					s.Errorf("%v, %v, want %v", got, err, c.want)
				}
			})
		})
	}
}

// eachCounter leaves out series of other nodes and those whose names no workload has.
func TestEachCounter(t *testing.T) {
	play(t, func(c *scene) {
		n, err := c.s.node(c.Context(), "n1")
		if err != nil {
			c.Fatal(err)
		}
		_, a := c.idOf("a")
		app := c.s.db.Appender(c.Context())
		for i, ls := range []labels.Labels{
			n.workloadLabels(metric.FamilyOf(usage.DiskRead), a.ID),
			n.workloadLabels(metric.FamilyOf(usage.EnergyRest), a.ID),
			n.workloadLabels(metric.FamilyOf(usage.DiskRead), metric.ShortLived),
			n.workloadLabels(metric.FamilyOf(usage.MemoryPeak), a.ID),
			n.workloadLabels(metric.FamilyOf(usage.DiskRead), "no id"),
			labels.FromStrings("__name__", "mete_workload_unknown_total", metric.Cluster, "c", metric.Node, "box", metric.Workload, string(a.ID)),
			labels.FromStrings("__name__", metric.FamilyOf(usage.CPU).Name, metric.Cluster, "c2", metric.Node, "box", metric.Workload, string(a.ID)),
			labels.FromStrings("__name__", metric.FamilyOf(usage.CPU).Name, metric.Cluster, "c", metric.Node, "box2", metric.Workload, string(a.ID)),
		} {
			if _, err := app.Append(0, ls, c.at(float64(i)).UnixMilli(), 1); err != nil {
				c.Fatal(err)
			}
		}
		if err := app.Commit(); err != nil {
			c.Fatal(err)
		}
		var got []string
		err = c.s.eachCounter(c.Context(), n, 0, math.MaxInt64, func(id workload.ID, short workload.ShortID, res usage.Resource, it chunkenc.Iterator) {
			if it.Next() != chunkenc.ValFloat || (short == shortLivedID) != (id == metric.ShortLived) {
				c.Error(id, short)
			}
			at, _ := it.At()
			got = append(got, fmt.Sprintf("%s %v %s", c.seconds(at), res, c.names[id]))
		})
		slices.Sort(got)
		want := []string{"0 disk_read a", "1 energy_rest a", "2 disk_read "}
		if err != nil || !slices.Equal(got, want) {
			c.Errorf("%q, %v, want %q", got, err, want)
		}
	})
}

// TestIntervalBounds checks which windows count as adjacent: those up to a second apart.
func TestIntervalBounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to int64
		want     intervals
	}{
		{21_000, 22_000, intervals{{10_000, 22_000}}},
		{21_001, 22_000, intervals{{10_000, 20_000}, {21_001, 22_000}}},
		{8_000, 9_000, intervals{{8_000, 20_000}}},
		{8_000, 8_999, intervals{{8_000, 8_999}, {10_000, 20_000}}},
	} {
		if got := (intervals{{10_000, 20_000}}).add(c.from, c.to); !slices.Equal(got, c.want) {
			t.Errorf("%d to %d: %v, want %v", c.from, c.to, got, c.want)
		}
	}
	var s intervals
	if s.latestStart() != 0 {
		t.Error("no interval has a start")
	}
	for i := range int64(maxIntervals) {
		s = s.add(i*60e3, i*60e3+1)
	}
	if len(s) != maxIntervals || s[0].from != 0 {
		t.Errorf("%d intervals from %d", len(s), s[0].from)
	}
}

// TestNameOfContainer checks that a container whose agent has just started, and knows its id only, keeps its name.
func TestNameOfContainer(t *testing.T) {
	key := strings.Repeat("0123456789abcdef", 4)
	id := batch.Name{Kind: workload.Container, Key: key, Name: key[:12]}
	web := batch.Name{Kind: workload.Container, Key: key, Name: "web", Job: "shop", Labels: map[string]string{batch.LabelContainer: "nginx"}}
	for _, c := range []struct{ was, now, want batch.Name }{{web, id, web}, {id, web, web}, {batch.Name{}, id, id}, {web, batch.Name{Kind: workload.Container, Key: key, Name: "www"}, batch.Name{Name: "www"}}} {
		if got := withPlace(&c.now, seriesNameOf(&c.was)); got.name != c.want.Name || got.job != c.want.Job || got.container != c.want.Labels[batch.LabelContainer] {
			t.Errorf("%q after %q: %+v, want %+v", c.now.Name, c.was.Name, got, c.want)
		}
	}
}

// TestNames checks the names of workloads: limits, renames, ids that begin alike.
func TestNames(t *testing.T) {
	t.Parallel()
	system, idle := residuals("n1")[0], residuals("n1")[1]
	n := &node{id: "n1", residuals: residuals("n1"), workloads: map[workload.ShortID]*namedWorkload{}, shortLived: &namedWorkload{}, quota: seriesQuota{limit: 2}}
	name := func(kind workload.Kind, key, text string) (workload.ShortID, batch.Name) {
		id := workload.NewID("n1", kind, key)
		short, _ := workload.ShortIDOf(id)
		return short, batch.Name{ID: id, Kind: kind, Name: text}
	}
	a, nameA := name(workload.Container, "a", "a")
	b, nameB := name(workload.Container, "b", "b")
	x, nameX := name(workload.Container, "x", "x")
	_, nameSystem := name(workload.System, "", "system")
	n.setNames([]batch.Name{{ID: "not an id"}, nameA, nameB})
	if len(n.workloads) != 2 || n.full || n.workloads[a].name != "a" || n.workloads[b].id != nameB.ID {
		t.Fatalf("%v, full %v", n.workloads, n.full)
	}
	if !n.exceedsLimit(x) || n.exceedsLimit(system) || n.exceedsLimit(idle) {
		t.Error("the limit of two workloads applies to those that are residual, or not to others")
	}
	n.setNames([]batch.Name{nameX, nameSystem})
	if n.workloads[x] != nil || n.workloads[system] == nil || !n.full {
		t.Errorf("%v, full %v", n.workloads, n.full)
	}
	delete(n.workloads, system)
	delete(n.workloads, b)
	if !n.exceedsLimit(x) || n.exceedsLimit(idle) {
		t.Error("there is room for a workload whose name was not looked up")
	}
	n.full = false
	if n.exceedsLimit(x) {
		t.Error("no room for a second workload")
	}
	// A workload whose id begins with the same bytes does not get the series.
	n.workloads[b] = &namedWorkload{id: nameA.ID, seriesName: seriesNameOf(&nameA)}
	if n.setNames([]batch.Name{nameB}); n.workloads[b].name != "a" {
		t.Errorf("renamed to %s", n.workloads[b].name)
	}
	// A new name ends the series of the old one, as often as the quota allows.
	k := n.workloads[a]
	k.info = 7
	if n.setNames([]batch.Name{nameA}); k.info != 7 || len(n.outdated) > 0 {
		t.Error("the same name ends a series")
	}
	for i, v := range []struct {
		text string
		ref  int
	}{{"a1", 0}, {"a2", 0}, {"a2", 9}} {
		k.info = 9
		nameA.Name = fmt.Sprint("a", i+1)
		if n.setNames([]batch.Name{nameA}); k.name != v.text || int(k.info) != v.ref || len(n.outdated) != min(i+1, 2) {
			t.Errorf("name %d: %s, reference %d, outdated %v", i, k.name, k.info, n.outdated)
		}
	}
	k.info = 0
	if n.setNames([]batch.Name{nameA}); k.name != "a3" || len(n.outdated) != 2 {
		t.Errorf("without a series: %s", k.name)
	}
}

// TestNodeWindow checks the coverage of a node by its windows, and the time of late ones.
func TestNodeWindow(t *testing.T) {
	t.Parallel()
	n := &node{}
	for i, c := range []struct {
		boot       string
		start, end int64
		from, to   int64
		want       intervals
	}{
		{"b", 1, 2, 10_000, 20_000, intervals{{10_000, 20_000}}},
		{"b", 2, 3, 30_000, 40_000, intervals{{10_000, 40_000}}}, // the clock was set
		{"b", 1, 2, 10_000, 20_000, intervals{{10_000, 40_000}}}, // late
		{"b", 3, 4, 50_000, 60_000, intervals{{10_000, 60_000}}},
		{"b", 5, 6, 70_000, 80_000, intervals{{10_000, 60_000}, {70_000, 80_000}}},
		{"c", 6, 7, 90_000, 95_000, intervals{{10_000, 60_000}, {70_000, 80_000}, {90_000, 95_000}}},
		{"c", 7, 8, 95_000, 95_000, intervals{{10_000, 60_000}, {70_000, 80_000}, {90_000, 95_000}}}, // within a ms
		{"c", 8, 9, 105_000, 106_000, intervals{{10_000, 60_000}, {70_000, 80_000}, {90_000, 106_000}}},
	} {
		n.addWindow(&usage.Window{Boot: c.boot, Start: c.start, End: c.end}, c.from, c.to)
		n.noteEnd(c.to)
		if late := c.to < n.end; (n.lastLate.Swap(0) != 0) != late {
			t.Errorf("window %d: late %v", i, !late)
		}
		n.end = max(n.end, c.to)
		if !slices.Equal(n.coverage, c.want) || n.newestEnd.Load() != n.end {
			t.Errorf("window %d: %v, newest end %d, want %v", i, n.coverage, n.newestEnd.Load(), c.want)
		}
	}
}

// TestShortLivedBounds checks the limits of a short life.
func TestShortLivedBounds(t *testing.T) {
	t.Parallel()
	const at = int64(1000)
	end := time.UnixMilli((at + 1) * minute)
	for name, c := range map[string]struct {
		w     workloadBackfill
		ended time.Time
		want  bool
	}{
		"longest":        {workloadBackfill{first: at - 1, last: at, covered: maxShortLife}, end.Add(maxShortLife - time.Millisecond), true},
		"three minutes":  {workloadBackfill{first: at - 2, last: at, covered: maxShortLife}, end, false},
		"covered longer": {workloadBackfill{first: at, last: at, covered: maxShortLife + 1}, end, false},
		"ended later":    {workloadBackfill{first: at, last: at, covered: maxShortLife}, end.Add(maxShortLife), false},
	} {
		if got := c.w.isShortLived(&batch.Name{Ended: c.ended}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	full := usage.Row{Ended: true, Has: usage.SetOf(usage.CPU, usage.Memory)}
	full.Total[usage.CPU], full.Total[usage.Memory] = 3, 4
	full.Usage.Amount = full.Total
	later := full
	later.Total[usage.Memory] = 5
	alive := full
	alive.Ended = false
	if !full.IsWholeLife() || later.IsWholeLife() || alive.IsWholeLife() {
		t.Error("a row with all of a life is not that of a short-lived workload, or another one is")
	}
}

// TestNodeBackfillRange checks which minutes a backfill reads.
func TestNodeBackfillRange(t *testing.T) {
	t.Parallel()
	n := &node{id: "n1", residuals: residuals("n1"), shortLived: &namedWorkload{}}
	for _, c := range []struct {
		within      span
		spans       []span
		first, last int64
	}{
		{span{1000, 1010}, nil, 820, 1018},
		{span{1000, 1010}, []span{{1001, 1002}, {1008, 1030}}, 820, 1038},
		{span{100, 110}, []span{{105, 106}}, 0, 118},
		{span{1000, 1010}, []span{{1008, 1030}}, 820, 1038},
	} {
		nb := newNodeBackfill(backfillJob{node: n}, c.within, c.spans, 6*time.Minute)
		if nb.first != c.first || nb.last != c.last {
			t.Errorf("%v, %v: from %d to %d, want %d, %d", c.within, c.spans, nb.first, nb.last, c.first, c.last)
		}
		for m, want := range map[int64]bool{c.first - 1: false, c.first: true, c.last - 1: true, c.last: false} {
			if nb.contains(m) != want {
				t.Errorf("from %d to %d: contains %d: %v", c.first, c.last, m, !want)
			}
		}
		for _, sp := range c.spans {
			for e, want := range map[int64]bool{sp.first - 1: false, sp.first: true, sp.last: true, sp.last + 1: false} {
				if nb.isUnsampled(e) != want {
					t.Errorf("%v: edge %d is without samples: %v", c.spans, e, !want)
				}
			}
		}
	}
}

// TestScan checks which series a backfill knows: those with a value in the range that it reads.
func TestScan(t *testing.T) {
	play(t, func(c *scene) {
		n, err := c.s.node(c.Context(), "n1")
		if err != nil {
			c.Fatal(err)
		}
		app := c.s.db.Appender(c.Context())
		for _, s := range []struct {
			key string
			at  float64
			v   float64
		}{{"a", 3600, 1}, {"a", 3700, 2}, {"a", 3930, 5}, {"ended", 3600, staleMarker}, {"early", 3599.999, 4}, {"last", 4020, 6}} {
			_, name := c.idOf(s.key)
			if _, err := app.Append(0, n.workloadLabels(metric.FamilyOf(usage.DiskRead), name.ID), c.at(s.at).UnixMilli(), s.v); err != nil {
				c.Fatal(err)
			}
		}
		if err := app.Commit(); err != nil {
			c.Fatal(err)
		}
		first := c.at(0).UnixMilli() / minute
		within := span{first + 61, first + 66}
		nb := newNodeBackfill(backfillJob{node: n}, within, []span{{first + 64, first + 65}}, 0)
		nb.first, nb.last = first+60, first+68
		if err := c.s.scan(c.Context(), nb); err != nil {
			c.Fatal(err)
		}
		var got []string
		for short, wb := range nb.workloads {
			for _, key := range []string{"a", "ended", "early", "last"} {
				if s, _ := c.idOf(key); s == short {
					var text strings.Builder
					text.WriteString(key)
					if wb.sampled != usage.SetOf(usage.DiskRead) {
						c.Errorf("%s has samples of %v", key, wb.sampled)
					}
					for _, g := range wb.gaps {
						fmt.Fprintf(&text, " %s", c.seconds(g.from))
						if g.hasEnd {
							fmt.Fprintf(&text, "-%s", c.seconds(g.to))
						}
					}
					got = append(got, text.String())
				}
			}
		}
		slices.Sort(got)
		if want := []string{"a 3700-3930", "last 3659.999-4020"}; !slices.Equal(got, want) {
			c.Errorf("%q, want %q", got, want)
		}
	})
}

// TestMemoryOfWorkload: a server may have a million workloads in memory, so each holds little.
func TestMemoryOfWorkload(t *testing.T) {
	k := &namedWorkload{}
	for i, res := range []usage.Resource{usage.Memory, usage.CPU, usage.DiskRead} {
		k.of(res).total = int64(i)
	}
	if k.had.Len() != 3 || k.of(usage.CPU).total != 1 || k.of(usage.Memory).total != 0 || k.of(usage.DiskRead).total != 2 || len(k.series) != 3 {
		t.Errorf("resources %v: %v", k.had, k.series)
	}
	if size := unsafe.Sizeof(*k); size > 256 {
		t.Errorf("%d bytes of a workload without series", size)
	}
}
