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
	scheduled, finished time.Time
	guessed             bool // finished is only not later than the end
	failure             podFailure
}

// requestOptions are how the scheduler and the kubelet sum: a container that is being resized reserves the larger one of
// what it has and what it is to have.
var requestOptions = helpers.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}

// maxContainers limits the containers of a pod that have a reservation of their own.
const maxContainers = 100

// reservationsOf returns what a pod reserves: of each container that runs beside others, and what it reserves beyond these.
// Init containers run before the others, so they count as far as they reserve more than those together.
func reservationsOf(p *corev1.Pod) (list []pod.Reservation) {
	rest := levelsOf(helpers.PodRequests(p, requestOptions), nil)
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
		rest.CPU, rest.Memory, rest.Storage, rest.GPU = rest.CPU-l.CPU, rest.Memory-l.Memory, rest.Storage-l.Storage, rest.GPU-l.GPU
		// A limit of the pod limits each of its containers.
		limit := func(v, rest *int64, limited bool) {
			if *v == pod.NoLimit && limited {
				*v = 0
			}
			*rest -= max(*v, 0)
		}
		limit(&l.CPULimit, &podLimits.CPULimit, limitedCPU)
		limit(&l.MemoryLimit, &podLimits.MemoryLimit, limitedMemory)
		list = append(list, pod.Reservation{Container: c.Name, Levels: l.Cap()})
	}
	if overhead := levelsOf(p.Spec.Overhead, nil); limitedCPU || overhead.CPU > 0 && podLimits.CPULimit > 0 {
		rest.CPULimit = max(podLimits.CPULimit, 0)
	}
	if overhead := levelsOf(p.Spec.Overhead, nil); limitedMemory || overhead.Memory > 0 && podLimits.MemoryLimit > 0 {
		rest.MemoryLimit = max(podLimits.MemoryLimit, 0)
	}
	if rest = rest.Cap(); rest != (pod.Levels{CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}) {
		list = append(list, pod.Reservation{Levels: rest})
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

// most is more than any machine has, and its thousandths fit an int64.
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

// A putMark is how far the rows of what pods reserve are put.
type putMark struct {
	until time.Time // those of earlier minutes
	after int64     // of pods up to this number; 0 is none
	done  bool      // of all pods
}

const (
	// putLag is how long after a minute its rows are put, so that most of what happened in it is known.
	putLag = 5 * time.Second
	// putTime limits the transactions between those of pods that change.
	putTime = 2 * time.Second
)

// putReserved puts what pods reserved up to the last whole minute, of some pods at a time.
func (w *Watcher) putReserved(ctx context.Context) error {
	if until := time.Now().Add(-putLag).Truncate(time.Minute); w.put.after == 0 && (!w.put.done || !until.Equal(w.put.until)) {
		w.put.until, w.put.done = until, true
	} else if w.put.after == 0 {
		return nil
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
