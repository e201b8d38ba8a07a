// Package secretenv names the environment variables that hold secrets of mete's
// programs, and removes them from the environments of other programs.
package secretenv

import (
	"slices"
	"strings"
)

// Variables with the tokens of mete's programs.
const (
	Token    = "METE_TOKEN"          // of an agent, a viewer or a standalone job
	Upstream = "METE_UPSTREAM_TOKEN" // of a server that replicates to its upstream
)

// secret lists the variables that mete's programs do not pass on.
var secret = []string{Token, Upstream, SelfURL, SelfToken, SelfTokenFile, SelfCA}

// Strip returns env without mete's tokens and without the variables by which a job reads
// its own use.
func Strip(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(secret, name)
	})
}

// Variables by which a job, or a pod of Kubernetes, reads its own use.
const (
	SelfURL       = "METE_SELF_URL"
	SelfToken     = "METE_SELF_TOKEN"
	SelfTokenFile = "METE_SELF_TOKEN_FILE" // path of a file with the token, of a pod
	SelfCA        = "METE_SELF_CA"         // path of a file with the certificate
)
