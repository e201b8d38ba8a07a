package kube

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"mete.dev/mete/internal/model/batch"
)

func owner(kind, name string, controls bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: kind, Name: name, Controller: &controls}
}

// TestJob checks the job of pods by their labels and owners.
func TestJob(t *testing.T) {
	away := errors.New("away")
	above := map[string]string{
		"ReplicaSet web-5f": "Deployment web", "Job report-29": "CronJob report", "Deployment es": "Elasticsearch logs",
		"ReplicaSet es-1": "Deployment es", "Circle a": "Circle b", "Circle b": "Circle a",
	}
	lookup := func(namespace string, ref *metav1.OwnerReference) (*metav1.OwnerReference, error) {
		if namespace != "shop" {
			return nil, fmt.Errorf("namespace %q", namespace)
		}
		if ref.Kind == "Away" {
			return nil, away
		}
		kind, name, ok := strings.Cut(above[ref.Kind+" "+ref.Name], " ")
		if !ok {
			return nil, nil
		}
		o := owner(kind, name, true)
		return &o, nil
	}
	for _, c := range []struct {
		label  string
		owners []metav1.OwnerReference
		want   string
		err    error
	}{
		{"", nil, "shop/pod/p", nil},
		{"nightly", []metav1.OwnerReference{owner("ReplicaSet", "web-5f", true)}, "shop/nightly", nil},
		{"", []metav1.OwnerReference{owner("ReplicaSet", "web-5f", true)}, "shop/deployment/web", nil},
		{"", []metav1.OwnerReference{owner("ReplicaSet", "alone", true)}, "shop/replicaset/alone", nil},
		{"", []metav1.OwnerReference{owner("Job", "report-29", true)}, "shop/cronjob/report", nil},
		{"", []metav1.OwnerReference{owner("StatefulSet", "db", true)}, "shop/statefulset/db", nil},
		{"", []metav1.OwnerReference{owner("ReplicaSet", "es-1", true)}, "shop/elasticsearch/logs", nil},
		{"", []metav1.OwnerReference{owner("Node", "n1", true)}, "shop/pod/p", nil},
		{"", []metav1.OwnerReference{owner("ConfigMap", "x", false)}, "shop/pod/p", nil}, // it does not control the pod
		{"", []metav1.OwnerReference{owner("Circle", "a", true)}, "shop/circle/b", nil},
		{"", []metav1.OwnerReference{owner("Away", "a", true)}, "shop/away/a", away},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", OwnerReferences: c.owners}}
		if c.label != "" {
			p.Labels = map[string]string{"mete.dev/job": c.label}
		}
		got, err := identify(&keptPod{Pod: p}, func(string) bool { return false }, lookup)
		if got.Job != c.want || !errors.Is(err, c.err) || got.OwnerGone != (c.err != nil) {
			t.Errorf("label %q, owners %v: %q, %v; want %q, %v", c.label, c.owners, got.Job, err, c.want, c.err)
		}
	}
}

// TestContainers checks that all containers that a status names are found, also earlier ones, in a pod as
// the informer keeps it.
func TestContainers(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", UID: "u",
		Labels: map[string]string{"team": "x", "example.org/tier": "y", "pod-template-hash": "z"}, Annotations: map[string]string{"big": "text"}}}
	p.Spec.NodeName = "n1"
	p.Spec.Containers = []corev1.Container{{Name: "app"}}
	ended := func(id string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: id, Reason: "OOMKilled"}}
	}
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", ContainerID: "containerd://i1", State: ended("containerd://i1")}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "app", ContainerID: "containerd://a2", LastTerminationState: ended("containerd://a1")},
		{Name: "crashed", State: ended("cri-o://c1")},
		{Name: "waits"}, {Name: "odd", ContainerID: "none"}, {Name: "empty", ContainerID: "containerd://"},
		{Name: "long", ContainerID: "containerd://" + strings.Repeat("l", 253)}, {Name: "too long", ContainerID: "containerd://" + strings.Repeat("t", 254)},
	}
	p.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debug", ContainerID: "docker://d1"}}
	w := &Watcher{cfg: Config{Labels: []string{"team", "example.org/*"}}}
	kept, err := w.trimPod(p)
	if err != nil {
		t.Fatal(err)
	}
	got, err := identify(kept.(*keptPod), w.keepsLabel, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"i1": "init", "a2": "app", "a1": "app", "c1": "crashed", "d1": "debug", strings.Repeat("l", 253): "long"}; !maps.Equal(got.Containers, want) {
		t.Errorf("containers %v, want %v", got.Containers, want)
	}
	if want := map[string]string{"team": "x", "example.org/tier": "y"}; !maps.Equal(got.Labels, want) || got.UID != "u" || got.Node != "n1" {
		t.Errorf("%+v, want labels %v", got, want)
	}
	if a := kept.(*keptPod); len(a.Annotations)+len(a.Spec.Containers) > 0 {
		t.Errorf("the informer keeps %+v", a)
	}
	// The control group of a static pod has the hash of its manifest. Others cannot take a UID by an annotation.
	const hash, node = "0123456789abcdef0123456789abcdef", "Node"
	statuses := p.Status
	for _, c := range []struct{ hash, mirror, owner, want string }{
		{hash, hash, node, "01234567-89ab-cdef-0123-456789abcdef"}, {hash, hash, "Node n2", "u"}, {hash, hash, "Node without status", "u"},
		{hash, hash, "ReplicaSet", "u"}, {hash, "", node, "u"}, {hash, hash, "", "u"},
		{hash[1:], hash[1:], node, "u"}, {"01234567-89ab-cdef-0123-456789abcdef", "01234567-89ab-cdef-0123-456789abcdef", node, "u"},
	} {
		p.Annotations, p.OwnerReferences = map[string]string{"kubernetes.io/config.hash": c.hash, "kubernetes.io/config.mirror": c.mirror}, nil
		if c.owner != "" {
			p.OwnerReferences = []metav1.OwnerReference{owner(c.owner, "n1", true)}
		}
		p.Status = statuses
		switch c.owner {
		case "Node n2":
			p.OwnerReferences[0] = owner("Node", "n2", true)
		case "Node without status":
			p.OwnerReferences[0], p.Status = owner("Node", "n1", true), corev1.PodStatus{}
		}
		kept, _ = w.trimPod(p)
		got, err := identify(kept.(*keptPod), w.keepsLabel, func(string, *metav1.OwnerReference) (*metav1.OwnerReference, error) { return nil, errGone })
		if got.UID != c.want || err != nil || got.OwnerGone != (c.owner == "ReplicaSet") {
			t.Errorf("%+v: UID %s, owner gone %v, %v", c, got.UID, got.OwnerGone, err)
		}
	}
	// Of many labels the first ones are kept.
	many := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}
	for i := range 1000 {
		many.Labels[fmt.Sprintf("l%03d", i)] = "v"
	}
	got, err = identify(&keptPod{Pod: many}, func(k string) bool { return k != "l000" }, nil)
	if _, first := got.Labels["l001"]; err != nil || !first || len(got.Labels) != batch.MaxLabels || got.Labels["l000"] != "" {
		t.Errorf("labels %v, %v", got.Labels, err)
	}
	// The kind and name of an owner have limits.
	p.OwnerReferences = []metav1.OwnerReference{owner(strings.Repeat("k", 1000), strings.Repeat("\u00e9", 1000), true)}
	got, err = identify(&keptPod{Pod: p}, w.keepsLabel, func(string, *metav1.OwnerReference) (*metav1.OwnerReference, error) { return nil, nil })
	if want := "shop/" + strings.Repeat("k", 63) + "/" + strings.Repeat("\u00e9", 126); got.Job != want || err != nil {
		t.Errorf("job %q, %v", got.Job, err)
	}
}

// TestControllerOf: of a reference that is too long as much is kept as shows that.
func TestControllerOf(t *testing.T) {
	long := strings.Repeat("x", 1000)
	ref := metav1.OwnerReference{APIVersion: long, Kind: long, Name: long, UID: types.UID(long), Controller: new(true)}
	other := owner("Node", "n1", false)
	refs := controllerOf(&metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{other, ref}})
	if want := (metav1.OwnerReference{APIVersion: long[:254], Kind: long[:64], Name: long[:254], UID: types.UID(long[:64]), Controller: ref.Controller}); len(refs) != 1 || refs[0] != want {
		t.Errorf("%+v", refs)
	}
	if refs := controllerOf(&metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{other}}); refs != nil {
		t.Errorf("without a controller: %+v", refs)
	}
}
