package usage

import "slices"

// A VolumeUse is how much of a persistent volume of Kubernetes is used, as it was measured where a pod mounts it. Volumes
// belong to no machine, so no row has it.
type VolumeUse struct {
	Pod    string // UID
	Volume string // name of the PersistentVolume
	At     int64  // when it was measured, ns of CLOCK_BOOTTIME
	Used   int64  // bytes
	Size   int64  // of a file system that is not on a block device, in bytes; 0 of one that is
}

// MergeVolumes returns the latest figures of two lists for each pod and volume, in the order of the lists, of which next is the later
// one. A pod may have several directories of one name, which are measured at one time: of these each size stays, with the larger
// figure. It shares no memory with the lists.
func MergeVolumes(list, next []VolumeUse) []VolumeUse {
	type key struct {
		pod, volume string
		size        int64
	}
	latest, all := map[key]int64{}, slices.Concat(list, next)
	for _, v := range all {
		k := key{v.Pod, v.Volume, 0}
		if at, ok := latest[k]; !ok || at < v.At {
			latest[k] = v.At
		}
	}
	places, merged := map[key]int{}, all[:0]
	for _, v := range all {
		if v.At < latest[key{v.Pod, v.Volume, 0}] {
			continue
		}
		k := key{v.Pod, v.Volume, v.Size}
		if i, ok := places[k]; ok {
			merged[i].Used = max(merged[i].Used, v.Used)
			continue
		}
		places[k] = len(merged)
		merged = append(merged, v)
	}
	return merged
}
