package book

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/schema"
)

// Shares come back as they were packed. Cut bytes have the first of them.
func TestPackShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []power.Share
		for n := rapid.IntRange(0, 5).Draw(t, "shares"); n > 0; n-- {
			v := rapid.Int64Range(-1<<60, 1<<60)
			all = append(all, power.Share{N: v.Draw(t, "n"), Active: v.Draw(t, "active"), Idle: v.Draw(t, "idle")})
		}
		packed := packShares(all)
		if got := unpackShares(packed); !slices.Equal(got, all) {
			t.Fatalf("%v, want %v", got, all)
		}
		if len(packed) > 0 {
			cut := unpackShares(packed[:rapid.IntRange(0, len(packed)-1).Draw(t, "cut")])
			if len(cut) >= len(all) || !slices.Equal(cut, all[:len(cut)]) {
				t.Fatalf("cut: %v of %v", cut, all)
			}
		}
	})
	var got []string
	for part := range splitEpochs([]power.Share{{Epoch: "a", N: 1}, {Epoch: "a", N: 2}, {Epoch: "b", N: 3}, {Epoch: "a", N: 4}}) {
		got = append(got, fmt.Sprintf("%s%d%d", part[0].Epoch, len(part), cap(part)))
	}
	if want := []string{"a22", "b11", "a11"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for range splitEpochs([]power.Share{{Epoch: "a"}, {Epoch: "b"}}) { // panics if it goes on
		break
	}
	if got := dayOf(int64(49*time.Hour) + 5); got != 2*schema.DayMinutes {
		t.Errorf("49 hours are on the day of minute %d", got)
	}
}

// The owner of minutes is the host that had the guest for the longest part of them, and of two with
// equal parts the one that was known first.
func TestOwnerOf(t *testing.T) {
	const m = int64(time.Minute)
	of := func(host, from, to int64) stay { return stay{host: host, workload: host * 10, from: from, to: to} }
	for name, c := range map[string]struct {
		stays    []stay
		from, to int64
		want     int64
	}{
		"none":                {nil, 0, 1, 0},
		"all of it":           {[]stay{of(3, 0, m)}, 0, 1, 3},
		"ends before":         {[]stay{of(3, 0, m)}, 1, 2, 0},
		"begins after":        {[]stay{of(3, 2*m, 3*m)}, 1, 2, 0},
		"a moment":            {[]stay{of(3, 2*m-1, 3*m)}, 1, 2, 3},
		"a moment before":     {[]stay{of(3, 0, m+1)}, 1, 2, 3},
		"longer part":         {[]stay{of(3, 0, m/3), of(5, m/3, m)}, 0, 1, 5},
		"longer part first":   {[]stay{of(5, 0, 2*m/3), of(3, 2*m/3, m)}, 0, 1, 5},
		"equal parts":         {[]stay{of(5, 0, m/2), of(3, m/2, m)}, 0, 1, 3},
		"equal parts in turn": {[]stay{of(3, 0, m/2), of(5, m/2, m)}, 0, 1, 3},
		"two stays together":  {[]stay{of(5, 0, m/4), of(3, m/4, 5*m/8), of(5, 5*m/8, m)}, 0, 1, 5},
		"outside of it":       {[]stay{of(5, -9*m, m/4), of(3, m/4, m)}, 0, 1, 3},
		"after it":            {[]stay{of(3, 0, 3*m/4), of(5, 3*m/4, 9*m)}, 0, 1, 3},
		"id without a key":    {[]stay{of(schema.EndWithin, 0, m)}, 0, 1, 0},
		"last id":             {[]stay{of(schema.EndWithin-1, 0, m)}, 0, 1, schema.EndWithin - 1},
	} {
		got := ownerOf(c.stays, 0, c.from, c.to)
		if got.host != c.want || got.workload != c.want*10 {
			t.Errorf("%s: %+v, want host %d", name, got, c.want)
		}
	}
}

// The changed minutes are those in which a moment has other hosts than before, up to the minute of an
// instant.
func TestChangedMinutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(what string) (list []stay) {
			for n := rapid.IntRange(0, 3).Draw(t, what); n > 0; n-- {
				from := rapid.Int64Range(0, 40).Draw(t, "from")
				list = append(list, stay{host: rapid.Int64Range(1, 2).Draw(t, "host"), from: from * int64(15*time.Second), to: (from + rapid.Int64Range(1, 20).Draw(t, "length")) * int64(15*time.Second)})
			}
			return list
		}
		a, b, through := draw("before"), draw("after"), rapid.Int64Range(1, 60).Draw(t, "through")
		hosts := func(stays []stay, slot int64) (found [3]bool) {
			for _, s := range stays {
				if at := slot * int64(15*time.Second); s.from <= at && at < s.to {
					found[s.host] = true
				}
			}
			return found
		}
		want := map[int64]bool{}
		for slot := range (through + 3) / 4 * 4 {
			if hosts(a, slot) != hosts(b, slot) {
				want[slot/4] = true
			}
		}
		got := map[int64]bool{}
		last := int64(-1)
		for _, r := range changedMinutes(a, b, through*int64(15*time.Second)) {
			if r[0] <= last || r[1] <= r[0] {
				t.Fatalf("range %v after minute %d", r, last)
			}
			last = r[1]
			for m := r[0]; m < r[1]; m++ {
				got[m] = true
			}
		}
		if !cmp.Equal(got, want) {
			t.Fatalf("%v, want %v: %v to %v", got, want, a, b)
		}
	})
}

// A node measures a run if it booked the run first, or its boottime is at most a minute ahead of it.
func TestFits(t *testing.T) {
	const began, now = int64(1e18), int64(1e18 + 3600e9)
	for name, c := range map[string]struct {
		r    kernelRun
		at   int64
		want bool
	}{
		"owner":       {kernelRun{owner: 1, began: began}, now, true},
		"not known":   {kernelRun{owner: 2}, now, true},
		"as it is":    {kernelRun{owner: 2, began: began}, 3600e9, true},
		"paused":      {kernelRun{owner: 2, began: began}, 60e9, true},
		"a bit ahead": {kernelRun{owner: 2, began: began}, 3660e9, true},
		"ahead":       {kernelRun{owner: 2, began: began}, 3660e9 + 1, false},
	} {
		if got := c.r.fits(&bookedNode{id: 1}, c.at, now); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	c := clock{boot: "b", boottime: 7}
	if c.at(batch.Measured{Boot: "b", To: 5}) != 7 || c.at(batch.Measured{Boot: "a", To: 5}) != 5 {
		t.Error("the boottime of what was measured")
	}
	some, run := []bookedRange{{}}, kernelRun{highest: 10e9}
	for name, r := range map[string]struct {
		ranges   []bookedRange
		boot     string
		boottime int64
		want     bool
	}{
		"restored": {some, "b", 8e9 - 1, true}, "in transit": {some, "b", 8e9, false}, "not booked": {nil, "b", 0, false}, "earlier boot": {some, "a", 0, false},
	} {
		if got := isRestored(run, batch.Measured{Boot: "b"}, r.boot, r.boottime, r.ranges); got != r.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	ranges := []bookedRange{{from: 0, to: 4}, {from: 4, to: 9}, {from: 9, to: 12}}
	for at, want := range map[int64]string{4: "[0-4]", 6: "[0-4 4-6]", 9: "[0-4 4-9]", 10: "[0-4 4-9 9-10]", 2: "[]", 99: "[0-4 4-9 9-12]"} {
		var got []string
		for _, r := range trimRanges(ranges, batch.Measured{From: 2}, at) {
			got = append(got, fmt.Sprintf("%d-%d", r.from, r.to))
		}
		if fmt.Sprint(got) != want || ranges[2].to != 12 {
			t.Errorf("up to %d: %v, want %s", at, got, want)
		}
	}
}

// The energies of rows are kept by workload, whatever host it is within, and nothing else is.
func TestEnergies(t *testing.T) {
	var rows []external.Row
	want := map[int64]usage.Usage{}
	for i, q := range []usage.Quality{usage.Measured, usage.Apportioned, usage.Modelled} {
		r := external.Row{Key: schema.Key(int64(i+1), int64(i))}
		for j, res := range energies {
			if (i+j)%2 == 0 {
				r.Usage.Put(res, int64(100*i+j), q)
			}
		}
		want[int64(i+1)] = r.Usage
		r.Usage.Put(usage.CPU, 5, usage.Measured)
		r.Usage.Covered = time.Minute
		rows = append(rows, r)
	}
	other := external.Row{Key: 9}
	other.Usage.Put(usage.CPU, 5, usage.Measured)
	idle := rows[0]
	idle.Key = 0
	stored := encodeEnergies(append(rows, other, idle))
	if stored[0] != 1 {
		t.Errorf("energies have format %d, which ledgers that exist do not have", stored[0])
	}
	got, err := decodeEnergies(stored)
	if err != nil || !cmp.Equal(got, want) {
		t.Fatalf("%v, %v, want %v", got, err, want)
	}
	whole := 0
	for n := range len(stored) {
		switch got, err := decodeEnergies(stored[:n]); {
		case n == 0:
			if !errors.Is(err, fault.ErrUnsupported) {
				t.Errorf("nothing: %v", err)
			}
		case err == nil:
			if whole++; len(got) >= len(want) {
				t.Errorf("%d of %d bytes: %v", n, len(stored), got)
			}
		case !errors.Is(err, io.ErrUnexpectedEOF):
			t.Errorf("%d of %d bytes: %v", n, len(stored), err)
		}
	}
	if whole != len(want) { // none of the rows, one and two
		t.Errorf("%d beginnings are whole, want %d", whole, len(want))
	}
	stored[0]++
	if _, err := decodeEnergies(stored); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("another version: %v", err)
	}
	u := rows[1].Usage
	w := want[3]
	replaceEnergies(&u, &w)
	if v, ok := u.Get(usage.CPU); !ok || v != 5 || u.Covered != time.Minute {
		t.Errorf("other resources: %+v", u)
	}
	for _, res := range energies {
		v, ok := u.Get(res)
		x, has := w.Get(res)
		if v != x || ok != has || u.Quality.Get(res) != w.Quality.Get(res) {
			t.Errorf("%s: %d, %t, want %d, %t", res, v, ok, x, has)
		}
	}
}

// A newer name replaces the texts that it has, an older one fills in those that are missing.
func TestMerge(t *testing.T) {
	exit := 3
	full := batch.Name{
		ID: "id", Kind: workload.Job, Key: "key", Name: "name", Path: "path", Parent: "parent", Job: "job", User: "user", Project: "project",
		Started: time.Unix(5, 0), Ended: time.Unix(9, 0), Exit: &exit,
		Labels: map[string]string{batch.LabelNamespace: "namespace", batch.LabelPod: "pod", batch.LabelContainer: "container"},
	}
	code := int64(3)
	want := workloadRow{id: "id", kind: "job", key: "key", name: "name", path: "path", parent: "parent", job: "job", username: "user", project: "project",
		namespace: "namespace", pod: "pod", container: "container", started: 5e9, ended: 9e9, exit: &code, at: 10, known: 10}
	row := workloadRow{}.merge(&full, 10)
	if !row.isEqual(&want) || row.at != 10 {
		t.Fatalf("%+v", row)
	}
	if n := row.newText(&workloadRow{}); n != len("key")+len("name")+len("path")+len("job")+len("user")+len("project")+len("namespace")+len("pod")+len("container") {
		t.Errorf("%d bytes of texts", n)
	}
	if n := row.newText(&row); n != 0 {
		t.Errorf("%d bytes are new", n)
	}
	if got := row.groupKeys(); got != [5]string{"namespace", "job", "user", "project", "job"} {
		t.Errorf("groups by %q", got)
	}
	for _, at := range []int64{9, 10, 11} {
		if got := row.merge(&batch.Name{ID: "id"}, at); !got.isEqual(&row) || got.at != max(10, at) {
			t.Errorf("an empty name changes %+v", got)
		}
	}
	zero := 0
	other := batch.Name{ID: "id", Kind: workload.Container, Key: "k", Name: "n", Path: "p", Parent: "q", Job: "j", User: "u", Project: "r", Started: time.Unix(6, 0), Ended: time.Unix(8, 0), Exit: &zero,
		Labels: map[string]string{batch.LabelNamespace: "ns", batch.LabelPod: "po", batch.LabelContainer: "co"}}
	if got := row.merge(&other, 9); !got.isEqual(&row) {
		t.Errorf("an older name changes %+v", got)
	}
	none := int64(0)
	want = workloadRow{id: "id", kind: "container", key: "k", name: "n", path: "p", parent: "q", job: "j", username: "u", project: "r",
		namespace: "ns", pod: "po", container: "co", started: 6e9, ended: 8e9, exit: &none, at: 10, known: 10}
	if got := row.merge(&other, 10); !got.isEqual(&want) {
		t.Errorf("a newer name: %+v", got)
	}
	if got := (workloadRow{at: 10, name: "x"}).merge(&full, 9); got.name != "x" || got.key != "key" || got.started != 5e9 || *got.exit != 3 || got.at != 10 {
		t.Errorf("an older name fills in: %+v", got)
	}
	// The first digits of a container's id replace no name: an agent that has just started knows no other.
	container := batch.Name{ID: "id", Kind: workload.Container, Key: strings.Repeat("0123456789abcdef", 4), Name: "0123456789ab"}
	for was, want := range map[string]string{"": "0123456789ab", "web": "web"} {
		if got := (workloadRow{id: "id", name: was, at: 5}).merge(&container, 9); got.name != want || got.at != 9 {
			t.Errorf("%q is named %q at %d, want %q", was, got.name, got.at, want)
		}
	}
	if container.Name = "db"; (workloadRow{id: "id", name: "web"}).merge(&container, 9).name != "db" {
		t.Error("a container keeps its former name")
	}
	// A service that is started again has not ended; a job of mete run has ended once it has.
	for _, c := range []struct {
		kind                  workload.Kind
		was, at, ended, named int64
		want                  int64
	}{
		{workload.Service, 0, 0, 5, 9, 5}, {workload.Service, 5, 9, 0, 9, 0}, {workload.Service, 9, 9, 0, 9, 9}, {workload.Service, 5, 5, 15, 19, 15},
		{workload.Service, 0, 19, 5, 9, 0}, {workload.Service, 15, 19, 5, 9, 15}, {workload.Job, 5, 9, 0, 19, 5}, {workload.Job, 0, 19, 5, 9, 5},
	} {
		n := batch.Name{ID: "id", Kind: c.kind, Ended: schema.FromNanos(c.ended)}
		if got := (workloadRow{id: "id", ended: c.was, at: c.at}).merge(&n, c.named); got.ended != c.want {
			t.Errorf("%v: %d after the name at %d, want %d", c, got.ended, c.named, c.want)
		}
	}
	for _, changed := range []workloadRow{{}, {exit: &none}, {exit: &code, name: "x"}} {
		if o := (workloadRow{exit: &code}); o.isEqual(&changed) || changed.isEqual(&o) {
			t.Errorf("%+v is equal", changed)
		}
	}
	three := int64(3)
	if o, p := (workloadRow{exit: &code, at: 1}), (workloadRow{exit: &three, at: 2}); !o.isEqual(&p) {
		t.Error("equal rows of another age are not equal")
	}
}

// A job does not say what pod it is, and on the node of jobs not whose project. A job keeps its user.
func TestRestrict(t *testing.T) {
	labels := map[string]string{batch.LabelPod: "pod", "team": "a"}
	for _, c := range []struct {
		kind    workload.Kind
		ofJobs  bool
		labels  map[string]string
		project string
		want    string
	}{
		{workload.Job, false, labels, "p", "map[team:a] p"},
		{workload.Job, true, labels, "p", "map[team:a] "},
		{workload.Container, false, labels, "p", fmt.Sprint(labels, " p")},
		{workload.Container, true, labels, "p", "map[team:a] "},
		{workload.Job, true, nil, "p", "map[] "},
		{workload.Job, false, map[string]string{"team": "a"}, "p", "map[team:a] p"},
		{workload.Job, true, map[string]string{"team": "a"}, "", "map[team:a] "},
	} {
		n := &batch.Name{Kind: c.kind, Labels: c.labels, Project: c.project}
		got := restrictJob(n, c.ofJobs)
		if text := fmt.Sprint(got.Labels, " ", got.Project); text != c.want || n.Project != c.project || len(n.Labels) != len(c.labels) {
			t.Errorf("%v, %t: %q, want %q", c.kind, c.ofJobs, text, c.want)
		}
	}
	for _, c := range []struct {
		was, is string
		kind    workload.Kind
		kept    bool
	}{
		{"ann", "bob", workload.Job, false}, {"ann", "ann", workload.Job, true}, {"", "bob", workload.Job, true}, {"ann", "", workload.Job, true},
		{"1000", "bob", workload.Job, true}, {"10a", "bob", workload.Job, false}, {"ann", "bob", workload.Container, true}, {"a", "a\x00", workload.Job, true},
	} {
		n := &batch.Name{Kind: c.kind, User: c.is, Name: "n", Job: "j", Project: "p", Path: "/", Labels: labels}
		got := (&workloadRow{username: c.was}).restrictToOwner(n)
		if kept := got == n; kept != c.kept || got.Path != "/" || !kept && (got.Name+got.Job+got.User+got.Project != "" || got.Labels != nil) {
			t.Errorf("%q to %q: %+v", c.was, c.is, got)
		}
	}
}

// A row that is too large for a minute is spilled into the next ones, with the same sums.
func TestSpillSums(t *testing.T) {
	s := &schema.Layout{Key: "k", Columns: append(slices.Clone(schema.UsageLayout.Columns[:schema.ColRest]), schema.Column{Name: "sum"}, schema.Column{Name: "peak", Merge: schema.MergeMax}, schema.Column{Name: "skew", Signed: true})}
	const most = schema.MaxMinuteAmount
	for _, v := range []int64{0, 1, most, most + 1, 2 * most, 2*most + 1, math.MaxInt64} {
		for _, skew := range []int64{0, -most, -most - 1, math.MinInt64 + 1} {
			rows := spill(s, []int64{7, 1, 6 | schema.HoldsHour, 8, 60000, v, 5, skew})
			n := max((v-1)/most, (-skew-1)/most) + 1
			if int64(len(rows)) != n {
				t.Errorf("%d and %d: %d rows, want %d", v, skew, len(rows), n)
			}
			sums := make([]int64, len(s.Columns))
			for i, r := range rows {
				if r[0] != 7 || i > 0 && (r[1] != 0 || r[2] != 6&(schema.HoldsHour|schema.HoldsDay)|schema.HoldsHour || r[3] != 0 || r[4] != 0 || r[6] != 0) {
					t.Errorf("%d and %d: row %d is %v", v, skew, i, r)
				}
				for _, c := range []int{5, 7} {
					if sums[c] += r[c]; r[c] > most || r[c] < -most {
						t.Errorf("%d and %d: row %d is %v", v, skew, i, r)
					}
				}
			}
			if sums[5] != v || sums[7] != skew {
				t.Errorf("%d and %d: sums %v", v, skew, sums)
			}
		}
	}
}

// An entry that cannot be stored is refused before anything is written.
func TestCheckEntry(t *testing.T) {
	for name, c := range map[string]struct {
		change func(e *batch.Entry)
		ok     bool
	}{
		"least":            {func(*batch.Entry) {}, true},
		"last number":      {func(e *batch.Entry) { e.Number = math.MaxInt64 - 1 }, true},
		"no number":        {func(e *batch.Entry) { e.Number = 0 }, false},
		"number too large": {func(e *batch.Entry) { e.Number = math.MaxInt64 }, false},
		"last minute":      {func(e *batch.Entry) { e.Minutes[0].Minute, e.Nodes[0].Minute = schema.EndMinute-1, schema.EndMinute-1 }, true},
		"minute too late":  {func(e *batch.Entry) { e.Minutes[0].Minute = schema.EndMinute }, false},
		"minute below 0":   {func(e *batch.Entry) { e.Minutes[0].Minute = -1 }, false},
		"covered below 0":  {func(e *batch.Entry) { e.Minutes[0].Usage.Covered = -1 }, false},
		"amount below 0":   {func(e *batch.Entry) { e.Minutes[0].Usage.Put(usage.CPU, -1, usage.Measured) }, false},
		"amount too large": {func(e *batch.Entry) { e.Minutes[0].Usage.Put(usage.CPU, schema.MaxMinuteAmount+1, usage.Measured) }, false},
		"node too late":    {func(e *batch.Entry) { e.Nodes[0].Minute = schema.EndMinute }, false},
		"node below 0":     {func(e *batch.Entry) { e.Nodes[0].Minute = -1 }, false},
		"node covered":     {func(e *batch.Entry) { e.Nodes[0].Covered = -1 }, false},
		"total":            {func(e *batch.Entry) { e.Nodes[0].Total.Put(usage.CPU, -1, usage.Measured) }, false},
		"CPUs":             {func(e *batch.Entry) { e.Nodes[0].CPUs = -1 }, false},
		"violations":       {func(e *batch.Entry) { e.Nodes[0].Violations = -1 }, false},
		"lost":             {func(e *batch.Entry) { e.Nodes[0].Lost = -1 }, false},
		"whole":            {func(e *batch.Entry) { e.Nodes[0].Whole[1] = -1 }, false},
		"skew of either": {func(e *batch.Entry) {
			e.Nodes[0].Skew[0], e.Nodes[0].Skew[1] = schema.MaxMinuteAmount, -schema.MaxMinuteAmount
		}, true},
		"skew too large":     {func(e *batch.Entry) { e.Nodes[0].Skew[0] = schema.MaxMinuteAmount + 1 }, false},
		"skew far below 0":   {func(e *batch.Entry) { e.Nodes[0].Skew[0] = -schema.MaxMinuteAmount - 1 }, false},
		"bad row after good": {func(e *batch.Entry) { e.Nodes = append([]batch.NodeMinute{{Lost: -1}}, e.Nodes...) }, false},
	} {
		e := &batch.Entry{Number: 1, Minutes: make([]batch.Minute, 1), Nodes: make([]batch.NodeMinute, 1)}
		c.change(e)
		if err := checkEntry(e); (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
