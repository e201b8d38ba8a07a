package ledgertest

import (
	"context"
	"fmt"
	"maps"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger"
)

// testReservedDrawn: pods come, change what they reserve and what they are counted under, and end, also while they were not
// watched. Over any range, the rows have what follows from the levels of each second, by pod and by job, before and after
// rows are folded and dropped.
func testReservedDrawn(t *testing.T, dsn string) {
	checks(t, dsn)
	cfg := ledger.Default()
	cfg.Minutes, cfg.Hours = 24*time.Hour, 3*24*time.Hour
	l := OpenWith(t, dsn, cfg)
	round, db := 0, reader{t, DB(t, dsn)}
	rapid.Check(t, func(rt *rapid.T) {
		round++
		r := &reservedRound{T: rt, l: l, db: db, cluster: fmt.Sprintf("reserved-%d", round)}
		r.day = minuteOf(time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC)) + int64(round)*20*dayMinutes
		r.now = time.Unix(60*r.day+rapid.Int64Range(0, 100_000).Draw(rt, "start"), 0)
		r.seen, r.steady = r.now, rapid.Bool().Draw(rt, "steady")
		if err := l.PutNode(context.Background(), registry.Node{ID: r.cluster, Name: "worker", Cluster: r.cluster, At: Day}); err != nil {
			rt.Fatal(err)
		}
		var err error
		if r.lease, err = l.LeasePods(context.Background(), pod.Lease{Cluster: r.cluster, Holder: "s"}, r.now, r.now); err != nil {
			rt.Fatal(err)
		}
		for range rapid.IntRange(5, 25).Draw(rt, "steps") {
			r.step()
		}
		r.check("at the end")
		end := time.Unix(60*(r.day+18*dayMinutes), 0)
		if err := l.Fold(context.Background(), end); err != nil {
			rt.Fatal(err)
		}
		r.check("folded")
		if err := l.Retain(context.Background(), r.now); err != nil {
			rt.Fatal(err)
		}
		r.check("dropped")
	})
	if findings, err := l.Check(t.Context()); err != nil || len(findings) > 0 {
		t.Errorf("check: %v, %v", findings, err)
	}
}

// A reservedRound is one round of testReservedDrawn.
type reservedRound struct {
	*rapid.T
	l       *ledger.Ledger
	db      reader
	cluster string
	lease   pod.Lease
	day     int64     // the first minute
	now     time.Time // advances
	seen    time.Time // when the pods were last watched
	steady  bool      // pods are watched and rows are put in each hour, so that none is of hours ago and holds a whole one
	pods    []*reservedPod
}

// A reservedPod is a pod, and what its carriers are counted under.
type reservedPod struct {
	pod.Pod
	carriers versioned
	placed   bool // it has carriers
	gone     bool
	spans    []map[string]any // as the ledger has them
}

func (r *reservedRound) levels() pod.Levels {
	return pod.Levels{CPU: rapid.Int64Range(0, 3000).Draw(r.T, "cpu"), CPULimit: rapid.SampledFrom([]int64{pod.NoLimit, 0, 4000}).Draw(r.T, "limit"),
		Memory: rapid.Int64Range(0, 1<<42).Draw(r.T, "memory"), MemoryLimit: rapid.SampledFrom([]int64{pod.NoLimit, 1 << 42}).Draw(r.T, "memory limit"), GPU: 1000}
}

func (r *reservedRound) step() {
	pick := func(what string, values ...string) string { return rapid.SampledFrom(values).Draw(r.T, what) }
	later := []time.Duration{time.Second, 59 * time.Second, 7 * time.Minute, time.Hour, 5 * time.Hour, 30 * time.Hour}
	if r.steady {
		later = later[:4]
	}
	r.now = r.now.Add(rapid.SampledFrom(later).Draw(r.T, "later"))
	if r.steady {
		r.put()
	}
	if limit := time.Unix(60*(r.day+10*dayMinutes), 0); r.now.After(limit) {
		r.now = limit
	}
	if rapid.Bool().Draw(r.T, "watched") || r.steady && r.now.Sub(r.seen) > time.Hour {
		r.seen = r.now
	}
	var p *reservedPod
	if len(r.pods) > 0 {
		p = r.pods[rapid.IntRange(0, len(r.pods)-1).Draw(r.T, "pod")]
	}
	switch what := pick("step", "new", "resize", "resize", "job", "finish", "gone", "put", "put", "fold"); {
	case what == "put":
		r.put()
	case what == "fold":
		if err := r.l.Fold(context.Background(), r.now); err != nil {
			r.Fatal(err)
		}
	case what == "new" && len(r.pods) < 4:
		name := fmt.Sprint("web-", len(r.pods))
		p = &reservedPod{Pod: pod.Pod{UID: fmt.Sprintf("00000000-0000-0000-%04d-%012d", len(r.pods), r.day), Namespace: "shop", Name: name, Job: "shop/deployment/web", Node: "worker",
			Scheduled: r.now.Add(-time.Duration(rapid.IntRange(0, map[bool]int{true: 3600, false: 5000}[r.steady]).Draw(r.T, "scheduled")) * time.Second)}}
		p.Reserved = []pod.Reservation{{Container: "app", Levels: r.levels()}, {Container: "proxy", Levels: r.levels()}}
		if rapid.Bool().Draw(r.T, "overhead") {
			p.Reserved = append(p.Reserved, pod.Reservation{Levels: r.levels()})
		}
		p.carriers.was = []versionSince{{job: p.Job}}
		r.pods = append(r.pods, p)
		r.book(p)
	case p == nil || p.gone:
	case what == "resize":
		p.Reserved[0].Levels = r.levels()
		r.book(p)
	case what == "job":
		p.Job = pick("job", "shop/deployment/web", "shop/checkout")
		r.book(p)
	case what == "finish" && p.Finished.IsZero():
		p.Finished = r.now.Add(-time.Duration(rapid.IntRange(0, 3600).Draw(r.T, "finished")) * time.Second)
		r.book(p)
	case what == "gone":
		p.gone = true
		p.Since = r.seen
		if err := r.l.EndPods(context.Background(), r.lease, []pod.Pod{p.Pod}, r.now); err != nil {
			r.Fatal(err)
		}
	}
}

func (r *reservedRound) book(p *reservedPod) {
	p.Since = r.seen
	if err := r.l.BookPods(context.Background(), r.lease, []pod.Pod{p.Pod}, r.now); err != nil {
		r.Fatal(err)
	}
	p.carriers.change(r.now, time.Time{}, !p.placed, func(v *versionSince) { v.job = p.Job })
}

// putReserved puts all rows of what pods reserve before a time.
func putReserved(l *ledger.Ledger, lease pod.Lease, until, seen time.Time) error {
	for after, done := int64(0), false; after != 0 || !done; {
		last, all, err := l.PutReserved(context.Background(), lease, until, seen, after)
		if err != nil {
			return err
		}
		if done = all && (done || after == 0); last == 0 && !done {
			after = 0
			continue
		}
		after = last
	}
	return nil
}

// put puts all rows up to now.
func (r *reservedRound) put() {
	until := r.now.Truncate(time.Minute)
	if err := putReserved(r.l, r.lease, until, r.seen); err != nil {
		r.Fatal(err)
	}
	for _, p := range r.pods {
		if n := r.db.number(fmt.Sprintf("SELECT count(*) FROM reservation_carrier c JOIN pod p ON p.id = c.pod WHERE p.uid = '%s'", p.UID)); n > 0 && !p.placed {
			p.placed, p.carriers.known = true, until
		}
		if r.db.number(fmt.Sprintf("SELECT count(*) FROM pod WHERE uid = '%s'", p.UID)) > 0 { // it was not dropped
			p.spans = nil
			r.db.rows(func(row map[string]any) { p.spans = append(p.spans, maps.Clone(row)) },
				fmt.Sprintf("SELECT r.* FROM reservation r JOIN pod p ON p.id = r.pod WHERE p.uid = '%s' AND p.cluster = '%s'", p.UID, r.cluster))
		}
	}
}

// want sums what a pod reserves by job in a range of minutes, second by second where levels change.
func (r *reservedRound) want(p *reservedPod, from, to int64) map[string]map[usage.Resource]*big.Int {
	sums := map[string]map[usage.Resource]*big.Int{}
	for _, row := range p.spans {
		v := func(name string) int64 { return row[name].(int64) }
		first, end := max(v("from_s"), from*60), to*60
		if v("to_s") != 0 {
			end = min(end, v("to_s"))
		}
		for at := first; at < end; {
			next := min(end, (at/900+1)*900) // a version begins with a quarter of an hour
			job := p.carriers.at(at / 60).job
			if sums[job] == nil {
				sums[job] = map[usage.Resource]*big.Int{}
			}
			add := func(res usage.Resource, by int64) {
				if sums[job][res] == nil {
					sums[job][res] = new(big.Int)
				}
				sums[job][res].Add(sums[job][res], new(big.Int).Mul(big.NewInt(by), big.NewInt(next-at)))
			}
			add(usage.CPUReserved, v("cpu")*1e6)
			add(usage.MemoryReserved, v("memory"))
			add(usage.GPUReserved, v("gpu")*1e6)
			if v("cpu_limit") >= 0 {
				add(usage.CPULimit, v("cpu_limit")*1e6)
			}
			if row["container"] != "" {
				add(usage.ReservedTime, 1e9)
				add(usage.MemoryLimitedTime, map[bool]int64{true: 1e9}[v("memory_limit") >= 0])
			}
			at = next
		}
	}
	return sums
}

// check compares the sums of ranges with the levels.
func (r *reservedRound) check(when string) {
	r.Helper()
	r.put()
	until := r.now.Unix() / 60
	ranges := [][2]int64{{r.day - dayMinutes, r.day + 12*dayMinutes}}
	for d := range int64(11) {
		ranges = append(ranges, [2]int64{r.day + d*dayMinutes, r.day + (d+1)*dayMinutes})
	}
	for range 4 {
		from := r.day + rapid.Int64Range(0, max(until-r.day, 1)).Draw(r.T, "from")
		to := from + rapid.Int64Range(1, 600).Draw(r.T, "minutes")
		if !r.steady {
			from, to = from/60*60, to/60*60+60
		}
		ranges = append(ranges, [2]int64{from, to})
	}
	for _, span := range ranges {
		a, err := r.l.Usage(context.Background(), query.Query{From: time.Unix(span[0]*60, 0), To: time.Unix(span[1]*60, 0), By: []query.Dimension{query.ByPod, query.ByJob},
			Where: map[query.Dimension][]string{query.ByCluster: {r.cluster}}, Scope: query.Scope{All: true}})
		if err != nil {
			r.Fatal(err)
		}
		got := map[[2]string]*query.Total{}
		for i := range a.Groups {
			got[[2]string{a.Groups[i].Keys[0], a.Groups[i].Keys[1]}] = &a.Groups[i].Usage
		}
		from, to := a.From.Unix()/60, min(a.To.Unix()/60, until)
		for _, p := range r.pods {
			for job, sums := range r.want(p, from, to) {
				u := got[[2]string{p.Name, job}]
				delete(got, [2]string{p.Name, job})
				for res, sum := range sums {
					have := "none"
					if u != nil && u.Present.Has(res) {
						have = u.Sum[res].String()
					}
					if have != sum.String() {
						r.Fatalf("%s: %s of %s, %s from %s to %s is %s, want %s", when, res, p.Name, job, a.From, a.To, have, sum)
					}
				}
			}
		}
		for k, u := range got {
			for res := range u.Present.All() {
				if u.Sum[res].String() != "0" {
					r.Fatalf("%s: %s of %v from %s to %s is %s, want none", when, res, k, a.From, a.To, u.Sum[res])
				}
			}
		}
	}
}
