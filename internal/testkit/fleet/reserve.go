package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/usage"
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
		if c.Volumes {
			if err := f.mountVolume(ctx, newMachine(c, i), clusterOf(i), from, now); err != nil {
				return err
			}
		}
		for done := false; !done; {
			var err error
			if _, done, err = f.Server.Ledger.PutReserved(ctx, pod.Lease{Cluster: clusterOf(i)}, now, now, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// VolumeJob is the job of the volume of each cluster.
const VolumeJob = "data/persistentvolumeclaim/index"

// mountVolume books two volumes of a cluster, and what a pod of a machine that mounts one of them uses of it.
func (f *Fleet) mountVolume(ctx context.Context, m *machine, cluster string, from, now time.Time) error {
	const claim, space, capacity = "index", "data", 100 << 30
	p := pod.Pod{UID: "00000000-0000-0000-1000-" + m.node[len(m.node)-12:], Namespace: space, Name: "index-0", Job: "data/statefulset/index", Node: m.name, Created: from, Claims: []string{claim}}
	v := pod.Volume{UID: "00000000-0000-0000-2000-" + m.node[len(m.node)-12:], Name: "pv-index", Namespace: space, Claim: claim, Job: VolumeJob, Bytes: capacity, Created: from,
		Labels: map[string]string{pod.LabelClaim: claim, pod.LabelClass: "fast"}}
	block := v // what is used of it is not known
	block.UID, block.Name = "00000000-0000-0000-3000-"+m.node[len(m.node)-12:], "pv-block"
	e := &batch.Entry{Node: m.node, Stream: batch.Stream{byte(m.seed), 'v'}, Number: 1, Hash: batch.HashOf([]byte(m.node))}
	for at := from; at.Before(now); at = at.Add(5 * time.Minute) {
		e.Volumes = append(e.Volumes, batch.TimedVolume{At: at, VolumeUse: usage.VolumeUse{Pod: p.UID, Volume: v.Name, Used: capacity / 4}})
	}
	l := f.Server.Ledger
	if err := errors.Join(l.BookPods(ctx, pod.Lease{Cluster: cluster}, []pod.Pod{p}, now), l.BookVolumes(ctx, pod.Lease{Cluster: cluster}, []pod.Volume{v, block}, now)); err != nil {
		return err
	}
	r, err := l.Book(ctx, []*batch.Entry{e})
	if err == nil {
		err = r[0].Err
	}
	return err
}
