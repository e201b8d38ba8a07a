package doctor

import (
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/pki/enroll"
)

// authorityWarning is the rest of an authority's life at which its server warns.
const authorityWarning = 365 * 24 * time.Hour

// certificates is about those in state directories.
func certificates(states []state, now time.Time) (out []Check) {
	for i := range states {
		s := &states[i]
		if s.kind == serverState {
			out = append(out, serverCertificates(s, now)...)
		} else if c, ok := agentCertificate(s, now); ok {
			out = append(out, c)
		}
	}
	if len(out) == 0 {
		out = append(out, of("certificates", Missing, "no certificate that this user can read; a server with TLS and an enrolled agent have one"))
	}
	return out
}

// serverCertificates is about the authority and the certificate of a server.
func serverCertificates(s *state, now time.Time) (out []Check) {
	authority, server := ca.Files(filepath.Join(s.dir, "authority"))
	cert, err := ca.ReadCertificate(authority)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, fs.ErrPermission):
		return []Check{of("authority", Limited, "this user may not read %s", authority).do("run mete doctor as the user of the server, or as root")}
	case err != nil:
		return []Check{failed("authority", err).do("restore " + authority + " from a backup: docs/guide/restore.md")}
	}
	out = append(out, authorityCheck(cert, authority, now))
	if c, ok := keyMode(authority); ok {
		out = append(out, c)
	}
	own, err := ca.ReadCertificate(server)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		out = append(out, of("certificate", Limited, "%s", err).do("restart the server, which makes another one"))
	default:
		out = append(out, certificateCheck(own, s.holder != 0, now))
		if c, ok := keyMode(server); ok {
			out = append(out, c)
		}
	}
	return out
}

// authorityCheck judges the certificate of a server's authority.
func authorityCheck(c *x509.Certificate, path string, now time.Time) Check {
	left := c.NotAfter.Sub(now)
	switch {
	case left < 0:
		return of("authority", Failed, "%s ended on %s: the server does not start", path, date(c.NotAfter)).
			do("check this machine's clock; otherwise move " + filepath.Dir(path) + " away and enroll the machines again")
	case now.Before(c.NotBefore):
		return of("authority", Failed, "%s begins on %s: this machine's clock is behind", path, date(c.NotBefore)).do("set the clock: timedatectl set-ntp true")
	case left < authorityWarning:
		return of("authority", Limited, "%s ends on %s", path, date(c.NotAfter)).
			do("plan to enroll the machines again: with another authority all certificates and tokens are new")
	}
	return of("authority", OK, "%s, until %s", path, date(c.NotAfter))
}

// certificateCheck judges the certificate of a server, which renews it while it runs and when it starts.
func certificateCheck(c *x509.Certificate, running bool, now time.Time) Check {
	names := strings.Join(ca.Names(c), " ")
	switch {
	case now.After(c.NotAfter) && running:
		return of("certificate", Failed, "ended on %s, and the running server has not renewed it; names: %s", date(c.NotAfter), names).do("restart the server")
	case now.After(c.NotAfter):
		return of("certificate", Limited, "ended on %s; names: %s", date(c.NotAfter), names).do("nothing: the server renews it when it starts")
	case now.After(ca.RenewalTime(c)) && running:
		return of("certificate", Limited, "until %s, and its renewal is overdue since %s; names: %s", date(c.NotAfter), date(ca.RenewalTime(c)), names).do("restart the server")
	}
	return of("certificate", OK, "until %s; names: %s", date(c.NotAfter), names)
}

// agentCertificate is about the certificate of an enrolled agent; ok is false if there is none.
func agentCertificate(s *state, now time.Time) (c Check, ok bool) {
	id, err := enroll.Inspect(filepath.Join(s.dir, "identity"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c, false
	case errors.Is(err, fs.ErrPermission):
		return of("agent", Limited, "this user may not read %s", id.Path).do("run mete doctor as the user of the agent, or as root"), true
	case err != nil:
		return failed("agent", err).do("remove it and enroll with a token for the same node, which has its id: mete token create --node ID"), true
	}
	if c, bad := keyMode(id.Path); bad {
		c.Name = "agent"
		return c, true
	}
	return identityCheck(&id, now), true
}

// identityCheck judges the certificate of an enrolled agent, which renews it while it runs.
func identityCheck(id *enroll.Stored, now time.Time) Check {
	end := id.Certificate.NotAfter
	switch {
	case now.After(end):
		return of("agent", Failed, "the certificate of node %s at %s ended on %s", id.Node, id.Server, date(end)).
			figures("windows wait in the spool; the oldest are dropped when it is full").
			do("on the server: mete token create --role agent --node " + id.Node + " >token; start the agent with this file")
	case now.After(id.Renew):
		return of("agent", Limited, "node %s at %s, until %s; the renewal is overdue since %s", id.Node, id.Server, date(end), date(id.Renew)).
			do("see whether the agent runs and reaches the server: journalctl -u mete-agent")
	}
	return of("agent", OK, "node %s of cluster %s at %s, until %s", id.Node, id.Cluster, id.Server, date(end))
}

// keyMode returns a check of a file with a key if others than its owner have rights to it.
func keyMode(path string) (Check, bool) {
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return Check{}, false
	}
	return of("key", Failed, "%s holds a key and has mode %04o: others than its owner have rights to it", path, info.Mode().Perm()).
		do("chmod 600 " + path + "; if others had access to this machine, they may have the key"), true
}

// date writes a day.
func date(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// denied reports whether this user may not see a file.
func denied(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, fault.ErrDenied)
}
