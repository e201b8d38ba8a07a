package ledgertest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/slurm"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// A slurmRound is a ledger with the nodes of a Slurm cluster.
type slurmRound struct {
	*testing.T
	l     *ledger.Ledger
	db    reader
	marks map[string]batch.Mark
	at    time.Time // when jobs are read
}

// send books what a job and a step used on a node in a minute. A zero end is none.
func (r *slurmRound) send(node string, job int64, minute int64, ns int64, ended time.Time) {
	r.Helper()
	j := batch.Name{ID: workload.NewID(node, workload.SlurmJob, slurm.Key(job)), Kind: workload.SlurmJob, Key: slurm.Key(job), Name: fmt.Sprintf("job %d", job), Ended: ended}
	step := batch.Name{Kind: workload.SlurmStep, Key: slurm.Key(job) + "/batch", Name: fmt.Sprintf("job %d step batch", job), Parent: j.ID, Ended: ended}
	step.ID = workload.NewID(node, workload.SlurmStep, step.Key)
	for _, n := range []batch.Name{step, j} { // a step may be named before its job
		r.sendName(node, n, minute, ns)
	}
}

// sendName books a name and what its workload used on a node in a minute.
func (r *slurmRound) sendName(node string, n batch.Name, minute int64, ns int64) {
	r.Helper()
	short, _ := workload.ShortIDOf(n.ID)
	mark := r.marks[node]
	mark.Next++
	e := Entry(node, batch.Stream(fmt.Appendf(nil, "%-16s", node)), mark, short, ns, minute)
	e.Names = []batch.Name{n}
	r.marks[node] = batch.Mark{Next: mark.Next, Last: e.Hash}
	book(r.T, r.l, batch.Accepted, e)
}

func (r *slurmRound) book(jobs ...slurm.Job) (reused []int64) {
	r.Helper()
	err := Try(r.T, func() (err error) {
		reused, err = r.l.BookSlurm(context.Background(), "c", jobs, r.at)
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
	return reused
}

// names returns what the versions of a node's workloads are called, by kind and key.
func (r *slurmRound) names(node string) map[string]string {
	got := map[string]string{}
	r.db.rows(func(row map[string]any) {
		name := fmt.Sprintf("%v %v %v %v", row["name"], row["job"], row["username"], row["project"])
		if row["kind"] == "slurm-job" {
			name += fmt.Sprintf(" %v", row["exit_code"])
		}
		id := row["id"].(int64)
		r.db.rows(func(row map[string]any) { name += fmt.Sprintf(" %v=%v", row["key"], row["value"]) }, fmt.Sprintf("SELECT key, value FROM workload_label WHERE workload = %d ORDER BY key", id))
		key := fmt.Sprintf("%v", row["key"])
		if row["from_minute"].(int64) != 0 {
			key += " later"
		}
		got[key] = name
	}, fmt.Sprintf("SELECT w.* FROM workload w JOIN node n ON n.id = w.node WHERE n.node_id = '%s' ORDER BY w.from_minute", node))
	return got
}

func (r *slurmRound) check(when, node string, want map[string]string) {
	r.Helper()
	if got := r.names(node); !maps.Equal(got, want) {
		r.Errorf("%s: node %s has %v, want %v", when, node, got, want)
	}
}

// sums returns the use by job and project of the first day.
func (r *slurmRound) sums() map[string]string {
	r.Helper()
	a, err := r.l.Usage(context.Background(), query.Query{From: Day, To: Day.Add(24 * time.Hour), By: []query.Dimension{query.ByJob, query.ByProject}, Scope: query.Scope{All: true}})
	if err != nil {
		r.Fatal(err)
	}
	got := map[string]string{}
	for i := range a.Groups {
		got[strings.Join(a.Groups[i].Keys, " ")] = a.Groups[i].Usage.Sum[usage.CPU].String()
	}
	return got
}

func newSlurmRound(t *testing.T, dsn string) *slurmRound {
	r := &slurmRound{T: t, l: Open(t, dsn), marks: map[string]batch.Mark{}, at: Day.Add(time.Minute)}
	r.db = reader{t, DB(t, dsn)}
	for node, cluster := range map[string]string{"n1": "c", "N2.example.org": "c", "n3": "c", "other": "d", "jobs": "c"} {
		machine := node
		if node == "jobs" {
			machine = registry.JobsMachineID("4")
		}
		name := node
		if node == "other" || node == "jobs" {
			name = "n1"
		}
		if err := r.l.PutNode(t.Context(), registry.Node{ID: node, Cluster: cluster, Name: name, MachineID: machine, Boot: "boot", At: Day}); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// testSlurm: workloads are named by the jobs of their cluster that ran on their machines, whichever come first.
func testSlurm(t *testing.T, dsn string) {
	r := newSlurmRound(t, dsn)
	m := minuteOf(Day)
	zero := time.Time{}
	for _, node := range []string{"n1", "n3", "other", "jobs"} {
		r.send(node, 7, m+1, 1e9, zero)
	}
	total := func() string {
		a, err := r.l.Usage(t.Context(), query.Query{From: Day, To: Day.Add(24 * time.Hour), By: []query.Dimension{query.ByNode}, Scope: query.Scope{All: true}})
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for i := range a.Groups {
			text.WriteString(fmt.Sprint(a.Groups[i].Keys, a.Groups[i].Usage.Sum[usage.CPU].String(), " "))
		}
		return text.String()
	}
	before := total()
	job := slurm.Job{ID: 7, Submitted: Day.Add(-time.Hour), Name: "train", User: "ada", Account: "physics", Started: Day.Add(30 * time.Second),
		Labels: map[string]string{slurm.LabelPartition: "main", slurm.LabelNodes: "n[1-2]"}, Hosts: []string{"n1", "n2"}}
	if reused := r.book(job); len(reused) > 0 {
		t.Errorf("numbers %v in use again", reused)
	}
	if after := total(); after != before {
		t.Errorf("names changed the total from %s to %s", before, after)
	}
	r.send("N2.example.org", 7, m+2, 1e9, zero)
	nothing := map[string]string{"/7": "job 7    <nil>", "/7/batch": "job 7 step batch   "}
	named := map[string]string{"/7": "train train ada physics <nil> slurm.nodes=n[1-2] slurm.partition=main", "/7/batch": "train/batch train ada physics slurm.partition=main"}
	for node, want := range map[string]map[string]string{"n1": named, "N2.example.org": named, "n3": nothing, "other": nothing, "jobs": nothing} {
		r.check("running", node, want)
	}
	// Names that agents repeat, and the same job again, change nothing.
	rev := r.db.number("SELECT max(rev) FROM workload WHERE job = 'train'")
	r.book(job)
	if again := r.db.number("SELECT max(rev) FROM workload WHERE job = 'train'"); again != rev {
		t.Errorf("rows are of revision %d after the same job again, want %d", again, rev)
	}
	r.send("n1", 7, m+40, 1e9, zero)
	r.check("named again", "n1", named)

	// A run is of one account as a whole, whenever that changes.
	r.at = Day.Add(2 * time.Hour)
	exit := 3
	job.Account, job.Ended, job.Exit, job.Labels[slurm.LabelState] = "biology", Day.Add(41*time.Minute), &exit, "FAILED"
	r.book(job)
	ended := map[string]string{"/7": "train train ada biology 3 slurm.nodes=n[1-2] slurm.partition=main slurm.state=FAILED", "/7/batch": "train/batch train ada biology slurm.partition=main"}
	r.check("ended", "n1", ended)
	if got, want := r.sums(), map[string]string{"train biology": "6000000000", "job 7 ": "3000000000", "job 7 step batch ": "3000000000"}; !maps.Equal(got, want) {
		t.Errorf("by job %v, want %v", got, want)
	}
	fold(t, r.l, Day.Add(30*time.Hour))
	if got, want := r.sums()["train biology"], "6000000000"; got != want {
		t.Errorf("the job has %s when folded, want %s", got, want)
	}
	// Accounting has another exit code of the same end.
	accounted, signal := job, 9
	accounted.Exit = &signal
	r.book(accounted)
	r.check("accounting", "n1", ended)
	// An older answer, which another server writes late, does not undo it.
	running := job
	running.Account, running.Ended, running.Exit = "physics", zero, nil
	r.book(running)
	r.check("an older answer", "n1", ended)

	runs, err := r.l.Runs(t.Context(), query.RunQuery{Query: query.Query{From: Day, To: Day.Add(24 * time.Hour), Scope: query.Scope{All: true}, Where: map[query.Dimension][]string{query.ByJob: {"train"}}}})
	if err != nil || len(runs) != 2 {
		t.Fatalf("%d runs, %v; want one on each machine", len(runs), err)
	}
	for _, run := range runs {
		if run.State != query.Ended || *run.Exit != 3 || !run.Started.Equal(job.Started) || !run.Ended.Equal(job.Ended) {
			t.Errorf("run %+v", run)
		}
	}
	names, _, err := r.l.Placed(t.Context(), 0)
	if err != nil || len(names["n1"]) != 2 || len(names["n3"]) != 0 {
		t.Errorf("names for series %v, %v", names, err)
	}
	// A job without an end, and text that no database takes.
	lost := slurm.Job{ID: 8, Submitted: Day, Name: "x\x00\xff", User: "ada", Started: Day, Labels: map[string]string{"a\x00": "b\x00"}, Hosts: []string{"n1,n3", "a\x00"}}
	r.book(lost)
	live := func() []int64 {
		ids, err := r.l.LiveSlurm(t.Context(), "c")
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	if got, want := live(), []int64{8}; !slices.Equal(got, want) {
		t.Errorf("live jobs %v, want %v", got, want)
	}
	if err := Try(t, func() error { return r.l.SlurmGone(t.Context(), "c", []int64{8, 9}, Day.Add(time.Hour)) }); err != nil {
		t.Fatal(err)
	}
	if got := live(); len(got) > 0 {
		t.Errorf("live jobs %v, want none", got)
	}
	// Jobs that ended are dropped, but names stay.
	if err := Try(t, func() error { return r.l.Retain(t.Context(), Day.Add(400*24*time.Hour)) }); err != nil {
		t.Fatal(err)
	}
	if n := r.db.number("SELECT count(*) FROM slurm_job"); n != 0 {
		t.Errorf("%d jobs are kept, want none", n)
	}
	r.check("dropped", "n1", ended)
	testSlurmEnds(r)
	testSlurmStep(r)
}

// testSlurmStep: a step that is named before its job is named by what Slurm said in between.
func testSlurmStep(r *slurmRound) {
	r.Helper()
	const node = "n3"
	j := batch.Name{ID: workload.NewID(node, workload.SlurmJob, slurm.Key(10)), Kind: workload.SlurmJob, Key: slurm.Key(10), Name: "job 10"}
	step := batch.Name{Kind: workload.SlurmStep, Key: slurm.Key(10) + "/0", Name: "job 10 step 0", Parent: j.ID}
	step.ID = workload.NewID(node, workload.SlurmStep, step.Key)
	m := minuteOf(Day) + 5
	r.sendName(node, step, m, 1)
	r.book(slurm.Job{ID: 10, Submitted: Day, Name: "late", User: "ada", Account: "physics", Started: Day.Add(5 * time.Minute), Hosts: []string{node}})
	r.sendName(node, j, m, 1)
	got := r.names(node)
	if want := "late/0 late ada physics"; got["/10/0"] != want {
		r.Errorf("the step is %q, want %q", got["/10/0"], want)
	}
	if want := "late late ada physics <nil>"; got["/10"] != want {
		r.Errorf("the job is %q, want %q", got["/10"], want)
	}
}

// testSlurmEnds: a job ends when Slurm says so, whatever the agent of one of its machines saw end. If it is gone without an end,
// the agent knows.
func testSlurmEnds(r *slurmRound) {
	r.Helper()
	m, seen := minuteOf(Day), Day.Add(3*time.Minute)
	r.book(slurm.Job{ID: 9, Submitted: Day, Name: "gone", User: "ada", Started: Day, Hosts: []string{"n1"}})
	ended := func(when string, want int64) {
		r.Helper()
		if got := r.db.number("SELECT ended_ns FROM workload WHERE name = 'gone'"); got != want {
			r.Errorf("%s: the job ended at %d, want %d", when, got, want)
		}
	}
	r.send("n1", 9, m+2, 1e9, seen)
	ended("it lives", 0)
	if err := Try(r.T, func() error { return r.l.SlurmGone(r.Context(), "c", []int64{9}, Day.Add(time.Hour)) }); err != nil {
		r.Fatal(err)
	}
	r.send("n1", 9, m+4, 1e9, seen)
	ended("it is gone", seen.UnixNano())
}

// testSlurmRead: the time of the latest answer only grows.
func testSlurmRead(t *testing.T, dsn string) {
	l := Open(t, dsn)
	at, err := l.SlurmRead(t.Context(), "c")
	if err != nil || !at.IsZero() {
		t.Fatalf("%v, %v before the first", at, err)
	}
	for _, m := range []time.Duration{2, 1} {
		if err := Try(t, func() error { return l.SetSlurmRead(t.Context(), "c", Day.Add(m*time.Minute)) }); err != nil {
			t.Fatal(err)
		}
	}
	if at, err = l.SlurmRead(t.Context(), "c"); err != nil || !at.Equal(Day.Add(2*time.Minute)) {
		t.Errorf("%v, %v", at, err)
	}
}

// testSlurmAgain: a requeued job is one run; another job with its number is another one, which takes nothing of the first.
func testSlurmAgain(t *testing.T, dsn string) {
	r := newSlurmRound(t, dsn)
	m := minuteOf(Day)
	job := slurm.Job{ID: 5, Submitted: Day, Name: "first", User: "ada", Account: "physics", Started: Day, Hosts: []string{"n1"}}
	r.book(job)
	r.send("n1", 5, m+1, 1e9, Day.Add(2*time.Minute))
	job.Restarts = 1
	r.book(job)
	job.Submitted, job.Started = Day.Add(3*time.Minute), Day.Add(30*time.Minute)
	if reused := r.book(job); len(reused) > 0 {
		t.Errorf("requeued: numbers %v in use again", reused)
	}
	r.send("n1", 5, m+31, 1e9, Day.Add(32*time.Minute))
	exit := 0
	job.Ended, job.Exit = Day.Add(32*time.Minute), &exit
	r.book(job)
	first := map[string]string{"/5": "first first ada physics 0", "/5/batch": "first/batch first ada physics"}
	r.check("requeued", "n1", first)
	if n := r.db.number("SELECT started_ns FROM workload WHERE kind = 'slurm-job'"); n != Day.UnixNano() {
		t.Errorf("it started at %v, want the first start", time.Unix(0, n))
	}

	// A job that was requeued before it was seen ran before its start.
	r.send("n1", 6, m+1, 1e9, Day.Add(2*time.Minute))
	requeued := slurm.Job{ID: 6, Submitted: Day.Add(9 * time.Hour), Restarts: 1, Name: "requeued", User: "ada", Account: "physics", Started: Day.Add(10 * time.Hour), Hosts: []string{"n1"}}
	if reused := r.book(requeued); len(reused) > 0 {
		t.Errorf("requeued before it was seen: numbers %v in use again", reused)
	}
	first["/6"], first["/6/batch"] = "requeued requeued ada physics <nil>", "requeued/batch requeued ada physics"
	r.check("requeued before it was seen", "n1", first)

	// The controller lost its state. The agent is faster than the server's question for one job, and slower for the other.
	r.at = Day.Add(5 * time.Hour)
	other := slurm.Job{ID: 5, Submitted: Day.Add(5 * time.Hour), Name: "second", User: "eve", Account: "biology", Started: Day.Add(5 * time.Hour), Hosts: []string{"n1"}}
	r.send("n1", 5, m+300, 1e9, time.Time{})
	if reused := r.book(other); !slices.Equal(reused, []int64{5}) {
		t.Errorf("numbers %v in use again, want 5", reused)
	}
	second := maps.Clone(first)
	second["/5 later"], second["/5/batch later"] = "second second eve biology <nil>", "second/batch second eve biology"
	r.check("the number again", "n1", second)
	r.send("n1", 5, m+330, 1e9, time.Time{})
	other.Ended, other.Exit = Day.Add(331*time.Minute), &exit
	r.book(other)
	second["/5 later"] = "second second eve biology 0"
	r.check("the second ended", "n1", second)

	r.at = Day.Add(10 * time.Hour)
	r.book(slurm.Job{ID: 5, Submitted: Day.Add(10 * time.Hour), Name: "third", User: "ada", Account: "chemistry", Started: Day.Add(10 * time.Hour), Hosts: []string{"n1"}})
	r.check("a third without use", "n1", second)
	r.send("n1", 5, m+601, 1e9, time.Time{})
	r.send("n1", 5, m+630, 1e9, time.Time{})
	// Of the second and of the third job, the first minutes count for the previous job.
	want := map[string]string{"first physics": "6000000000", "requeued physics": "2000000000", "second biology": "4000000000", "third chemistry": "2000000000"}
	if got := r.sums(); !maps.Equal(got, want) {
		t.Errorf("by job %v, want %v", got, want)
	}
	for name, from := range map[string]time.Time{"all": Day, "the last": Day.Add(615 * time.Minute)} {
		runs, err := r.l.Runs(t.Context(), query.RunQuery{Query: query.Query{From: from, To: Day.Add(24 * time.Hour), Scope: query.Scope{All: true}}})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, run := range runs {
			got[run.Job+" "+run.Project] = run.Usage.Sum[usage.CPU].String()
		}
		wanted := maps.Clone(want)
		if name == "the last" {
			delete(wanted, "first physics")
			delete(wanted, "requeued physics")
			delete(wanted, "second biology")
		}
		if !maps.Equal(got, wanted) {
			t.Errorf("%s: runs %v, want %v", name, got, wanted)
		}
	}
}

// testSlurmQuota: a node that may have no more workloads today counts a job with the number of an earlier one as that.
func testSlurmQuota(t *testing.T, dsn string) {
	AfterMidnight()
	r := newSlurmRound(t, dsn)
	m := minuteOf(Day)
	r.book(slurm.Job{ID: 5, Submitted: Day, Name: "first", User: "ada", Account: "physics", Started: Day, Hosts: []string{"n1"}})
	r.send("n1", 5, m+1, 1e9, time.Time{})
	quota := func(change string) {
		t.Helper()
		if _, err := r.db.db.ExecContext(t.Context(), "UPDATE node_quota SET "+change); err != nil {
			t.Fatal(err)
		}
	}
	quota(fmt.Sprint("workloads = ", ledger.Default().Quota.Workloads))
	r.at = Day.Add(5 * time.Hour)
	r.book(slurm.Job{ID: 5, Submitted: r.at, Name: "second", User: "eve", Account: "biology", Started: r.at, Hosts: []string{"n1"}})
	r.send("n1", 5, m+301, 1e9, time.Time{})
	names := map[string]string{"/5": "first first ada physics <nil>", "/5/batch": "first/batch first ada physics"}
	r.check("over the quota", "n1", names)
	if n := r.db.number("SELECT count(*) FROM audit WHERE action = 'node.quota'"); n != 1 {
		t.Errorf("%d audit lines, want one", n)
	}
	quota("day = day - 1")
	r.send("n1", 5, m+330, 1e9, time.Time{})
	names["/5 later"], names["/5/batch later"] = "second second eve biology <nil>", "second/batch second eve biology"
	r.check("the next day", "n1", names)
}
