package ledgertest

import (
	"fmt"
	"math/big"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// testAnswers books random entries, folds and removes rows in between, and sends random queries:
// every answer must match the [ledgerBook] exactly, whether it was read from minutes, hours or days.
func testAnswers(t *testing.T, dsn string) {
	checks(t, dsn)
	cfg := ledger.Default()
	cfg.Minutes, cfg.Hours, cfg.Slice = 2*24*time.Hour, 4*24*time.Hour, 2
	l, err := ledger.Open(t.Context(), dsn, cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer closeLedger(t, l)
	round, db := 0, DB(t, dsn)
	rapid.Check(t, func(rt *rapid.T) {
		// As in testModel, each round has nodes and days of its own.
		round++
		r := &queryRound{
			T: rt, t: t, l: l, db: reader{t, db}, round: round, book: &ledgerBook{},
			day: minuteOf(time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC)) + int64(round)*20*dayMinutes,
		}
		r.enroll()
		for range rapid.IntRange(2, 8).Draw(rt, "steps") {
			r.step()
		}
		for i := range 8 {
			if i == 4 && rapid.Bool().Draw(rt, "all folded") {
				fold(t, l, time.Unix(60*(r.day+(queryDays+1)*dayMinutes), 0))
			}
			r.checkAnswer()
		}
		r.checkNested()
		r.checkSelf()
		// Of days that are not folded, every minute of every run is looked up.
		if rapid.IntRange(0, 4).Draw(rt, "folded") > 0 {
			fold(t, l, time.Unix(60*(r.day+(queryDays+1)*dayMinutes), 0))
		}
		r.checkRuns()
	})
}

// queryDays is how many days of a round have rows.
const queryDays = 5

// A queryRound is one round of testAnswers: nodes, what they sent, and queries of it.
type queryRound struct {
	*rapid.T
	t         *testing.T
	l         *ledger.Ledger
	db        reader
	round     int
	day       int64       // the first minute of its days
	book      *ledgerBook // the expected content of the ledger
	workloads []*bookWorkload
	marks     map[*bookNode]batch.Mark
	handovers int // number of calls of nest that sent a share
}

// hostile is text with special meaning in SQL, or in the ledger's queries.
var hostile = []string{`' OR 1=1 --`, `"; DROP TABLE node; --`, "{int}", "$1", "?", `\`, "%", "é\u2028"}

// oneOf draws one of the values.
func (r *queryRound) oneOf(what string, values ...string) string {
	return rapid.SampledFrom(values).Draw(r.T, what)
}

func (r *queryRound) cluster(i int) string { return fmt.Sprintf("c%d-%d", r.round, i) }

// enroll creates three nodes, some of which may have the same host name, with five workloads
// each, idle and system among them.
func (r *queryRound) enroll() {
	r.marks = map[*bookNode]batch.Mark{}
	for i := range 3 {
		n := &bookNode{
			id: fmt.Sprintf("n%d-%d", r.round, i), name: fmt.Sprintf("n%d-%s", r.round, r.oneOf("node", "x", "y", "z")),
			cluster: r.cluster(i % 2), minutes: map[int64]*bookMinute{},
		}
		host := n.name
		if slices.ContainsFunc(r.book.nodes, func(o *bookNode) bool { return o.cluster == n.cluster && o.name == n.name }) {
			n.name += "~" + n.id
		}
		r.book.nodes = append(r.book.nodes, n)
		r.marks[n] = batch.Mark{Next: 1}
		if err := r.l.PutNode(r.t.Context(), registry.Node{ID: n.id, Name: host, Cluster: n.cluster, At: Day}); err != nil {
			r.Fatal(err)
		}
		for j := range 5 {
			w := &bookWorkload{node: n, name: batch.Name{Key: fmt.Sprint(j)}}
			switch j {
			case 0, 1:
				w.name.Kind = []workload.Kind{workload.Idle, workload.System}[j]
				w.name.Name = w.name.Kind.String()
			default:
				w.name.Kind = rapid.SampledFrom([]workload.Kind{workload.Job, workload.Container, workload.Service, workload.SlurmJob}).Draw(r.T, "kind")
				r.drawLife(&w.name)
				if last := r.workloads[len(r.workloads)-1]; j > 2 && rapid.Bool().Draw(r.T, "below") {
					w.name.Parent = last.name.ID
				}
				w.name.Name = r.oneOf("name", "mete-agent.service", "w", "v", hostile[0])
				w.name.Job = r.oneOf("job", "", "j", "w", hostile[1])
				w.name.User = r.oneOf("user", "", "u", "idle")
				w.name.Project = r.oneOf("project", "", "p", "q", hostile[0])
				w.name.Labels = map[string]string{}
				for _, k := range []string{"io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name", "app", hostile[0], hostile[2]} {
					if v := r.oneOf("label", "", "a", "b", hostile[1], hostile[3]); v != "" {
						w.name.Labels[k] = v
					}
				}
			}
			w.name.ID = workload.NewID(n.id, w.name.Kind, w.name.Key)
			w.short, _ = workload.ShortIDOf(w.name.ID)
			r.workloads = append(r.workloads, w)
		}
	}
}

// minute draws a minute of the round's days: one of few, so that entries often have rows of the
// same minute.
func (r *queryRound) minute() int64 {
	return r.day + dayMinutes*int64(rapid.IntRange(0, queryDays-1).Draw(r.T, "day")) +
		int64(rapid.SampledFrom([]int{0, 1, 59, 60, 600, 1439}).Draw(r.T, "minute"))
}

// step books entries or a handover, folds, or removes old rows.
func (r *queryRound) step() {
	ctx := r.t.Context()
	now := time.Unix(60*(r.day+int64(rapid.IntRange(0, (queryDays+3)*24).Draw(r.T, "now"))*hourMinutes+7), 0)
	var err error
	switch r.oneOf("step", "book", "book", "book", "nest", "fold", "retain") {
	case "nest":
		r.nest()
	case "book":
		for range 3 {
			r.send()
		}
	case "fold":
		err = r.l.Fold(ctx, now)
	case "retain":
		err = Try(r, func() error { return r.l.Retain(ctx, now) })
	}
	if err != nil {
		r.Fatal(err)
	}
}

// send books an entry of one node, in which workloads, system and idle sum to whole and skew.
func (r *queryRound) send() {
	n := r.book.nodes[rapid.IntRange(0, len(r.book.nodes)-1).Draw(r.T, "node")]
	mark := r.marks[n]
	e := &batch.Entry{Node: n.id, Stream: batch.Stream{byte(r.round >> 8), byte(r.round), n.id[len(n.id)-1]}, Number: mark.Next, Previous: mark.Last}
	e.Hash = batch.HashOf(fmt.Append(nil, n.id, e.Number))
	for _, w := range r.workloads {
		if w.node == n && !w.sent && rapid.Bool().Draw(r.T, "named") {
			w.sent, w.told = true, w.name
			e.Names = append(e.Names, w.name)
		}
	}
	for range rapid.IntRange(0, 3).Draw(r.T, "minutes") {
		m := r.minute()
		node := batch.NodeMinute{Minute: m, Covered: time.Duration(rapid.Int64Range(0, 6e10).Draw(r.T, "covered")), CPUs: 2}
		var had [len(usage.Wholes)]int64
		for _, w := range r.workloads {
			if w.node != n || rapid.IntRange(0, 2).Draw(r.T, "row") == 0 {
				continue
			}
			row := batch.Minute{Workload: w.short, Minute: m, Usage: r.usage()}
			if w.name.Kind == workload.Idle {
				row.Usage.Put(usage.EnergyRest, rapid.Int64Range(1, 1<<40).Draw(r.T, "idle energy"), usage.Modelled)
			}
			// A workload has idle energy of its own in all of its rows or in none.
			u := &row.Usage
			u.Present, u.Amount[usage.EnergyIdle] = u.Present&^usage.SetOf(usage.EnergyIdle), 0
			u.Quality.Set(usage.EnergyIdle, usage.Absent)
			if w.short%3 == 0 {
				u.Put(usage.EnergyIdle, rapid.Int64Range(0, 1<<40).Draw(r.T, "own idle energy"), usage.Apportioned)
			}
			for i, res := range usage.Wholes {
				had[i] += row.Usage.Amount[res]
			}
			e.Minutes = append(e.Minutes, row)
			if hasContent(&row.Usage) {
				r.book.rows = append(r.book.rows, bookRow{w, m, row.Usage})
			}
			if end := time.Unix(60*(m+1), 0); end.After(e.Through) {
				e.Through = end
			}
		}
		at := n.minuteAt(m)
		for i, v := range had {
			node.Skew[i] = rapid.Int64Range(-min(v, 9), 9).Draw(r.T, "skew")
			node.Whole[i] = v - node.Skew[i]
			if node.Whole[i] < 0 {
				node.Whole[i], node.Skew[i] = v, 0
			}
			at.had[i].Add(at.had[i], big.NewInt(v))
		}
		at.covered += node.Covered.Round(time.Millisecond)
		e.Nodes = append(e.Nodes, node)
	}
	if rapid.IntRange(0, 2).Draw(r.T, "gap") == 0 {
		a, b := r.minute(), r.minute()
		g := bookGap{n, time.Unix(60*min(a, b), int64(len(r.book.gaps))).UTC(), time.Unix(60*max(a, b)+17, 0).UTC()}
		r.book.gaps = append(r.book.gaps, g)
		e.Gaps = append(e.Gaps, usage.Gap{From: g.from, To: g.to, Reason: usage.Rebooted})
	}
	r.marks[n] = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
	book(r.t, r.l, batch.Accepted, e)
	if !e.Through.IsZero() {
		n.recordGuestEntry(time.Time{}, time.Time{}, e.Through)
	}
}

// minuteAt returns the data of a node in a minute.
func (n *bookNode) minuteAt(m int64) *bookMinute {
	at := n.minutes[m]
	if at == nil {
		at = &bookMinute{}
		for i := range at.had {
			at.had[i] = new(big.Int)
		}
		n.minutes[m] = at
	}
	return at
}

// nest makes a host and a guest report the same share, in either order, in a minute whose rows are
// kept. A node of the same cluster is then a guest in that minute, unless its host was ever a guest
// of it.
func (r *queryRound) nest() {
	pick := func(what string) *bookNode {
		return r.book.nodes[rapid.IntRange(0, len(r.book.nodes)-1).Draw(r.T, what)]
	}
	host, guest, m := pick("host"), pick("guest"), r.minute()
	if r.granularity(m) != 1 {
		return
	}
	var vm *bookWorkload // the last workload of the host
	for _, w := range r.workloads {
		if w.node == host {
			vm = w
		}
	}
	r.handovers++
	const uuid = "00112233-4455-6677-8899-aabbccddeeff"
	h := batch.TimedHandover{From: time.Unix(60*m, 0), To: time.Unix(60*m+10, 0)}
	h.Guest, h.Shares = uuid, []power.Share{{Epoch: fmt.Sprint(r.round, ".", r.handovers), N: 1, Active: 5, Idle: 6}}
	hostHandover := h
	hostHandover.Workload = vm.name.ID
	reports := 0
	for _, n := range rapid.Permutation([]*bookNode{host, guest}).Draw(r.T, "order") {
		mark := r.marks[n]
		e := &batch.Entry{Node: n.id, Stream: batch.Stream{byte(r.round >> 8), byte(r.round), n.id[len(n.id)-1]}, Number: mark.Next, Previous: mark.Last,
			Through: h.To, Handovers: []batch.TimedHandover{hostHandover}}
		if n == guest {
			e.Handovers[0] = h
		}
		if n == host && e.Handovers[0].Workload != "" {
			// The host books the energy that it gave. Its entry ends long after the last share of
			// the guest.
			e.Through = h.To.Add(10 * time.Minute)
			row := batch.Minute{Workload: vm.short, Minute: m, Usage: usage.Usage{Covered: time.Second}}
			row.Usage.Put(usage.EnergyRest, 11, usage.Apportioned)
			node := batch.NodeMinute{Minute: m, CPUs: 2}
			i := slices.Index(usage.Wholes[:], usage.EnergyRest)
			node.Whole[i] = 11
			e.Minutes, e.Nodes = []batch.Minute{row}, []batch.NodeMinute{node}
			r.book.rows = append(r.book.rows, bookRow{vm, m, row.Usage})
			had := host.minuteAt(m).had[i]
			had.Add(had, big.NewInt(11))
		}
		e.Hash = batch.HashOf(fmt.Append(nil, n.id, e.Number))
		r.marks[n] = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
		book(r.t, r.l, batch.Accepted, e)
		if reports++; reports == 2 && host != guest && host.cluster == guest.cluster {
			guest.recordEqualShare(vm, m, h.To)
		}
		if n == guest {
			guest.recordGuestEntry(h.From, h.To, h.To)
		} else {
			n.recordGuestEntry(time.Time{}, time.Time{}, e.Through)
		}
	}
}

// usage draws amounts, including large ones: sums of a few exceed 63 bits.
func (r *queryRound) usage() (u usage.Usage) {
	u.Covered = time.Duration(rapid.Int64Range(0, 6e10).Draw(r.T, "covered"))
	for range rapid.IntRange(1, 4).Draw(r.T, "resources") {
		res := rapid.SampledFrom([]usage.Resource{usage.CPU, usage.Memory, usage.MemoryPeak, usage.PressureIO, usage.EnergyRest, usage.EnergyError, 0}).Draw(r.T, "resource")
		if res == 0 {
			res = usage.Resource(rapid.IntRange(1, usage.Limit-1).Draw(r.T, "any"))
		}
		top := rapid.SampledFrom([]int64{10, 1 << 33, 1 << 54}).Draw(r.T, "size")
		u.Put(res, rapid.Int64Range(0, top).Draw(r.T, "amount"), usage.Quality(rapid.IntRange(1, 3).Draw(r.T, "quality")))
	}
	return u
}

// dimensions are all dimensions of queries.
var dimensions = []query.Dimension{
	query.ByCluster, query.ByNode, query.ByWorkload, query.ByKind, query.ByJob, query.ByUser, query.ByProject, query.ByNamespace,
	query.ByPod, query.ByContainer, query.ByLabel + "app", query.ByLabel + query.Dimension(hostile[0]), query.ByLabel + query.Dimension(hostile[2]),
}

// query draws a query.
func (r *queryRound) query() query.Query {
	q := query.Query{OmitOwn: rapid.IntRange(0, 3).Draw(r.T, "own") == 0, Limit: rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(r.T, "limit")}
	known := dimensions
	if rapid.Bool().Draw(r.T, "grouped") { // only the dimensions of day groups
		known = []query.Dimension{query.ByCluster, query.ByKind, query.ByUser, query.ByProject, query.ByNamespace}
		q.OmitOwn = false
	}
	dimension := rapid.SampledFrom(known)
	for range rapid.IntRange(1, 3).Draw(r.T, "by") {
		q.By = append(q.By, dimension.Draw(r.T, "dimension"))
	}
	if rapid.IntRange(0, 2).Draw(r.T, "filtered") == 0 {
		q.Where = map[query.Dimension][]string{}
		for range rapid.IntRange(1, 2).Draw(r.T, "where") {
			d := dimension.Draw(r.T, "where")
			for range rapid.IntRange(0, 3).Draw(r.T, "values") {
				w := r.workloads[rapid.IntRange(0, len(r.workloads)-1).Draw(r.T, "of")]
				q.Where[d] = append(q.Where[d], r.oneOf("value", r.book.value(w, d, query.Scope{All: true}), "", w.node.id, w.node.name, hostile[0]))
			}
		}
	}
	switch r.oneOf("scope", "all", "all", "clusters", "projects", "both", "none") {
	case "all":
		q.Scope.All = true
	case "clusters":
		q.Scope.Clusters = []string{r.cluster(0), hostile[0]}
	case "projects":
		q.Scope.Projects = []string{"p", hostile[0]}
	case "both":
		q.Scope.Clusters, q.Scope.Projects = []string{r.cluster(1)}, []string{"q", "p"}
	}
	q.Nested = r.oneOf("nested", "", "", query.NestedOnly, query.NestedAlso)
	end := rapid.IntRange(-5, queryDays*24*60+100)
	a, b := int64(end.Draw(r.T, "from")), int64(end.Draw(r.T, "to"))
	from, to := min(a, b), max(a, b)
	switch r.oneOf("range", "odd", "days", "days", "hours") {
	case "days":
		from, to = from-from%dayMinutes, to-to%dayMinutes+dayMinutes
	case "hours":
		from, to = from-from%hourMinutes, to-to%hourMinutes+hourMinutes
	case "odd":
		q.From, q.To = q.From.Add(time.Duration(rapid.IntRange(0, 59).Draw(r.T, "second"))), q.To.Add(time.Nanosecond)
	}
	q.From = time.Unix(60*(r.day+from), int64(q.From.Nanosecond())).UTC()
	q.To = time.Unix(60*(r.day+to), int64(q.To.Nanosecond())).UTC()
	return q
}

// granularity returns the finest granularity of rows at a minute; a minute without rows is
// read as if it were kept.
func (r *queryRound) granularity(at int64) int64 {
	_, _, minuteFloor, hourFloor := r.db.marks()
	switch {
	case at < hourFloor:
		return dayMinutes
	case at < minuteFloor:
		return hourMinutes
	}
	return 1
}

// minutes returns the range of a query in minutes, extended to kept rows.
func (r *queryRound) minutes(q *query.Query) (from, to int64) {
	from, to = q.From.Unix()/60, (q.To.Unix()+59)/60
	if q.To.Nanosecond() > 0 && q.To.Unix()%60 == 0 {
		to++
	}
	f := r.granularity(from)
	from -= from % f
	if f = r.granularity(to - 1); to%f != 0 {
		to += f - to%f
	}
	return from, to
}
