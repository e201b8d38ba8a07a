// Package registry holds the nouns of what a server registers: nodes, tokens and
// their roles, and the audit log.
package registry

import (
	"fmt"
	"time"

	"mete.dev/mete/internal/model/fault"
)

// A Node is a machine as it is enrolled.
type Node struct {
	ID        string // ULID
	Cluster   string
	Name      string // host name
	MachineID string // of /etc/machine-id, or what stands for it
	Boot      string // boot id at enrollment
	At        time.Time
	// Root is the node that it is a clone of, by that one's certificate: the first one,
	// where that was a clone too. It is "" of what is no clone.
	Root string
}

// Role is what a token lets its bearer do.
type Role string

// The roles.
const (
	Agent    Role = "agent"    // enroll one machine for each use
	Upstream Role = "upstream" // enroll a server that sends its rows here
	Viewer   Role = "viewer"   // read
	Writer   Role = "writer"   // write series into a cluster
)

// IsBearer says whether who shows a token of the role has its right at once, as often as
// it likes: others are for enrolling.
func (r Role) IsBearer() bool { return r == Viewer || r == Writer }

// A Token is a right that can be handed over as text. The ledger keeps the hash
// of its secret only.
type Token struct {
	ID      string
	Hash    [32]byte // SHA-256 of the secret
	Role    Role
	Cluster string // that it is for; of a viewer what it sees, "" is all
	Uses    int    // that are left; -1 is any number
	Created time.Time
	Expires time.Time // zero is never
	Revoked time.Time // zero is not
}

// An Audit is a line of what was done by whom.
type Audit struct {
	At     time.Time
	Actor  string // "local", a node id, a token id
	Action string // "token.create", "node.enrol", "batch.conflict", ...
	Object string
	Detail string
}

// RevokedError is the error for a node, or a server below, that may not send any more.
func RevokedError(node string) error {
	return fault.WithHint(fmt.Errorf("node %s is revoked: %w", node, fault.ErrDenied),
		"where it is to send again, stop it, remove its identity from its state directory (identity of an agent, upstream of a server), and enroll it with a new token: mete token create")
}
