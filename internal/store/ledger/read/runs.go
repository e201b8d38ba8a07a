package read

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/outlier"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// runKinds are the kinds of workloads that are runs, as the database has them.
var runKinds = func() (kinds []string) {
	for k := workload.Unknown; k <= workload.Job; k++ {
		if k.IsRun() {
			kinds = append(kinds, k.String())
		}
	}
	return kinds
}()

// Runs lists the runs with use in a range that match the query's filters, in the order of their keys:
// at most q.Limit, after q.After. It holds no more of them at once than about twice the limit. Use and
// times of each are of all its life; the rows of its life are looked up by key.
func (rd *Reader) Runs(ctx context.Context, q query.RunQuery) ([]query.Run, error) {
	if !q.Scope.All && len(q.Scope.Clusters)+len(q.Scope.Projects) == 0 {
		return nil, nil
	}
	q.By, q.Resources = []query.Dimension{query.ByWorkload}, query.RunResources
	if kinds := q.Where[query.ByKind]; slices.Contains(kinds, workload.KubeJob.String()) { // as its parts are
		q.Where = maps.Clone(q.Where)
		q.Where[query.ByKind] = append(slices.Clone(kinds), workload.Pod.String(), workload.Container.String())
	}
	var out []query.Run
	err := rd.db.View(ctx, func(v *db.View) error {
		s, err := rd.newSelection(v, &q.Query)
		if err != nil {
			return err
		}
		s.where += " AND (w.kind IN " + s.args.addList(runKinds)
		if kinds := q.Where[query.ByKind]; len(kinds) == 0 || slices.Contains(kinds, workload.KubeJob.String()) {
			s.where += " OR w.run <> ''"
		}
		s.where += ")"
		if q.Failed {
			s.where += " AND CASE WHEN w.run <> '' THEN w.run_exit > 0 ELSE w.exit_code <> 0 END"
		}
		if q.ID != "" {
			s.where += fmt.Sprintf(" AND substr(CASE WHEN w.run <> '' THEN w.run ELSE w.wid END, 1, %d) = %s", len(q.ID), s.args.add(schema.Clean(q.ID)))
		}
		from, to := queryRange(v, q.From, q.To)
		if err := s.nesting.find(v, from, to); err != nil {
			return rd.db.Fault(err)
		}
		page := s.newPage((*query.Workload).RunKey)
		page.runs = true
		if err := s.findWorkloads(v.Cover(from, to, v.Days), page); err != nil {
			return rd.db.Fault(err)
		}
		ids := page.cut()
		if err := page.addLabels(v, ids); err != nil {
			return rd.db.Fault(err)
		}
		l := &runList{selection: s, now: time.Now(), byRow: map[int64]*listedRun{}, parts: map[runKey]*listedRun{}, ids: map[int64]bool{}}
		for _, id := range ids {
			r := newListedRun(*page.found[id], true)
			l.runs, l.byRow[id] = append(l.runs, r), r
		}
		before, err := l.addBefore()
		if err != nil {
			return rd.db.Fault(err)
		}
		if err := l.complete(); err != nil {
			return rd.db.Fault(err)
		}
		for r, ids := range before {
			list := make([]*query.Run, len(ids))
			for i, id := range ids {
				list[i] = &l.byRow[id].Run
			}
			r.Compare(list)
		}
		for _, r := range l.runs {
			if r.listed {
				out = append(out, r.Run)
			}
		}
		return nil
	})
	return out, db.Wrap(err, "runs")
}

// A runList completes the runs of a list.
type runList struct {
	*selection
	now   time.Time
	runs  []*listedRun
	byRow map[int64]*listedRun
	parts map[runKey]*listedRun // by workload: the run that it is a part of, if it says one
	ids   map[int64]bool        // the rows of these workloads
}

// A listedRun is a run while its use is summed.
type listedRun struct {
	query.Run
	listed  bool                      // it is in the list, not only compared with
	at      map[int64]time.Time       // its nodes, and the end of the latest booked window of each
	below   map[int64]bool            // those of its nodes that are of a server below
	latest  struct{ end, node int64 } // the minute in which its newest row ends, and the node of that row
	through time.Time                 // end of the latest booked window of that node
	newest  time.Time                 // end of the newest row of that node, if it is of a server below; zero if none was found
	group   *group
	covered int64 // ms, of the run itself
}

// newListedRun returns a run without figures.
func newListedRun(w query.Workload, listed bool) *listedRun {
	return &listedRun{Run: query.Run{Workload: w}, listed: listed, at: map[int64]time.Time{}, below: map[int64]bool{}}
}

// addNode notes that the run, or a part of it, is of a node.
func (r *listedRun) addNode(id int64, nodeID, name string, through time.Time, below bool) {
	if r.at[id] = through; len(r.at) == 1 {
		r.Node, r.NodeID, r.through = name, nodeID, through
	} else {
		r.Node, r.NodeID = "", ""
	}
	r.Nodes = len(r.at)
	if below {
		r.below[id] = true
	}
}

// asRun returns the run that a workload is a part of, if it says one, else the workload. The number of the run, which no row has, follows from
// its ID.
func asRun(w *query.Workload) *query.Workload {
	if w.PartOf.ID == "" {
		return w
	}
	r := &w.PartOf
	short, _ := workload.ShortIDOf(workload.NewID(w.Cluster, workload.KubeJob, string(r.ID)))
	name := batch.Name{ID: r.ID, Kind: workload.KubeJob, Name: r.Name, Job: w.Job, User: w.User, Project: w.Project, Started: r.Started, Ended: r.Ended, Exit: r.Exit}
	return &query.Workload{Row: -1 - int64(short>>1), PartOf: *r, Cluster: w.Cluster, Name: name, First: w.First, Last: w.Last}
}

// complete sets everything of the runs that their workloads do not say.
func (l *runList) complete() error {
	lives, err := l.findLives()
	if err != nil {
		return err
	}
	if lives, err = l.addBelow(lives); err != nil {
		return err
	}
	if err := l.nesting.findLives(l.v, lives); err != nil {
		return err
	}
	gs := newGroups(l.want)
	for _, r := range l.runs {
		r.group = gs.getNamed(fmt.Sprint(r.Row), nil)
	}
	err = l.rd.eachLifeRow(l.v, &l.nesting, lives, l.want, func(of *life, row *lifeRow) {
		row.addTo(gs, of.run.group)
		if end := row.minute + row.width; end > of.run.latest.end {
			of.run.latest.end, of.run.latest.node, of.run.through = end, of.node, of.run.at[of.node]
		}
		if of.workload == of.run.Row {
			of.run.covered += row.covered
		}
	})
	if err != nil {
		return err
	}
	if err := l.findNewest(); err != nil {
		return err
	}
	for _, r := range l.runs {
		g := gs.toGroup(r.group)
		if r.Usage = g.Usage; r.group.last != 0 {
			r.First, r.Last = g.First, g.Last
		}
		if r.Kind == workload.KubeJob {
			r.covered = r.Last.Sub(r.First).Milliseconds() // its parts are covered one beside another
		}
		r.setState(l.now)
	}
	return nil
}

// A runStart is the start of a run, and the end of one that is not a workload.
type runStart struct {
	at, row, ended int64 // ns; its number; ns
	partOf         workload.ID
}

// addBefore adds to the runs the successful ones before them of the same jobs, with which they are
// compared, and returns those of each run, the latest first.
func (l *runList) addBefore() (map[*listedRun][]int64, error) {
	jobs := map[string][]runStart{}
	names := map[string]bool{}
	latest := int64(0) // ns
	for _, r := range l.runs {
		if !r.Ended.IsZero() && !r.Started.IsZero() {
			jobs[r.JobKey()] = nil
			names[cmp.Or(r.Job, r.Name.Name)] = true
			latest = max(latest, r.Started.UnixNano())
		}
	}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(names)), lookupSize) {
		var args arguments
		kinds, list, newest := args.addList(runKinds), args.addList(some), args.add(latest)
		err := db.Each(l.v.Ctx, l.v.SQL, func(scan func(...any) error) error {
			var w query.Workload
			var started, ended int64
			if err := scan(&w.Row, &started, &ended, &w.Cluster, &w.Job, &w.User, &w.Project, &w.PartOf.ID); err != nil {
				return err
			}
			key := w.JobKey()
			if _, ok := jobs[key]; !ok {
				return nil
			}
			jobs[key] = append(jobs[key], runStart{started, asRun(&w).Row, ended, w.PartOf.ID})
			return nil
		}, `SELECT w.id, w.started_ns, w.ended_ns, n.cluster, CASE WHEN w.job <> '' THEN w.job ELSE w.name END, w.username, w.project, '' FROM workload w JOIN node n ON n.id = w.node
			WHERE w.exit_code = 0 AND w.started_ns > 0 AND w.ended_ns > 0 AND w.kind IN `+kinds+" AND CASE WHEN w.job <> '' THEN w.job ELSE w.name END IN "+list+`
			UNION ALL SELECT DISTINCT 0, w.run_started_ns, w.run_ended_ns, n.cluster, w.job, w.username, w.project, w.run FROM workload w JOIN node n ON n.id = w.node
			WHERE w.run <> '' AND w.run_exit = 0 AND w.run_started_ns > 0 AND w.run_started_ns < `+newest+` AND w.run_ended_ns > 0 AND w.job IN `+list+" AND NOT "+schema.IsCarrier, args...)
		if err != nil {
			return nil, err
		}
	}
	for _, starts := range jobs {
		slices.SortFunc(starts, func(a, b runStart) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.row, b.row)) })
	}
	out := map[*listedRun][]int64{}
	var missing []int64
	for _, r := range l.runs {
		starts := jobs[r.JobKey()]
		if r.Ended.IsZero() || r.Started.IsZero() {
			continue
		}
		at, _ := slices.BinarySearchFunc(starts, r.Started.UnixNano(), func(s runStart, ns int64) int { return cmp.Compare(s.at, ns) })
		if at < outlier.MinSample {
			continue
		}
		for i := at - 1; i >= max(0, at-outlier.MaxSample); i-- {
			id, of := starts[i].row, starts[i].partOf
			if out[r] = append(out[r], id); l.byRow[id] != nil {
				continue
			}
			w := query.Workload{Row: id}
			if of == "" {
				missing = append(missing, id)
			} else {
				w.Kind, w.PartOf = workload.KubeJob, workload.Run{ID: of}
				w.Started, w.Ended = schema.FromNanos(starts[i].at), schema.FromNanos(starts[i].ended)
			}
			l.byRow[id] = newListedRun(w, false)
			l.runs = append(l.runs, l.byRow[id])
		}
	}
	return out, l.addMissing(missing)
}

// addMissing adds what the workloads of runs say that are compared with.
func (l *runList) addMissing(rows []int64) error {
	for some := range slices.Chunk(rows, lookupSize) {
		err := db.Each(l.v.Ctx, l.v.SQL, func(scan func(...any) error) error {
			var id int64
			var row schema.NameRow
			if err := scan(append([]any{&id}, row.Targets()...)...); err != nil {
				return err
			}
			l.byRow[id].Name = row.Name()
			return nil
		}, "SELECT w.id, "+schema.NameColumns+" FROM workload w WHERE w.id IN ("+schema.JoinInts(some)+")")
		if err != nil {
			return err
		}
	}
	return nil
}

// findLives loads the nodes of the runs, and returns when there may be rows of each run: of its workload, or of those that
// are parts of it.
func (l *runList) findLives() (lives []life, err error) {
	const columns = `SELECT w.id, n.id, n.node_id, n.name, n.cluster, n.source, n.through_ns, w.first_minute, w.last_minute, ` + schema.NameColumns + `
		FROM workload w JOIN node n ON n.id = w.node WHERE `
	add := func(scan func(...any) error) error {
		var at, source, through, first, last int64
		var nodeID, node string
		var row schema.NameRow
		var w query.Workload
		if err := scan(append([]any{&w.Row, &at, &nodeID, &node, &w.Cluster, &source, &through, &first, &last}, row.Targets()...)...); err != nil {
			return err
		}
		w.Name, w.PartOf = row.Name(), row.Run()
		r := l.byRow[asRun(&w).Row]
		if r == nil {
			return nil // the run of another cluster with this ID
		}
		id := w.Row
		if r.addNode(at, nodeID, node, schema.FromNanos(through), source != 0); w.PartOf.ID == "" {
			w = r.Workload // it has the minutes that were found
		} else {
			l.parts[runKey{at, w.ID}], l.ids[id] = r, true
			if w.Started.IsZero() {
				w.Started = r.Started
			}
		}
		lives = append(lives, life{run: r, node: at, workload: id, MinuteSpan: l.lifeOf(&w, first, last)})
		return nil
	}
	for some := range slices.Chunk(l.runs, lookupSize) {
		var ids []int64
		var runs []string
		for _, r := range some {
			if r.PartOf.ID != "" {
				runs = append(runs, string(r.PartOf.ID))
			} else {
				ids = append(ids, r.Row)
			}
		}
		if len(ids) > 0 {
			if err := db.Each(l.v.Ctx, l.v.SQL, add, columns+"w.id IN ("+schema.JoinInts(ids)+")"); err != nil {
				return nil, err
			}
		}
		if len(runs) > 0 {
			var args arguments
			if err := db.Each(l.v.Ctx, l.v.SQL, add, columns+"w.run <> '' AND w.run IN "+args.addList(runs)+" AND NOT "+schema.IsCarrier, args...); err != nil {
				return nil, err
			}
		}
	}
	return lives, nil
}

// newestHours is how far back a newest row is searched. A server below that sends hours only sends one
// when it is folded.
const newestHours = 4

// findNewest finds the newest row of each node of a server below with a run that did not end.
func (l *runList) findNewest() error {
	nodes := map[int64]int64{} // ends of rows in minutes
	for _, r := range l.runs {
		for at := range r.below {
			if r.Ended.IsZero() {
				nodes[at] = 0
			}
		}
	}
	end := floorMinute(l.now) + aheadMinutes
	from := end - end%schema.HourMinutes - newestHours*schema.HourMinutes
	for some := range slices.Chunk(slices.Sorted(maps.Keys(nodes)), lookupSize) {
		for _, p := range l.v.Cover(from, end, l.v.Days) {
			node := schema.IDOf("node")
			err := eachInRange(l.v, p, make(arguments, 2), func(scan func(...any) error) error {
				var id, minute int64
				err := scan(&id, &minute)
				nodes[id] = max(nodes[id], minute+p.Level.Width())
				return err
			}, fmt.Sprintf("SELECT %[1]s, max(minute) FROM %[2]s WHERE minute >= $1 AND minute < $2 AND %[1]s IN (%[3]s) GROUP BY 1", node, p.Table(schema.NodeLayout), schema.JoinInts(some)))
			if err != nil {
				return err
			}
		}
	}
	for _, r := range l.runs {
		if end := nodes[r.latest.node]; r.below[r.latest.node] && end > 0 {
			r.newest = time.Unix(60*end, 0)
		}
	}
	return nil
}

// lifeOf returns a first minute and an end between which all rows of a workload are. The first and the
// last folded minute with use are known exactly. Rows that are not folded yet are where rows were found,
// or where the workload says that it lived; clocks may have been set by some minutes.
func (l *runList) lifeOf(w *query.Workload, first, last int64) schema.MinuteSpan {
	span := schema.MinuteSpan{}
	if last != 0 {
		span = schema.MinuteSpan{First: first, Last: last + 1}
	}
	extend := func(from, to int64) {
		if from = max(from, l.v.Hour); from < to {
			span = span.Extend(from)
			span = schema.MinuteSpan{First: min(span.First, from), Last: max(span.Last, to)}
		}
	}
	if !w.First.IsZero() {
		extend(floorMinute(w.First), floorMinute(w.Last))
	}
	end := floorMinute(l.now) + aheadMinutes
	from, to := int64(0), end
	if !w.Started.IsZero() {
		from = floorMinute(w.Started) - aheadMinutes
	}
	if !w.Ended.IsZero() {
		to = min(end, floorMinute(w.Ended)+aheadMinutes)
	}
	extend(from, to)
	return span
}

// belowChunk is how many workloads one statement finds the workloads below of: it reads all workloads
// of their nodes.
const belowChunk = 10 * lookupSize

// A runKey identifies the runs of which one had the place of another later: those of jobs of Slurm with the same number.
type runKey struct {
	node int64
	id   workload.ID
}

// findAgain returns the starts of all runs of each key of the list that has several, the first one first.
func (l *runList) findAgain() (map[runKey][]runStart, error) {
	out := map[runKey][]runStart{}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(l.byRow)), lookupSize) {
		ids := schema.JoinInts(some)
		of, err := db.Ints(l.v.Ctx, l.v.SQL, "SELECT DISTINCT version_of FROM workload WHERE version_of <> 0 AND (version_of IN ("+ids+") OR id IN ("+ids+"))")
		if err != nil {
			return nil, err
		} else if len(of) == 0 {
			continue
		}
		ids = schema.JoinInts(of)
		err = db.Each(l.v.Ctx, l.v.SQL, func(scan func(...any) error) error {
			var k runKey
			var s runStart
			err := scan(&k.node, &k.id, &s.row, &s.at)
			out[k] = append(out[k], s)
			return err
		}, "SELECT node, wid, id, started_ns FROM workload WHERE id IN ("+ids+") OR version_of IN ("+ids+") AND version_of <> 0 ORDER BY from_minute")
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// addBelow adds the lives of the workloads below runs, at any depth, such as the steps of a Slurm job. A
// run below another one is on its own.
func (l *runList) addBelow(lives []life) ([]life, error) {
	again, err := l.findAgain()
	if err != nil {
		return nil, err
	}
	runs, rows, level := l.parts, l.ids, slices.Collect(maps.Keys(l.parts))
	for _, r := range l.runs {
		for at := range r.at {
			if k := (runKey{at, r.ID}); r.ID != "" && r.PartOf.ID == "" {
				runs[k], level = r, append(level, k)
			}
		}
	}
	for len(level) > 0 {
		var next []runKey
		for some := range slices.Chunk(level, belowChunk) {
			args, nodes := arguments{}, map[int64]bool{}
			var parents []string
			for _, k := range some {
				nodes[k.node] = true
				parents = append(parents, string(k.id))
			}
			var ids []int64
			for n := range nodes {
				ids = append(ids, n)
			}
			list := args.addList(parents)
			err := db.Each(l.v.Ctx, l.v.SQL, func(scan func(...any) error) error {
				var at, first, last, known int64
				var w query.Workload
				var r schema.NameRow
				if err := scan(append([]any{&w.Row, &at, &first, &last, &known}, r.Targets()...)...); err != nil {
					return err
				}
				w.Name = r.Name()
				run, k := runs[runKey{at, w.Parent}], runKey{at, w.ID}
				if starts := again[runKey{at, w.Parent}]; len(starts) > 0 {
					i := slices.IndexFunc(starts, func(s runStart) bool { return s.at > known+aheadMinutes*int64(time.Minute) })
					if i < 0 {
						i = len(starts)
					}
					run = l.byRow[starts[max(0, i-1)].row]
				}
				if run == nil || w.Kind.IsRun() || rows[w.Row] {
					return nil
				}
				if runs[k] == nil { // else this is another version of it
					runs[k], next = run, append(next, k)
				}
				rows[w.Row] = true
				lives = append(lives, life{run: run, node: at, workload: w.Row, MinuteSpan: l.lifeOf(&w, first, last)})
				return nil
			}, "SELECT w.id, w.node, w.first_minute, w.last_minute, w.known_ns, "+schema.NameColumns+" FROM workload w WHERE w.parent IN "+list+" AND w.node IN ("+schema.JoinInts(ids)+")", args...)
			if err != nil {
				return nil, err
			}
		}
		level = next
	}
	return lives, nil
}

// setState sets state and length. A run has no end as long as it has rows up to the latest of its node: those
// of a server below may come hours after the mark of their node.
func (r *listedRun) setState(now time.Time) {
	r.Length = time.Duration(nanos(r.covered).Int64())
	rows := r.through
	if !r.newest.IsZero() && r.newest.Before(rows) {
		rows = r.newest
	}
	switch fresh := r.Last.Add(aheadMinutes * time.Minute); {
	case !r.Ended.IsZero():
		r.State = query.Ended
		if d := r.Ended.Sub(r.Started); !r.Started.IsZero() && d > 0 {
			r.Length = d
		}
	case fresh.Before(rows) || now.Sub(r.through) > reportedFor:
		r.State = query.EndUnknown
	default:
		r.State = query.Running
		if d := r.through.Sub(r.Started); !r.Started.IsZero() && d > 0 {
			r.Length = d
		}
	}
}
