package kube

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"

	"mete.dev/mete/internal/model/pod"
)

// A keptPod is what is kept of a pod of the API server.
type keptPod struct {
	*corev1.Pod         // without its specification
	reserved            []pod.Reservation
	claims              []string // that it mounts
	scheduled, finished time.Time
	guessed             bool // the time of the end is not known; it was at finished or later
	failure             podFailure
}

// requestOptions are how the scheduler and the kubelet sum: a container that is being resized reserves the larger one of
// what it has and what it is to have.
var requestOptions = helpers.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}

// maxContainers limits the containers of a pod that have a reservation of their own.
const maxContainers = 100

// reservationsOf returns a reservation for each container that runs for the pod's whole life, sidecars included, and then
// one without a name for the rest: overhead, resources of the pod as a whole, and what an init container requests beyond
// the sum of the others, since it runs before them.
//
// Limits of containers may sum to more than that of their pod, as in its specification.
func reservationsOf(p *corev1.Pod) (list []pod.Reservation) {
	left := levelsOf(helpers.PodRequests(p, requestOptions), nil)
	limits := helpers.PodLimits(p, requestOptions)
	containers := besides(p)
	containers = containers[:min(len(containers), maxContainers)] // the others are in the pod's own part
	hasLimit := func(name corev1.ResourceName) bool {             // of its own
		if p.Spec.Resources == nil {
			return false
		}
		_, ok := p.Spec.Resources.Limits[name]
		return ok
	}
	podLimits := levelsOf(nil, limits)
	limitedCPU, limitedMemory := hasLimit(corev1.ResourceCPU), hasLimit(corev1.ResourceMemory)
	for _, c := range containers {
		alone := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{*c}}, Status: p.Status}
		options := requestOptions
		options.InPlacePodLevelResourcesVerticalScalingEnabled = false // the status is that of all containers
		l := levelsOf(helpers.PodRequests(alone, options), helpers.PodLimits(alone, options))
		left.CPU, left.Memory, left.Storage, left.GPU = left.CPU-l.CPU, left.Memory-l.Memory, left.Storage-l.Storage, left.GPU-l.GPU
		// A limit of the pod limits each of its containers.
		limit := func(v, ofPod *int64, limited bool) {
			if *v == pod.NoLimit && limited {
				*v = 0
			}
			*ofPod -= max(*v, 0)
		}
		limit(&l.CPULimit, &podLimits.CPULimit, limitedCPU)
		limit(&l.MemoryLimit, &podLimits.MemoryLimit, limitedMemory)
		list = append(list, pod.Reservation{Container: c.Name, Levels: l.Cap()})
	}
	if overhead := levelsOf(p.Spec.Overhead, nil); limitedCPU || overhead.CPU > 0 && podLimits.CPULimit > 0 {
		left.CPULimit = max(podLimits.CPULimit, 0)
	}
	if overhead := levelsOf(p.Spec.Overhead, nil); limitedMemory || overhead.Memory > 0 && podLimits.MemoryLimit > 0 {
		left.MemoryLimit = max(podLimits.MemoryLimit, 0)
	}
	if left = left.Cap(); left != (pod.Levels{CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}) {
		list = append(list, pod.Reservation{Levels: left})
	}
	return list
}

// besides returns the containers of a pod that run beside each other: all but those that only initialize it.
func besides(p *corev1.Pod) (list []*corev1.Container) {
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			list = append(list, c)
		}
	}
	for i := range p.Spec.Containers {
		list = append(list, &p.Spec.Containers[i])
	}
	return list
}

// levelsOf returns requests and limits as levels.
func levelsOf(requests, limits corev1.ResourceList) (l pod.Levels) {
	l.CPULimit, l.MemoryLimit = pod.NoLimit, pod.NoLimit
	for name, q := range requests {
		switch {
		case name == corev1.ResourceCPU:
			l.CPU = thousandths(q)
		case name == corev1.ResourceMemory:
			l.Memory = q.Value()
		case name == corev1.ResourceEphemeralStorage:
			l.Storage = q.Value()
		case isGPU(name):
			l.GPU = min(l.GPU+thousandths(q), most)
		}
	}
	if q, ok := limits[corev1.ResourceCPU]; ok {
		l.CPULimit = thousandths(q)
	}
	if q, ok := limits[corev1.ResourceMemory]; ok {
		l.MemoryLimit = q.Value()
	}
	return l
}

// most is a cap on thousandths that no machine reaches.
const most = 1 << 50

// thousandths returns a quantity in thousandths; one that no machine has may be less.
func thousandths(q resource.Quantity) int64 {
	if q.CmpInt64(most/1000) > 0 {
		return most
	}
	return q.MilliValue()
}

// isGPU reports whether an extended resource is an accelerator, or a part of one: those of NVIDIA's, AMD's and Intel's device
// plugins.
func isGPU(name corev1.ResourceName) bool {
	domain, of, _ := strings.Cut(string(name), "/")
	switch domain {
	case "nvidia.com":
		return of == "gpu" || of == "gpu.shared" || strings.HasPrefix(of, "mig-")
	case "amd.com":
		return of == "gpu"
	case "gpu.intel.com":
		return of == "i915" || of == "xe"
	}
	return false
}

// scheduledAt returns when a pod was assigned to its node; zero if it was not.
func scheduledAt(p *corev1.Pod) time.Time {
	if p.Spec.NodeName == "" {
		return time.Time{}
	}
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Time
		}
	}
	return p.CreationTimestamp.Time // it was created with its node
}

// finishedAt returns when all containers of a pod had ended; zero if they have not. guessed says that their status
// does not tell: it ended then or later.
func finishedAt(p *corev1.Pod) (at time.Time, guessed bool) {
	if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
		return time.Time{}, false
	}
	ended, side := lastEnd(p.Status.ContainerStatuses), lastEnd(p.Status.InitContainerStatuses)
	if at = ended; side.After(at) {
		at = side // of a sidecar
	}
	if !ended.IsZero() {
		return at, false
	}
	// Its node refused it, or is lost, or its containers never started.
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	if at.IsZero() {
		at = scheduledAt(p)
	}
	return at, true
}

// lastEnd returns when the last one of some containers ended; zero if that is not known of all.
func lastEnd(list []corev1.ContainerStatus) (at time.Time) {
	for i := range list {
		e := list[i].State.Terminated
		if e == nil || e.FinishedAt.Unix() <= 0 {
			return time.Time{}
		}
		if e.FinishedAt.After(at) {
			at = e.FinishedAt.Time
		}
	}
	return at
}

// A putMark is the progress of writing what pods reserved, in passes. A pass writes all minutes before until, some pods at a
// time.
type putMark struct {
	until time.Time
	after int64 // number of the last pod that the pass wrote; 0: no pass is running
	done  bool  // the pass wrote all minutes of all pods so far
}

const (
	// putLag is how long after a minute its rows are put, so that most of what happened in it is known.
	putLag = 5 * time.Second
	// putTime is how long one call writes before it returns, so that changes of pods are not kept waiting.
	putTime = 2 * time.Second
)

// putReserved continues a pass, or begins one where a minute has ended since the last, or the last failed.
func (w *Watcher) putReserved(ctx context.Context) error {
	if w.put.after == 0 {
		until := time.Now().Add(-putLag).Truncate(time.Minute)
		if w.put.done && until.Equal(w.put.until) {
			return nil
		}
		w.put.until, w.put.done = until, true
	}
	for began := time.Now(); time.Since(began) < putTime; {
		last, done, err := w.ledger.PutReserved(ctx, w.lease, w.put.until, w.seen, w.put.after)
		if err != nil {
			w.put.done = false
			return err
		}
		w.put.after, w.put.done = last, w.put.done && done
		if last == 0 {
			break
		}
	}
	return nil
}
