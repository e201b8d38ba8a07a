package usage

import "slices"

// A VolumeUse is how much of a persistent volume of Kubernetes is used, as it was measured where a pod mounts it. Volumes
// belong to no machine, so no row has it.
type VolumeUse struct {
	Pod    string // UID
	Volume string // name of the PersistentVolume
	At     int64  // when it was measured, ns of CLOCK_BOOTTIME
	Used   int64  // bytes
	Size   int64  // of a file system that may have more than the volume, in bytes; 0 of one on a block device
}

// MergeVolumes returns a list with the later figures next, which replace those of the same pods, volumes and sizes. Of one time the
// larger figure stays. It shares no memory with next.
func MergeVolumes(list, next []VolumeUse) []VolumeUse {
	for _, v := range next {
		i := slices.IndexFunc(list, func(o VolumeUse) bool { return o.Pod == v.Pod && o.Volume == v.Volume && o.Size == v.Size })
		if i < 0 {
			list = append(list, v)
		} else if list[i].At != v.At || list[i].Used < v.Used {
			list[i] = v
		}
	}
	return list
}
