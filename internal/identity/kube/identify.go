package kube

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/pod"
)

const (
	// jobLabel of a pod names its job, within the namespace.
	jobLabel = "mete.dev/job"
	// hashAnnotation of the mirror of a static pod is the UID by which the kubelet names its control group.
	hashAnnotation = "kubernetes.io/config.hash"
)

// maxOwners limits the length of a chain of owners, which could be a circle.
const maxOwners = 8

// An ownerLookup returns the owner of an object that owns others in a namespace, nil if it has none or does
// not exist. After an error the answer is not known.
type ownerLookup func(namespace string, ref *metav1.OwnerReference) (*metav1.OwnerReference, error)

// identify returns what the ledger keeps of a pod.
func identify(p *corev1.Pod, keepLabel func(string) bool, owner ownerLookup) (pod.Pod, error) {
	job, err := jobOf(p, owner)
	out := pod.Pod{
		UID: uidOf(p), Namespace: p.Namespace, Name: p.Name, Job: job, Node: p.Spec.NodeName,
		Labels: map[string]string{}, Containers: map[string]string{}, Created: p.CreationTimestamp.Time,
	}
	for _, k := range slices.Sorted(maps.Keys(p.Labels)) {
		if len(out.Labels) < batch.MaxLabels && keepLabel(k) {
			out.Labels[k] = p.Labels[k]
		}
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for i := range list {
			s := &list[i]
			ids := []string{s.ContainerID}
			for _, state := range []corev1.ContainerState{s.State, s.LastTerminationState} {
				if state.Terminated != nil {
					ids = append(ids, state.Terminated.ContainerID)
				}
			}
			for _, id := range ids {
				// As containerd://ID.
				if _, id, ok := strings.Cut(id, "://"); ok && id != "" {
					out.Containers[id] = s.Name
				}
			}
		}
	}
	return out, err
}

// uidOf returns the UID by which a pod's control group is named.
func uidOf(p *corev1.Pod) string {
	if hash := p.Annotations[hashAnnotation]; hash != "" {
		return pod.Key(hash)
	}
	return string(p.UID)
}

// jobOf returns the job of a pod: what its label says, else the topmost of its owners, else itself. Jobs
// begin with the namespace, so that no pod can be of a job of another one.
func jobOf(p *corev1.Pod, owner ownerLookup) (string, error) {
	if name := p.Labels[jobLabel]; name != "" {
		return p.Namespace + "/" + name, nil
	}
	kind, name := "pod", p.Name
	ref := metav1.GetControllerOfNoCopy(p)
	var err error
	// A static pod belongs to its node, which says nothing of its purpose.
	for n := 0; ref != nil && ref.Kind != "Node" && n < maxOwners; n++ {
		kind, name = strings.ToLower(ref.Kind), ref.Name
		if ref, err = owner(p.Namespace, ref); err != nil {
			break
		}
	}
	return p.Namespace + "/" + kind + "/" + name, err
}
