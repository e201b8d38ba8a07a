package token

import "mete.dev/mete/internal/model/registry"

// A Principal is the verified client of a request.
type Principal struct {
	Node    string        // id of the machine or server; "" for a viewer
	Cluster string        // that it belongs to; for a viewer the one it may read, "" is all
	Role    registry.Role // never ""
	Jobs    bool          // the certificate is that of the jobs of a machine
	Token   string        // id of a viewer's token; "" for local access without one
}

// NodeHeader names the node in requests of an agent over the server's socket.
const NodeHeader = "Mete-Node"

// A Claim is a request for an identity (POST /v1/enroll) or a new certificate (POST /v1/renew,
// which uses only the signing request).
type Claim struct {
	// Token is the text of a token. It is empty if a certificate or the server's socket
	// authorizes the claim.
	Token   string        `json:"token,omitempty"`
	Role    registry.Role `json:"role,omitempty"` // "" is registry.Agent
	CSR     string        `json:"csr,omitempty"`  // PKCS #10 in PEM; its subject is ignored
	Machine string        `json:"machine_id"`
	Boot    string        `json:"boot"`
	Name    string        `json:"name"`
}

// A Grant is the response to a Claim.
type Grant struct {
	Node        string        `json:"node"`
	Cluster     string        `json:"cluster"`
	Role        registry.Role `json:"role"`
	Certificate string        `json:"certificate,omitempty"` // in PEM; none over the server's socket
	CA          string        `json:"ca,omitempty"`          // in PEM; older servers omit it without TLS
	// JobKey is the text of the key with which an agent signs tokens of its jobs; older servers
	// omit it.
	JobKey string `json:"job_key,omitempty"`
}
