package run

import (
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/secretenv"
)

// selfAccess returns what the job needs to query its own use: at the server that the job sends to,
// else at this machine's agent.
func (j *job) selfAccess(own *ledgerRun, agent *agentJob) token.SelfAccess {
	switch {
	case !j.cfg.self:
		return token.SelfAccess{}
	case own.run != nil:
		return j.sender.SelfAccess(j.report.ID)
	case agent.client != nil:
		s, _ := agent.client.SelfAccess(j.report.ID)
		return token.SelfAccess{URL: s.URL, Token: s.Token, CA: s.CA}
	}
	return token.SelfAccess{}
}

// withSelfAccess returns the job's environment: the caller's, without its tokens and without the
// access of an enclosing job, and with that of s if set.
func withSelfAccess(env []string, s token.SelfAccess) []string {
	env = secretenv.Strip(env)
	if s.Token == "" {
		return env
	}
	env = append(env, secretenv.SelfURL+"="+s.URL, secretenv.SelfToken+"="+s.Token)
	if s.CA != "" {
		env = append(env, secretenv.SelfCA+"="+s.CA)
	}
	return env
}
