package query_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
)

func TestUptime(t *testing.T) {
	at := func(minutes int) time.Time {
		return time.Unix(1_800_000_000, 0).Add(time.Duration(minutes) * time.Minute)
	}
	gap := func(from, to int, r usage.Reason) usage.Gap { return usage.Gap{From: at(from), To: at(to), Reason: r} }
	for _, c := range []struct {
		what           string
		first, through int
		late           bool
		gaps           []usage.Gap
		// want in minutes: from, up, down, unknown, downs, latest from and to
		from, up, down, unknown, downs, last, lastTo int
	}{
		{"without gaps", -100, 60, false, nil, 0, 60, 0, 0, 0, 0, 0},
		{"known since 20", 20, 60, false, nil, 20, 40, 0, 0, 0, 0, 0},
		{"known after the range", 70, 90, false, nil, 60, 0, 0, 0, 0, 0, 0},
		{"live, its latest minute is not over", 0, 59, false, nil, 0, 60, 0, 0, 0, 0, 0},
		{"silent since 40", 0, 40, true, nil, 0, 40, 0, 20, 0, 0, 0},
		{"silent since before the range", -90, -5, true, nil, 0, 0, 0, 60, 0, 0, 0},
		{"came back after the range", 0, 90, true, nil, 0, 60, 0, 0, 0, 0, 0},
		{"a reboot, and a meter that came later", 0, 60, false, []usage.Gap{gap(10, 13, usage.Rebooted), gap(13, 30, usage.Unwatched)}, 0, 57, 3, 0, 1, 10, 13},
		{"down over both edges", -30, 90, false, []usage.Gap{gap(55, 65, usage.Rebooted), gap(-5, 5, usage.Rebooted)}, 0, 50, 10, 0, 2, 55, 60},
		{"gaps that overlap count once", 0, 60, false, []usage.Gap{gap(10, 20, usage.Rebooted), gap(15, 25, usage.Rebooted), gap(12, 14, usage.Rebooted), gap(20, 40, usage.StateLost)}, 0, 30, 15, 15, 1, 10, 25},
		{"lost data is not downtime", 0, 60, false, []usage.Gap{gap(0, 60, usage.Overflow), gap(0, 60, usage.MeterFailed)}, 0, 60, 0, 0, 0, 0, 0},
		{"what came after its latest data counts as not known", 0, 30, true, []usage.Gap{gap(25, 35, usage.Rebooted)}, 0, 25, 5, 30, 1, 25, 30},
	} {
		var got query.Uptime
		got.SetUptime(at(0), at(60), at(c.first), at(c.through), c.late, c.gaps)
		m := func(n int) time.Duration { return time.Duration(n) * time.Minute }
		want := query.Uptime{From: at(c.from), To: at(60), Up: m(c.up), Down: m(c.down), Unknown: m(c.unknown), Downs: c.downs}
		if c.downs > 0 {
			want.Last = query.Interval{From: at(c.last), To: at(c.lastTo)}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, d)
		}
	}
}
