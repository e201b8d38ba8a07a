package kube

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/x/sleep"
	"mete.dev/mete/internal/x/text"
)

// informer returns an informer that keeps what trim leaves of objects.
func (w *Watcher) informer(lw cache.ListerWatcherWithContext, of runtime.Object, trim cache.TransformFunc) cache.SharedIndexInformer {
	observed := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			w.health.lists(ctx, of)
			list, err := reach(ctx, w.health.listed, of, func() (runtime.Object, error) { return lw.ListWithContext(ctx, o) })
			if part, notList := meta.ListAccessor(list); err != nil || notList != nil || part.GetContinue() == "" {
				w.health.listed(ctx, of, err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil && *o.SendInitialEvents {
				return w.stream(ctx, lw, of, o)
			}
			events, err := reach(ctx, w.health.watched, of, func() (watch.Interface, error) { return lw.WatchWithContext(ctx, o) })
			w.health.watched(ctx, of, err)
			return events, err
		},
	}
	inf := cache.NewSharedIndexInformer(observed, of, 0, cache.Indexers{})
	_ = inf.SetTransform(trim) // fails only for an informer that runs
	// It is not called for each error, and health knows them. The default writes to the log.
	_ = inf.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {})
	return inf
}

// retryEvery is the pause before a request is repeated that got no answer.
const retryEvery = 3 * time.Second

// reach repeats a request until the API server answers it, and reports errors until then. An informer itself would pause
// for up to a minute, in which new pods have no names although the API server is back.
func reach[T any](ctx context.Context, report func(context.Context, runtime.Object, error), of runtime.Object, request func() (T, error)) (T, error) {
	for {
		answer, err := request()
		var status apierrors.APIStatus
		if err == nil || errors.As(err, &status) || sleep.For(ctx, retryEvery) != nil {
			return answer, err
		}
		report(ctx, of, err)
	}
}

// stream begins a watch that sends all objects first: a list.
func (w *Watcher) stream(ctx context.Context, lw cache.ListerWatcherWithContext, of runtime.Object, o metav1.ListOptions) (watch.Interface, error) {
	w.health.lists(ctx, of)
	events, err := reach(ctx, w.health.listed, of, func() (watch.Interface, error) { return lw.WatchWithContext(ctx, o) })
	switch {
	case apierrors.IsInvalid(err):
		return nil, err // an API server before Kubernetes 1.34: a list follows
	case err != nil:
		w.health.listed(ctx, of, err)
		return nil, err
	}
	stream := &streamedList{Interface: events, events: make(chan watch.Event), stopped: make(chan struct{})}
	go stream.pass(func() { w.health.listed(ctx, of, nil) })
	return stream, nil
}

// A streamedList is a watch that sends all objects first. It passes all events.
type streamedList struct {
	watch.Interface
	events  chan watch.Event
	stop    sync.Once
	stopped chan struct{}
}

func (s *streamedList) ResultChan() <-chan watch.Event { return s.events }

func (s *streamedList) Stop() {
	s.stop.Do(func() { close(s.stopped) })
	s.Interface.Stop()
}

// pass passes events until the watch ends or is stopped, and calls listed when all objects were sent.
func (s *streamedList) pass(listed func()) {
	defer close(s.events)
	for e := range s.Interface.ResultChan() {
		if e.Type == watch.Bookmark {
			if m, err := meta.Accessor(e.Object); err == nil && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
				listed()
			}
		}
		select {
		case s.events <- e:
		case <-s.stopped:
			return
		}
	}
}

// trimPod drops what is not needed, since all pods of the cluster are held in memory.
func (w *Watcher) trimPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: w.trimLabels(p.Labels),
		OwnerReferences: controllerOf(p), CreationTimestamp: p.CreationTimestamp,
	}}
	if isMirror(p) {
		hash := p.Annotations[hashAnnotation]
		out.Annotations = map[string]string{hashAnnotation: hash, mirrorAnnotation: hash}
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
	kept := &keptPod{Pod: out, reserved: reservationsOf(p), claims: claimsOf(p), scheduled: scheduledAt(p), failure: failureOf(p)}
	kept.finished, kept.guessed = finishedAt(p)
	return kept, nil
}

// trimLabels drops the labels that are neither kept nor name a job.
func (w *Watcher) trimLabels(labels map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range labels {
		if k == batch.LabelJob || w.keepsLabel(k) {
			out[k] = v
		}
	}
	return out
}

func trimOwner(o any) (any, error) {
	if p, ok := o.(*metav1.PartialObjectMetadata); ok {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, OwnerReferences: controllerOf(p),
		}}, nil
	}
	return o, nil
}

// controllerOf returns the reference to the controller of an object, if it has one that can exist.
func controllerOf(o metav1.Object) []metav1.OwnerReference {
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil {
		return nil
	}
	// The API server checks no length.
	out := *ref
	out.Name, out.Kind, out.APIVersion, out.UID = text.Cut(ref.Name, maxName+1), text.Cut(ref.Kind, maxKind+1), text.Cut(ref.APIVersion, maxName+1), types.UID(text.Cut(string(ref.UID), maxKind+1))
	return []metav1.OwnerReference{out}
}
