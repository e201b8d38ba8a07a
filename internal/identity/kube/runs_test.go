package kube

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTrimJob: what the status of a Job says of its start and end.
func TestTrimJob(t *testing.T) {
	t.Parallel()
	at := func(s int64) *metav1.Time { return new(metav1.Unix(s, 0)) }
	condition := func(of batchv1.JobConditionType, s int64) batchv1.JobCondition {
		return batchv1.JobCondition{Type: of, Status: corev1.ConditionTrue, LastTransitionTime: *at(s)}
	}
	not := func(of batchv1.JobConditionType) batchv1.JobCondition {
		return batchv1.JobCondition{Type: of, Status: corev1.ConditionFalse, LastTransitionTime: *at(99)}
	}
	type times struct {
		started, ended, decided int64 // 0 is never
		failed                  bool
	}
	for name, c := range map[string]struct {
		status batchv1.JobStatus
		want   times
	}{
		"new":            {batchv1.JobStatus{}, times{}},
		"runs":           {batchv1.JobStatus{StartTime: at(10), Conditions: []batchv1.JobCondition{not(batchv1.JobComplete), not(batchv1.JobFailed), not(batchv1.JobFailureTarget)}}, times{started: 10}},
		"complete":       {batchv1.JobStatus{StartTime: at(10), CompletionTime: at(20), Conditions: []batchv1.JobCondition{condition(batchv1.JobComplete, 21)}}, times{started: 10, ended: 20, decided: 20}},
		"without a time": {batchv1.JobStatus{StartTime: at(10), Conditions: []batchv1.JobCondition{condition(batchv1.JobComplete, 21)}}, times{started: 10, ended: 21, decided: 21}},
		"failed":         {batchv1.JobStatus{StartTime: at(10), Conditions: []batchv1.JobCondition{condition(batchv1.JobFailed, 30)}}, times{10, 30, 30, true}},
		"decided before": {batchv1.JobStatus{StartTime: at(10), Conditions: []batchv1.JobCondition{condition(batchv1.JobFailureTarget, 25), condition(batchv1.JobFailed, 30)}}, times{10, 30, 25, true}},
		"to fail":        {batchv1.JobStatus{StartTime: at(10), Conditions: []batchv1.JobCondition{condition(batchv1.JobFailureTarget, 25)}}, times{started: 10, decided: 25}},
	} {
		o, err := trimJob(&batchv1.Job{Status: c.status})
		if err != nil {
			t.Fatal(err)
		}
		unix := func(at time.Time) int64 {
			if at.IsZero() {
				return 0
			}
			return at.Unix()
		}
		j := o.(*keptJob)
		if got := (times{unix(j.started), unix(j.ended), unix(j.decided), j.failed}); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestFailureOf: the exit code of a pod is that of the container that failed last, restarted ones included.
func TestFailureOf(t *testing.T) {
	t.Parallel()
	ended := func(code int32, at int64) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.Unix(at, 0)}}
	}
	for name, c := range map[string]struct {
		init, containers []corev1.ContainerStatus
		want             podFailure
	}{
		"none":      {nil, []corev1.ContainerStatus{{State: ended(0, 5)}, {}}, podFailure{}},
		"one":       {nil, []corev1.ContainerStatus{{State: ended(0, 7)}, {State: ended(3, 5)}}, podFailure{3, time.Unix(5, 0)}},
		"below 0":   {nil, []corev1.ContainerStatus{{State: ended(-1, 7)}, {State: ended(3, 5)}}, podFailure{3, time.Unix(5, 0)}},
		"no time":   {nil, []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}}, podFailure{code: 1}},
		"two":       {nil, []corev1.ContainerStatus{{State: ended(4, 6)}, {State: ended(3, 5)}}, podFailure{4, time.Unix(6, 0)}},
		"two, late": {nil, []corev1.ContainerStatus{{State: ended(3, 5)}, {State: ended(4, 6)}}, podFailure{4, time.Unix(6, 0)}},
		"restarted": {nil, []corev1.ContainerStatus{{State: ended(0, 7), LastTerminationState: ended(3, 5)}}, podFailure{3, time.Unix(5, 0)}},
		"init":      {[]corev1.ContainerStatus{{State: ended(3, 5)}}, []corev1.ContainerStatus{{}}, podFailure{3, time.Unix(5, 0)}},
	} {
		got := failureOf(&corev1.Pod{Status: corev1.PodStatus{InitContainerStatuses: c.init, ContainerStatuses: c.containers}})
		if got.code != c.want.code || !got.at.Equal(c.want.at) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestJobOfPod: only a Job that controls a pod is its run.
func TestJobOfPod(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ref  metav1.OwnerReference
		want bool
	}{
		"a Job":             {metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", UID: "u", Controller: new(true)}, true},
		"controls not":      {metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", UID: "u"}, false},
		"of another group":  {metav1.OwnerReference{APIVersion: "example.org/v1", Kind: "Job", UID: "u", Controller: new(true)}, false},
		"a CronJob":         {metav1.OwnerReference{APIVersion: "batch/v1", Kind: "CronJob", UID: "u", Controller: new(true)}, false},
		"without a UID":     {metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Controller: new(true)}, false},
		"without a version": {metav1.OwnerReference{APIVersion: "a/b/c", Kind: "Job", UID: "u", Controller: new(true)}, false},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", OwnerReferences: []metav1.OwnerReference{c.ref}}}
		if ref := jobOfPod(p); (ref != nil) != c.want {
			t.Errorf("%s: %v", name, ref)
		}
		if keys, err := indexByJob(&keptPod{Pod: p}); err != nil || (len(keys) == 1 && keys[0] == "shop/u") != c.want {
			t.Errorf("%s: %q, %v", name, keys, err)
		}
	}
}
