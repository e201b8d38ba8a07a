package kube

import (
	"context"
	"maps"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"mete.dev/mete/internal/model/pod"
)

// A keptJob is what is kept of a Job of the API server.
type keptJob struct {
	*batchv1.Job   // its metadata
	started, ended time.Time
	failed         bool
	decided        time.Time // when it was decided that it fails: containers that fail later are killed for that
}

// trimJob drops what is not needed.
func trimJob(o any) (any, error) {
	j, ok := o.(*batchv1.Job)
	if !ok {
		return o, nil
	}
	out := &keptJob{Job: &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace: j.Namespace, Name: j.Name, UID: j.UID, ResourceVersion: j.ResourceVersion, OwnerReferences: controllerOf(j),
	}}}
	if at := j.Status.StartTime; at != nil {
		out.started = at.Time
	}
	for i := range j.Status.Conditions {
		c := &j.Status.Conditions[i]
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == batchv1.JobComplete:
			if out.ended = c.LastTransitionTime.Time; j.Status.CompletionTime != nil {
				out.ended = j.Status.CompletionTime.Time
			}
		case c.Type == batchv1.JobFailed:
			out.ended, out.failed = c.LastTransitionTime.Time, true
		case c.Type == batchv1.JobFailureTarget:
			out.decided = c.LastTransitionTime.Time
		}
	}
	if out.decided.IsZero() {
		out.decided = out.ended
	}
	return out, nil
}

// A podFailure is the exit code of the container of a pod that failed last.
type podFailure struct {
	code int32 // 0: none failed
	at   time.Time
}

// failureOf returns the last failure of a pod.
func failureOf(p *corev1.Pod) (f podFailure) {
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			for _, state := range []corev1.ContainerState{list[i].LastTerminationState, list[i].State} {
				if e := state.Terminated; e != nil && e.ExitCode > 0 && (f.code == 0 || e.FinishedAt.After(f.at)) {
					f = podFailure{e.ExitCode, e.FinishedAt.Time}
				}
			}
		}
	}
	return f
}

// jobOfPod returns the reference to the Job that controls a pod, or nil.
func jobOfPod(p *corev1.Pod) *metav1.OwnerReference {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil || ref.Kind+"."+group(ref.APIVersion) != jobKind || ref.UID == "" {
		return nil
	}
	return ref
}

// group returns the group of a version of an API.
func group(version string) string {
	gv, _ := schema.ParseGroupVersion(version) // no group if it is none
	return gv.Group
}

// byJob is the name of the index of pods by the UID of their Job.
const byJob = "job"

func indexByJob(o any) ([]string, error) {
	if p, ok := o.(*keptPod); ok {
		if ref := jobOfPod(p.Pod); ref != nil {
			return []string{p.Namespace + "/" + string(ref.UID)}, nil
		}
	}
	return nil, nil
}

// runOf returns what the ledger keeps of a Job.
func (w *Watcher) runOf(j *keptJob) pod.Run {
	r := pod.Run{UID: string(j.UID), Namespace: j.Namespace, Started: j.started, Ended: j.ended}
	switch {
	case j.ended.IsZero():
	case !j.failed:
		r.Exit = new(0)
	default:
		var last podFailure
		pods, _ := w.pods.GetIndexer().ByIndex(byJob, j.Namespace+"/"+string(j.UID)) // fails only without that index
		for _, o := range pods {
			if p, ok := o.(*keptPod); ok && !p.failure.at.After(j.decided) && (last.code == 0 || p.failure.at.After(last.at)) {
				last = p.failure
			}
		}
		r.Exit = new(1)
		if last.code != 0 {
			*r.Exit, r.Failed = int(last.code), last.at
		}
	}
	return r
}

func (w *Watcher) changeJob(o any) {
	j, ok := o.(*keptJob)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holds {
		w.jobs[string(j.UID)] = changedJob{job: j}
	}
}

func (w *Watcher) deleteJob(o any) {
	j, ok := lastState(o).(*keptJob)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holds {
		w.jobs[string(j.UID)] = changedJob{j, time.Now()}
	}
}

// A changedJob is a Job to be booked.
type changedJob struct {
	job     *keptJob
	deleted time.Time // when that was seen; zero: it is there
}

// flushRuns books the Jobs that changed. After an error they are booked later.
func (w *Watcher) flushRuns(ctx context.Context) error {
	w.mu.Lock()
	changed := w.jobs
	w.jobs = map[string]changedJob{}
	w.mu.Unlock()
	err := w.bookRuns(ctx, changed)
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		for uid, c := range changed {
			if _, newer := w.jobs[uid]; !newer {
				w.jobs[uid] = c
			}
		}
	}
	return err
}

func (w *Watcher) bookRuns(ctx context.Context, changed map[string]changedJob) error {
	var runs, gone []pod.Run
	for _, uid := range slices.Sorted(maps.Keys(changed)) {
		c := changed[uid]
		r := w.runOf(c.job)
		if !c.deleted.IsZero() {
			if gone = append(gone, r); r.Ended.IsZero() {
				r.Ended = c.deleted
			}
		}
		// One that was never started has no pods, and one that is suspended has no start any more.
		if old, ok := w.runs[uid]; ok && !isSameRun(old, r) || !ok && !r.Started.IsZero() {
			runs = append(runs, r)
		}
	}
	if len(runs) > 0 {
		if err := w.ledger.BookRuns(ctx, w.lease, runs); err != nil {
			return err
		}
	}
	for _, r := range runs {
		w.runs[r.UID] = r
	}
	if len(gone) > 0 {
		if err := w.ledger.RunsGone(ctx, w.lease, gone, time.Now()); err != nil {
			return err
		}
	}
	for _, r := range gone {
		delete(w.runs, r.UID)
	}
	return nil
}

// isSameRun reports whether two states of a Job are the same.
func isSameRun(a, b pod.Run) bool {
	same := a.Exit == b.Exit || a.Exit != nil && b.Exit != nil && *a.Exit == *b.Exit
	return same && a.Started.Equal(b.Started) && a.Ended.Equal(b.Ended) && a.Failed.Equal(b.Failed)
}

// endOtherRuns records which Jobs were deleted while no watcher ran. When they ended is not known.
func (w *Watcher) endOtherRuns(ctx context.Context) error {
	// First the rest of the parts to which another server was writing.
	if err := w.ledger.BookRuns(ctx, w.lease, nil); err != nil {
		return err
	}
	live, err := w.ledger.LiveRuns(ctx, w.cfg.Cluster)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, o := range w.owners[jobKind].GetStore().List() {
		if j, ok := o.(*keptJob); ok {
			there[string(j.UID)] = true
		}
	}
	live = slices.DeleteFunc(live, func(r pod.Run) bool { return there[r.UID] })
	if len(live) == 0 {
		return nil
	}
	return w.ledger.RunsGone(ctx, w.lease, live, time.Now())
}
