package usage

import "slices"

// A VolumeUse is how much of a persistent volume of Kubernetes is used, as it was measured where a pod mounts it. Volumes
// belong to no machine, so no row has it.
type VolumeUse struct {
	Pod    string // UID
	Volume string // name of the PersistentVolume
	Used   int64  // bytes
}

// MergeVolumes returns a list with the later figures next, which replace those of the same pods and volumes. It shares no memory
// with next.
func MergeVolumes(list, next []VolumeUse) []VolumeUse {
	for _, v := range next {
		i := slices.IndexFunc(list, func(o VolumeUse) bool { return o.Pod == v.Pod && o.Volume == v.Volume })
		if i < 0 {
			list = append(list, v)
		} else {
			list[i].Used = v.Used
		}
	}
	return list
}
