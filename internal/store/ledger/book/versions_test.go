package book

import (
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
)

// A step is a name that an agent sends at a minute.
type step struct {
	minute int64
	name   batch.Name
}

// Only a change of what is known makes a version, of workloads that can have several.
func TestNewVersions(t *testing.T) {
	container := func(change func(*batch.Name)) batch.Name {
		n := batch.Name{ID: workload.NewID("a", workload.Container, "k"), Kind: workload.Container, Key: "k", Job: "old", User: "ada"}
		change(&n)
		return n
	}
	first := step{1, container(func(*batch.Name) {})}
	job := func(job string) batch.Name { return container(func(n *batch.Name) { n.Job = job }) }
	user := func(user string) batch.Name { return container(func(n *batch.Name) { n.User = user }) }
	labels := func(text ...string) batch.Name {
		return container(func(n *batch.Name) {
			n.Labels = map[string]string{}
			for _, l := range text {
				k, v, _ := strings.Cut(l, "=")
				n.Labels[k] = v
			}
		})
	}
	of := func(kind workload.Kind, project string) batch.Name {
		return batch.Name{ID: workload.NewID("a", kind, "k"), Kind: kind, Key: "k", Project: project}
	}
	one := unlimited
	one.Workloads = 1
	for name, c := range map[string]struct {
		quota Quota
		steps []step
		want  []string // beginning, job, user, labels
	}{
		"a change":                   {unlimited, []step{first, {20, job("new")}}, []string{"0 old ada ", "30 new ada "}},
		"soon after first sight":     {unlimited, []step{first, {2, job("new")}}, []string{"0 new ada "}},
		"two within a quarter":       {unlimited, []step{first, {20, job("new")}, {25, job("newer")}}, []string{"0 old ada ", "30 newer ada "}},
		"at the beginning":           {unlimited, []step{first, {20, labels("a=1")}, {25, labels("a=2", "b=2")}, {30, labels("a=3")}}, []string{"0 old ada a=1", "30 old ada a=3"}},
		"the same name again":        {unlimited, []step{first, {20, job("old")}, {99, job("old")}}, []string{"0 old ada "}},
		"a user that is not known":   {unlimited, []step{{1, user("1000")}, {20, user("ada")}, {40, user("1000")}, {60, user("ada")}}, []string{"0 old ada "}},
		"another user":               {unlimited, []step{first, {20, user("ben")}}, []string{"0 old ada ", "30 old ben "}},
		"no label and then one":      {unlimited, []step{first, {20, labels("a=1")}}, []string{"0 old ada a=1"}},
		"another label":              {unlimited, []step{first, {20, labels("a=1")}, {40, labels("a=2")}}, []string{"0 old ada a=1", "45 old ada a=2"}},
		"labels of a new job":        {unlimited, []step{{1, labels("a=1")}, {20, job("new")}}, []string{"0 old ada a=1", "30 new ada a=1"}},
		"beyond the quota":           {one, []step{first, {20, job("new")}, {40, job("newer")}}, []string{"0 old ada "}},
		"a run":                      {unlimited, []step{{1, of(workload.SlurmJob, "p")}, {20, of(workload.SlurmJob, "q")}}, []string{"0   "}},
		"a run without its kind":     {unlimited, []step{{1, of(workload.SlurmJob, "p")}, {20, batch.Name{ID: workload.NewID("a", workload.SlurmJob, "k"), Project: "q"}}}, []string{"0   "}},
		"idle energy":                {unlimited, []step{{1, of(workload.Idle, "p")}, {20, of(workload.Idle, "q")}}, []string{"0   "}},
		"a project is filled in":     {unlimited, []step{first, {20, job("new")}, {40, container(func(n *batch.Name) { n.Job, n.Project = "new", "p" })}}, []string{"0 old ada ", "30 new ada "}},
		"another kind than at first": {unlimited, []step{first, {20, job("new")}, {50, container(func(n *batch.Name) { n.Job, n.Kind = "new", workload.Service })}}, []string{"0 old ada ", "30 new ada ", "60 new ada "}},
	} {
		d := openDB(t)
		write(t, d, func(x *db.Tx) error {
			b, n := newTestBooking(x, c.quota, 9)
			for _, s := range c.steps {
				if err := b.bookName(&s.name, n, s.minute*int64(time.Minute)); err != nil {
					return err
				}
			}
			return nil
		})
		got := rows(t, d, 4, `SELECT w.from_minute, w.job, w.username, coalesce((SELECT group_concat(l.key || '=' || l.value) FROM workload_label l WHERE l.workload = w.id), '') FROM workload w ORDER BY w.from_minute`)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		kinds := map[string][]string{"another kind than at first": {"container", "container", "service"}, "a project is filled in": {"p", "p"}}
		column := map[string]string{"another kind than at first": "kind", "a project is filled in": "project"}[name]
		if want := kinds[name]; want != nil {
			if got := rows(t, d, 1, "SELECT "+column+" FROM workload ORDER BY from_minute"); !slices.Equal(got, want) {
				t.Errorf("%s: %s %q, want %q", name, column, got, want)
			}
		}
	}
}

// A label that changes all the time makes a limited number of versions.
func TestManyVersions(t *testing.T) {
	d := openDB(t)
	write(t, d, func(x *db.Tx) error {
		b, n := newTestBooking(x, unlimited, 9)
		for i := range int64(200) {
			name := batch.Name{ID: workload.NewID("a", workload.Container, "k"), Kind: workload.Container, Key: "k", Job: strings.Repeat("j", int(i%7)+1)}
			if err := b.bookName(&name, n, (1440+15*i)*int64(time.Minute)); err != nil {
				return err
			}
		}
		return nil
	})
	for day, want := range map[string]string{"1": "24", "2": "24", "3": "8"} {
		if got := rows(t, d, 1, "SELECT count(*) FROM workload WHERE from_minute / 1440 = "+day); got[0] != want {
			t.Errorf("%s versions on day %s, want %s", got[0], day, want)
		}
	}
}
