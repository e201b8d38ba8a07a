package workload

import "time"

// A Run is one execution of a job that is not itself a workload: its parts are workloads, of any number of nodes. Each part says what is
// known of the run.
type Run struct {
	ID      ID     // as [NewRunID] makes it; "": none
	Name    string // of the run itself, as "nightly-29384"
	Started time.Time
	Ended   time.Time // zero: it has not, or that is not known
	Exit    *int      // nil: not known
}

// NewRunID derives the ID of a Job of Kubernetes. UIDs are unique in their cluster, but a pod may state any as that of its
// owner: with the namespace, the run of another namespace does not get its parts.
func NewRunID(cluster, namespace, uid string) ID {
	return NewID(cluster, KubeJob, namespace+"/"+uid)
}
