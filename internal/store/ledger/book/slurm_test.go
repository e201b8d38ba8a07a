package book

import (
	"slices"
	"testing"
	"time"
)

// A requeued job is the same job, and one that has its number later is another one.
func TestSameJob(t *testing.T) {
	for name, c := range map[string]struct {
		have []slurmRow
		now  slurmRow
		want int // -1 is none
	}{
		"none":                         {nil, slurmRow{submitted: 5}, -1},
		"the same":                     {[]slurmRow{{submitted: 3}, {submitted: 5}}, slurmRow{submitted: 5, username: "eve"}, 1},
		"requeued":                     {[]slurmRow{{submitted: 3}}, slurmRow{submitted: 5, restarts: 1}, 0},
		"requeued again":               {[]slurmRow{{submitted: 3, restarts: 1}}, slurmRow{submitted: 5, restarts: 2}, 0},
		"with as many restarts":        {[]slurmRow{{submitted: 3, restarts: 2}}, slurmRow{submitted: 5, restarts: 2}, 0},
		"with fewer restarts":          {[]slurmRow{{submitted: 3, restarts: 2}}, slurmRow{submitted: 5, restarts: 1}, -1},
		"without restarts":             {[]slurmRow{{submitted: 3}}, slurmRow{submitted: 5}, -1},
		"of another user":              {[]slurmRow{{submitted: 3, username: "ada"}}, slurmRow{submitted: 5, restarts: 1, username: "eve"}, -1},
		"requeued, the latest of them": {[]slurmRow{{submitted: 1}, {submitted: 3}}, slurmRow{submitted: 5, restarts: 1}, 1},
		"before it was requeued":       {[]slurmRow{{submitted: 5, restarts: 1}}, slurmRow{submitted: 3}, 0},
		"an earlier one":               {[]slurmRow{{submitted: 5}}, slurmRow{submitted: 3, restarts: 1}, -1},
	} {
		got := c.now.sameJob(c.have)
		if c.want < 0 && got != nil || c.want >= 0 && got != &c.have[c.want] {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// An older answer does not replace a newer one.
func TestIsOlder(t *testing.T) {
	now := slurmRow{submitted: 5, restarts: 2}
	ended := slurmRow{submitted: 5, restarts: 2, ended: 9}
	for i, c := range []struct {
		r, than slurmRow
		want    bool
	}{
		{now, now, false}, {ended, ended, false}, {now, ended, true}, {ended, now, false},
		{slurmRow{submitted: 4, restarts: 3, ended: 9}, now, true}, {slurmRow{submitted: 6, restarts: 1}, ended, false},
		{slurmRow{submitted: 5, restarts: 1, ended: 9}, now, true}, {slurmRow{submitted: 5, restarts: 3}, ended, false},
	} {
		if got := c.r.isOlder(&c.than); got != c.want {
			t.Errorf("%d: %t", i, got)
		}
	}
}

// Use belongs to the latest job that may have begun by then, unless that is gone.
func TestSlurmAt(t *testing.T) {
	const minute = int64(time.Minute)
	jobs := []slurmRow{{from: 100 * minute, gone: 200 * minute}, {from: 300 * minute, gone: 305 * minute}, {from: 310 * minute}}
	for at, want := range map[int64]int{
		98*minute - 1: -1, 98 * minute: 0, 150 * minute: 0, 210 * minute: 0, 210*minute + 1: -1, 298*minute - 1: -1, 298 * minute: 1,
		308*minute - 1: 1, 308 * minute: 2, 999999 * minute: 2,
	} {
		got := slurmAt(jobs, at)
		if want < 0 && got != nil || want >= 0 && got != &jobs[want] {
			t.Errorf("at %v: %+v, want %d", time.Duration(at), got, want)
		}
	}
}

func TestJoinHosts(t *testing.T) {
	for _, c := range []struct {
		have string
		more []string
		want string
	}{
		{"", nil, ",,"}, {"", []string{"n2", "n1.example.org"}, ",n1,n2,"}, {",n1,n2,", []string{"N1", "n3", ""}, ",n1,n2,n3,"}, {",n1,", []string{"a,b"}, ",n1,"},
	} {
		if got := joinHosts(c.have, slices.Clone(c.more)); got != c.want {
			t.Errorf("%q and %q: %q, want %q", c.have, c.more, got, c.want)
		}
	}
}
