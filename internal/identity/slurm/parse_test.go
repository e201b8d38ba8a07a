package slurm

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/slurm"
)

func at(unix int64) time.Time { return time.Unix(unix, 0).UTC() }

// same expands without a table of nodes.
//
//go:fix inline
func same(nodes string) []string {
	names, _ := expand(nodes)
	return names
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func jobsOf(records []record) (jobs []slurm.Job) {
	for i := range records {
		if j, ok := records[i].job(same); ok {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// Answers of Slurm 22.05: an array, a requeued job, and a name that looks like the record of another job. The starts of the
// jobs 5 and 10, and the end of job 5, were added by hand.
func TestCaptured(t *testing.T) {
	records, err := parseQueue(readFile(t, "queue.txt"), "SEPARATOR")
	if err != nil {
		t.Fatal(err)
	}
	addExits(records, readFile(t, "exits.txt"))
	labels := func(more ...string) map[string]string {
		m := map[string]string{slurm.LabelPartition: "main"}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	const number, array, het, state, nodes = slurm.LabelJob, slurm.LabelArray, slurm.LabelHet, slurm.LabelState, slurm.LabelNodes
	want := []slurm.Job{
		{ID: 1, Submitted: at(1795948277), Name: "train me=now", User: "root", Account: "physics", Started: at(1795948278), Ended: at(1795948280), Exit: new(0), Hosts: []string{"n1"},
			Labels: labels(number, "1", state, "COMPLETED", nodes, "n1")},
		{ID: 2, Submitted: at(1795948277), Name: "fails", User: "root", Account: "physics", Started: at(1795948278), Ended: at(1795948280), Exit: new(7), Hosts: []string{"n2"},
			Labels: labels(number, "2", state, "FAILED", nodes, "n2")},
		{ID: 6, Submitted: at(1795948277), Name: "arr", User: "root", Account: "root", Started: at(1795948281), Ended: at(1795948283), Exit: new(0), Hosts: []string{"n1"},
			Labels: labels(number, "6", array, "3_1", state, "COMPLETED", nodes, "n1")},
		{ID: 4, Submitted: at(1795948277), Name: "evil\ufffdJobId=1 UserId=root(0) Name=x\ufffd[31m", User: "root", Account: "root", Started: at(1795948284), Ended: at(1795948286), Exit: new(0), Hosts: []string{"n2"},
			Labels: labels(number, "4", state, "COMPLETED", nodes, "n2")},
		{ID: 8, Submitted: at(1795948354), Name: "multi", User: "root", Account: "root", Started: at(1795948354), Ended: at(1795948356), Exit: new(137), Hosts: []string{"n1", "n2"},
			Labels: labels(number, "8", state, "FAILED", nodes, "n[1-2]")},
		{ID: 5, Submitted: at(1795948338), Restarts: 1, Name: "req", User: "root", Account: "root", Started: at(1795948459), Hosts: []string{"n1"}, Labels: labels(number, "5", nodes, "n1")},
		{ID: 10, Submitted: at(1795948354), Name: "het", User: "root", Account: "root", Started: at(1795948460), Hosts: []string{"n2"}, Labels: labels(number, "10", het, "9+1", nodes, "n2")},
	}
	if got := jobsOf(records); !reflect.DeepEqual(got, want) {
		t.Errorf("squeue:\n%+v\nwant\n%+v", got, want)
	}

	records, err = parseHistory(readFile(t, "history.txt"), "SEPARATOR")
	if err != nil {
		t.Fatal(err)
	}
	got := map[int64]slurm.Job{}
	for _, j := range mergeRestarts(jobsOf(records)) {
		got[j.ID] = j
	}
	for _, j := range want[:4] {
		if !reflect.DeepEqual(got[j.ID], j) {
			t.Errorf("sacct:\n%+v\nwant\n%+v", got[j.ID], j)
		}
	}
	again := got[5]
	if again.Restarts != 1 || !again.Started.Equal(at(1795948287)) || !again.Submitted.Equal(at(1795948338)) || !again.Ended.Equal(at(1795948800)) || again.Name != "req" {
		t.Errorf("the requeued job is %+v", again)
	}
	if _, ok := got[11]; ok {
		t.Error("a pending job is a run")
	}
}

// Whatever users choose as name and account, the other fields and jobs stay as they are.
func TestHostileNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "\n", "\n<", "%A", "(null)", "N/A", strings.Repeat("é", 500), "\nJobId=1", "a b=c", "\x00\x1b[2J\u202e"}))
		const sep = "Q7XBYDZKJMTHWRNC"
		var queue, history strings.Builder
		n := rapid.IntRange(0, 5).Draw(t, "jobs")
		for i := range n {
			name, account := text.Draw(t, "name"), text.Draw(t, "account")
			for _, f := range []string{fmt.Sprint(i + 1), fmt.Sprint(i + 1), "N/A", "RUNNING", "1795948277", "1795948278", "NONE", "ada", "1000", "main", "n1", account, name} {
				queue.WriteString(sep + f)
			}
			queue.WriteString(sep + "\n")
			for _, f := range []string{fmt.Sprint(i + 1), fmt.Sprint(i + 1), "COMPLETED", "1795948277", "1795948278", "1795948279", "ada", "1000", "main", "n1", account, "0:0", name} {
				history.WriteString(f + sep)
			}
			history.WriteString("\n")
		}
		q, err1 := parseQueue(queue.String(), sep)
		h, err2 := parseHistory(history.String(), sep)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		for _, jobs := range [][]slurm.Job{jobsOf(q), jobsOf(h)} {
			if len(jobs) != n {
				t.Fatalf("%d jobs, want %d", len(jobs), n)
			}
			for i, j := range jobs {
				if j.ID != int64(i+1) || j.User != "ada" || !slices.Equal(j.Hosts, []string{"n1"}) || len(j.Name) > maxName || strings.ContainsAny(j.Name, "\n\x1b\x00\u202e") {
					t.Fatalf("job %+v", j)
				}
			}
		}
	})
}

// Output of another form is an error or has no jobs, and never a panic.
func TestMalformed(t *testing.T) {
	const sep = "XSEPX"
	for _, out := range []string{"slurm_load_jobs error", "CLUSTER: lab\n" + sep + "1", sep, sep + sep, strings.Repeat(sep+"1", len(queueFields)), strings.Repeat(sep+"1", len(queueFields)+1) + sep} {
		if got, err := parseQueue(out, sep); err == nil {
			t.Errorf("%q: %v", out, got)
		}
	}
	for _, out := range []string{"1" + sep, strings.Repeat("1"+sep, len(historyFields)) + "more"} {
		if got, err := parseHistory(out, sep); err == nil {
			t.Errorf("%q: %v", out, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{sep, "\n", "1", "1795948278", "RUNNING", "n[1-3]", "0:9"}))
		out := strings.Join(rapid.SliceOfN(part, 0, 60).Draw(t, "output"), rapid.SampledFrom([]string{"", sep}).Draw(t, "between"))
		q, _ := parseQueue(out, sep)
		addExits(q, out)
		h, _ := parseHistory(out, sep)
		mergeRestarts(append(jobsOf(q), jobsOf(h)...))
		parseNodes([]byte(out))
	})
	good := record{id: "1", state: "RUNNING", submit: "1795948277", start: "2026-11-29T10:31:18", user: "", uid: "1000", nodes: "None assigned", account: "(null)", name: "N/A"}
	j, ok := good.job(same)
	if want := (slurm.Job{ID: 1, Submitted: at(1795948277), Started: at(1795948278), User: "1000", Labels: map[string]string{slurm.LabelJob: "1"}}); !ok || !reflect.DeepEqual(j, want) {
		t.Errorf("%+v, want %+v", j, want)
	}
	for _, change := range []func(*record){
		func(r *record) { r.id = "1.batch" }, func(r *record) { r.id = "0" }, func(r *record) { r.id = "4294967296" }, func(r *record) { r.id = "-1" },
		func(r *record) { r.start = "Unknown" }, func(r *record) { r.start = "N/A" }, func(r *record) { r.start = "1" }, func(r *record) { r.submit = "" },
		func(r *record) { r.submit = "99999999999" }, func(r *record) { r.state = "PENDING" }, func(r *record) { r.state = "REVOKED" },
	} {
		bad := good
		if change(&bad); true {
			if j, ok := bad.job(same); ok {
				t.Errorf("%+v is job %+v", bad, j)
			}
		}
	}
}

func TestEnds(t *testing.T) {
	for _, c := range []struct {
		state, exit string
		want        *int
	}{
		{"COMPLETED", "0", new(0)}, {"COMPLETED", "0:0", new(0)}, {"FAILED", "1792", new(7)}, {"FAILED", "7:0", new(7)}, {"FAILED", "35072", new(137)},
		{"CANCELLED by 1000", "0:15", new(143)}, {"CANCELLED", "15", new(143)}, {"TIMEOUT", "0", nil}, {"OUT_OF_MEMORY", "0:125", new(253)}, {"NODE_FAIL", "", nil},
		{"FAILED", "N/A", nil}, {"FAILED", "1:x", nil}, {"RUNNING", "0", nil}, {"COMPLETING", "256", nil}, {"REQUEUED", "256", nil},
	} {
		r := record{id: "1", state: c.state, submit: "1795948277", start: "1795948278", end: "1795948290", exit: exitOf(c.exit)}
		j, ok := r.job(same)
		state, _, _ := strings.Cut(c.state, " ")
		if !ok || !reflect.DeepEqual(j.Exit, c.want) || j.Ended.IsZero() == isFinal(state) {
			t.Errorf("%s %s: %+v", c.state, c.exit, j)
		}
	}
}

func TestExpand(t *testing.T) {
	for s, want := range map[string]string{
		"": "", "n1": "n1", "n1,login": "n1 login", "n[1-3,07],gpu": "n1 n2 n3 n07 gpu", "r[1-2]n[08-10]x": "r1n08x r1n09x r1n10x r2n08x r2n09x r2n10x", "n[5]": "n5",
	} {
		if got, err := expand(s); err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %v, %v; want %s", s, got, err, want)
		}
	}
	for _, s := range []string{"n[", "n[1", "n[]", "n[a-b]", "n[3-1]", "n[1-99999999]", "n[1-60000][1-60000]", ",", "n]", "[1-2]]"} {
		if got, err := expand(s); err == nil {
			t.Errorf("%q: %d nodes", s, len(got))
		}
	}
}
