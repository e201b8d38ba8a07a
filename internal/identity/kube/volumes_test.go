package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/ledgertest"
	"mete.dev/mete/internal/testkit/syncbuf"
)

// persistentVolume returns a volume that is bound to the claim shop/data with the UID claim.
func persistentVolume(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1", UID: "volume", CreationTimestamp: metav1.Unix(40, 0)}}
	v.Spec.Capacity, v.Spec.StorageClassName = quantities("storage", "10"), "fast"
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "disk.example.org"}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "claim"}
	v.Status.Phase = corev1.VolumeBound
	if change != nil {
		change(v)
	}
	return v
}

func claimOf(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "claim"}}
	if change != nil {
		change(c)
	}
	return c
}

// keepVolume lets the informer of volumes see one, and keepClaim that of claims.
func (w *worker) keepVolume(v *corev1.PersistentVolume) *keptVolume {
	w.t.Helper()
	o, err := trimVolume(v)
	if err = errors.Join(err, w.volumes.GetStore().Update(o)); err != nil {
		w.t.Fatal(err)
	}
	w.changeVolume(o, false)
	return o.(*keptVolume)
}

func (w *worker) keepClaim(c *corev1.PersistentVolumeClaim) {
	w.t.Helper()
	o, err := w.trimClaim(c)
	if err = errors.Join(err, w.claims.GetStore().Update(o)); err != nil {
		w.t.Fatal(err)
	}
	w.changeClaim(o)
}

// TestVolumeOf: what the ledger keeps of a volume, and of its claim.
func TestVolumeOf(t *testing.T) {
	bound := pod.Volume{UID: "volume", Name: "pv-1", Namespace: "shop", Claim: "data", Job: "shop/persistentvolumeclaim/data", Bytes: 10, Created: time.Unix(40, 0),
		Labels: map[string]string{pod.LabelClaim: "data", pod.LabelClass: "fast", pod.LabelType: "disk.example.org"}}
	with := func(change func(*pod.Volume)) pod.Volume {
		v := bound
		v.Labels = map[string]string{pod.LabelClaim: "data", pod.LabelClass: "fast", pod.LabelType: "disk.example.org"}
		change(&v)
		return v
	}
	unbound := with(func(v *pod.Volume) { v.Namespace, v.Claim, v.Job = "", "", ""; delete(v.Labels, pod.LabelClaim) })
	source := func(s corev1.PersistentVolumeSource) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeSource = s }
	}
	ofType := func(name string) pod.Volume { return with(func(v *pod.Volume) { v.Labels[pod.LabelType] = name }) }
	phase := func(p corev1.PersistentVolumePhase) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) { v.Status.Phase = p }
	}
	noClaim := errors.New("no claim")
	for name, c := range map[string]struct {
		volume func(*corev1.PersistentVolume)
		claim  func(*corev1.PersistentVolumeClaim)
		err    error // noClaim: there is none
		want   pod.Volume
	}{
		"bound":         {want: bound},
		"being bound":   {volume: phase(corev1.VolumePending), want: bound},
		"released":      {volume: phase(corev1.VolumeReleased), want: unbound},
		"failed":        {volume: phase(corev1.VolumeFailed), want: unbound},
		"available":     {volume: func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil; v.Status.Phase = corev1.VolumeAvailable }, want: unbound},
		"for a claim":   {volume: func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = ""; v.Status.Phase = corev1.VolumeAvailable }, want: unbound},
		"claim is gone": {err: noClaim, want: with(func(v *pod.Volume) { v.ClaimUnknown = true })},
		"another claim": {claim: func(c *corev1.PersistentVolumeClaim) {
			c.UID = "new"
			c.Labels = map[string]string{"mete.dev/job": "x"}
		}, want: with(func(v *pod.Volume) { v.ClaimUnknown = true })},
		"labels": {claim: func(c *corev1.PersistentVolumeClaim) {
			c.Labels = map[string]string{"mete.dev/job": "checkout", "team": "blue", "other": "x", "mete.dev/claim": "evil", "mete.dev/storage-class": "evil"}
		}, want: with(func(v *pod.Volume) { v.Job, v.Labels["team"] = "shop/checkout", "blue" })},
		"of a pod": {claim: func(c *corev1.PersistentVolumeClaim) {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web-5f-1", UID: "pod", Controller: new(true)}}
		}, want: with(func(v *pod.Volume) { v.Job = "shop/replicaset/web-5f" })},
		"of a pod that is gone": {claim: func(c *corev1.PersistentVolumeClaim) {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web-5f-1", UID: "before", Controller: new(true)}}
		}, want: with(func(v *pod.Volume) { v.Job, v.ClaimUnknown = "shop/pod/web-5f-1", true })},
		"local":       {volume: source(corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/disk"}}), want: ofType("local")},
		"hostPath":    {volume: source(corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{}}), want: ofType("hostPath")},
		"nfs":         {volume: source(corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}), want: ofType("nfs")},
		"no source":   {volume: source(corev1.PersistentVolumeSource{}), want: with(func(v *pod.Volume) { delete(v.Labels, pod.LabelType) })},
		"no class":    {volume: func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "" }, want: with(func(v *pod.Volume) { delete(v.Labels, pod.LabelClass) })},
		"no capacity": {volume: func(v *corev1.PersistentVolume) { v.Spec.Capacity = nil }, want: with(func(v *pod.Volume) { v.Bytes = 0 })},
	} {
		w := newWorker(t, nil, "s")
		w.cfg.Labels = []string{"team", "mete.dev/*"}
		p := w.pod("pod", "n1", func(p *corev1.Pod) {
			ref := owner("ReplicaSet", "web-5f", true)
			ref.APIVersion = "apps/v1"
			p.Name, p.OwnerReferences = "web-5f-1", []metav1.OwnerReference{ref}
		})
		set := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-5f", UID: p.OwnerReferences[0].UID}}
		if err := errors.Join(w.pods.GetStore().Update(p), w.owners["ReplicaSet.apps"].GetStore().Add(set)); err != nil {
			t.Fatal(err)
		}
		if c.err != noClaim {
			w.keepClaim(claimOf(c.claim))
		}
		if name == "labels" {
			c.want.Labels["mete.dev/job"] = "checkout" // it is in the list of labels to keep
		}
		got, err := w.volumeOf(t.Context(), w.keepVolume(persistentVolume(c.volume)))
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// TestManyLabels: a claim has as many labels as the ledger keeps, with those of the volume.
func TestManyLabels(t *testing.T) {
	w := newWorker(t, nil, "s")
	w.cfg.Labels = []string{"l*"}
	w.keepClaim(claimOf(func(c *corev1.PersistentVolumeClaim) {
		c.Labels = map[string]string{}
		for i := range 100 {
			c.Labels[fmt.Sprint("l", i)] = "x"
		}
	}))
	got, err := w.volumeOf(t.Context(), w.keepVolume(persistentVolume(nil)))
	if err != nil || len(got.Labels) != 32 || got.Labels[pod.LabelClaim] != "data" {
		t.Errorf("%d labels, %v", len(got.Labels), err)
	}
}

// TestVolumes: volumes are booked once they are listed, follow their claims, end with their deletion, also while another server
// had the lease, and are booked again after a failure.
func TestVolumes(t *testing.T) {
	withWorkers(t, func(t *testing.T, l *failingLedger) {
		listed := false
		begin := func(holder string) *worker {
			w := newWorker(t, l, holder)
			w.areListed = func() bool { return listed }
			w.health.listed(t.Context(), &corev1.Pod{}, nil)
			w.health.listed(t.Context(), &corev1.PersistentVolume{}, nil)
			return w
		}
		one, two := begin("one"), begin("two")
		from := time.Now().Truncate(time.Hour).Add(time.Hour)
		time.Sleep(time.Until(from))
		both := func(f func(*worker)) { f(one); f(two) }
		volume := persistentVolume(func(v *corev1.PersistentVolume) { v.CreationTimestamp = metav1.Now() })
		gone := persistentVolume(func(v *corev1.PersistentVolume) {
			v.Name, v.UID, v.CreationTimestamp, v.Spec.ClaimRef = "pv-2", "other", metav1.Now(), nil
		})
		both(func(w *worker) { w.keepVolume(volume); w.keepVolume(gone) })
		works := func(w *worker, when string, want error, live ...string) {
			t.Helper()
			if err := w.work(t.Context()); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", when, err, want)
			}
			var got []string
			rows, err := ledgertest.DB(t, l.dsn).Query("SELECT p.name || ' ' || p.job || ' ' || coalesce((SELECT max(r.storage) FROM reservation r WHERE r.pod = p.id AND r.to_s = 0), 0) FROM pod p WHERE p.volume = 1 AND p.ended_ns = 0 ORDER BY p.name")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = rows.Close() }()
			for rows.Next() {
				var v string
				if err := rows.Scan(&v); err != nil {
					t.Fatal(err)
				}
				got = append(got, v)
			}
			if !slices.Equal(got, live) || rows.Err() != nil {
				t.Errorf("%s: %q, %v; want %q", when, got, rows.Err(), live)
			}
		}
		works(one, "not listed", nil)
		works(two, "another server has the lease", nil)
		listed = true
		l.volumes = errDatabase
		works(one, "the database fails", errDatabase)
		l.volumes = nil
		works(one, "listed", nil, "pv-1 shop/persistentvolumeclaim/data 10", "pv-2  10")
		works(two, "the other server still waits", nil, "pv-1 shop/persistentvolumeclaim/data 10", "pv-2  10")
		both(func(w *worker) {
			w.keepClaim(claimOf(func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"mete.dev/job": "checkout"} }))
		})
		time.Sleep(time.Minute)
		l.volumes = errDatabase
		works(one, "the database fails", errDatabase, "pv-1 shop/persistentvolumeclaim/data 10", "pv-2  10")
		l.volumes = nil
		works(one, "its claim names a job", nil, "pv-1 shop/checkout 10", "pv-2  10")
		time.Sleep(4 * time.Minute)
		both(func(w *worker) { w.health.probed(t.Context(), nil) })
		works(one, "nothing changes", nil, "pv-1 shop/checkout 10", "pv-2  10")
		both(func(w *worker) {
			w.keepVolume(persistentVolume(func(v *corev1.PersistentVolume) {
				v.CreationTimestamp, v.Spec.Capacity = volume.CreationTimestamp, quantities("storage", "25")
			}))
		})
		works(one, "resized", nil, "pv-1 shop/checkout 25", "pv-2  10")
		if err := one.release(t.Context()); err != nil {
			t.Fatal(err)
		}
		kept, _ := trimVolume(gone)
		if err := two.volumes.GetStore().Delete(kept); err != nil {
			t.Fatal(err)
		}
		two.changeVolume(kept, true) // it has no lease yet
		two.keepVolume(persistentVolume(func(v *corev1.PersistentVolume) {
			v.CreationTimestamp, v.Spec.Capacity = volume.CreationTimestamp, quantities("storage", "45")
		}))
		time.Sleep(10 * time.Minute)
		works(two, "deleted and resized while no server had the lease", nil, "pv-1 shop/checkout 45")
		two.health.probed(t.Context(), nil)
		works(two, "nothing changes", nil, "pv-1 shop/checkout 45")
		last := two.keepVolume(persistentVolume(func(v *corev1.PersistentVolume) {
			v.CreationTimestamp, v.Spec.Capacity, v.Status.Phase = volume.CreationTimestamp, quantities("storage", "45"), corev1.VolumeReleased
		}))
		works(two, "released", nil, "pv-1  45")
		l.volumes = errDatabase
		two.changeVolume(last, true)
		works(two, "the database fails", errDatabase, "pv-1  45")
		l.volumes = nil
		works(two, "deleted", nil)
		time.Sleep(time.Hour)
		works(two, "later", nil)
		a, err := l.Usage(t.Context(), query.Query{From: from, To: from.Add(2 * time.Hour), By: []query.Dimension{query.ByWorkload}, Scope: query.Scope{All: true}})
		if err != nil {
			t.Fatal(err)
		}
		sums := map[string]string{}
		for _, g := range a.Groups {
			sums[g.Keys[0]] = g.Usage.Sum[usage.StorageReserved].String()
		}
		// 10 bytes for 5 minutes, 25 and 45 for half of the time without a server; and 10 for 5 minutes and half of that time.
		if want := map[string]string{"pv-1": "24000", "pv-2": "6000"}; cmp.Diff(want, sums) != "" {
			t.Errorf("sums %v, want %v", sums, want)
		}
		if l.lists != 2 {
			t.Errorf("the ledger listed its volumes %d times, want once for each lease", l.lists)
		}
		if n := len(two.heldVolumes) + len(two.changedVolumes); n != 0 {
			t.Errorf("%d volumes are still held", n)
		}
	})
}

var errDatabase = errors.New("database")

func (l *failingLedger) BookVolumes(ctx context.Context, lease pod.Lease, volumes []pod.Volume, at time.Time) error {
	if l.volumes != nil {
		return l.volumes
	}
	return l.Ledger.BookVolumes(ctx, lease, volumes, at)
}

func (l *failingLedger) ListVolumes(ctx context.Context, lease pod.Lease, at time.Time) ([]pod.Volume, error) {
	if l.volumes != nil {
		return nil, l.volumes
	}
	l.lists++
	return l.Ledger.ListVolumes(ctx, lease, at)
}

func (l *failingLedger) EndVolumes(ctx context.Context, lease pod.Lease, volumes []pod.Volume, at time.Time) error {
	if l.volumes != nil {
		return l.volumes
	}
	return l.Ledger.EndVolumes(ctx, lease, volumes, at)
}

// TestClaimsOf: the claims that a pod mounts are those that it names, and those of its ephemeral volumes.
func TestClaimsOf(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0"}}
	add := func(name string, s corev1.VolumeSource) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: s})
	}
	add("a", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	add("b", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}})
	add("scratch", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}})
	add("pv-1", corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}})
	if got := claimsOf(p); !slices.Equal(got, []string{"data", "web-0-scratch"}) {
		t.Errorf("%q", got)
	}
	for range 2 * maxClaims {
		add("c", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: strings.Repeat("x", 9999)}})
	}
	if got := claimsOf(p); len(got) != maxClaims || len(got[2]) != maxName {
		t.Errorf("%d claims", len(got))
	}
}

// TestVolumeUse: what the agent of a node measured of a volume counts if a pod of the node mounts its claim, also after the server
// restarted.
func TestVolumeUse(t *testing.T) {
	withWorkers(t, func(t *testing.T, l *failingLedger) {
		from := time.Now().Truncate(time.Hour).Add(time.Hour)
		time.Sleep(time.Until(from))
		begin := func() *worker {
			w := newWorker(t, l, "one")
			w.areListed = func() bool { return true }
			for _, of := range []runtime.Object{&corev1.Pod{}, &corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}} {
				w.health.listed(t.Context(), of, nil)
			}
			mounts := func(claim string) func(*corev1.Pod) {
				return func(p *corev1.Pod) {
					p.CreationTimestamp = metav1.NewTime(from)
					p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
				}
			}
			w.sees(w.pod("mounts", "n1", mounts("data")))
			w.sees(w.pod("other", "n1", mounts("other")))
			w.keepVolume(persistentVolume(func(v *corev1.PersistentVolume) { v.CreationTimestamp = metav1.NewTime(from) }))
			w.keepClaim(claimOf(nil))
			w.works("listed", nil, "mounts", "other")
			return w
		}
		mark := batch.Mark{Next: 1}
		sends := func(figures ...usage.VolumeUse) {
			t.Helper()
			e := ledgertest.Entry("n1", batch.Stream{1}, mark, 0, 0)
			for _, v := range figures {
				e.Volumes = append(e.Volumes, batch.TimedVolume{At: time.Now(), VolumeUse: v})
			}
			r, err := l.Book(t.Context(), []*batch.Entry{e})
			if err != nil || r[0].Err != nil || r[0].Verdict != batch.Accepted {
				t.Fatal(r, err)
			}
			mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
		}
		begin()
		sends(usage.VolumeUse{Pod: "other", Volume: "pv-1", Used: 9})
		sends(usage.VolumeUse{Pod: "mounts", Volume: "pv-1", Used: 4})
		time.Sleep(10 * time.Minute)
		w := begin()
		sends(usage.VolumeUse{Pod: "mounts", Volume: "pv-1", Used: 6})
		time.Sleep(10*time.Minute + putLag)
		w.works("later", nil, "mounts", "other")
		a, err := l.Usage(t.Context(), query.Query{From: from, To: from.Add(20 * time.Minute), By: []query.Dimension{query.ByWorkload}, Where: map[query.Dimension][]string{query.ByKind: {"volume"}}, Scope: query.Scope{All: true}})
		if err != nil || len(a.Groups) != 1 {
			t.Fatal(a, err)
		}
		u := &a.Groups[0].Usage
		if used := u.Sum[usage.Storage].Int64(); used != 600*(4+6) || u.Quality.Get(usage.Storage) != usage.Measured {
			t.Errorf("%d byte-seconds, %v", used, u.Quality.Get(usage.Storage))
		}
	})
}

// TestVolumesRefused: the log says once that an account has no right to list volumes, and no errors are counted.
func TestVolumesRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &syncbuf.Buffer{}
		h := &health{log: slog.New(slog.NewTextHandler(log, nil)), now: time.Now, warned: map[string]time.Time{}}
		refused := apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumes"}, "", errors.New("no"))
		volumes, claims := &corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}
		h.listed(t.Context(), &corev1.Pod{}, nil)
		said := func(when string, want int, errs int64) {
			t.Helper()
			if n := strings.Count(log.String(), "volumes of the cluster are not counted"); n != want || h.stats.Errors != errs {
				t.Errorf("%s: said %d times, want %d; %d errors, want %d\n%s", when, n, want, h.stats.Errors, errs, log)
			}
		}
		for range 10 {
			for _, of := range []runtime.Object{volumes, claims} {
				h.lists(t.Context(), of)
				h.listed(t.Context(), of, refused)
			}
			time.Sleep(time.Minute)
			h.probed(t.Context(), nil)
		}
		said("refused", 1, 0)
		if h.confirmed().IsZero() || !h.confirmedVolumes().IsZero() {
			t.Errorf("pods confirmed %v, volumes %v", h.confirmed(), h.confirmedVolumes())
		}
		h.listed(t.Context(), claims, nil)
		h.listed(t.Context(), claims, refused)
		said("claims of them were not the first that were refused", 1, 0)
		h.listed(t.Context(), volumes, nil)
		time.Sleep(listedAfter)
		if h.confirmedVolumes().IsZero() {
			t.Error("volumes that are listed are not confirmed")
		}
		h.listed(t.Context(), volumes, refused)
		said("refused again", 2, 0)
		h.listed(t.Context(), volumes, errors.New("away"))
		said("away", 2, 1)
		h.listed(t.Context(), &corev1.Pod{}, refused)
		said("pods", 2, 2)
	})
}

// TestTrimOthers: an object of another kind stays as it is.
func TestTrimOthers(t *testing.T) {
	w := newWorker(t, nil, "s")
	for _, trim := range []func(any) (any, error){trimVolume, w.trimClaim} {
		if o, err := trim("x"); o != "x" || err != nil {
			t.Errorf("%v, %v", o, err)
		}
	}
	v := persistentVolume(func(v *corev1.PersistentVolume) {
		v.Spec.StorageClassName, v.UID = strings.Repeat("x", 9999), types.UID("u")
		v.Spec.CSI.Driver = strings.Repeat("y", 9999)
	})
	o, err := trimVolume(v)
	if kept := o.(*keptVolume); err != nil || len(kept.class) != maxName || len(kept.source) != maxName {
		t.Errorf("class of %d, source of %d, %v", len(kept.class), len(kept.source), err)
	}
}
