// Package slurm describes the jobs of a Slurm cluster, as its controller shows them.
package slurm

import (
	"strconv"
	"strings"
	"time"
)

// A Job is a job that has started, with the attributes that the ledger keeps. A task of a job array and a component of a
// heterogeneous job are jobs of their own.
type Job struct {
	ID        int64     // its number, by which its control groups are named; another job may have it later
	Submitted time.Time // the latest time: a requeued job is submitted again
	Restarts  int       // how often it was requeued
	Name      string    // of any text that its user chose, safe for a terminal
	User      string
	Account   string
	Labels    map[string]string // see [LabelJob] and so on
	Hosts     []string          // names of the machines on which it ran, see [Host]
	Started   time.Time         // the first time
	Ended     time.Time         // zero if it has not ended, or nothing is known of its end
	Exit      *int              // nil as well if it was ended without an exit code
}

// Labels of workloads of Slurm jobs. Those that say nothing of a job are absent.
const (
	LabelJob       = "slurm.job" // its number
	LabelPartition = "slurm.partition"
	LabelArray     = "slurm.array" // number of the array and index of the task, as "12_3"
	LabelHet       = "slurm.het"   // number of the heterogeneous job and of the component, as "12+1"
	LabelState     = "slurm.state" // the last state of a job that has ended, as "TIMEOUT"; not of its steps
	LabelNodes     = "slurm.nodes" // Slurm's names of the nodes, as "n[1-4]"; not of its steps
)

// Host returns the form of a machine's name in which names are compared: without a domain, in lower case.
func Host(name string) string {
	name, _, _ = strings.Cut(name, ".")
	return strings.ToLower(name)
}

// ParseKey returns the number of the job, and the step or "", of the key of a workload of kind slurm-job or slurm-step:
// "/12" or "/12/batch". It returns false for another key, as that of a group inside a container.
func ParseKey(key string) (job int64, step string, ok bool) {
	number, isKey := strings.CutPrefix(key, "/")
	number, step, hasStep := strings.Cut(number, "/")
	n, err := strconv.ParseUint(number, 10, 32)
	if !isKey || err != nil || hasStep && step == "" || strings.Contains(step, "/") {
		return 0, "", false
	}
	return int64(n), step, true
}

// Key returns the key of the workload of a job.
func Key(job int64) string { return "/" + strconv.FormatInt(job, 10) }
