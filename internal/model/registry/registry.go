// Package registry holds the types of a server's registry: nodes, tokens and their roles, and the
// audit log.
package registry

import (
	"fmt"
	"math"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
)

// A Node is an enrolled machine.
type Node struct {
	ID        string // ULID
	Cluster   string
	Name      string // host name
	MachineID string // from /etc/machine-id, or its substitute
	Boot      string // boot id at enrollment
	At        time.Time
	// Root is the first node of the clones to which it belongs, from the certificate that it
	// enrolled with; "" if it is not a clone.
	Root string
	// Certified is when the last certificate issued for the node ends, [Forever] for a node that
	// enrolled on the loopback, where no certificate tells it from others. Zero is unknown: that
	// of a node from a server below.
	Certified time.Time
	KeyHash   string // of the public key that it enrolled with; "" without one
	Token     string // id of the token that it enrolled with; "" without one
}

// Forever is the latest time that a ledger can store.
var Forever = time.Unix(0, math.MaxInt64).UTC()

// IsJobs reports whether a node is that of the jobs of a machine, which mete run sends itself. The
// rest of the machine is not measured there.
func (n *Node) IsJobs() bool { return IsJobsMachine(n.MachineID) }

// JobsMachineID returns the machine id with which the jobs of a machine enroll.
func JobsMachineID(machine string) string { return machine + jobsSuffix }

// IsJobsMachine reports whether a machine id is that of the jobs of a machine.
func IsJobsMachine(id string) bool { return strings.HasSuffix(id, jobsSuffix) }

const jobsSuffix = " jobs"

// VolumesNode returns the pseudo-node that has the volumes of a Kubernetes cluster, whichever machines use them. Its id
// follows from that of the ledger, so that it is the same after the ledger was restored. Nothing is measured there, and no
// list of nodes has it.
func VolumesNode(ledger, cluster string) Node {
	name := cluster + volumesSuffix
	return Node{ID: string(workload.NewID(ledger, workload.Volume, cluster)), Cluster: cluster, Name: name, MachineID: name, Certified: Forever}
}

// IsVolumesMachine reports whether a machine id is that of a pseudo-node of volumes. No machine may enroll with it.
func IsVolumesMachine(id string) bool { return strings.HasSuffix(id, volumesSuffix) }

// volumesSuffix has a space: no name of a machine has one.
const volumesSuffix = " volumes"

// Role is what a token permits.
type Role string

// The roles.
const (
	Agent    Role = "agent"    // enroll machines
	Job      Role = "job"      // enroll users whose jobs send their own figures
	Upstream Role = "upstream" // enroll downstream servers
	Viewer   Role = "viewer"   // read
	Writer   Role = "writer"   // write series into a cluster
)

// IsBearer reports whether a token of the role authenticates requests directly and repeatedly;
// other tokens are for enrollment.
func (r Role) IsBearer() bool { return r == Viewer || r == Writer }

// A Token is a bearer token. The ledger stores only the hash of its secret.
type Token struct {
	ID      string
	Hash    [32]byte // SHA-256 of the secret
	Role    Role
	Cluster string // that it is for; for a viewer the one it may read, "" is all
	Node    string // that a machine becomes with it, whatever it is; "" for any other token
	Uses    int    // left; -1 is unlimited
	Created time.Time
	Expires time.Time // zero is never
	Revoked time.Time // zero if not revoked
}

// An Audit is an entry of the audit log.
type Audit struct {
	At     time.Time
	Actor  string // "local", a node id, a token id
	Action string // "token.create", "node.enrol", "batch.conflict", ...
	Object string
	Detail string
}

// An AuditQuery selects entries of the audit log. An empty string or a zero time selects any.
type AuditQuery struct {
	From, To time.Time // To is excluded
	Action   string    // "token" is "token.create" and each other action of tokens
	About    string    // actor or object
	Limit    int       // of the latest entries, 1 or more
}

// RevokedError returns the error for a revoked node or downstream server.
func RevokedError(node string) error {
	return fault.WithHint(fmt.Errorf("node %s is revoked: %w", node, fault.ErrDenied),
		"where it is to send again, stop it, remove its identity from its state directory (identity of an agent, upstream of a server), and enroll it with a new token: mete token create")
}
