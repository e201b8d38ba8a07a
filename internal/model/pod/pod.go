// Package pod describes the pods, Jobs and volumes of a Kubernetes cluster, as its API server shows them.
package pod

import (
	"encoding/hex"
	"time"
)

// A Pod is a pod with the attributes that the ledger keeps.
type Pod struct {
	UID       string // the key of its control group, see [Key]
	Namespace string
	Name      string
	Job       string // what the pod is an instance of, as "shop/deployment/web"
	// OwnerGone says that an owner does not exist any more, or could not be read, so that Job may not be the topmost one:
	// the job of before stays.
	OwnerGone bool
	// RunUID and RunName are of the Job of Kubernetes that the pod is of; "" if it is of none.
	RunUID, RunName string
	Node            string // where it runs; "" if it was not scheduled
	Labels          map[string]string
	// Containers are the names of the containers that were started, by their ids of 64 hexadecimal digits.
	Containers map[string]string
	Created    time.Time
	// Claims are the names of the claims that it mounts, in its namespace.
	Claims []string

	// Reserved is what the pod reserves while it is scheduled and has not finished. Times are in whole seconds.
	Reserved  []Reservation
	Scheduled time.Time // zero: it is not
	Finished  time.Time // zero: it has not
	// Guessed says that Finished is only not later than the end, which no container's status has.
	Guessed bool
	// Since is when its former state was last confirmed; zero is now. Changes since then happened at an unknown time.
	Since time.Time
}

// A Volume is a PersistentVolume with the attributes that the ledger keeps. It reserves its capacity from its creation to
// its deletion, mounted or not.
type Volume struct {
	UID  string
	Name string // of the PersistentVolume
	// Namespace, Claim and Job are those of the claim that it is bound to; "" if it is bound to none.
	Namespace, Claim string
	Job              string // as "shop/persistentvolumeclaim/data"
	// ClaimUnknown says that the claim is not known yet, or was deleted a moment ago: job and labels of before stay, if it is
	// bound to the same one.
	ClaimUnknown bool
	Labels       map[string]string // of the claim; class and type of the volume
	Bytes        int64             // its capacity
	Created      time.Time
	Since        time.Time // as that of a Pod
}

// Labels of volumes. A claim's own labels with these keys do not count.
const (
	LabelClaim = "mete.dev/claim"         // the name of the claim that it is bound to
	LabelClass = "mete.dev/storage-class" // the name of its storage class
	LabelType  = "mete.dev/volume-type"   // the name of the CSI driver, or as Kubernetes calls other sources: local, hostPath, nfs
)

// A Run is a Job of Kubernetes: one execution of a job.
type Run struct {
	UID, Namespace string
	Started        time.Time // zero: it has not
	Ended          time.Time // zero: it has not; of one that was deleted before it ended, when that was seen
	// Exit is 0 of one that is complete, and of one that failed the exit code of its container that failed last, 1 if
	// that is not known; nil if it has not ended, or was deleted before it ended.
	Exit *int
	// Failed is when that container ended; zero if the exit code is of none.
	Failed time.Time
}

// A Lease is the right of one server to say what pods a cluster has.
type Lease struct {
	Cluster string
	Holder  string // the server; the same after a restart
	Number  int64  // one more whenever the lease is taken; 0 is none
	// Seen is when the pods were last known to be as the ledger has them; zero if they never were.
	Seen time.Time
}

// Key returns the UID in the form that names of control groups have in [workload.Name]: a UUID with dashes.
// The kubelet derives the UIDs of static pods itself and writes them without dashes.
//
// [workload.Name]: https://pkg.go.dev/mete.dev/mete/internal/model/workload#Name
func Key(uid string) string {
	if _, err := hex.DecodeString(uid); err != nil || len(uid) != 32 {
		return uid
	}
	return uid[:8] + "-" + uid[8:12] + "-" + uid[12:16] + "-" + uid[16:20] + "-" + uid[20:]
}

// A Ref names a pod of a cluster. Namespace and Name belong to the UID: a Ref with other ones names no pod.
type Ref struct {
	Cluster, Namespace, Name, UID string
}

// String returns the namespace and the name.
func (r Ref) String() string { return r.Namespace + "/" + r.Name }
