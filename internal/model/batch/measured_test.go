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
)

// TestMeasuredBy checks what windows measured: windows that adjoin are one, unless the later one also
// covers a pause, and what nothing can overlap with is left out.
func TestMeasuredBy(t *testing.T) {
	w := func(boot string, scope usage.Scope, start, end int64, reason usage.StartReason) usage.Window {
		return usage.Window{Boot: boot, Scope: scope, Start: start, End: end, StartReason: reason, Offset: 1}
	}
	const on, after = usage.StartContinued, usage.StartResumed
	for name, c := range map[string]struct {
		windows []usage.Window
		want    []batch.Measured
	}{
		"none":            {nil, nil},
		"one":             {[]usage.Window{w("b", "/", 1, 2, on)}, []batch.Measured{{"b", "/", 1, 2, false, 3}}},
		"adjacent":        {[]usage.Window{w("b", "/", 1, 2, on), w("b", "/", 2, 5, on), w("b", "/", 5, 6, on)}, []batch.Measured{{"b", "/", 1, 6, false, 3}}},
		"first":           {[]usage.Window{w("b", "/", 0, 2, usage.StartFirst), w("b", "/", 2, 5, on)}, []batch.Measured{{"b", "/", 0, 5, false, 3}}},
		"a gap":           {[]usage.Window{w("b", "/", 1, 2, on), w("b", "/", 3, 5, on)}, []batch.Measured{{"b", "/", 1, 2, false, 3}, {"b", "/", 3, 5, false, 3}}},
		"back in time":    {[]usage.Window{w("b", "/", 2, 4, on), w("b", "/", 1, 3, on)}, []batch.Measured{{"b", "/", 2, 4, false, 3}, {"b", "/", 1, 3, false, 3}}},
		"another boot":    {[]usage.Window{w("b", "/", 1, 2, on), w("c", "/", 2, 5, on)}, []batch.Measured{{"b", "/", 1, 2, false, 3}, {"c", "/", 2, 5, false, 3}}},
		"another scope":   {[]usage.Window{w("b", "/", 1, 2, on), w("b", "cgroup:7", 2, 5, on)}, []batch.Measured{{"b", "/", 1, 2, false, 3}, {"b", "cgroup:7", 2, 5, false, 3}}},
		"resumed":         {[]usage.Window{w("b", "/", 1, 2, on), w("b", "/", 2, 5, after), w("b", "/", 5, 7, on)}, []batch.Measured{{"b", "/", 1, 2, false, 3}, {"b", "/", 2, 7, true, 3}}},
		"without a scope": {[]usage.Window{w("b", "", 1, 2, on), w("b", "/", 2, 3, on)}, []batch.Measured{{"b", "/", 2, 3, false, 3}}},
		"without length":  {[]usage.Window{w("b", "/", 1, 1, on), w("b", "/", 4, 3, on), w("b", "/", 5, 6, on)}, []batch.Measured{{"b", "/", 5, 6, false, 3}}},
	} {
		by := []time.Duration{2, 2, 2}
		if got := batch.MeasuredBy(c.windows, by); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestOverlaps checks two times of one kernel, in both orders, at their edges.
func TestOverlaps(t *testing.T) {
	m := batch.Measured{Boot: "b", Scope: "/", From: 10, To: 20}
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
		o := batch.Measured{Boot: c.boot, Scope: c.scope, From: c.from, To: c.to}
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
