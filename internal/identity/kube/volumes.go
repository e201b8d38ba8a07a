package kube

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/x/text"
)

// A keptVolume is what is kept of a PersistentVolume of the API server.
type keptVolume struct {
	*corev1.PersistentVolume                         // its metadata
	claim                    *corev1.ObjectReference // that it is bound to; nil: to none
	class, source            string
	bytes                    int64
}

// volumeWatch is what a Watcher does with volumes. Without the right to list them, nothing.
type volumeWatch struct {
	volumes, claims cache.SharedIndexInformer
	areListed       func() bool // all of both

	// Of Run's goroutine only.
	volumesEnded bool                  // volumes that are gone were ended since the lease was taken
	volumesSeen  time.Time             // when the ledger last had the volumes as they were
	heldVolumes  map[string]pod.Volume // as they were booked last, by UID

	// Of the Watcher's lock.
	changedVolumes map[string]changedVolume // by UID
}

// A changedVolume is a volume to be booked.
type changedVolume struct {
	volume  *keptVolume
	deleted bool
}

// watchVolumes makes the informers of volumes and claims.
func (w *Watcher) watchVolumes() error {
	w.heldVolumes, w.changedVolumes = map[string]pod.Volume{}, map[string]changedVolume{}
	w.volumes = w.informer(cache.NewListWatchFromClient(w.core, "persistentvolumes", metav1.NamespaceAll, fields.Everything()), &corev1.PersistentVolume{}, trimVolume)
	w.claims = w.informer(cache.NewListWatchFromClient(w.core, "persistentvolumeclaims", metav1.NamespaceAll, fields.Everything()), &corev1.PersistentVolumeClaim{}, w.trimClaim)
	w.areListed = func() bool { return w.volumes.HasSynced() && w.claims.HasSynced() }
	if err := w.volumes.AddIndexers(cache.Indexers{byClaim: indexByClaim}); err != nil {
		return err
	}
	_, err := w.volumes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.changeVolume(o, false) },
		UpdateFunc: func(_, o any) { w.changeVolume(o, false) },
		DeleteFunc: func(o any) { w.changeVolume(lastState(o), true) },
	})
	if err != nil {
		return err
	}
	// A claim that is deleted leaves its volume as it was until that is released.
	_, err = w.claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.changeClaim(o) },
		UpdateFunc: func(_, o any) { w.changeClaim(o) },
	})
	return err
}

// trimVolume drops what is not needed.
func trimVolume(o any) (any, error) {
	v, ok := o.(*corev1.PersistentVolume)
	if !ok {
		return o, nil
	}
	out := &keptVolume{class: text.Cut(v.Spec.StorageClassName, maxName), source: text.Cut(sourceOf(&v.Spec.PersistentVolumeSource), maxName), PersistentVolume: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: v.Name, UID: v.UID, ResourceVersion: v.ResourceVersion, CreationTimestamp: v.CreationTimestamp,
	}}}
	out.bytes = v.Spec.Capacity.Storage().Value()
	// A reference without a UID is not bound yet, and one of a volume that was released is to a claim that is gone.
	if ref := v.Spec.ClaimRef; ref != nil && ref.UID != "" && v.Status.Phase != corev1.VolumeReleased && v.Status.Phase != corev1.VolumeFailed {
		out.claim = &corev1.ObjectReference{Namespace: text.Cut(ref.Namespace, maxName), Name: text.Cut(ref.Name, maxName), UID: ref.UID}
	}
	return out, nil
}

// maxClaims limits the claims of a pod that are kept.
const maxClaims = 256

// claimsOf returns the names of the claims that a pod mounts, its ephemeral volumes' included.
func claimsOf(p *corev1.Pod) (names []string) {
	for i := range p.Spec.Volumes {
		switch v := &p.Spec.Volumes[i]; {
		case len(names) == maxClaims:
			return names
		case v.PersistentVolumeClaim != nil:
			names = append(names, text.Cut(v.PersistentVolumeClaim.ClaimName, maxName))
		case v.Ephemeral != nil:
			names = append(names, text.Cut(p.Name+"-"+v.Name, maxName))
		}
	}
	return names
}

// sourceOf returns where a volume comes from: the name of its CSI driver, or what Kubernetes calls another source, as "local".
func sourceOf(s *corev1.PersistentVolumeSource) string {
	if s.CSI != nil {
		return s.CSI.Driver
	}
	v := reflect.ValueOf(*s)
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return ""
}

// trimClaim drops what is not needed: all but the metadata.
func (w *Watcher) trimClaim(o any) (any, error) {
	c, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok {
		return o, nil
	}
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion, OwnerReferences: controllerOf(c), Labels: w.trimLabels(c.Labels),
	}}, nil
}

// byClaim is the name of the index of volumes by their claim.
const byClaim = "claim"

func indexByClaim(o any) ([]string, error) {
	if v, ok := o.(*keptVolume); ok && v.claim != nil {
		return []string{v.claim.Namespace + "/" + v.claim.Name}, nil
	}
	return nil, nil
}

func (w *Watcher) changeVolume(o any, deleted bool) {
	v, ok := o.(*keptVolume)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holds {
		w.changedVolumes[string(v.UID)] = changedVolume{v, deleted}
	}
}

func (w *Watcher) changeClaim(o any) {
	c, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok {
		return
	}
	bound, _ := w.volumes.GetIndexer().ByIndex(byClaim, c.Namespace+"/"+c.Name) // fails only without that index
	for _, v := range bound {
		w.changeVolume(v, false)
	}
}

// volumeOf returns what the ledger keeps of a volume. After an error the job is known as far as the result has it.
func (w *Watcher) volumeOf(ctx context.Context, v *keptVolume) (pod.Volume, error) {
	out := pod.Volume{UID: string(v.UID), Name: v.Name, Labels: map[string]string{}, Bytes: v.bytes, Created: v.CreationTimestamp.Time}
	var err error
	if v.claim != nil {
		out.Namespace, out.Claim = v.claim.Namespace, v.claim.Name
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: out.Namespace, Name: out.Claim}}
		held, _, _ := w.claims.GetStore().GetByKey(out.Namespace + "/" + out.Claim) // a store in memory does not fail
		if c, ok := held.(*corev1.PersistentVolumeClaim); ok && c.UID == v.claim.UID {
			claim = c
		} else {
			out.ClaimUnknown = true
		}
		out.Job, err = jobOf(claim, "persistentvolumeclaim", func(ns string, ref *metav1.OwnerReference) (*metav1.OwnerReference, error) {
			return w.ownerOf(ctx, ns, ref)
		})
		out.ClaimUnknown = out.ClaimUnknown || err != nil
		if errors.Is(err, errGone) {
			err = nil
		}
		out.Labels = keptLabels(claim.Labels, w.keepsLabel, batch.MaxLabels-3)
		delete(out.Labels, pod.LabelClass)
		delete(out.Labels, pod.LabelType)
		out.Labels[pod.LabelClaim] = out.Claim
	}
	for label, value := range map[string]string{pod.LabelClass: v.class, pod.LabelType: v.source} {
		if value != "" {
			out.Labels[label] = value
		}
	}
	return out, err
}

// flushVolumes books the volumes that changed, once all are known. After an error they are booked later.
func (w *Watcher) flushVolumes(ctx context.Context) error {
	if !w.areListed() {
		return nil
	}
	seen := w.health.confirmedVolumes()
	w.mu.Lock()
	changed := w.changedVolumes
	w.changedVolumes = map[string]changedVolume{}
	w.mu.Unlock()
	again := changed
	err := w.endOtherVolumes(ctx)
	if err == nil {
		again, err = w.bookVolumes(ctx, changed)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, c := range again {
		if _, newer := w.changedVolumes[uid]; !newer {
			w.changedVolumes[uid] = c
		}
	}
	if err == nil && seen.After(w.volumesSeen) {
		w.volumesSeen = seen
	}
	return err
}

// endOtherVolumes ends the volumes that were deleted while no watcher ran.
func (w *Watcher) endOtherVolumes(ctx context.Context) error {
	if w.volumesEnded {
		return nil
	}
	live, err := w.ledger.ListVolumes(ctx, w.lease, time.Now())
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, o := range w.volumes.GetStore().List() {
		if v, ok := o.(*keptVolume); ok {
			there[string(v.UID)] = true
		}
	}
	live = slices.DeleteFunc(live, func(v pod.Volume) bool { return there[v.UID] })
	for i := range live {
		live[i].Since = w.volumesSeen
	}
	err = w.ledger.EndVolumes(ctx, w.lease, live, time.Now())
	w.volumesEnded = err == nil
	return err
}

// bookVolumes books volumes and returns those to book again.
func (w *Watcher) bookVolumes(ctx context.Context, changed map[string]changedVolume) (again map[string]changedVolume, err error) {
	again = map[string]changedVolume{}
	var booked, ended []pod.Volume
	for _, uid := range slices.Sorted(maps.Keys(changed)) {
		c := changed[uid]
		v, err := w.volumeOf(ctx, c.volume)
		if err != nil && !c.deleted {
			again[uid] = c
		}
		old, ok := w.heldVolumes[uid]
		isSame := ok && reflect.DeepEqual(old, v)
		if v.Since = w.volumesSeen; c.deleted {
			ended = append(ended, v)
		}
		if !isSame {
			booked = append(booked, v)
		}
	}
	if err := w.ledger.BookVolumes(ctx, w.lease, booked, time.Now()); err != nil {
		return changed, err
	}
	for _, v := range booked {
		v.Since = time.Time{}
		w.heldVolumes[v.UID] = v
	}
	if err := w.ledger.EndVolumes(ctx, w.lease, ended, time.Now()); err != nil {
		return changed, err
	}
	for _, v := range ended {
		delete(w.heldVolumes, v.UID)
	}
	return again, nil
}
