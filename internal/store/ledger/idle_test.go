package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// randomHours returns an entry of minutes of a node, in some hours of three days: idle energy, and
// CPU time and presence of jobs of two projects, one of which gets its idle energy when it is booked.
func randomHours(r *rand.Rand, node string, number uint64) *batch.Entry {
	e := machineEntry(node, number, usage.Apportioned, dayMinute)
	e.Nodes, e.Minutes, e.Names = nil, nil, nil
	put := func(kind workload.Kind, key string, minute int64, u usage.Usage) {
		name := batch.Name{ID: workload.NewID(node, kind, key), Kind: kind, Name: key, Job: key, Project: "p" + key[len(key)-1:]}
		short, _ := workload.ShortIDOf(name.ID)
		e.Names = append(e.Names, name)
		e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: minute, Usage: u})
	}
	for hour := range int64(3 * 24) {
		if r.IntN(4) == 0 {
			continue
		}
		minute := dayMinute + hour*60 + r.Int64N(60)
		if r.IntN(8) > 0 {
			u := usage.Usage{Covered: time.Minute}
			u.Put(usage.EnergyRest, r.Int64N(1e6), usage.Measured)
			u.Put(usage.EnergyPackage, r.Int64N(1e6), usage.Measured)
			u.Put(usage.EnergyError, r.Int64N(1e5), usage.Measured)
			put(workload.Idle, "idle", minute, u)
		}
		for job := range 5 {
			if r.IntN(3) == 0 {
				continue
			}
			u := usage.Usage{Covered: time.Duration(r.Int64N(6e10))}
			u.Put(usage.CPU, r.Int64N(6e10), usage.Measured)
			u.Put(usage.EnergyPackage, r.Int64N(1e6), usage.Apportioned)
			if job == 4 {
				u.Put(usage.EnergyIdle, 5, usage.Apportioned)
			}
			put(workload.Job, fmt.Sprint("j", job), minute, u)
		}
	}
	return e
}

// idleByJob returns the energy of each job in a range, its part of idle energy, and the errors of
// both.
func idleByJob(t *testing.T, l *ledger.Ledger, policy string, where map[query.Dimension][]string, from, to int64) map[string][4]unit.Sum {
	t.Helper()
	a, err := l.Usage(t.Context(), query.Query{From: time.Unix(60*from, 0), To: time.Unix(60*to, 0), By: []query.Dimension{query.ByJob}, Where: where, Idle: policy, Scope: query.Scope{All: true}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][4]unit.Sum{}
	for _, g := range a.Groups {
		active, _ := g.Usage.Energy()
		got[g.Keys[0]] = [4]unit.Sum{active, g.Usage.Idle, g.Usage.Sum[usage.EnergyError], g.Usage.IdleError}
	}
	return got
}

// TestIdleAddsUp checks that what a job gets of idle energy in a range is the sum of what it gets in
// parts of the range, to the microjoule, by hours, by days of any time zone, and with filters, also
// when rows come late and when hours are folded or not.
func TestIdleAddsUp(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		l := ledgertest.Open(t, dsn)
		r := rand.New(rand.NewPCG(7, 8))
		for _, n := range []string{"a", "b"} {
			ledgertest.Node(t, l, n)
		}
		end := dayMinute + 3*24*60
		check := func(when string) {
			t.Helper()
			for _, policy := range []string{"none", "equal", "used"} {
				whole := idleByJob(t, l, policy, nil, dayMinute, end)
				for name, cuts := range map[string][]int64{
					"days": {24 * 60, 48 * 60}, "days of New York": {5 * 60, 29 * 60, 53 * 60}, "hours": {60, 120, 180, 240, 25 * 60, 26 * 60, 71 * 60}, "one half": {30 * 60},
				} {
					sum, from := map[string][4]unit.Sum{}, dayMinute
					for _, cut := range append(cuts, end-dayMinute) {
						for job, part := range idleByJob(t, l, policy, nil, from, dayMinute+cut) {
							was := sum[job]
							for i := range was {
								was[i] = was[i].Plus(part[i])
							}
							sum[job] = was
						}
						from = dayMinute + cut
					}
					if diff := cmp.Diff(whole, sum, cmp.AllowUnexported(unit.Sum{})); diff != "" {
						t.Errorf("%s, %s by %s (-whole +sum of parts):\n%s", when, policy, name, diff)
					}
				}
				for _, project := range []string{"p0", "p3", "pe"} {
					for job, alone := range idleByJob(t, l, policy, map[query.Dimension][]string{query.ByProject: {project}}, dayMinute, end) {
						if alone != whole[job] {
							t.Errorf("%s, %s: %s has %v alone and %v among all", when, policy, job, alone, whole[job])
						}
					}
				}
				if policy == "none" {
					continue
				}
				if got := whole["j0"][1]; got == (unit.Sum{}) {
					t.Errorf("%s, %s: a job has no part of idle energy", when, policy)
				}
				if got := whole["j4"][1]; got != (unit.Sum{}) {
					t.Errorf("%s, %s: a job that got its idle energy when booked has %s more", when, policy, got)
				}
			}
		}
		book := func(number uint64) {
			for _, n := range []string{"a", "b"} {
				bookAll(t, l, randomHours(r, n, number))
			}
		}
		book(1)
		check("minutes")
		if err := l.Fold(t.Context(), ledgertest.Day.Add(40*time.Hour)); err != nil {
			t.Fatal(err)
		}
		before := idleByJob(t, l, "used", nil, dayMinute, end)
		check("a day, hours and minutes")
		if err := l.Fold(t.Context(), ledgertest.Day.Add(80*time.Hour)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, idleByJob(t, l, "used", nil, dayMinute, end), cmp.AllowUnexported(unit.Sum{})); diff != "" {
			t.Errorf("folding changed it (-before +after):\n%s", diff)
		}
		book(2)
		check("late rows")
	})
}
