package ledgertest

import (
	"errors"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
)

// groupsByKeys are the groups of an answer and those left out, by their keys. The quality of idle energy is
// that of the machine's over the range, so it is not that of a part.
func groupsByKeys(a *query.Answer) map[string]query.Total {
	out := map[string]query.Total{}
	for i := range a.Groups {
		out[strings.Join(a.Groups[i].Keys, "\x00")] = a.Groups[i].Usage
	}
	if a.OtherGroups > 0 {
		out["other"] = a.Other
	}
	for key, u := range out {
		u.IdleQuality = usage.Absent
		out[key] = u
	}
	return out
}

// checkPeriods compares the hours or days of an answer with the answer: they follow each other, and each of
// its groups is the sum of the groups of the periods, with the idle energy that it was given, and whether some of
// the groups are left out or not.
func (r *queryRound) checkPeriods(q query.Query, from, to int64) {
	q.Limit = 0
	q.Idle = r.oneOf("idle", "", "", "equal", "used")
	every := query.Daily
	if to-from <= 2*dayMinutes && rapid.Bool().Draw(r.T, "hourly") {
		every = query.Hourly
	}
	if q.Idle == "" && rapid.Bool().Draw(r.T, "top") {
		q.Top = &query.Top{Limit: 1, AlwaysKept: func(keys []string) bool { return keys[0] == "idle" },
			Rank: func(keys []string, u *query.Total, _ time.Duration) query.Rank {
				return query.Rank{Amount: u.Sum[1], Keys: keys}
			}}
	}
	var all []query.Answer
	err := Try(r, func() error {
		all = nil
		return r.l.EachPeriod(r.t.Context(), q, every, func(a *query.Answer) error {
			all = append(all, *a)
			return nil
		})
	})
	if every == query.Hourly && r.granularity(from) == dayMinutes {
		if !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
			r.Fatalf("hours of %+v, which are not kept: %v", q, err)
		}
		return
	}
	if err != nil {
		r.Fatalf("periods of %+v: %v", q, err)
	}
	whole, err := r.l.Usage(r.t.Context(), q)
	if err != nil {
		r.Fatal(err)
	}
	if d := cmp.Diff(groupsByKeys(whole), groupsByKeys(&all[0]), sums); d != "" {
		r.Fatalf("the range of %+v (-usage +periods):\n%s", q, d)
	}
	sum, at, gaps := map[string]query.Total{}, whole.From, 0
	for _, p := range all[1:] {
		end := p.From.Truncate(time.Duration(every)).Add(time.Duration(every))
		if end.After(whole.To) {
			end = whole.To
		}
		if !p.From.Equal(at) || !p.To.Equal(end) {
			r.Fatalf("periods of %+v: %v to %v, want %v to %v", q, p.From, p.To, at, end)
		}
		at, gaps = p.To, max(gaps, p.Gaps)
		for key, u := range groupsByKeys(&p) {
			if _, ok := groupsByKeys(whole)[key]; !ok {
				r.Fatalf("periods of %+v: group %q is not in the range", q, key)
			}
			to := sum[key]
			to.Add(&u)
			sum[key] = to
		}
	}
	if !at.Equal(whole.To) || gaps > whole.Gaps {
		r.Fatalf("periods of %+v end at %v with %d gaps, want %v", q, at, gaps, whole.To)
	}
	want := groupsByKeys(whole)
	if d := cmp.Diff(want, sum, sums); d != "" {
		r.Fatalf("periods of %+v (-range +sum):\n%s", q, d)
	}
}
