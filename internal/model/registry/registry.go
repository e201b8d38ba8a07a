// Package registry holds the types of a server's registry: nodes, tokens and their roles, and the
// audit log.
package registry

import (
	"fmt"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
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
}

// IsJobs reports whether a machine id is of the node of a machine's standalone jobs, which has the
// name of the machine.
func IsJobs(machineID string) bool { return strings.HasSuffix(machineID, " jobs") }

// Role is what a token permits.
type Role string

// The roles.
const (
	Agent    Role = "agent"    // enroll machines
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

// RevokedError returns the error for a revoked node or downstream server.
func RevokedError(node string) error {
	return fault.WithHint(fmt.Errorf("node %s is revoked: %w", node, fault.ErrDenied),
		"where it is to send again, stop it, remove its identity from its state directory (identity of an agent, upstream of a server), and enroll it with a new token: mete token create")
}
