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

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/ledgertest"
	"mete.dev/mete/internal/testkit/syncbuf"
)

// A failingLedger is a ledger of which calls fail.
type failingLedger struct {
	*ledger.Ledger
	booking, ending, runs, volumes, topology, live, put, lease error
	lists                                                      int // of volumes
	topologies                                                 int // that were booked
	dsn                                                        string
}

func (l *failingLedger) LeasePods(ctx context.Context, lease pod.Lease, now, until time.Time) (pod.Lease, error) {
	if l.lease != nil {
		return pod.Lease{}, l.lease
	}
	return l.Ledger.LeasePods(ctx, lease, now, until)
}

func (l *failingLedger) LivePods(ctx context.Context, cluster string) ([]pod.Pod, error) {
	if l.live != nil {
		return nil, l.live
	}
	return l.Ledger.LivePods(ctx, cluster)
}

func (l *failingLedger) LiveRuns(ctx context.Context, cluster string) ([]pod.Run, error) {
	if l.live != nil {
		return nil, l.live
	}
	return l.Ledger.LiveRuns(ctx, cluster)
}

func (l *failingLedger) PutReserved(ctx context.Context, lease pod.Lease, until, seen time.Time, after int64) (int64, bool, error) {
	if l.put != nil {
		return 0, false, l.put
	}
	return l.Ledger.PutReserved(ctx, lease, until, seen, after)
}

func (l *failingLedger) BookRuns(ctx context.Context, lease pod.Lease, runs []pod.Run) error {
	return errors.Join(l.runs, l.Ledger.BookRuns(ctx, lease, runs))
}

func (l *failingLedger) BookPods(ctx context.Context, lease pod.Lease, pods []pod.Pod, at time.Time) error {
	return errors.Join(l.booking, l.Ledger.BookPods(ctx, lease, pods, at))
}

func (l *failingLedger) EndPods(ctx context.Context, lease pod.Lease, pods []pod.Pod, at time.Time) error {
	if l.ending != nil {
		return l.ending
	}
	return l.Ledger.EndPods(ctx, lease, pods, at)
}

// A worker is a watcher whose informers do not run: the test says what they see.
type worker struct {
	*Watcher
	t      *testing.T
	ledger *failingLedger
	log    *syncbuf.Buffer
}

// newWorker returns a worker whose API server does not answer.
func newWorker(t *testing.T, l *failingLedger, holder string) *worker {
	t.Helper()
	return newWorkerOf(t, l, holder, &rest.Config{Host: "https://127.0.0.1:1"})
}

func newWorkerOf(t *testing.T, l *failingLedger, holder string, rc *rest.Config) *worker {
	t.Helper()
	log := &syncbuf.Buffer{}
	w, err := newWatcher(Config{Cluster: "c", Holder: holder}, rc, l, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return &worker{w, t, l, log}
}

// pod returns a pod as an informer keeps it.
func (w *worker) pod(uid, node string, change func(*corev1.Pod)) *keptPod {
	w.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-" + uid, UID: types.UID(uid), CreationTimestamp: metav1.Now()},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{containerOf("app", quantities("cpu", "1"), nil)}}}
	if change != nil {
		change(p)
	}
	kept, err := w.trimPod(p)
	if err != nil {
		w.t.Fatal(err)
	}
	return kept.(*keptPod)
}

// sees lets the informer of pods see one, and gone that it is gone.
func (w *worker) sees(p *keptPod) {
	if err := w.pods.GetStore().Update(p); err != nil {
		w.t.Error(err)
	}
	w.change(p)
}

func (w *worker) gone(p *keptPod) {
	if err := w.pods.GetStore().Delete(p); err != nil {
		w.t.Error(err)
	}
	w.delete(cache.DeletedFinalStateUnknown{Obj: p})
}

// works lets it work, which has to fail with an error or not, and checks which pods live in the ledger.
func (w *worker) works(when string, want error, live ...string) {
	w.t.Helper()
	if err := w.work(w.t.Context()); !errors.Is(err, want) {
		w.t.Errorf("%s: %v, want %v", when, err, want)
	}
	pods, err := w.ledger.Ledger.LivePods(w.t.Context(), "c")
	var got []string
	for i := range pods {
		got = append(got, strings.TrimPrefix(pods[i].UID, "01234567-89ab-cdef-0123-"))
	}
	if !slices.Equal(got, live) || err != nil {
		w.t.Errorf("%s: %v live, %v; want %v", when, got, err, live)
	}
}

// withWorkers runs a test with a ledger that has a node.
func withWorkers(t *testing.T, f func(t *testing.T, l *failingLedger)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		dsn := ledgertest.SQLite(t)
		l := &failingLedger{Ledger: ledgertest.Open(t, dsn), dsn: dsn}
		if err := l.PutNode(t.Context(), registry.Node{ID: "n1", Name: "n1", Cluster: "c", At: time.Now()}); err != nil {
			t.Fatal(err)
		}
		f(t, l)
	})
}

// TestWork: what informers see is in the ledger, once, also after a database that failed, and is ended once it is gone.
func TestWork(t *testing.T) {
	withWorkers(t, func(t *testing.T, l *failingLedger) {
		w := newWorker(t, l, "s")
		booked := func(want int64) {
			t.Helper()
			if s := w.Stats(); s.Booked != want || !s.Holds {
				t.Errorf("%+v, want %d booked", s, want)
			}
		}
		a := w.pod("a", "n1", nil)
		w.sees(a) // it has no lease yet: all of the store are booked when it has
		w.works("first", nil, "a")
		booked(1)
		w.sees(a)
		w.sees(w.pod("waits", "", nil))
		w.works("nothing new", nil, "a")
		booked(1)
		w.sees(w.pod("a", "n1", func(p *corev1.Pod) { p.Labels = map[string]string{"mete.dev/job": "j"} }))
		w.works("a label", nil, "a")
		booked(2)

		// Both changes and the end of what was seen while the database failed come later, in their newest state.
		down := errors.New("down")
		l.booking = down
		b, c := w.pod("b", "n1", nil), w.pod("c", "n1", nil)
		w.sees(b)
		w.works("the database fails", down, "a", "b") // it was stored, but that is not known
		l.booking, l.ending = nil, down
		w.sees(w.pod("b", "n1", func(p *corev1.Pod) { p.Labels = map[string]string{"mete.dev/job": "newer"} }))
		w.sees(c)
		w.gone(a)
		w.works("the end fails", down, "a", "b", "c")
		l.ending = nil
		w.works("all comes later", nil, "b", "c")
		if got := w.booked["b"].Job; got != "shop/newer" {
			t.Errorf("the job is %q", got)
		}
		w.works("nothing more", nil, "b", "c")
		if n := w.Stats().Booked; n != 5 { // the last state of a too
			t.Errorf("%d were booked", n)
		}
		w.sees(a)
		w.works("it comes again", nil, "a", "b", "c")

		// There may be many at once.
		all := []string{"a", "b", "c"}
		for i := range 2*podsPerBooking + 1 {
			uid := fmt.Sprintf("d%04d", i)
			w.sees(w.pod(uid, "n1", nil))
			all = append(all, uid)
		}
		w.works("many", nil, all...)
		for i, uid := range all[3:] {
			w.gone(w.pod(uid, "n1", nil))
			if i == 0 {
				w.works("one is gone", nil, slices.Concat(all[:3], all[4:])...)
			}
		}
		w.works("many are gone", nil, "a", "b", "c")
		if len(w.holder) != 3 || len(w.booked) != 3 {
			t.Errorf("it remembers %d and %d pods", len(w.holder), len(w.booked))
		}
	})
}

// TestMirrors: the mirror of a static pod that is replaced ends nothing.
func TestMirrors(t *testing.T) {
	withWorkers(t, func(t *testing.T, l *failingLedger) {
		w := newWorker(t, l, "s")
		mirror := func(uid, container string) *keptPod {
			return w.pod(uid, "n1", func(p *corev1.Pod) {
				const hash = "0123456789abcdef0123456789abcdef"
				p.Name, p.Annotations, p.OwnerReferences = "static", map[string]string{hashAnnotation: hash, mirrorAnnotation: hash}, []metav1.OwnerReference{owner("Node", "n1", true)}
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", ContainerID: container}}
			})
		}
		const key = "456789abcdef"
		w.sees(mirror("m1", ""))
		w.works("its containers do not run yet", nil)
		w.sees(mirror("m1", "containerd://x"))
		w.works("they run", nil, key)
		w.gone(mirror("m1", "containerd://x"))
		w.sees(mirror("m2", "containerd://x"))
		w.works("another mirror", nil, key)
		w.gone(mirror("m2", ""))
		w.works("it is gone, without its status", nil)
		w.sees(mirror("m3", "containerd://x"))
		w.works("a third one", nil, key)

		// A server that starts finds a mirror to which no status is written again.
		if err := w.release(t.Context()); err != nil {
			t.Fatal(err)
		}
		next := newWorker(t, l, "next")
		next.sees(mirror("m3", ""))
		next.works("the next server", nil, key)
		if err := next.release(t.Context()); err != nil {
			t.Fatal(err)
		}
		newWorker(t, l, "last").works("a server that sees none", nil)
	})
}

// TestLease: only the server with the lease books. One that takes it books all that exists, and ends the rest.
func TestLease(t *testing.T) {
	withWorkers(t, func(t *testing.T, l *failingLedger) {
		one, two := newWorker(t, l, "one"), newWorker(t, l, "two")
		a, b := one.pod("a", "n1", nil), one.pod("b", "n1", nil)
		one.sees(a)
		two.sees(a)
		one.works("it has the lease", nil, "a")
		two.works("it waits", nil, "a")
		if s := two.Stats(); s.Holds || s.Booked != 0 || s.Pods != 1 || !strings.Contains(two.log.String(), "holder=one") {
			t.Errorf("%+v\n%s", s, two.log)
		}
		two.sees(b)
		two.gone(a)
		two.works("it still waits", nil, "a")
		time.Sleep(44 * time.Second)
		one.works("it is extended", nil, "a")
		time.Sleep(leaseFor - time.Second)
		two.works("it has not ended", nil, "a")
		time.Sleep(leaseEvery)
		two.works("it has ended", nil, "b")
		if s := two.Stats(); !s.Holds || s.Booked != 1 {
			t.Errorf("%+v", s)
		}
		// The first one believes that it has the lease, until it writes.
		one.leaseAt = time.Now().Add(time.Hour)
		one.sees(one.pod("c", "n1", nil))
		one.works("it was stopped", nil, "b")
		if one.lease.Number != 0 {
			t.Errorf("lease %+v", one.lease)
		}
		one.works("it asks again", nil, "b")
		if s := one.Stats(); s.Holds || strings.Count(one.log.String(), "named by another server") != 1 {
			t.Errorf("%+v\n%s", s, one.log)
		}
		l.lease = errors.New("down")
		if err := two.release(t.Context()); err != nil || !strings.Contains(two.log.String(), "could not be given back") {
			t.Errorf("%v\n%s", err, two.log)
		}
		two.leaseAt = time.Time{}
		two.works("the lease cannot be extended", l.lease, "b")
		l.lease = nil
		if err := errors.Join(one.release(t.Context()), two.release(t.Context())); err != nil {
			t.Fatal(err)
		}
		time.Sleep(leaseEvery)
		l.live = errors.New("down")
		one.works("what lives is not known", l.live, "a", "b", "c")
		l.live = nil
		one.works("it was given back", nil, "a", "c") // all that it sees, and none else
	})
}

// TestPutReserved: rows of what pods reserve are put for each minute a moment after its end, and again after a failure.
func TestPutReserved(t *testing.T) {
	withWorkers(t, func(t *testing.T, l *failingLedger) {
		w := newWorker(t, l, "s")
		from := time.Now().Truncate(time.Hour)
		time.Sleep(time.Until(from.Add(time.Hour)))
		from = from.Add(time.Hour)
		seconds := func() int64 {
			t.Helper()
			a, err := l.Usage(t.Context(), query.Query{From: from, To: from.Add(time.Hour), By: []query.Dimension{query.ByCluster}, Scope: query.Scope{All: true}})
			if err != nil {
				t.Fatal(err)
			}
			if len(a.Groups) == 0 {
				return 0
			}
			return a.Groups[0].Usage.Sum[usage.ReservedTime].Int64() / 1e9
		}
		w.health.listed(t.Context(), &corev1.Pod{}, nil)
		w.sees(w.pod("a", "n1", nil))
		w.works("first", nil, "a")
		for _, c := range []struct {
			sleep time.Duration
			want  int64
		}{{time.Minute, 0}, {4 * time.Second, 0}, {time.Second, 60}, {time.Minute - time.Second, 60}, {time.Second, 120}, {3 * time.Minute, 300}} {
			time.Sleep(c.sleep)
			w.works("later", nil, "a")
			if got := seconds(); got != c.want {
				t.Errorf("after %v %d s, want %d", time.Since(from), got, c.want)
			}
		}
		w.works("the same minute again", nil, "a")
		l.put = errors.New("full disk")
		time.Sleep(time.Minute)
		w.works("the ledger fails", l.put, "a")
		l.put = nil
		w.works("at once after that", nil, "a")
		if got := seconds(); got != 360 {
			t.Errorf("after a failure %d s, want 360", got)
		}
	})
}

// TestHealth: changes are known up to a time that is confirmed while the API server answers.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &syncbuf.Buffer{}
		h := &health{log: slog.New(slog.NewTextHandler(log, nil)), now: time.Now, warned: map[string]time.Time{}}
		began := time.Now()
		away := errors.New("away")
		for i, c := range []struct {
			do   func()
			want time.Duration // since the beginning; below 0: none
		}{
			{func() { h.listed(t.Context(), &corev1.Pod{}, nil) }, -1},
			{func() { time.Sleep(14 * time.Second) }, -1},
			{func() { time.Sleep(time.Second) }, 15 * time.Second},
			{func() { time.Sleep(time.Second); h.probed(t.Context(), nil) }, listedAfter + time.Second},
			{func() { h.listed(t.Context(), &metav1.PartialObjectMetadata{}, away) }, listedAfter + time.Second}, // owners do not count
			{func() { time.Sleep(time.Second); h.probed(t.Context(), away) }, -1},
			{func() { h.probed(t.Context(), nil) }, listedAfter + 2*time.Second},
			{func() { h.listed(t.Context(), &corev1.Pod{}, away) }, -1},
			{func() { time.Sleep(time.Minute); h.probed(t.Context(), nil) }, -1},
			{func() { h.listed(t.Context(), &corev1.Pod{}, nil); time.Sleep(listedAfter) }, 2*listedAfter + 62*time.Second},
			{func() { h.lists(t.Context(), &metav1.PartialObjectMetadata{}) }, 2*listedAfter + 62*time.Second},
			{func() { h.lists(t.Context(), &corev1.Pod{}); time.Sleep(time.Minute); h.probed(t.Context(), nil) }, -1},
			{func() { h.listed(t.Context(), &corev1.Pod{}, nil); time.Sleep(listedAfter) }, 3*listedAfter + 122*time.Second},
		} {
			c.do()
			if got := h.confirmed(); c.want < 0 && !got.IsZero() || c.want >= 0 && !got.Equal(began.Add(c.want)) {
				t.Errorf("step %d: confirmed %v, want %v", i, got.Sub(began), c.want)
			}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		h.probed(ended, away)
		h.lists(ended, &corev1.Pod{})
		h.listed(ended, &corev1.Pod{}, away)
		if h.stats.Errors != 3 || h.stats.Lists != 3 || h.confirmed().IsZero() {
			t.Errorf("%+v", h.stats)
		}
		for _, text := range []string{"does not list what names pods", "does not answer: new pods", "answers again"} {
			if n := strings.Count(log.String(), text); n != 1 {
				t.Errorf("%q is %d times in the log\n%s", text, n, log)
			}
		}
		for i, pause := range []time.Duration{150*time.Second - 1, 1, 5*time.Minute - 1} { // it was warned of 150 s ago
			time.Sleep(pause)
			h.probed(t.Context(), away)
			if n, want := strings.Count(log.String(), "does not answer: new pods"), min(i+1, 2); n != want {
				t.Errorf("%v later it is warned about %d times, want %d\n%s", pause, n, want, log)
			}
		}
	})
}

// A fakeAPI answers the requests of an informer of pods. Each list takes a minute. One of before Kubernetes 1.34 does not
// send objects by a watch, and lists them in two pages.
type fakeAPI struct {
	old     bool
	back    time.Time // there is no answer until then
	watches []*watch.FakeWatcher
}

func (f *fakeAPI) away() error {
	if time.Now().Before(f.back) {
		return errors.New("connection refused")
	}
	return nil
}

func (f *fakeAPI) ListWithContext(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if err := f.away(); err != nil {
		return nil, err
	}
	time.Sleep(time.Minute)
	meta := metav1.ListMeta{ResourceVersion: "1"}
	if o.Continue == "" {
		meta.Continue = "next"
	}
	return &corev1.PodList{ListMeta: meta, Items: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "page" + o.Continue, ResourceVersion: "1"}}}}, nil
}

func (f *fakeAPI) WatchWithContext(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if err := f.away(); err != nil {
		return nil, err
	}
	all := o.SendInitialEvents != nil
	if all && f.old {
		return nil, apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Forbidden(field.NewPath("sendInitialEvents"), "is not known")})
	}
	w := watch.NewFakeWithChanSize(10, false)
	f.watches = append(f.watches, w)
	if all {
		w.Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "streamed", ResourceVersion: "1"}})
		w.Action(watch.Bookmark, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}})
		go func() {
			time.Sleep(time.Minute)
			w.Action(watch.Bookmark, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}})
		}()
	}
	return w, nil
}

// TestLists: while pods are listed, by a watch or in pages, none of their changes since are confirmed; a watch that has
// expired lists them again, and one that was away is found soon.
func TestLists(t *testing.T) {
	for name, api := range map[string]*fakeAPI{"streamed": {}, "in pages": {old: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorker(t, nil, "s")
				inf := w.informer(api, &corev1.Pod{}, w.trimPod)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { defer close(ended); inf.RunWithContext(ctx) }()
				long := time.Minute // of a list
				if api.old {
					long = 2 * time.Minute
				}
				for i := range int64(2) {
					time.Sleep(long - time.Second)
					if !w.health.confirmed().IsZero() || w.Stats().Lists != i {
						t.Errorf("list %d: confirmed %v before its end, %d lists", i, w.health.confirmed(), w.Stats().Lists)
					}
					time.Sleep(listedAfter + 10*time.Second) // the list is read again within some seconds after an error
					if w.health.confirmed().IsZero() || w.Stats().Lists != i+1 || w.Stats().Errors != 0 || len(inf.GetStore().List()) == 0 {
						t.Errorf("list %d: confirmed %v after its end, %+v, %v", i, w.health.confirmed(), w.Stats(), inf.GetStore().ListKeys())
					}
					api.watches[len(api.watches)-1].Error(&apierrors.NewResourceExpired("too old").ErrStatus)
				}
				api.back = time.Now().Add(10 * time.Minute)
				time.Sleep(10*time.Minute + retryEvery + long + listedAfter)
				if w.health.confirmed().IsZero() || w.Stats().Lists != 3 || w.Stats().Errors < 200 {
					t.Errorf("after an outage: confirmed %v, %+v", w.health.confirmed(), w.Stats())
				}
				cancel()
				<-ended
				if n := strings.Count(w.log.String(), "level=WARN"); n != strings.Count(w.log.String(), "connection refused") || n != 2 {
					t.Error(w.log)
				}
			})
		})
	}
}

// TestOwnerOf: what the informers know is not looked up, nor what no owner can be called; and after an error nothing for a while.
func TestOwnerOf(t *testing.T) {
	w := newWorker(t, nil, "s") // its API server does not answer
	above := owner("Deployment", "web", true)
	set := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-5f", UID: "u", OwnerReferences: []metav1.OwnerReference{above}}}
	if err := w.owners["ReplicaSet.apps"].GetStore().Add(set); err != nil {
		t.Fatal(err)
	}
	ref := func(change func(*metav1.OwnerReference)) *metav1.OwnerReference {
		r := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-5f", UID: "u"}
		change(&r)
		return &r
	}
	long := strings.Repeat("x", 253)
	for name, c := range map[string]struct {
		change func(*metav1.OwnerReference)
		want   string
		lookUp bool
	}{
		"known":            {func(*metav1.OwnerReference) {}, "web", false},
		"made again":       {func(r *metav1.OwnerReference) { r.UID = "v" }, "", true},
		"not known":        {func(r *metav1.OwnerReference) { r.Name = "other" }, "", true},
		"longest name":     {func(r *metav1.OwnerReference) { r.Name = long }, "", true},
		"name too long":    {func(r *metav1.OwnerReference) { r.Name = long + "x" }, "", false},
		"kind too long":    {func(r *metav1.OwnerReference) { r.Kind = long[:64] }, "", false},
		"UID too long":     {func(r *metav1.OwnerReference) { r.UID = types.UID(long[:64]) }, "", false},
		"version too long": {func(r *metav1.OwnerReference) { r.APIVersion = long + "x" }, "", false},
		"no version":       {func(r *metav1.OwnerReference) { r.APIVersion = "a/b/c" }, "", false},
		"a path":           {func(r *metav1.OwnerReference) { r.Name = "../secrets" }, "", false},
	} {
		w.lookAgain = time.Time{}
		before := w.Stats().Errors
		for range 2 {
			got, err := w.ownerOf(t.Context(), "shop", ref(c.change))
			if (err != nil) != c.lookUp || (got != nil) != (c.want != "") || got != nil && got.Name != c.want {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
		if n := w.Stats().Errors - before; n != map[bool]int64{true: 1}[c.lookUp] {
			t.Errorf("%s: %d errors", name, n)
		}
	}
}

// TestIsRefused: what the API server refuses is not requested again, unless it may answer later.
func TestIsRefused(t *testing.T) {
	for code, want := range map[int32]bool{399: false, 400: true, 401: false, 403: true, 405: true, 408: false, 429: false, 499: true, 500: false, 503: false} {
		err := fmt.Errorf("reading: %w", &apierrors.StatusError{ErrStatus: metav1.Status{Code: code}})
		if got := isRefused(err); got != want {
			t.Errorf("%d: %t", code, got)
		}
	}
	if isRefused(errors.New("away")) {
		t.Error("an error without a status")
	}
}

// TestRuns: Jobs are in the ledger with their start, end and exit code, once, also after a database that failed; one that is deleted
// before it ends ends then.
func TestRuns(t *testing.T) {
	withWorkers(t, func(t *testing.T, l *failingLedger) {
		w := newWorker(t, l, "one")
		began := time.Now().Truncate(time.Second).UTC()
		job := func(name string, change func(*batchv1.Job)) *keptJob {
			t.Helper()
			at := metav1.NewTime(began)
			j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"a": "b"}}, Status: batchv1.JobStatus{StartTime: &at}}
			if change != nil {
				change(j)
			}
			kept, err := trimJob(j)
			if err != nil || len(kept.(*keptJob).Labels) > 0 {
				t.Fatalf("%+v, %v", kept, err)
			}
			return kept.(*keptJob)
		}
		sees := func(jobs ...*keptJob) {
			for _, j := range jobs {
				if err := w.owners[jobKind].GetStore().Update(j); err != nil {
					t.Error(err)
				}
				w.changeJob(j)
			}
		}
		ends := func(kind batchv1.JobConditionType, at time.Time) func(*batchv1.Job) {
			return func(j *batchv1.Job) {
				j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionFalse}, {Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at)}}
			}
		}
		// podOf returns a pod of a Job whose container ended so, or did not end.
		podOf := func(uid, job string, exit int32, at time.Time) *keptPod {
			return w.pod(uid, "n1", func(p *corev1.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job, UID: types.UID("uid-" + job), Controller: new(true)}}
				s := corev1.ContainerStatus{Name: "app", ContainerID: "containerd://" + uid}
				if exit >= 0 {
					s.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: exit, FinishedAt: metav1.NewTime(at), ContainerID: s.ContainerID}
				}
				p.Status.ContainerStatuses = []corev1.ContainerStatus{s}
			})
		}
		list := func() string {
			t.Helper()
			var lines []string
			rows, err := ledgertest.DB(t, l.dsn).QueryContext(t.Context(), "SELECT uid, started_ns, ended_ns, exit_code, gone_ns <> 0 FROM kube_job ORDER BY uid")
			if err != nil {
				t.Fatal(err)
			}
			since := func(ns int64) string {
				if ns == 0 {
					return ""
				}
				return time.Unix(0, ns).Sub(began).String()
			}
			for rows.Next() {
				var uid string
				var started, ended, exit int64
				var gone bool
				if err := rows.Scan(&uid, &started, &ended, &exit, &gone); err != nil {
					t.Fatal(err)
				}
				lines = append(lines, fmt.Sprintf("%s %s-%s exit %d gone %v", uid, since(started), since(ended), exit, gone))
			}
			if err := errors.Join(rows.Err(), rows.Close()); err != nil {
				t.Fatal(err)
			}
			return strings.Join(lines, "; ")
		}
		check := func(when, want string) {
			t.Helper()
			if err := w.work(t.Context()); err != nil {
				t.Errorf("%s: %v", when, err)
			}
			if got := list(); got != want {
				t.Errorf("%s:\n%s\nwant\n%s", when, got, want)
			}
		}
		check("without Jobs", "")
		late := began.Add(40 * time.Second)
		sees(job("ok", nil), job("failed", nil), job("odd", nil), job("deleted", nil), job("new", func(j *batchv1.Job) { j.Status.StartTime = nil }))
		check("running", "uid-deleted 0s- exit -1 gone false; uid-failed 0s- exit -1 gone false; uid-odd 0s- exit -1 gone false; uid-ok 0s- exit -1 gone false")
		// The one that failed has a container that failed last; of the other one it is not known yet.
		w.sees(podOf("p1", "failed", 3, began.Add(time.Second)))
		w.sees(podOf("p2", "failed", 137, began.Add(30*time.Second)))
		w.sees(podOf("p3", "failed", 0, late))
		w.sees(podOf("p5", "failed", 143, late.Add(time.Second))) // it was killed because the Job failed
		sees(job("ok", ends(batchv1.JobComplete, late)), job("failed", ends(batchv1.JobFailed, late)), job("odd", ends(batchv1.JobFailed, late)))
		time.Sleep(50 * time.Second)
		sees(job("deleted", func(j *batchv1.Job) { j.Status.StartTime = nil })) // it was suspended
		if err := w.work(t.Context()); err != nil {
			t.Error(err)
		}
		gone := job("deleted", func(j *batchv1.Job) { j.Status.StartTime = nil })
		if err := w.owners[jobKind].GetStore().Delete(gone); err != nil {
			t.Error(err)
		}
		w.deleteJob(cache.DeletedFinalStateUnknown{Obj: gone})
		l.runs = errors.New("full disk")
		if err := w.work(t.Context()); !errors.Is(err, l.runs) {
			t.Errorf("a ledger that fails: %v", err)
		}
		l.runs = nil
		ended := "uid-deleted 0s-50s exit -1 gone true; uid-failed 0s-40s exit 137 gone false; uid-odd 0s-40s exit 1 gone false; uid-ok 0s-40s exit 0 gone false"
		check("ended", ended)
		if n := len(w.runs); n != 3 {
			t.Errorf("%d Jobs are remembered, one of which is gone: %+v", n, w.runs)
		}
		w.sees(podOf("p4", "odd", 5, late))
		check("with the pod that failed", strings.Replace(ended, "odd 0s-40s exit 1", "odd 0s-40s exit 5", 1))
		// Another server takes over, which does not see two of them any more.
		for _, j := range []*keptJob{job("ok", nil), job("odd", nil)} {
			if err := w.owners[jobKind].GetStore().Delete(j); err != nil {
				t.Error(err)
			}
		}
		w.leaseAt, w.lease.Number = time.Time{}, 0
		time.Sleep(time.Hour)
		check("after a while", "uid-deleted 0s-50s exit -1 gone true; uid-failed 0s-40s exit 137 gone false; uid-odd 0s-40s exit 5 gone true; uid-ok 0s-40s exit 0 gone true")
	})
}
