package fleet

import (
	"context"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/pod"
)

// reserve books what the workloads reserve as pods, for all of the time of the windows. A third of them reserve more than they
// use, a third less, and a third nothing; a half have a limit of CPU time.
func (f *Fleet) reserve(ctx context.Context, c Config) error {
	now := time.Now()
	from := now.Add(-c.Ago - time.Duration(c.Windows)*c.Window)
	for i := range c.Nodes {
		m, lease := newMachine(c, i), pod.Lease{Cluster: clusterOf(i)}
		m.fill()
		var pods []pod.Pod
		for k := range m.names {
			labels := m.names[k].Labels
			if labels == nil {
				continue
			}
			l := pod.Levels{CPU: []int64{4000, 100, 0}[k%3], CPULimit: []int64{6000, pod.NoLimit}[k/3%2], Memory: []int64{32 << 30, 1 << 30, 0}[k%3], MemoryLimit: 64 << 30, Storage: 10 << 30}
			if k == 0 {
				l.GPU = 1000
			}
			pods = append(pods, pod.Pod{UID: fmt.Sprintf("00000000-0000-0000-%04d-%012d", i, k), Namespace: labels[batch.LabelNamespace], Name: labels[batch.LabelPod], Job: m.names[k].Job, Node: m.name,
				Labels: map[string]string{"app": labels["app"]}, Created: from, Scheduled: from,
				Reserved: []pod.Reservation{{Container: labels[batch.LabelContainer], Levels: l}}})
		}
		if err := f.Server.Ledger.BookPods(ctx, lease, pods, now); err != nil {
			return err
		}
	}
	for i := range min(c.Nodes, 2) {
		for done := false; !done; {
			var err error
			if _, done, err = f.Server.Ledger.PutReserved(ctx, pod.Lease{Cluster: clusterOf(i)}, now, now, 0); err != nil {
				return err
			}
		}
	}
	return nil
}
