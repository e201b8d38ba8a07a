package kube

import (
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/x/text"
)

const (
	// hashAnnotation of the mirror of a static pod is the UID by which the kubelet names its control group, and
	// mirrorAnnotation the same.
	hashAnnotation, mirrorAnnotation = "kubernetes.io/config.hash", "kubernetes.io/config.mirror"
)

// maxName and maxKind limit the name and kind of an owner, which pods state and Kubernetes does not check.
const maxName, maxKind = 253, 63

// errGone says that an owner does not exist.
var errGone = errors.New("the owner does not exist")

// maxOwners limits the length of a chain of owners, which could be a circle.
const maxOwners = 8

// An ownerLookup returns the owner of an object that owns others in a namespace, nil if it has none; errGone
// if the object does not exist. After another error the answer is not known.
type ownerLookup func(namespace string, ref *metav1.OwnerReference) (*metav1.OwnerReference, error)

// identify returns what the ledger keeps of a pod.
func identify(p *keptPod, keepLabel func(string) bool, owner ownerLookup) (pod.Pod, error) {
	job, err := jobOf(p.Pod, "pod", owner)
	unknown := err != nil // the job that it had stays
	if errors.Is(err, errGone) {
		err = nil
	}
	out := pod.Pod{
		OwnerGone: unknown,
		UID:       uidOf(p.Pod), Namespace: p.Namespace, Name: p.Name, Job: job, Node: p.Spec.NodeName,
		Containers: map[string]string{}, Created: p.CreationTimestamp.Time, Claims: p.claims,
		Reserved: p.reserved, Scheduled: p.scheduled, Finished: p.finished, Guessed: p.guessed,
	}
	if ref := jobOfPod(p.Pod); ref != nil {
		out.RunUID, out.RunName = text.Cut(string(ref.UID), maxKind), text.Cut(ref.Name, maxName)
	}
	out.Labels = keptLabels(p.Labels, keepLabel, batch.MaxLabels)
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
				if _, id, ok := strings.Cut(id, "://"); ok && id != "" && len(id) <= maxName {
					out.Containers[id] = s.Name
				}
			}
		}
	}
	return out, err
}

// keptLabels returns the labels that the ledger keeps, of many the first ones.
func keptLabels(labels map[string]string, keep func(string) bool, most int) map[string]string {
	out := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if len(out) < most && keep(k) {
			out[k] = labels[k]
		}
	}
	return out
}

// uidOf returns the UID by which a pod's control group is named.
func uidOf(p *corev1.Pod) string {
	if isStatic(p) {
		return pod.Key(p.Annotations[hashAnnotation])
	}
	return string(p.UID)
}

// isMirror reports whether a pod looks like the mirror of a static one. A user that creates pods can create such a pod.
func isMirror(p *corev1.Pod) bool {
	hash, ref := p.Annotations[hashAnnotation], metav1.GetControllerOfNoCopy(p)
	raw, err := hex.DecodeString(hash)
	return err == nil && len(raw) == 16 && hash == p.Annotations[mirrorAnnotation] && ref != nil && ref.APIVersion == "v1" && ref.Kind == "Node" && ref.Name == p.Spec.NodeName
}

// isStatic reports whether a pod is the mirror of a static one: the kubelet has written in its status that containers
// run. The ledger gives no pod the UID of another one.
func isStatic(p *corev1.Pod) bool {
	has := func(s corev1.ContainerStatus) bool { return s.ContainerID != "" }
	return isMirror(p) && (slices.ContainsFunc(p.Status.InitContainerStatuses, has) || slices.ContainsFunc(p.Status.ContainerStatuses, has))
}

// jobOf returns the job of a pod, or of another object of a kind: what its label says, else the topmost of its owners, else
// itself. Jobs begin with the namespace, so that no pod can be of a job of another one.
func jobOf(o metav1.Object, kind string, owner ownerLookup) (string, error) {
	namespace, name := o.GetNamespace(), o.GetName()
	if label := o.GetLabels()[batch.LabelJob]; label != "" {
		return namespace + "/" + label, nil
	}
	ref := metav1.GetControllerOfNoCopy(o)
	var err error
	// A static pod belongs to its node, which says nothing of its purpose.
	for n := 0; ref != nil && ref.Kind != "Node" && n < maxOwners; n++ {
		kind, name = text.Cut(strings.ToLower(ref.Kind), maxKind), text.Cut(ref.Name, maxName)
		if ref, err = owner(namespace, ref); err != nil {
			break
		}
	}
	return namespace + "/" + kind + "/" + name, err
}
