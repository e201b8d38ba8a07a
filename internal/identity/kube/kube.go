// Package kube names the pods of a Kubernetes cluster in a ledger: it watches the cluster's API server. It
// reads pods, and of their owners the metadata only.
package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
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
	// Labels are the keys of the pods' labels to keep. One that ends in * stands for all that begin so.
	Labels []string
}

// Default returns the configuration without a cluster.
func Default() Config {
	return Config{Labels: []string{"app.kubernetes.io/name", "app.kubernetes.io/component", "app.kubernetes.io/part-of"}}
}

// A Ledger keeps pods; see [mete.dev/mete/internal/store/ledger/book.Booker].
type Ledger interface {
	BookPods(ctx context.Context, cluster string, pods []pod.Pod) error
	EndPods(ctx context.Context, cluster string, uids []string, at time.Time) error
	LivePods(ctx context.Context, cluster string) (uids []string, err error)
}

// The owners that are watched: most pods belong to one of them. Others are looked up once.
var (
	replicaSets = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}
	jobs        = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
)

// A Watcher watches an API server. Several of one cluster do no harm: they book the same.
type Watcher struct {
	cfg    Config
	ledger Ledger
	log    *slog.Logger

	pods   cache.SharedIndexInformer
	owners map[string]cache.SharedIndexInformer // by kind and group
	core   rest.Interface
	meta   metadata.Interface
	mapper meta.RESTMapper

	health health

	mu      sync.Mutex
	changed map[string]*corev1.Pod // by the UID of the API server
	deleted map[string]time.Time
	seen    map[string]*metav1.OwnerReference // of other owners, by UID
	booked  map[string]pod.Pod                // by the UID of the API server
}

// New returns a watcher. It does not connect.
func New(cfg Config, l Ledger, log *slog.Logger) (*Watcher, error) {
	rc, err := restConfig(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	klog.SetSlogLogger(log)
	rc.UserAgent, rc.QPS, rc.Burst = "mete-server", 50, 200
	w := &Watcher{cfg: cfg, ledger: l, log: log,
		changed: map[string]*corev1.Pod{}, deleted: map[string]time.Time{}, seen: map[string]*metav1.OwnerReference{}, booked: map[string]pod.Pod{}}
	w.health = health{log: log, server: rc.Host, now: time.Now}
	if w.meta, err = metadata.NewForConfig(rc); err != nil {
		return nil, invalid(cfg, err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(rc)
	if err != nil {
		return nil, invalid(cfg, err)
	}
	w.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	binary := rest.CopyConfig(rc)
	binary.ContentType, binary.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	core, err := coreclient.NewForConfig(binary)
	if err != nil {
		return nil, invalid(cfg, err)
	}
	w.core = core.RESTClient()
	w.pods = w.informer(cache.NewListWatchFromClient(w.core, "pods", metav1.NamespaceAll, fields.Everything()), &corev1.Pod{}, trimPod)
	_, err = w.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.change(o) },
		UpdateFunc: func(_, o any) { w.change(o) },
		DeleteFunc: func(o any) { w.delete(o) },
	})
	if err != nil {
		return nil, err
	}
	w.owners = map[string]cache.SharedIndexInformer{}
	for kind, of := range map[string]schema.GroupVersionResource{"ReplicaSet.apps": replicaSets, "Job.batch": jobs} {
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
	return w, nil
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

// informer returns an informer that keeps what trim leaves of objects.
func (w *Watcher) informer(lw cache.ListerWatcherWithContext, of runtime.Object, trim cache.TransformFunc) cache.SharedIndexInformer {
	observed := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := lw.ListWithContext(ctx, o)
			w.health.answered(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := lw.WatchWithContext(ctx, o)
			w.health.answered(ctx, err)
			return events, err
		},
	}
	inf := cache.NewSharedIndexInformer(observed, of, 0, cache.Indexers{})
	_ = inf.SetTransform(trim) // fails only for an informer that runs
	// It is not called for each error, and health knows them. The default writes to the log.
	_ = inf.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {})
	return inf
}

// trimPod drops what is not needed, since all pods of the cluster are held in memory.
func trimPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: p.Labels,
		OwnerReferences: p.OwnerReferences, CreationTimestamp: p.CreationTimestamp,
	}}
	if hash := p.Annotations[hashAnnotation]; hash != "" {
		out.Annotations = map[string]string{hashAnnotation: hash}
	}
	out.Spec.NodeName = p.Spec.NodeName
	trimmed := func(list []corev1.ContainerStatus) (out []corev1.ContainerStatus) {
		for i := range list {
			s := &list[i]
			t := corev1.ContainerStatus{Name: s.Name, ContainerID: s.ContainerID}
			if e := s.State.Terminated; e != nil {
				t.State.Terminated = &corev1.ContainerStateTerminated{ContainerID: e.ContainerID}
			}
			if e := s.LastTerminationState.Terminated; e != nil {
				t.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ContainerID: e.ContainerID}
			}
			out = append(out, t)
		}
		return out
	}
	out.Status.InitContainerStatuses = trimmed(p.Status.InitContainerStatuses)
	out.Status.ContainerStatuses = trimmed(p.Status.ContainerStatuses)
	out.Status.EphemeralContainerStatuses = trimmed(p.Status.EphemeralContainerStatuses)
	return out, nil
}

func trimOwner(o any) (any, error) {
	if p, ok := o.(*metav1.PartialObjectMetadata); ok {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, OwnerReferences: p.OwnerReferences,
		}}, nil
	}
	return o, nil
}

func (w *Watcher) change(o any) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed[string(p.UID)] = p
}

// delete takes the last state of a deleted pod, which may name containers that no earlier one did.
func (w *Watcher) delete(o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed[string(p.UID)] = p
	w.deleted[string(p.UID)] = time.Now()
}

// flushEvery is how often changes are booked: one transaction for those of this time.
const flushEvery = 500 * time.Millisecond

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, inf := range append(slices.Collect(maps.Values(w.owners)), w.pods) {
		running.Go(func() { inf.RunWithContext(ctx) })
	}
	for _, inf := range append(slices.Collect(maps.Values(w.owners)), w.pods) {
		if !cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
			return nil
		}
	}
	running.Go(func() { w.probe(ctx) })
	w.health.synced(len(w.pods.GetStore().ListKeys()))
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	ended := false
	for {
		err := w.flush(ctx)
		if err == nil && !ended {
			err = w.endOthers(ctx)
			ended = err == nil
		}
		if err != nil && ctx.Err() == nil {
			w.health.notBooked(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// probeEvery is the interval at which requests find out whether the API server answers, and probeTimeout their limit.
const probeEvery, probeTimeout = 15 * time.Second, 10 * time.Second

// probe notices an API server that is away: client-go reports no error for a watch whose connection breaks.
func (w *Watcher) probe(ctx context.Context) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		in, cancel := context.WithTimeoutCause(ctx, probeTimeout, fmt.Errorf("no answer within %v", probeTimeout))
		err := w.core.Get().Resource("pods").Param("limit", "1").Do(in).Error()
		if err != nil && in.Err() != nil {
			err = context.Cause(in)
		}
		cancel()
		w.health.answered(ctx, err)
	}
}

// flush books the pods that changed. After an error they are booked later.
func (w *Watcher) flush(ctx context.Context) error {
	w.mu.Lock()
	changed, deleted := w.changed, w.deleted
	w.changed, w.deleted = map[string]*corev1.Pod{}, map[string]time.Time{}
	w.mu.Unlock()
	if len(changed) == 0 {
		return nil
	}
	var pods []pod.Pod
	var errs []error
	again := map[string]*corev1.Pod{}
	next := map[string]pod.Pod{}
	for uid, p := range changed {
		id, err := identify(p, w.keepsLabel, func(ns string, ref *metav1.OwnerReference) (*metav1.OwnerReference, error) {
			return w.ownerOf(ctx, ns, ref)
		})
		if err != nil {
			errs = append(errs, err)
			again[uid] = p
		}
		if old, ok := w.booked[uid]; !ok || !reflect.DeepEqual(old, id) {
			pods, next[uid] = append(pods, id), id
		}
	}
	slices.SortFunc(pods, func(a, b pod.Pod) int { return cmp.Compare(a.UID, b.UID) })
	err := w.ledger.BookPods(ctx, w.cfg.Cluster, pods)
	if err == nil {
		maps.Copy(w.booked, next)
		w.health.booked(len(pods))
		err = w.end(ctx, changed, deleted)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		again = changed
	}
	for uid, p := range again {
		if _, newer := w.changed[uid]; !newer {
			w.changed[uid] = p
		}
		if at, ok := deleted[uid]; ok {
			w.deleted[uid] = at
		}
	}
	return errors.Join(append(errs, err)...)
}

// end records the end of deleted pods.
func (w *Watcher) end(ctx context.Context, changed map[string]*corev1.Pod, deleted map[string]time.Time) error {
	var uids []string
	for uid := range deleted {
		uids = append(uids, uidOf(changed[uid]))
	}
	if len(uids) == 0 {
		return nil
	}
	slices.Sort(uids)
	if err := w.ledger.EndPods(ctx, w.cfg.Cluster, uids, time.Now()); err != nil {
		return err
	}
	for uid := range deleted {
		delete(w.booked, uid)
	}
	return nil
}

// endOthers ends the pods that were deleted while no watcher ran.
func (w *Watcher) endOthers(ctx context.Context) error {
	live, err := w.ledger.LivePods(ctx, w.cfg.Cluster)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, o := range w.pods.GetStore().List() {
		if p, ok := o.(*corev1.Pod); ok {
			there[uidOf(p)] = true
		}
	}
	live = slices.DeleteFunc(live, func(uid string) bool { return there[uid] })
	return w.ledger.EndPods(ctx, w.cfg.Cluster, live, time.Now())
}

func (w *Watcher) keepsLabel(key string) bool {
	return slices.ContainsFunc(w.cfg.Labels, func(k string) bool {
		prefix, open := strings.CutSuffix(k, "*")
		return key == k || open && strings.HasPrefix(key, prefix)
	})
}

// maxSeen limits the owners that are remembered.
const maxSeen = 10_000

// ownerOf returns the owner of an owner: from the informers, or from the API server.
func (w *Watcher) ownerOf(ctx context.Context, namespace string, ref *metav1.OwnerReference) (*metav1.OwnerReference, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, nil // a reference to nothing
	}
	if inf := w.owners[ref.Kind+"."+gv.Group]; inf != nil {
		o, ok, _ := inf.GetStore().GetByKey(namespace + "/" + ref.Name) // a store in memory does not fail
		if m, isMeta := o.(*metav1.PartialObjectMetadata); ok && isMeta && m.UID == ref.UID {
			return metav1.GetControllerOfNoCopy(m), nil
		}
	}
	if above, ok := w.seen[string(ref.UID)]; ok {
		return above, nil
	}
	above, err := w.lookUp(ctx, namespace, ref, gv)
	if err != nil {
		return nil, err
	}
	if len(w.seen) >= maxSeen {
		clear(w.seen)
	}
	w.seen[string(ref.UID)] = above
	return above, nil
}

// lookUp asks the API server for the owner of an object. One that is gone, of an unknown kind, or that
// this program may not read counts as the topmost.
func (w *Watcher) lookUp(ctx context.Context, namespace string, ref *metav1.OwnerReference, gv schema.GroupVersion) (*metav1.OwnerReference, error) {
	mapping, err := w.mapper.RESTMapping(schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, gv.Version)
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
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), err == nil && m.UID != ref.UID:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("owner %s/%s %s: %w", namespace, strings.ToLower(ref.Kind), ref.Name, err)
	}
	return metav1.GetControllerOf(m), nil
}
