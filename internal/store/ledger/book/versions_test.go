package book

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
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

// A container whose pod becomes known long after it is counted under what that says first. A change soon after is one of the
// same version, and a later one makes another.
func TestPlacedVersions(t *testing.T) {
	d := openDB(t)
	write(t, d, func(x *db.Tx) error {
		b, n := newTestBooking(x, unlimited, 9)
		return b.bookName(&batch.Name{ID: workload.NewID("a", workload.Container, "k"), Kind: workload.Container, Key: "k"}, n, int64(time.Minute))
	})
	k := New(d, time.Hour, unlimited, 1)
	for _, c := range []struct {
		at   time.Duration
		job  string
		want []string
	}{
		{20 * time.Minute, "first", []string{"0 first"}},
		{20*time.Minute + 30*time.Second, "soon", []string{"0 soon"}},
		{22 * time.Minute, "later", []string{"0 soon", "30 later"}},
	} {
		p := pod.Pod{UID: "u", Namespace: "shop", Name: "web", Job: c.job, Containers: map[string]string{"k": "app"}}
		if err := k.BookPods(t.Context(), pod.Lease{Cluster: "c"}, []pod.Pod{p}, time.Unix(0, 0).Add(c.at)); err != nil {
			t.Fatal(err)
		}
		if got := rows(t, d, 2, "SELECT from_minute, job FROM workload ORDER BY from_minute"); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.job, got, c.want)
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

// A version takes over the rows of its time from the version before it, also those within hosts, in all tables. A row of an
// hour or a day that begins before the version does stays where it is. Rows of a version that is removed return to the previous one.
func TestSetVersion(t *testing.T) {
	const day = testDay
	d := openDB(t)
	put := func(v replica.Resolution, minute, cpu, host int64) {
		t.Helper()
		write(t, d, func(x *db.Tx) error {
			setMarks(x)
			w, err := x.Workload(1, 5)
			if err != nil {
				return err
			}
			if host != 0 {
				if err := NoteWithin(x, 1, minute-minute%day, host, 0, false); err != nil {
					return err
				}
			}
			c := NewChange(schema.UsageLayout)
			c.Set(v, schema.RowKey{Minute: minute, ID: schema.Key(w.At(minute), host)}, cpuRow(schema.UsageLayout, cpu))
			_, err = c.Apply(x, 0)
			return err
		})
	}
	for _, r := range []struct {
		v                 replica.Resolution
		minute, cpu, host int64
	}{
		{replica.Day, day, 1, 0}, {replica.Hour, 2*day + 60, 2, 0}, {replica.Hour, 2*day + 120, 4, 0}, {replica.Minute, 3*day + 14, 8, 0}, {replica.Minute, 3*day + 15, 16, 0},
		{replica.Minute, 3*day + 15, 32, 2}, {replica.Minute, 3*day + 45, 64, 0}, {replica.Hour, 3*day + 120, 128, 0}, {replica.Minute, 5 * day, 256, 0},
	} {
		put(r.v, r.minute, r.cpu, r.host)
	}
	// Connections of hours, whose bytes say which they are.
	write(t, d, func(x *db.Tx) error {
		setMarks(x)
		w, err := x.Workload(1, 5)
		if err != nil {
			return err
		}
		s := Sketches{}
		for bytes, minute := range map[int64]int64{1: 2*day + 60, 2: 3 * day, 4: 3*day + 120, 8: 5 * day} {
			s[schema.RowKey{Minute: minute, ID: w.ID}] = talk(bytes)
		}
		return PutConnections(x, s)
	})
	for _, c := range []struct {
		from, next int64   // as given
		begins     []int64 // of all versions
		want       []string
		talks      []string
	}{
		{3*day + 15, 0, []int64{0, 3*day + 15}, []string{"0: minute 4334=8", "4335: minute 4335=16", "4335: minute 4335=32 in 2", "4335: minute 4365=64", "4335: minute 4440=128", "4335: minute 7200=256",
			"0: hour 2940=2", "0: hour 3000=4", "0: hour 4320=8", "4335: hour 4320=80", "4335: hour 4320=32 in 2", "4335: hour 4440=128",
			"0: day 1440=1", "0: day 2880=6", "0: day 4320=8", "4335: day 4320=208", "4335: day 4320=32 in 2"},
			[]string{"0: 2940=1", "0: 4320=2", "4335: 4440=4", "4335: 7200=8"}},
		// It began later.
		{0, 3*day + 45, []int64{0, 3*day + 45}, []string{"0: minute 4334=8", "0: minute 4335=16", "0: minute 4335=32 in 2", "4365: minute 4365=64", "4365: minute 4440=128", "4365: minute 7200=256",
			"0: hour 2940=2", "0: hour 3000=4", "0: hour 4320=24", "0: hour 4320=32 in 2", "4365: hour 4320=64", "4365: hour 4440=128",
			"0: day 1440=1", "0: day 2880=6", "0: day 4320=24", "0: day 4320=32 in 2", "4365: day 4320=192"},
			[]string{"0: 2940=1", "0: 4320=2", "4365: 4440=4", "4365: 7200=8"}},
		// It is followed by one within a span of an hour.
		{3*day + 45, 3*day + 135, []int64{0, 3*day + 45, 3*day + 135}, []string{"0: minute 4334=8", "0: minute 4335=16", "0: minute 4335=32 in 2", "4365: minute 4365=64", "4365: minute 4440=128", "4455: minute 7200=256",
			"0: hour 2940=2", "0: hour 3000=4", "0: hour 4320=24", "0: hour 4320=32 in 2", "4365: hour 4320=64", "4365: hour 4440=128",
			"0: day 1440=1", "0: day 2880=6", "0: day 4320=24", "0: day 4320=32 in 2", "4365: day 4320=192"},
			[]string{"0: 2940=1", "0: 4320=2", "4365: 4440=4", "4455: 7200=8"}},
		// Where hours or days are left, it has those that begin with it or later.
		{2*day + 75, 5 * day, []int64{0, 2*day + 75, 5 * day}, []string{"2955: minute 4334=8", "2955: minute 4335=16", "2955: minute 4335=32 in 2", "2955: minute 4365=64", "2955: minute 4440=128", "7200: minute 7200=256",
			"0: hour 2940=2", "2955: hour 3000=4", "2955: hour 4320=88", "2955: hour 4320=32 in 2", "2955: hour 4440=128",
			"0: day 1440=1", "0: day 2880=2", "2955: day 2880=4", "2955: day 4320=216", "2955: day 4320=32 in 2"},
			[]string{"0: 2940=1", "2955: 4320=2", "2955: 4440=4", "7200: 7200=8"}},
		{0, 0, []int64{0}, []string{"0: minute 4334=8", "0: minute 4335=16", "0: minute 4335=32 in 2", "0: minute 4365=64", "0: minute 4440=128", "0: minute 7200=256",
			"0: hour 2940=2", "0: hour 3000=4", "0: hour 4320=88", "0: hour 4320=32 in 2", "0: hour 4440=128",
			"0: day 1440=1", "0: day 2880=6", "0: day 4320=216", "0: day 4320=32 in 2"},
			[]string{"0: 2940=1", "0: 4320=2", "0: 4440=4", "0: 7200=8"}},
	} {
		for again := range 2 {
			var id int64
			write(t, d, func(x *db.Tx) (err error) {
				setMarks(x)
				id, err = SetVersion(x, 1, 5, c.from, c.next)
				return err
			})
			begins := map[int64]int64{}
			var got []int64
			for _, line := range rows(t, d, 2, "SELECT id, from_minute FROM workload WHERE node = 1 AND short = 5 ORDER BY from_minute") {
				var id, from int64
				if _, err := fmt.Sscan(line, &id, &from); err != nil {
					t.Fatal(err)
				}
				begins[id] = from
				got = append(got, from)
			}
			if !slices.Equal(got, c.begins) || begins[id] != c.from {
				t.Errorf("from %d to %d: versions begin at %v, and it at %d; want %v", c.from, c.next, got, begins[id], c.begins)
			}
			var lines []string
			for _, line := range tables(t, d, schema.UsageLayout) {
				var table string
				var minute, key, cpu int64
				if _, err := fmt.Sscan(line, &table, &minute, &key, &cpu); err != nil {
					t.Fatal(err)
				}
				id, host := schema.SplitKey(key)
				line = fmt.Sprintf("%d: %s %d=%d", begins[id], table, minute, cpu)
				if host != 0 {
					line += fmt.Sprint(" in ", host)
				}
				lines = append(lines, line)
			}
			for _, table := range []string{schema.UsageLayout.HourTable(), schema.UsageLayout.DayTable(), schema.UsageMinuteTable(3 * day), schema.UsageMinuteTable(5 * day)} {
				if n := rows(t, d, 1, "SELECT count(*) FROM "+table+" WHERE "+schema.IDOf("workload")+" NOT IN (SELECT id FROM workload)"); n[0] != "0" {
					t.Errorf("from %d to %d: %s rows of %s are of no version", c.from, c.next, n[0], table)
				}
			}
			if talks := talksOf(t, d); !slices.Equal(talks, c.talks) {
				t.Errorf("from %d to %d, time %d: connections %q, want %q", c.from, c.next, again, talks, c.talks)
			}
			slices.Sort(lines)
			if want := slices.Sorted(slices.Values(c.want)); !slices.Equal(lines, want) {
				t.Errorf("from %d to %d, time %d: %q, want %q", c.from, c.next, again, lines, want)
			}
		}
	}
}

// talk returns connections with a number of bytes received.
func talk(bytes int64) *connection.Sketch {
	s := &connection.Sketch{}
	s.Add(connection.Edge{Peer: netip.AddrFrom4([4]byte{10, 0, 0, 1}), Port: 443, Protocol: 6}, connection.Traffic{RxBytes: bytes})
	return s
}

// talksOf returns the connections that are stored: the minute with which the version begins, the hour, and the bytes.
func talksOf(t *testing.T, d *db.DB) (list []string) {
	t.Helper()
	view := func(v *db.View) error {
		return db.Each(v.Ctx, v.SQL, func(scan func(...any) error) error {
			var from, minute int64
			var stored []byte
			if err := scan(&from, &minute, &stored); err != nil {
				return err
			}
			s, err := connection.Decode(stored)
			if err != nil {
				return err
			}
			list = append(list, fmt.Sprintf("%d: %d=%d", from, minute, s.Sum().RxBytes))
			return nil
		}, "SELECT w.from_minute, c.minute, c.sketch FROM connections c JOIN workload w ON w.id = c.workload ORDER BY c.minute, w.from_minute")
	}
	if err := d.View(t.Context(), view); err != nil {
		t.Fatal(err)
	}
	return list
}

// TestMergedVersions checks that the connections of a version that is removed are merged into those of the version of their time.
func TestMergedVersions(t *testing.T) {
	const day = testDay
	d := openDB(t)
	write(t, d, func(x *db.Tx) error {
		setMarks(x)
		w, err := x.Workload(1, 5)
		if err != nil {
			return err
		}
		later, err := x.Version(1, 5, 3*day+15)
		if err != nil {
			return err
		}
		return PutConnections(x, Sketches{{Minute: 3 * day, ID: w.ID}: talk(1), {Minute: 3 * day, ID: later}: talk(2), {Minute: 3*day + 60, ID: later}: talk(4)})
	})
	write(t, d, func(x *db.Tx) error {
		setMarks(x)
		_, err := SetVersion(x, 1, 5, 0, 0)
		return err
	})
	if got, want := talksOf(t, d), []string{"0: 4320=3", "0: 4380=4"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
