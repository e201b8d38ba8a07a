package kube

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mete.dev/mete/internal/model/pod"
)

func quantities(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func containerOf(name string, requests, limits corev1.ResourceList) corev1.Container {
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
}

// TestReservationsOf has the sums of the scheduler: they are of all containers and of the pod together.
func TestReservationsOf(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	sidecar := containerOf("sidecar", quantities("cpu", "30m"), nil)
	sidecar.RestartPolicy = &always
	app := containerOf("app", quantities("cpu", "100m", "memory", "1Gi", "ephemeral-storage", "5", "nvidia.com/gpu", "2", "nvidia.com/mig-1g.5gb", "1", "example.com/gpu", "7"), quantities("cpu", "1", "memory", "2Gi"))
	const none = pod.NoLimit
	appLevels := pod.Levels{CPU: 100, CPULimit: 1000, Memory: 1 << 30, MemoryLimit: 2 << 30, Storage: 5, GPU: 3000}
	bare := pod.Levels{CPULimit: none, MemoryLimit: none}
	for name, c := range map[string]struct {
		pod    corev1.PodSpec
		status corev1.PodStatus
		want   []pod.Reservation
	}{
		"one":     {pod: corev1.PodSpec{Containers: []corev1.Container{app}}, want: []pod.Reservation{{Container: "app", Levels: appLevels}}},
		"nothing": {pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}}, want: []pod.Reservation{{Container: "app", Levels: bare}}},
		"init": {
			pod: corev1.PodSpec{InitContainers: []corev1.Container{sidecar, containerOf("init", quantities("cpu", "200m", "memory", "5"), nil)}, Containers: []corev1.Container{app}},
			want: []pod.Reservation{{Container: "sidecar", Levels: pod.Levels{CPU: 30, CPULimit: none, MemoryLimit: none}}, {Container: "app", Levels: appLevels},
				{Levels: pod.Levels{CPU: 100, CPULimit: none, MemoryLimit: none}}}, // 200 + 30 of the init phase, less 130
		},
		"overhead": {
			pod:  corev1.PodSpec{Containers: []corev1.Container{app}, Overhead: quantities("cpu", "7m", "memory", "9")},
			want: []pod.Reservation{{Container: "app", Levels: appLevels}, {Levels: pod.Levels{CPU: 7, CPULimit: 7, Memory: 9, MemoryLimit: 9}}},
		},
		"pod": {
			pod: corev1.PodSpec{Containers: []corev1.Container{app, {Name: "other"}}, Resources: &corev1.ResourceRequirements{Requests: quantities("cpu", "500m"), Limits: quantities("cpu", "3")}},
			want: []pod.Reservation{{Container: "app", Levels: appLevels}, {Container: "other", Levels: pod.Levels{MemoryLimit: none}},
				{Levels: pod.Levels{CPU: 400, CPULimit: 2000, MemoryLimit: none}}},
		},
		"limits of init": {
			pod:  corev1.PodSpec{InitContainers: []corev1.Container{containerOf("init", nil, quantities("cpu", "3", "memory", "5Gi"))}, Containers: []corev1.Container{app}},
			want: []pod.Reservation{{Container: "app", Levels: appLevels}},
		},
		"overhead of CPU": {
			pod:  corev1.PodSpec{Containers: []corev1.Container{app}, Overhead: quantities("cpu", "1m")},
			want: []pod.Reservation{{Container: "app", Levels: appLevels}, {Levels: pod.Levels{CPU: 1, CPULimit: 1, MemoryLimit: none}}},
		},
		"overhead of memory": {
			pod:  corev1.PodSpec{Containers: []corev1.Container{app}, Overhead: quantities("memory", "1")},
			want: []pod.Reservation{{Container: "app", Levels: appLevels}, {Levels: pod.Levels{CPULimit: none, Memory: 1, MemoryLimit: 1}}},
		},
		"overhead beside no limits": {
			pod:  corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}, Overhead: quantities("cpu", "7m", "memory", "9")},
			want: []pod.Reservation{{Container: "app", Levels: bare}, {Levels: pod.Levels{CPU: 7, CPULimit: none, Memory: 9, MemoryLimit: none}}},
		},
		"memory of the pod": {
			pod: corev1.PodSpec{Containers: []corev1.Container{app, {Name: "other"}}, Resources: &corev1.ResourceRequirements{Limits: quantities("memory", "5Gi")}},
			want: []pod.Reservation{{Container: "app", Levels: appLevels}, {Container: "other", Levels: pod.Levels{CPULimit: none}},
				{Levels: pod.Levels{CPULimit: none, MemoryLimit: 3 << 30}}},
		},
		"limits above that of the pod": {
			pod: corev1.PodSpec{Containers: []corev1.Container{containerOf("a", nil, quantities("cpu", "1", "memory", "2Gi")), containerOf("b", nil, quantities("cpu", "1", "memory", "2Gi"))},
				Resources: &corev1.ResourceRequirements{Limits: quantities("cpu", "1500m", "memory", "3Gi")}},
			want: []pod.Reservation{{Container: "a", Levels: pod.Levels{CPULimit: 1000, MemoryLimit: 2 << 30}}, {Container: "b", Levels: pod.Levels{CPULimit: 1000, MemoryLimit: 2 << 30}}, {}},
		},
		"being resized": {
			pod: corev1.PodSpec{Containers: []corev1.Container{containerOf("app", quantities("cpu", "100m"), quantities("cpu", "1"))}},
			status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "app", AllocatedResources: quantities("cpu", "300m"),
				Resources: &corev1.ResourceRequirements{Requests: quantities("cpu", "250m"), Limits: quantities("cpu", "2")}}}},
			want: []pod.Reservation{{Container: "app", Levels: pod.Levels{CPU: 300, CPULimit: 2000, MemoryLimit: none}}},
		},
		"hostile": {
			pod:  corev1.PodSpec{Containers: []corev1.Container{containerOf("app", quantities("cpu", "9E", "memory", "8E", "amd.com/gpu", "9E"), quantities("memory", "1E"))}},
			want: []pod.Reservation{{Container: "app", Levels: pod.Levels{CPU: 100_000_000, CPULimit: none, Memory: 1 << 46, MemoryLimit: 1 << 46, GPU: 100_000_000}}},
		},
	} {
		if diff := cmp.Diff(c.want, reservationsOf(&corev1.Pod{Spec: c.pod, Status: c.status})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestManyContainers: all containers of a pod count, and as many have a reservation of their own as the ledger takes.
func TestManyContainers(t *testing.T) {
	t.Parallel()
	for _, more := range []int{0, 1, 7} {
		p := &corev1.Pod{}
		for i := range 100 + more {
			p.Spec.Containers = append(p.Spec.Containers, containerOf(fmt.Sprint("c", i), quantities("cpu", "3m"), nil))
		}
		list := reservationsOf(p)
		var sum int64
		for _, r := range list {
			sum += r.Levels.CPU
		}
		if own := len(list) - min(more, 1); own != 100 || sum != 3*int64(100+more) || (list[len(list)-1].Container == "") != (more > 0) {
			t.Errorf("%d more: %d reservations of %d thousandths", more, len(list), sum)
		}
	}
}

// TestIsGPU: parts of accelerators count, and other resources of their makers do not.
func TestIsGPU(t *testing.T) {
	t.Parallel()
	for name, want := range map[corev1.ResourceName]bool{
		"nvidia.com/gpu": true, "nvidia.com/gpu.shared": true, "nvidia.com/mig-1g.5gb": true, "nvidia.com/hostdev": false, "amd.com/gpu": true, "amd.com/xnack": false,
		"gpu.intel.com/i915": true, "gpu.intel.com/xe": true, "gpu.intel.com/i915_monitoring": false, "example.com/gpu": false, "gpu": false, "cpu": false,
	} {
		if got := isGPU(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestScheduledAt: a pod is on its node since it was scheduled, or since it was created with its node.
func TestScheduledAt(t *testing.T) {
	t.Parallel()
	condition := func(of corev1.PodConditionType, is corev1.ConditionStatus, at int64) corev1.PodCondition {
		c := corev1.PodCondition{Type: of, Status: is}
		if at != 0 {
			c.LastTransitionTime = metav1.Unix(at, 0)
		}
		return c
	}
	for name, c := range map[string]struct {
		node       string
		conditions []corev1.PodCondition
		want       int64 // 0 is not
	}{
		"waits":             {"", []corev1.PodCondition{condition(corev1.PodScheduled, corev1.ConditionFalse, 50)}, 0},
		"scheduled":         {"n", []corev1.PodCondition{condition(corev1.PodReady, corev1.ConditionTrue, 60), condition(corev1.PodScheduled, corev1.ConditionTrue, 50)}, 50},
		"created on a node": {"n", []corev1.PodCondition{condition(corev1.PodReady, corev1.ConditionTrue, 60)}, 40},
		"not yet":           {"n", []corev1.PodCondition{condition(corev1.PodScheduled, corev1.ConditionFalse, 50)}, 40},
		"at no time":        {"n", []corev1.PodCondition{condition(corev1.PodScheduled, corev1.ConditionTrue, 0)}, 40},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Unix(40, 0)}, Spec: corev1.PodSpec{NodeName: c.node}, Status: corev1.PodStatus{Conditions: c.conditions}}
		if got := scheduledAt(p); c.want == 0 && !got.IsZero() || c.want != 0 && !got.Equal(time.Unix(c.want, 0)) {
			t.Errorf("%s: %v, want %d", name, got, c.want)
		}
	}
}

// TestFinishedAt: what a status says of the end of a pod.
func TestFinishedAt(t *testing.T) {
	t.Parallel()
	at := func(s int64) metav1.Time { return metav1.Unix(s, 0) }
	ended := func(s int64) corev1.ContainerStatus {
		return corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(s)}}}
	}
	ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: at(70)}}
	for name, c := range map[string]struct {
		status  corev1.PodStatus
		want    int64
		guessed bool
	}{
		"running":             {corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{ended(50)}}, 0, false},
		"succeeded":           {corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{ended(60), ended(50)}, Conditions: ready}, 60, false},
		"sidecar":             {corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{ended(50)}, InitContainerStatuses: []corev1.ContainerStatus{ended(10), ended(65)}}, 65, false},
		"no time":             {corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{ended(0)}, Conditions: ready}, 70, true},
		"node lost":           {corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{ended(50), {}}, Conditions: ready}, 70, true},
		"sidecar ended later": {corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{}}, InitContainerStatuses: []corev1.ContainerStatus{ended(80)}, Conditions: ready}, 80, true},
		"was ready":           {corev1.PodStatus{Phase: corev1.PodFailed, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at(70)}, {Type: corev1.PodScheduled, Status: corev1.ConditionFalse, LastTransitionTime: at(90)}}}, 40, true},
		"refused by node":     {corev1.PodStatus{Phase: corev1.PodFailed}, 40, true},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(40)}, Spec: corev1.PodSpec{NodeName: "n"}, Status: c.status}
		got, guessed := finishedAt(p)
		if want := time.Unix(c.want, 0); c.want == 0 && !got.IsZero() || c.want != 0 && !got.Equal(want) || guessed != c.guessed {
			t.Errorf("%s: %v, guessed %v; want %v, %v", name, got, guessed, want, c.guessed)
		}
	}
}
