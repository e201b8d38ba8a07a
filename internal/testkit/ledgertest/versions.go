package ledgertest

import (
	"context"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// testVersionsDrawn: jobs, labels and users of pods and containers change at any time while they run. Any mix of
// minutes, hours, days and groups has the sums that follow from what each workload was at the time, before and after
// rows are folded and dropped.
func testVersionsDrawn(t *testing.T, dsn string) {
	checks(t, dsn)
	cfg := ledger.Default()
	cfg.Minutes, cfg.Hours, cfg.Slice = 24*time.Hour, 2*24*time.Hour, 2
	l := OpenWith(t, dsn, cfg)
	round, db := 0, reader{t, DB(t, dsn)}
	rapid.Check(t, func(rt *rapid.T) {
		round++
		r := &versionRound{T: rt, l: l, db: db, mark: batch.Mark{Next: 1}, node: fmt.Sprintf("versions-%d", round), cluster: fmt.Sprintf("versions-%d", round)}
		r.day = minuteOf(time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC)) + int64(round)*10*dayMinutes
		r.now = time.Unix(60*(r.day+rapid.Int64Range(0, 100).Draw(rt, "start")), 0)
		r.enroll()
		for range rapid.IntRange(5, 25).Draw(rt, "steps") {
			r.step()
		}
		r.check("at the end")
		end := time.Unix(60*(r.day+6*dayMinutes), 0)
		r.fold(end)
		r.check("folded")
		if findings, err := l.Check(context.Background()); err != nil || len(findings) > 0 { // of connections, which are dropped next
			rt.Errorf("check: %v, %v", findings, err)
		}
		if err := l.Retain(context.Background(), end); err != nil {
			rt.Fatal(err)
		}
		r.check("dropped")
	})
	if findings, err := l.Check(t.Context()); err != nil || len(findings) > 0 {
		t.Errorf("check: %v, %v", findings, err)
	}
}

// A versionRound is one round of testVersionsDrawn.
type versionRound struct {
	*rapid.T
	l       *ledger.Ledger
	db      reader
	node    string
	cluster string
	day     int64     // the first minute
	now     time.Time // advances
	through time.Time // end of the latest window
	mark    batch.Mark
	pod     pod.Pod
	booked  bool // the pod
	meters  []*versioned
}

// A versioned is a workload, and what it was from which minute on.
type versioned struct {
	name   batch.Name
	short  workload.ShortID
	inPod  bool
	named  bool
	placed bool
	known  time.Time
	was    []versionSince
	used   map[int64]int64 // ns of CPU by minute
}

// A versionSince is what a workload is counted under from a minute on.
type versionSince struct {
	from                       int64
	namespace, job, user, team string
}

func (r *versionRound) enroll() {
	if err := r.l.PutNode(context.Background(), registry.Node{ID: r.node, Name: r.node, Cluster: r.cluster, At: Day}); err != nil {
		r.Fatal(err)
	}
	uid := strings.Repeat("0", 8) + "-0000-0000-0000-" + fmt.Sprintf("%012d", r.day)
	ids := []string{strings.Repeat("a", 64), strings.Repeat("b", 64)}
	r.pod = pod.Pod{UID: uid, Namespace: "shop", Name: "web-1", Job: "shop/deployment/web", Containers: map[string]string{ids[0]: "app"}, Labels: map[string]string{"team": "x"}}
	p := batch.Name{ID: workload.NewID(r.node, workload.Pod, uid), Kind: workload.Pod, Key: uid}
	names := []batch.Name{p}
	for _, id := range ids {
		names = append(names, batch.Name{ID: workload.NewID(r.node, workload.Container, id), Kind: workload.Container, Key: id, Parent: p.ID})
	}
	// One that its agent names, and a run.
	names = append(names, batch.Name{ID: workload.NewID(r.node, workload.Container, "docker"), Kind: workload.Container, Key: "docker", Name: "db", Job: "stack"},
		batch.Name{ID: workload.NewID(r.node, workload.SlurmJob, "7"), Kind: workload.SlurmJob, Key: "7", Name: "7", Job: "night", User: "ada"})
	for i, n := range names {
		w := &versioned{name: n, inPod: i < 3, was: []versionSince{{job: ""}}, used: map[int64]int64{}}
		w.short, _ = workload.ShortIDOf(n.ID)
		r.meters = append(r.meters, w)
	}
}

// change is what a change of a workload at an instant means. fills says that it adds what was not known only; end is the
// end of what is booked of the node.
func (w *versioned) change(at, end time.Time, fills bool, f func(*versionSince)) {
	last := &w.was[len(w.was)-1]
	is := *last
	if f(&is); is == *last {
		return
	}
	if end.Before(at) {
		end = at
	}
	if fills || !at.After(w.known.Add(time.Minute)) || !end.After(time.Unix(last.from*60, 0)) {
		filled := func(was, now string) bool { return was == "" && now != "" }
		for i := range w.was { // what was not known is filled in everywhere
			v := &w.was[i]
			if filled(last.user, is.user) && v.user == "" {
				v.user = is.user
			}
			if filled(last.job, is.job) && v.job == "" {
				v.job = is.job
			}
			if filled(last.namespace, is.namespace) && v.namespace == "" {
				v.namespace = is.namespace
			}
		}
		*last = is
		return
	}
	is.from = end.Add(15*time.Minute-1).Truncate(15*time.Minute).Unix() / 60
	w.was = append(w.was, is)
}

// at returns what the workload is counted under in a minute.
func (w *versioned) at(minute int64) (is versionSince) {
	for _, v := range w.was {
		if v.from <= minute {
			is = v
		}
	}
	return is
}

func (r *versionRound) step() {
	pick := func(what string, values ...string) string { return rapid.SampledFrom(values).Draw(r.T, what) }
	switch pick("step", "use", "use", "use", "late", "pod", "pod", "agent", "agent", "fold", "check") {
	case "use":
		r.use(rapid.Int64Range(1, 90).Draw(r.T, "minutes"), 0)
	case "late":
		r.use(1, rapid.Int64Range(1, 600).Draw(r.T, "late"))
	case "pod":
		r.now = r.now.Add(time.Duration(rapid.IntRange(0, 100).Draw(r.T, "seconds")) * time.Second)
		r.pod.Job, r.pod.Labels = pick("job", "shop/deployment/web", "shop/checkout"), map[string]string{}
		if team := pick("team", "", "x", "y"); team != "" {
			r.pod.Labels["team"] = team
		}
		if pick("status", "", "proxy") != "" {
			r.pod.Containers[r.meters[2].name.Key] = "proxy"
		}
		// The clock of the server may be behind those of nodes.
		r.bookPod(r.now.Add(-time.Duration(rapid.IntRange(0, 60).Draw(r.T, "behind")) * time.Minute))
	case "agent":
		w := r.meters[rapid.IntRange(3, 4).Draw(r.T, "renamed")]
		w.name.Job, w.name.User = pick("job", "stack", "night"), pick("user", "", "ada", "ben")
		w.name.Name = pick("name", "db", "cache") // of all versions
		r.send([]batch.Name{w.name}, nil)
	case "fold":
		r.fold(r.now.Add(time.Duration(rapid.IntRange(0, 48).Draw(r.T, "hours")) * time.Hour))
	case "check":
		r.check("meanwhile")
	}
}

func (r *versionRound) fold(now time.Time) {
	if err := r.l.Fold(context.Background(), now); err != nil {
		r.Fatal(err)
	}
}

func (r *versionRound) bookPod(at time.Time) {
	if err := r.l.BookPods(context.Background(), pod.Lease{Cluster: r.cluster}, []pod.Pod{r.pod}, at); err != nil {
		r.Fatal(err)
	}
	r.booked = true
	r.place(at)
}

// place is what the pod means for the workloads that are parts of it. Until a status names the second container, it is known
// by its parent.
func (r *versionRound) place(at time.Time) {
	for i, w := range r.meters[:3] {
		if r.booked && w.named && (i < 2 || r.meters[0].named || r.pod.Containers[w.name.Key] != "") {
			r.placeOne(w, at)
		}
	}
}

func (r *versionRound) placeOne(w *versioned, at time.Time) {
	end := r.through
	w.change(at, end, !w.placed, func(v *versionSince) { v.namespace, v.job, v.team = "shop", r.pod.Job, r.pod.Labels["team"] })
	if !w.placed {
		w.placed, w.known = true, at
	}
}

// use books some minutes of use, a time ago, with the names that were not sent yet.
func (r *versionRound) use(minutes, ago int64) {
	var rows []batch.Minute
	var names []batch.Name
	first := r.now.Unix()/60 - ago
	for _, w := range r.meters {
		if rapid.IntRange(0, 3).Draw(r.T, "used") == 0 {
			continue
		}
		if !w.named && rapid.Bool().Draw(r.T, "named") {
			names = append(names, w.name)
		}
		for m := first; m < first+minutes; m += rapid.Int64Range(1, 20).Draw(r.T, "next") {
			u := usage.Usage{Covered: time.Minute}
			u.Put(usage.CPU, rapid.Int64Range(1, 1e9).Draw(r.T, "ns"), usage.Measured)
			u.Put(usage.NetworkRx, 10, usage.Measured)
			rows = append(rows, batch.Minute{Workload: w.short, Minute: m, Usage: u})
		}
	}
	if ago == 0 {
		r.now = r.now.Add(time.Duration(minutes) * time.Minute)
	}
	r.send(names, rows)
}

func (r *versionRound) send(names []batch.Name, rows []batch.Minute) {
	through := r.now
	e := &batch.Entry{Node: r.node, Stream: batch.Stream(fmt.Appendf(nil, "%-16s", r.node)[:16]), Number: r.mark.Next, Previous: r.mark.Last, Boot: "boot",
		Names: names, Minutes: rows, Connections: connectionsOf(rows), Through: through, Sent: fmt.Append(nil, r.mark.Next)}
	e.Hash = batch.HashOf(e.Sent)
	r.mark = batch.Mark{Next: r.mark.Next + 1, Last: e.Hash}
	whole := map[int64]int64{}
	for i := range rows {
		whole[rows[i].Minute] += rows[i].Usage.Amount[usage.CPU]
	}
	for _, m := range slices.Sorted(maps.Keys(whole)) {
		n := batch.NodeMinute{Minute: m, Covered: time.Minute, CPUs: 1}
		n.Whole[0] = whole[m]
		e.Nodes = append(e.Nodes, n)
	}
	results, err := r.l.Book(context.Background(), []*batch.Entry{e})
	if err != nil || results[0].Err != nil || results[0].Verdict != batch.Accepted {
		r.Fatal(err, results)
	}
	for i := range names {
		at := slices.IndexFunc(r.meters, func(w *versioned) bool { return w.name.ID == names[i].ID })
		w := r.meters[at]
		isRun := w.name.Kind == workload.SlurmJob
		last := w.was[len(w.was)-1]
		user := names[i].User
		if user == "" {
			user = last.user // it erases nothing
		}
		fills := !w.named || isRun || (last.job == "" || last.job == names[i].Job || w.inPod) && (last.user == "" || last.user == user)
		w.change(through, r.through, fills, func(v *versionSince) {
			if v.user = user; !w.inPod {
				v.job = names[i].Job
			}
		})
		if !w.named {
			w.named, w.known = true, through
		}
	}
	r.place(through)
	if through.After(r.through) {
		r.through = through
	}
	for i := range rows {
		for _, w := range r.meters {
			if w.short == rows[i].Workload {
				w.used[rows[i].Minute] += rows[i].Usage.Amount[usage.CPU]
			}
		}
	}
}

// check compares sums by each dimension with what was booked: of all days, of each day, and of hours or minutes where they
// are kept.
func (r *versionRound) check(when string) {
	r.Helper()
	type span struct{ from, to int64 }
	spans := []span{{r.day - dayMinutes, r.day + 8*dayMinutes}}
	for d := range int64(7) {
		spans = append(spans, span{r.day + d*dayMinutes, r.day + (d+1)*dayMinutes})
	}
	for range 2 {
		from := r.day + rapid.Int64Range(-100, 4*dayMinutes).Draw(r.T, "from")
		spans = append(spans, span{from, from + rapid.Int64Range(1, 2*dayMinutes).Draw(r.T, "length")})
	}
	by := []query.Dimension{query.ByNamespace, query.ByJob, query.ByUser, query.ByLabel + "team"}
	for _, s := range spans {
		for _, dims := range [][]query.Dimension{by, {query.ByNamespace}, {query.ByUser}, {query.ByJob}, {query.ByLabel + "team"}} {
			a, err := r.l.Usage(context.Background(), query.Query{From: time.Unix(s.from*60, 0), To: time.Unix(s.to*60, 0), By: dims, Resources: usage.SetOf(usage.CPU),
				Where: map[query.Dimension][]string{query.ByCluster: {r.cluster}}, Scope: query.Scope{All: true}})
			if err != nil {
				r.Fatal(err)
			}
			got, want := map[string]string{}, map[string]*big.Int{}
			for i := range a.Groups {
				got[strings.Join(a.Groups[i].Keys, "|")] = a.Groups[i].Usage.Sum[usage.CPU].String()
			}
			for _, w := range r.meters {
				for m, ns := range w.used {
					if m < a.From.Unix()/60 || m >= a.To.Unix()/60 {
						continue
					}
					is := w.at(m)
					if is.job == "" { // then the name is the job
						is.job = map[bool]string{true: w.name.Name}[w.named]
					}
					var keys []string
					for _, d := range dims {
						keys = append(keys, map[query.Dimension]string{by[0]: is.namespace, by[1]: is.job, by[2]: is.user, by[3]: is.team}[d])
					}
					key := strings.Join(keys, "|")
					if want[key] == nil {
						want[key] = new(big.Int)
					}
					want[key].Add(want[key], big.NewInt(ns))
				}
			}
			texts := map[string]string{}
			for k, v := range want {
				texts[k] = v.String()
			}
			if diff := cmp.Diff(texts, got); diff != "" {
				r.Fatalf("%s: by %v from %v to %v (-want +got):\n%s", when, dims, a.From, a.To, diff)
			}
		}
	}
	r.checkList(when)
	r.checkEdges(when, by)
}

// checkList checks that each workload is listed once, whatever versions it has.
func (r *versionRound) checkList(when string) {
	r.Helper()
	list, err := r.l.Workloads(context.Background(), query.Query{From: time.Unix((r.day-dayMinutes)*60, 0), To: time.Unix((r.day+8*dayMinutes)*60, 0),
		Where: map[query.Dimension][]string{query.ByCluster: {r.cluster}}, Scope: query.Scope{All: true}})
	if err != nil {
		r.Fatal(err)
	}
	got, want := map[string]string{}, map[string]string{}
	nameless := 0
	for i := range list {
		w := &list[i]
		if w.ID == "" {
			nameless++
			continue
		}
		if _, twice := got[string(w.ID)]; twice {
			r.Fatalf("%s: %s is listed twice", when, w.ID)
		}
		got[string(w.ID)] = fmt.Sprintf("job %q user %q team %q", w.Job, w.User, w.Labels["team"])
	}
	for _, w := range r.meters {
		if len(w.used) == 0 {
			continue
		}
		if !w.named {
			nameless--
			continue
		}
		is := w.at(slices.Max(slices.Collect(maps.Keys(w.used))))
		want[string(w.name.ID)] = fmt.Sprintf("job %q user %q team %q", is.job, is.user, is.team)
	}
	if n := r.db.number("SELECT count(*) FROM workload w JOIN workload f ON f.id = w.version_of WHERE w.version_of <> 0 AND (w.name <> f.name)"); n != 0 {
		r.Fatalf("%s: %d versions have other names than the first ones", when, n)
	}
	if diff := cmp.Diff(want, got); diff != "" || nameless != 0 {
		r.Fatalf("%s: workloads (-want +got), %d more without a name:\n%s", when, nameless, diff)
	}
}
