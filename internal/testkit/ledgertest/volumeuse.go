package ledgertest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger"
)

// A usedCase is a volumeCase with a second node, "other". The pod of the namespace shop on "worker" mounts the claim "data", to which
// the volume pv-1 is bound from the start of Day on.
type usedCase struct {
	*volumeCase
	marks map[string]*batch.Mark // by node
}

// testVolumeUse: how much of volumes is used, as agents measure it.
func testVolumeUse(t *testing.T, dsn string) {
	cfg := ledger.Default()
	cfg.Minutes, cfg.Quota.Bytes = 24*time.Hour, 1 // levels have no quota
	l := OpenWith(t, dsn, cfg)
	for i, c := range []struct {
		name string
		run  func(*usedCase)
	}{
		{"life", usedLife}, {"two nodes", usedTwoNodes}, {"strangers", usedStrangers}, {"node by its pods", usedNodeByPods}, {"name again", usedNameAgain}, {"late", usedLate}, {"in any order", usedOrder},
		{"huge", usedHuge}, {"flood", usedFlood}, {"pod gone", usedPodGone}, {"enrolled again", usedEnrolledAgain}, {"size", usedSize},
		{"released", usedReleased}, {"many claims", usedManyClaims}, {"cost", usedCost}, {"claim unknown", usedClaimUnknown},
		{"rows", usedRows}, {"clock ahead", usedClockAhead}, {"long ago", usedLongAgo}, {"dropped", usedDropped}, {"not put", usedNotPut}, // the last ones drop minutes
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &usedCase{marks: map[string]*batch.Mark{}, volumeCase: &volumeCase{reservedCase: &reservedCase{T: t, l: l, db: reader{t, DB(t, dsn)}, lease: pod.Lease{Cluster: fmt.Sprint("used-", i), Holder: "s"}}}}
			r.enroll("worker", "worker")
			r.enroll("other", "other")
			var err error
			if r.lease, err = l.LeasePods(t.Context(), r.lease, Day.Add(-time.Hour), Day); err != nil {
				t.Fatal(err)
			}
			r.volume = pod.Volume{UID: fmt.Sprintf("4f0e0d5a-2f2c-4b8e-9d0b-%012d", i), Name: "pv-1", Bytes: 1000, Created: Day}
			r.bind("data", "shop/persistentvolumeclaim/data")
			r.list(-time.Minute)
			r.sees(0, 0)
			r.runs("web-0", "worker", "shop", "cache", "data")
			c.run(r)
			findings, err := l.Check(t.Context())
			if err != nil || len(findings) > 0 {
				t.Errorf("check: %v, %v", findings, err)
			}
		})
	}
}

// uidOf is the UID of a pod of the case.
func (r *usedCase) uidOf(name string) string { return r.lease.Cluster + "-" + name }

// runs books a pod that mounts claims.
func (r *usedCase) runs(name, node, namespace string, claims ...string) {
	r.Helper()
	p := pod.Pod{UID: r.uidOf(name), Namespace: namespace, Name: name, Job: namespace + "/pod/" + name, Node: node, Created: Day, Claims: claims}
	r.try(func() error { return r.l.BookPods(r.Context(), r.lease, []pod.Pod{p}, Day) })
}

// figure is what an agent measured at a time of the day.
func (r *usedCase) figure(at time.Duration, name, volume string, bytes int64) batch.TimedVolume {
	return batch.TimedVolume{At: Day.Add(at), VolumeUse: usage.VolumeUse{Pod: r.uidOf(name), Volume: volume, Used: bytes}}
}

// sends books a batch of a node with figures.
func (r *usedCase) sends(node string, figures ...batch.TimedVolume) {
	r.Helper()
	mark := r.marks[node]
	if mark == nil {
		mark = &batch.Mark{Next: 1}
		r.marks[node] = mark
	}
	e := Entry(r.id(node), batch.Stream(fmt.Appendf(nil, "%-16s", r.id(node))[:16]), *mark, 0, 0)
	e.Volumes = figures
	for _, v := range figures {
		if v.At.After(e.Through) {
			e.Through = v.At
		}
	}
	book(r.T, r.l, batch.Accepted, e)
	mark.Next, mark.Last = mark.Next+1, e.Hash
}

// uses checks how many byte-seconds of volumes groups use in a part of the day, as "KEY=SUM ...", with "m" after what is modelled.
func (r *usedCase) uses(when string, from, to time.Duration, by query.Dimension, want string) {
	r.Helper()
	var got []string
	for _, g := range r.usage(from, to, by) {
		if u := &g.Usage; u.Present.Has(usage.Storage) {
			quality := map[usage.Quality]string{usage.Measured: "", usage.Modelled: "m", usage.Apportioned: "~"}[u.Quality.Get(usage.Storage)]
			got = append(got, fmt.Sprintf("%s=%s%s", g.Keys[0], u.Sum[usage.Storage], quality))
		}
	}
	slices.Sort(got)
	if text := strings.Join(got, " "); text != want {
		r.Errorf("%s by %s: %s, want %s", when, by, text, want)
	}
}

// A volume is measured, holds its figure for a while as measured and then as modelled, and ends. Its capacity counts as before.
func usedLife(r *usedCase) {
	r.put(time.Hour)
	r.uses("not measured", 0, time.Hour, query.ByNode, "")
	r.sends("worker", r.figure(time.Hour+30*time.Second, "web-0", "pv-1", 100))
	r.sends("worker", r.figure(time.Hour+5*time.Minute, "web-0", "pv-1", 300))
	r.put(2 * time.Hour)
	node := r.lease.Cluster + " volumes"
	r.uses("before", 0, time.Hour, query.ByNode, "")
	r.uses("measured", time.Hour, time.Hour+20*time.Minute, query.ByNode, fmt.Sprintf("%s=%d", node, 5*60*100+15*60*300))
	r.uses("held for a minute", time.Hour+20*time.Minute, time.Hour+21*time.Minute, query.ByNamespace, fmt.Sprintf("shop=%dm", 60*300))
	r.uses("held", time.Hour+20*time.Minute, 2*time.Hour, query.ByNamespace, fmt.Sprintf("shop=%dm", 40*60*300))
	r.volume.Bytes = 5000
	r.sees(2*time.Hour, 2*time.Hour)
	r.put(3 * time.Hour)
	r.bind("", "")
	r.sees(3*time.Hour+11*time.Minute, 3*time.Hour+11*time.Minute) // it counts for no namespace from 03:15 on
	r.put(4 * time.Hour)
	r.gone(4*time.Hour+30*time.Second, 4*time.Hour+30*time.Second)
	r.put(5 * time.Hour)
	r.uses("resized", 2*time.Hour, 3*time.Hour, query.ByNamespace, fmt.Sprintf("shop=%dm", 3600*300))
	r.uses("released", 3*time.Hour, 5*time.Hour, query.ByNamespace, fmt.Sprintf("=%dm shop=%dm", (45*60+30)*300, 15*60*300))
	r.wants("its capacity", 0, 24*time.Hour, query.ByNode, fmt.Sprintf("%s=%d", node, 2*3600*1000+(2*3600+30)*5000))
}

// Two nodes mount a volume: their figures are not added, and the larger one of a minute counts, whichever comes first.
func usedTwoNodes(r *usedCase) {
	r.runs("web-1", "other", "shop", "data")
	a, b := r.figure(time.Minute, "web-0", "pv-1", 100), r.figure(time.Minute+40*time.Second, "web-1", "pv-1", 200)
	r.sends("worker", a)
	r.put(10 * time.Minute)
	r.sends("other", b, r.figure(time.Minute+50*time.Second, "web-1", "pv-1", 20))
	r.sends("worker", a, a)
	r.put(16 * time.Minute)
	r.uses("two nodes", 0, 16*time.Minute, query.ByWorkload, fmt.Sprintf("pv-1=%d", 15*60*200))
	r.sends("other", r.figure(16*time.Minute, "web-1", "pv-1", 50))
	r.put(17 * time.Minute)
	r.uses("later", 16*time.Minute, 17*time.Minute, query.ByWorkload, fmt.Sprintf("pv-1=%d", 60*50))
}

// Figures of volumes that no pod of the node mounts are left out.
func usedStrangers(r *usedCase) {
	r.runs("web-1", "other", "shop", "other-data")
	r.runs("thief", "other", "evil", "data")
	jobs := registry.Node{ID: r.id("jobs"), Name: "worker", Cluster: r.lease.Cluster, MachineID: registry.JobsMachineID("worker"), At: Day}
	if err := r.l.PutNode(r.Context(), jobs); err != nil {
		r.Fatal(err)
	}
	at := 5 * time.Minute
	r.sends("other", r.figure(at, "web-0", "pv-1", 1), // of a pod of another node
		r.figure(at, "web-1", "pv-1", 2), // of a pod without the claim
		r.figure(at, "thief", "pv-1", 3), // of a claim of another namespace
		r.figure(at, "gone", "pv-1", 4),  // of a pod that does not exist
		r.figure(at, "web-1", "pv-2", 5)) // of a volume that does not exist
	r.sends("jobs", r.figure(at, "web-0", "pv-1", 6))
	r.sends("worker", r.figure(at, "web-0", "pv-2", 7), r.figure(-time.Hour, "web-0", "pv-1", 8)) // before there was one
	r.put(time.Hour)
	r.uses("strangers", -24*time.Hour, 24*time.Hour, query.ByWorkload, "")
	r.levels("strangers", 0)
	r.sends("worker", r.figure(at, "web-0", "pv-1", 9))
	r.put(time.Hour)
	r.uses("its own", 0, at+15*time.Minute, query.ByWorkload, fmt.Sprintf("pv-1=%d", 9*15*60))
}

// A node whose agent has another name than in Kubernetes is known by where the ledger has what its pods reserve.
func usedNodeByPods(r *usedCase) {
	p := pod.Pod{UID: r.uidOf("web-0"), Namespace: "shop", Name: "web-0", Node: "other", Created: Day, Scheduled: Day,
		Reserved: []pod.Reservation{{Container: "app", Levels: pod.Levels{CPU: 1, CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}}}}
	r.try(func() error { return r.l.BookPods(r.Context(), r.lease, []pod.Pod{p}, Day) })
	r.put(time.Minute)                                          // it has a carrier on the node "other"
	r.sends("other", r.figure(time.Minute, "web-0", "pv-1", 3)) // as of an earlier version of the server, the pod has no claims
	p.Node, p.Claims = "worker", []string{"data"}
	r.try(func() error { return r.l.BookPods(r.Context(), r.lease, []pod.Pod{p}, Day) })
	r.sends("worker", r.figure(time.Minute, "web-0", "pv-1", 1))
	r.sends("other", r.figure(2*time.Minute, "web-0", "pv-1", 7))
	r.put(3 * time.Minute)
	r.uses("by its pods", 0, time.Hour, query.ByWorkload, "pv-1=420")
}

// A volume is deleted, and another one with its name made: each has the figures of its time.
func usedNameAgain(r *usedCase) {
	r.gone(time.Hour, time.Hour)
	first := r.volume.UID
	r.volume.UID, r.volume.Created = "5"+first[1:], Day.Add(2*time.Hour)
	r.sees(2*time.Hour, 2*time.Hour)
	r.sends("worker", r.figure(10*time.Minute, "web-0", "pv-1", 10), r.figure(90*time.Minute, "web-0", "pv-1", 20), r.figure(119*time.Minute, "web-0", "pv-1", 25), r.figure(130*time.Minute, "web-0", "pv-1", 30))
	r.put(3 * time.Hour)
	r.uses("the first", 0, time.Hour, query.ByWorkload, fmt.Sprintf("pv-1=%dm", 10*50*60))
	r.uses("between", time.Hour, 2*time.Hour, query.ByWorkload, "")
	r.uses("the second", 2*time.Hour, 3*time.Hour, query.ByWorkload, fmt.Sprintf("pv-1=%dm", 25*10*60+30*50*60)) // by the node's clock, it was there a minute before
	r.gone(4*time.Hour, 4*time.Hour)
	r.volume.UID, r.volume.Created = "6"+first[1:], Day.Add(4*time.Hour+30*time.Second)
	r.sees(4*time.Hour+30*time.Second, 4*time.Hour+30*time.Second)
	r.sends("worker", r.figure(239*time.Minute, "web-0", "pv-1", 777), r.figure(241*time.Minute, "web-0", "pv-1", 33))
	r.put(5 * time.Hour)
	r.uses("the second, a moment before the third", 239*time.Minute, 4*time.Hour, query.ByWorkload, fmt.Sprintf("pv-1=%d", 777*60))
	r.uses("the third", 4*time.Hour, 5*time.Hour, query.ByWorkload, fmt.Sprintf("pv-1=%dm", 33*59*60))
}

// Figures of the past change the rows that were put, of minutes and hours, until the next figure.
func usedLate(r *usedCase) {
	r.sends("worker", r.figure(0, "web-0", "pv-1", 100), r.figure(10*time.Hour, "web-0", "pv-1", 200))
	r.put(12 * time.Hour)
	if err := r.l.Fold(r.Context(), Day.Add(12*time.Hour)); err != nil {
		r.Fatal(err)
	}
	r.sends("worker", r.figure(5*time.Hour+30*time.Minute, "web-0", "pv-1", 50))
	r.put(12 * time.Hour)
	r.uses("late", 0, 12*time.Hour, query.ByWorkload, fmt.Sprintf("pv-1=%dm", 100*(5*3600+1800)+50*(4*3600+1800)+200*2*3600))
	// A server that restarts has the same levels.
	r.sees(0, 12*time.Hour)
	r.runs("web-0", "worker", "shop", "cache", "data")
	r.put(13 * time.Hour)
	r.uses("restarted", 12*time.Hour, 13*time.Hour, query.ByWorkload, fmt.Sprintf("pv-1=%dm", 200*3600))
}

// Figures in any order, in batches of two nodes, with rows put between, have the sums of levels by minute.
func usedOrder(r *usedCase) {
	const minutes = 40
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	r.runs("web-1", "other", "shop", "data")
	var levels [minutes]int64
	for range 25 {
		name, node := "web-0", "worker"
		if random.IntN(2) == 0 {
			name, node = "web-1", "other"
		}
		var figures []batch.TimedVolume
		for range random.IntN(4) {
			at, bytes := random.IntN(minutes), 1+random.Int64N(1000)
			levels[at] = max(levels[at], bytes)
			figures = append(figures, r.figure(time.Duration(at)*time.Minute+time.Duration(random.IntN(60))*time.Second, name, "pv-1", bytes))
		}
		r.sends(node, figures...)
		if random.IntN(3) == 0 {
			r.put(time.Duration(random.IntN(minutes)) * time.Minute)
		}
	}
	r.put(minutes * time.Minute)
	for from := range minutes {
		sum, level := int64(0), int64(0)
		for at, l := range levels {
			if l != 0 {
				level = l
			}
			if at >= from {
				sum += 60 * level
			}
		}
		var got int64
		for _, g := range r.usage(time.Duration(from)*time.Minute, minutes*time.Minute, query.ByWorkload) {
			got += g.Usage.Sum[usage.Storage].Int64()
		}
		if got != sum {
			r.Errorf("from minute %d: %d, want %d (seed %d)", from, got, sum, seed)
		}
	}
}

// A file system says that it has 8 EiB, or an agent less than nothing.
func usedHuge(r *usedCase) {
	r.sends("worker", r.figure(0, "web-0", "pv-1", 1<<63-1), r.figure(24*time.Hour, "web-0", "pv-1", -5))
	r.put(25 * time.Hour)
	if err := r.l.Fold(r.Context(), Day.Add(48*time.Hour)); err != nil {
		r.Fatal(err)
	}
	r.uses("huge", 0, 24*time.Hour, query.ByNamespace, fmt.Sprintf("shop=%dm", int64(1<<46)*24*3600))
	r.uses("less than nothing", 24*time.Hour, 25*time.Hour, query.ByNamespace, "shop=0m")
}

// An agent sends very many figures: of a minute one counts, and those of other volumes and pods delay none.
func usedFlood(r *usedCase) {
	var same, inline, strange []batch.TimedVolume
	for i := range int64(5000) {
		same = append(same, r.figure(time.Minute+time.Duration(i)*time.Millisecond, "web-0", "pv-1", i))
		inline = append(inline, r.figure(time.Hour, "web-0", fmt.Sprint("inline-", i), i))
		strange = append(strange, r.figure(time.Hour, fmt.Sprint("strange-", i), "pv-1", i))
	}
	r.runs("web-1", "worker", "shop", "data")
	r.sends("worker", slices.Concat(same, inline, strange, []batch.TimedVolume{r.figure(time.Hour, "web-0", "pv-1", 1), r.figure(90*time.Minute, "web-1", "pv-1", 2)})...)
	r.put(2 * time.Hour)
	r.uses("flood", 0, 2*time.Hour, query.ByWorkload, fmt.Sprintf("pv-1=%dm", 4999*59*60+30*60+30*60*2))
	r.levels("flood", 3)
}

// levels checks how many levels the ledger has of volumes of the case.
func (r *usedCase) levels(when string, want int64) {
	r.Helper()
	if n := r.db.number("SELECT count(*) FROM volume_use u JOIN pod p ON p.id = u.pod WHERE p.cluster = '" + r.lease.Cluster + "'"); n != want {
		r.Errorf("%s: %d levels, want %d", when, n, want)
	}
}

// Figures of a pod that is gone count for the time in which it was there.
func usedPodGone(r *usedCase) {
	p := pod.Pod{UID: r.uidOf("web-0"), Namespace: "shop", Name: "web-0"}
	r.try(func() error { return r.l.EndPods(r.Context(), r.lease, []pod.Pod{p}, Day.Add(time.Hour)) })
	r.sends("worker", r.figure(55*time.Minute, "web-0", "pv-1", 10), r.figure(70*time.Minute, "web-0", "pv-1", 20))
	r.put(2 * time.Hour)
	r.uses("gone", 0, 70*time.Minute, query.ByWorkload, "pv-1=9000")
	r.uses("held", 0, 2*time.Hour, query.ByWorkload, "pv-1=39000m")
}

// Levels of minutes that are dropped go but for the last one, figures of that time are left out, and a volume that ended long ago
// leaves none.
func usedDropped(r *usedCase) {
	r.sends("worker", r.figure(time.Hour, "web-0", "pv-1", 10), r.figure(2*time.Hour, "web-0", "pv-1", 20))
	r.put(30 * time.Hour)
	r.drop(60 * time.Hour)
	r.sends("worker", r.figure(90*time.Minute, "web-0", "pv-1", 70), r.figure(59*time.Hour, "web-0", "pv-1", 30))
	r.put(60 * time.Hour)
	want := fmt.Sprintf("pv-1=%dm", 10*3600+20*57*3600+30*3600)
	r.uses("dropped", 0, 72*time.Hour, query.ByWorkload, want)
	of := "SELECT count(*) FROM volume_use u JOIN pod p ON p.id = u.pod WHERE p.uid = '" + r.volume.UID + "'"
	if n := r.db.number(of); n != 2 {
		r.Errorf("%d levels, want that before the floor and the last one", n)
	}
	r.gone(60*time.Hour, 60*time.Hour)
	r.put(61 * time.Hour)
	r.drop(200 * time.Hour)
	r.uses("ended", 0, 72*time.Hour, query.ByWorkload, want)
	if n := r.db.number("SELECT count(*) FROM volume_use WHERE pod NOT IN (SELECT id FROM pod)"); n > 0 || r.db.number(of) > 0 {
		r.Errorf("%d levels of no volume", n)
	}
}

// A machine enrolls again: it counts for its pods once the node of before is silent. A node of another name never does.
func usedEnrolledAgain(r *usedCase) {
	p := pod.Pod{UID: r.uidOf("web-0"), Namespace: "shop", Name: "web-0", Node: "worker", Created: Day, Scheduled: Day, Claims: []string{"data"},
		Reserved: []pod.Reservation{{Container: "app", Levels: pod.Levels{CPU: 1, CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}}}}
	r.try(func() error { return r.l.BookPods(r.Context(), r.lease, []pod.Pod{p}, Day) })
	r.put(time.Minute) // it has a carrier on the node "worker"
	r.runs("web-1", "worker", "shop", "data")
	r.sends("worker", r.figure(time.Minute, "web-0", "pv-1", 100))
	r.enroll("again", "worker")
	r.sends("again", r.figure(10*time.Minute, "web-0", "pv-1", 900), r.figure(10*time.Minute, "web-1", "pv-1", 900),
		r.figure(20*time.Minute, "web-0", "pv-1", 200), r.figure(25*time.Minute, "web-1", "pv-1", 300))
	r.sends("other", r.figure(26*time.Minute, "web-0", "pv-1", 900), r.figure(26*time.Minute, "web-1", "pv-1", 900))
	r.put(30 * time.Minute)
	r.uses("again", 0, 30*time.Minute, query.ByWorkload, fmt.Sprintf("pv-1=%dm", 60*(19*100+5*200+5*300)))
	r.sends("worker", r.figure(30*time.Minute, "web-0", "pv-1", 400))
	r.sends("again", r.figure(35*time.Minute, "web-0", "pv-1", 900))
	r.put(40 * time.Minute)
	r.enroll("silent", "silent") // it has sent nothing yet
	r.runs("web-2", "silent", "shop", "data")
	r.enroll("its twin", "silent")
	before := r.db.number("SELECT count(*) FROM volume_use")
	r.sends("its twin", r.figure(10*time.Minute, "web-2", "pv-1", 900))
	if n := r.db.number("SELECT count(*) FROM volume_use"); n != before {
		r.Error("a node with the name of one that enrolled a moment ago counts")
	}
	r.uses("the first is back", 30*time.Minute, 40*time.Minute, query.ByWorkload, fmt.Sprintf("pv-1=%d", 600*400))
}

// A file system that is not on a block device counts if its size is about that of the volume.
func usedSize(r *usedCase) {
	for i, size := range []int64{749, 750, 1250, 1251, 1<<63 - 1, 0} {
		f := r.figure(time.Duration(i)*time.Minute, "web-0", "pv-1", int64(1+i))
		f.Size = size
		r.sends("worker", f)
	}
	r.put(6 * time.Minute)
	r.uses("sizes", 0, 6*time.Minute, query.ByWorkload, fmt.Sprintf("pv-1=%d", 60*(2+3*3+6)))
	r.volume.Bytes = 5000
	r.sees(2*time.Hour, 2*time.Hour)
	sized := func(at time.Duration, size int64) batch.TimedVolume {
		f := r.figure(at, "web-0", "pv-1", 10)
		f.Size = size
		return f
	}
	r.levels("before the resize", 3)
	r.sends("worker", sized(time.Hour, 1000), sized(time.Hour+time.Minute, 5000), sized(3*time.Hour, 5000), sized(3*time.Hour+time.Minute, 1000), sized(119*time.Minute, 5000), sized(121*time.Minute, 1000))
	r.levels("of the size of its time, or about then", 3+4)
}

// A late figure counts for the claim that a volume was bound to last.
func usedReleased(r *usedCase) {
	r.put(2 * time.Hour)
	r.bind("", "")
	r.sees(2*time.Hour, 2*time.Hour)
	r.sees(3*time.Hour, 3*time.Hour)
	r.runs("web-9", "worker", "shop", "data") // to which another volume is bound; and it mounts an inline one that is called pv-1
	r.sends("worker", r.figure(time.Hour, "web-0", "pv-1", 10), r.figure(123*time.Minute, "web-9", "pv-1", 5), r.figure(20*time.Hour, "web-9", "pv-1", 1))
	r.put(3 * time.Hour)
	r.uses("released", time.Hour, time.Hour+10*time.Minute, query.ByWorkload, "pv-1=6000")
	r.bind("other", "shop/persistentvolumeclaim/other")
	r.sees(3*time.Hour, 3*time.Hour)
	r.sends("worker", r.figure(3*time.Hour, "web-0", "pv-1", 20))
	r.levels("bound to another one", 1)
	r.runs("web-0", "worker", "shop", "other")
	r.sends("worker", r.figure(5*time.Hour, "web-0", "pv-1", 20))
	r.levels("of the other one", 2)
}

// Levels of dropped minutes go also while nothing is put.
func usedNotPut(r *usedCase) {
	r.put(time.Hour)
	for day := 9; day < 14; day++ {
		for hour := range 24 {
			r.sends("worker", r.figure(time.Duration(24*day+hour)*time.Hour, "web-0", "pv-1", 5))
		}
		r.drop(time.Duration(24*(day+1)) * time.Hour)
	}
	r.levels("five days", 2*24)
}

// A pod with very many claims has the first ones.
func usedManyClaims(r *usedCase) {
	var claims []string
	for i := range 256 {
		claims = append(claims, fmt.Sprintf("%0253d", i))
	}
	r.runs("web-1", "worker", "shop", append([]string{"data"}, claims...)...)
	if n := r.db.number("SELECT length(claims) FROM pod WHERE uid = '" + r.uidOf("web-1") + "'"); n < 3800 || n > 4096 {
		r.Errorf("%d bytes of claims", n)
	}
	r.sends("worker", r.figure(0, "web-1", "pv-1", 10))
	r.put(time.Minute)
	r.uses("the first claim", 0, time.Minute, query.ByWorkload, "pv-1=600")
}

// A late figure changes the rows from its minute on, or the row of its hour, also if the clock of another server was ahead.
func usedRows(r *usedCase) {
	r.put(50 * time.Minute)
	rev := r.db.number("SELECT rev FROM counter")
	r.sends("worker", r.figure(45*time.Minute, "web-0", "pv-1", 10))
	r.put(51 * time.Minute)
	if n := r.db.number(fmt.Sprintf("SELECT count(*) FROM minute_%s WHERE rev > %d", Day.Format("20060102"), rev)); n != 6 {
		r.Errorf("%d rows, want those of 6 minutes", n)
	}
	r.put(3 * time.Hour)
	r.sends("worker", r.figure(30*time.Minute, "web-0", "pv-1", 20))
	r.put(3*time.Hour - time.Minute)
	r.uses("the hour", 0, time.Hour, query.ByWorkload, fmt.Sprintf("pv-1=%d", 15*60*(20+10)))
	r.wants("its capacity", 0, time.Hour, query.ByWorkload, fmt.Sprintf("pv-1=%d", 3600*1000))
}

// With very many pods and claims, a figure takes as many statements as with few.
func usedCost(r *usedCase) {
	var claims []string
	for i := range 256 {
		claims = append(claims, fmt.Sprintf("c%d", i))
	}
	var pods []pod.Pod
	var figures []batch.TimedVolume
	for i := range 110 {
		name := fmt.Sprint("evil-", i)
		pods = append(pods, pod.Pod{UID: r.uidOf(name), Namespace: "evil", Name: name, Node: "worker", Created: Day, Claims: claims})
		figures = append(figures, r.figure(time.Minute, name, fmt.Sprint("inline-", i), 5), r.figure(time.Minute, fmt.Sprint("unknown-", i), "pv-1", 5))
	}
	r.try(func() error { return r.l.BookPods(r.Context(), r.lease, pods, Day) })
	steps := func(figures ...batch.TimedVolume) int {
		before := faults.count()
		r.sends("worker", figures...)
		return faults.count() - before
	}
	steps(r.figure(time.Minute, "web-0", "pv-1", 1)) // with each fault
	one := steps(r.figure(2*time.Minute, "web-0", "pv-1", 1))
	if n := steps(append(figures, r.figure(3*time.Minute, "web-0", "pv-1", 1))...); n > one {
		r.Errorf("%d statements for %d figures, %d for one", n, len(figures), one)
	}
	r.levels("among many", 3)
}

// A volume keeps its job while its claim is not known, also if a former version of the server booked it, without the claim.
func usedClaimUnknown(r *usedCase) {
	r.volume.Job = "shop/checkout"
	r.sees(0, 0)
	if _, err := r.db.db.Exec("UPDATE pod SET claims = '' WHERE uid = '" + r.volume.UID + "'"); err != nil {
		r.Fatal(err)
	}
	r.volume.Job, r.volume.ClaimUnknown = "", true
	r.sees(time.Hour, time.Hour)
	if n := r.db.number("SELECT count(*) FROM pod WHERE job = 'shop/checkout' AND claims = 'shop/data' AND uid = '" + r.volume.UID + "'"); n != 1 {
		r.Error("the volume has another job")
	}
}

// The clock of another server was hours ahead when it put rows: a late figure leaves no hour in parts.
func usedClockAhead(r *usedCase) {
	r.put(4*time.Hour + 10*time.Minute)
	r.sends("worker", r.figure(90*time.Minute, "web-0", "pv-1", 20))
	r.put(2*time.Hour + 10*time.Minute)
	r.put(5 * time.Hour)
	r.wants("its capacity", 0, 5*time.Hour, query.ByWorkload, fmt.Sprintf("pv-1=%d", 5*3600*1000))
	r.uses("late", 0, 5*time.Hour, query.ByWorkload, fmt.Sprintf("pv-1=%dm", 210*60*20))
}

// A figure from long before the rows that are put has none of them put again.
func usedLongAgo(r *usedCase) {
	r.put(30 * time.Hour)
	r.sends("worker", r.figure(5*time.Hour-time.Minute, "web-0", "pv-1", 1), r.figure(5*time.Hour, "web-0", "pv-1", 2))
	r.levels("of the last day", 1)
	r.put(30 * time.Hour)
	r.uses("of the last day", 0, 30*time.Hour, query.ByWorkload, fmt.Sprintf("pv-1=%dm", 25*3600*2))
}
