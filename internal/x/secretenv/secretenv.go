// Package secretenv names the environment variables that hold secrets of mete's
// programs, and removes them from the environments of other programs.
package secretenv

import (
	"slices"
	"strings"
)

// The variables of the environment in which mete's programs take their own tokens.
const (
	Token    = "METE_TOKEN"          // of an agent, a viewer or a job that sends its figures itself
	Upstream = "METE_UPSTREAM_TOKEN" // of a server that sends to one above it
)

// secret lists the variables that a program of mete passes on to no other program.
var secret = []string{Token, Upstream, SelfURL, SelfToken, SelfCA}

// Strip returns the environment for another program: env without the tokens of
// this one, and without the variables by which a job reads its own use.
func Strip(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(secret, name)
	})
}

// The variables of a job's environment that hold its Self.
const (
	SelfURL   = "METE_SELF_URL"
	SelfToken = "METE_SELF_TOKEN"
	SelfCA    = "METE_SELF_CA" // path of a file with the certificate
)
