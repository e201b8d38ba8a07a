package token

import "mete.dev/mete/internal/model/registry"

// A Principal is who asks a server, as far as that was proved.
type Principal struct {
	Node    string        // id of the machine or server; "" of a viewer
	Cluster string        // that it belongs to; of a viewer what it sees, "" is all
	Role    registry.Role // never ""
	Token   string        // id of a viewer's token; "" where the machine's own people need none
}

// NodeHeader names the node in requests without TLS to a server on the same
// machine, where such are trusted.
const NodeHeader = "Mete-Node"

// A Claim is what a machine says for an identity (POST /v1/enroll) or for a new
// certificate (POST /v1/renew, where the signing request alone counts).
type Claim struct {
	// Token is the text of a token. It is empty where a certificate, or the
	// loopback, speaks for the machine.
	Token   string        `json:"token,omitempty"`
	Role    registry.Role `json:"role,omitempty"` // "" is registry.Agent
	CSR     string        `json:"csr,omitempty"`  // PKCS #10 in PEM; its subject means nothing
	Machine string        `json:"machine_id"`
	Boot    string        `json:"boot"`
	Name    string        `json:"name"`
}

// A Grant is what it gets.
type Grant struct {
	Node        string        `json:"node"`
	Cluster     string        `json:"cluster"`
	Role        registry.Role `json:"role"`
	Certificate string        `json:"certificate,omitempty"` // in PEM; none on the loopback
	CA          string        `json:"ca,omitempty"`          // in PEM; older servers tell none on the loopback
	// JobKey is the text of the key by which an agent makes tokens for its jobs;
	// older servers give none.
	JobKey string `json:"job_key,omitempty"`
}
