package batch_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestMeasuredBy checks what windows measured: windows that adjoin are one, unless the later one also
// covers a pause, and what nothing can overlap with is left out.
func TestMeasuredBy(t *testing.T) {
	w := func(boot string, scope usage.Scope, start, end int64, reason usage.StartReason) usage.Window {
		return usage.Window{Boot: boot, Extent: usage.Extent{Scope: scope}, Start: start, End: end, StartReason: reason, Offset: 1}
	}
	// of is a window of these workloads.
	of := func(w usage.Window, ids ...workload.ShortID) usage.Window {
		for _, id := range ids {
			w.Rows = append(w.Rows, usage.Row{ShortID: id})
		}
		return w
	}
	in := func(w usage.Window, a usage.Ancestors) usage.Window {
		w.Ancestors = a
		return w
	}
	m := func(boot string, scope usage.Scope, from, to int64, resumed bool, of workload.ShortID) batch.Measured {
		return batch.Measured{Boot: boot, Extent: usage.Extent{Scope: scope}, Workload: of, From: from, To: to, Resumed: resumed, Offset: 3}
	}
	elsewhere := m("b", "cgroup:7", 1, 2, false, 0)
	elsewhere.Ancestors = "0:8"
	const on, after = usage.StartContinued, usage.StartResumed
	for name, c := range map[string]struct {
		windows []usage.Window
		want    []batch.Measured
	}{
		"none":            {nil, nil},
		"one":             {[]usage.Window{w("b", "/", 1, 2, on)}, []batch.Measured{m("b", "/", 1, 2, false, 0)}},
		"adjacent":        {[]usage.Window{w("b", "/", 1, 2, on), w("b", "/", 2, 5, on), w("b", "/", 5, 6, on)}, []batch.Measured{m("b", "/", 1, 6, false, 0)}},
		"first":           {[]usage.Window{w("b", "/", 0, 2, usage.StartFirst), w("b", "/", 2, 5, on)}, []batch.Measured{m("b", "/", 0, 5, false, 0)}},
		"a gap":           {[]usage.Window{w("b", "/", 1, 2, on), w("b", "/", 3, 5, on)}, []batch.Measured{m("b", "/", 1, 2, false, 0), m("b", "/", 3, 5, false, 0)}},
		"back in time":    {[]usage.Window{w("b", "/", 2, 4, on), w("b", "/", 1, 3, on)}, []batch.Measured{m("b", "/", 2, 4, false, 0), m("b", "/", 1, 3, false, 0)}},
		"another boot":    {[]usage.Window{w("b", "/", 1, 2, on), w("c", "/", 2, 5, on)}, []batch.Measured{m("b", "/", 1, 2, false, 0), m("c", "/", 2, 5, false, 0)}},
		"another scope":   {[]usage.Window{w("b", "/", 1, 2, on), w("b", "cgroup:7", 2, 5, on)}, []batch.Measured{m("b", "/", 1, 2, false, 0), m("b", "cgroup:7", 2, 5, false, 0)}},
		"resumed":         {[]usage.Window{w("b", "/", 1, 2, on), w("b", "/", 2, 5, after), w("b", "/", 5, 7, on)}, []batch.Measured{m("b", "/", 1, 2, false, 0), m("b", "/", 2, 7, true, 0)}},
		"a job":           {[]usage.Window{of(w("b", "/", 1, 2, on), 7), of(w("b", "/", 2, 3, on), 7)}, []batch.Measured{m("b", "/", 1, 3, false, 7)}},
		"another job":     {[]usage.Window{of(w("b", "/", 1, 2, on), 7), of(w("b", "/", 2, 3, on), 8)}, []batch.Measured{m("b", "/", 1, 2, false, 7), m("b", "/", 2, 3, false, 8)}},
		"several":         {[]usage.Window{of(w("b", "/", 1, 2, on), 7, 8), of(w("b", "/", 2, 3, on), 7, 9)}, []batch.Measured{m("b", "/", 1, 3, false, 0)}},
		"elsewhere":       {[]usage.Window{in(w("b", "cgroup:7", 1, 2, on), "0:8"), w("b", "cgroup:7", 2, 3, on)}, []batch.Measured{elsewhere, m("b", "cgroup:7", 2, 3, false, 0)}},
		"without a scope": {[]usage.Window{w("b", "", 1, 2, on), w("b", "/", 2, 3, on)}, []batch.Measured{m("b", "/", 2, 3, false, 0)}},
		"without length":  {[]usage.Window{w("b", "/", 1, 1, on), w("b", "/", 4, 3, on), w("b", "/", 5, 6, on)}, []batch.Measured{m("b", "/", 5, 6, false, 0)}},
	} {
		by := []time.Duration{2, 2, 2}
		if got := batch.MeasuredBy(c.windows, by); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestOverlaps checks two times of one kernel, in both orders, at their edges.
func TestOverlaps(t *testing.T) {
	m := batch.Measured{Boot: "b", Extent: usage.Extent{Scope: "/"}, From: 10, To: 20}
	for _, c := range []struct {
		boot     string
		scope    usage.Scope
		from, to int64
		want     bool
	}{
		{"b", "/", 0, 10, false}, {"b", "/", 0, 11, true}, {"b", "/", 12, 13, true}, {"b", "/", 10, 20, true},
		{"b", "/", 0, 30, true}, {"b", "/", 19, 30, true}, {"b", "/", 20, 30, false},
		{"c", "/", 10, 20, false}, {"b", "cgroup:7", 10, 20, false},
	} {
		o := batch.Measured{Boot: c.boot, Extent: usage.Extent{Scope: c.scope}, From: c.from, To: c.to}
		if m.Overlaps(o) != c.want || o.Overlaps(m) != c.want {
			t.Errorf("%v and %v overlap: %t and %t, want %t", m, o, m.Overlaps(o), o.Overlaps(m), c.want)
		}
	}
}

// TestRivalError checks that a second meter tries again in a minute, and takes over after five.
func TestRivalError(t *testing.T) {
	err := batch.RivalError("n1")
	if r, ok := errors.AsType[*fault.RetryError](err); !ok || r.After != time.Minute || !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "node n1") || fault.Hint(err) == "" {
		t.Errorf("%v, hint %q", err, fault.Hint(err))
	}
	if batch.RivalTimeout != 5*time.Minute {
		t.Errorf("a rival is waited for %v, and the hint says five minutes", batch.RivalTimeout)
	}
}

// TestCheckJobLabel checks which labels are a container's only, in any case of their letters.
func TestCheckJobLabel(t *testing.T) {
	for key, ok := range map[string]bool{
		"": true, "team": true, "io.kubernetes": true, "app.kubernetes.io/name": true, "my.io.kubernetes.pod": true, "pods": true, "namespaced": true,
		batch.LabelNamespace: false, batch.LabelPod: false, batch.LabelContainer: false, "io.kubernetes.": false, "IO.Kubernetes.pod.uid": false,
		"namespace": false, "pod": false, "container": false, "Pod": false,
	} {
		if err := batch.CheckJobLabel(key); (err == nil) != ok || err != nil && (!errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "") {
			t.Errorf("label %q: %v, hint %q", key, err, fault.Hint(err))
		}
	}
}
