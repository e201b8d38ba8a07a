package ledgertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// A volumeCase is a cluster with one node, "worker", and a volume of 10 bytes that was created at the start of Day.
type volumeCase struct {
	*reservedCase
	volume pod.Volume
}

// testVolumes: what volumes reserve, with a claim and without one.
func testVolumes(t *testing.T, dsn string) {
	cfg := ledger.Default()
	cfg.Minutes = 24 * time.Hour
	cfg.Quota.Workloads = 50
	l := OpenWith(t, dsn, cfg)
	for i, c := range []struct {
		name string
		run  func(*volumeCase)
	}{
		{"life", volumeLife}, {"unbound first", volumeUnbound}, {"away", volumeAway}, {"there before", volumeBefore}, {"clock behind", volumeBehind}, {"claim unknown", volumeClaimUnknown},
		{"same UID", volumeUID}, {"no machine", volumeNoMachine}, {"quota", volumeQuota}, {"huge", volumeHuge}, {"lease", volumeLease}, {"dropped", volumeDropped},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &volumeCase{reservedCase: &reservedCase{T: t, l: l, db: reader{t, DB(t, dsn)}, lease: pod.Lease{Cluster: fmt.Sprint("volumes-", i), Holder: "s"}}}
			r.enroll("worker", "worker")
			var err error
			if r.lease, err = l.LeasePods(t.Context(), r.lease, Day.Add(-time.Hour), Day); err != nil {
				t.Fatal(err)
			}
			r.volume = pod.Volume{UID: fmt.Sprintf("4f0e0d5a-2f2c-4b8e-9d0a-%012d", i), Name: "pv-1", Bytes: 10, Created: Day, Labels: map[string]string{pod.LabelType: "nfs"}}
			r.bind("data", "shop/persistentvolumeclaim/data")
			c.run(r)
			findings, err := l.Check(t.Context())
			if err != nil || len(findings) > 0 {
				t.Errorf("check: %v, %v", findings, err)
			}
		})
	}
}

// bind binds the volume to a claim of the namespace shop; "" releases it.
func (r *volumeCase) bind(claim, job string) {
	r.volume.Namespace, r.volume.Claim, r.volume.Job = "", claim, job
	r.volume.Labels = map[string]string{pod.LabelType: "nfs"}
	if claim != "" {
		r.volume.Namespace, r.volume.Labels[pod.LabelClaim] = "shop", claim
	}
}

// list lists the volumes of the cluster at a time of the day.
func (r *volumeCase) list(at time.Duration) (live []pod.Volume) {
	r.Helper()
	r.try(func() (err error) {
		live, err = r.l.ListVolumes(r.Context(), r.lease, Day.Add(at))
		return err
	})
	return live
}

// sees books the volume at a time of the day, and gone ends it; since is when the state of before was last confirmed.
func (r *volumeCase) sees(since, at time.Duration) {
	r.Helper()
	r.volume.Since = Day.Add(since)
	r.try(func() error { return r.l.BookVolumes(r.Context(), r.lease, []pod.Volume{r.volume}, Day.Add(at)) })
}

func (r *volumeCase) gone(since, at time.Duration) {
	r.Helper()
	r.volume.Since = Day.Add(since)
	r.try(func() error { return r.l.EndVolumes(r.Context(), r.lease, []pod.Volume{r.volume}, Day.Add(at)) })
}

// usage sums what the cluster uses in a part of the day.
func (r *volumeCase) usage(from, to time.Duration, by query.Dimension) []query.Group {
	r.Helper()
	a, err := r.l.Usage(r.Context(), query.Query{From: Day.Add(from), To: Day.Add(to), By: []query.Dimension{by},
		Where: map[query.Dimension][]string{query.ByCluster: {r.lease.Cluster}}, Scope: query.Scope{All: true}})
	if err != nil {
		r.Fatal(err)
	}
	return a.Groups
}

// wants checks how many byte-seconds groups reserve, as "KEY=SUM ...", with "~" after what is not known exactly.
func (r *volumeCase) wants(when string, from, to time.Duration, by query.Dimension, want string) {
	r.Helper()
	var got []string
	for _, g := range r.usage(from, to, by) {
		if u := &g.Usage; u.Present.Has(usage.StorageReserved) {
			rough := map[usage.Quality]string{usage.Apportioned: "~"}[u.Quality.Get(usage.StorageReserved)]
			got = append(got, fmt.Sprintf("%s=%s%s", g.Keys[0], u.Sum[usage.StorageReserved], rough))
		}
	}
	slices.Sort(got)
	if text := strings.Join(got, " "); text != want {
		r.Errorf("%s by %s: %s, want %s", when, by, text, want)
	}
}

// A volume is bound from its creation, resized, counted for another job, released, and deleted.
func volumeLife(r *volumeCase) {
	r.list(-time.Minute)
	r.volume.Created = Day.Add(7 * time.Second)
	r.sees(8*time.Second, 8*time.Second)
	r.put(time.Hour)
	r.volume.Bytes = 25
	r.sees(time.Hour+5*time.Second, time.Hour+5*time.Second)
	r.volume.Job = "shop/checkout"
	r.sees(70*time.Minute, 70*time.Minute) // from 01:15 on
	r.put(2 * time.Hour)
	r.bind("", "")
	r.sees(2*time.Hour+11*time.Minute, 2*time.Hour+11*time.Minute) // from 02:15 on
	r.put(3 * time.Hour)
	r.gone(3*time.Hour+20*time.Second, 3*time.Hour+20*time.Second)
	r.put(5 * time.Hour)
	// 10 bytes for 3598 s, and 25 for the rest.
	const claim, checkout, released = 10*3598 + 25*(15*60-5), 25 * 3600, 25 * (45*60 + 20)
	r.wants("its life", 0, 24*time.Hour, query.ByNode, fmt.Sprintf("%s volumes=%d", r.lease.Cluster, claim+checkout+released))
	r.wants("its life", 0, 24*time.Hour, query.ByWorkload, fmt.Sprintf("pv-1=%d", claim+checkout+released))
	r.wants("its life", 0, 24*time.Hour, query.ByKind, fmt.Sprintf("volume=%d", claim+checkout+released))
	r.wants("its life", 0, 24*time.Hour, query.ByNamespace, fmt.Sprintf("=%d shop=%d", released, claim+checkout))
	r.wants("its life", 0, 24*time.Hour, query.ByJob, fmt.Sprintf("pv-1=%d shop/checkout=%d shop/persistentvolumeclaim/data=%d", released, checkout, claim))
	r.wants("its life", 0, 24*time.Hour, query.ByLabel+pod.LabelClaim, fmt.Sprintf("=%d data=%d", released, claim+checkout))
	r.wants("its life", 0, 24*time.Hour, query.ByLabel+pod.LabelType, fmt.Sprintf("nfs=%d", claim+checkout+released))
	for _, g := range r.usage(0, 24*time.Hour, query.ByWorkload) {
		if g.Usage.Present != usage.SetOf(usage.StorageReserved) || g.Nodes != 0 {
			r.Errorf("it has %v, of %d nodes", g.Usage.Present, g.Nodes)
		}
	}
}

// A volume without a claim has no namespace, also after it is bound, and after it is bound to another one.
func volumeUnbound(r *volumeCase) {
	r.list(-time.Minute)
	r.bind("", "")
	r.sees(0, 0)
	r.put(time.Minute)
	r.put(time.Hour)
	r.bind("data", "shop/persistentvolumeclaim/data")
	r.sees(time.Hour, time.Hour)
	r.put(2 * time.Hour)
	r.bind("", "")
	r.sees(2*time.Hour, 2*time.Hour)
	r.bind("new", "shop/persistentvolumeclaim/new")
	r.sees(2*time.Hour, 2*time.Hour) // it amends the version that is to begin
	r.put(3 * time.Hour)
	r.wants("bound twice", 0, 24*time.Hour, query.ByNamespace, "=36000 shop=72000")
	r.wants("bound twice", 0, 24*time.Hour, query.ByJob, "pv-1=36000 shop/persistentvolumeclaim/data=36000 shop/persistentvolumeclaim/new=36000")
}

// While no server watches, a volume is resized, and another one is deleted: half of the time counts for each state.
func volumeAway(r *volumeCase) {
	r.list(-time.Minute)
	r.sees(0, 0)
	r.put(time.Hour)
	r.volume.Bytes = 30
	r.sees(time.Hour, 2*time.Hour)
	r.put(2 * time.Hour)
	r.wants("resized", 0, 24*time.Hour, query.ByNamespace, "shop=108000~") // 10 for 1.5 h, 30 for 0.5 h
	r.gone(2*time.Hour, 4*time.Hour)
	for range 2 {
		r.put(6 * time.Hour)
		r.wants("deleted", 0, 24*time.Hour, query.ByNamespace, "shop=216000~")
	}
	if n := r.db.number("SELECT count(*) FROM pod WHERE unsure <> 0 AND cluster = '" + r.lease.Cluster + "'"); n > 0 {
		r.Error("it waits for a node that saw its end")
	}
}

// Nothing that a volume reserved before the first list is known.
func volumeBefore(r *volumeCase) {
	r.list(time.Hour)
	r.list(2 * time.Hour)
	r.volume.Created = Day.Add(-1000 * time.Hour)
	r.sees(2*time.Hour, 2*time.Hour)
	r.put(3 * time.Hour)
	r.wants("listed an hour ago", -2000*time.Hour, 24*time.Hour, query.ByNamespace, "shop=72000")
}

// A server whose clock is behind sees a change of the claim before the end of the rows.
func volumeBehind(r *volumeCase) {
	r.list(-time.Minute)
	r.sees(0, 0)
	r.put(time.Minute)
	r.put(16 * time.Minute)
	r.bind("", "")
	r.sees(14*time.Minute, 14*time.Minute)
	r.put(time.Hour)
	r.wants("released", 0, 24*time.Hour, query.ByNamespace, "=18000 shop=18000")
}

// A claim that is not known, or was deleted a moment ago, leaves what is known of it.
func volumeClaimUnknown(r *volumeCase) {
	r.list(-time.Minute)
	r.volume.Job, r.volume.Labels["team"] = "shop/checkout", "blue"
	r.sees(0, 0)
	r.put(time.Hour)
	r.bind("data", "shop/persistentvolumeclaim/data")
	r.volume.ClaimUnknown = true
	r.sees(time.Hour, time.Hour)
	r.put(2 * time.Hour)
	r.wants("claim deleted", 0, 24*time.Hour, query.ByJob, "shop/checkout=72000")
	r.wants("claim deleted", 0, 24*time.Hour, query.ByLabel+"team", "blue=72000")
	r.bind("other", "shop/persistentvolumeclaim/other")
	r.sees(2*time.Hour, 2*time.Hour)
	r.put(3 * time.Hour)
	r.wants("another claim", 0, 24*time.Hour, query.ByJob, "shop/checkout=72000 shop/persistentvolumeclaim/other=36000")
	r.wants("another claim", 0, 24*time.Hour, query.ByLabel+"team", "=36000 blue=72000")
}

// A pod with the UID of a volume gets nothing of it, nor a volume with that of a pod, and none ends the other.
func volumeUID(r *volumeCase) {
	r.list(-time.Minute)
	r.sees(0, 0)
	r.pod = pod.Pod{UID: r.volume.UID, Namespace: "shop", Name: r.volume.Name, Job: "evil/job", Node: "worker", Scheduled: Day,
		Reserved: []pod.Reservation{{Container: "app", Levels: pod.Levels{CPU: 1000, Storage: 5}}}}
	r.book(time.Minute)
	r.end(2*time.Minute, 2*time.Minute)
	r.put(time.Hour)
	r.wants("a pod", 0, 24*time.Hour, query.ByJob, "shop/persistentvolumeclaim/data=36000")
	r.pod.UID = "5" + r.volume.UID[1:]
	r.book(time.Hour)
	own := r.volume
	r.volume.UID, r.volume.Job = r.pod.UID, "shop/other"
	r.sees(time.Hour, time.Hour)
	r.gone(time.Hour, time.Hour)
	r.volume = own
	r.put(2 * time.Hour)
	r.wants("a volume", 0, 24*time.Hour, query.ByJob, "evil/job=36000 shop/persistentvolumeclaim/data=72000") // the pod's since 00:00
	live, err := r.l.LivePods(r.Context(), r.lease.Cluster)
	if volumes := r.list(2 * time.Hour); err != nil || len(live) != 1 || live[0].UID != r.pod.UID || len(volumes) != 1 || volumes[0].UID != own.UID || volumes[0].Name != own.Name {
		r.Errorf("pods %+v, volumes %+v, %v", live, volumes, err)
	}
	for _, g := range r.usage(0, 24*time.Hour, query.ByCluster) {
		if g.Nodes != 1 {
			r.Errorf("a pod and a volume are on %d nodes", g.Nodes)
		}
	}
	// An agent says that it has the volume.
	n := batch.Name{ID: workload.NewID(r.id("worker"), workload.Volume, own.UID), Kind: workload.Volume, Key: own.UID, Name: "mine", Job: "evil/job"}
	short, _ := workload.ShortIDOf(n.ID)
	e := Entry(r.id("worker"), batch.Stream(fmt.Appendf(nil, "%-16s", r.id("worker"))[:16]), batch.Mark{Next: 1}, short, 0, minuteOf(Day.Add(10*time.Hour)))
	e.Names = []batch.Name{n}
	book(r.T, r.l, batch.Accepted, e)
	r.volume.Job = "shop/later"
	r.sees(3*time.Hour, 3*time.Hour)
	r.put(4 * time.Hour)
	r.wants("an agent", 2*time.Hour, 24*time.Hour, query.ByJob, "evil/job=36000 shop/later=36000 shop/persistentvolumeclaim/data=36000")
}

// The pseudo-node is in no list of machines, and has no whole and no gap; its workloads are in lists.
func volumeNoMachine(r *volumeCase) {
	r.list(-time.Minute)
	r.sees(0, 0)
	r.put(time.Hour)
	scope := query.Scope{Clusters: []string{r.lease.Cluster}}
	r.enroll("x Volumes", "x") // another machine id, for SQLite too
	nodes, err := r.l.Nodes(r.Context(), scope)
	if err != nil || len(nodes) != 2 || nodes[0].Name != "worker" || nodes[1].Name != "x" {
		r.Errorf("nodes %+v, %v", nodes, err)
	}
	up, err := r.l.Uptimes(r.Context(), Day, Day.Add(time.Hour), "", scope)
	if err != nil || slices.ContainsFunc(up, func(u query.Uptime) bool { return u.Name != "worker" }) {
		r.Errorf("uptime %+v, %v", up, err)
	}
	a, err := r.l.Usage(r.Context(), query.Query{From: Day, To: Day.Add(time.Hour), By: []query.Dimension{query.ByNode}, Scope: scope, Idle: "used", Unused: true})
	if err != nil || a.Gaps != 0 || a.AveragedOver != 0 || len(a.Groups) != 1 || a.Groups[0].Nodes != 0 || a.Groups[0].Usage.Unused != [len(query.Reservable)]query.Unused{} {
		r.Errorf("%+v, %v", a, err)
	}
	list, err := r.l.Workloads(r.Context(), query.Query{From: Day, To: Day.Add(24 * time.Hour), Scope: scope})
	if err != nil || len(list) != 1 || list[0].Name.Kind != workload.Volume || list[0].Name.Name != "pv-1" || list[0].Name.Key != r.volume.UID || list[0].Node != r.lease.Cluster+" volumes" {
		r.Errorf("workloads %+v, %v", list, err)
	}
}

// New volumes have a quota of their own, which those of pods do not use up.
func volumeQuota(r *volumeCase) {
	r.list(-time.Minute)
	var all []pod.Volume
	for i := range 60 {
		v := r.volume
		v.UID, v.Name = fmt.Sprintf("%s-%d", v.UID, i), fmt.Sprint("pv-", i)
		all = append(all, v)
	}
	r.try(func() error { return r.l.BookVolumes(r.Context(), r.lease, all, Day) })
	r.put(time.Minute)
	r.wants("over the quota", 0, 24*time.Hour, query.ByNamespace, "shop=30000") // 50 of 10 bytes for 60 s
	lines, err := r.l.Audits(r.Context(), registry.AuditQuery{Limit: 1000})
	said := slices.DeleteFunc(lines, func(a registry.Audit) bool { return !strings.Contains(a.Detail, "50 new volumes today") })
	if err != nil || len(said) != 1 {
		r.Errorf("the audit log says so %d times, %v", len(said), err)
	}
}

// A volume says that it has 8 EiB, or less than nothing.
func volumeHuge(r *volumeCase) {
	r.list(-time.Minute)
	r.volume.Bytes = 1<<63 - 1
	r.sees(0, 0)
	r.put(24 * time.Hour)
	if err := r.l.Fold(r.Context(), Day.Add(48*time.Hour)); err != nil {
		r.Fatal(err)
	}
	r.wants("huge", 0, 24*time.Hour, query.ByNamespace, fmt.Sprintf("shop=%d", int64(1<<46)*24*3600))
	r.volume.Bytes = -5
	r.sees(24*time.Hour, 24*time.Hour)
	r.put(25 * time.Hour)
	r.wants("less than nothing", 24*time.Hour, 25*time.Hour, query.ByNamespace, "shop=0")
}

// A server whose lease is not the latest one writes nothing.
func volumeLease(r *volumeCase) {
	r.list(-time.Minute)
	r.sees(0, 0)
	old := r.lease
	old.Number--
	volumes := []pod.Volume{r.volume}
	_, err := r.l.ListVolumes(r.Context(), old, Day)
	for _, err := range []error{err, r.l.BookVolumes(r.Context(), old, volumes, Day), r.l.EndVolumes(r.Context(), old, volumes, Day)} {
		if !errors.Is(err, fault.ErrConflict) {
			r.Errorf("an old lease: %v", err)
		}
	}
	r.put(time.Hour)
	r.wants("it lives", 0, 24*time.Hour, query.ByNamespace, "shop=36000")
}

// Rows that are folded, and then dropped, have the same sums; of a volume that ended long ago only these are left.
func volumeDropped(r *volumeCase) {
	r.list(-time.Minute)
	r.sees(0, 0)
	r.put(time.Minute)
	r.put(time.Hour)
	r.volume.Job = "shop/other"
	r.sees(time.Hour, time.Hour)
	r.put(2 * time.Hour)
	r.gone(2*time.Hour, 2*time.Hour)
	r.put(3 * time.Hour)
	r.drop(100 * time.Hour)
	r.wants("dropped", 0, 24*time.Hour, query.ByJob, "shop/other=36000 shop/persistentvolumeclaim/data=36000")
	for _, table := range []string{"pod WHERE uid = '" + r.volume.UID + "'", "reservation WHERE pod NOT IN (SELECT id FROM pod)"} {
		if n := r.db.number("SELECT count(*) FROM " + table); n > 0 {
			r.Errorf("%d rows in %s", n, table)
		}
	}
}
