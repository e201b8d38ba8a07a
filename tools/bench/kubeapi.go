package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// createPods creates namespaces, owners and pods.
func (k *kubeRun) createPods(ctx context.Context, kubeconfig string) error {
	conf, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	conf.QPS, conf.ContentType = -1, "application/vnd.kubernetes.protobuf"
	if k.api, err = kubernetes.NewForConfig(conf); err != nil {
		return err
	}
	for i := range kubeNamespaces {
		name := metav1.ObjectMeta{Name: namespaceOf(i)}
		if _, err := k.api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: name}, metav1.CreateOptions{}); err != nil {
			return err
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		if _, err := k.api.CoreV1().ServiceAccounts(name.Name).Create(ctx, account, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := k.createOwners(ctx); err != nil {
		return err
	}
	k.logf("creating %d nodes", k.nodes)
	if err := k.createNodes(ctx, 0, k.nodes); err != nil {
		return err
	}
	k.logf("creating %d pods", k.pods)
	var done atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range k.pods {
		g.Go(func() error {
			p, err := k.createPod(ctx, i%k.nodes)
			if err == nil {
				err = k.startPod(ctx, p)
			}
			if n := done.Add(1); n%10_000 == 0 {
				k.logf("%d pods", n)
			}
			return err
		})
	}
	return g.Wait()
}

func namespaceOf(i int) string { return fmt.Sprintf("team-%d", i%kubeNamespaces) }

// createOwners creates Deployments, each with a ReplicaSet, which is an owner of pods.
func (k *kubeRun) createOwners(ctx context.Context) error {
	k.owners = make([]metav1.OwnerReference, kubeOwners)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i := range k.owners {
		g.Go(func() error {
			name := fmt.Sprintf("service-%d", i)
			labels := map[string]string{"app": name}
			template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec("")}
			d, err := k.api.AppsV1().Deployments(namespaceOf(i)).Create(ctx, &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
			}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			s, err := k.api.AppsV1().ReplicaSets(namespaceOf(i)).Create(ctx, &appsv1.ReplicaSet{
				ObjectMeta: metav1.ObjectMeta{Name: name + "-7d4f9c", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
				Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
			}, metav1.CreateOptions{})
			if err == nil {
				k.owners[i] = *metav1.NewControllerRef(s, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))
			}
			return err
		})
	}
	return g.Wait()
}

func podSpec(node string) corev1.PodSpec {
	seconds := int64(0)
	return corev1.PodSpec{
		NodeName: node, TerminationGracePeriodSeconds: &seconds,
		Containers: []corev1.Container{{Name: "main", Image: "example.org/service:1", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
		}}},
	}
}

// createPod creates a pod on the i-th machine, whose agent reports its use from then on.
func (k *kubeRun) createPod(ctx context.Context, i int) (*kubePod, error) {
	k.asks.RLock()
	defer k.asks.RUnlock()
	n := int(k.serial.Add(1))
	of := n % kubeOwners
	made, err := k.api.CoreV1().Pods(namespaceOf(of)).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%x", k.owners[of].Name, n), OwnerReferences: k.owners[of : of+1],
			Labels: map[string]string{"app": fmt.Sprintf("service-%d", of), "pod-template-hash": "7d4f9c"},
		},
		Spec: podSpec(originName(i)),
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	var id [32]byte
	_, _ = rand.Read(id[:]) // it does not fail
	p := &kubePod{namespace: made.Namespace, name: made.Name, uid: string(made.UID), container: hex.EncodeToString(id[:])}
	m := &k.machines[i]
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods = append(m.pods, p)
	return p, nil
}

// startPod writes the status of a pod as the kubelet does after it started the container.
func (k *kubeRun) startPod(ctx context.Context, p *kubePod) error {
	now := metav1.Now()
	p2 := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.name, UID: types.UID(p.uid)}}
	p2.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now,
		Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Image: "example.org/service:1", Ready: true, ContainerID: "containerd://" + p.container,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}},
	}
	k.asks.RLock()
	defer k.asks.RUnlock()
	patch, err := json.Marshal(p2)
	if err != nil {
		return err
	}
	_, err = k.api.CoreV1().Pods(p.namespace).Patch(ctx, p.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// deletePod deletes a pod.
func (k *kubeRun) deletePod(ctx context.Context, p *kubePod) error {
	k.asks.RLock()
	defer k.asks.RUnlock()
	return k.api.CoreV1().Pods(p.namespace).Delete(ctx, p.name, metav1.DeleteOptions{})
}

// restartAPI kills the API server and starts it again. It then has no changes of before, so watches expire.
func (k *kubeRun) restartAPI(ctx context.Context) error {
	k.asks.Lock()
	defer k.asks.Unlock()
	if err := k.server.RestartAPI(); err != nil {
		return err
	}
	for end := time.Now().Add(time.Minute); ; sleepUntil(ctx, time.Now().Add(100*time.Millisecond)) {
		_, err := k.api.CoreV1().Namespaces().Get(ctx, namespaceOf(0), metav1.GetOptions{})
		if err == nil || time.Now().After(end) || ctx.Err() != nil {
			return err
		}
	}
}

// lists returns how often the server has read all pods.
func (k *kubeRun) lists(ctx context.Context) (int, error) {
	a, err := k.target.reader.Query(ctx, "mete_server_kube_lists_total", time.Now())
	if err != nil {
		return 0, err
	}
	if len(a.Series) != 1 || len(a.Series[0].Points) != 1 {
		return 0, fmt.Errorf("lists of pods: %d series, want one with one point", len(a.Series))
	}
	return int(a.Series[0].Points[0].Value), nil
}
