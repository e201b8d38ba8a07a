// Package workload defines the users of a machine: containers, pods, units, job steps, virtual
// machines, jobs of mete run, other groups, and idle and system.
package workload

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
)

// A Kind is a kind of workload.
type Kind uint8

const (
	Unknown   Kind = iota
	Idle           // what was not used
	System         // use outside all workloads: kernel threads, the root group
	Path           // a control group known by its path only
	Slice          // a systemd slice, or a QoS class of Kubernetes
	Service        // a systemd service
	Scope          // a systemd scope
	Session        // a login session
	User           // all of one user
	Pod            // a pod of Kubernetes or Podman, without its containers
	Container      // a container of any runtime
	SlurmJob       // a Slurm job, without its steps
	SlurmStep      // a Slurm job step
	VM             // a virtual machine
	Job            // a job of mete run
	KubeJob        // a Job of Kubernetes: a run, of which pods are parts; no workload of a node
	Volume         // a persistent volume of Kubernetes, of no machine's node
)

var kindNames = [...]string{"unknown", "idle", "system", "path", "slice", "service", "scope", "session", "user",
	"pod", "container", "slurm-job", "slurm-step", "vm", "job", "kube-job", "volume"}

// String returns the kind's name in JSON and output.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", k)
}

// IsRun reports whether a workload of the kind is a run: one execution of a job, with a start and an
// end. Jobs of mete run and Slurm jobs are; a Slurm job's steps are parts of its run. A [Run] is none of
// them: lists give it the kind KubeJob.
func (k Kind) IsRun() bool { return k == Job || k == SlurmJob }

// MarshalText implements encoding.TextMarshaler.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Kind) UnmarshalText(b []byte) error {
	for i, n := range kindNames {
		if n == string(b) {
			*k = Kind(i)
			return nil
		}
	}
	return fmt.Errorf("workload kind %q is unknown", b)
}

// An ID identifies a workload forever, on agent and server and across restarts: 26 characters of
// base32.
type ID string

// A Life is one existence of a group: a group created again under the same path is another life,
// and its counters start from zero.
type Life struct {
	Hierarchy uint32 // kernel's hierarchy id, 0 for cgroup v2
	ID        uint64 // kernfs id, never reused within a boot
}

// A Workload is a named user of a machine.
type Workload struct {
	ID   ID
	Kind Kind
	// Key is what the ID is derived from: container id, pod UID, Slurm cluster/job/step, domain
	// UUID, job id, else boot id and path.
	Key string
	// Name is for display and may arrive late: it is not part of the ID.
	Name string
	// Path is the group's path below the root of its hierarchies. Where it differs between them, it is that of
	// the hierarchy that counts CPU time, if that had the group when the workload was first seen.
	Path string
}

// NewID derives the ID of the workload of this kind and key on a node: base32 of the first 16 bytes
// of SHA-256 over the three, each followed by a zero byte.
func NewID(node string, kind Kind, key string) ID {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00", node, kind, key)
	return ID(encoding.EncodeToString(h.Sum(nil)[:16]))
}

// IDFromBytes returns the ID of the bytes that Bytes returns.
func IDFromBytes(raw [16]byte) ID { return ID(encoding.EncodeToString(raw[:])) }

// Bytes returns the 16 bytes of the ID, or false if NewID cannot have made it.
func (id ID) Bytes() (raw [16]byte, ok bool) {
	if len(id) != encoding.EncodedLen(len(raw)) {
		return raw, false
	}
	var text [26]byte
	copy(text[:], id)
	if _, err := encoding.Decode(raw[:], text[:]); err != nil {
		return raw, false
	}
	// The last character has two padding bits, which are zero.
	encoding.Encode(text[:], raw[:])
	return raw, string(text[:]) == string(id)
}

var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
