// Package kube names the pods of a Kubernetes cluster in a ledger, and the Jobs that they are parts of, and books what pods and
// volumes reserve, and where the addresses of its nodes are: it watches the cluster's API server. It reads pods, Jobs, volumes and
// their claims, and nodes, and of other owners the metadata only. It also asks that server which pod has a token.
package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	batchclient "k8s.io/client-go/kubernetes/typed/batch/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
)

// A Config says which cluster to watch.
type Config struct {
	Cluster    string // the name that its nodes have in the ledger
	Kubeconfig string // a file; "" is the service account of the pod that this program runs in
	Holder     string // the server, as other servers with its ledger see it; the same after a restart
	// Labels are the keys of the pods' labels to keep. One that ends in * stands for all that begin so.
	Labels []string
}

// Default returns the configuration without a cluster.
func Default() Config {
	return Config{Labels: []string{"app.kubernetes.io/name", "app.kubernetes.io/component", "app.kubernetes.io/part-of"}}
}

// A Ledger keeps pods, and what else is known of their cluster; see [mete.dev/mete/internal/store/ledger/book.Booker].
type Ledger interface {
	LeasePods(ctx context.Context, l pod.Lease, now, until time.Time) (pod.Lease, error)
	BookPods(ctx context.Context, l pod.Lease, pods []pod.Pod, at time.Time) error
	EndPods(ctx context.Context, l pod.Lease, pods []pod.Pod, at time.Time) error
	LivePods(ctx context.Context, cluster string) ([]pod.Pod, error)
	BookRuns(ctx context.Context, l pod.Lease, runs []pod.Run) error
	RunsGone(ctx context.Context, l pod.Lease, runs []pod.Run, at time.Time) error
	LiveRuns(ctx context.Context, cluster string) ([]pod.Run, error)
	ListVolumes(ctx context.Context, l pod.Lease, at time.Time) (live []pod.Volume, err error)
	BookVolumes(ctx context.Context, l pod.Lease, volumes []pod.Volume, at time.Time) error
	EndVolumes(ctx context.Context, l pod.Lease, volumes []pod.Volume, at time.Time) error
	BookTopology(ctx context.Context, l pod.Lease, t pod.Topology, now time.Time) error
	PutReserved(ctx context.Context, l pod.Lease, until, seen time.Time, after int64) (last int64, done bool, err error)
}

// jobKind is the kind and group of Jobs, which are watched with their status.
const jobKind = "Job.batch"

// watchedOwners are, with Jobs, the owners of most pods, by kind and group. Others are looked up one by one.
var watchedOwners = map[string]schema.GroupVersionResource{
	"ReplicaSet.apps":  {Group: "apps", Version: "v1", Resource: "replicasets"},
	"Deployment.apps":  {Group: "apps", Version: "v1", Resource: "deployments"},
	"StatefulSet.apps": {Group: "apps", Version: "v1", Resource: "statefulsets"},
	"DaemonSet.apps":   {Group: "apps", Version: "v1", Resource: "daemonsets"},
	"CronJob.batch":    {Group: "batch", Version: "v1", Resource: "cronjobs"},
}

// A Watcher watches an API server. Of several servers with one ledger, that with the lease books pods.
type Watcher struct {
	cfg    Config
	ledger Ledger
	log    *slog.Logger

	pods   cache.SharedIndexInformer
	owners map[string]cache.SharedIndexInformer // by kind and group
	core   rest.Interface
	meta   metadata.Interface
	mapper meta.ResettableRESTMapperWithContext
	volumeWatch
	nodeWatch

	// Of Run's goroutine only.
	lease     pod.Lease // number 0: another server has it
	leaseAt   time.Time // when it is taken or extended again
	ended     bool      // pods that are gone were ended since the lease was taken
	seen      time.Time // when the ledger last had the pods as they were
	put       putMark
	above     map[ownerKey]seenOwner // owners of owners
	booked    map[string]pod.Pod     // as they were booked last, by the UID of the API server
	runs      map[string]pod.Run     // the same of Jobs
	holder    map[string]string      // the UID of the API server of the pod that has a UID in the ledger
	mapped    time.Time              // when the kinds of the API server were read last
	lookAgain time.Time              // when owners are looked up again, after an error

	health  health
	reviews *reviews

	mu      sync.Mutex
	holds   bool                // the lease: what changes is kept
	changed map[string]*keptPod // by the UID of the API server
	deleted map[string]bool
	jobs    map[string]changedJob // by UID
}

// An ownerKey is what a pod or an owner says of its owner.
type ownerKey struct{ namespace, version, kind, name, uid string }

// A seenOwner is the owner of an owner, or why there is none.
type seenOwner struct {
	above *metav1.OwnerReference
	err   error
	at    time.Time
}

// New returns a watcher. It does not connect.
func New(cfg Config, l Ledger, log *slog.Logger) (*Watcher, error) {
	rc, err := restConfig(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return newWatcher(cfg, rc, l, log)
}

// newWatcher returns a watcher of the API server that rc says.
func newWatcher(cfg Config, rc *rest.Config, l Ledger, log *slog.Logger) (*Watcher, error) {
	klog.SetSlogLogger(log)
	rc.UserAgent, rc.QPS, rc.Burst = "mete-server", 50, 200
	w := &Watcher{cfg: cfg, ledger: l, log: log, lease: pod.Lease{Cluster: cfg.Cluster, Holder: cfg.Holder},
		changed: map[string]*keptPod{}, deleted: map[string]bool{}, jobs: map[string]changedJob{}, above: map[ownerKey]seenOwner{}, booked: map[string]pod.Pod{}, runs: map[string]pod.Run{}, holder: map[string]string{}}
	w.health = health{log: log, server: rc.Host, now: time.Now, warned: map[string]time.Time{}}
	binary := rest.CopyConfig(rc)
	binary.ContentType, binary.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	owners, ownersErr := metadata.NewForConfig(rc)
	reviews, reviewsErr := newReviews(cfg.Cluster, rc, &w.health)
	disco, discoErr := discovery.NewDiscoveryClientForConfig(rc)
	core, coreErr := coreclient.NewForConfig(binary)
	jobs, jobsErr := batchclient.NewForConfig(binary)
	if err := cmp.Or(ownersErr, reviewsErr, discoErr, coreErr, jobsErr); err != nil { // all are of the same configuration
		return nil, invalid(cfg, err)
	}
	w.meta, w.reviews, w.core = owners, reviews, core.RESTClient()
	w.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	w.pods = w.informer(cache.NewListWatchFromClient(w.core, "pods", metav1.NamespaceAll, fields.Everything()), &corev1.Pod{}, w.trimPod)
	if err := w.pods.AddIndexers(cache.Indexers{byJob: indexByJob}); err != nil {
		return nil, err
	}
	_, err := w.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.change(o) },
		UpdateFunc: func(_, o any) { w.change(o) },
		DeleteFunc: func(o any) { w.delete(o) },
	})
	if err != nil {
		return nil, err
	}
	w.owners = map[string]cache.SharedIndexInformer{}
	for kind, of := range watchedOwners {
		lw := &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return w.meta.Resource(of).List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return w.meta.Resource(of).Watch(ctx, o)
			},
		}
		w.owners[kind] = w.informer(lw, &metav1.PartialObjectMetadata{}, trimOwner)
	}
	w.owners[jobKind] = w.informer(cache.NewListWatchFromClient(jobs.RESTClient(), "jobs", metav1.NamespaceAll, fields.Everything()), &batchv1.Job{}, trimJob)
	_, err = w.owners[jobKind].AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.changeJob(o) },
		UpdateFunc: func(_, o any) { w.changeJob(o) },
		DeleteFunc: func(o any) { w.deleteJob(o) },
	})
	if err != nil {
		return nil, err
	}
	return w, errors.Join(w.watchVolumes(), w.watchNodes())
}

// restConfig returns how to reach the API server.
func restConfig(file string) (*rest.Config, error) {
	if file == "" {
		rc, err := rest.InClusterConfig()
		if err != nil {
			return nil, fault.WithHint(fmt.Errorf("no service account of a pod: %w: %w", err, fault.ErrInvalid), "name a kubeconfig with --kubeconfig, or run the server in the cluster")
		}
		return rc, nil
	}
	rc, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w: %w", file, err, fault.ErrInvalid)
	}
	return rc, nil
}

func invalid(cfg Config, err error) error {
	return fmt.Errorf("kubeconfig %s: %w: %w", cmp.Or(cfg.Kubeconfig, "of the service account"), err, fault.ErrInvalid)
}

func (w *Watcher) change(o any) {
	p, ok := o.(*keptPod)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.holds {
		return
	}
	w.changed[string(p.UID)] = p
	ref := jobOfPod(p.Pod)
	if ref == nil || p.failure.code == 0 {
		return
	}
	// Its Job may have failed before this was known.
	held, _, _ := w.owners[jobKind].GetStore().GetByKey(p.Namespace + "/" + ref.Name) // a store in memory does not fail
	if j, ok := held.(*keptJob); ok && j.UID == ref.UID {
		w.jobs[string(j.UID)] = changedJob{job: j}
	}
}

// lastState returns the last known state of a deleted object.
func lastState(o any) any {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		return gone.Obj
	}
	return o
}

// delete takes the last state of a deleted pod, which may name containers that no earlier one did.
func (w *Watcher) delete(o any) {
	p, ok := lastState(o).(*keptPod)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holds {
		w.changed[string(p.UID)] = p
		w.deleted[string(p.UID)] = true
	}
}

// flushEvery is how often changes are booked: one transaction for those of this time.
const flushEvery = 500 * time.Millisecond

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, inf := range append(slices.Collect(maps.Values(w.owners)), w.pods, w.volumes, w.claims, w.nodes) {
		running.Go(func() { inf.RunWithContext(ctx) })
	}
	for _, inf := range append(slices.Collect(maps.Values(w.owners)), w.pods) {
		if !cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
			return nil
		}
	}
	running.Go(func() { w.probe(ctx) })
	w.health.synced(len(w.pods.GetStore().ListKeys()))
	tick := time.Tick(flushEvery)
	for {
		if err := w.work(ctx); err != nil && ctx.Err() == nil {
			w.health.notBooked(err)
		}
		select {
		case <-ctx.Done():
			return w.release(context.WithoutCancel(ctx))
		case <-tick:
		}
	}
}

// work books what has changed, if this server has the lease of the cluster.
func (w *Watcher) work(ctx context.Context) error {
	if err := w.keepLease(ctx); err != nil || w.lease.Number == 0 {
		return err
	}
	seen := w.health.confirmed()
	err := w.flushRuns(ctx) // first, so that new pods have what is known of their Jobs
	if err == nil {
		err = w.flush(ctx)
	}
	if err == nil && !w.ended {
		err = errors.Join(w.endOthers(ctx), w.endOtherRuns(ctx))
		w.ended = err == nil
	}
	if err == nil {
		if seen.After(w.seen) {
			w.seen = seen
		}
		err = errors.Join(w.flushVolumes(ctx), w.flushNodes(ctx), w.putReserved(ctx))
	}
	if errors.Is(err, fault.ErrConflict) {
		w.lease.Number, w.leaseAt = 0, time.Time{} // this server was stopped for longer than the lease lasts
		return nil
	}
	return err
}

// probeEvery is the interval at which requests find out whether the API server answers, and probeTimeout their limit.
const probeEvery, probeTimeout = 15 * time.Second, 10 * time.Second

// probe notices an API server that is away: client-go reports no error for a watch whose connection breaks.
func (w *Watcher) probe(ctx context.Context) {
	tick := time.Tick(probeEvery)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		in, cancel := context.WithTimeoutCause(ctx, probeTimeout, fmt.Errorf("no answer within %v", probeTimeout))
		err := w.core.Get().Resource("pods").Param("limit", "1").Do(in).Error()
		if err != nil && in.Err() != nil {
			err = context.Cause(in)
		}
		cancel()
		w.health.probed(ctx, err)
	}
}

// podsPerBooking limits the pods that are looked at before they are booked: those of two transactions.
const podsPerBooking = 1000

// flush books the pods that changed. After an error they are booked later.
func (w *Watcher) flush(ctx context.Context) error {
	w.mu.Lock()
	changed, deleted := w.changed, w.deleted
	w.changed, w.deleted = map[string]*keptPod{}, map[string]bool{}
	w.mu.Unlock()
	var err error
	for uids := range slices.Chunk(slices.Sorted(maps.Keys(changed)), podsPerBooking) {
		again := uids
		if err == nil {
			again, err = w.bookPods(ctx, uids, changed, deleted)
		}
		w.mu.Lock()
		for _, uid := range again {
			if _, newer := w.changed[uid]; !newer {
				w.changed[uid] = changed[uid]
			}
			if deleted[uid] {
				w.deleted[uid] = true
			}
		}
		w.mu.Unlock()
	}
	return err
}

// bookPods books pods and returns those to book again.
func (w *Watcher) bookPods(ctx context.Context, uids []string, changed map[string]*keptPod, deleted map[string]bool) (again []string, err error) {
	var pods, ended []pod.Pod
	next := map[string]pod.Pod{}
	for _, uid := range uids {
		if _, known := w.booked[uid]; !known && (changed[uid].Spec.NodeName == "" || isMirror(changed[uid].Pod) && !isStatic(changed[uid].Pod)) {
			continue // it has no control group yet
		}
		id, err := identify(changed[uid], w.keepsLabel, func(ns string, ref *metav1.OwnerReference) (*metav1.OwnerReference, error) {
			return w.ownerOf(ctx, ns, ref)
		})
		if err != nil && !deleted[uid] {
			again = append(again, uid) // it has what is known of its job so far
		}
		old, ok := w.booked[uid]
		if ok {
			id.UID = old.UID // that of a static pod stays, also without status
		}
		if !ok || !reflect.DeepEqual(old, id) {
			next[uid] = id
			id.Since = w.seen
			pods = append(pods, id)
		}
		if id.Since = w.seen; deleted[uid] {
			ended = append(ended, id)
		} else {
			w.holder[id.UID] = uid
		}
	}
	if err := w.ledger.BookPods(ctx, w.lease, pods, time.Now()); err != nil {
		return uids, err
	}
	maps.Copy(w.booked, next)
	w.health.booked(len(pods))
	// A mirror that is deleted comes back as another pod with the same UID in the ledger.
	gone := slices.DeleteFunc(slices.Clone(ended), func(p pod.Pod) bool { return w.holder[p.UID] != "" && !deleted[w.holder[p.UID]] })
	if err := w.ledger.EndPods(ctx, w.lease, gone, time.Now()); err != nil {
		return uids, err
	}
	for _, uid := range uids {
		if deleted[uid] {
			if key := w.booked[uid].UID; w.holder[key] == uid {
				delete(w.holder, key)
			}
			delete(w.booked, uid)
		}
	}
	return again, nil
}

// endOthers ends the pods that were deleted while no watcher ran.
func (w *Watcher) endOthers(ctx context.Context) error {
	live, err := w.ledger.LivePods(ctx, w.cfg.Cluster)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, o := range w.pods.GetStore().List() {
		if p, ok := o.(*keptPod); ok {
			there[uidOf(p.Pod)] = true
			if isMirror(p.Pod) {
				there[pod.Key(p.Annotations[hashAnnotation])] = true // the kubelet has not written its status again yet
			}
		}
	}
	live = slices.DeleteFunc(live, func(p pod.Pod) bool { return there[p.UID] })
	for i := range live {
		live[i].Since = w.seen
	}
	return w.ledger.EndPods(ctx, w.lease, live, time.Now())
}

func (w *Watcher) keepsLabel(key string) bool {
	return slices.ContainsFunc(w.cfg.Labels, func(k string) bool {
		prefix, open := strings.CutSuffix(k, "*")
		return key == k || open && strings.HasPrefix(key, prefix)
	})
}

const (
	// maxSeen limits the owners that are remembered, and keepSeen for how long: rights and kinds may come.
	maxSeen, keepSeen = 10_000, 10 * time.Minute
	// lookupTimeout limits a request for an owner, and lookupPause is how long none is made after an error.
	lookupTimeout, lookupPause = 10 * time.Second, 10 * time.Second
)

// ownerOf returns the owner of an owner: from the informers, or from the API server.
func (w *Watcher) ownerOf(ctx context.Context, namespace string, ref *metav1.OwnerReference) (*metav1.OwnerReference, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil || len(content.IsPathSegmentName(ref.Name)) > 0 || len(ref.Name) > maxName || len(ref.Kind) > maxKind || len(ref.APIVersion) > maxName || len(ref.UID) > maxKind {
		return nil, nil // a reference to nothing
	}
	if ref.Kind == "Pod" && gv.Group == "" { // it has claims of its own
		o, _, _ := w.pods.GetStore().GetByKey(namespace + "/" + ref.Name)
		if p, ok := o.(*keptPod); ok && p.UID == ref.UID {
			return metav1.GetControllerOfNoCopy(p), nil
		}
		return nil, errGone // all pods are known
	}
	if inf := w.owners[ref.Kind+"."+gv.Group]; inf != nil {
		o, ok, _ := inf.GetStore().GetByKey(namespace + "/" + ref.Name) // a store in memory does not fail
		if m, isMeta := o.(metav1.Object); ok && isMeta && m.GetUID() == ref.UID {
			return metav1.GetControllerOfNoCopy(m), nil
		}
	}
	key := ownerKey{namespace, ref.APIVersion, ref.Kind, ref.Name, string(ref.UID)}
	now := time.Now()
	if seen, ok := w.above[key]; ok && now.Sub(seen.at) < keepSeen {
		return seen.above, seen.err
	}
	if now.Before(w.lookAgain) {
		return nil, errors.New("owners are looked up later")
	}
	above, err := w.lookUp(ctx, namespace, ref, gv)
	if err != nil && !errors.Is(err, errGone) {
		w.lookAgain = time.Now().Add(lookupPause)
		if ctx.Err() == nil {
			w.health.notFound(err)
		}
		return nil, err
	}
	if len(w.above) >= maxSeen {
		clear(w.above)
	}
	w.above[key] = seenOwner{above, err, now}
	return above, err
}

// lookUp requests the owner of an object from the API server. One of an unknown kind, or that this program
// may not read, counts as the topmost.
func (w *Watcher) lookUp(ctx context.Context, namespace string, ref *metav1.OwnerReference, gv schema.GroupVersion) (*metav1.OwnerReference, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	kind := schema.GroupKind{Group: gv.Group, Kind: ref.Kind}
	mapping, err := w.mapper.RESTMappingWithContext(ctx, kind, gv.Version)
	if meta.IsNoMatchError(err) && time.Since(w.mapped) > time.Minute {
		w.mapped = time.Now()
		w.mapper.ResetWithContext(ctx) // the kind may be new
		mapping, err = w.mapper.RESTMappingWithContext(ctx, kind, gv.Version)
	}
	if meta.IsNoMatchError(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("kind %s of the owner %s: %w", ref.Kind, ref.Name, err)
	}
	get := w.meta.Resource(mapping.Resource).Namespace(namespace).Get
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		get = w.meta.Resource(mapping.Resource).Get
	}
	m, err := get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && m.UID != ref.UID:
		return nil, errGone
	case err == nil:
		return metav1.GetControllerOf(m), nil
	case isRefused(err):
		return nil, nil
	}
	return nil, fmt.Errorf("owner %s/%s %s: %w", namespace, strings.ToLower(ref.Kind), ref.Name, err)
}

// isRefused reports whether the API server will not answer a request, however often it is made.
func isRefused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}
