package run

import (
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/secretenv"
)

// selfAccess is what the job is given to ask for its own use: by the server that it sends
// its figures to itself, else by this machine's agent.
func (j *job) selfAccess(own *ledgerRun, books *agentJob) token.SelfAccess {
	switch {
	case !j.cfg.self:
		return token.SelfAccess{}
	case own.run != nil:
		return j.sender.SelfAccess(j.report.ID)
	case books.client != nil:
		s, _ := books.client.SelfAccess(j.report.ID)
		return token.SelfAccess{URL: s.URL, Token: s.Token, CA: s.CA}
	}
	return token.SelfAccess{}
}

// withSelfAccess is the environment of a job: the caller's, without its tokens and without
// the Self of a job that this one was started in, and with s where there is one.
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
